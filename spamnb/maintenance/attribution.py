"""Which trainings decided a verdict, which labels are doubtful, and whose labels moved verdicts.

`bisect` attributes a score to single trainings, `doubts` finds labels that all other trainings
contradict, and `influential` counts the verdicts that the labels of a user have changed.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from spamnb.engine import planner
from spamnb.engine.filter import Filter
from spamnb.engine.planner import PendingJournal
from spamnb.engine.values import Example, stored_example
from spamnb.mail.envelope import same_name
from spamnb.model.costs import Costs, roles_of
from spamnb.model.events import (
    NO_LABEL,
    BulkChange,
    Event,
    EventKind,
    Ids,
    Recipe,
    Records,
    RehearsalUpdate,
    Totals,
    locate,
)
from spamnb.model.persons import PersonalRows, personal_message
from spamnb.model.scoring import Prediction, RowView, maturity, scores, spam_log_odds
from spamnb.model.training_rows import TrainingRows
from spamnb.model.verdict import decide_stretched, sides, stretched
from spamnb.store.journal import event_ids
from spamnb.store.table_views import ReadView
from spamnb.telemetry import iso

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

    The share of a training is the log-odds now minus the log-odds with that training forgotten: its
    step, rehearsals and counts subtracted, and N, b and the temperatures adjusted. Shares need not
    add up: of two equal messages, each may have no effect alone.

    Reads the journal once. For the default model kind, only the features that a training shares
    with the message matter; for the classical kinds all features of a training do, because V and H
    depend on them. For a person, the shares are those in the person's log-odds: the person's own
    trainings also change the personal corrections. Events in the checkpoint cannot be attributed.
    Must not know terminals.
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
            shared = training_rows.predict(self.recipe, lines, self.example.blocks)
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
        ids=_common(event.counted_ids, ids),
        times=None,
        blocks=None,
        left_out=b"",
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


_PROGRESS_STEP = 64
"""messages between two updates of the progress bar"""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A training with a label that the rest of the model contradicts."""

    event: int
    time_us: int
    user: str
    channel: str
    label: str
    likely: str
    """the label that the rest of the model gives the message"""
    nats: float
    """log-odds of `likely` against `label`, without this training"""
    digest: bytes
    message_id: str

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self) | {"time": iso(self.time_us), "digest": self.digest.hex()}
        del values["time_us"]
        return values


def doubts(
    view: ReadView,
    recipe: Recipe,
    wanted: Callable[[Event], bool],
    count: int | None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Doubt]:
    """Return the trainings that the model contradicts most, the strongest contradiction first.

    Only trainings for which `wanted` is true are tested; `count` None returns all contradictions.

    Each training in force is removed from the rows of its own message, and the message is scored
    without it. The label is therefore compared with the other trainings, not with itself. Trainings
    in the checkpoint have no events and cannot be tested; labels of persons may contradict the
    others. Must not know terminals.
    """
    found = _contradicted(view, recipe, wanted, progress)
    if count is None:
        return sorted(found, key=_strength, reverse=True)
    return heapq.nlargest(count, found, key=_strength)


def _strength(doubt: Doubt) -> float:
    return doubt.nats


def _contradicted(
    view: ReadView,
    recipe: Recipe,
    wanted: Callable[[Event], bool],
    progress: Callable[[int, int, str], None] | None,
) -> Iterator[Doubt]:
    total = int(view.totals().messages.sum())
    for done, (event, trained) in enumerate(trainings_in_force(view)):
        if progress is not None and done % _PROGRESS_STEP == 0:
            progress(done, total, "")
        if event.after == NO_LABEL or event.person or not wanted(trained):
            continue
        if (found := doubt_of(view, recipe, event, trained)) is not None:
            yield found


def doubt_of(view: ReadView, recipe: Recipe, event: Event, trained: Event) -> Doubt | None:
    """Return the contradiction of a training in force; None if the model agrees with it.

    `event` is the message's newest event, `trained` the one that trained it.
    """
    (z,) = LeaveOneOut(view, recipe, stored_example(event)).without([(event, trained)])
    likely = int(z.argmax())
    if likely == event.after:
        return None
    return Doubt(
        trained.seq, trained.time_us, trained.user, trained.channel,
        recipe.labels[event.after], recipe.labels[likely],
        float(z[likely] - z[event.after]), event.digest, event.message_id,
    )  # fmt: skip


SAMPLE = 500
"""newest messages that are compared"""
LEAST = 5
"""An alarm needs so many changed verdicts: in any sample some messages are near a threshold."""
SHARE = 0.01
"""and this share of the sample; the worst accounts that a search found changed .7 to 3.6 %"""
EVENTS = 2_000
"""newest events that are searched for labels of users"""
COMPARED = 5
"""users that are compared alone"""
WINDOW_US = 30 * 86_400_000_000


class _Sampled(NamedTuple):
    digest: bytes
    recipients: tuple[str, ...]
    ids: tuple[Ids, ...]


_Labels = dict[str, list[Event]]
_known: WeakKeyDictionary[Filter, tuple[int, list[dict[str, Any]]]] = WeakKeyDictionary()
"""what was found after the last event of a model: the status is asked often, labels are rare"""


