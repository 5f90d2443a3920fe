"""How large the model's file may become where the administrator names no limit.

A quarter of the file system, and a twentieth of the file system stays free: the mail server beside
needs room for its queue. On a disk that is nearly full, or below a model that is larger than its
quarter already, an eighth of what is free, so that teaching goes on at first.
Failure: none; a file system that does not say its size gives 0, which is no limit.
"""

from __future__ import annotations

import os
from pathlib import Path

from spamnb.store.lmdb.sharing import DATA_FILE

SHARE = 4
LEFT_FREE = 20
LEAST_SHARE = 8
PAGE_BYTES = 4096


def limit_of(folder: Path, limit_bytes: int) -> int:
    """The limit that is given, or else the one that the disk gives to the model in this folder."""
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
    """The limit by the sizes of the file system, of what is free there, and of the model."""
    if not total:
        return 0
    fair = min(total // SHARE, used + free - total // LEFT_FREE)
    limit = max(fair, used + free // LEAST_SHARE)
    return limit - limit % PAGE_BYTES
