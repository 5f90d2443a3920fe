"""Which training made a message what it is: for each one, what its forgetting would change.

The share of a training is the log-odds now minus the log-odds with that one forgotten: with its
step and its rehearsals taken back, its counts gone, and N, b and the tempers as they would be then.
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

from spamnb.core.model.events import NO_LABEL, Bulk, Echo, Event, Ids, Recipe
from spamnb.core.model.id_arrays import place
from spamnb.core.model.scoring import View, scores
from spamnb.core.model.training_rows import Sheet
from spamnb.core.model.verdict import sides
from spamnb.service.engine.planner import Outlook
from spamnb.service.engine.requests import Example
from spamnb.store.apply_events import event_ids
from spamnb.store.contract import ReadView

_AT_ONCE = 256
"""events whose rows are gathered together"""


@dataclass(frozen=True, slots=True)
class Share:
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
class Bisection:
    """A message's log-odds, and who made it so."""

    log_odds: float
    between: tuple[str, str]
    """the labels that the odds are between"""
    shares: list[Share]
    """the strongest first"""
    folded: int
    """events in the checkpoint, which cannot be told apart"""


def bisect(view: ReadView, recipe: Recipe, example: Example) -> Bisection:
    """Ask of every training in force what the message would be without it."""
    lens = _Lens(view, recipe, example)
    candidates = _in_force(view)
    shares: list[Share] = []
    while batch := list(islice(candidates, _AT_ONCE)):
        shares += lens.shares(batch)
    shares.sort(key=lambda share: -abs(share.nats))
    between = recipe.labels[lens.sides[0]], recipe.labels[lens.sides[1]]
    return Bisection(lens.log_odds, between, shares, view.base_totals().last_seq)


def _in_force(view: ReadView) -> Iterator[tuple[Event, Event]]:
    """Each training that stands: the event that says so, and the one that taught it."""
    outlook = Outlook(view, [], 0)
    for event in view.events():
        live = view.live(event.digest)
        if live is None or live.seq != event.seq:
            continue
        taught = view.event([*outlook.uncovered(event.seq)][-1]) if event.undoes else event
        if event.after != NO_LABEL or (taught is not None and taught.bulk is not None):
            yield event, taught or event


class _Lens:
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

    def shares(self, batch: list[tuple[Event, Event]]) -> list[Share]:
        """The shares of some trainings."""
        gone = [_forgotten(event, taught) for event, taught in batch]
        if self.narrow:
            gone = [_narrowed(event, self.ids) for event in gone]
            sheet = self._sheet(self.ids)
        else:
            sheet = self._sheet(
                np.unique(np.concatenate([self.ids, *(event_ids(event) for event in gone)]))
            )
        found = []
        for one, (event, taught) in zip(gone, batch, strict=True):
            sheet.apply(one)
            nats = self.log_odds - self._odds(self._z(sheet))
            sheet.apply(one, sign=-1)
            found.append(_share(event, taught, self.recipe.labels, nats))
        return found

    def _sheet(self, ids: Ids) -> Sheet:
        return Sheet(self.totals, ids, self.view.gather(ids))

    def _z(self, sheet: Sheet) -> np.ndarray:
        lines = sheet.find(self.example.ids)
        if self.narrow:
            return np.array(sheet.opinion(self.recipe, lines).z)
        rows = np.arange(len(lines.rows))
        times = self.example.times if self.recipe.occurrences else None
        view = View(rows, np.array([0, len(rows)]), np.array(lines.sizes), times)
        return np.asarray(scores(self.recipe, sheet.totals, sheet.records_of(lines), view)[0])

    def _odds(self, z: np.ndarray) -> float:
        s, h = self.sides
        return float(z[s] - z[h])


def _share(event: Event, taught: Event, labels: tuple[str, ...], nats: float) -> Share:
    label = None if event.after == NO_LABEL else labels[event.after]
    return Share(
        taught.seq, taught.time_us, taught.who, taught.channel, label,
        event.digest, event.message_id, nats,
    )  # fmt: skip


def _forgotten(event: Event, taught: Event) -> Event:
    """The event that takes back what stands."""
    return event._replace(
        before=event.after,
        after=NO_LABEL,
        delta=event.standing.negated(),
        bulk=taught.bulk.negated() if taught.bulk else None,
    )


def _narrowed(event: Event, ids: Ids) -> Event:
    """The part of an event that touches these ids; T and V do not follow it."""
    echoes = tuple(Echo(_common(echo.ids, ids), echo.steps) for echo in event.delta.echoes)
    return event._replace(
        ids=_common(event.ids, ids),
        times=None,
        delta=event.delta._replace(echoes=echoes),
        bulk=_narrowed_bulk(event.bulk, ids) if event.bulk else None,
    )


def _common(groups: tuple[Ids, ...], ids: Ids) -> tuple[Ids, ...]:
    return tuple(group[place(ids, group)[1]] for group in groups)


def _narrowed_bulk(bulk: Bulk, ids: Ids) -> Bulk:
    there = place(ids, bulk.ids)[1]
    return bulk._replace(
        ids=bulk.ids[there], n=bulk.n[there], w=bulk.w[there], days=bulk.days[there]
    )
