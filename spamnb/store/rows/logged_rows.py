"""Feature rows: changes are logged first, and written to their buckets range by range. Pure.

Learning a message changes hundreds of rows, each in another bucket: written in place, each would
rewrite a page of the file. So a transaction appends its rows to a log and writes only the logged
rows of one range of ids to their buckets, where rows of hundreds of messages share pages. The next
transaction takes the next range: after `capacity` logged rows, all ids have been written once, and
log values older than that are deleted. A transaction that changes most buckets (bulk training)
writes all rows at once and leaves an empty log.

    log       u64 start, big-endian: rows logged before    the changed rows, sorted by id
    meta      u64 capacity | u64 first | u64 last          the log holds the rows from first to last

A row is read from the log if the log has it, else from its bucket. A logged row is never older than
the row in its bucket, so it does not matter whether its range has been written meanwhile. A row
without counts and corrections stands for a removed one. Processes keep the newest rows of the log
in memory, and read only the values that were added since.

Knows no engine. Invariants: values follow each other without a gap; every row logged before `first`
is in its bucket. Failure: StoreDamagedError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ids
from spamnb.core.model.id_arrays import locate, order_of
from spamnb.errors import StoreDamagedError
from spamnb.store.rows.codec import Rows, empty_rows, opaque_rows, records_of
from spamnb.store.rows.hash_buckets import (
    BucketLayout,
    HashBuckets,
    Table,
    ids_of_rows,
    merge_rows,
)
from spamnb.store.rows.id_codec import Buffer

LOG_KEY = b"log"
LEAST_BITS, MOST_BITS = 12, 19
"""limits of the capacity: 100 KB and 14 MB of rows at two labels"""
_WHOLE_SHARE = 8
"""A transaction of so large a part of the capacity changes most buckets anyway."""
_ROWS_A_VALUE = 8192
_LAYER_RATIO = 4
"""A layer has at least so many times the rows of the next newer one."""
_COMMON = 8
"""Rows of features that so many messages contain stay in memory once read from a bucket."""
_MOST_KEPT = 1 << 18
"""rows in memory above which no more are added from buckets"""
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
        if state.capacity.bit_count() != 1 or state.first > state.last:
            raise StoreDamagedError(f"the state of the row log is {tuple(state)}")
        return state

    def written(self, ids: Ids, start: int, stop: int) -> list[slice]:
        """The sorted ids that are written to their buckets while the log grows to `stop`."""
        if stop - start >= self.capacity:
            return [slice(None)]
        a, b = start % self.capacity, stop % self.capacity
        width = (1 << 64) // self.capacity
        low, high = (int(ids.searchsorted(np.uint64(place * width))) for place in (a, b))
        return [slice(low, high)] if a <= b else [slice(0, high), slice(low, None)]


class _Layer(NamedTuple):
    """Rows of the log, sorted, the newest of each id; `last` is the log's last position then."""

    last: int
    ids: Ids
    rows: Rows

    @staticmethod
    def of(last: int, rows: Rows) -> _Layer:
        return _Layer(last, ids_of_rows(rows), rows)

    def under(self, newer: _Layer) -> _Layer:
        """Both layers as one: of an id in both, the row of the newer one."""
        where = locate(self.ids, newer.ids)
        none = np.zeros(len(newer.ids), np.bool_)
        return _Layer.of(newer.last, merge_rows(self.rows, where, newer.rows, none))

    def without_written(self, state: LogState, last: int) -> _Layer:
        """The rows that have not been written to their buckets while the log grew to `last`."""
        kept = np.ones(len(self.ids), np.bool_)
        for part in state.written(self.ids, self.last, last):
            kept[part] = False
        return _Layer.of(last, opaque_rows(self.rows).take(kept.nonzero()[0]).view(self.rows.dtype))


