"""Learn from the folders of messages: a message moved by its user becomes feedback.

The watcher records when and where a file arrives, and reads it only after it has not moved for a
while. So a temporary place (a client's rule, a mistaken move) teaches nothing. A restart continues
at the checkpoint: files that moved since then are checked (by their ctime). A second check changes
nothing, since the model knows the taught label.

The watcher may run as root, and a Maildir's owner controls its links: all access is by descriptors
of folders, without following that user's links (`store.paths`).

Must not know the model or the control socket: the caller passes functions that look up a label and
teach. Failure: their StoreError is passed on, and a message that was not taught is checked again.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from spamnb.endpoints.maildir.folder_roles import (
    Folders,
    Role,
    delivered_as,
    label_from_folder,
    role_of,
)
from spamnb.endpoints.maildir.inotify import Inotify
from spamnb.errors import CorpusError
from spamnb.service.feedback.types import Answer, Feedback
from spamnb.store.paths import as_caller, opened

LOG = logging.getLogger("spamnb.watch")

PARTS = ("new", "cur")
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EPERM, errno.EACCES)
MOST_FOLDERS = 5000
"""watched folders of one Maildir: the kernel allows some 200,000 watches in total"""
EACH = 100
"""messages of one Maildir in one pass, so that the other Maildirs are read too"""
MOST_WAITING = 10_000
"""messages of one Maildir that wait in memory (3 MB). A user that renames a file all the time adds
thousands a second; the watcher looks for later arrivals when these messages are done"""
LIMIT_BYTES = 32 << 20
_TICK_NS = 20_000_000
"""File times come from the kernel's last tick, up to 10 ms behind the clock that is read here: a
file that arrives just after the checkpoint could seem older than the checkpoint."""


@dataclass(frozen=True, slots=True)
class Maildir:
    """One user's mail."""

    root: Path
    user: str


class Checkpoint(Protocol):
    """Where a run stopped."""

    def load(self) -> int:
        """Nanoseconds since 1970; 0 if there was no run."""

    def save(self, seen_ns: int) -> None:
        """Record that all files that arrived before this time are done."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The quiet time before a message is read, and the folders' roles."""

    quiet_s: float = 30.0
    folders: Folders = field(default_factory=Folders)


@dataclass(frozen=True, slots=True)
class _Arrival:
    maildir: Maildir
    part: Path
    """the folder's `new` or `cur`"""
    name: str
    role: Role
    since_ns: int
    """wall time of its arrival"""


_Change = tuple[int, Path, str]
"""the earliest time at which a file can have changed, its folder and name"""


class _Entry(NamedTuple):
    name: str
    changed_ns: int
    is_folder: bool


