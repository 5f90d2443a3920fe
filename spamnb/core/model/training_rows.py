"""A sheet: the rows of some features and the totals, while events are applied to them.

The one place where the fold is written down, for learning, undoing, replaying and checking alike:

    own ids, c times each:  n[before] -= c, n[after] += c;  T likewise;  N by one
    w[ids of group g] += delta.steps[g];  w[ids of an echo's group g] += echo.steps[g]
    b += delta.bias;  temperatures += delta.temperatures
    bulk: n, w, N, b, temperatures and T += what it says
    V and H follow from the rows as they were and as they are
    day: forward only, where the message came under a label

Cells are float64 because the arithmetic that reads them is, and one gather then serves counts and
corrections; they hold integers below 2^53, so every sum stays exact. `to_records` packs them and
refuses what would leave its range (RefusedError); a count below zero says that the rows were wrong
already (StoreDamagedError). Pure; must not know stores or messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import (
    NO_LABEL,
    BulkChange,
    Event,
    Ids,
    Ints,
    Recipe,
    Records,
    Totals,
    Update,
)
from spamnb.core.model.id_arrays import place
from spamnb.core.model.likelihood.bernoulli import histogram_moved
from spamnb.core.model.scoring import Floats, Opinion, opinion
from spamnb.errors import BugError, RefusedError, StoreDamagedError

Rows = NDArray[np.intp]

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957
"""days from 1970-01-01 to 2000-01-01"""
_U32 = float((1 << 32) - 1)
_I32 = float((1 << 31) - 1)
_SUM = 1 << 62
"""No event brings more than 2^53, so a sum is seen beyond this before it comes round."""


def day_of(time_us: int) -> int:
    """Days since 2000-01-01, held in the range of its 16 bits."""
    return min(max(time_us // _DAY_US - _EPOCH_DAYS, 0), 65_535)


@dataclass(slots=True)
class MessageRows:
    """The rows of one message on a sheet, taken out to be read or changed, group after group."""

    rows: NDArray[np.integer[Any]]
    sizes: tuple[int, ...]
    cells: Floats
    """[2K, m]: n, then w"""


class TrainingRows:
    """Rows and totals of a model, or of the part of it that some events touch."""

    def __init__(self, totals: Totals, ids: Ids, records: Records) -> None:
        self.totals = totals.copy()
        self.ids = ids
        """sorted"""
        self._rows: Rows | None = None
        """where the row of each id is; in the same order if there is none"""
        self._came = ids
        """the ids of the rows that came last"""
        self.day = records.day.copy()
        self._latest = int(self.day.max(initial=0))
        self._cells = _cells_of(records)
        self._strange = ~_filled(self._cells)
        """rows of which nothing was known when they came"""
        self._growing: tuple[_GrowingArray, _GrowingArray, _GrowingArray] | None = None
        self._K = records.n.shape[1]
        self._keeps_histogram = len(totals.histogram) > 0
        self._seen: tuple[MessageRows, Opinion] | None = None
        """the last opinion, until anything changes: it is asked for twice before each step"""

    def add_rows(self, ids: Ids, gather: Callable[[Ids], Records]) -> Rows:
        """The rows of sorted, distinct ids; those that are not on the sheet come by `gather`."""
        at, here = place(self.ids, ids)
        count, new = len(self.ids), (~here).nonzero()[0]
        rows, old = np.empty(len(ids), np.intp), self._rows
        if old is None:
            old = np.arange(count)
        rows[here] = old.take(at[here])
        rows[new] = np.arange(count, count + len(new))
        to = at.take(new) + np.arange(len(new))
        more = ids.take(new)
        self.ids, self._rows = _spread(self.ids, more, to), _spread(old, rows.take(new), to)
        self._came = more
        self._add(gather(more))
        return rows

    def _add(self, records: Records) -> None:
        if self._growing is None:
            self._growing = (
                _GrowingArray(self._cells),
                _GrowingArray(self._strange),
                _GrowingArray(self.day),
            )
        cells, strange, day = self._growing
        more = _cells_of(records)
        self._cells, self._strange = cells.with_more(more), strange.with_more(~_filled(more))
        self.day = day.with_more(records.day)
        self._latest = max(self._latest, int(records.day.max(initial=0)))

    def find(self, groups: tuple[Ids, ...]) -> MessageRows:
        """The lines of a message's ids; all of them must be on the sheet."""
        wanted = np.concatenate(groups) if groups else np.zeros(0, np.uint64)
        rows, here = place(self.ids, wanted)
        if not here.all():
            raise BugError("an event is applied to a sheet that holds all of its features")
        if self._rows is not None:
            rows = self._rows.take(rows)
        return self.lines(rows, tuple(len(ids) for ids in groups))

    def lines(self, rows: NDArray[np.integer[Any]], sizes: tuple[int, ...]) -> MessageRows:
        """The lines at these rows, which are distinct and stand group after group."""
        return MessageRows(rows, sizes, np.ascontiguousarray(self._cells.take(rows, 0).T))

    def put(self, lines: MessageRows) -> None:
        """Write changed lines back, before anything else of the sheet is read."""
        self._cells[lines.rows] = lines.cells.T

    def unknown_ids(self) -> Ids:
        """Of the rows that came last, the ids of which nothing was known."""
        return self._came[self._strange[len(self._strange) - len(self._came) :]]

    def new_ids(self) -> Ids:
        """The ids of which nothing was known when they came, and something is now."""
        new_ids = self._by_id(self._strange & _filled(self._cells))
        return self.ids.take(new_ids.nonzero()[0])

    def _by_id(self, values: NDArray[Any]) -> NDArray[Any]:
        """What stands row by row in the order of the ids."""
        return values if self._rows is None else values.take(self._rows, 0)

    def records_of(self, lines: MessageRows) -> Records:
        """The lines of one message as records."""
        n, w = lines.cells[: self._K], lines.cells[self._K :]
        return Records(n.T.astype(np.uint32), w.T.astype(np.int32), self.day[lines.rows])

    def opinion(self, recipe: Recipe, lines: MessageRows) -> Opinion:
        """What the corrected model thinks of the message now."""
        if self._seen is None or self._seen[0] is not lines:
            self._seen = lines, opinion(recipe, self.totals, lines.cells, lines.sizes)
        return self._seen[1]

    def update(self, lines: MessageRows, steps: Ints) -> None:
        """Add a step to every correction of the message."""
        self._seen = None
        if lines.sizes:
            lines.cells[self._K :] += steps.T.repeat(lines.sizes, axis=1)

    def lean(self, update: Update, sign: int = 1) -> None:
        """Add a push's share of the sums."""
        self._seen = None
        self.totals.bias += sign * update.bias
        self.totals.temperatures += sign * update.temperatures

    def move(
        self,
        lines: MessageRows,
        before: int,
        after: int,
        *,
        times: NDArray[np.uint32] | None = None,
        day: int = 0,
    ) -> None:
        """Take the message from one label to another; NO_LABEL is nowhere."""
        self.count(lines, before, after, times=times)
        if after == NO_LABEL:
            self._drop_days(lines)
        elif day >= self._latest:
            # Nearly always; to look for the later of two days takes five times as long.
            self._latest = day
            self.day[lines.rows] = day
        elif day:
            self.day[lines.rows] = np.maximum(self.day[lines.rows], day)

    def count(
        self,
        lines: MessageRows,
        before: int,
        after: int,
        *,
        times: NDArray[np.uint32] | None = None,
    ) -> None:
        """Move the counts alone: days stay, also of rows that hold nothing for a moment."""
        self._seen = None
        count: NDArray[np.float64] | float = 1.0 if times is None else times.astype(np.float64)
        total = len(lines.rows) if times is None else int(times.sum())
        n = lines.cells[: self._K]
        old = n.copy()
        for label, sign in ((before, -1), (after, 1)):
            if label == NO_LABEL:
                continue
            n[label] += sign * count
            self.totals.messages[label] += sign
            self.totals.tokens[label] += sign * total
        self._recount(old, n)

    def apply(self, event: Event, *, sign: int = 1) -> None:
        """Add an event, or take it away (sign -1)."""
        if event.bulk is not None:
            self._apply_bulk(event.bulk, sign)
        lines = self.find(event.ids)
        # The step before the counts: a row that becomes empty is known to be so by then.
        self.update(lines, sign * event.delta.steps)
        before, after = (event.before, event.after) if sign > 0 else (event.after, event.before)
        if before != after:
            day = day_of(event.time_us) if sign > 0 else 0
            self.move(lines, before, after, times=event.times, day=day)
        self.put(lines)
        self.rehearsal(event.delta, sign)
        self.lean(event.delta, sign)

    def rehearsal(self, update: Update, sign: int = 1) -> None:
        """Add the steps that a push takes on other messages."""
        for rehearsal in update.rehearsals:
            lines = self.find(rehearsal.ids)
            self.update(lines, sign * rehearsal.steps)
            self.put(lines)
            self._drop_days(lines)

    def _apply_bulk(self, bulk: BulkChange, sign: int) -> None:
        self._seen = None
        lines = self.find((bulk.ids,))
        old = lines.cells[: self._K].copy()
        lines.cells += sign * np.concatenate((bulk.n, bulk.w), axis=1, dtype=np.float64).T
        self._recount(old, lines.cells[: self._K])
        self.put(lines)
        self.totals.tokens += sign * bulk.n.sum(axis=0)
        self.totals.messages += sign * bulk.messages
        self.totals.bias += sign * bulk.bias
        self.totals.temperatures += sign * bulk.temperatures
        self.day[lines.rows] = np.maximum(self.day[lines.rows], bulk.days)
        self._latest = max(self._latest, int(bulk.days.max(initial=0)))
        self._drop_days(lines)

    def _drop_days(self, lines: MessageRows) -> None:
        """A row that holds nothing has no day."""
        self.day[lines.rows[~lines.cells.any(axis=0)]] = 0

    def _recount(self, old: Floats, new: Floats) -> None:
        """Let V and H follow rows that change from `old` to `new` counts [K, m]."""
        was, now = np.logical_or.reduce(old), np.logical_or.reduce(new)
        self.totals.known += int(np.count_nonzero(now)) - int(np.count_nonzero(was))
        if self._keeps_histogram:
            moved = histogram_moved(
                self.totals.histogram, old.T.astype(np.uint32), new.T.astype(np.uint32)
            )
            self.totals.histogram = moved if moved.size else np.zeros((self._K, 0), np.int64)

    def to_records(self) -> Records:
        """The rows as the store keeps them, by id; a row that holds nothing has no day."""
        K = self._K
        # Column by column: along rows of four, numpy takes five times as long for each of these.
        columns = np.ascontiguousarray(self._by_id(self._cells).T)
        least = columns.min(axis=1, initial=0).tolist()
        most = columns.max(axis=1, initial=0).tolist()
        if min(least[:K]) < 0 or min(self.totals.messages.tolist()) < 0:
            raise StoreDamagedError(
                "a count falls below zero: the model does not hold what is to be taken from it",
                hint="run `spamnb check`, then restore a backup",
            )
        sums = (self.totals.messages, self.totals.bias, self.totals.temperatures)
        if max(abs(number) for line in sums for number in line.tolist()) > _SUM:
            raise RefusedError("a sum of the model would pass 2^62")
        if max(most[:K]) > _U32:
            raise RefusedError("a feature's count would pass 2^32", hint="let features expire")
        if max(most[K:]) > _I32 or min(least[K:]) < -_I32 - 1:
            raise RefusedError("a feature's correction would leave 2048 nats")
        n, w = columns[:K].T.astype(np.uint32), columns[K:].T.astype(np.int32)
        return Records(n, w, self._by_id(self.day) * np.logical_or.reduce(columns))


