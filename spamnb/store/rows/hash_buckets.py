"""HashBuckets: the space of 64-bit ids cut into ranges, each range one value in a table. Pure.

One record for each feature in a B-tree costs 0.4 us to find and some 60 bytes to hold; a shelf of
30 packed rows costs the same to find. Ids are uniform hashes, so the cut needs no tree of its own:
linear hashing on the top bits. `level` L and `split` p: ids whose top L bits are below p stand on
shelves of L + 1 bits, the others on shelves of L bits. A shelf's key is the first id of its range,
big-endian, so the table's order is the order of the ids; but without the zero bytes at its end, for
each page above the leaves then leads to a quarter more of them. When more rows stand than the
target allows, the next shelves are cut in two; shelves never grow together again but by a rewrite.

Knows arrays and a table of bytes; must not know what a row means or which engine keeps the table.

Invariants: a key is the first id of a shelf under (L, p); rows on a shelf are in its range, sorted
and distinct; no shelf is an empty value; `rows` is the sum of all. Failure: StoreDamagedError.
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
from spamnb.core.model.id_arrays import changes, place
from spamnb.errors import StoreDamagedError
from spamnb.store.rows.codec import Rows, unparted
from spamnb.store.rows.id_codec import Buffer
from spamnb.store.rows.row_cache import RowCache

_LAYOUT = struct.Struct("<BQQ")
_KEY = np.dtype(">u8")
_NOWHERE = np.zeros(0, np.intp)
_ALL_BUT_LAST = ~np.uint64(1)

Mask = NDArray[np.bool_]

SHELF_BYTES = 780
"""What a shelf holds on average. Measured by growing to a million random features, bytes a feature
in live pages at 520, 730, 940 bytes: 41-43, 40-45, 40-46; and 300 lookups took 160, 140, 132 us.
Twice this (the largest shelves before their cut) still lies under LMDB's overflow limit of 2 KB."""
SNUG_BYTES = 390
"""The same for a rewrite in order, where half a shelf is lost at the end of each page and 18 bytes
with each shelf: the sum is least near sqrt(2 * 18 * 4080) = 383."""
_PATIENCE = 9
"""HashBuckets are cut when one in 2^9 is due. Learnt one by one, each message brought a cut or two
of its own to a store of a million features, 0.1 ms."""
SLAB_SHELVES = 1024
"""some 30,000 rows, 800 KB"""
BLOCK_SHELVES = 512
"""shelves read at once when all are walked: some 15,000 rows"""


class Table(Protocol):
    """Sorted keys and values of one transaction. Values read are views: copy what must stay."""

    def version(self) -> int:
        """The number of the last transaction whose changes are seen here."""

    def get(self, key: bytes) -> Buffer | None:
        """The value, None if there is none."""

    def get_many(self, keys: list[bytes]) -> list[Buffer]:
        """The values, empty for missing ones."""

    def put(self, key: bytes, value: Buffer, *, append: bool = False) -> None:
        """Replace the value; `append` promises that the key is the greatest."""

    def put_many(self, items: Iterable[tuple[bytes, Buffer]]) -> None:
        """Replace the values."""

    def delete(self, key: bytes) -> None:
        """Forget the key, if it is there."""

    def scan(self, start: bytes = b"", *, down: bool = False) -> Iterator[tuple[bytes, Buffer]]:
        """Keys at or after `start` upwards, or at or before it downwards (empty: from the end)."""


