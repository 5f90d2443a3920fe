"""Write messages into Maildirs: after `settle` a message is in `new`, complete and on disk.

A message is written to `tmp`, synced and renamed into `new`; then the folder is synced. So when
`settle` returns, the message survives a power cut. A process that is killed earlier leaves nothing
that a mail reader shows. A message with several recipients is first written for all of them and
then settled together: if one Maildir fails, no Maildir has the message.

The owner of a Maildir may be hostile, so all access goes through descriptors of folders that were
opened without following that user's links (`paths`). Folders are created when first needed (0700;
files 0600).

Must not know protocols. Failure: OSError; then no part of the message is left.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from spamnb.store import paths

JUNK = ".Junk"
"""Maildir++: a sub-folder's name begins with a dot"""
PARTS = ("tmp", "new", "cur")
STALE_S = 36 * 3600
"""Age at which a file in `tmp` is an abandoned delivery (maildir's own specification)."""

_HOST = socket.gethostname().replace("/", "\\057").replace(":", "\\072") or "localhost"
_numbers = count()
_NAME = re.compile(r"\d+\.M\d+P\d+Q\d+R[0-9a-f]{8}\..+,S=\d+")
"""the names that `unique_name` returns"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that is written and synced, but not yet visible."""

    folder: Path
    name: str

    @property
    def goal(self) -> Path:
        """The path at which it will be visible."""
        return self.folder / "new" / self.name


def unique_name(size: int) -> str:
    """A file name unique over all hosts; it contains the size, so that Dovecot need not read it."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    number, luck = next(_numbers), secrets.token_hex(4)
    return f"{seconds}.M{rest // 1000}P{os.getpid()}Q{number}R{luck}.{_HOST},S={size}"


def prepare(folder: Path, pieces: Sequence[bytes]) -> Pending:
    """Write a message into `tmp` and sync it."""
    make(folder)
    pending = Pending(folder, unique_name(sum(map(len, pieces))))
    try:
        with paths.opened(folder / "tmp") as tmp:
            _write(tmp, pending.name, pieces)
    except BaseException:
        drop([pending])
        raise
    return pending


def settle(several: Iterable[Pending]) -> None:
    """Make prepared messages visible, all or none."""
    seen: list[Pending] = []
    several = list(several)
    try:
        for pending in several:
            name = pending.name
            with (
                paths.opened(pending.folder / "tmp") as tmp,
                paths.opened(pending.folder / "new") as new,
            ):
                os.rename(name, name, src_dir_fd=tmp, dst_dir_fd=new)
                seen.append(pending)
                os.fsync(new)
    except BaseException:
        for pending in seen:
            _remove(pending, "new")
        drop(several)
        raise


def drop(several: Iterable[Pending]) -> None:
    """Remove prepared messages."""
    for pending in several:
        _remove(pending, "tmp")


def _remove(pending: Pending, part: str) -> None:
    with suppress(OSError), paths.opened(pending.folder / part) as folder:
        os.unlink(pending.name, dir_fd=folder)


def deliver(folder: Path, pieces: Sequence[bytes]) -> Path:
    """Deliver one message; when this returns, it is on disk."""
    pending = prepare(folder, pieces)
    settle([pending])
    return pending.goal


def make(folder: Path) -> None:
    """Create the missing folders of a Maildir, and those above a sub-folder."""
    inner = folder.name.startswith(".")
    if inner:
        make(folder.parent)
    with paths.opened(folder, make=True) as handle:
        made = [paths.make(handle, part) for part in PARTS if not _is_there(handle, part)]
        if inner and any(made):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            os.close(os.open("maildirfolder", flags, 0o600, dir_fd=handle))
            os.fsync(handle)


def _is_there(folder: int, part: str) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def sweep(folder: Path) -> int:
    """Delete this program's abandoned deliveries from `tmp`; return their number."""
    oldest = time.time() - STALE_S
    with paths.opened(folder / "tmp") as tmp, os.scandir(tmp) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
        return sum(_swept(tmp, name, oldest) for name in names)


def _swept(tmp: int, name: str, oldest: float) -> bool:
    with suppress(OSError):
        about = os.stat(name, dir_fd=tmp, follow_symlinks=False)
        own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
        if own and about.st_mtime < oldest:
            os.unlink(name, dir_fd=tmp)
            return True
    return False


def _write(folder: int, name: str, pieces: Sequence[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
