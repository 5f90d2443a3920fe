"""The newest entries that this host has folded: it returns them to a server that has lost them.

    tail/new, tail/old    records: u32 length | u32 CRC-32 | texts before, host, chain
                          varints upto, first, last | chunk body

An entry is written before the transaction that folds it is committed, without a sync: the entry is
needed only if the server loses it, and then any host that has it can return it. `new` becomes `old`
when it is full. A file is read up to the first incomplete record, which the next write removes.

Failure: StoreFullError and StoreAccessError where the file system refuses.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from spamnb.store.files import make_folder, refused
from spamnb.store.fleet.fleet_log import LogEntry
from spamnb.store.rows.id_codec import ByteCursor, chunk, text, varint

FOLDER = "tail"
"""in the home"""
FILE_BYTES = 32 << 20
"""of each of the two files: some 10,000 corrections"""
_HEAD = struct.Struct("<II")


class Link(NamedTuple):
    """An entry and the chain before it."""

    before: str
    entry: LogEntry


class Tail:
    """The tail of a home; one process writes it."""

    def __init__(self, home: Path, file_bytes: int = FILE_BYTES) -> None:
        self._folder = home / FOLDER
        self._file_bytes = file_bytes
        self._is_whole = False
        """the file ends with a complete record"""

    def put(self, links: Iterable[Link]) -> None:
        """Keep these entries; those that are there already do no harm."""
        data = b"".join(map(_record, links))
        path = self._folder / "new"
        try:
            if not self._is_whole:
                make_folder(self._folder)
                self._begin(path)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                self._is_whole = os.write(handle, data) == len(data)
                size = os.fstat(handle).st_size
            finally:
                os.close(handle)
            if size > self._file_bytes:
                path.rename(self._folder / "old")
        except OSError as error:
            raise refused(error, path) from error

    def _begin(self, path: Path) -> None:
        """Remove what an interrupted write has left at the end of the file."""
        if path.exists():
            whole = sum(len(_record(link)) for link in _links(path))
            os.truncate(path, whole)

    def clear(self) -> None:
        """Forget all entries."""
        for name in ("old", "new"):
            (self._folder / name).unlink(missing_ok=True)

    def ending(self, seq: int, chain: str) -> list[Link]:
        """Return the kept entries of the history that ends with this event, oldest first."""
        kept = {
            (link.entry.last, link.entry.chain): link
            for name in ("old", "new")
            for link in _links(self._folder / name)
        }
        found: list[Link] = []
        while (link := kept.get((seq, chain))) is not None:
            found.append(link)
            seq, chain = link.entry.first - 1, link.before
        return found[::-1]


def _record(link: Link) -> bytes:
    entry = link.entry
    data = b"".join((
        *(text(one) for one in (link.before, entry.host, entry.chain)),
        *(varint(number) for number in (entry.upto, entry.first, entry.last)),
        chunk(entry.body),
    ))  # fmt: skip
    return _HEAD.pack(len(data), crc32(data)) + data


def _links(path: Path) -> Iterator[Link]:
    """Yield the entries of a file up to the first incomplete one."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused(error, path) from error
    at = 0
    while at + _HEAD.size <= len(raw):
        length, crc = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        data = raw[at : at + length]
        if len(data) != length or crc32(data) != crc:
            return
        at += length
        yield _link(data)


def _link(data: bytes) -> Link:
    reader = ByteCursor(data)
    before, host, chain = reader.text(), reader.text(), reader.text()
    upto, first, last = reader.varint(), reader.varint(), reader.varint()
    return Link(before, LogEntry(host, upto, first, last, chain, bytes(reader.chunk())))
