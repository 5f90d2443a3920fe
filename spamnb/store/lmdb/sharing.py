"""Sharing one LMDB environment among threads, without LMDB itself.

`TransactionGate` counts this process's open transactions, because the map may be resized only when
there are none. `EnvironmentRegistry` keeps one environment for each folder of a process.
`RetryDeadline` limits retries.

Must not import LMDB. Failure: StoreBusyError when a wait times out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from spamnb.errors import StoreBusyError, StoreMissingError
from spamnb.store.files import refused

WAIT_S = 30.0
"""how long to wait for this process's readers or a reader slot: longer than any snapshot is used"""
PAUSE_S = 0.01
_LARGE_WRITE = 1 << 20
"""four times what LMDB writes in one call"""

Shared = TypeVar("Shared")


DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
MAP_SIZE = 1 << 40
"""reserved address space, not disk space: the file grows as it is written"""


class EnvironmentConfig(NamedTuple):
    """Parameters for opening an environment."""

    path: Path
    names: tuple[str, ...]
    readonly: bool = False
    map_size: int = MAP_SIZE
    limit_bytes: int = 0
    disk_share: bool = False
    """if `limit_bytes` is 0, derive a limit from the free disk space, and update it as that
    changes"""
    sync: bool = True
    lock: bool = True
    """False only inside `maintenance.exclusive`"""


class TransactionGate:
    """Counts open transactions, and can wait until there are none."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._closing = 0
        self._mine = threading.local()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Run one transaction.

        A thread with an open transaction may open another one while the gate closes; otherwise it
        would wait for itself.
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
        """Run a block while this process has no open transaction."""
        if getattr(self._mine, "depth", 0):
            raise StoreBusyError(
                "the map must grow, but this thread has an older snapshot open",
                hint="close the snapshot before writing",
            )
        with self._change:
            self._closing += 1
            try:
                if not self._change.wait_for(lambda: self._inside == 0, wait_s):
                    raise StoreBusyError(
                        f"another thread kept a snapshot open for more than {wait_s:.0f} s",
                        hint="try again",
                    )
                yield
            finally:
                self._closing -= 1
                self._change.notify_all()


class EnvironmentRegistry(Generic[Shared]):
    """One shared object for each folder of this process, closed when its last user releases it.

    LMDB requires it: its POSIX locks belong to the process, so opening a file twice and closing it
    once drops the locks of both.
    """

    def __init__(
        self, close: Callable[[Shared], None], after_fork: Callable[[Shared], None]
    ) -> None:
        self._close = close
        self._after_fork = after_fork
        self._lock = threading.Lock()
        self._objects: dict[str, Shared] = {}
        self._users: dict[Shared, int] = {}
        self._barred: set[str] = set()
        os.register_at_fork(after_in_child=self._forked)

    def take(self, path: Path, make: Callable[[], Shared]) -> Shared:
        """Return the object of a folder, made by `make` if there is none."""
        where = os.path.realpath(path)
        with self._lock:
            if where in self._barred:
                raise StoreBusyError(
                    f"this process is replacing the model in {path}", hint="try again"
                )
            if where not in self._objects:
                self._objects[where] = make()
            shared = self._objects[where]
            self._users[shared] = self._users.get(shared, 0) + 1
            return shared

    def give_back(self, shared: Shared) -> None:
        """Release an object taken before; the last release closes it."""
        with self._lock:
            left = self._users.pop(shared, 0) - 1
            if left > 0:
                self._users[shared] = left
            elif left == 0:
                self._drop(shared)
                self._close(shared)

    def evict(self, shared: Shared) -> None:
        """Forget the object of a folder that was moved; the next `take` makes a new one."""
        with self._lock:
            self._drop(shared)

    def _drop(self, shared: Shared) -> None:
        self._objects = {where: held for where, held in self._objects.items() if held is not shared}

    @contextlib.contextmanager
    def exclusive(self, path: Path) -> Iterator[None]:
        """Run a block while this process has no object of the folder and can take none."""
        where = os.path.realpath(path)
        with self._lock:
            if where in self._objects or where in self._barred:
                raise StoreBusyError(
                    f"the model in {path} is open in this process", hint="close it first"
                )
            self._barred.add(where)
        try:
            yield
        finally:
            self._barred.discard(where)

    def _forked(self) -> None:
        # The thread that held the lock does not exist in the child.
        self._lock = threading.Lock()
        for shared in self._users:
            self._after_fork(shared)


class RetryDeadline:
    """A time limit for polling a condition without notification (another process's reader)."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._until = time.monotonic() + wait_s

    def pause(self, what: str) -> None:
        """Sleep for a short time; StoreBusyError with the text `what` after the time limit."""
        if time.monotonic() > self._until:
            raise StoreBusyError(what, hint="try again")
        time.sleep(PAUSE_S)


def no_room(folder: Path) -> bool:
    """Return whether free disk space or RLIMIT_FSIZE is too small for a large write."""
    disk = os.statvfs(folder)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    used = (folder / DATA_FILE).stat().st_size
    beyond = limit != resource.RLIM_INFINITY and used + _LARGE_WRITE > limit
    return beyond or disk.f_bavail * disk.f_frsize < _LARGE_WRITE


def holds_data(folder: Path) -> bool:
    """Return whether a folder contains a data file."""
    try:
        if folder.exists() and not folder.is_dir():
            raise StoreMissingError(
                f"{folder} is a file", hint="a model is a folder: check the path"
            )
        return (folder / DATA_FILE).stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(error, folder) from error


def inode_of(folder: Path) -> int:
    """Return the inode of a folder's data file; 0 if there is none."""
    with contextlib.suppress(OSError):
        return (folder / DATA_FILE).stat().st_ino
    return 0


def is_empty(path: Path) -> bool:
    """Return whether a file has no bytes."""
    with contextlib.suppress(OSError):
        return path.stat().st_size == 0
    return False
