"""What was added to the history and is not in its tables yet: the file `fresh` in its folder.

    record   magic, 4 bytes | u32 length | u32 CRC-32 of the data | data (see `history_entry`)

A record costs a write(2), 5 us; in a transaction of LMDB of its own it took 50. Records come at the
end, under a lock (flock) that processes share; whoever puts them into the tables empties the file.
A writer that is killed in the midst, and a power cut, leave bytes that are no record: the reader
looks for the next magic whose length and sum are right. Two bytes of the magic are in no UTF-8, so
that no Message-ID can hold a record, to be found when the one around it is torn.

The lock belongs to the open file, which threads and a forked child would share: threads take turns
by a lock of their own, and a child lets go of the file. A process has one such file of a folder, as
it has one environment, so that both are always of the same folder, though another be put in place.

Must not know the tables. Failure: StoreFullError and StoreAccessError where the file system
refuses; after a failure nothing of what should have been added is there.
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
from spamnb.store.lmdb.sharing import EnvironmentRegistry, refused

_MAGIC = b"\xffhi\xfe"
_HEAD = struct.Struct("<4sII")


class AppendFile:
    """The file of one folder. Made by `share_fresh`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fresh"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._handle = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise refused(error, self.path) from error
        self._turn = threading.Lock()

    def _ready(self) -> int:
        if self._handle < 0:
            raise BugError(f"{self.path} is used after it was closed, or after a fork")
        return self._handle

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The open file, which nobody else changes meanwhile."""
        with self._turn:
            handle = self._ready()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield handle
            except OSError as error:
                raise refused(error, self.path) from error
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)

    def size(self) -> int:
        """Bytes that wait here."""
        return os.fstat(self._ready()).st_size

    def add(self, values: Sequence[bytes]) -> None:
        """Put records behind the others: all of them, or none."""
        self.add_raw(b"".join(map(_record, values)))

    def add_raw(self, raw: bytes) -> None:
        """The same with what `read` gave."""
        rest = memoryview(raw)
        with self._locked() as handle:
            try:
                while rest:
                    rest = rest[os.write(handle, rest) :]
            except OSError:
                os.ftruncate(handle, os.fstat(handle).st_size - len(raw) + len(rest))
                raise

    def read(self) -> bytes:
        """All that is here."""
        with self._locked() as handle:
            return _whole(handle)

    @contextmanager
    def emptying(self, seen: bytes) -> Iterator[bytes]:
        """What came since `seen` was read; when the block ends well, the file is empty.

        Nobody can add meanwhile, so the bulk is to be put away before: what comes here is the
        little that was added while that was done, or all of it if another emptied the file.
        """
        with self._locked() as handle:
            raw = _whole(handle)
            yield raw.removeprefix(seen)
            os.ftruncate(handle, 0)

    def in_place(self) -> bool:
        """Whether this is what others find at its path, and not another folder's by now."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._ready()))

    def sync(self) -> None:
        """Put on the disk what waits here."""
        try:
            os.fdatasync(self._ready())
        except OSError as error:
            raise refused(error, self.path) from error

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def after_fork(self) -> None:
        """In the child: the lock stays the parent's alone."""
        self.close()
        self._turn = threading.Lock()


def _record(data: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, len(data), crc32(data)) + data


def _whole(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def records(raw: bytes) -> Iterator[bytes]:
    """The data of each whole record; what is none is passed over."""
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


def share_fresh(folder: Path) -> AppendFile:
    """The process's file of this folder, opened if need be; `release_fresh` gives it back."""
    return _files.take(folder, lambda: AppendFile(folder))


def release_fresh(fresh: AppendFile) -> None:
    """Give a file back; the last one closes it."""
    _files.give_back(fresh)


def renewed_fresh(fresh: AppendFile, folder: Path) -> AppendFile:
    """The file that is in the folder now; who has the old one gives it back when it likes."""
    _files.evict(fresh)
    return share_fresh(folder)
