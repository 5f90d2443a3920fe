"""What surrounds an environment's file, without the engine: who is inside, its folder, its waits.

`TransactionGate` counts this process's open transactions, for the map may be moved only when there
are none. `EnvironmentRegistry` keeps one environment of a folder in a process. `RetryDeadline`
bounds every retry. The rest makes folders private and their entries durable.

Must not import LMDB. Failure: StoreBusyError when a wait is over, StoreAccessError, StoreFullError
where the file system refuses.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from spamnb.errors import (
    StoreAccessError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreMissingError,
)

WAIT_S = 30.0
"""how long to wait for one's own readers, or for a reader slot: longer than any snapshot is used"""
PAUSE_S = 0.01
_LARGE_WRITE = 1 << 20
"""four times what LMDB writes in one call"""

Thing = TypeVar("Thing")


DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
MAP_SIZE = 1 << 40
"""reserved address space, not disk: the file grows as it is written"""


class EnvironmentConfig(NamedTuple):
    """How an environment is opened."""

    path: Path
    names: tuple[str, ...]
    readonly: bool = False
    map_size: int = MAP_SIZE
    limit_bytes: int = 0
    disk_share: bool = False
    """without a limit, the file system gives one, which follows what is free there"""
    sync: bool = True
    lock: bool = True
    """False only inside `alone`"""


class TransactionGate:
    """Lets transactions in; closes when the last one has left."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._closing = 0
        self._mine = threading.local()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """One transaction.

        A thread that is inside already is let in while the gate closes, or it waits for itself.
        """
        depth = getattr(self._mine, "depth", 0)
        with self._change:
            while self._closing and not depth:
                self._change.wait()
            self._inside += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            with self._change:
                self._inside -= 1
                if self._closing:
                    self._change.notify_all()

    @contextlib.contextmanager
    def closed(self, wait_s: float = WAIT_S) -> Iterator[None]:
        """Nobody inside for as long as the block runs."""
        if getattr(self._mine, "depth", 0):
            raise StoreBusyError(
                "the map must grow, but this thread still reads an older snapshot",
                hint="end the snapshot before writing",
            )
        with self._change:
            self._closing += 1
            try:
                if not self._change.wait_for(lambda: self._inside == 0, wait_s):
                    raise StoreBusyError(f"a snapshot was kept open for {wait_s:.0f} s")
                yield
            finally:
                self._closing -= 1
                self._change.notify_all()


class EnvironmentRegistry(Generic[Thing]):
    """One thing for each folder of this process, shared by all who ask, closed by the last.

    LMDB needs it: its locks are POSIX locks, which belong to the process, so opening a file twice
    and closing it once drops the locks of both.
    """

    def __init__(self, close: Callable[[Thing], None], after_fork: Callable[[Thing], None]) -> None:
        self._close = close
        self._after_fork = after_fork
        self._lock = threading.Lock()
        self._things: dict[str, Thing] = {}
        self._users: dict[Thing, int] = {}
        self._barred: set[str] = set()
        os.register_at_fork(after_in_child=self._forked)

    def take(self, path: Path, make: Callable[[], Thing]) -> Thing:
        """The thing of a folder, made if there is none."""
        where = os.path.realpath(path)
        with self._lock:
            if where in self._barred:
                raise StoreBusyError(f"{path} is being replaced by this process")
            if where not in self._things:
                self._things[where] = make()
            thing = self._things[where]
            self._users[thing] = self._users.get(thing, 0) + 1
            return thing

    def give_back(self, thing: Thing) -> None:
        """One user less."""
        with self._lock:
            left = self._users.pop(thing, 0) - 1
            if left > 0:
                self._users[thing] = left
            elif left == 0:
                self._drop(thing)
                self._close(thing)

    def evict(self, thing: Thing) -> None:
        """Its folder is no longer at its place: who asks from now on gets another."""
        with self._lock:
            self._drop(thing)

    def _drop(self, thing: Thing) -> None:
        self._things = {where: held for where, held in self._things.items() if held is not thing}

    @contextlib.contextmanager
    def nobody(self, path: Path) -> Iterator[None]:
        """A block in which nobody of this process holds, or gets, the thing of a folder."""
        where = os.path.realpath(path)
        with self._lock:
            if where in self._things or where in self._barred:
                raise StoreBusyError(f"{path} is open in this process", hint="close it first")
            self._barred.add(where)
        try:
            yield
        finally:
            self._barred.discard(where)

    def _forked(self) -> None:
        # A thread that held the lock did not live on in the child.
        self._lock = threading.Lock()
        for thing in self._users:
            self._after_fork(thing)


class RetryDeadline:
    """A bounded wait in small pauses, for what no event announces (another process's reader)."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._until = time.monotonic() + wait_s

    def pause(self, what: str) -> None:
        """Wait a little; StoreBusyError when there was enough of it."""
        if time.monotonic() > self._until:
            raise StoreBusyError(what)
        time.sleep(PAUSE_S)


def refused(error: OSError, path: Path) -> StoreError:
    """Our error for one of the file system."""
    said = f"{path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFullError(said, hint="make room on the disk")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreAccessError(said, hint="check the owner and the permissions of the folder")
    return StoreError(said)


def no_room(folder: Path) -> bool:
    """Whether the disk, or this process's limit on files, leaves less than a large write needs."""
    disk = os.statvfs(folder)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    used = (folder / DATA_FILE).stat().st_size
    beyond = limit != resource.RLIM_INFINITY and used + _LARGE_WRITE > limit
    return beyond or disk.f_bavail * disk.f_frsize < _LARGE_WRITE


def holds_data(folder: Path) -> bool:
    """Whether a data file is there."""
    try:
        if folder.exists() and not folder.is_dir():
            raise StoreMissingError(f"{folder} is a file, a model is a folder")
        return (folder / DATA_FILE).stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(error, folder) from error


def make_folder(path: Path) -> None:
    """A private folder whose entry in its parent is on the disk."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise refused(error, path) from error


def sync_folder(path: Path) -> None:
    """Put the entries of a folder on the disk: a file's fsync does not (fsync(2))."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Put a file's content on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
