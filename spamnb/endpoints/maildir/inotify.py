"""File events of the kernel by inotify, which the standard library lacks.

A thin wrapper with what a Maildir needs: a file arrived in a folder, a folder was created, events
were lost. See inotify(7). Failure: OSError.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CLOSE_WRITE = 0x0008
_MOVED_TO = 0x0080
_CREATE = 0x0100
_Q_OVERFLOW = 0x4000
_IGNORED = 0x8000
_ONLYDIR = 0x0100_0000
_ISDIR = 0x4000_0000
_CLOEXEC, _NONBLOCK = os.O_CLOEXEC, os.O_NONBLOCK
_HEAD = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class FileEvent(NamedTuple):
    """One event; `lost` says that other events were dropped."""

    folder: Path
    name: str
    is_folder: bool
    lost: bool = False


class Inotify:
    """Watches folders."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(_CLOEXEC | _NONBLOCK), "inotify")
        self._folders: dict[int, Path] = {}

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return result

    def fileno(self) -> int:
        """The descriptor, for select."""
        return self._fd

    def watch(self, handle: int, folder: Path) -> None:
        """Report files that arrive in this open folder; a second call for it changes nothing."""
        mask = _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLYDIR
        name = f"/proc/self/fd/{handle}".encode()
        number = self._checked(self._libc.inotify_add_watch(self._fd, name, mask), str(folder))
        self._folders[number] = folder

    def read_events(self) -> Iterator[FileEvent]:
        """The events since the last call, which may be none."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, mask, _, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = os.fsdecode(data[at : at + size].rstrip(b"\0"))
            at += size
            if mask & _Q_OVERFLOW:
                yield FileEvent(Path(), "", is_folder=False, lost=True)
            elif mask & _IGNORED:
                self._folders.pop(number, None)
            elif number in self._folders and (mask & _ISDIR or not mask & _CREATE):
                # A created file is reported again when it is complete: closed, or moved here.
                yield FileEvent(self._folders[number], name, is_folder=bool(mask & _ISDIR))

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)
