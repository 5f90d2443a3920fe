"""Rows of counts: a log in front of segments. Pure.

A change is logged first and written to its segment later: written in place, one message would
rewrite the whole table. `Segments` has the rows by ranges of ids, `LoggedRows` the log in front of
them, `RowTable` the rows in memory. Knows arrays and a table of bytes; must not know which engine
keeps the table. Failure: StoreDamagedError.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import StoreDamagedError
from spamnb.model.events import Ids, changes, locate, order_of
from spamnb.store.codec import (
    Buffer,
    Rows,
    RowSet,
    empty_rows,
    joined,
    newest,
    opaque_rows,
    records_of,
    row_type,
)


class RowTable:
    """Rows by id, at most `room` of them. Not for several threads at once.

    Ids are uniform hashes, so their top bits are the hash. `heads` has, for each value of the top
    bits, the place of the newest entry; `next` has, for each entry, the place of the next one with
    the same top bits; place 0 is the end. All ids of a look-up go from entry to entry together.
    """

    def __init__(self, room: int, dtype: np.dtype[np.void]) -> None:
        bits = room.bit_length()
        self._shift = np.uint64(64 - bits)
        self._heads = np.zeros(1 << bits, np.int32)
        self._next = np.zeros(room + 1, np.int32)
        self._ids = np.zeros(room + 1, np.uint64)
        self._rows = np.zeros(room + 1, dtype)
        self._size = 1

    def put(self, new: RowSet) -> bool:
        """Replace or add rows; False, and nothing has changed, if there is no room."""
        at = self._find(new.ids)
        others = (at == 0).nonzero()[0]
        start, stop = self._size, self._size + len(others)
        if stop > len(self._ids):
            return False
        at[others] = np.arange(start, stop)
        opaque_rows(self._rows)[at] = opaque_rows(new.rows)
        self._ids[start:stop] = new.ids.take(others)
        hashes = self._hashes(self._ids[start:stop])
        places, first = at.take(others), changes(hashes)
        self._next[start:stop] = np.where(first, self._heads.take(hashes), places - 1)
        last = np.roll(first, -1).nonzero()[0]
        self._heads[hashes.take(last)] = places.take(last)
        self._size = stop
        return True

    def fill(self, ids: Ids, out: Rows) -> NDArray[np.intp]:
        """Write the rows of these ids that are here into `out`; return the indexes of the rest."""
        if self._size == 1:
            return np.arange(len(ids))
        at = self._find(ids)
        here = at.nonzero()[0]
        opaque_rows(out)[here] = opaque_rows(self._rows).take(at.take(here))
        others: NDArray[np.intp] = (at == 0).nonzero()[0]
        return others

    def between(self, first: int, last: int) -> RowSet:
        """The rows of the ids from `first` to `last`."""
        ends = np.array([first, last], np.uint64)
        low, high = self._hashes(ends).tolist()
        at, found = self._heads[low : high + 1], []
        while len(at := at[at != 0]):
            found.append(at)
            at = self._next.take(at)
        at = np.concatenate([self._heads[:0], *found])
        ids = self._ids.take(at)
        at = at[(ids >= ends[0]) & (ids <= ends[1])]
        return RowSet(self._ids, self._rows).take(at.take(order_of(self._ids.take(at))))

    def _hashes(self, ids: Ids) -> NDArray[np.int64]:
        return (ids >> self._shift).view(np.int64)

    def _find(self, ids: Ids) -> NDArray[np.int32]:
        """The place of each id; 0 if it is not here."""
        at = self._heads.take(self._hashes(ids))
        rest = (self._ids.take(at) != ids).nonzero()[0]
        while len(rest):
            next_ = self._next.take(at.take(rest))
            at[rest] = next_
            rest = rest[(next_ != 0) & (self._ids.take(next_) != ids.take(rest))]
        return at


class Table(Protocol):
    """Sorted keys and values of one transaction. Values read are views: copy what must stay."""

    def transaction(self) -> int:
        """The number of the transaction; readers have that of the last commit before them."""

    def get(self, key: bytes) -> Buffer | None:
        """The value, None if there is none."""

    def get_many(self, keys: list[bytes]) -> list[Buffer]:
        """The values, empty for missing ones."""

    def put(self, key: bytes, value: Buffer, *, append: bool = False) -> None:
        """Replace the value; with `append` the key must be the greatest."""

    def delete(self, key: bytes) -> None:
        """Delete the key, if it exists."""

    def scan(self, start: bytes = b"", *, down: bool = False) -> Iterator[tuple[bytes, Buffer]]:
        """Keys at or after `start` upwards, or at or before it downwards (empty: from the end)."""


Mask = NDArray[np.bool_]

CELL_BITS = 10
_CELLS = 1 << CELL_BITS
_HEAD, _ID = struct.Struct("<II"), struct.Struct("<Q")
_WORD, _START_TYPE = np.dtype("<u8"), np.dtype("<u4")
_END = b"\xff" * 8
_INDEX_BYTES = len(_END) + 4 * _CELLS
LEAST_BYTES = 33_000
ROW_BITS, MOST_SEGMENT_BITS = 11, 8
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
    return min(max(rows.bit_length() - 1 - ROW_BITS, 0), MOST_SEGMENT_BITS)


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
    starts = np.zeros(_CELLS, _START_TYPE)
    sizes[:-1].cumsum(out=starts[1:])
    parts = (
        _HEAD.pack(len(cells), sizes.max()),
        rows.ids.astype(_WORD).tobytes(),
        _END,
        starts.tobytes(),
    )
    return b"".join((*parts, rows.rows.tobytes())).ljust(LEAST_BYTES, b"\0")


class Segments:
    """The rows of a table.

    There are 2^b segments; the top b bits of an id are the number of its segment, and the key is
    the number (two bytes, big-endian). A segment has its rows in the order of their ids, and an
    index that divides its range into equal cells; ids are uniform hashes, so a cell has a few:

        u32 n | u32 widest | u64 ids[n] | u64 2^64 - 1 | u32 starts[CELLS] | n rows | zeros

    `starts[c]` is how many ids are in the cells before c, `widest` the most ids in one cell. Zeros
    fill the value up to LEAST_BYTES. All numbers are little endian.

    Invariants: all 2^b segments exist; rows are in the range of their segment, sorted and distinct;
    none is empty of counts and corrections. Look-ups in a damaged segment end, and read no byte
    outside it, but may find nothing.
    """

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
    """The addresses of all segments, valid as long as the table's memory and the segments are.

    A look-up reads the values where they lie, and finds the rows of all ids together, with some
    forty operations of numpy: 400 rows among a million take 70 us. One read of the table for each
    id took 300 us and more. LMDB gives a value of more than half a page pages of its own, which
    never move as long as the value is not replaced, so addresses stay valid in later transactions;
    LEAST_BYTES is more than half of the largest page.

    Why this reads no other memory: `Segments.value` compares the length of a value with its head
    before its address is kept; `Places.fill` stays within this length, whatever else the value
    contains; and numpy refuses an index outside the memory from the first segment to the end of the
    last one. `RowCache` explains why it reads no older or newer value.
    """

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
        self._starts = np.asarray(_Memory(start, stop, _START_TYPE, 4))
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


LOG_KEY = b"log"
LEAST_BITS, MOST_BITS = 12, 19
"""limits of the capacity: 100 KB and 14 MB of rows at two labels"""
_DAMAGED_BITS = 24
"""No program writes so large a capacity; memory for it is reserved before the log is read."""
_WHOLE_SHARE = 8
"""A transaction that changes at least one such part of the capacity (an eighth) writes all
segments, because it would have to write at least an eighth of them in any case."""
_ROWS_A_VALUE = 8192
_ROWS_A_STEP = 1 << 16
"""Logged rows that are read together: the longest log takes 40 ms, read value by value 120. Reading
all of it at once left 17 MB more in the process."""
_ROOM = 5 / 4
"""Room for logged rows in memory, as a multiple of the capacity. Rows stay there after they were
written to their segments; when there is no room, the log is read again."""
_LAST_ID = (1 << 64) - 1
_STATE = struct.Struct("<QQQ")
_START = struct.Struct(">Q")


class LogState(NamedTuple):
    """The part of all logged rows that the log still holds; positions count logged rows."""

    capacity: int
    first: int = 0
    last: int = 0

    @staticmethod
    def of_new_model() -> LogState:
        """The state of an empty log."""
        return LogState(1 << LEAST_BITS)

    def encode(self) -> bytes:
        """The state as bytes."""
        return _STATE.pack(*self)

    @staticmethod
    def decode(data: Buffer | None) -> LogState:
        """The state in these bytes."""
        try:
            state = LogState(*_STATE.unpack(data or b""))
        except struct.error as error:
            raise StoreDamagedError("the state of the row log cannot be read") from error
        capacity = state.capacity
        if capacity.bit_count() != 1 or capacity >> _DAMAGED_BITS:
            raise StoreDamagedError(f"the capacity of the row log is {capacity}")
        if not 0 <= state.last - state.first <= capacity:
            raise StoreDamagedError(f"the state of the row log is {tuple(state)}")
        return state

    def written(self, segments: int, start: int, stop: int) -> list[int]:
        """Which segments are written while the log grows from `start` to `stop`."""
        a, b = (place * segments // self.capacity for place in (start, stop))
        return [number % segments for number in range(a, min(b, a + segments))]


class RowCache:
    """What a process keeps of the rows between transactions; threads may share it.

    It follows the snapshot that was read last; to read an older one, it starts anew.

    Addresses are always those of the snapshot that is read. Each transaction that writes segments
    makes the log longer, so the log's last position identifies the segments of a snapshot. Segments
    are written only at the end of a transaction, after its last look-up. The log shows which of
    them were replaced between two positions, and LMDB keeps the pages of an open snapshot.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = -1
        """the last position of the log that is in memory; -1: nothing is"""
        self._recent: RowTable
        self._places: Places

    def fill(self, view: LoggedRows, ids: Ids, out: Rows) -> None:
        """Write the rows of these ids into `out`."""
        with self._lock:
            self._follow(view)
            others = self._recent.fill(ids, out)
            self._places.fill(ids.take(others), out, others)

    def logged(self, view: LoggedRows, first: int = 0, last: int = _LAST_ID) -> RowSet:
        """The logged rows of ids from `first` to `last`; some may be in segments by now."""
        with self._lock:
            self._follow(view)
            return self._recent.between(first, last)

    def count(self, view: LoggedRows) -> int:
        """How many rows are in segments."""
        with self._lock:
            self._follow(view)
            return self._places.count

    def _follow(self, view: LoggedRows) -> None:
        view.meta.get(LOG_KEY)  # fails after the transaction; addresses would not
        state, start, segments = view.state, self._last, view.segments
        if start == state.last:
            return
        self._last = -1
        if (
            state.first <= start < state.last
            and self._places.bits == segments.bits
            and self._read_log(view, start)
        ):
            written = state.written(len(segments.numbers), start, state.last)
            self._places.update(segments, written)
        else:
            self._recent = RowTable(int(state.capacity * _ROOM), segments.dtype)
            self._places = Places(segments)
            self._read_log(view, state.first)
        self._last = state.last

    def _read_log(self, view: LoggedRows, start: int) -> bool:
        """Read what was logged from `start` on; False if there is no room for it."""
        return all(self._recent.put(newest(some)) for some in _steps(_logged(view, start)))


