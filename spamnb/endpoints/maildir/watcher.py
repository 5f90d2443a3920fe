"""Learns from where messages lie, after a quiet time: whoever moves a message teaches.

Holds which files were seen to arrive where and when, and reads a file only when it has lain still
for a while, so that a message on its way through (a client's rule, a slip of the hand) says
nothing. A restart goes on where the last run stopped: files that moved since are looked at (their
ctime tells), and looking twice changes nothing, for the model knows what it was taught.

The watcher may run as root, and the owner of a Maildir chooses what a link in it means: all is
opened by descriptors of folders, without following that user's links (`folders`).

Must not know the model or the control socket: what was taught of a message, and how to teach, are
given. Failure: StoreError of these is passed on, and what was not taught is looked at again.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from spamnb.endpoints.maildir.folder_roles import Folders, Role, delivered_as, role_of, word_of
from spamnb.endpoints.maildir.inotify import Inotify
from spamnb.errors import CorpusError
from spamnb.service.feedback.types import Answer, Feedback
from spamnb.store.folders import opened
from spamnb.store.named_files import as_caller

PARTS = ("new", "cur")
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EPERM)
LIMIT_BYTES = 32 << 20
_TICK_NS = 20_000_000
"""A file's times are those of the kernel's last tick, up to 10 ms behind the clock that we read:
what came right behind the moment that we remember would seem to have come before it."""


@dataclass(frozen=True, slots=True)
class Maildir:
    """One person's mail."""

    root: Path
    who: str


class Checkpoint(Protocol):
    """Where a run stopped."""

    def load(self) -> int:
        """Nanoseconds since 1970; 0 if there was no run."""

    def save(self, seen_ns: int) -> None:
        """Everything that arrived before is done."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How long a message must lie still."""

    quiet_s: float = 30.0
    folders: Folders = field(default_factory=Folders)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A file that came to lie somewhere."""

    maildir: Maildir
    part: Path
    """the folder's `new` or `cur`"""
    name: str
    role: Role
    since_ns: int
    """wall time of its arrival"""


class _Entry(NamedTuple):
    """What a listing tells."""

    name: str
    changed_ns: int
    is_folder: bool


