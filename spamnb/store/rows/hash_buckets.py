"""Feature rows in hash buckets: each bucket is one table value that holds a range of ids. Pure.

One record for each feature in a B-tree costs 0.4 us to find and some 60 bytes to store; a bucket
of 30 packed rows costs the same to find. Ids are uniform hashes, so the ranges need no tree of
their own: linear hashing on the top bits. With `level` L and `split` p, ids with top L bits
below p are in buckets of L + 1 bits, the others in buckets of L bits. A bucket's key is the first
id of its range, big-endian, so the table's order is the order of the ids. The zero bytes at the end
of the key are left out, because each page above the leaves then leads to a quarter more of them.
When the table holds more rows than the target allows, the next buckets are split in two. Buckets
are merged only by a rewrite.

Knows arrays and a table of bytes; must not know what a row means or which engine keeps the table.

Invariants: a key is the first id of a bucket under (L, p); rows in a bucket are in its range,
sorted and distinct; no bucket is an empty value; `rows` is the sum of all. Failure:
StoreDamagedError.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ids
from spamnb.core.model.id_arrays import changes, locate
from spamnb.errors import StoreDamagedError
from spamnb.store.rows.codec import Rows, opaque_rows
from spamnb.store.rows.id_codec import Buffer

_LAYOUT = struct.Struct("<BQQ")
_KEY = np.dtype(">u8")
_ALL_BUT_LAST = ~np.uint64(1)

Mask = NDArray[np.bool_]

BUCKET_BYTES = 780
"""Average size of a bucket. Measured by growing to a million random features, bytes a feature
in live pages at 520, 730, 940 bytes: 41-43, 40-45, 40-46; and 300 lookups took 160, 140, 132 us.
Twice this (the largest buckets before a split) is still below LMDB's overflow limit of 2 KB."""
REWRITE_BUCKET_BYTES = 390
"""The same for a rewrite in order, which loses half a bucket at the end of each page and 18 bytes
for each bucket: the sum is smallest near sqrt(2 * 18 * 4080) = 383."""
_SPLIT_SHIFT = 9
"""Buckets are split when one in 2^9 is due. Split one by one, each message learnt into a store of a
million features caused one or two splits, 0.1 ms."""
SLAB_BUCKETS = 1024
"""some 30,000 rows, 800 KB"""
BLOCK_BUCKETS = 512
"""buckets read in one step when all are read: some 15,000 rows"""


class Table(Protocol):
    """Sorted keys and values of one transaction. Values read are views: copy what must stay."""

    def get(self, key: bytes) -> Buffer | None:
        """The value, None if there is none."""

    def get_many(self, keys: list[bytes]) -> list[Buffer]:
        """The values, empty for missing ones."""

    def put(self, key: bytes, value: Buffer, *, append: bool = False) -> None:
        """Replace the value; with `append` the key must be the greatest."""

    def put_many(self, items: Iterable[tuple[bytes, Buffer]]) -> None:
        """Replace the values."""

    def delete(self, key: bytes) -> None:
        """Delete the key, if it exists."""

    def scan(self, start: bytes = b"", *, down: bool = False) -> Iterator[tuple[bytes, Buffer]]:
        """Keys at or after `start` upwards, or at or before it downwards (empty: from the end)."""


