"""What another filter has learnt on this machine, and the command that takes it over."""

from __future__ import annotations

import pwd
import shlex
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_MOST_USERS = 1_000
"""whose homes are searched: a directory service can list more than a setup should wait for"""


class _OldFilter(NamedTuple):
    name: str
    files: tuple[str, ...]
    """in a home, or absolute"""
    command: str
    """`{}` is the file"""


_OLD_FILTERS = (
    _OldFilter(
        "bogofilter",
        (".bogofilter/wordlist.db",),
        "`bogoutil -d {} > words.dump && spamnb import --from bogofilter words.dump` takes over "
        "its counts",
    ),
    _OldFilter(
        "SpamAssassin",
        (
            ".spamassassin/bayes_toks",
            "/var/lib/amavis/.spamassassin/bayes_toks",
            "/var/lib/spamassassin/bayes/bayes_toks",
        ),
        "`sa-learn --dbpath {} --backup > sa-backup.txt && spamnb train --labels sa:sa-backup.txt "
        "--yes MAILDIR` takes over its labels of mail that still exists",
    ),
    _OldFilter(
        "rspamd",
        ("/var/lib/rspamd/bayes.spam.sqlite",),
        "its counts are hashes: train with the mail that users have sorted",
    ),
)


def homes_of_users() -> Iterator[Path]:
    """The homes of root and of the persons on this machine."""
    persons = (one for one in pwd.getpwall() if one.pw_uid == 0 or one.pw_uid >= 1000)
    return (Path(one.pw_dir) for one in islice(persons, _MOST_USERS))


def notes(homes: Iterable[Path]) -> Iterator[str]:
    """Say for each filter where its data is, and how to take it over."""
    places = [Path("/"), *homes]
    for old in _OLD_FILTERS:
        wanted = (place / name for place in places for name in old.files)
        found = [path for path in dict.fromkeys(wanted) if _is_there(path)]
        if found:
            others = f", and {len(found) - 1} more" if len(found) > 1 else ""
            place = found[0].parent / "bayes" if found[0].name == "bayes_toks" else found[0]
            command = old.command.format(shlex.quote(str(place)))
            yield f"{old.name} has learnt here ({found[0]}{others}): {command} (docs/switching.md)"


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
