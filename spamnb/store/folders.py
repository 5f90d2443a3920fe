"""Open folders by descriptor, so that no other user can redirect a path.

A path is walked from the root, one folder after the other. A symbolic link is followed only if only
root or the user of this process can have made it: its folder belongs to one of them, and no other
user may write to it. Below a folder of another user, every folder must belong to that user or to
this process's user. A descriptor keeps the opened folder even if the path changes later.

Failure: OSError with the whole path.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LAST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


@contextmanager
def opened(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open a folder for listing and syncing; `make` creates it and its missing parents.

    New folders are private (0700), and their names are synced to disk.
    """
    with _Walk(path, make=make) as walk:
        handle = os.open(".", _LAST, dir_fd=walk.handle)
    try:
        yield handle
    finally:
        os.close(handle)


def owner_of(path: Path) -> os.stat_result:
    """Return the status of the first folder on the path that another user owns, or of the last."""
    with _Walk(path) as walk:
        return walk.owner


class _Walk:
    """Walks a path, one folder after the other."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self._path = path
        self._make = make
        self._left = [*reversed(path.absolute().parts[1:])]
        self._links = 0
        self.handle = os.open("/", _STEP)
        self.about = self.owner = os.fstat(self.handle)

    def __enter__(self) -> Self:
        try:
            while self._left:
                self._step(self._left.pop())
        except OSError as error:
            self.__exit__()
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self._path)) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def _step(self, name: str) -> None:
        try:
            handle = os.open(name, _STEP, dir_fd=self.handle)
        except FileNotFoundError:
            if not self._make:
                raise
            make(self.handle, name)
            handle = os.open(name, _STEP, dir_fd=self.handle)
        except NotADirectoryError:
            self._follow(name)
            return
        self._enter(handle)

    def _enter(self, handle: int) -> None:
        above, about = self.about, os.fstat(handle)
        os.close(self.handle)
        self.handle, self.about = handle, about
        if not _is_own(above) and about.st_uid not in (above.st_uid, os.geteuid()):
            raise PermissionError(errno.EPERM, "")
        if _is_own(self.owner):
            self.owner = about

    def _follow(self, name: str) -> None:
        """Follow a link, if no other user can have made it."""
        self._links += 1
        if not _is_own(self.about) or self.about.st_mode & 0o022 or self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, "")
        target = Path(os.readlink(name, dir_fd=self.handle))
        if target.is_absolute():
            self._enter_root()
        self._left += reversed(target.parts[target.is_absolute() :])

    def _enter_root(self) -> None:
        handle = os.open("/", _STEP)
        self.about = self.owner = os.fstat(handle)
        self._enter(handle)


def make(folder: int, name: str) -> bool:
    """Create a private folder in an open one; return whether it was missing."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return False
    sync(folder)
    return True


def sync(folder: int) -> None:
    """Sync the names in an open folder to disk; its descriptor may be of O_PATH."""
    handle = os.open(".", _LAST, dir_fd=folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_own(about: os.stat_result) -> bool:
    return about.st_uid in (0, os.geteuid())
