"""Find the messages of a collection, put them in order, and read them.

Input is sorted mail in two paths, or a collection in the layout of TREC's spam track (a file
`index` with lines like `spam ../data/inmail.1`). Messages are read one at a time, so a large
collection is never held in memory. Must not know models. Failure: CorpusError; UserError for
a wrong number of paths.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import TypeVar

from spamnb.errors import CorpusError, UserError
from spamnb.service.training.sources import MessageSpan, SourceMessage, read_unit, units

Thing = TypeVar("Thing")
Named = tuple[str, tuple[Thing, str]]
"""(name to sort by, (message or reference to it, label))"""

_LINE = re.compile(r"(spam|ham)\s+(\S.*)", re.IGNORECASE)
_HEAD_BYTES = 65_536


def index_of(path: str) -> Path | None:
    """Return the index file of a collection in TREC's layout, or None."""
    location = Path(path)
    candidates = (
        (location,) if location.is_file() else (location / "full" / "index", location / "index")
    )
    for candidate in candidates:
        if candidate.is_file():
            with candidate.open(encoding="utf-8", errors="replace") as lines:
                if _LINE.match(lines.readline()):
                    return candidate
    return None


def indexed(index: Path) -> list[Named[MessageSpan]]:
    """Return the messages listed in an index, in its order."""
    found: list[Named[MessageSpan]] = []
    text = index.read_text("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        named = _LINE.fullmatch(line.strip())
        if named is None:
            raise CorpusError(
                f"line {number} of {index} is {line.strip()[:60]!r}",
                hint="each line must be `spam PATH` or `ham PATH`",
            )
        path = index.parent / named[2]
        found.append((f"{number:09}", (MessageSpan(str(path), shown=named[2]), named[1].lower())))
    return found


def sorted_mail(path: str, label: str) -> list[Named[MessageSpan]]:
    """Return the messages under a path, all with one label."""
    return [(Path(unit.name).name, (unit, label)) for unit in units(path)]


def ordered(
    sources: Sequence[str], order: str | None, seed: int
) -> tuple[list[tuple[MessageSpan, str]], str]:
    """Find the messages of HAM and SPAM, or of an index; return them with the name of their order.

    `order` is shuffle, time or given; without one an index is taken as given, other mail shuffled.
    """
    if not sources:
        return [], order or "shuffle"
    index = index_of(sources[0]) if len(sources) == 1 else None
    if index is not None:
        named, order = indexed(index), order or "given"
    else:
        named, order = _ham_and_spam(sources), order or "shuffle"
    if order == "shuffle":
        return shuffled(named, seed), order
    return (units_by_time if order == "time" else as_given)(named), order


def _ham_and_spam(sources: Sequence[str]) -> list[Named[MessageSpan]]:
    if len(sources) != 2:
        raise UserError(
            f"{len(sources)} paths are given instead of two",
            hint="give first the ham, then the spam; or one collection with full/index",
        )
    ham, spam = sources
    if os.path.realpath(ham) == os.path.realpath(spam):
        raise CorpusError(f"{ham} is given for ham and for spam", hint="give a folder for each")
    return sorted_mail(ham, "ham") + sorted_mail(spam, "spam")


def shuffled(named: Iterable[Named[Thing]], seed: int) -> list[tuple[Thing, str]]:
    """Sort by file name (ties by label), then shuffle: independent of folders and disk order."""
    rows = sorted(named, key=lambda row: (row[0], row[1][1]))
    random.Random(seed).shuffle(rows)  # noqa: S311 - a reproducible order, no secret
    return [thing for _, thing in rows]


def as_given(named: Iterable[Named[Thing]], _seed: int = 0) -> list[tuple[Thing, str]]:
    """Keep the order given: for an index, the order of arrival."""
    return [thing for _, thing in named]


def by_time(named: Iterable[Named[bytes]]) -> list[tuple[bytes, str]]:
    """Sort by time of arrival, else by Date; messages without either come first, by name."""
    return _by_time(named, lambda raw: raw)


def units_by_time(named: Iterable[Named[MessageSpan]]) -> list[tuple[MessageSpan, str]]:
    """As `by_time`, for messages in files; reads only the head of each."""

    def head(unit: MessageSpan) -> bytes:
        head = unit.start + _HEAD_BYTES
        read = read_unit(unit._replace(stop=min(unit.stop or head, head)))
        return read.raw if isinstance(read, SourceMessage) else b""

    return _by_time(named, head)


def _by_time(
    named: Iterable[Named[Thing]], head: Callable[[Thing], bytes]
) -> list[tuple[Thing, str]]:
    keyed = [(arrival(head(thing[0])), name, thing[1], thing) for name, thing in named]
    return [row[3] for row in sorted(keyed, key=lambda row: row[:3])]


def read_each(
    found: Iterable[tuple[MessageSpan, str]],
    warn: Callable[[str], None],
    *,
    documents: bool = False,
) -> Iterator[tuple[bytes, str]]:
    """Read messages one at a time; an unreadable message is skipped with a warning."""
    for unit, label in found:
        read = read_unit(unit, documents=documents)
        if isinstance(read, SourceMessage):
            yield read.raw, label
        else:
            warn(f"skipped {read.name}: {read.reason}")


def arrival(raw: bytes) -> float:
    """Return seconds since 1970 from the newest Received, else from Date; 0 if unreadable."""
    head = raw[:_HEAD_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    fields = head.replace(b"\n ", b" ").replace(b"\n\t", b" ").split(b"\n")
    for name in (b"received:", b"date:"):
        for line in fields:
            if line[: len(name)].lower() == name:
                date = line[len(name) :].rpartition(b";")[2].decode("ascii", "replace")
                parsed = parsedate_tz(date)
                if parsed and 1970 <= parsed[0] < 10_000:
                    try:
                        return float(mktime_tz(parsed))
                    except (ValueError, OverflowError):
                        continue
    return 0.0