class Watcher:
    """Watches Maildirs."""

    def __init__(
        self,
        maildirs: list[Maildir],
        taught: Callable[[bytes], str | None],
        teach: Callable[[Feedback], Answer],
        memory: Checkpoint,
        patience: WatchOptions | None = None,
    ) -> None:
        self._maildirs = maildirs
        self._taught = taught
        self._teach = teach
        self._memory = memory
        self._patience = patience or WatchOptions()
        self._inotify = Inotify()
        self._owners: dict[Path, tuple[Maildir, str]] = {}
        self._waiting: dict[tuple[Path, str], _Arrival] = {}
        """by Maildir and name: a message that moves on begins its quiet time anew"""

    # -- beginning ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Watch, then look at what happened meanwhile: in this order nothing falls between."""
        since = self._memory.load()
        for maildir in self._maildirs:
            self._watch_maildir(maildir)
            if not any(maildir.root / part in self._owners for part in PARTS):
                raise CorpusError(f"{maildir.root} is no Maildir", hint="it needs new/ and cur/")
        if since:
            # A moment that is yet to come was remembered under a clock that was ahead.
            self._look_back(since if since <= time.time_ns() else 0)
        else:
            self._memory.save(time.time_ns())

    @as_caller()
    def _watch_maildir(self, maildir: Maildir) -> None:
        self._watch_folder(maildir, "")
        for entry in _entries(maildir.root):
            if entry.name.startswith(".") and entry.is_folder:
                self._watch_folder(maildir, entry.name)

    def _watch_folder(self, maildir: Maildir, folder: str) -> list[Path]:
        """Watch a folder, and those of its parts that are there; the parts that are watched."""
        place = maildir.root / folder
        if not self._watch_place(place, maildir, folder):
            return []
        parts = [place / part for part in PARTS]
        return [part for part in parts if self._watch_place(part, maildir, folder)]

    def _watch_place(self, place: Path, maildir: Maildir, folder: str) -> bool:
        """Watch one folder; not if it is missing, a link of its owner's, or another user's."""
        try:
            with opened(place) as handle:
                self._inotify.watch(handle, place)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                return False
            raise
        self._owners[place] = (maildir, folder)
        return True

    @as_caller()
    def _look_back(self, since_ns: int) -> None:
        """Look at what came since; twice does no harm."""
        for place in list(self._owners):
            if place.name in PARTS:
                for entry in _entries(place):
                    if entry.changed_ns >= since_ns - _TICK_NS:
                        self._arrived(place, entry.name, entry.changed_ns)

    # -- watching -------------------------------------------------------------------------------

    def watch(self, stopped: Callable[[], bool]) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Go on until told to stop; gives each word that was taught."""
        while not stopped():
            select.select([self._inotify], [], [], 0.5)
            self.listen()
            yield from self.due()

    def listen(self) -> None:
        """Hear what happened."""
        for event in self._inotify.happened():
            if event.lost:
                self._look_back(self._memory.load())
            elif event.is_folder:
                self._folder_made(event.folder, event.name)
            else:
                self._arrived(event.folder, event.name, time.time_ns())

    @as_caller()
    def _folder_made(self, place: Path, name: str) -> None:
        maildir, folder = self._owners[place]
        parts: list[Path] = []
        if place == maildir.root and name.startswith("."):
            parts = self._watch_folder(maildir, name)
        elif name in PARTS and self._watch_place(place / name, maildir, folder):
            parts = [place / name]
        # What came before the watch did was told to nobody.
        for part in parts:
            for entry in _entries(part):
                self._arrived(part, entry.name, time.time_ns())

    def _arrived(self, part: Path, name: str, since_ns: int) -> None:
        maildir, folder = self._owners[part]
        if part.name not in PARTS or name.startswith("."):
            return
        role = role_of(folder, self._patience.folders)
        unique = name.partition(":")[0]
        self._waiting[maildir.root, unique] = _Arrival(maildir, part, name, role, since_ns)

    # -- teaching -------------------------------------------------------------------------------

    def due(self) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Teach what has lain still for long enough."""
        quiet_ns = int(self._patience.quiet_s * 1e9)
        now = time.time_ns()
        ready = [key for key, one in self._waiting.items() if one.since_ns + quiet_ns <= now]
        for key in ready:
            arrival = self._waiting[key]
            for feedback, path in self._word(arrival):
                yield feedback, self._teach(feedback), path
            del self._waiting[key]
        if ready:
            oldest = min((one.since_ns for one in self._waiting.values()), default=now - quiet_ns)
            self._memory.save(min(oldest, now - quiet_ns))

    def _word(self, arrival: _Arrival) -> Iterator[tuple[Feedback, Path]]:
        if arrival.role == "silent":
            return
        path = _find(arrival)
        raw = _read(path) if path else b""
        if path is None or not raw:
            return
        label = word_of(arrival.role, delivered_as(raw), self._taught(raw))
        if label is not None:
            yield Feedback(label, raw, who=arrival.maildir.who, channel="maildir"), path

    def close(self) -> None:
        """Let go."""
        self._inotify.close()


@as_caller()
def _find(arrival: _Arrival) -> Path | None:
    """Where the file lies now: a mail program gives it flags, and moves it from new to cur."""
    with suppress(OSError), opened(arrival.part) as folder:
        os.stat(arrival.name, dir_fd=folder, follow_symlinks=False)
        return arrival.part / arrival.name
    unique = arrival.name.partition(":")[0]
    current = arrival.part.parent / "cur"
    names = (entry.name for entry in _entries(current))
    return next((current / name for name in names if name.partition(":")[0] == unique), None)


def _entries(place: Path) -> list[_Entry]:
    """What lies in a folder; nothing if it is gone, or is none that may be opened by now."""
    found = []
    with suppress(OSError), opened(place) as folder, os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
                found.append(_Entry(entry.name, about.st_ctime_ns, is_folder))
    return found


def _read(path: Path) -> bytes:
    """The file, if it is a plain one that is not too large; else nothing."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with as_caller(), opened(path.parent) as folder:
            handle = os.open(path.name, flags, dir_fd=folder)
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        held = os.fstat(handle)
        if not stat.S_ISREG(held.st_mode) or held.st_size > LIMIT_BYTES:
            return b""
        return file.read(LIMIT_BYTES)
