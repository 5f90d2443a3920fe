"""Files that are written whole and survive a power cut: the one way for every file but the store's.

The bytes go to a temporary file in the same folder, are synced, take the name by a rename, and the
folder is synced: a file's own fsync does not put its name on the disk (fsync(2)). A reader sees the
old file or the new one. A process that is killed leaves a hidden `.NAME.HEX.tmp` at most.

Failure: the OSError of the file system. The target is unchanged then, unless the last step, the
sync of the folder, is what failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NAME_CHARACTERS = 40
"""of the target's name in the temporary one: a name has 255 bytes at most"""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def durable_write(path: Path, *chunks: bytes, mode: int = 0o600) -> None:
    """Make or replace a file with these bytes; on return, file and name are on the disk."""
    with durable_file(path, mode=mode) as file:
        file.writelines(chunks)


@contextmanager
def durable_file(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file to write; it is on the disk under its name at the end of the block, or not at all."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    beside = f".{path.name[:_NAME_CHARACTERS]}.{os.urandom(4).hex()}.tmp"
    try:
        handle = os.open(beside, _NEW, mode, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(handle)
            os.rename(beside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)
