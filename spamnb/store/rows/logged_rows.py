"""Feature rows: changes are logged first, and written to their segments range by range. Pure.

Learning a message changes hundreds of rows, in all segments: written in place, they would rewrite
the whole table. So a transaction appends its rows to a log and writes only the logged rows of one
range of ids to their segments. The next transaction takes the next range: after `capacity` logged
rows, all segments have been written once, and log values older than that are deleted. A transaction
that changes many rows (bulk training) writes all segments at once and leaves an empty log.

    log       u64 start, big-endian: rows logged before    u64 ids[n] | n rows, what has changed
    meta      u64 capacity | u64 first | u64 last          the log holds the rows from first to last

A row is read from the log if the log has it, else from its segment. A logged row is never older
than the one in its segment, so it does not matter whether it has been written there meanwhile. A
row without counts and corrections stands for a removed row. Each process keeps the rows of the log
in a `RowTable`, and reads only the values that were added since.

Knows no engine. Invariants: values follow each other without a gap; every row logged before `first`
is in its segment. Failure: StoreDamagedError.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from spamnb.core.model.events import Ids
from spamnb.core.model.id_arrays import locate
from spamnb.errors import StoreDamagedError
from spamnb.store.rows.codec import Rows, RowSet, newest, opaque_rows
from spamnb.store.rows.id_codec import Buffer
from spamnb.store.rows.row_table import RowTable
from spamnb.store.rows.segments import Places, Segments, bits_for, merged
from spamnb.store.rows.table import Table

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
    """`Segments` with a log for their changes."""

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