class RecentRows(NamedTuple):
    """The rows of the log at one position, in memory. Immutable: snapshots share it.

    Each layer is larger than the next newer one by a factor, so there are few, and a row is copied
    few times.
    """

    last: int
    layers: tuple[_Layer, ...] = ()
    """oldest first"""

    @property
    def size(self) -> int:
        """How many rows there are, some of them twice."""
        return sum(len(layer.ids) for layer in self.layers)

    def with_rows(self, state: LogState, last: int, rows: Rows) -> RecentRows:
        """The same after these sorted rows were logged up to the position `last`."""
        layer, older = _Layer.of(last, rows), self.layers
        while older and len(older[-1].ids) < _LAYER_RATIO * len(layer.ids):
            below, older = older[-1], older[:-1]
            # Only the oldest layer may lose rows: in others an older row would be found instead.
            layer = (below if older else below.without_written(state, last)).under(layer)
        return RecentRows(last, (*older, layer))

    def fill(self, ids: Ids, rows: Rows) -> NDArray[np.intp]:
        """Write the rows of these ids that are here into `rows`; returns the indexes of others."""
        out, others = opaque_rows(rows), np.arange(len(ids))
        for layer in reversed(self.layers):
            at, found = locate(layer.ids, ids)
            here = found.nonzero()[0]
            if len(here):
                out[others.take(here)] = opaque_rows(layer.rows).take(at.take(here))
                rest = (~found).nonzero()[0]
                ids, others = ids.take(rest), others.take(rest)
        return others

    def between(self, state: LogState, start: int, stop: int) -> list[Rows]:
        """The rows that are written while the log grows from `start` to `stop`, oldest first."""
        return [
            layer.rows[part]
            for layer in self.layers
            for part in state.written(layer.ids, start, stop)
        ]


class RecentRowsCache:
    """The rows of a log that a process has read; threads with different snapshots may share it."""

    def __init__(self) -> None:
        self._recent = RecentRows(0)

    def at(self, state: LogState, log: Table, dtype: np.dtype[np.void]) -> RecentRows:
        """The rows at the end of the log; reads only what was logged since the last call."""
        recent = self._recent
        if not state.first <= recent.last <= state.last:
            recent = RecentRows(state.first)
        if recent.last < state.last:
            rows = newest(list(_logged(state, log, recent.last, dtype)))
            recent = recent.with_rows(state, state.last, rows)
            self._recent = recent
        return recent

    def keep(self, recent: RecentRows) -> None:
        """Keep rows for the next call of `at`."""
        self._recent = recent


def _logged(state: LogState, log: Table, start: int, dtype: np.dtype[np.void]) -> Iterator[Rows]:
    """The values of the log from `start` on."""
    for key, value in log.scan(_START.pack(start)):
        if key != _START.pack(start) or len(value) == 0 or len(value) % dtype.itemsize:
            raise StoreDamagedError(f"the row log has no rows at position {start}")
        rows = np.frombuffer(bytes(value), dtype)
        ids = ids_of_rows(rows)
        if (ids[1:] <= ids[:-1]).any():
            raise StoreDamagedError(f"the rows logged at position {start} are not sorted")
        yield rows
        start += len(rows)
    if start != state.last:
        raise StoreDamagedError(f"the row log ends at {start}, the model says {state.last}")


