"""Write files atomically and durably: every file except the store itself is written this way.

The bytes go to a temporary file in the same folder, which is synced and renamed; then the folder is
synced, because a file's own fsync does not make its name durable (fsync(2)). A reader sees the old
file or the new one. A killed process leaves at most a hidden file `.NAME.HEX.tmp`.

Failure: `durable_write` and `durable_file` raise the OSError of the file system. The target is
unchanged then, unless the last step, the sync of the folder, failed. `refused` makes a StoreError
of an OSError.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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
