"""Applying an event to counts and sums: the one place where the fold is written down. Pure.

    own ids, c times each:   n[before] -= c, n[after] += c;  T likewise
    N[before] -= 1, N[after] += 1
    w[ids of group g] += delta.steps[g];  w[ids of an echo's group g] += echo.steps[g]
    b += delta.bias;  tempers += delta.tempers
    bulk: n, w, N, b, tempers and T += what it says
    V and H follow from the rows as they were and as they are
    day: forward only, where the message came under a label (a row that holds nothing has day 0)

All sums are exact integers; a number that leaves its range refuses the event (RefusedError) before
anything is changed, and a count below zero says that the store was wrong already
(StoreDamagedError). Nothing saturates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamnb.core.event import NO_LABEL, Event, Ids, Ints, Recipe, Records, Totals, no_totals
from spamnb.errors import BugError, RefusedError, StoreDamagedError

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957
"""days from 1970-01-01 to 2000-01-01"""
_U32 = (1 << 32) - 1
_I32 = (1 << 31) - 1


def day_of(time_us: int) -> int:
    """Days since 2000-01-01, held in the range of its 16 bits."""
    return min(max(time_us // _DAY_US - _EPOCH_DAYS, 0), 65_535)


def first_totals(recipe: Recipe) -> Totals:
    """The totals of a new model; a Bernoulli model's histogram has a row for each label."""
    totals = no_totals(recipe.groups, len(recipe.labels))
    if recipe.kind == "bernoulli":
        totals.histogram = np.zeros((len(recipe.labels), 0), np.int64)
    return totals


def event_ids(event: Event) -> Ids:
    """Every feature that applying the event touches: its own, its echoes', its bulk's."""
    sets = [*event.ids]
    for echo in event.delta.echoes:
        sets += echo.ids
    if event.bulk is not None:
        sets.append(event.bulk.ids)
    if not sets:
        return np.zeros(0, np.uint64)
    return sets[0] if len(sets) == 1 else np.unique(np.concatenate(sets))


def apply_event(event: Event, totals: Totals, ids: Ids, records: Records, *, sign: int = 1) -> None:
    """Add an event to totals and records, or take it away (sign -1); `ids` holds all of its ids.

    Changes its arguments, all of them or, if it raises, none.
    """
    touched = event_ids(event)
    at = np.searchsorted(ids, touched)
    if len(touched) and (len(ids) == 0 or (ids[np.minimum(at, len(ids) - 1)] != touched).any()):
        raise BugError("an event is applied to records that hold all of its features")
    old = records.n[at].astype(np.int64)
    n, w, day = old.copy(), records.w[at].astype(np.int64), records.day[at].copy()
    sums = totals.copy()
    _own(event, sums, touched, (n, day), sign)
    _pushes(event, sums, touched, w, sign)
    if event.bulk is not None:
        _bulk(event, sums, touched, (n, w, day), sign)
    _check(sums, n, w)
    day[~(n.any(axis=1) | w.any(axis=1))] = 0
    sums.tokens += (n - old).sum(axis=0)
    recount(sums, old, n)
    records.n[at], records.w[at], records.day[at] = n, w, day
    _assign(totals, sums)


def recount(totals: Totals, old: Ints, new: Ints) -> None:
    """Let V and H follow rows that change from `old` to `new` counts [F, K]."""
    was, is_ = old.any(axis=1), new.any(axis=1)
    totals.known += int(np.count_nonzero(is_)) - int(np.count_nonzero(was))
    if len(totals.histogram) == 0:
        return
    wide = max(totals.histogram.shape[1], int(max(old.max(initial=0), new.max(initial=0))) + 1)
    table = np.zeros((len(totals.histogram), wide), np.int64)
    table[:, : totals.histogram.shape[1]] = totals.histogram
    for label in range(len(table)):
        table[label] -= np.bincount(old[was, label], minlength=wide)
        table[label] += np.bincount(new[is_, label], minlength=wide)
    if (table < 0).any():
        raise StoreDamagedError("a number of features falls below zero")
    used = np.flatnonzero(table.any(axis=0))
    totals.histogram = table[:, : int(used[-1]) + 1 if len(used) else 0].copy()


def _own(
    event: Event, sums: Totals, touched: Ids, rows: tuple[Ints, NDArray[np.uint16]], sign: int
) -> None:
    n, day = rows
    if event.before == event.after == NO_LABEL:
        return
    today = day_of(event.time_us)
    start = 0
    for group in event.ids:
        at = np.searchsorted(touched, group)
        count: Ints | int = 1
        if event.times is not None:
            count = event.times[start : start + len(group)].astype(np.int64)
        start += len(group)
        if event.before >= 0:
            n[at, event.before] -= sign * count
        if event.after >= 0:
            n[at, event.after] += sign * count
            if sign > 0:
                day[at] = np.maximum(day[at], today)
    if event.before >= 0:
        sums.messages[event.before] -= sign
    if event.after >= 0:
        sums.messages[event.after] += sign


def _pushes(event: Event, sums: Totals, touched: Ids, w: Ints, sign: int) -> None:
    push = event.delta
    for ids, steps in ((event.ids, push.steps), *((e.ids, e.steps) for e in push.echoes)):
        for group, step in zip(ids, steps, strict=False):
            if step.any():
                w[np.searchsorted(touched, group)] += sign * step
    sums.bias += sign * push.bias
    sums.tempers += sign * push.tempers


def _bulk(
    event: Event, sums: Totals, touched: Ids, rows: tuple[Ints, Ints, NDArray[np.uint16]], sign: int
) -> None:
    bulk, (n, w, day) = event.bulk, rows
    if bulk is None:
        return
    at = np.searchsorted(touched, bulk.ids)
    n[at] += sign * bulk.n
    w[at] += sign * bulk.w
    day[at] = np.maximum(day[at], bulk.days)
    sums.messages += sign * bulk.messages
    sums.bias += sign * bulk.bias
    sums.tempers += sign * bulk.tempers


def _check(sums: Totals, n: Ints, w: Ints) -> None:
    if n.min(initial=0) < 0 or sums.messages.min(initial=0) < 0:
        raise StoreDamagedError(
            "a count falls below zero: the model does not hold what is to be taken from it",
            hint="compare the model with its journal (check), then restore or relearn",
        )
    if n.max(initial=0) > _U32:
        raise RefusedError("a feature's count would pass 2^32", hint="let features expire")
    if w.max(initial=0) > _I32 or w.min(initial=0) < -_I32 - 1:
        raise RefusedError("a feature's correction would leave 2048 nats")


def _assign(totals: Totals, sums: Totals) -> None:
    totals.messages, totals.tokens = sums.messages, sums.tokens
    totals.bias, totals.tempers = sums.bias, sums.tempers
    totals.known, totals.histogram = sums.known, sums.histogram
