"""Open files named on the command line with the rights of the caller.

A command run by root takes the user id of the home's owner before it opens the home. That owner may
not be able to read or write the files that root names, so this module opens them: for the time of
one system call the effective user is the real user again. In a process with equal real and
effective users nothing changes.

While the process has more rights than the home's owner, `open_named` follows symbolic links only of
root and of the caller: otherwise the owner could redirect root to a file of root. The path is
opened folder by folder, so a folder that is replaced meanwhile has no effect.

Failure: OSError.
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

from spamnb.store.folders import sync

PART = ".spamnb-new-"
"""prefix of temporary files and folders"""
LOCKED_BY_THEN_S = 60
"""Older temporary files without a lock are leftovers: a process locks its file microseconds after
creating it."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_LINKS = 40
"""the limit of Linux"""


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
    with as_caller(), _named(path, trusting=False) as (folder, name):
        nofollow = 0 if _is_proc(folder) else os.O_NOFOLLOW
        return os.open(name, flags | nofollow | os.O_CLOEXEC, dir_fd=folder)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a descriptor for a file's new content; the file is replaced at the end of the block.

    The file belongs to the caller, with mode 0600. If the block raises, nothing is changed.
    """
    trusting = os.geteuid() == os.getuid()
    part = PART + secrets.token_hex(8)
    with ExitStack() as stack:
        with as_caller():
            folder, name = stack.enter_context(_named(path, trusting=trusting))
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
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
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


@contextmanager
def _named(path: str | os.PathLike[str], *, trusting: bool) -> Iterator[tuple[int, str]]:
    """Open the folder of a path; yield it and the name in it, which is not a link.

    Links of other users raise PermissionError, unless `trusting`.
    """
    text = os.fspath(path)
    steps = _steps(text)
    with ExitStack() as stack:
        at = _enter(stack, "/" if text.startswith("/") else ".")
        links = 0
        while steps:
            name = steps.pop()
            target = _link(name, at, text, trusting=trusting)
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), text)
                steps += _steps(target)
                at = _enter(stack, "/") if target.startswith("/") else at
            elif steps:
                at = _enter(stack, name, at)
            else:
                yield at, name
                return
        yield at, "."


def _steps(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [name for name in reversed(PurePath(path).parts) if name != "/"]


def _enter(stack: ExitStack, name: str, at: int | None = None) -> int:
    handle = os.open(name, _FOLDER if at is None else _FOLDER | os.O_NOFOLLOW, dir_fd=at)
    stack.callback(os.close, handle)
    return handle


def _is_proc(folder: int) -> bool:
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{folder}").readlink()).startswith("/proc/")
    return False


def _link(name: str, at: int, path: str, *, trusting: bool) -> str | None:
    """Return a link's target; None if the name is no link, missing, or a descriptor in /proc."""
    try:
        about = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(about.st_mode):
        return None
    target = os.readlink(name, dir_fd=at)
    if _is_proc(at) and ":[" in target:
        return None  # a descriptor of this process: its target is not a path
    if not trusting and about.st_uid not in {0, os.getuid()}:
        raise PermissionError(
            errno.EACCES, f"root does not follow the link {name} of user {about.st_uid}", path
        )
    return target