def _cells_of(records: Records) -> Floats:
    return np.concatenate((records.n, records.w), axis=1, dtype=np.float64)


def _filled(cells: Floats) -> NDArray[np.bool_]:
    """Which rows hold anything; label by label, for along rows of four it takes thrice as long."""
    filled: NDArray[np.bool_] = reduce(np.logical_or, cells.T)
    return filled


class _GrowingArray:
    """An array with room at its end, so that what comes does not move what is there.

    Bulk training adds to 20 MB of rows two dozen times: to join them anew each time took a tenth of
    the learner's time.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._room = values
        self._count = len(values)

    def with_more(self, values: NDArray[Any]) -> NDArray[Any]:
        """All until now and these: a view, for changes in place."""
        start, self._count = self._count, self._count + len(values)
        if self._count > len(self._room):
            room = np.empty((2 * self._count, *values.shape[1:]), self._room.dtype)
            room[:start] = self._room[:start]
            self._room = room
        self._room[start : self._count] = values
        return self._room[: self._count]


def _spread(old: NDArray[Any], new: NDArray[Any], to: Rows) -> NDArray[Any]:
    """Old values with new ones among them, which come to stand at `to`."""
    every = np.empty(len(old) + len(new), old.dtype)
    others = np.ones(len(every), np.bool_)
    others[to] = False
    every[to] = new
    every[others] = old
    return every
