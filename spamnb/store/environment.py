"""What surrounds an environment's file, without the engine: who is inside, its folder, its waits.

`Gate` counts this process's open transactions, for the map may be moved only when there are none.
`Waiting` bounds every retry. The rest makes folders private and their entries durable.

Must not import LMDB. Failure: StoreBusyError when a wait is over, StoreAccessError, StoreFullError
where the file system refuses.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from spamnb.errors import StoreAccessError, StoreBusyError, StoreError, StoreFullError

WAIT_S = 30.0
"""how long to wait for one's own readers, or for a reader slot: longer than any snapshot is used"""
PAUSE_S = 0.01


class Gate:
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


class Waiting:
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
