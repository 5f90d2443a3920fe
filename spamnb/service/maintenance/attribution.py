"""Which training made a message what it is: for each one, what its forgetting would change.

The share of a training is the log-odds now minus the log-odds with that one forgotten: with its
step and its rehearsals taken back, its counts gone, and N, b and the temperatures as they would be
then.
Shares need not add up: two messages that say the same may each be dispensable.

One scan of the journal. The default model is asked about the features alone that a training has in
common with the message; the classical kinds look at all of a training's features, since V and H
depend on them. What is in the checkpoint cannot be told apart. Must not know terminals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from spamnb.core.model.events import NO_LABEL, BulkChange, Event, Ids, Recipe, RehearsalUpdate
from spamnb.core.model.id_arrays import place
from spamnb.core.model.scoring import RowView, scores
from spamnb.core.model.training_rows import TrainingRows
from spamnb.core.model.verdict import sides
from spamnb.service.engine.planner import PendingJournal
from spamnb.service.engine.requests import Example
from spamnb.store.apply_events import event_ids
from spamnb.store.contract import ReadView

_AT_ONCE = 256
"""events whose rows are gathered together"""


@dataclass(frozen=True, slots=True)
class EventShare:
    """What one training contributes to a message's log-odds."""

    event: int
    time_us: int
    who: str
    channel: str
    label: str | None
    """None for an import or an expiry"""
    digest: bytes
    message_id: str
    nats: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """A message's log-odds, and who made it so."""

    log_odds: float
    between: tuple[str, str]
    """the labels that the odds are between"""
    shares: list[EventShare]
    """the strongest first"""
    folded: int
    """events in the checkpoint, which cannot be told apart"""


def bisect(view: ReadView, recipe: Recipe, example: Example) -> Attribution:
    """Ask of every training in force what the message would be without it."""
    lens = _LeaveOneOut(view, recipe, example)
    candidates = _in_force(view)
    shares: list[EventShare] = []
    while batch := list(islice(candidates, _AT_ONCE)):
        shares += lens.shares(batch)
    shares.sort(key=lambda share: -abs(share.nats))
    between = recipe.labels[lens.sides[0]], recipe.labels[lens.sides[1]]
    return Attribution(lens.log_odds, between, shares, view.base_totals().last_seq)


def _in_force(view: ReadView) -> Iterator[tuple[Event, Event]]:
    """Each training that stands: the event that says so, and the one that taught it."""
    pending = PendingJournal(view, [], 0)
    for event in view.events():
        live = view.live(event.digest)
        if live is None or live.seq != event.seq:
            continue
        taught = view.event([*pending.uncovered(event.seq)][-1]) if event.undoes else event
        if event.after != NO_LABEL or (taught is not None and taught.bulk is not None):
            yield event, taught or event


class _LeaveOneOut:
    """One message, and what the model says of it when something is gone."""

    def __init__(self, view: ReadView, recipe: Recipe, example: Example) -> None:
        self.view = view
        self.recipe = recipe
        self.example = example
        self.ids = np.unique(np.concatenate(example.ids))
        self.narrow = recipe.kind == "corrected"
        self.totals = view.totals()
        z = self._z(self._sheet(self.ids))
        self.sides = sides(recipe.labels, z.tolist())
        self.log_odds = self._odds(z)

    def shares(self, batch: list[tuple[Event, Event]]) -> list[EventShare]:
        """The shares of some trainings."""
        gone = [_forgotten(event, taught) for event, taught in batch]
        if self.narrow:
            gone = [_narrowed(event, self.ids) for event in gone]
            training_rows = self._sheet(self.ids)
        else:
            training_rows = self._sheet(
                np.unique(np.concatenate([self.ids, *(event_ids(event) for event in gone)]))
            )
        found = []
        for one, (event, taught) in zip(gone, batch, strict=True):
            training_rows.apply(one)
            nats = self.log_odds - self._odds(self._z(training_rows))
            training_rows.apply(one, sign=-1)
            found.append(_share(event, taught, self.recipe.labels, nats))
        return found

    def _sheet(self, ids: Ids) -> TrainingRows:
        return TrainingRows(self.totals, ids, self.view.gather(ids))

    def _z(self, training_rows: TrainingRows) -> np.ndarray:
        lines = training_rows.find(self.example.ids)
        if self.narrow:
            return np.array(training_rows.opinion(self.recipe, lines).z)
        rows = np.arange(len(lines.rows))
        times = self.example.times if self.recipe.occurrences else None
        view = RowView(rows, np.array([0, len(rows)]), np.array(lines.sizes), times)
        return np.asarray(
            scores(self.recipe, training_rows.totals, training_rows.records_of(lines), view)[0]
        )

    def _odds(self, z: np.ndarray) -> float:
        s, h = self.sides
        return float(z[s] - z[h])


def _share(event: Event, taught: Event, labels: tuple[str, ...], nats: float) -> EventShare:
    label = None if event.after == NO_LABEL else labels[event.after]
    return EventShare(
        taught.seq, taught.time_us, taught.who, taught.channel, label,
        event.digest, event.message_id, nats,
    )  # fmt: skip


def _forgotten(event: Event, taught: Event) -> Event:
    """The event that takes back what stands."""
    return event._replace(
        before=event.after,
        after=NO_LABEL,
        delta=event.net_update.negated(),
        bulk=taught.bulk.negated() if taught.bulk else None,
    )


def _narrowed(event: Event, ids: Ids) -> Event:
    """The part of an event that touches these ids; T and V do not follow it."""
    rehearsals = tuple(
        RehearsalUpdate(_common(rehearsal.ids, ids), rehearsal.steps)
        for rehearsal in event.delta.rehearsals
    )
    return event._replace(
        ids=_common(event.ids, ids),
        times=None,
        delta=event.delta._replace(rehearsals=rehearsals),
        bulk=_narrowed_bulk(event.bulk, ids) if event.bulk else None,
    )


def _common(groups: tuple[Ids, ...], ids: Ids) -> tuple[Ids, ...]:
    return tuple(group[place(ids, group)[1]] for group in groups)


def _narrowed_bulk(bulk: BulkChange, ids: Ids) -> BulkChange:
    there = place(ids, bulk.ids)[1]
    return bulk._replace(
        ids=bulk.ids[there], n=bulk.n[there], w=bulk.w[there], days=bulk.days[there]
    )
