"""Attribute a message's score to single trainings: what forgetting each one would change.

The share of a training is the log-odds now minus the log-odds with that training forgotten: its
step, rehearsals and counts subtracted, and N, b and the temperatures adjusted.
Shares need not add up: of two equal messages, each may have no effect alone.

Reads the journal once. For the default model kind, only the features that a training shares with
the message matter; for the classical kinds all features of a training do, because V and H depend on
them. For a person, the shares are those in the person's log-odds: the person's own trainings also
change the personal corrections. Events in the checkpoint cannot be attributed. Must not know
terminals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from spamnb.core.model.events import (
    NO_LABEL,
    BulkChange,
    Event,
    Ids,
    Recipe,
    RehearsalUpdate,
    Totals,
)
from spamnb.core.model.id_arrays import locate
from spamnb.core.model.scoring import Prediction, RowView, maturity, scores
from spamnb.core.model.training_rows import TrainingRows
from spamnb.core.model.verdict import sides
from spamnb.core.persons.learning import personal_message
from spamnb.core.persons.rows import PersonalRows
from spamnb.service.engine.clock import iso
from spamnb.service.engine.planner import PendingJournal
from spamnb.service.engine.requests import Example
from spamnb.store.apply_events import event_ids
from spamnb.store.contract import ReadView

_AT_ONCE = 256
"""number of events to read the rows of together"""


@dataclass(frozen=True, slots=True)
class EventShare:
    """The contribution of one training to a message's log-odds."""

    event: int
    time_us: int
    user: str
    channel: str
    label: str | None
    """None for an import or an expiry"""
    digest: bytes
    message_id: str
    nats: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """A message's log-odds, and the trainings that produced it."""

    log_odds: float
    between: tuple[str, str]
    """the two labels of the odds"""
    shares: list[EventShare]
    """the strongest first"""
    folded: int
    """number of events in the checkpoint, which cannot be attributed"""

    def as_dict(self) -> dict[str, Any]:
        return {
            "log_odds": self.log_odds,
            "between": list(self.between),
            "folded": self.folded,
            "shares": [
                {
                    "event": share.event,
                    "nats": share.nats,
                    "time": iso(share.time_us),
                    "user": share.user,
                    "channel": share.channel,
                    "label": share.label,
                    "digest": share.digest.hex(),
                    "message_id": share.message_id,
                }
                for share in self.shares
            ],
        }


def bisect(
    view: ReadView, recipe: Recipe, example: Example, limit: int = 0, *, person: int = 0
) -> Attribution:
    """Compute the share of every training in force in the score of a message.

    The score is the shared one, or that of a person with this id. The result has at most `limit`
    shares, if it is not 0.
    """
    leave_one_out = LeaveOneOut(view, recipe, example, person)
    candidates = trainings_in_force(view)
    shares: list[EventShare] = []
    while batch := list(islice(candidates, _AT_ONCE)):
        shares += leave_one_out.shares(batch)
    shares.sort(key=lambda share: -abs(share.nats))
    between = recipe.labels[leave_one_out.sides[0]], recipe.labels[leave_one_out.sides[1]]
    folded = view.base_totals().last_seq
    return Attribution(leave_one_out.log_odds, between, shares[: limit or None], folded)


def trainings_in_force(view: ReadView) -> Iterator[tuple[Event, Event]]:
    """Yield, for each training in force, the message's newest event and the one that trained it."""
    pending = PendingJournal(view, [], 0)
    for event in view.events():
        live = view.live(event.label_key)
        if live is None or live.seq != event.seq:
            continue
        trained = view.event([*pending.uncovered(event.seq)][-1]) if event.undoes else event
        is_bulk = trained is not None and trained.bulk is not None and not trained.person
        if event.after != NO_LABEL or is_bulk:
            yield event, trained or event


