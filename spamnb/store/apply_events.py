"""Apply events to the records and totals of a store. Pure.

`core.model.training_rows` defines the effect of an event. `apply_event` applies all of it to arrays
of the caller, or nothing if it raises; `Replay` appends events of another store to a view. Only
integers are added, so every store that replays the same events holds the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event, Ids, Recipe, Records, Totals, no_totals
from spamnb.core.model.id_arrays import locate
from spamnb.core.model.training_rows import TrainingRows
from spamnb.core.persons.rows import PersonalRows
from spamnb.store.contract import WriteView
from spamnb.store.rows.codec import empty_rows


def first_totals(recipe: Recipe) -> Totals:
    """Return the totals of a new model; a Bernoulli model's histogram has a row for each label."""
    totals = no_totals(recipe.groups, len(recipe.labels))
    if recipe.kind == "bernoulli":
        totals.histogram = np.zeros((len(recipe.labels), 0), np.int64)
    return totals


def event_ids(event: Event) -> Ids:
    """Return every feature that the event changes: its own, its rehearsals', its bulk change's."""
    sets = [*event.ids]
    for rehearsal in event.delta.rehearsals:
        sets += rehearsal.ids
    if event.bulk is not None and not event.person:
        sets.append(event.bulk.ids)
    if not sets:
        return np.zeros(0, np.uint64)
    return sets[0] if len(sets) == 1 else np.unique(np.concatenate(sets))


def older(times_us: Sequence[int], before_us: int) -> int:
    """Count the leading times up to the last one before `before_us`; times are in journal order.

    An event that precedes an old one counts as old, whatever its time: otherwise one event of a
    clock that was years ahead would keep all later events for these years.
    """
    return max((i for i, at in enumerate(times_us, 1) if at < before_us), default=0)


def surely_older(times_us: Sequence[int], before_us: int, now_us: int) -> int:
    """Count as `older` does, but stop at the first time from `before_us` to `now_us`.

    Otherwise one event of a clock that was set back would make all earlier events old. Times in the
    future are ignored.
    """
    recent = (i for i, at in enumerate(times_us) if before_us <= at <= now_us)
    return older(times_us[: next(recent, len(times_us))], before_us)


def named_ids(event: Event) -> Ids:
    """Return every feature that the event changes, or that forgetting its message would change."""
    rehearsals = [ids for rehearsal in event.net_update.rehearsals for ids in rehearsal.ids]
    return (
        np.unique(np.concatenate([event_ids(event), *rehearsals]))
        if rehearsals
        else event_ids(event)
    )


def apply_event(event: Event, totals: Totals, ids: Ids, records: Records, *, sign: int = 1) -> None:
    """Add an event to totals and records, or subtract it (sign -1); `ids` holds all of its ids."""
    training_rows = TrainingRows(totals, ids, records)
    training_rows.apply(event, sign=sign)
    to_records = training_rows.to_records()
    records.n[:], records.w[:], records.day[:] = to_records.n, to_records.w, to_records.day
    totals.messages, totals.tokens = training_rows.totals.messages, training_rows.totals.tokens
    totals.bias, totals.temperatures = training_rows.totals.bias, training_rows.totals.temperatures
    totals.known, totals.histogram = training_rows.totals.known, training_rows.totals.histogram


def ids_of(events: Sequence[Event]) -> Ids:
    """Return every feature that these events change."""
    return np.unique(np.concatenate([event_ids(event) for event in events]))


class Replay:
    """Events that are applied to rows in memory one by one; `write` stores them all."""

    def __init__(self, view: WriteView, events: Sequence[Event]) -> None:
        """Read the rows that these events change."""
        self._view = view
        ids, totals = ids_of(events), view.totals()
        self._persons = PersonalRows(len(totals.messages), view.personal)
        self._rows = TrainingRows(totals, ids, view.gather(ids), self._persons)
        self._count = len(events)
        self._applied: list[Event] = []

    def apply(self, event: Event) -> None:
        """Apply the next event."""
        self._rows.apply(event)
        self._rows.totals.last_seq = event.seq
        self._applied.append(event)

    def removed(self, ids: Ids) -> Ids:
        """Return which of these features have no row now; `ids` are those of applied events."""
        return ids[empty_rows(self._rows.records_of(self._rows.find((ids,))))]

    def write(self, texts: Callable[[Ids], Words]) -> None:
        """Append the applied events; `texts` returns the texts of features that are new."""
        view, rows = self._view, self._rows
        ids, records = rows.ids, rows.to_records()
        if len(self._applied) < self._count:
            ids = ids_of(self._applied)
            at = locate(rows.ids, ids)[0]
            records = Records(records.n[at], records.w[at], records.day[at])
        view.append(*self._applied)
        view.scatter(ids, records)
        view.put_totals(rows.totals)
        for person, personal in self._persons.changed():
            view.put_personal(person, personal)
        view.put_words(texts(rows.new_ids()))