def newest(parts: Sequence[Rows]) -> Rows:
    """The last row of each id, sorted, of parts that are sorted."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([opaque_rows(part) for part in parts])
    ids = ids_of_rows(rows.view(parts[0].dtype))
    order = order_of(ids)
    sorted_ids = ids.take(order)
    last = np.ones(len(ids), np.bool_)
    np.not_equal(sorted_ids[1:], sorted_ids[:-1], out=last[:-1])
    return rows.take(order[last]).view(parts[0].dtype)


class LoggedRows:
    """`HashBuckets` with a log for their changes."""

    def __init__(
        self, buckets: HashBuckets, log: Table, meta: Table, cache: RecentRowsCache
    ) -> None:
        self._buckets = buckets
        self._log = log
        self._meta = meta
        self._state = LogState.decode(meta.get(LOG_KEY))
        self._cache = cache
        self._recent = cache.at(self._state, log, buckets.dtype)
        self._changed: tuple[_Layer, ...] = ()
        """the rows that this transaction changed: at most one layer"""

    @property
    def layout(self) -> BucketLayout:
        """The layout of the buckets."""
        return self._buckets.layout

    def find(self, ids: Ids) -> Rows:
        """A row for each id; zeros where there is none."""
        rows = np.zeros(len(ids), self._buckets.dtype)
        others = self._visible().fill(ids, rows)
        if len(others):
            found = self._buckets.find(ids.take(others))
            opaque_rows(rows)[others] = opaque_rows(found)
            self._keep_common(found)
        return rows

    def _keep_common(self, rows: Rows) -> None:
        """Keep rows of common features in memory, although they are not in the log."""
        common = (rows["n"].sum(axis=1) >= _COMMON).nonzero()[0]
        if len(common) and not self._changed and self._recent.size < _MOST_KEPT:
            some = opaque_rows(rows).take(common).view(rows.dtype)
            self._recent = self._recent.with_rows(self._state, self._state.last, some)
            self._cache.keep(self._recent)

    def put(self, rows: Rows) -> None:
        """Replace sorted rows; empty ones are removed."""
        layer = _Layer.of(self._state.last, rows)
        self._changed = (self._changed[0].under(layer) if self._changed else layer,)

    def _visible(self) -> RecentRows:
        """What is logged, and what this transaction has changed."""
        return self._recent._replace(layers=self._recent.layers + self._changed)

    def finish(self) -> None:
        """Log what has changed, and write the next range of the log to the buckets."""
        if not self._changed or not len(self._changed[0].rows):
            return
        rows, old = self._changed[0].rows, self._state
        stop = old.last + len(rows)
        whole = len(rows) >= old.capacity // _WHOLE_SHARE or _capacity(self.layout) > old.capacity
        due = self._visible().between(old, old.last, old.last + old.capacity if whole else stop)
        self._write(newest(due))
        if whole:
            capacity = max(old.capacity, _capacity(self.layout))
            state = LogState(capacity, self._delete(stop, stop), stop)
        else:
            self._append(rows)
            state = old._replace(first=self._delete(stop - old.capacity, stop), last=stop)
        self._meta.put(LOG_KEY, state.encode())
        self._changed = ()

    def _write(self, rows: Rows) -> None:
        if len(rows):
            self._buckets.merge(rows, empty_rows(records_of(rows)))

    def _append(self, rows: Rows) -> None:
        for at in range(0, len(rows), _ROWS_A_VALUE):
            key = _START.pack(self._state.last + at)
            self._log.put(key, rows[at : at + _ROWS_A_VALUE].tobytes(), append=True)

    def _delete(self, upto: int, stop: int) -> int:
        """Delete the values that start at or before `upto`; return the start of the first kept."""
        old = []
        for key, _ in self._log.scan():
            if _START.unpack(key)[0] > upto:
                stop = _START.unpack(key)[0]
                break
            old.append(key)
        for key in old:
            self._log.delete(key)
        return stop

    def blocks(self) -> Iterator[Rows]:
        """All rows in order, some ten thousand at a time."""
        return filter(len, self._blocks())

    def _blocks(self) -> Iterator[Rows]:
        blocks, layers = self._buckets.blocks(), self._visible().layers
        if not layers:
            yield from blocks
            return
        logged = newest([layer.rows for layer in layers])
        ids, start = ids_of_rows(logged), 0
        block = next(blocks, logged[:0])
        for later in blocks:
            stop = int(ids.searchsorted(later["id"][0]))
            yield _joined(block, logged[start:stop])
            block, start = later, stop
        yield _joined(block, logged[start:])


def _joined(block: Rows, logged: Rows) -> Rows:
    """A block of rows from buckets with the logged rows of the same ids in it."""
    where = locate(ids_of_rows(block), ids_of_rows(logged))
    return merge_rows(block, where, logged, empty_rows(records_of(logged)))


def _capacity(layout: BucketLayout) -> int:
    """Half of the rows to all of them: a smaller log would be written to buckets more often."""
    return 1 << min(max(layout.rows.bit_length() - 1, LEAST_BITS), MOST_BITS)
