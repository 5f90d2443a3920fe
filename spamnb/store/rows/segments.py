"""Feature rows in segments: each segment is one large table value that holds a range of ids. Pure.

There are 2^b segments; the top b bits of an id are the number of its segment, and the key is the
number (two bytes, big-endian). A segment has its rows in the order of their ids, and an index that
divides its range into equal cells; ids are uniform hashes, so a cell has a few:

    u32 n | u32 widest | u64 ids[n] | u64 2^64 - 1 | u32 starts[CELLS] | n rows | zeros

`starts[c]` is how many ids are in the cells before c, `widest` the most ids in one cell. Zeros fill
the value up to LEAST_BYTES. All numbers are little endian.

A look-up reads the values where they lie. `Places` has the addresses of all segments, and finds the
rows of all ids together, with some forty operations of numpy: 400 rows among a million take 70 us.
One read of the table for each id took 300 us and more. LMDB gives a value of more than half a page
pages of its own, which never move as long as the value is not replaced, so addresses stay valid in
later transactions; LEAST_BYTES is more than half of the largest page.

Why this reads no other memory: `Segments.value` compares the length of a value with its head before
its address is kept; `Places.fill` stays within this length, whatever else the value contains; and
numpy refuses an index outside the memory from the first segment to the end of the last one.
`RowCache` explains why it reads no older or newer value.

Knows arrays and a table of bytes; must not know which engine keeps the table. Invariants: all 2^b
segments exist; rows are in the range of their segment, sorted and distinct; none is empty of counts
and corrections. Failure: StoreDamagedError. Look-ups in a damaged segment end, and read no byte
outside it, but may find nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ids
from spamnb.core.model.id_arrays import locate
from spamnb.errors import StoreDamagedError
from spamnb.store.rows.codec import (
    Rows,
    RowSet,
    empty_rows,
    joined,
    opaque_rows,
    records_of,
    row_type,
)
from spamnb.store.rows.id_codec import Buffer
from spamnb.store.rows.table import Table

Mask = NDArray[np.bool_]

CELL_BITS = 10
_CELLS = 1 << CELL_BITS
_HEAD, _ID = struct.Struct("<II"), struct.Struct("<Q")
_WORD, _START = np.dtype("<u8"), np.dtype("<u4")
_END = b"\xff" * 8
_INDEX_BYTES = len(_END) + 4 * _CELLS
LEAST_BYTES = 33_000
ROW_BITS, MOST_BITS = 11, 8
"""A segment has some 2,048 to 4,096 rows, 80 KB. There are at most 256 segments, which then grow: a
training writes the rows of one range of the ids, so smaller segments would not reduce what it
writes."""


class _Memory:
    """The memory between two addresses as an array: the item `i` begins `step` * i bytes on."""

    def __init__(self, start: int, stop: int, kind: np.dtype[Any], step: int) -> None:
        shape = (max((stop - start - kind.itemsize) // step + 1, 0),)
        self.__array_interface__ = {
            "version": 3, "typestr": kind.str, "shape": shape, "strides": (step,),
            "data": (start, True),
        }  # fmt: skip


def key_of(number: int) -> bytes:
    """The key of a segment."""
    return number.to_bytes(2)


def bits_for(rows: int) -> int:
    """The logarithm of the number of segments for so many rows."""
    return min(max(rows.bit_length() - 1 - ROW_BITS, 0), MOST_BITS)


def cuts(ids: Ids, bits: int) -> list[int]:
    """Where the ids of each segment begin among sorted ids, and where the last ones end."""
    firsts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(63 - bits) << np.uint64(1)
    return [*ids.searchsorted(firsts).tolist(), len(ids)]


def merged(old: RowSet, fresh: RowSet, gone: Mask | None = None) -> RowSet:
    """Two sets as one: for an id in both, the `fresh` row; fresh rows marked `gone` are left out.

    Rows are moved once, by an index: masks over rows were four times slower.
    """
    kept = np.arange(len(fresh.ids)) if gone is None else (~gone).nonzero()[0]
    at, found = locate(old.ids, fresh.ids)
    others = np.ones(len(old.ids), np.bool_)
    others[at[found]] = False
    # A row before a fresh one stays unless an earlier fresh row replaces it.
    to = (at - found.cumsum() + found)[kept] + np.arange(len(kept))
    source = np.empty(np.count_nonzero(others) + len(kept), np.intp)
    put = np.zeros(len(source), np.bool_)
    put[to] = True
    source[to] = len(old.ids) + kept
    source[~put] = others.nonzero()[0]
    return joined([old, fresh]).take(source)


def encode(rows: RowSet, bits: int) -> bytes:
    """The value of a segment, one of 2^bits."""
    cells = (rows.ids >> np.uint64(64 - bits - CELL_BITS)).view(np.int64) & (_CELLS - 1)
    sizes = np.bincount(cells, minlength=_CELLS)
    starts = np.zeros(_CELLS, _START)
    sizes[:-1].cumsum(out=starts[1:])
    parts = (
        _HEAD.pack(len(cells), sizes.max()),
        rows.ids.astype(_WORD).tobytes(),
        _END,
        starts.tobytes(),
    )
    return b"".join((*parts, rows.rows.tobytes())).ljust(LEAST_BYTES, b"\0")


class Segments:
    """The rows of a table."""

    def __init__(self, table: Table, dtype: np.dtype[np.void]) -> None:
        self.table = table
        self.dtype = dtype

    @staticmethod
    def create(table: Table) -> None:
        """Write one empty segment."""
        table.put(key_of(0), encode(RowSet.none(row_type(1)), 0))

    @cached_property
    def bits(self) -> int:
        """The logarithm of the number of segments."""
        last = next((key for key, _ in self.table.scan(down=True)), b"")
        count = int.from_bytes(last) + 1
        if len(last) != len(key_of(0)) or count.bit_count() != 1:
            raise StoreDamagedError(f"the last segment of features has the key {last.hex()!r}")
        return count.bit_length() - 1

    @property
    def numbers(self) -> range:
        """The numbers of all segments."""
        return range(1 << self.bits)

    def value(self, number: int) -> tuple[Buffer, int, int]:
        """The value of a segment, how many rows it has, and at most how many in a cell."""
        value = self.table.get(key_of(number)) or b""
        count, widest = _HEAD.unpack_from(value) if len(value) >= LEAST_BYTES else (0, 0)
        end = _HEAD.size + 8 * count
        size = end + _INDEX_BYTES + count * self.dtype.itemsize
        if len(value) != max(LEAST_BYTES, size) or value[end : end + 8] != _END:
            raise StoreDamagedError(f"segment {number} of the features has {len(value)} bytes")
        if count and any(
            _ID.unpack_from(value, at)[0] >> 64 - self.bits != number for at in (8, end - 8)
        ):
            raise StoreDamagedError("a feature is stored in a segment of another id range")
        return value, count, widest

    def read(self, number: int) -> RowSet:
        """The rows of a segment, as views; refuses ids out of order."""
        value, count, _ = self.value(number)
        ids = np.frombuffer(value, _WORD, count, 8)
        if (ids[1:] <= ids[:-1]).any():
            raise StoreDamagedError(f"the features of segment {number} are not in order")
        return RowSet(ids, np.frombuffer(value, self.dtype, count, 8 + 8 * count + _INDEX_BYTES))

    def with_changes(self, changed: RowSet, numbers: Iterable[int]) -> Iterator[tuple[int, RowSet]]:
        """These segments with changed rows, and without those that lost counts and corrections."""
        gone = empty_rows(records_of(changed.rows))
        bounds = cuts(changed.ids, self.bits)
        for number in numbers:
            some = slice(bounds[number], bounds[number + 1])
            yield number, merged(self.read(number), changed.part(some), gone[some])

    def all(self) -> Iterator[RowSet]:
        """The rows of one segment after the other."""
        return map(self.read, self.numbers)

    def merge(self, changed: RowSet, numbers: Iterable[int], least_bits: int = 0) -> None:
        """Write changed rows to these segments, from the last to the first.

        If there are fewer than 2^`least_bits`, `numbers` must be all of them: each is split into
        parts, whose keys are those of later segments.
        """
        bits = max(self.bits, least_bits)
        parts = 1 << bits - self.bits
        if parts == 1:
            bounds = cuts(changed.ids, bits)
            numbers = [number for number in numbers if bounds[number] < bounds[number + 1]]
        for number, rows in self.with_changes(changed, sorted(numbers, reverse=True)):
            ends = cuts(rows.ids, bits)[number * parts : (number + 1) * parts + 1]
            for place, (start, stop) in enumerate(pairwise(ends), number * parts):
                self.table.put(key_of(place), encode(rows.part(slice(start, stop)), bits))
        self.bits = bits


class Places:
    """The addresses of all segments, valid as long as the table's memory and the segments are."""

    def __init__(self, segments: Segments) -> None:
        count = len(segments.numbers)
        self.bits = segments.bits
        self._row_bytes = segments.dtype.itemsize
        self._address, self._stop, self._count, self._widest = np.zeros((4, count), np.int64)
        self.update(segments, segments.numbers)

    def update(self, segments: Segments, numbers: Iterable[int]) -> None:
        """Read the addresses of these segments again."""
        for number in numbers:
            value, self._count[number], self._widest[number] = segments.value(number)
            address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
            if address % 8:
                raise StoreDamagedError(f"segment {number} of the features has no pages of its own")
            self._address[number], self._stop[number] = address, address + len(value)
        start, stop = int(self._address.min()), int(self._stop.max())
        self._words = np.asarray(_Memory(start, stop, _WORD, 8))
        self._starts = np.asarray(_Memory(start, stop, _START, 4))
        self._rows = np.asarray(_Memory(start, stop, np.dtype(f"V{self._row_bytes}"), 1))
        # For each segment: where its ids begin and end, where its index begins, and where the row
        # of an id at position 0 would be.
        self._first = (self._address - start) // 8 + 1
        self._end = self._first + self._count
        self._index = 2 * self._end + 2
        self._row_zero = 8 * self._end + _INDEX_BYTES - self._first * self._row_bytes
        self._steps = int(self._widest.max()).bit_length()

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._count.sum())

    def fill(self, ids: Ids, out: Rows, index: NDArray[np.intp]) -> None:
        """Write the rows of these ids into `out`, each at its index; other rows stay.

        A binary search from the start of each id's cell: the step, which is the same for all ids,
        is halved each time. After the ids of a segment comes the greatest number. Whatever the
        memory holds, `at` stays between the first id of the segment and one past its end, within
        its value.
        """
        cell = (ids >> np.uint64(64 - self.bits - CELL_BITS)).view(np.int64)
        number = cell >> CELL_BITS
        cell &= _CELLS - 1
        cell += self._index.take(number)
        end = self._end.take(number)
        at = np.minimum(self._first.take(number) + self._starts.take(cell), end)
        for bit in reversed(range(self._steps)):
            probe = np.minimum(at + ((1 << bit) - 1), end)
            np.add(probe, 1, out=at, where=self._words.take(probe) < ids)
        here = ((self._words.take(at) == ids) & (at < end)).nonzero()[0]
        rows = at.take(here) * self._row_bytes + self._row_zero.take(number.take(here))
        opaque_rows(out)[index.take(here)] = self._rows[rows]
