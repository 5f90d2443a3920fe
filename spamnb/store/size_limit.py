"""The default size limit of a model's file, when the administrator sets none.

The limit is a quarter of the file system, but a twentieth of the file system must stay free,
because the mail server needs space for its queue. If the disk is nearly full, or the model already
takes more than a quarter, the model may still grow by an eighth of the free space, so that learning
continues. Failure: none; a file system that does not report its size gives 0, no limit.
"""

from __future__ import annotations

import os
from pathlib import Path

from spamnb.store.lmdb.sharing import DATA_FILE

SHARE = 4
LEFT_FREE = 20
LEAST_SHARE = 8


def limit_of(folder: Path, limit_bytes: int) -> int:
    """Return `limit_bytes`, or if it is 0 the default limit for the model in this folder."""
    if limit_bytes:
        return limit_bytes
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0
    try:
        used = (folder / DATA_FILE).stat().st_size
    except OSError:
        used = 0
    return share_of(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize, used)


def share_of(total: int, free: int, used: int) -> int:
    """Return the default limit from the file system's size and free space and the model's size."""
    if not total:
        return 0
    fair = min(total // SHARE, used + free - total // LEFT_FREE)
    return max(fair, used + free // LEAST_SHARE)


def room_for_copy(folder: Path) -> int:
    """Return how many bytes a copy of the model in this folder may take."""
    disk = os.statvfs(folder)
    return (disk.f_bavail - disk.f_blocks // LEFT_FREE) * disk.f_frsize