class BucketLayout(NamedTuple):
    """Which ranges the buckets cover."""

    level: int = 0
    split: int = 0
    rows: int = 0

    @property
    def buckets(self) -> int:
        """How many buckets there are."""
        return (1 << self.level) + self.split

    def grown(self, rows: int, target: int) -> BucketLayout:
        """The layout for so many rows, `target` in a bucket; never with fewer buckets."""
        want = max(self.buckets, -(-rows // target))
        if want - self.buckets <= self.buckets >> _SPLIT_SHIFT:
            want = self.buckets
        level = want.bit_length() - 1
        return BucketLayout(level, want - (1 << level), rows)

    def starts(self, ids: Ids) -> Ids:
        """The first id of each id's bucket. Shifts by 64 are undefined: the last bit is split."""
        below = np.uint64(63 - self.level)
        head = ids >> below
        fine = head < np.uint64(2 * self.split)
        return (head & (fine | _ALL_BUT_LAST)) << below

    def splits(self, later: BucketLayout) -> tuple[Ids, Ids]:
        """Starts, here, of the buckets that a later layout has split; and the starts it has added.

        Bucket s was added at level floor(log2 s) by splitting that level's bucket s - 2^level.
        """
        made = np.arange(self.buckets, later.buckets, dtype=np.int64)
        level = np.frexp(made)[1].astype(np.int64) - 1
        index = (made - (np.int64(1) << level)).astype(np.uint64)
        half = (63 - level).astype(np.uint64)
        whole = index << half << np.uint64(1)
        return distinct(np.sort(self.starts(whole))), whole + (np.uint64(1) << half)

    def verify(self, keys: list[bytes], counts: list[int], ids: Ids) -> None:
        """Refuse buckets that hold ids outside their range: a search would not find these ids."""
        begin = np.array(keys, "S8").view(_KEY).astype(np.uint64)
        bucket_starts = np.repeat(begin, counts)
        if (
            keys_of(begin) != keys
            or len(bucket_starts) != len(ids)
            or (bucket_starts != self.starts(ids)).any()
        ):
            raise StoreDamagedError("a feature is stored in a bucket of another id range")

    def encode(self) -> bytes:
        """The layout as bytes."""
        return _LAYOUT.pack(*self)

    @staticmethod
    def decode(data: Buffer) -> BucketLayout:
        """The layout in these bytes."""
        try:
            layout = BucketLayout(*_LAYOUT.unpack(data))
        except struct.error as error:
            raise StoreDamagedError(f"a layout of {len(data)} bytes") from error
        if layout.level > 62 or layout.split >= 1 << layout.level:
            raise StoreDamagedError(f"a layout at level {layout.level}, split {layout.split}")
        return layout


def distinct(sorted_ids: Ids) -> Ids:
    """The distinct values of a sorted array; a diff, because np.unique would sort again."""
    return sorted_ids[changes(sorted_ids)]


def union(a: Ids, b: Ids) -> Ids:
    """The distinct values of both, sorted; np.union1d imports the masked arrays, 10 ms."""
    return distinct(np.sort(np.concatenate((a, b)), kind="stable"))


def keys_of(starts: Ids) -> list[bytes]:
    """Keys of buckets, in order. `tolist` of short byte strings is fast, and drops the zeros."""
    keys: list[bytes] = starts.astype(_KEY).view("S8").tolist()
    if keys and not keys[0]:
        keys[0] = b"\0"
    return keys


def ids_of_rows(rows: Rows) -> Ids:
    """The ids of rows in an aligned array, which is searched four times faster than the column."""
    return np.ascontiguousarray(rows["id"])


def merge_rows(rows: Rows, where: tuple[NDArray[np.intp], Mask], fresh: Rows, gone: Mask) -> Rows:
    """Sorted rows with the `fresh` rows inserted at `where`, and those marked `gone` removed.

    One `take` of whole rows by an index: masks over rows of 26 bytes were four times slower, and
    structured rows take thirty times as long to join.
    """
    kept = (~gone).nonzero()[0]
    if len(rows) == 0:
        return opaque_rows(fresh).take(kept).view(rows.dtype)
    at, found = where
    replaced = np.zeros(len(rows), np.bool_)
    replaced[at[found]] = True
    # A row before a fresh one stays unless an earlier fresh row replaces it.
    to = (at - found.cumsum() + found)[kept] + np.arange(len(kept))
    others = (~replaced).nonzero()[0]
    source = np.empty(len(others) + len(kept), np.intp)
    put = np.zeros(len(source), np.bool_)
    put[to] = True
    source[to] = len(rows) + kept
    source[~put] = others
    return np.concatenate([opaque_rows(rows), opaque_rows(fresh)]).take(source).view(rows.dtype)


Slab = tuple[Ids, slice]
"""starts of buckets, and the slice of some sorted ids that belongs to them"""


def _slabs(starts: Ids) -> list[Slab]:
    """Sorted starts, one for each id, divided into slabs of buckets."""
    few = distinct(starts)
    if len(few) <= SLAB_BUCKETS:
        return [(few, slice(0, len(starts)))] if len(few) else []
    parts = [few[i : i + SLAB_BUCKETS] for i in range(0, len(few), SLAB_BUCKETS)]
    bounds = [*np.searchsorted(starts, [part[0] for part in parts]).tolist(), len(starts)]
    return [(part, slice(a, b)) for part, (a, b) in zip(parts, pairwise(bounds), strict=True)]


class HashBuckets:
    """Packed, id-sorted rows of one dtype, in the buckets of a table.

    Many ids are processed one slab of buckets at a time: its rows then stay in the processor's
    cache and in memory that is reused. New arrays of 30 MB cost more in page faults than the work
    on them.
    """

    def __init__(
        self,
        table: Table,
        layout: BucketLayout,
        dtype: np.dtype[np.void],
    ) -> None:
        self.table = table
        self.layout = layout
        self.dtype = dtype
        self.target = max(1, BUCKET_BYTES // dtype.itemsize)

    def find(self, ids: Ids) -> Rows:
        """A row for each id, writable; zeros where there is none."""
        out = np.zeros(len(ids), self.dtype)
        whole = opaque_rows(out)
        for few, slab in _slabs(self.layout.starts(ids)):
            rows = self._load(few)
            at, found = locate(ids_of_rows(rows), ids[slab])
            if found.all():
                whole[slab] = opaque_rows(rows).take(at)
            else:
                here = found.nonzero()[0]
                whole[slab][here] = opaque_rows(rows).take(at[here])
        return out

    def _load(self, starts: Ids) -> Rows:
        # Joined into a bytearray, so rows that only change are written in place: that saves two
        # copies of 250 KB, and the page faults for them, for each message learnt.
        joined = bytearray().join(self.table.get_many(keys_of(starts)))
        if len(joined) % self.dtype.itemsize:
            raise StoreDamagedError("a bucket does not hold a whole number of rows")
        return np.frombuffer(joined, self.dtype)

    def merge(self, fresh: Rows, gone: Mask) -> None:
        """Replace sorted rows by id and remove those marked `gone`."""
        ids, old = ids_of_rows(fresh), self.layout
        slabs = _slabs(old.starts(ids))
        there = np.zeros(len(ids), np.bool_)
        for few, slab in slabs:
            located = self._located(few, ids[slab])
            there[slab] = located[2]
        count = int(np.count_nonzero(~there & ~gone)) - int(np.count_nonzero(there & gone))
        self.layout = old.grown(old.rows + count, self.target)
        added = self._split(old, [few for few, _ in slabs])
        for (few, slab), more in zip(slabs, added, strict=True):
            rows, at, found = located if len(slabs) == 1 else self._located(few, ids[slab])
            if found.all() and not gone[slab].any():
                opaque_rows(rows)[at] = opaque_rows(fresh[slab])
            else:
                rows = merge_rows(rows, (at, found), fresh[slab], gone[slab])
            self._store(rows, union(few, more) if len(more) else few)

    def _located(self, starts: Ids, ids: Ids) -> tuple[Rows, NDArray[np.intp], Mask]:
        """The rows of some buckets, and where the ids are among them."""
        rows = self._load(starts)
        return rows, *locate(ids_of_rows(rows), ids)

    def _split(self, old: BucketLayout, touched: list[Ids]) -> list[Ids]:
        """Split the buckets that are due, except the touched ones, which the caller writes.

        Returns for each slab of touched buckets the starts that are added within it.
        """
        none = np.zeros(0, np.uint64)
        if self.layout.buckets == old.buckets:
            return [none for _ in touched]
        cut, added = old.splits(self.layout)
        added = np.sort(added)
        parents = old.starts(added)
        others = cut[~locate(np.concatenate([none, *touched]), cut)[1]]
        for i in range(0, len(others), SLAB_BUCKETS):
            few = others[i : i + SLAB_BUCKETS]
            self._store(self._load(few), union(few, added[locate(few, parents)[1]]))
        return [added[locate(few, parents)[1]] for few in touched]

    def _store(self, rows: Rows, starts: Ids) -> None:
        """Write rows to the buckets at `starts`; they include all rows stored there before."""
        bounds = np.concatenate((ids_of_rows(rows).searchsorted(starts), (len(rows),)))
        raw = rows.view(np.uint8).data if len(rows) else memoryview(b"")
        keys = keys_of(starts)
        ends = (bounds * self.dtype.itemsize).tolist()
        if (bounds[1:] > bounds[:-1]).all():
            values = map(raw.__getitem__, map(slice, ends[:-1], ends[1:]))
            self.table.put_many(list(zip(keys, values, strict=True)))
            return
        for key, a, b in zip(keys, ends[:-1], ends[1:], strict=True):
            if a < b:
                self.table.put(key, raw[a:b])
            else:
                self.table.delete(key)

    def blocks(self) -> Iterator[Rows]:
        """All rows in order, some ten thousand at a time; each must be in its own bucket."""
        scan = ((key, bytes(value)) for key, value in self.table.scan())
        while block := [*itertools.islice(scan, BLOCK_BUCKETS)]:
            keys, values = zip(*block, strict=True)
            rows = np.frombuffer(b"".join(values), self.dtype)
            counts = [len(value) // self.dtype.itemsize for value in values]
            self.layout.verify([*keys], counts, ids_of_rows(rows))
            yield rows


def bulk_load(blocks: Iterable[Rows], layout: BucketLayout) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in order, of sorted rows in the buckets of a layout."""
    rest: Rows | None = None
    for block in blocks:
        rows = block
        if rest is not None:
            rows = np.concatenate([opaque_rows(rest), opaque_rows(block)]).view(block.dtype)
        starts = layout.starts(np.ascontiguousarray(rows["id"]))
        ends = [0, *(np.flatnonzero(starts[1:] != starts[:-1]) + 1).tolist()]
        for i in range(len(ends) - 1):
            yield keys_of(starts[ends[i] : ends[i] + 1])[0], rows[ends[i] : ends[i + 1]].tobytes()
        rest = rows[ends[-1] :]
    if rest is not None and len(rest):
        yield keys_of(layout.starts(rest["id"][:1].astype(np.uint64)))[0], rest.tobytes()
