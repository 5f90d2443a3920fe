"""The file `fresh` of the history: entries that were added but are not in the tables yet.

    record   magic, 4 bytes | u32 length | u32 CRC-32 of the data | data (see `entry`)

A record costs 5 us now, for one write(2), and 37 us later, in a transaction of hundreds of records.
A transaction for each record would make scoring a single message 7 to 9 % slower. Records are
appended under a lock (flock) that processes share; the process that moves them into the tables
empties the file. A writer that is killed, and a power cut, can leave incomplete records: the reader
looks for the next magic with a correct length and sum. Two bytes of the magic never occur in UTF-8,
so a Message-ID cannot contain a record that is found when the record around it is incomplete.

The lock belongs to the open file, which threads and a forked child would share. So threads use a
lock of the process, and a child closes the file. A process opens a folder's file only once, like
its LMDB environment, so both always belong to the same folder, even after another folder takes its
path.

Must not know the tables. Failure: StoreFullError and StoreAccessError where the file system
refuses; a failed `add` leaves nothing in the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from spamnb.errors import BugError
from spamnb.store.files import refused
from spamnb.store.lmdb.sharing import EnvironmentRegistry

_MAGIC = b"\xffhi\xfe"
_HEAD = struct.Struct("<4sII")


class AppendFile:
    """The file of one folder. Use `open_append_file` to get it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fresh"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._handle = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise refused(error, self.path) from error
        self._lock = threading.Lock()

    def _open_handle(self) -> int:
        if self._handle < 0:
            raise BugError(f"{self.path} is used after it was closed, or after a fork")
        return self._handle

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The open file; no other thread or process changes it within the block."""
        with self._lock:
            handle = self._open_handle()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield handle
            except OSError as error:
                raise refused(error, self.path) from error
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)

    def size(self) -> int:
        """How many bytes are in the file."""
        return os.fstat(self._open_handle()).st_size

    def add(self, values: Sequence[bytes]) -> None:
        """Append records: all of them, or none."""
        self.add_raw(b"".join(map(_record, values)))

    def add_raw(self, raw: bytes) -> None:
        """Append records in the form that `read` returns."""
        rest = memoryview(raw)
        with self._locked() as handle:
            try:
                while rest:
                    rest = rest[os.write(handle, rest) :]
            except OSError:
                os.ftruncate(handle, os.fstat(handle).st_size - len(raw) + len(rest))
                raise

    def read(self) -> bytes:
        """All bytes of the file."""
        with self._locked() as handle:
            return _whole(handle)

    @contextmanager
    def emptying(self, seen: bytes) -> Iterator[bytes]:
        """What was added since `seen` was read; the file is empty after the block, unless it fails.

        No process can add within the block, so the caller stores `seen` before it. The block gets
        the records that were added meanwhile, or all records if another process emptied the file.
        """
        with self._locked() as handle:
            raw = _whole(handle)
            yield raw.removeprefix(seen)
            os.ftruncate(handle, 0)

    def in_place(self) -> bool:
        """Whether the file is still at its path; another folder may have taken the path."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._open_handle()))

    def sync(self) -> None:
        try:
            os.fdatasync(self._open_handle())
        except OSError as error:
            raise refused(error, self.path) from error

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def after_fork(self) -> None:
        """In the child: close the file, so that the lock stays with the parent."""
        self.close()
        self._lock = threading.Lock()


def _record(data: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, len(data), crc32(data)) + data


def _whole(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def records(raw: bytes) -> Iterator[bytes]:
    """The data of each whole record; incomplete ones are skipped."""
    at = raw.find(_MAGIC)
    while 0 <= at <= len(raw) - _HEAD.size:
        _, length, crc = _HEAD.unpack_from(raw, at)
        start = at + _HEAD.size
        data = raw[start : start + length]
        whole = len(data) == length and crc32(data) == crc
        if whole:
            yield data
        at = raw.find(_MAGIC, start + length if whole else at + 1)


_files: EnvironmentRegistry[AppendFile] = EnvironmentRegistry(
    AppendFile.close, AppendFile.after_fork
)


def open_append_file(folder: Path) -> AppendFile:
    """The process's file of this folder, opened if need be; `release_append_file` gives it back."""
    return _files.take(folder, lambda: AppendFile(folder))


def release_append_file(append_file: AppendFile) -> None:
    """Give a file back; the last user closes it."""
    _files.give_back(append_file)


def reopen_append_file(append_file: AppendFile, folder: Path) -> AppendFile:
    """The file that is in the folder now; users of the old one still give that back."""
    _files.evict(append_file)
    return open_append_file(folder)
