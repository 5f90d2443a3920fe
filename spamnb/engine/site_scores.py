"""The counts of scores in the store: rows of the model that no message has.

Each step of the scores has two rows: the messages that a person labelled, and those without an
answer. Their `n` counts ham and spam. The event SCORES changes them, so undoing, rewinding, fleets,
exports and checks need nothing of their own for them.

Every host of a fleet counts its own verdicts. It adds to the sums, from which all hosts derive one
threshold, and to rows under its own name, which say what it has added before.

A training from sorted mail stores the scores of this mail by cross-validation in rows of their own
(`TRAINED`); they are no part of the sums, because they count only until there are verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.engine.values import BulkLoad, Source
from spamnb.model.costs import Costs, thresholds
from spamnb.model.events import BulkChange, Event, EventKind, Ids, Ints, Recipe
from spamnb.model.features import Key, ids_of
from spamnb.model.tokens import TokenLocation
from spamnb.model.training_rows import day_of
from spamnb.model.verdict import (
    BINS,
    NO_SCORES,
    SHIPPED,
    ScoreCounts,
    bin_of,
    counted_ham,
    score_below,
    site_threshold,
)
from spamnb.store.table_views import ReadView

ALL: Final = ""
"""the owner of the sums"""
TRAINED: Final = "the training"
"""the owner of the scores that a training found; no host can have this name"""
CHANNEL: Final = "scores"
_PARTS: Final = ("said", "silent")


class _ScoreRows(NamedTuple):
    ids: Ids
    """sorted"""
    order: NDArray[np.intp]
    """[part * BINS + step] the row of each"""


@lru_cache(maxsize=64)
def _rows(secret: bytes, *owners: str) -> _ScoreRows:
    texts = [
        f"scores {owner} {part} {step}".encode()
        for owner in owners
        for part in _PARTS
        for step in range(BINS)
    ]
    ids = ids_of(Key(secret), [(TokenLocation.MARK, b"", text) for text in texts])
    by_id = ids.argsort()
    order = np.empty(len(ids), np.intp)
    order[by_id] = np.arange(len(ids))
    return _ScoreRows(ids[by_id], order)


def has_threshold(recipe: Recipe) -> bool:
    """Return whether models of this recipe can have a threshold of the site."""
    is_mail = recipe.kind == "corrected" and not recipe.documents
    return is_mail and set(recipe.labels) == {"ham", "spam"}


def read_counts(view: ReadView, recipe: Recipe, owner: str = ALL) -> ScoreCounts:
    """Return the counts of one host, or of all together."""
    return _counts(_numbers(view, recipe, owner))


def _numbers(view: ReadView, recipe: Recipe, *owners: str) -> NDArray[np.uint32]:
    rows = _rows(recipe.key, *owners)
    return view.gather(rows.ids).n.take(rows.order, axis=0)


def _counts(n: NDArray[np.integer[Any]]) -> ScoreCounts:
    (ham, spam), (kept, filed) = (part.T.tolist() for part in n.reshape(len(_PARTS), BINS, 2))
    return ScoreCounts(*map(tuple, (ham, spam, kept, filed)))


def threshold_of(
    view: ReadView, recipe: Recipe, one_in: int, change: ScoreCounts = NO_SCORES
) -> float:
    """Return the junk threshold of the site in nats; the shipped one if `one_in` is 0.

    `change` is added to the counts in the store.
    """
    if not one_in or not has_threshold(recipe):
        return SHIPPED
    taught = min(view.totals().messages.tolist())
    # Most models without taught messages have no counts either.
    if not taught:
        return SHIPPED
    return _threshold(_numbers(view, recipe, ALL, TRAINED).tobytes(), change, taught, one_in)


@lru_cache(maxsize=64)
def _threshold(numbers: bytes, change: ScoreCounts, taught: int, one_in: int) -> float:
    """The counts change once a day, and every message needs the threshold."""
    counts, trained = map(_counts, np.split(np.frombuffer(numbers, np.uint32), 2))
    return site_threshold(counts.plus(change), taught, one_in, trained)


def scores_load(
    view: ReadView, recipe: Recipe, owner: str, counts: ScoreCounts, time_us: int
) -> BulkLoad | None:
    """Return the request that makes these the counts of an owner; None if they are already."""
    change = counts.minus(read_counts(view, recipe, owner))
    if change == NO_SCORES:
        return None
    ids, n = _changes(recipe, owner, change)
    labels = len(recipe.labels)
    bulk = BulkChange(
        ids=ids,
        n=n,
        w=np.zeros_like(n),
        messages=np.zeros(labels, np.int64),
        bias=np.zeros((recipe.groups, labels), np.int64),
        temperatures=np.zeros(recipe.groups, np.int64),
        days=np.full(len(ids), day_of(time_us), np.uint16),
    )
    return BulkLoad(bulk, False, Source(owner, CHANNEL), time_us, scores=True)


def _changes(recipe: Recipe, owner: str, change: ScoreCounts) -> tuple[Ids, Ints]:
    """Return the ids of the rows that change, sorted, and the changes of `n`."""
    each = np.array([(change.ham, change.spam), (change.kept, change.filed)], np.int64)
    by_step = each.transpose(0, 2, 1).reshape(-1, 2)
    ids, changes = [], []
    for name in (owner,) if owner == TRAINED else (ALL, owner):
        rows = _rows(recipe.key, name)
        ids.append(rows.ids)
        changes.append(by_step[rows.order.argsort()])
    found, n = np.concatenate(ids), np.concatenate(changes)
    order = found.argsort()
    found, n = found[order], n[order]
    some = n.any(axis=1)
    return found[some], n[some]


_LOOKED_BACK: Final = 2000
"""events of the journal that are read for earlier thresholds"""
_MOST_PAST: Final = 10


def threshold_facts(view: ReadView, recipe: Recipe, one_in: int, costs: Costs) -> dict[str, Any]:
    """Return the junk threshold, the ham of the site that set it, and earlier thresholds."""
    by_costs = next((one.log_odds for one in thresholds(costs) if one.decision == "junk"), inf)
    threshold = threshold_of(view, recipe, one_in) if one_in else by_costs
    found = trained = NO_SCORES
    if one_in and has_threshold(recipe):
        found, trained = (read_counts(view, recipe, owner) for owner in (ALL, TRAINED))
    ham = [round(count) for count in counted_ham(found, trained)]
    past = islice(past_thresholds(view, recipe, one_in, _LOOKED_BACK), _MOST_PAST)
    return {
        "log_odds": threshold,
        "shipped": SHIPPED,
        "one_in": one_in,
        "ham": sum(ham),
        "ham_said": sum(found.ham),
        "ham_trained": sum(ham) - sum(found.ham) - sum(found.kept),
        "ham_below": score_below(ham, _NEARLY_ALL) if any(ham) else None,
        "ham_near": sum(ham[bin_of(threshold - NEAR_NATS) : bin_of(threshold)]),
        "ham_above": sum(ham[bin_of(threshold) :]),
        "past": [one._asdict() for one in past] if any(ham) else [],
    }


_NEARLY_ALL: Final = 0.99
JUMP_NATS: Final = 1.0
"""a change of the threshold that an administrator should know of"""
NEAR_NATS: Final = 1.0
"""ham so far below the threshold is near it"""


def threshold_text(facts: dict[str, Any]) -> str:
    """Return the same as a sentence."""
    text = f"junk from {facts['log_odds']:.2f} nats on"
    if not facts["one_in"]:
        return f"{text}, by the costs alone"
    if facts["log_odds"] >= facts["shipped"]:
        return f"{text}, as shipped: {facts['ham']:,} ham counted"
    return (
        f"{text} (as shipped: {facts['shipped']:.2f}): of {facts['ham']:,} ham, "
        f"{_NEARLY_ALL:.0%} were below {facts['ham_below']:.2f}, "
        f"{facts['ham_near']} were less than {NEAR_NATS:g} below it and {facts['ham_above']} above"
    )


class PastThreshold(NamedTuple):
    """The threshold after an event."""

    event: int
    time_us: int
    log_odds: float


def past_thresholds(
    view: ReadView, recipe: Recipe, one_in: int, most: int | None = None
) -> Iterator[PastThreshold]:
    """Yield the thresholds after each event that counted scores, newest first.

    Walks back the journal, from the sums of today, at most so many events.
    """
    found = [_rows(recipe.key, owner) for owner in (ALL, TRAINED)]
    each = [view.gather(rows.ids).n.astype(np.int64) for rows in found]
    messages = view.totals().messages.copy()
    for event in islice(view.events(newest_first=True), most):
        if _counts_scores(event):
            counts, trained = (
                _counts(n.take(rows.order, axis=0).reshape(len(_PARTS), BINS, 2))
                for rows, n in zip(found, each, strict=True)
            )
            threshold = site_threshold(counts, min(messages.tolist()), one_in, trained)
            yield PastThreshold(event.seq, event.time_us, threshold)
        if event.bulk is not None and not event.person:
            for rows, n in zip(found, each, strict=True):
                at = rows.ids.searchsorted(event.bulk.ids).clip(max=len(rows.ids) - 1)
                known = rows.ids[at] == event.bulk.ids
                n[at[known]] -= event.bulk.n[known]
            messages -= event.bulk.messages
        if event.before != event.after:
            for label, sign in ((event.before, 1), (event.after, -1)):
                if label >= 0:
                    messages[label] += sign


def _counts_scores(event: Event) -> bool:
    return event.kind == EventKind.SCORES