class BucketLayout(NamedTuple):
    """Where the cuts are."""

    level: int = 0
    split: int = 0
    rows: int = 0

    @property
    def buckets(self) -> int:
        """How many ranges there are."""
        return (1 << self.level) + self.split

    def grown(self, rows: int, target: int) -> BucketLayout:
        """The layout for so many rows, `target` on a shelf; never with fewer shelves."""
        want = max(self.buckets, -(-rows // target))
        if want - self.buckets <= self.buckets >> _PATIENCE:
            want = self.buckets
        level = want.bit_length() - 1
        return BucketLayout(level, want - (1 << level), rows)

    def starts(self, ids: Ids) -> Ids:
        """The first id of each id's shelf. A shift by 64 is undefined: the last bit goes apart."""
        below = np.uint64(63 - self.level)
        head = ids >> below
        fine = head < np.uint64(2 * self.split)
        return (head & (fine | _ALL_BUT_LAST)) << below

    def cuts(self, later: BucketLayout) -> tuple[Ids, Ids]:
        """Starts, here, of the shelves that a later layout has cut; and the starts it has added.

        The s-th shelf was added at level floor(log2 s) by cutting that level's shelf s - 2^level.
        """
        made = np.arange(self.buckets, later.buckets, dtype=np.int64)
        level = np.frexp(made)[1].astype(np.int64) - 1
        index = (made - (np.int64(1) << level)).astype(np.uint64)
        half = (63 - level).astype(np.uint64)
        whole = index << half << np.uint64(1)
        return distinct(np.sort(self.starts(whole))), whole + (np.uint64(1) << half)

    def prove(self, keys: list[bytes], counts: list[int], ids: Ids) -> None:
        """Refuse shelves whose ids are not of their range: a search would not find them."""
        begin = np.array(keys, "S8").view(_KEY).astype(np.uint64)
        stand = np.repeat(begin, counts)
        if keys_of(begin) != keys or len(stand) != len(ids) or (stand != self.starts(ids)).any():
            raise StoreDamagedError("a feature stands on a shelf that is not its own")

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
    """The distinct values of a sorted array; a diff, for np.unique would sort once more."""
    return sorted_ids[changes(sorted_ids)]


def united(a: Ids, b: Ids) -> Ids:
    """The distinct values of both, sorted; numpy's own imports its masked arrays, 10 ms."""
    return distinct(np.sort(np.concatenate((a, b)), kind="stable"))


def keys_of(starts: Ids) -> list[bytes]:
    """Keys of shelves, in order. Of short texts numpy makes a list at once, and drops the zeros."""
    keys: list[bytes] = starts.astype(_KEY).view("S8").tolist()
    if keys and not keys[0]:
        keys[0] = b"\0"
    return keys


def _ids(rows: Rows) -> Ids:
    """The ids of rows, side by side: among rows they lie unaligned, a search is 4 times slower."""
    return np.ascontiguousarray(rows["id"])


def merged(rows: Rows, where: tuple[NDArray[np.intp], Mask], fresh: Rows, gone: Mask) -> Rows:
    """Sorted rows with fresh ones put in; `where` says for fresh ones where they belong.

    One `take` of whole rows by an index: masks over rows of 26 bytes were four times slower, and
    rows of fields take thirty times as long to join.
    """
    kept = (~gone).nonzero()[0]
    if len(rows) == 0:
        return unparted(fresh).take(kept).view(rows.dtype)
    at, found = where
    replaced = np.zeros(len(rows), np.bool_)
    replaced[at[found]] = True
    # Of the rows before a fresh one those stay that no earlier fresh one replaces.
    to = (at - found.cumsum() + found)[kept] + np.arange(len(kept))
    others = (~replaced).nonzero()[0]
    source = np.empty(len(others) + len(kept), np.intp)
    put = np.zeros(len(source), np.bool_)
    put[to] = True
    source[to] = len(rows) + kept
    source[~put] = others
    return np.concatenate([unparted(rows), unparted(fresh)]).take(source).view(rows.dtype)


Slab = tuple[Ids, slice]
"""starts of shelves, and which of some sorted ids stand there"""


def _slabs(starts: Ids) -> list[Slab]:
    """Sorted starts, one for each id, dealt into slabs of shelves."""
    few = distinct(starts)
    if len(few) <= SLAB_SHELVES:
        return [(few, slice(0, len(starts)))] if len(few) else []
    parts = [few[i : i + SLAB_SHELVES] for i in range(0, len(few), SLAB_SHELVES)]
    bounds = [*np.searchsorted(starts, [part[0] for part in parts]).tolist(), len(starts)]
    return [(part, slice(a, b)) for part, (a, b) in zip(parts, pairwise(bounds), strict=True)]


class _FoundRows(NamedTuple):
    """What a search has seen, for the merge that follows it."""

    ids: Ids
    there: Mask
    slabs: list[Slab]
    rows: Rows | None
    at: NDArray[np.intp]
    """where the ids stand among the rows; both only if there was but one slab"""


class HashBuckets:
    """Packed, id-sorted rows of one dtype, on the shelves of a table.

    Many ids are worked on a slab of shelves at a time: its rows then stay in the processor's cache
    and in memory that is used again, where fresh arrays of 30 MB cost more in page faults than the
    work on them.
    """

    def __init__(
        self,
        table: Table,
        layout: BucketLayout,
        dtype: np.dtype[np.void],
        row_cache: RowCache | None = None,
    ) -> None:
        self.table = table
        self.layout = layout
        self.dtype = dtype
        self._recall = row_cache
        self.target = max(1, SHELF_BYTES // dtype.itemsize)
        self._last: _FoundRows | None = None

    def find(self, ids: Ids, *, keep: bool = False) -> Rows:
        """A row for each id, writable; zeros where there is none.

        `keep` remembers what was read for the `merge` of the same ids in the same transaction.
        """
        if self._recall is None or keep:
            return self._search(ids, keep=keep)
        return self._recall.find(self.table.version(), ids, self._search)

    def _search(self, ids: Ids, *, keep: bool = False) -> Rows:
        out, there = np.zeros(len(ids), self.dtype), np.zeros(len(ids), np.bool_)
        whole = unparted(out)
        slabs = _slabs(self.layout.starts(ids))
        rows, at = None, _NOWHERE
        for few, slab in slabs:
            rows = self._load(few)
            at, found = place(_ids(rows), ids[slab])
            there[slab] = found
            if found.all():
                whole[slab] = unparted(rows).take(at)
            else:
                here = found.nonzero()[0]
                whole[slab][here] = unparted(rows).take(at[here])
        if keep:
            self._last = _FoundRows(ids, there, slabs, rows if len(slabs) == 1 else None, at)
        return out

    def _load(self, starts: Ids) -> Rows:
        # Joined into a bytearray: rows that only change are then written in place, and 250 KB are
        # copied (and their pages faulted in) twice less for each message learnt.
        joined = bytearray().join(self.table.get_many(keys_of(starts)))
        if len(joined) % self.dtype.itemsize:
            raise StoreDamagedError("a shelf does not hold a whole number of rows")
        return np.frombuffer(joined, self.dtype)

    def merge(self, fresh: Rows, ids: Ids, gone: Mask) -> Mask:
        """Put rows in place of those with the same ids; the `gone` ones leave. Which were there."""
        if self._last is None or not np.array_equal(self._last.ids, ids):
            self._search(ids, keep=True)
        old, last, self._last = self.layout, self._last, None
        assert last is not None
        new_ids = np.count_nonzero(~last.there & ~gone)
        died = np.count_nonzero(last.there & gone)
        self.layout = old.grown(old.rows + int(new_ids) - int(died), self.target)
        added = self._cut(old, [few for few, _ in last.slabs])
        for (few, slab), more in zip(last.slabs, added, strict=True):
            if last.rows is None:
                rows = self._load(few)
                at, found = place(_ids(rows), ids[slab])
            else:
                rows, at, found = last.rows, last.at, last.there
            if found.all() and not gone[slab].any():
                unparted(rows)[at] = unparted(fresh[slab])
            else:
                rows = merged(rows, (at, found), fresh[slab], gone[slab])
            self._store(rows, united(few, more) if len(more) else few)
        return last.there

    def _cut(self, old: BucketLayout, touched: list[Ids]) -> list[Ids]:
        """Cut the shelves that are due, but for the touched ones, which the caller will put.

        Returns for each slab of touched ones the starts that are added in its midst.
        """
        none = np.zeros(0, np.uint64)
        if self.layout.buckets == old.buckets:
            return [none for _ in touched]
        cut, added = old.cuts(self.layout)
        added = np.sort(added)
        parents = old.starts(added)
        others = cut[~place(np.concatenate([none, *touched]), cut)[1]]
        for i in range(0, len(others), SLAB_SHELVES):
            few = others[i : i + SLAB_SHELVES]
            self._store(self._load(few), united(few, added[place(few, parents)[1]]))
        return [added[place(few, parents)[1]] for few in touched]

    def _store(self, rows: Rows, starts: Ids) -> None:
        """Put rows on the shelves at `starts`; all that stood there before is among them."""
        bounds = np.concatenate((_ids(rows).searchsorted(starts), (len(rows),)))
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
        """All rows in order, some ten thousand at a time; each must stand on its own shelf."""
        scan = ((key, bytes(value)) for key, value in self.table.scan())
        while block := [*itertools.islice(scan, BLOCK_SHELVES)]:
            keys, values = zip(*block, strict=True)
            rows = np.frombuffer(b"".join(values), self.dtype)
            counts = [len(value) // self.dtype.itemsize for value in values]
            self.layout.prove([*keys], counts, _ids(rows))
            yield rows


def bulk_load(blocks: Iterable[Rows], layout: BucketLayout) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in order, of sorted rows on the shelves of a layout."""
    rest: Rows | None = None
    for block in blocks:
        rows = block
        if rest is not None:
            rows = np.concatenate([unparted(rest), unparted(block)]).view(block.dtype)
        starts = layout.starts(np.ascontiguousarray(rows["id"]))
        ends = [0, *(np.flatnonzero(starts[1:] != starts[:-1]) + 1).tolist()]
        for i in range(len(ends) - 1):
            yield keys_of(starts[ends[i] : ends[i] + 1])[0], rows[ends[i] : ends[i + 1]].tobytes()
        rest = rows[ends[-1] :]
    if rest is not None and len(rest):
        yield keys_of(layout.starts(rest["id"][:1].astype(np.uint64)))[0], rest.tobytes()
