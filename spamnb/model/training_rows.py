"""Feature rows and totals in memory, while events are applied to them.

The only implementation of applying an event, for learning, undoing, replaying and checking:

    own ids, c times each:  n[before] -= c, n[after] += c;  T likewise;  N by one
    w[ids of group g] += delta.steps[g];  w[ids of a rehearsal's group g] += rehearsal.steps[g]
    b += delta.bias;  temperatures += delta.temperatures
    bulk: n, w, N, b, temperatures and T += the values in it
    V and H follow from the rows before and after
    day: only forward, when a message gets a label
    the corrections of the event's person: see `model.persons`; only where the caller gives them

Cells are float64 because the arithmetic that reads them is, and one gather then serves counts and
corrections; the cells hold integers below 2^53, so every sum stays exact. `to_records` packs them
and refuses numbers out of range (RefusedError); a count below zero means that the stored rows were
already wrong (StoreDamagedError). Pure; must not know stores or messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import BugError, RefusedError, StoreDamagedError
from spamnb.model.bernoulli import histogram_moved
from spamnb.model.events import (
    NO_LABEL,
    Blocks,
    BulkChange,
    Event,
    Ids,
    Ints,
    Recipe,
    Records,
    Totals,
    Update,
    locate,
)
from spamnb.model.persons import PersonalRows
from spamnb.model.scoring import Prediction, predict
from spamnb.model.smoothing import Floats

Rows = NDArray[np.intp]

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957
"""days from 1970-01-01 to 2000-01-01"""
_U32 = float((1 << 32) - 1)
_I32 = float((1 << 31) - 1)
_SUM = 1 << 62
"""An event adds less than 2^53, so a sum above this is noticed before it overflows."""


def day_of(time_us: int) -> int:
    """Days since 2000-01-01, limited to the range of 16 bits."""
    return min(max(time_us // _DAY_US - _EPOCH_DAYS, 0), 65_535)


@dataclass(slots=True)
class MessageRows:
    """A copy of the rows of one message, to be read or changed, group after group."""

    rows: NDArray[np.integer[Any]]
    sizes: tuple[int, ...]
    cells: Floats
    """[2K, m]: n, then w"""


class TrainingRows:
    """Rows and totals of a model, or of the part of it that some events change."""

    def __init__(
        self, totals: Totals, ids: Ids, records: Records, persons: PersonalRows | None = None
    ) -> None:
        self.totals = totals.copy()
        self.persons = persons
        self.ids = ids
        """sorted"""
        self._rows: Rows | None = None
        """the row of each id; None if rows and ids are in the same order"""
        self._added_ids = ids
        """the ids of the rows that were added last"""
        self.day = records.day.copy()
        self._latest = int(self.day.max(initial=0))
        self._cells = _cells_of(records)
        self._was_empty = ~_filled(self._cells)
        """rows that were empty when they were added"""
        self._growing: tuple[_GrowingArray, _GrowingArray, _GrowingArray] | None = None
        self._K = records.n.shape[1]
        self._keeps_histogram = len(totals.histogram) > 0
        self._prediction: tuple[MessageRows, Blocks | None, Prediction] | None = None
        """the last prediction, until anything changes: each step asks for it twice"""

    def add_rows(self, ids: Ids, gather: Callable[[Ids], Records]) -> Rows:
        """The rows of sorted, distinct ids; `gather` reads those that are not here yet."""
        at, here = locate(self.ids, ids)
        count, new = len(self.ids), (~here).nonzero()[0]
        rows, old = np.empty(len(ids), np.intp), self._rows
        if old is None:
            old = np.arange(count)
        rows[here] = old.take(at[here])
        rows[new] = np.arange(count, count + len(new))
        to = at.take(new) + np.arange(len(new))
        more = ids.take(new)
        self.ids, self._rows = _spread(self.ids, more, to), _spread(old, rows.take(new), to)
        self._added_ids = more
        self._add(gather(more))
        return rows

    def _add(self, records: Records) -> None:
        if self._growing is None:
            self._growing = (
                _GrowingArray(self._cells),
                _GrowingArray(self._was_empty),
                _GrowingArray(self.day),
            )
        cells, was_empty, day = self._growing
        more = _cells_of(records)
        self._cells, self._was_empty = cells.with_more(more), was_empty.with_more(~_filled(more))
        self.day = day.with_more(records.day)
        self._latest = max(self._latest, int(records.day.max(initial=0)))

    def find(self, groups: tuple[Ids, ...]) -> MessageRows:
        """The rows of a message's ids; all of them must have been added."""
        wanted = np.concatenate(groups) if groups else np.zeros(0, np.uint64)
        rows, here = locate(self.ids, wanted)
        if not here.all():
            raise BugError("the rows of an event's features were not added")
        if self._rows is not None:
            rows = self._rows.take(rows)
        return self.message_rows(rows, tuple(len(ids) for ids in groups))

    def message_rows(self, rows: NDArray[np.integer[Any]], sizes: tuple[int, ...]) -> MessageRows:
        """The message at these rows, which are distinct and ordered by group."""
        return MessageRows(rows, sizes, np.ascontiguousarray(self._cells.take(rows, 0).T))

    def put(self, message: MessageRows) -> None:
        """Write changed rows back; needed before any other read."""
        self._cells[message.rows] = message.cells.T

    def unknown_ids(self) -> Ids:
        """The ids of the rows that were added last and were empty then."""
        return self._added_ids[self._was_empty[len(self._was_empty) - len(self._added_ids) :]]

    def new_ids(self) -> Ids:
        """The ids of rows that were empty when they were added, and are not empty now."""
        new_ids = self._by_id(self._was_empty & _filled(self._cells))
        return self.ids.take(new_ids.nonzero()[0])

    def _by_id(self, values: NDArray[Any]) -> NDArray[Any]:
        """Reorder values from the order of the rows to the order of the ids."""
        return values if self._rows is None else values.take(self._rows, 0)

    def records_of(self, message: MessageRows) -> Records:
        """The rows of one message as records."""
        n, w = message.cells[: self._K], message.cells[self._K :]
        return Records(n.T.astype(np.uint32), w.T.astype(np.int32), self.day[message.rows])

    def predict(
        self, recipe: Recipe, message: MessageRows, blocks: Blocks | None = None
    ) -> Prediction:
        """The corrected model's result for the message, with the present numbers.

        A caller without blocks needs the experts alone, which are the same with a passage.
        """
        last = self._prediction
        is_same = last is not None and last[0] is message and (blocks is None or last[1] is blocks)
        if last is None or not is_same:
            found = predict(recipe, self.totals, message.cells, message.sizes, blocks)
            self._prediction = last = message, blocks, found
        return last[2]

    def predict_without(self, recipe: Recipe, event: Event) -> Prediction:
        """The result for the message of a live label as if the label had never been given."""
        net = event.net_update
        parts = [event.ids, *(rehearsal.ids for rehearsal in net.rehearsals)]
        found = [self.find(ids).rows for ids in parts]
        rows = np.concatenate(found)
        totals, cells, day = self.totals, self._cells[rows], self.day[rows]
        self.totals = totals.copy()
        self.take_out(event)
        message = self.find(event.ids)
        seen = predict(recipe, self.totals, message.cells, message.sizes)
        self.totals, self._prediction = totals, None
        self._cells[rows], self.day[rows] = cells, day
        return seen

    def take_out(self, event: Event) -> None:
        """Subtract what a live label contributes to the shared model."""
        net, message = event.net_update, self.find(event.counted_ids)
        self.update(message, -net.steps)
        self.count(message, event.after, NO_LABEL, times=event.times)
        self.put(message)
        self.apply_rehearsals(net, -1)
        self.add_to_totals(net, -1)

    def update(self, message: MessageRows, steps: Ints) -> None:
        """Add a step to every correction of the message."""
        self._prediction = None
        if message.sizes:
            message.cells[self._K :] += steps.T.repeat(message.sizes, axis=1)

    def add_to_totals(self, update: Update, sign: int = 1) -> None:
        """Add an update's bias and temperatures to the totals."""
        self._prediction = None
        self.totals.bias += sign * update.bias
        self.totals.temperatures += sign * update.temperatures

    def move(
        self,
        message: MessageRows,
        before: int,
        after: int,
        *,
        times: NDArray[np.uint32] | None = None,
        day: int = 0,
    ) -> None:
        """Move the message from one label to another; NO_LABEL stands for no label."""
        self.count(message, before, after, times=times)
        if after == NO_LABEL:
            self._drop_days(message)
        elif day >= self._latest:
            # The usual case; comparing the days row by row takes five times as long.
            self._latest = day
            self.day[message.rows] = day
        elif day:
            self.day[message.rows] = np.maximum(self.day[message.rows], day)

    def count(
        self,
        message: MessageRows,
        before: int,
        after: int,
        *,
        times: NDArray[np.uint32] | None = None,
    ) -> None:
        """Move only the counts: days stay, also those of rows that are empty for a moment."""
        self._prediction = None
        count: NDArray[np.float64] | float = 1.0 if times is None else times.astype(np.float64)
        total = len(message.rows) if times is None else int(times.sum())
        n = message.cells[: self._K]
        old = n.copy()
        for label, sign in ((before, -1), (after, 1)):
            if label == NO_LABEL:
                continue
            n[label] += sign * count
            self.totals.messages[label] += sign
            self.totals.tokens[label] += sign * total
        self._recount(old, n)

    def apply(self, event: Event, *, sign: int = 1) -> None:
        """Add an event, or subtract it (sign -1)."""
        if event.bulk is not None and not event.person:
            self._apply_bulk(event.bulk, sign)
        message = self.find(event.counted_ids)
        # The step comes before the counts, so that empty rows are seen to be empty after both.
        self.update(message, sign * event.delta.steps)
        before, after = (event.before, event.after) if sign > 0 else (event.after, event.before)
        if before != after:
            day = day_of(event.time_us) if sign > 0 else 0
            self.move(message, before, after, times=event.times, day=day)
        self.put(message)
        self.apply_rehearsals(event.delta, sign)
        self.add_to_totals(event.delta, sign)
        if self.persons is not None:
            self.persons.apply(event, sign=sign)

    def apply_rehearsals(self, update: Update, sign: int = 1) -> None:
        """Add an update's steps on other messages."""
        for rehearsal in update.rehearsals:
            message = self.find(rehearsal.ids)
            self.update(message, sign * rehearsal.steps)
            self.put(message)
            self._drop_days(message)

    def _apply_bulk(self, bulk: BulkChange, sign: int) -> None:
        self._prediction = None
        message = self.find((bulk.ids,))
        old = message.cells[: self._K].copy()
        message.cells += sign * np.concatenate((bulk.n, bulk.w), axis=1, dtype=np.float64).T
        self._recount(old, message.cells[: self._K])
        self.put(message)
        self.totals.tokens += sign * bulk.n.sum(axis=0)
        self.totals.messages += sign * bulk.messages
        self.totals.bias += sign * bulk.bias
        self.totals.temperatures += sign * bulk.temperatures
        self.day[message.rows] = np.maximum(self.day[message.rows], bulk.days)
        self._latest = max(self._latest, int(bulk.days.max(initial=0)))
        self._drop_days(message)

    def _drop_days(self, message: MessageRows) -> None:
        """Reset the day of empty rows."""
        self.day[message.rows[~message.cells.any(axis=0)]] = 0

    def _recount(self, old: Floats, new: Floats) -> None:
        """Update V and H for rows that change from `old` to `new` counts [K, m]."""
        was, now = np.logical_or.reduce(old), np.logical_or.reduce(new)
        self.totals.known += int(np.count_nonzero(now)) - int(np.count_nonzero(was))
        if self._keeps_histogram:
            moved = histogram_moved(
                self.totals.histogram, old.T.astype(np.uint32), new.T.astype(np.uint32)
            )
            self.totals.histogram = moved if moved.size else np.zeros((self._K, 0), np.int64)

    def to_records(self) -> Records:
        """The rows in stored form, by id; an empty row has no day."""
        K = self._K
        # Column by column: along rows of four, numpy takes five times as long for each of these.
        columns = np.ascontiguousarray(self._by_id(self._cells).T)
        least = columns.min(axis=1, initial=0).tolist()
        most = columns.max(axis=1, initial=0).tolist()
        if min(least[:K]) < 0 or min(self.totals.messages.tolist()) < 0:
            raise StoreDamagedError(
                "a count would fall below zero: the model does not contain what is removed",
                hint="run `spamnb check`, then restore a backup",
            )
        sums = (self.totals.messages, self.totals.bias, self.totals.temperatures)
        if max(abs(number) for line in sums for number in line.ravel().tolist()) > _SUM:
            raise RefusedError("a sum of the model would exceed 2^62")
        if max(most[:K]) > _U32:
            raise RefusedError("a feature's count would exceed 2^32", hint="run `spamnb expire`")
        if max(most[K:]) > _I32 or min(least[K:]) < -_I32 - 1:
            raise RefusedError("a feature's correction would exceed 2048 nats")
        n, w = columns[:K].T.astype(np.uint32), columns[K:].T.astype(np.int32)
        return Records(n, w, self._by_id(self.day) * np.logical_or.reduce(columns))


