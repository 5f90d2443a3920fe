"""Events applied to records and totals as the store holds them. Pure.

What an event does is written in `core.sheet`; here it is done to arrays that the caller owns, all
of it or, if it is refused, none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spamnb.core.model.events import Event, Ids, Recipe, Records, Totals, no_totals
from spamnb.core.model.training_rows import TrainingRows, day_of


def first_totals(recipe: Recipe) -> Totals:
    """The totals of a new model; a Bernoulli model's histogram has a row for each label."""
    totals = no_totals(recipe.groups, len(recipe.labels))
    if recipe.kind == "bernoulli":
        totals.histogram = np.zeros((len(recipe.labels), 0), np.int64)
    return totals


def event_ids(event: Event) -> Ids:
    """Every feature that applying the event touches: its own, its echoes', its bulk's."""
    sets = [*event.ids]
    for rehearsal in event.delta.rehearsals:
        sets += rehearsal.ids
    if event.bulk is not None:
        sets.append(event.bulk.ids)
    if not sets:
        return np.zeros(0, np.uint64)
    return sets[0] if len(sets) == 1 else np.unique(np.concatenate(sets))


def older(times_us: Sequence[int], before_us: int) -> int:
    """How many of these, in the order in which they came, are from before a time.

    What came before one that is older is older too, whatever it says: a clock that was years ahead
    for a moment would otherwise keep all that follows for as long.
    """
    return max((i for i, at in enumerate(times_us, 1) if at < before_us), default=0)


def surely_older(times_us: Sequence[int], before_us: int, now_us: int) -> int:
    """How many of these, in the order in which they came, are surely from before a time.

    None that came behind one from since then is: a clock that was set back for a moment would
    otherwise make all older that came before. Times that are yet to come tell nothing.
    """
    recent = (i for i, at in enumerate(times_us) if before_us <= at <= now_us)
    return older(times_us[: next(recent, len(times_us))], before_us)


def named_ids(event: Event) -> Ids:
    """Every feature that the event touches or that taking back its message would touch."""
    rehearsals = [ids for rehearsal in event.net_update.rehearsals for ids in rehearsal.ids]
    return (
        np.unique(np.concatenate([event_ids(event), *rehearsals]))
        if rehearsals
        else event_ids(event)
    )


def apply_event(event: Event, totals: Totals, ids: Ids, records: Records, *, sign: int = 1) -> None:
    """Add an event to totals and records, or take it away (sign -1); `ids` holds all of its ids."""
    training_rows = TrainingRows(totals, ids, records)
    training_rows.apply(event, sign=sign)
    to_records = training_rows.to_records()
    records.n[:], records.w[:], records.day[:] = to_records.n, to_records.w, to_records.day
    totals.messages, totals.tokens = training_rows.totals.messages, training_rows.totals.tokens
    totals.bias, totals.temperatures = training_rows.totals.bias, training_rows.totals.temperatures
    totals.known, totals.histogram = training_rows.totals.known, training_rows.totals.histogram


__all__ = [
    "apply_event",
    "day_of",
    "event_ids",
    "first_totals",
    "named_ids",
    "older",
    "surely_older",
]
