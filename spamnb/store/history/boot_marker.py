"""Records the boot in which a history is open, to distinguish a power cut from a kill.

The history is not synced with each entry, so after a power cut its pages may be of any age and must
be checked. The process that opens the history writes the boot's id to a file beside it, and the
last process to close it empties the file: the id of another boot means that no process closed it.
Must not know entries. Failure: StoreError where the file cannot be written.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from spamnb.store.files import refused, sync_folder


class BootMarker:
    """The file with the boot in which a folder is open; the last process to close it empties it."""

    def __init__(self) -> None:
        self._handle = -1
        self._pid = 0

    def begin(self, folder: Path) -> bool:
        """Write this boot's id. True if the file has another id: that boot ended by a power cut."""
        self.end(wipe=False)
        path = folder / "boot"
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._pid = os.getpid()
            fcntl.flock(self._handle, fcntl.LOCK_SH)
            last = os.pread(self._handle, 64, 0).decode("ascii", "replace")
            os.pwrite(self._handle, _boot_id().encode(), 0)
            os.fsync(self._handle)
            sync_folder(folder)
        except OSError as error:
            raise refused(error, path) from error
        return last not in ("", _boot_id())

    def end(self, *, wipe: bool = True) -> None:
        """Close the file; empty it first if no other process has it open, but not in a child."""
        if self._handle < 0:
            return
        with suppress(OSError):
            if wipe and self._pid == os.getpid():
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(self._handle, 0)
        os.close(self._handle)
        self._handle = -1


def _boot_id() -> str:
    """The id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