class LeaveOneOut:
    """Scores one message with single trainings removed; for a person, if an id is given."""

    def __init__(self, view: ReadView, recipe: Recipe, example: Example, person: int = 0) -> None:
        self.view = view
        self.recipe = recipe
        self.example = example
        self.person = person
        self.personal_rows = PersonalRows(len(recipe.labels), view.personal)
        self.ids = np.unique(np.concatenate(example.ids))
        self.narrow = recipe.kind == "corrected"
        self.totals = view.totals()

    @cached_property
    def _scores(self) -> np.ndarray:
        return self._z(self._rows(self.ids))

    @cached_property
    def sides(self) -> tuple[int, int]:
        """The indexes of the two labels of the odds."""
        return sides(self.recipe.labels, self._scores.tolist())

    @cached_property
    def log_odds(self) -> float:
        """The message's log-odds with all trainings."""
        return self._odds(self._scores)

    def shares(self, batch: list[tuple[Event, Event]]) -> list[EventShare]:
        """Return the shares of these trainings."""
        return [
            _share(event, trained, self.recipe.labels, _difference(self.log_odds, self._odds(z)))
            for (event, trained), z in zip(batch, self.without(batch), strict=True)
        ]

    def without(self, batch: list[tuple[Event, Event]]) -> list[np.ndarray]:
        """Return the message's scores z, one for each training, without that training."""
        removals = shared = [_removal_of(event, trained) for event, trained in batch]
        if self.narrow:
            shared = [_narrowed(event, self.ids) for event in removals]
            training_rows = self._rows(self.ids)
        else:
            training_rows = self._rows(
                np.unique(np.concatenate([self.ids, *(event_ids(event) for event in removals)]))
            )
        found = []
        for removal, narrowed in zip(removals, shared, strict=True):
            self._apply(training_rows, narrowed, removal, 1)
            found.append(self._z(training_rows))
            self._apply(training_rows, narrowed, removal, -1)
        return found

    def _apply(self, rows: TrainingRows, narrowed: Event, removal: Event, sign: int) -> None:
        rows.apply(narrowed, sign=sign)
        # All features count: one that the message lacks may share a place with one that it has.
        if self.person and removal.person == self.person:
            self.personal_rows.apply(removal, sign=sign)

    def _rows(self, ids: Ids) -> TrainingRows:
        return TrainingRows(self.totals, ids, self.view.gather(ids))

    def _z(self, training_rows: TrainingRows) -> np.ndarray:
        lines = training_rows.find(self.example.ids)
        if self.narrow:
            shared = training_rows.predict(self.recipe, lines)
            return np.array(self._personal(shared, training_rows.totals).z)
        rows = np.arange(len(lines.rows))
        times = self.example.times if self.recipe.occurrences else None
        view = RowView(rows, np.array([0, len(rows)]), np.array(lines.sizes), times)
        return np.asarray(
            scores(self.recipe, training_rows.totals, training_rows.records_of(lines), view)[0]
        )

    def _personal(self, shared: Prediction, totals: Totals) -> Prediction:
        if not self.person:
            return shared
        mine = self.personal_rows.of(self.person)
        ids, both = self.example.ids, (shared, maturity(totals))
        return personal_message(self.person, ids, both, mine).predict()

    def _odds(self, z: np.ndarray) -> float:
        s, h = self.sides
        return float(z[s] - z[h])


def _difference(one: float, other: float) -> float:
    """How much greater `one` is: both are infinite while a label has no message."""
    return 0.0 if one == other else one - other


def _share(event: Event, trained: Event, labels: tuple[str, ...], nats: float) -> EventShare:
    label = None if event.after == NO_LABEL else labels[event.after]
    return EventShare(
        trained.seq, trained.time_us, trained.user, trained.channel, label,
        event.digest, event.message_id, nats,
    )  # fmt: skip


def _removal_of(event: Event, trained: Event) -> Event:
    """Return the event that reverses a training."""
    return event._replace(
        before=event.after,
        after=NO_LABEL,
        delta=event.net_update.negated(),
        bulk=trained.bulk.negated() if trained.bulk else None,
    )


def _narrowed(event: Event, ids: Ids) -> Event:
    """Return the part of an event that changes these ids; its T and V are not valid."""
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
    return tuple(group[locate(ids, group)[1]] for group in groups)


def _narrowed_bulk(bulk: BulkChange, ids: Ids) -> BulkChange:
    there = locate(ids, bulk.ids)[1]
    return bulk._replace(
        ids=bulk.ids[there], n=bulk.n[there], w=bulk.w[there], days=bulk.days[there]
    )