def influential(model: Filter, now_us: int) -> list[dict[str, Any]]:
    """Return the users whose labels changed many verdicts, with the numbers, the most first.

    The newest messages of the history are scored twice: with the whole model, and without the
    labels that one user has given in the last thirty days. Messages to the user, and those that the
    user has labelled, do not count. Only the users whose labels moved the shared corrections most
    are compared, and all users without credit together, because many accounts with one label each
    move little alone. Without a history, the trained messages of others take its place. Reads only.
    """
    with model.store.read() as view:
        last = view.totals().last_seq
        known = _known.get(model)
        if known is None or known[0] != last:
            known = _known[model] = last, _found(model, view, last, now_us)
    return known[1]


def _found(model: Filter, view: ReadView, last: int, now_us: int) -> list[dict[str, Any]]:
    labels = _labels_of_users(view, last, now_us)
    if model.recipe.kind != "corrected" or not labels:
        return []
    sample = list(islice(_sampled(model, view, last), SAMPLE))
    if not sample:
        return []
    comparison = _VerdictsWithout(
        model, view, sample, [one for own in labels.values() for one in own]
    )
    ranked = sorted(labels, key=lambda user: (-_moved(labels[user]), user))
    found = [comparison.without({user: labels[user]}) for user in ranked[:COMPARED]]
    found = [one for one in found if one["changed"] >= max(LEAST, SHARE * one["compared"])]
    if found:
        return sorted(found, key=lambda one: -int(one["changed"]))
    new = {user: own for user, own in labels.items() if not planner.is_believed(own[0].credit)}
    together = comparison.without(new)
    return [together] if together["changed"] >= max(LEAST, SHARE * together["compared"]) else []


def _labels_of_users(view: ReadView, last: int, now_us: int) -> _Labels:
    """Return the labels in force of all users but administrators, the newest first."""
    found: _Labels = defaultdict(list)
    for seq in range(last, max(last - EVENTS, 0), -1):
        event = view.event(seq)
        if event is None:
            break
        if not (event.owner or event.person) or event.time_us < now_us - WINDOW_US:
            continue
        live = view.live(event.label_key) if event.after != NO_LABEL and event.user else None
        if live is not None and live.seq == seq and event.kind != EventKind.UNDO:
            found[event.user].append(event)
    return found


def _sampled(model: Filter, view: ReadView, last: int) -> Iterable[_Sampled]:
    if model.history is not None and model.history.count():
        for entry in model.history.newest():
            yield _Sampled(entry.digest, tuple(entry.notes.get("to", "").split()), entry.ids)
        return
    for seq in range(last, max(last - EVENTS, 0), -1):
        event = view.event(seq)
        if event is None:
            break
        if event.digest and event.kind == EventKind.LEARN and not event.owner:
            yield _Sampled(event.digest, (), event.ids)


def _moved(events: Sequence[Event]) -> int:
    """How far these labels moved the shared corrections."""
    return sum(int(np.abs(event.net_update.bias).sum()) for event in events)


class _VerdictsWithout:
    """The verdicts on some messages, with all labels and without those of some users."""

    def __init__(
        self, model: Filter, view: ReadView, sample: Sequence[_Sampled], events: Sequence[Event]
    ) -> None:
        self._model, self._sample = model, sample
        self._totals: Totals = view.totals()
        self._threshold = model.threshold(view)
        flat = np.concatenate([part for one in sample for part in one.ids])
        changed = [part for event in events for part in event.ids]
        changed += [
            part
            for event in events
            for rehearsal in event.net_update.rehearsals
            for part in rehearsal.ids
        ]
        self._ids = np.unique(np.concatenate([flat, *changed]))
        self._records: Records = view.gather(self._ids)
        ends = np.cumsum([0, *(sum(map(len, one.ids)) for one in sample)])
        sizes = np.array([len(part) for one in sample for part in one.ids])
        self._view = RowView(np.searchsorted(self._ids, flat), ends, sizes)
        self._decided = self._decisions(self._totals, self._records)

    def without(self, labels: _Labels) -> dict[str, Any]:
        """Return how many verdicts on messages of others the labels of these users changed."""
        rows = TrainingRows(self._totals, self._ids, self._records)
        events = [event for own in labels.values() for event in own]
        for event in events:
            rows.take_out(event)
        decided = self._decisions(rows.totals, rows.to_records())
        own = {event.digest for event in events}
        others = np.array([
            one.digest not in own
            and not any(same_name(user, to) for user in labels for to in one.recipients)
            for one in self._sample
        ])  # fmt: skip
        return {
            "users": sorted(labels),
            "labels": len(events),
            "changed": int(((decided != self._decided) & others).sum()),
            "compared": int(others.sum()),
        }

    def _decisions(self, totals: Totals, records: Records) -> NDArray[np.str_]:
        recipe, costs = self._model.recipe, self._model.costs
        roles = roles_of(recipe.labels)
        z = scores(recipe, totals, records, self._view).tolist()
        return np.array([self._decision(spam_log_odds(one, roles), costs) for one in z])

    def _decision(self, odds: float, costs: Costs) -> str:
        return decide_stretched(stretched(odds, self._threshold), self._threshold, costs)
