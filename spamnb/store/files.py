"""Write files atomically and durably, and open folders so that no other user redirects a path.

Every file except the store itself is written by `durable_file`.

A path is walked one folder after the other, and a descriptor keeps each opened folder even if the
path changes later. Two rules say which symbolic links are followed: `_UserWalk` has that of the
folders of users, `_CallerWalk` that of files named on the command line.

Failure: the OSError of the file system; that of `opened` and `owner_of` has the whole path. A file
is unchanged then, unless the last step, the sync of its folder, failed. `refused` makes a
StoreError of an OSError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath
from typing import BinaryIO, Self

from spamnb.errors import StoreAccessError, StoreError, StoreFullError

_NAME_CHARACTERS = 40
"""Bytes of the target's name in the temporary name: a file name has at most 255 bytes."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def durable_write(path: Path, *chunks: bytes, mode: int = 0o600) -> None:
    """Create or replace a file with these bytes; on return, content and name are on disk."""
    with durable_file(path, mode=mode) as file:
        file.writelines(chunks)


@contextmanager
def durable_file(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a file for writing; at the end of the block it is on disk under its name.

    The bytes go to a temporary file in the same folder, which is synced and renamed; then the
    folder is synced, because a file's own fsync does not make its name durable (fsync(2)). A reader
    sees the old file or the new one. A killed process leaves at most a hidden file `.NAME.HEX.tmp`.
    If the block raises, the target is unchanged.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary = f".{path.name[:_NAME_CHARACTERS]}.{os.urandom(4).hex()}.tmp"
    try:
        handle = os.open(temporary, _NEW, mode, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(handle)
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Create a private folder, durably."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise refused(error, path) from error


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk; an fsync of a file does not do this (fsync(2))."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Sync a file's content to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refused(error: OSError, path: Path) -> StoreError:
    """Return the StoreError for an error of the file system."""
    text = f"{path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFullError(text, hint="free disk space")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreAccessError(text, hint="check the owner and the permissions of the folder")
    return StoreError(text)


PART = ".spamnb-new-"
"""prefix of temporary files and folders"""
LOCKED_BY_THEN_S = 60
"""Older temporary files without a lock are leftovers: a process locks its file microseconds after
creating it."""
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LAST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""the limit of Linux"""


# --- folders of users ---


@contextmanager
def opened(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open a folder for listing and syncing; `make` creates it and its missing parents.

    New folders are private (0700), and their names are synced to disk.
    """
    with _UserWalk(path, make=make) as walk:
        walk.to_end()
        handle = os.open(".", _LAST, dir_fd=walk.handle)
    try:
        yield handle
    finally:
        os.close(handle)


def owner_of(path: Path) -> os.stat_result:
    """Return the status of the first folder on the path that another user owns, or of the last."""
    with _UserWalk(path) as walk:
        walk.to_end()
        return walk.owner


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


# --- files named on the command line ---


@contextmanager
def as_caller() -> Iterator[None]:
    """Run a block with the rights of the caller; also usable as a decorator."""
    owner, group = os.geteuid(), os.getegid()
    if owner == os.getuid():
        yield
        return
    os.seteuid(os.getuid())
    os.setegid(os.getgid())
    try:
        yield
    finally:
        os.setegid(group)
        os.seteuid(owner)


def open_named(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of an existing file."""
    if os.geteuid() == os.getuid():
        return os.open(path, flags | os.O_CLOEXEC)
    with as_caller(), _CallerWalk(path, trusting=False) as walk:
        name = walk.to_last()
        nofollow = 0 if _is_proc(walk.handle) else os.O_NOFOLLOW
        return os.open(name, flags | nofollow | os.O_CLOEXEC, dir_fd=walk.handle)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a descriptor for a file's new content; the file is replaced at the end of the block.

    The file belongs to the caller, with mode 0600. If the block raises, nothing is changed.
    """
    trusting = os.geteuid() == os.getuid()
    part = PART + secrets.token_hex(8)
    with ExitStack() as stack:
        with as_caller():
            walk = stack.enter_context(_CallerWalk(path, trusting=trusting))
            name = walk.to_last()
            folder = walk.handle
            _sweep(folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(part, flags, 0o600, dir_fd=folder)
            stack.callback(os.close, handle)
            stack.callback(_remove, part, folder)
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
        os.fsync(handle)
        with as_caller():
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            sync(folder)


@as_caller()
def _remove(name: str, folder: int) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _sweep(folder: int) -> None:
    """Remove temporary files of killed processes of the caller."""
    listed = os.open(".", _LAST, dir_fd=folder)
    try:
        old = [name for name in os.listdir(listed) if name.startswith(PART)]  # noqa: PTH208 - a descriptor
    finally:
        os.close(listed)
    for name in old:
        with suppress(OSError), ExitStack() as stack:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            stack.callback(os.close, handle)
            about = os.fstat(handle)
            is_own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
            if is_own and time.time() - about.st_mtime > LOCKED_BY_THEN_S:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)


# --- walking a path ---


class _Walk:
    """A walk along a path, one folder after the other; `handle` is the folder that it is in."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._left = _names(self._path)
        self._links = 0
        self.handle = os.open("/" if self._path.startswith("/") else ".", _STEP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def to_last(self) -> str:
        """Walk to the folder of the last name, and return that name, which is no link."""
        while self._left:
            name = self._left.pop()
            target = self._target(name)
            if target is not None:
                self._follow(target)
            elif self._left:
                self._enter(name)
            else:
                return name
        return "."

    def _target(self, name: str) -> str | None:
        """Return a link's target; None if the name is no link, or missing."""
        try:
            about = os.stat(name, dir_fd=self.handle, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return self._read_link(name, about) if stat.S_ISLNK(about.st_mode) else None

    def _read_link(self, name: str, about: os.stat_result) -> str | None:  # noqa: ARG002 - for the rules
        return os.readlink(name, dir_fd=self.handle)

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        if target.startswith("/"):
            self._restart()
        self._left += _names(target)

    def _restart(self) -> None:
        self._move(os.open("/", _STEP))

    def _enter(self, name: str) -> None:
        self._move(os.open(name, _STEP, dir_fd=self.handle))

    def _move(self, handle: int) -> None:
        os.close(self.handle)
        self.handle = handle


class _UserWalk(_Walk):
    """Follows no link that a user other than root and that of this process can have made.

    The folder of a link must belong to one of them, and no other user may write to it. Below a
    folder of another user, every folder must belong to that user or to this process's user.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        super().__init__(path.absolute())
        self._shown = str(path)
        self._make = make
        self.about = self.owner = os.fstat(self.handle)

    def to_end(self) -> None:
        """Walk to the folder at the end of the path."""
        try:
            self._enter(self.to_last())
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), self._shown) from error

    def _read_link(self, name: str, about: os.stat_result) -> str | None:
        if not _is_own(self.about) or self.about.st_mode & 0o022:
            raise OSError(errno.ELOOP, "")
        return super()._read_link(name, about)

    def _restart(self) -> None:
        super()._restart()
        self.owner = self.about

    def _enter(self, name: str) -> None:
        try:
            super()._enter(name)
        except FileNotFoundError:
            if not self._make:
                raise
            make(self.handle, name)
            super()._enter(name)

    def _move(self, handle: int) -> None:
        above, self.about = self.about, os.fstat(handle)
        super()._move(handle)
        if not _is_own(above) and self.about.st_uid not in (above.st_uid, os.geteuid()):
            raise PermissionError(errno.EPERM, "")
        if _is_own(self.owner):
            self.owner = self.about


class _CallerWalk(_Walk):
    """Follows links of root and of the caller; all links if it is `trusting`.

    A command run by root takes the user id of the home's owner before it opens the home. That owner
    may not be able to read or write the files that root names, so for the time of one system call
    the effective user is the real user again (`as_caller`). While the two differ, only links of
    root and of the caller are followed: otherwise the owner could redirect root to a file of root.
    In a process with equal real and effective users every link is followed.
    """

    def __init__(self, path: str | os.PathLike[str], *, trusting: bool) -> None:
        super().__init__(path)
        self._trusting = trusting

    def _read_link(self, name: str, about: os.stat_result) -> str | None:
        target = super()._read_link(name, about)
        if target is not None and _is_proc(self.handle) and ":[" in target:
            return None  # a descriptor of this process: its target is not a path
        if not self._trusting and about.st_uid not in {0, os.getuid()}:
            raise PermissionError(
                errno.EACCES,
                f"root does not follow the link {name} of user {about.st_uid}",
                self._path,
            )
        return target


def _names(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [name for name in reversed(PurePath(path).parts) if name != "/"]


def _is_own(about: os.stat_result) -> bool:
    return about.st_uid in (0, os.geteuid())


def _is_proc(folder: int) -> bool:
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{folder}").readlink()).startswith("/proc/")
    return False
