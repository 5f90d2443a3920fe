"""Expire old data: journal events, rare features and history entries.

Four steps, in small transactions, so that other processes read meanwhile and wait only briefly to
write: events older than `keep_days` are folded into the checkpoint; features not learnt for
`after_days` and contained in few messages are dropped, unless a journal event names them (its undo
needs them); the corrections and lists of senders of persons whom no journal event names, and who
changed no list for as long, are dropped; the history expires by its own limits. Dropping features
is an event and can be undone, but without the features' texts.

`now_us` is the time from `home_files.expiry_mark`, because expired data cannot be restored. If the
run is stopped, finished transactions stay and the next run continues. Must not know settings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from spamnb.engine.learner import Learner
from spamnb.engine.values import BulkLoad, Source
from spamnb.model.costs import Costs
from spamnb.model.events import BulkChange, Ids
from spamnb.model.training_rows import day_of
from spamnb.policy.senders import ListOwner, SenderList, owner_id
from spamnb.records.verdicts import History
from spamnb.store.journal import named_ids, surely_older
from spamnb.store.maintenance import named, stale
from spamnb.store.table_views import ReadView, Store, WriteView

DAY_US = 86_400_000_000
FOLDED_AT_ONCE = 256
DROPPED_AT_ONCE = 4096
"""one transaction blocks other writers for about 20 ms"""


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """Which data expires."""

    keep_days: int
    """days after which events are folded"""
    after_days: int
    """days after which rare features are dropped"""
    max_messages: int
    """features in more messages than this are kept"""


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """Result of an expiry run."""

    events_folded: int
    features_dropped: int
    verdicts_forgotten: int
    persons_dropped: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers; that of persons only if there is one."""
        found: dict[str, int] = asdict(self)
        return {name: n for name, n in found.items() if n or name != "persons_dropped"}


def newest_us(store: Store) -> int:
    """Return the time of the newest event; 0 if there is none."""
    with store.read() as view:
        return next((event.time_us for event in view.events(newest_first=True)), 0)


def expire(
    store: Store, history: History | None, rules: ExpiryRules, *, now_us: int, source: Source
) -> ExpiryResult:
    """Fold events, drop features and expire the history by these rules."""
    folded = fold(store, now_us - rules.keep_days * DAY_US, now_us)
    before_day = day_of(now_us - rules.after_days * DAY_US)
    dropped = drop(store, before_day, rules.max_messages, now_us=now_us, source=source)
    silent = drop_silent(store, now_us - rules.keep_days * DAY_US)
    return ExpiryResult(folded, dropped, history.expire(now_us) if history else 0, silent)


def fold(store: Store, before_us: int, now_us: int) -> int:
    """Fold events certainly older than `before_us` into the checkpoint; return how many."""

    def some(view: WriteView) -> int:
        times = [event.time_us for event in islice(view.events(), FOLDED_AT_ONCE)]
        count = surely_older(times, before_us, now_us)
        return view.fold(before_us, count) if count else 0

    done = 0
    while count := store.transact(some):
        done += count
    return done


def drop_silent(store: Store, before_us: int) -> int:
    """Drop persons whose labels are all in the checkpoint; return how many.

    A change of the person's list of senders since `before_us` keeps them. The labels stay in the
    shared model.
    """
    with store.read() as view:
        silent = {person for person, _ in view.persons()} | persons_with_lists(view).keys()
        if silent:
            silent -= {event.person for event in view.events()}
        seq = view.totals().last_seq

    def some(view: WriteView) -> int:
        lists = persons_with_lists(view)
        gone = silent - {event.person for event in view.events(seq + 1)}
        gone -= {one for one, senders in lists.items() if senders.last_us >= before_us}
        if gone:
            view.drop_persons(gone)
        for person in gone & lists.keys():
            view.put_senders(ListOwner("person", id=person).key, None)
        return len(gone)

    return store.transact(some) if silent else 0


def persons_with_lists(view: ReadView) -> dict[int, SenderList]:
    """Return the lists of senders of persons, by their ids."""
    lists = view.sender_lists()
    return {owner_id(key): one for key, one in lists if one.kind == "person"}


class _Left(NamedTuple):
    """The state of dropping after a transaction."""

    ids: Ids
    """still to be dropped"""
    seq: int
    """no journal event up to this one names any of them"""
    dropped: int


def drop(store: Store, before_day: int, max_messages: int, *, now_us: int, source: Source) -> int:
    """Drop the features last learnt before a day and in few messages; return how many."""
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
    """Remove the features that events from `start` on name."""
    for event in view.events(start):
        ids = ids[~np.isin(ids, named_ids(event))]
    return ids


def _bulk(view: WriteView, ids: Ids, before_day: int, max_messages: int) -> BulkChange:
    """Return the change that sets these rows to zero; undoing it restores them."""
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
        bias=np.zeros((groups, labels), np.int64),
        temperatures=np.zeros(groups, np.int64),
        days=records.day[some],
    )
