"""Letting go of what is too old: undo of old trainings, words nobody uses, verdicts of last month.

Three steps, each in small transactions, so that others keep reading and nobody waits long for the
writer: events older than `keep_days` fold into the checkpoint; features not taught for `after_days`
and held by few messages go, unless a kept event names them (its undo must find them); the history
forgets by its own rules. Dropping is an event like any other and can be undone; the texts of the
features cannot be brought back.

`now_us` is the time by which things expire (`expiry_clock`): what goes cannot be brought back.
Stopped at any moment, what was done stays done and the rest is found again. Must not know settings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from spamnb.core.model.costs import Costs
from spamnb.core.model.events import BulkChange, Ids
from spamnb.core.model.training_rows import day_of
from spamnb.service.engine.learner import Learner
from spamnb.service.engine.requests import BulkLoad, Source
from spamnb.store.apply_events import named_ids, surely_older
from spamnb.store.check import named, stale
from spamnb.store.contract import Store, WriteView
from spamnb.store.history.verdict_history import History

DAY_US = 86_400_000_000
FOLDED_AT_ONCE = 256
DROPPED_AT_ONCE = 4096
"""Some 20 ms of the writer's time."""


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """What is too old."""

    keep_days: int
    """events"""
    after_days: int
    """features"""
    max_messages: int


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """What went."""

    events_folded: int
    features_dropped: int
    verdicts_forgotten: int

    def as_dict(self) -> dict[str, int]:
        """For programs."""
        return asdict(self)


def newest_us(store: Store) -> int:
    """The time of the newest event; 0 if there is none."""
    with store.read() as view:
        return next((event.time_us for event in view.events(newest_first=True)), 0)


def expire(
    store: Store, history: History | None, rules: ExpiryRules, *, now_us: int, source: Source
) -> ExpiryResult:
    """Let go of everything that is too old by these rules."""
    folded = fold(store, now_us - rules.keep_days * DAY_US, now_us)
    before_day = day_of(now_us - rules.after_days * DAY_US)
    dropped = drop(store, before_day, rules.max_messages, now_us=now_us, source=source)
    return ExpiryResult(folded, dropped, history.expire(now_us) if history else 0)


def fold(store: Store, before_us: int, now_us: int) -> int:
    """Move events that are surely older than that into the checkpoint; how many."""

    def some(view: WriteView) -> int:
        times = [event.time_us for event in islice(view.events(), FOLDED_AT_ONCE)]
        count = surely_older(times, before_us, now_us)
        return view.fold(before_us, count) if count else 0

    done = 0
    while count := store.transact(some):
        done += count
    return done


class _Left(NamedTuple):
    """Where dropping stands after a transaction."""

    ids: Ids
    """still to be dropped"""
    seq: int
    """no kept event up to this one names any of them"""
    dropped: int


def drop(store: Store, before_day: int, max_messages: int, *, now_us: int, source: Source) -> int:
    """Drop the features last learnt before a day and held by few; how many."""
    learner = Learner(store.recipe, Costs())
    with store.read() as view:
        blocks = list(stale(view, before_day, max_messages))
        ids = np.concatenate(blocks) if blocks else np.zeros(0, np.uint64)
        left = _Left(ids[~named(view, ids)], view.totals().last_seq, 0)

    def some(view: WriteView) -> _Left:
        ids = _unnamed(view, left.ids, left.seq + 1)
        bulk = _bulk(view, ids[:DROPPED_AT_ONCE], before_day, max_messages)
        if len(bulk.ids):
            learner.run(view, [BulkLoad(bulk, True, source, now_us)])
        seq = view.totals().last_seq
        return _Left(ids[DROPPED_AT_ONCE:], seq, left.dropped + len(bulk.ids))

    while len(left.ids):
        left = store.transact(some)
    return left.dropped


def _unnamed(view: WriteView, ids: Ids, start: int) -> Ids:
    """Leave out what others have taught since the last look."""
    for event in view.events(start):
        ids = ids[~np.isin(ids, named_ids(event))]
    return ids


def _bulk(view: WriteView, ids: Ids, before_day: int, max_messages: int) -> BulkChange:
    """Build the change that empties these rows as they are now; undone, it fills them again."""
    records = view.gather(ids)
    few = records.n.sum(axis=1, dtype=np.uint64) <= max_messages
    full = records.n.any(axis=1) | records.w.any(axis=1)
    some = (records.day < before_day) & few & full
    labels, groups = records.n.shape[1], len(view.totals().temperatures)
    return BulkChange(
        ids=ids[some],
        n=-records.n[some].astype(np.int64),
        w=-records.w[some].astype(np.int64),
        messages=np.zeros(labels, np.int64),
        bias=np.zeros(labels, np.int64),
        temperatures=np.zeros(groups, np.int64),
        days=records.day[some],
    )