def _cells_of(records: Records) -> Floats:
    return np.concatenate((records.n, records.w), axis=1, dtype=np.float64)


def _filled(cells: Floats) -> NDArray[np.bool_]:
    """Which rows are not empty; label by label: along rows of four it takes three times as long."""
    filled: NDArray[np.bool_] = reduce(np.logical_or, cells.T)
    return filled


class _GrowingArray:
    """An array with spare capacity, so that appending does not move what is there.

    Bulk training appends to 20 MB of rows two dozen times: joining them each time took a tenth of
    the learner's time.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._room = values
        self._count = len(values)

    def with_more(self, values: NDArray[Any]) -> NDArray[Any]:
        """Append values; returns a view of the whole array, which may be changed in place."""
        start, self._count = self._count, self._count + len(values)
        if self._count > len(self._room):
            room = np.empty((2 * self._count, *values.shape[1:]), self._room.dtype)
            room[:start] = self._room[:start]
            self._room = room
        self._room[start : self._count] = values
        return self._room[: self._count]


def _spread(old: NDArray[Any], new: NDArray[Any], to: Rows) -> NDArray[Any]:
    """Insert new values among old ones, at the positions `to` of the result."""
    every = np.empty(len(old) + len(new), old.dtype)
    others = np.ones(len(every), np.bool_)
    others[to] = False
    every[to] = new
    every[others] = old
    return every
