"""A sheet: the rows of some features and the totals, while events are applied to them.

The one place where the fold is written down, for learning, undoing, replaying and checking alike:

    own ids, c times each:   n[before] -= c, n[after] += c;  T likewise;  N[before] -= 1, N[after] += 1
    w[ids of group g] += delta.steps[g];  w[ids of an echo's group g] += echo.steps[g]
    b += delta.bias;  tempers += delta.tempers
    bulk: n, w, N, b, tempers and T += what it says
    V and H follow from the rows as they were and as they are
    day: forward only, where the message came under a label

Cells are float64 because the arithmetic that reads them is, and one gather then serves counts and
corrections; they hold integers below 2^53, so every sum stays exact. `settled` turns them back and
refuses what would leave its range (RefusedError); a count below zero says that the rows were wrong
already (StoreDamagedError). Pure; must not know stores or messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spamnb.core.event import NO_LABEL, Bulk, Event, Ids, Ints, Push, Recipe, Records, Totals
from spamnb.core.model import Floats, Opinion, opinion
from spamnb.errors import BugError, RefusedError, StoreDamagedError

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957
"""days from 1970-01-01 to 2000-01-01"""
_U32 = float((1 << 32) - 1)
_I32 = float((1 << 31) - 1)


def day_of(time_us: int) -> int:
    """Days since 2000-01-01, held in the range of its 16 bits."""
    return min(max(time_us // _DAY_US - _EPOCH_DAYS, 0), 65_535)


@dataclass(slots=True)
class Lines:
    """The rows of one message on a sheet, taken out to be read or changed, group after group."""

    rows: NDArray[np.int64]
    sizes: tuple[int, ...]
    cells: Floats
    """[m, 2K]: n, then w"""


class Sheet:
    """Rows and totals of a model, or of the part of it that some events touch."""

    def __init__(self, recipe: Recipe, totals: Totals, ids: Ids, records: Records) -> None:
        self.recipe = recipe
        self.totals = totals.copy()
        self.ids = ids
        self.day = records.day.copy()
        self._cells = np.concatenate((records.n, records.w), axis=1, dtype=np.float64)
        self._K = len(recipe.labels)
        self._counts_holders = recipe.kind == "bernoulli"

    def find(self, groups: tuple[Ids, ...]) -> Lines:
        """The lines of a message's ids; all of them must be on the sheet."""
        wanted = groups[0] if len(groups) == 1 else np.concatenate(groups)
        rows = np.searchsorted(self.ids, wanted)
        if len(wanted) and (
            not len(self.ids) or (self.ids[np.minimum(rows, len(self.ids) - 1)] != wanted).any()
        ):
            raise BugError("an event is applied to a sheet that holds all of its features")
        return self.lines(rows, tuple(len(ids) for ids in groups))

    def lines(self, rows: NDArray[np.int64], sizes: tuple[int, ...]) -> Lines:
        """The lines at these rows, which are distinct and stand group after group."""
        return Lines(rows, sizes, self._cells[rows])

    def unknown(self) -> Ids:
        """The ids that nothing is known of."""
        return self.ids[~self._cells.any(axis=1)]

    def records_of(self, lines: Lines) -> Records:
        """The lines of one message as records."""
        n, w = lines.cells[:, : self._K], lines.cells[:, self._K :]
        return Records(n.astype(np.uint32), w.astype(np.int32), self.day[lines.rows])

    def opinion(self, lines: Lines) -> Opinion:
        """What the corrected model thinks of the message now."""
        return opinion(self.recipe, self.totals, lines.cells, lines.sizes)

    def push(self, lines: Lines, steps: Ints) -> None:
        """Add a step to every correction of the message."""
        lines.cells[:, self._K :] += np.repeat(steps, lines.sizes, axis=0)
        self._cells[lines.rows] = lines.cells

    def lean(self, push: Push, sign: int = 1) -> None:
        """Add a push's share of the sums."""
        self.totals.bias += sign * push.bias
        self.totals.tempers += sign * push.tempers

    def move(
        self,
        lines: Lines,
        before: int,
        after: int,
        *,
        times: NDArray[np.uint32] | None = None,
        day: int = 0,
    ) -> None:
        """Take the message from one label to another; NO_LABEL is nowhere."""
        count: NDArray[np.float64] | float = 1.0 if times is None else times.astype(np.float64)
        total = len(lines.rows) if times is None else int(times.sum())
        n = lines.cells[:, : self._K]
        old = n.copy()
        for label, sign in ((before, -1), (after, 1)):
            if label == NO_LABEL:
                continue
            n[:, label] += sign * count
            self.totals.messages[label] += sign
            self.totals.tokens[label] += sign * total
        self._recount(old, n)
        self._cells[lines.rows] = lines.cells
        if after != NO_LABEL and day:
            self.day[lines.rows] = np.maximum(self.day[lines.rows], day)

    def apply(self, event: Event, *, sign: int = 1) -> None:
        """Add an event, or take it away (sign -1)."""
        if event.bulk is not None:
            self._apply_bulk(event.bulk, sign)
        lines = self.find(event.ids)
        before, after = (event.before, event.after) if sign > 0 else (event.after, event.before)
        if before != after:
            day = day_of(event.time_us) if sign > 0 else 0
            self.move(lines, before, after, times=event.times, day=day)
        if event.delta.steps.any():
            self.push(lines, sign * event.delta.steps)
        for echo in event.delta.echoes:
            self.push(self.find(echo.ids), sign * echo.steps)
        self.lean(event.delta, sign)

    def _apply_bulk(self, bulk: Bulk, sign: int) -> None:
        lines = self.find((bulk.ids,))
        old = lines.cells[:, : self._K].copy()
        lines.cells += sign * np.concatenate((bulk.n, bulk.w), axis=1, dtype=np.float64)
        self._recount(old, lines.cells[:, : self._K])
        self._cells[lines.rows] = lines.cells
        self.totals.tokens += sign * bulk.n.sum(axis=0)
        self.totals.messages += sign * bulk.messages
        self.totals.bias += sign * bulk.bias
        self.totals.tempers += sign * bulk.tempers
        self.day[lines.rows] = np.maximum(self.day[lines.rows], bulk.days)

    def _recount(self, old: Floats, new: Floats) -> None:
        """Let V and H follow rows that change from `old` to `new` counts."""
        was, now = old.any(axis=1), new.any(axis=1)
        self.totals.known += int(np.count_nonzero(now)) - int(np.count_nonzero(was))
        if self._counts_holders:
            self.totals.histogram = _moved(self.totals.histogram, old[was], new[now], self._K)

    def settled(self) -> Records:
        """The rows as the store keeps them; a row that holds nothing has no day."""
        n, w = self._cells[:, : self._K], self._cells[:, self._K :]
        if n.min(initial=0) < 0 or self.totals.messages.min(initial=0) < 0:
            raise StoreDamagedError(
                "a count falls below zero: the model does not hold what is to be taken from it",
                hint="run `spamnb check`, then restore a backup",
            )
        if n.max(initial=0) > _U32:
            raise RefusedError("a feature's count would pass 2^32", hint="let features expire")
        if w.max(initial=0) > _I32 or w.min(initial=0) < -_I32 - 1:
            raise RefusedError("a feature's correction would leave 2048 nats")
        self.day[~self._cells.any(axis=1)] = 0
        return Records(n.astype(np.uint32), w.astype(np.int32), self.day)


def _moved(histogram: Ints, old: Floats, new: Floats, labels: int) -> Ints:
    """H[k, c], the number of known features with count c, after these rows changed."""
    most = int(max(old.max(initial=0), new.max(initial=0))) + 1
    table = np.zeros((labels, max(histogram.shape[-1], most)), np.int64)
    if histogram.size:
        table[:, : histogram.shape[1]] = histogram
    for label, line in enumerate(table):
        line -= np.bincount(old[:, label].astype(np.int64), minlength=len(line))
        line += np.bincount(new[:, label].astype(np.int64), minlength=len(line))
    if (table < 0).any():
        raise StoreDamagedError("a number of features falls below zero")
    used = np.flatnonzero(table.any(axis=0))
    return table[:, : int(used[-1]) + 1 if len(used) else 0].copy()
