"""A mailbox in a Maildir: find one message by its Message-ID, move it by renaming, delete it.

Files are renamed from folder to folder, as mail programs do; none is written. Only files that
arrived since `open` are read, so a mailbox of a hundred thousand messages costs only their names.

Must not know what a move means, or which program watches. Failure: PeerError.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spamnb.errors import PeerError
from spamnb.service.diagnostics.ports import SIDES, FoundMessage, Side

_PARTS: Final = ("new", "cur")
_NO_FOLDER: Final = (
    "it needs new/ and cur/; make the junk folder with the mail program, or with `doveadm mailbox "
    "create`"
)
_HEAD_BYTES: Final = 1 << 17
_SLACK_NS: Final = 5 * 10**9
"""difference between the local clock and that of a file server"""


@dataclass(frozen=True, slots=True)
class MaildirLocation:
    """A Maildir and its user."""

    root: Path
    user: str
    junk: str = "Junk"
    acting: Callable[[], AbstractContextManager[object]] = nullcontext
    """enters the identity to use: the Maildir's owner, so that a link in it leads nowhere else"""


class MaildirMailbox:
    """`Mailbox` in one user's Maildir. Created by `open`."""

    channels = frozenset(("maildir",))
    advice = "check that `spamnb watch` runs for this Maildir, with a --quiet below --wait"

    def __init__(self, location: MaildirLocation) -> None:
        self.user = location.user
        self._location = location
        self._since_ns = time.time_ns() - _SLACK_NS
        self._old: set[tuple[bytes, Path]] = set()
        """files that are other messages than one: by its pattern, folder and name without flags"""
        folders: dict[Side, str] = {"inbox": "", "junk": f".{location.junk.removeprefix('.')}"}
        self._folders = {side: location.root / name for side, name in folders.items()}
        self.about = f"{location.root} of {location.user}, junk is {self._folders['junk'].name}"

    @classmethod
    def open(cls, location: MaildirLocation) -> MaildirMailbox:
        """Check that both folders exist."""
        made = cls(location)
        with made._acting():
            for side in SIDES:
                folder = made._folders[side]
                if not any((folder / part).is_dir() for part in _PARTS):
                    raise PeerError(f"{folder} is not a Maildir", hint=_NO_FOLDER)
        return made

    def find(self, ident: str) -> FoundMessage | None:
        with self._acting():
            for side in SIDES:
                for path in self._files_of(self._folders[side], ident):
                    return FoundMessage(side, path.read_bytes())
        return None

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move the message by renaming its file, and mark it as seen."""
        with self._acting():
            for path in self._files_of(self._folders[source], ident):
                name = path.name if ":2," in path.name else f"{path.name}:2,S"
                path.rename(self._folders[target] / "cur" / name)
                return "renaming"
        raise PeerError(f"the message is not in {self._folders[source]} any more")

    def purge(self, ident: str) -> int:
        count = 0
        with self._acting():
            inner = [path for path in self._location.root.glob(".*") if path.is_dir()]
            for folder in (self._location.root, *inner):
                for path in self._files_of(folder, ident):
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _files_of(self, folder: Path, ident: str) -> list[Path]:
        """The files of a folder that contain this message.

        A list: Python drops an interrupt that arrives while it closes a generator early.
        """
        line = re.compile(rb"(?im)^message-id:\s{0,3}" + re.escape(ident.encode()) + rb"\s*$")
        paths = (path for part in _PARTS for path in _files(folder / part))
        return [path for path in paths if self._is_message(path, line)]

    def _is_message(self, path: Path, line: re.Pattern[bytes]) -> bool:
        key = line.pattern, path.with_name(path.name.partition(":")[0])
        if key in self._old:
            return False
        try:
            found = _is_new(path, self._since_ns) and bool(line.search(_head(path)))
        except FileNotFoundError:  # a mail program has just moved it
            return False
        if not found:
            self._old.add(key)
        return found

    @contextmanager
    def _acting(self) -> Iterator[None]:
        try:
            with self._location.acting():
                yield
        except OSError as error:
            raise PeerError(f"{self._location.root}: {error.strerror or error}") from error


def _files(part: Path) -> list[Path]:
    try:
        with os.scandir(part) as entries:
            return [Path(entry.path) for entry in entries]
    except FileNotFoundError:
        return []


def _is_new(path: Path, since_ns: int) -> bool:
    # ctime: a rename sets it, and no program can set it back.
    about = path.stat(follow_symlinks=False)
    return stat.S_ISREG(about.st_mode) and about.st_ctime_ns >= since_ns


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES).replace(b"\r\n", b"\n").partition(b"\n\n")[0]
