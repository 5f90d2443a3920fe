"""Maildirs: a message is in `new`, whole and on the disk, or it is not there at all.

Written to `tmp`, synced, renamed into `new`, and the folder synced; so when `settle` returns, the
message survives a power cut, and a process killed in between leaves nothing that a mail reader
shows. Several recipients of one message are written first and settled together: if one Maildir
refuses, none of the others has it.

Holds folders and names, and must not know who a folder belongs to, nor protocols. Folders are made
when they are first needed (0700; files 0600). Failure: OSError, as the disk says it; then nothing
of the message is left.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

JUNK = ".Junk"
"""Maildir++: a sub-folder begins with a dot"""
PARTS = ("tmp", "new", "cur")
STALE_S = 36 * 3600
"""Age at which a file in `tmp` is a dead delivery (maildir's own specification)."""

_HOST = socket.gethostname().replace("/", "\\057").replace(":", "\\072") or "localhost"
_numbers = count()


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that is written and synced, but not yet to be seen."""

    folder: Path
    name: str

    @property
    def source(self) -> Path:
        """Where it lies."""
        return self.folder / "tmp" / self.name

    @property
    def goal(self) -> Path:
        """Where it will be seen."""
        return self.folder / "new" / self.name


def unique_name(size: int) -> str:
    """A file name that no other delivery on any host has; its size spares Dovecot a look."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    number, luck = next(_numbers), secrets.token_hex(4)
    return f"{seconds}.M{rest // 1000}P{os.getpid()}Q{number}R{luck}.{_HOST},S={size}"


def prepare(folder: Path, pieces: Sequence[bytes]) -> Pending:
    """Write a message into `tmp` and sync it."""
    make(folder)
    pending = Pending(folder, unique_name(sum(map(len, pieces))))
    try:
        _write(pending.source, pieces)
    except BaseException:
        drop([pending])
        raise
    return pending


def settle(several: Iterable[Pending]) -> None:
    """Let prepared messages be seen, all or none."""
    seen: list[Pending] = []
    several = list(several)
    try:
        for pending in several:
            pending.source.rename(pending.goal)
            seen.append(pending)
        for folder in dict.fromkeys(pending.folder for pending in several):
            sync_folder(folder / "new")
    except BaseException:
        for pending in seen:
            with suppress(OSError):
                pending.goal.unlink()
        drop(several)
        raise


def drop(several: Iterable[Pending]) -> None:
    """Take prepared messages away again."""
    for pending in several:
        with suppress(OSError):
            pending.source.unlink()


def deliver(folder: Path, pieces: Sequence[bytes]) -> Path:
    """Deliver one message; when it returns, it is there for good."""
    pending = prepare(folder, pieces)
    settle([pending])
    return pending.goal


def make(folder: Path) -> None:
    """Make a Maildir, and the ones above a sub-folder, as far as they are missing."""
    if all((folder / part).is_dir() for part in PARTS):
        return
    inner = folder.name.startswith(".")
    if inner:
        make(folder.parent)
    _make_folder(folder)
    for part in PARTS:
        _make_folder(folder / part)
    if inner:
        (folder / "maildirfolder").touch(0o600)
    sync_folder(folder)


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each one synced into the one that holds it."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    sync_folder(folder.parent)


def sweep(folder: Path) -> int:
    """Take dead deliveries out of `tmp`, and tell how many."""
    swept, oldest = 0, time.time() - STALE_S
    for path in (folder / "tmp").glob("*"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
                swept += 1
    return swept


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder."""
    where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(where)
    finally:
        os.close(where)


def _write(path: Path, pieces: Sequence[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
