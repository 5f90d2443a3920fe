"""A mailbox that is a Maildir: one message is found by its Message-ID, moved by renaming, removed.

Files are renamed from folder to folder, as mail programs do it; none is written. Only files that
came since this began are read, so a mailbox of a hundred thousand messages costs their names alone.

Must not know what a move means, nor who watches. Failure: PeerError.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spamnb.errors import PeerError
from spamnb.service.diagnostics.ports import SIDES, FoundMessage, Side

_PARTS: Final = ("new", "cur")
_HEAD_BYTES: Final = 1 << 17
_SLACK_NS: Final = 5 * 10**9
"""between our clock and that of a file server"""


@dataclass(frozen=True, slots=True)
class MaildirLocation:
    """Where a Maildir is, and whose it is."""

    root: Path
    who: str
    junk: str = "Junk"
    acting: Callable[[], AbstractContextManager[object]] = nullcontext
    """whoever we must be to touch it: its owner, so that a link in it leads nowhere else"""


class MaildirMailbox:
    """One person's Maildir. Made by `open`."""

    channels = frozenset(("maildir",))
    advice = "is `spamnb watch` running for this Maildir, with a --quiet below our --wait?"

    def __init__(self, place: MaildirLocation) -> None:
        self.who = place.who
        self._place = place
        self._since_ns = time.time_ns() - _SLACK_NS
        self._old: set[Path] = set()
        """files that are other messages, by the part and the name without flags"""
        folders: dict[Side, str] = {"inbox": "", "junk": f".{place.junk.removeprefix('.')}"}
        self._folders = {side: place.root / name for side, name in folders.items()}
        self.about = f"{place.root} of {place.who}, junk is {self._folders['junk'].name}"

    @classmethod
    def open(cls, place: MaildirLocation) -> MaildirMailbox:
        """See that both folders are there."""
        made = cls(place)
        with made._acting():
            for side in SIDES:
                folder = made._folders[side]
                if not any((folder / part).is_dir() for part in _PARTS):
                    raise PeerError(f"{folder} is no Maildir", hint="it needs new/ and cur/")
        return made

    def find(self, ident: str) -> FoundMessage | None:
        """The message, where it lies."""
        with self._acting():
            for side in SIDES:
                for path in self._holding(self._folders[side], ident):
                    return FoundMessage(side, path.read_bytes())
        return None

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move it by renaming, as seen mail."""
        with self._acting():
            for path in self._holding(self._folders[source], ident):
                name = path.name if ":2," in path.name else f"{path.name}:2,S"
                path.rename(self._folders[target] / "cur" / name)
                return "renaming"
        raise PeerError(f"the message is not in {self._folders[source]} any more")

    def purge(self, ident: str) -> int:
        """Take it out of every folder; from how many."""
        count = 0
        with self._acting():
            inner = [path for path in self._place.root.glob(".*") if path.is_dir()]
            for folder in (self._place.root, *inner):
                for path in self._holding(folder, ident):
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    def close(self) -> None:
        """Nothing is held."""

    def _holding(self, folder: Path, ident: str) -> Iterator[Path]:
        """Files of a folder that are this message."""
        line = re.compile(rb"(?im)^message-id:\s{0,3}" + re.escape(ident.encode()) + rb"\s*$")
        for part in _PARTS:
            for path in _files(folder / part):
                key = path.with_name(path.name.partition(":")[0])
                if key in self._old:
                    continue
                with suppress(FileNotFoundError):  # a mail program has just moved it on
                    if self._is_new(path) and line.search(_head(path)):
                        yield path
                    else:
                        self._old.add(key)

    def _is_new(self, path: Path) -> bool:
        # ctime: a rename sets it, and nobody can set it back.
        held = path.stat(follow_symlinks=False)
        return stat.S_ISREG(held.st_mode) and held.st_ctime_ns >= self._since_ns

    @contextmanager
    def _acting(self) -> Iterator[None]:
        try:
            with self._place.acting():
                yield
        except OSError as error:
            raise PeerError(f"{self._place.root}: {error.strerror or error}") from error


def _files(part: Path) -> list[Path]:
    try:
        with os.scandir(part) as entries:
            return [Path(entry.path) for entry in entries]
    except FileNotFoundError:
        return []


def _head(path: Path) -> bytes:
    """The header section of a file."""
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES).replace(b"\r\n", b"\n").partition(b"\n\n")[0]