def _steps(values: Iterator[RowSet]) -> Iterator[list[RowSet]]:
    """These values, several at a time."""
    some, count = list[RowSet](), 0
    for rows in values:
        some.append(rows)
        count += len(rows.ids)
        if count >= _ROWS_A_STEP:
            yield some
            some, count = [], 0
    if some:
        yield some


def _logged(view: LoggedRows, start: int) -> Iterator[RowSet]:
    """The values of the log from `start` on."""
    dtype, last = view.segments.dtype, view.state.last
    for key, value in view.log.scan(_START.pack(start)):
        count, rest = divmod(len(value), 8 + dtype.itemsize)
        if key != _START.pack(start) or count == 0 or rest:
            raise StoreDamagedError(f"the row log has no rows at position {start}")
        ids = np.frombuffer(value, "<u8", count)
        if (ids[1:] <= ids[:-1]).any():
            raise StoreDamagedError(f"the rows logged at position {start} are not sorted")
        yield RowSet(ids, np.frombuffer(value, dtype, count, 8 * count))
        start += count
    if start != last:
        raise StoreDamagedError(f"the row log ends at {start}, the model says {last}")


class LoggedRows:
    """`Segments` with a log for their changes.

    Learning a message changes hundreds of rows, in all segments: written in place, they would
    rewrite the whole table. So a transaction appends its rows to a log and writes only the logged
    rows of one range of ids to their segments. The next transaction takes the next range: after
    `capacity` logged rows, all segments have been written once, and log values older than that are
    deleted. A transaction that changes many rows (bulk training) writes all segments at once and
    leaves an empty log.

        log       u64 start, big-endian: rows logged before    u64 ids[n] | n rows, what has changed
        meta      u64 capacity | u64 first | u64 last          the log holds these rows

    A row is read from the log if the log has it, else from its segment. A logged row is never older
    than the one in its segment, so it does not matter whether it has been written there meanwhile.
    A row without counts and corrections stands for a removed row. Each process keeps the rows of
    the log in a `RowTable`, and reads only the values that were added since.

    Invariants: values follow each other without a gap; every row logged before `first` is in its
    segment.
    """

    def __init__(self, segments: Segments, log: Table, meta: Table, cache: RowCache) -> None:
        self.segments = segments
        self.log = log
        self.state = LogState.decode(meta.get(LOG_KEY))
        self.meta = meta
        self._cache = cache
        self._changed = RowSet.none(segments.dtype)
        """the rows that this transaction has changed"""

    def find(self, ids: Ids) -> Rows:
        """A row for each id; zeros where there is none."""
        rows = np.zeros(len(ids), self.segments.dtype)
        self._cache.fill(self, ids, rows)
        if len(self._changed.ids):
            at, found = locate(self._changed.ids, ids)
            here = found.nonzero()[0]
            opaque_rows(rows)[here] = opaque_rows(self._changed.rows).take(at.take(here))
        return rows

    def put(self, rows: RowSet) -> None:
        """Replace rows; empty ones are removed."""
        self._changed = merged(self._changed, rows)

    def finish(self) -> None:
        """Log what has changed, and write the next range of the log to the segments."""
        changed, old = len(self._changed.ids), self.state
        if not changed:
            return
        stop, rows = old.last + changed, self._cache.count(self) + changed
        capacity = max(old.capacity, _capacity(rows))
        # `_write` may read the whole log, so this transaction must not have added to it yet.
        if changed >= old.capacity // _WHOLE_SHARE or capacity > old.capacity:
            self._write([*self.segments.numbers], bits_for(rows))
            state = LogState(capacity, self._delete(stop, stop), stop)
        else:
            self._write(old.written(len(self.segments.numbers), old.last, stop))
            self._append()
            state = old._replace(first=self._delete(stop - old.capacity, stop), last=stop)
        self.meta.put(LOG_KEY, state.encode())
        self._changed = RowSet.none(self.segments.dtype)

    def _write(self, numbers: list[int], least_bits: int = 0) -> None:
        """Write what is logged, and what has changed, to these segments."""
        if numbers:
            width = 1 << 64 - self.segments.bits
            ends = min(numbers) * width, (max(numbers) + 1) * width - 1
            logged = self._cache.logged(self, *ends)
            self.segments.merge(merged(logged, self._changed), numbers, least_bits)

    def _append(self) -> None:
        ids, rows = self._changed
        for at in range(0, len(ids), _ROWS_A_VALUE):
            some = slice(at, at + _ROWS_A_VALUE)
            key = _START.pack(self.state.last + at)
            self.log.put(key, ids[some].astype("<u8").tobytes() + rows[some].tobytes(), append=True)

    def _delete(self, upto: int, stop: int) -> int:
        """Delete the values that start at or before `upto`; return the start of the first kept."""
        old = []
        for key, _ in self.log.scan():
            if _START.unpack(key)[0] > upto:
                stop = _START.unpack(key)[0]
                break
            old.append(key)
        for key in old:
            self.log.delete(key)
        return stop

    def all(self) -> Iterator[RowSet]:
        """The rows of one segment after the other."""
        changed = merged(self._cache.logged(self), self._changed)
        return (rows for _, rows in self.segments.with_changes(changed, self.segments.numbers))


def _capacity(rows: int) -> int:
    """Between half of the rows and all: a smaller log would be written to segments more often."""
    return 1 << min(max(rows.bit_length() - 1, LEAST_BITS), MOST_BITS)