class Watcher:
    """Watches Maildirs."""

    def __init__(
        self,
        maildirs: list[Maildir],
        taught: Callable[[bytes, str], str | None],
        teach: Callable[[Feedback], Answer],
        checkpoint: Checkpoint,
        options: WatchOptions | None = None,
    ) -> None:
        self._maildirs = maildirs
        self._taught = taught
        self._teach = teach
        self._checkpoint = checkpoint
        self._options = options or WatchOptions()
        self._inotify = Inotify()
        self._owners: dict[Path, tuple[Maildir, str]] = {}
        self._folders: Counter[Path] = Counter()
        """watched folders by Maildir"""
        self._waiting: dict[tuple[Path, str], _Arrival] = {}
        """by Maildir and name: a message that moves again starts its quiet time again"""
        self._count: Counter[Path] = Counter()
        """messages in `_waiting` by Maildir"""
        self._left_out: dict[Maildir, _Change] = {}
        """of Maildirs with `MOST_WAITING` messages: the first omitted change, or an earlier one"""
        self._read_until_ns = time.time_ns()
        """all events up to this time have been read"""

    # -- start ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Watch, then check what arrived since the checkpoint, so that nothing is missed."""
        since = self._checkpoint.load()
        for maildir in self._maildirs:
            self._watch_maildir(maildir)
            if not any(maildir.root / part in self._owners for part in PARTS):
                raise CorpusError(f"{maildir.root} is not a Maildir", hint="it needs new/ and cur/")
        if since:
            # A checkpoint in the future was saved while the clock was ahead.
            self._look_back(since if since <= time.time_ns() else 0)
        else:
            self._checkpoint.save(time.time_ns())

    @as_caller()
    def _watch_maildir(self, maildir: Maildir) -> None:
        self._watch_folder(maildir, "")
        for entry in _entries(maildir.root):
            if entry.name.startswith(".") and entry.is_folder:
                self._watch_folder(maildir, entry.name)

    def _watch_folder(self, maildir: Maildir, folder: str) -> list[Path]:
        """Watch a folder and its parts; return the watched parts."""
        folder_path = maildir.root / folder
        if not self._watch_path(folder_path, maildir, folder):
            return []
        parts = [folder_path / part for part in PARTS]
        return [part for part in parts if self._watch_path(part, maildir, folder)]

    def _watch_path(self, folder_path: Path, maildir: Maildir, folder: str) -> bool:
        """Watch one folder; False if it is missing, a link of its owner, or owned by another user.

        Changes of one user's folders must not end the watch for the other users.
        """
        if folder_path not in self._owners and self._folders[maildir.root] >= MOST_FOLDERS:
            return False
        try:
            with opened(folder_path) as handle:
                self._inotify.watch(handle, folder_path)
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                LOG.warning("%r is not watched: %s", str(folder_path), error.strerror)
            return False
        self._folders[maildir.root] += folder_path not in self._owners
        self._owners[folder_path] = (maildir, folder)
        return True

    def _look_back(self, since_ns: int) -> None:
        """Check what arrived since this time; a second check changes nothing."""
        self._look_after((since_ns - _TICK_NS, Path(), ""), self._maildirs)

    @as_caller()
    def _look_after(self, least: _Change, maildirs: list[Maildir]) -> None:
        """Check the changes from this time on, the oldest first."""
        found = [
            (entry.changed_ns, part, entry.name)
            for part, (maildir, _) in self._owners.items()
            if part.name in PARTS and maildir in maildirs
            for entry in _entries(part)
        ]
        for change in sorted(one for one in found if one >= least):
            self._arrived(change, change[0])

    # -- watching -------------------------------------------------------------------------------

    def watch(self, stopped: Callable[[], bool]) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Run until stopped; yield each feedback that was taught."""
        while not stopped():
            select.select([self._inotify], [], [], 0.5)
            self.listen()
            yield from self.due()

    def listen(self) -> None:
        """Read new file events."""
        now, events = time.time_ns(), list(self._inotify.read_events())
        if not events:
            self._read_until_ns = now
        for event in events:
            if event.lost:
                self._look_back(self._checkpoint.load())
            elif event.is_folder:
                self._folder_made(event.folder, event.name)
            else:
                change = self._read_until_ns - _TICK_NS, event.folder, event.name
                self._arrived(change, time.time_ns())

    @as_caller()
    def _folder_made(self, folder_path: Path, name: str) -> None:
        maildir, folder = self._owners[folder_path]
        parts: list[Path] = []
        if folder_path == maildir.root and name.startswith("."):
            parts = self._watch_folder(maildir, name)
        elif name in PARTS and self._watch_path(folder_path / name, maildir, folder):
            parts = [folder_path / name]
        # Files that arrived before the watch began caused no event.
        for part in parts:
            for entry in _entries(part):
                self._arrived((entry.changed_ns, part, entry.name), time.time_ns())

    def _arrived(self, change: _Change, since_ns: int) -> None:
        """Let a file wait for its quiet time, which began at `since_ns`."""
        _, part, name = change
        maildir, folder = self._owners[part]
        if part.name not in PARTS or name.startswith("."):
            return
        key = (maildir.root, name.partition(":")[0])
        if key not in self._waiting:
            if self._count[maildir.root] >= MOST_WAITING:
                self._left_out[maildir] = min(change, self._left_out.get(maildir, change))
                return
            self._count[maildir.root] += 1
        role = role_of(folder, self._options.folders)
        self._waiting[key] = _Arrival(maildir, part, name, role, since_ns)

    # -- teaching -------------------------------------------------------------------------------

    def all_due(self) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Teach until nothing is due."""
        while self._ready(time.time_ns()):
            yield from self.due()

    def due(self) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Teach messages after their quiet time, at most `EACH` of each Maildir."""
        quiet_ns = int(self._options.quiet_s * 1e9)
        now = time.time_ns()
        ready = self._ready(now)
        listed: dict[Path, dict[str, str]] = {}
        for key in ready:
            arrival = self._waiting[key]
            for feedback, path in self._feedback_for(arrival, listed):
                yield feedback, self._teach(feedback), path
            del self._waiting[key]
            self._count[key[0]] -= 1
        if ready:
            self._take_left_out()
            waiting = [one.since_ns for one in self._waiting.values()]
            waiting += [changed_ns for changed_ns, _, _ in self._left_out.values()]
            self._checkpoint.save(min([now - quiet_ns, *waiting]))

    def _take_left_out(self) -> None:
        """Look for arrivals that were left out, in Maildirs without waiting messages."""
        for maildir in [one for one in self._left_out if not self._count[one.root]]:
            self._look_after(self._left_out.pop(maildir), [maildir])

    def _ready(self, now: int) -> list[tuple[Path, str]]:
        """Messages after their quiet time; an arrival in the future was before a clock step."""
        quiet_ns = int(self._options.quiet_s * 1e9)
        taken: Counter[Path] = Counter()
        found = []
        for key, one in self._waiting.items():
            is_due = one.since_ns + quiet_ns <= now or one.since_ns > now
            if is_due and taken[key[0]] < EACH:
                taken[key[0]] += 1
                found.append(key)
        return found

    def _feedback_for(
        self, arrival: _Arrival, listed: dict[Path, dict[str, str]]
    ) -> Iterator[tuple[Feedback, Path]]:
        if arrival.role == "silent":
            return
        path = _find(arrival, listed)
        raw = _read(path) if path else b""
        if path is None or not raw:
            return
        label = label_from_folder(
            arrival.role, delivered_as(raw), self._taught(raw, arrival.maildir.user)
        )
        if label is not None:
            yield Feedback(label, raw, user=arrival.maildir.user, channel="maildir"), path

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()


@as_caller()
def _find(arrival: _Arrival, listed: dict[Path, dict[str, str]]) -> Path | None:
    """The file's path now: mail programs add flags and move it from new to cur.

    `listed` keeps the names in each `cur` for one pass: 2,000 deleted messages beside 100,000 would
    take twelve minutes with one listing for each message. A file that moves after the listing
    causes a new event.
    """
    with suppress(OSError), opened(arrival.part) as folder:
        os.stat(arrival.name, dir_fd=folder, follow_symlinks=False)
        return arrival.part / arrival.name
    current = arrival.part.parent / "cur"
    if current not in listed:
        listed[current] = {name.partition(":")[0]: name for name in _names(current)}
    name = listed[current].get(arrival.name.partition(":")[0])
    return current / name if name else None


def _names(folder_path: Path) -> list[str]:
    with suppress(OSError), opened(folder_path) as folder:
        return os.listdir(folder)  # noqa: PTH208 - by its descriptor
    return []


def _entries(folder_path: Path) -> list[_Entry]:
    """The entries of a folder; none if it is gone or may not be opened."""
    found = []
    with suppress(OSError), opened(folder_path) as folder, os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
                found.append(_Entry(entry.name, about.st_ctime_ns, is_folder))
    return found


def _read(path: Path) -> bytes:
    """The content of a plain file that is not too large; otherwise empty."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with as_caller(), opened(path.parent) as folder:
            handle = os.open(path.name, flags, dir_fd=folder)
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > LIMIT_BYTES:
            return b""
        return file.read(LIMIT_BYTES)
