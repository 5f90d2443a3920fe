"""Plan the events of a batch of requests: labels, sequence numbers, rehearsals, credit; no scores.

A request becomes a plan, or the receipt that says why nothing changes or why it is refused. Plans
depend on the journal, so a whole batch is planned before its rows are read, with the same result as
planning its requests one by one. Only a repeated correction asks `is_doubted`, which scores the
message on the stored model. Must not know models.

Every owner of a label (`Event.owner`) has one label for each message, and only this owner, an
administrator or an undo takes it back. Each label counts as evidence. The label in force decides
the verdict on this very message: the administrator's; else the one that most users have given, the
one given first if several have as many users; else the same among unverified owners. Labels of
persons are not among them: they decide only the verdicts on the mail of their person.

The credit of a user says how far the user's earlier labels are confirmed. A user starts with none.
At each new label, one earlier label of the same user is checked, chosen by the number of the event:
against the labels that administrators and users with enough credit have given the same message, or,
without labels of others, against what the model says of the message as if the user had never
labelled it. The credit rises by one if they agree and falls by two if they contradict. It is kept
in the event, so undo, relearn and the hosts of a fleet have the same number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.engine.receipt import Receipt
from spamnb.engine.values import (
    BulkLoad,
    Example,
    Forget,
    Learn,
    Source,
    TrainingRequest,
    Undo,
    stored_example,
)
from spamnb.errors import RefError, RefusedError, SpamnbError
from spamnb.mail.envelope import same_name
from spamnb.model.events import (
    NO_LABEL,
    UNVERIFIED,
    Event,
    EventKind,
    Ids,
    Recipe,
    counted,
    label_key,
)
from spamnb.model.scoring import DOUBT, Prediction, softmax
from spamnb.model.training_rows import MessageRows
from spamnb.store.table_views import ReadView
from spamnb.store.values import MessageState


class Reason(StrEnum):
    """Why a label is in force."""

    NONE = "no label"
    ADMINISTRATOR = "the administrator's label"
    ALONE = "the label of one user"
    AGREED = "all users agree"
    MAJORITY = "the label of most users"
    FIRST = "as many users gave another label, later"
    UNVERIFIED = "reports that nothing proves"


def owner_kind(owner: int, person: int = 0) -> str:
    """Return what the owner of a label is, in a word."""
    if person:
        return "person"
    if not owner:
        return "administrator"
    return "unverified" if owner & UNVERIFIED else "user"


class LabelInForce(NamedTuple):
    """The label that decides the verdict on a message."""

    label: int
    """NO_LABEL if there is none"""
    reason: Reason
    contradicted: bool = False
    """whether another owner has given another label"""


def label_in_force(labels: Mapping[int, int], since: Callable[[int], int]) -> LabelInForce:
    """Return the label in force, given the label of each owner.

    `since` returns the event by which an owner gave the label; only a tie asks for it.
    """
    given = {owner: label for owner, label in labels.items() if label != NO_LABEL}
    if not given:
        return LabelInForce(NO_LABEL, Reason.NONE)
    contradicted = len(set(given.values())) > 1
    if 0 in given:
        return LabelInForce(given[0], Reason.ADMINISTRATOR, contradicted)
    users = {owner: label for owner, label in given.items() if not owner & UNVERIFIED}
    label, reason = _of_most(users or given, since)
    return LabelInForce(label, reason if users else Reason.UNVERIFIED, contradicted)


def _of_most(labels: Mapping[int, int], since: Callable[[int], int]) -> tuple[int, Reason]:
    """Return the label that most of these owners have given."""
    votes = Counter(labels.values())
    most = max(votes.values())
    first = [label for label, count in votes.items() if count == most]
    if len(first) == 1:
        if len(votes) > 1:
            return first[0], Reason.MAJORITY
        return first[0], Reason.ALONE if len(labels) == 1 else Reason.AGREED
    begun = {
        label: min(since(owner) for owner, given in labels.items() if given == label)
        for label in first
    }
    return min(first, key=begun.__getitem__), Reason.FIRST


STREAK = 20
"""After this many events of one label, each further one rehearses messages of the other labels.
Bulk training is interleaved and never reaches it; training one label after the other does
(decision 0003)."""
REHEARSALS = 2
"""Earlier messages of each other label to rehearse. With one, 1.7 to 2.4 % of ham was classified as
spam after all spam was trained last; with two 1.3 to 2.3 %, with three 1.1 to 2.3 %. Each adds half
the cost of learning a message."""


class EarlierLabel(NamedTuple):
    """An earlier label of a user, and the labels that others have given the same message."""

    seq: int
    """of the event that gave the label"""
    event: Event | None
    """None for an event of the same batch, which is not made yet"""
    administrators: int
    """the label of an administrator; NO_LABEL without one"""
    others: tuple[tuple[int, int], ...]
    """the labels of other users, and the events that gave them"""


@dataclass(slots=True)
class PlannedEvent:
    """A request that will change the model: everything about its event but the steps."""

    kind: EventKind
    seq: int
    example: Example
    before: int
    after: int
    previous: int
    request: TrainingRequest
    rehearsed: tuple[tuple[int, PlannedEvent | Event], ...] = ()
    """(label, event) of earlier messages to rehearse"""
    undoes: int = 0
    person: int = 0
    """the person that the label belongs to; 0 for the shared model"""
    owner: int = 0
    """the user that the label belongs to; 0 for an administrator"""
    in_force: LabelInForce | None = None
    """the label that decides the verdict on the message after the event; None for a person's"""
    left: float = 1.0
    """the fraction of a full step of the shared corrections that the daily budget allows"""
    checked: EarlierLabel | None = None
    """an earlier label of the user, which tells how far this one is believed"""
    credit: int = 0
    """how far the earlier labels of the user are confirmed"""
    rows: NDArray[np.integer[Any]] = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: tuple[int, ...] = ()
    message_rows: MessageRows | None = None
    """of the features that the event counts"""
    left_out: bytes = b""
    """the blocks whose features are not counted"""

    @property
    def counted_ids(self) -> tuple[Ids, ...]:
        """The features that the event counts and corrects."""
        return counted(self.example.ids, self.example.blocks, self.left_out)

    @property
    def label_key(self) -> bytes:
        """The key of the label that the event will set."""
        return label_key(self.example.digest, self.person, self.owner)


@dataclass(slots=True)
class PendingJournal:
    """The journal as it will be after the planned events: the store's events and those planned."""

    view: ReadView
    labels: list[int]
    """labels of the newest events, oldest first"""
    last_seq: int
    live: dict[bytes, MessageState] = field(default_factory=dict)
    owners: dict[bytes, dict[int, MessageState]] = field(default_factory=dict)
    """the states of this batch's labels again, by digest and owner"""
    planned: dict[int, PlannedEvent] = field(default_factory=dict)
    made: dict[int, Event] = field(default_factory=dict)
    replaced: set[int] = field(default_factory=set)
    own_live: dict[int, list[int]] = field(default_factory=dict)
    """live sequence numbers of this batch, by label, ascending"""
    stored: int = 0
    """the last event that was in the store before the transaction"""

    def state(self, key: bytes) -> MessageState | None:
        """Return the label with this key and its newest event; None if it was never learnt."""
        return self.live.get(key) or self.view.live(key)

    def labels_of(self, digest: bytes) -> dict[int, MessageState]:
        """Return the labels of a message by owner, without those of persons."""
        return self.view.labels(digest) | self.owners.get(digest, {})

    def in_force(self, digest: bytes, given: Mapping[int, int] | None = None) -> LabelInForce:
        """Return the label in force for a message, with labels about to be `given`, in order."""
        states = self.labels_of(digest)
        old = {owner: state.label for owner, state in states.items()}
        labels = old | dict(given or {})
        turns = {owner: turn for turn, owner in enumerate(given or (), 1)}

        def since(owner: int) -> int:
            if owner in old and old[owner] == labels[owner]:
                return self._since(states[owner].seq)
            return self.last_seq + turns[owner]

        return label_in_force(labels, since)

    def _since(self, seq: int) -> int:
        """Return the event that gave a label, which later ones have repeated or restored."""
        while event := self.outline(seq):
            if event.kind == EventKind.UNDO:
                undone = self.outline(event.undoes)
                earlier = undone.previous if undone else 0
            else:
                earlier = event.previous if event.before == event.after else 0
            if not earlier:
                break
            seq = earlier
        return seq

    def take(self, plan: PlannedEvent) -> None:
        """Add a planned event."""
        self.last_seq = plan.seq
        self.planned[plan.seq] = plan
        if plan.previous:
            self.replaced.add(plan.previous)
            if plan.previous in self.own_live.get(plan.before, ()):
                self.own_live[plan.before].remove(plan.previous)
        self.own_live.setdefault(plan.after, []).append(plan.seq)
        if plan.example.digest:
            state = MessageState(plan.after, plan.seq, False)
            self.live[plan.label_key] = state
            if not plan.person:
                self.owners.setdefault(plan.example.digest, {})[plan.owner] = state
        if plan.kind in (EventKind.LEARN, EventKind.MOVE):
            self.labels = [*self.labels[1 - STREAK :], plan.after]

    def event(self, seq: int) -> Event | None:
        """Return an event of the store, or one already made in this batch."""
        return self.made.get(seq) or self.view.event(seq)

    def outline(self, seq: int) -> PlannedEvent | Event | None:
        """Return an event of the store, or the plan of one of this batch."""
        return self.planned.get(seq) or self.view.event(seq)

    def find_live(self, label: int, seq: int) -> int:
        """As `ReadView.live_at`, over the store's events and those of this batch."""
        planned = self.own_live.get(label, [])
        for start in (seq, 1):
            found = self._stored_live(label, start)
            later = bisect_left(planned, start)
            if found or later < len(planned):
                # Every event of the store is older than those of this batch.
                return found or planned[later]
        return 0

    def _stored_live(self, label: int, seq: int) -> int:
        """Return the store's first live event at or after seq that is not replaced; 0 if none."""
        while (found := self.view.live_at(label, seq)) >= seq:
            if found not in self.replaced:
                return found
            seq = found + 1
        return 0

    def uncovered(self, seq: int) -> Iterator[int]:
        """Yield `seq`; if that event is an undo, the event whose state it restored, and so on.

        The last number is of an event that is no undo, or 0 if the message was not learnt before.
        """
        yield seq
        event = self.outline(seq)
        while event and event.kind == EventKind.UNDO:
            undone = self.outline(event.undoes)
            seq = undone.previous if undone else 0
            yield seq
            event = self.outline(seq)


def pseudo_random(number: int) -> int:
    """Map a number to a pseudo-random one (splitmix64)."""
    number = (number * 0x9E3779B97F4A7C15 + 0x1234567) & (2**64 - 1)
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return number ^ (number >> 31)


class Planner:
    """Plans the events of one model."""

    def __init__(
        self,
        recipe: Recipe,
        is_doubted: Callable[[ReadView, Learn], bool] = lambda *_: False,
    ) -> None:
        self.recipe = recipe
        self._is_doubted = is_doubted
        """whether the stored model still classifies a message otherwise than its label says"""

    def plan(self, request: TrainingRequest, journal: PendingJournal) -> PlannedEvent | Receipt:
        """Plan a request and add it to the pending journal."""
        try:
            plan = _PLANNERS[type(request)](self, request, journal)
        except SpamnbError as error:
            return _refused(request, error)
        if isinstance(plan, PlannedEvent):
            journal.take(plan)
        return plan

    def teach(self, request: Learn, journal: PendingJournal) -> PlannedEvent | Receipt:
        """Plan a LEARN or a MOVE, or return a receipt if the message has this label already."""
        example, person = request.example, request.source.person
        if person and self.recipe.kind != "corrected":
            raise RefusedError(
                f"a model of kind {self.recipe.kind} has no corrections of persons",
                hint="only models of kind corrected have them",
            )
        owner = owner_of(request.source, example.digest, journal)
        live = journal.state(label_key(example.digest, person, owner))
        before = live.label if live else NO_LABEL
        in_force = (
            None if person else journal.in_force(example.digest, given={owner: request.label})
        )
        if live and before == request.label:
            is_decisive = in_force is None or in_force.label == request.label
            if not (is_decisive and self._is_repeated(request, live, journal)):
                receipt = self._unchanged(example, live, "already learnt with this label")
                return self.with_reason(receipt, in_force)
        if live and live.folded and before != NO_LABEL:
            raise RefusedError(
                f"this message was learnt as {self.recipe.labels[before]} before the checkpoint",
                hint="the checkpoint cannot be changed; train newer messages instead",
            )
        kind = EventKind.LEARN if before == NO_LABEL else EventKind.MOVE
        event = journal.outline(live.seq) if live and kind == EventKind.MOVE else None
        if event:
            # Move the features that were learnt, which another version may extract differently.
            example = example_of(event)._replace(words=example.words)
        previous = live.seq if live and not live.folded else 0
        plan = PlannedEvent(
            kind, journal.last_seq + 1, example, before, request.label, previous, request
        )
        plan.person, plan.owner, plan.in_force = person, owner, in_force
        plan.rehearsed = self._rehearsals(plan, journal)
        return plan

    def _is_repeated(self, request: Learn, live: MessageState, journal: PendingJournal) -> bool:
        """Return whether a label that the store has needs further steps."""
        if live.folded or live.seq > journal.stored or not request.again:
            return False
        event = journal.view.event(live.seq)
        if event is not None and abs(request.time_us - event.time_us) < request.pause_us:
            return False
        return self._is_doubted(journal.view, request)

    def _rehearsals(
        self, plan: PlannedEvent, journal: PendingJournal
    ) -> tuple[tuple[int, PlannedEvent | Event], ...]:
        """Choose earlier messages of the other labels, after a series of events of one label."""
        if self.recipe.kind != "corrected" or journal.labels.count(plan.after) < STREAK:
            return ()
        found = []
        for turn in range(REHEARSALS):
            place = pseudo_random(plan.seq * REHEARSALS + turn) % plan.seq + 1
            for label in range(len(self.recipe.labels)):
                seq = journal.find_live(label, place) if label != plan.after else 0
                earlier = journal.outline(seq) if seq and seq != plan.previous else None
                if earlier:
                    found.append((label, earlier))
        return tuple(found)

    def forget(self, request: Forget, journal: PendingJournal) -> PlannedEvent | Receipt:
        """Plan a FORGET of a message that has a label."""
        live = journal.state(own_key(request.source, request.digest, journal))
        if live is None:
            if journal.labels_of(request.digest):
                raise RefError(
                    f"{request.source.user} has given the message no label",
                    hint="only the user who gave a label, or an administrator, takes it back",
                )
            raise RefError(
                f"no message with digest {request.digest.hex()} was ever learnt",
                hint="`spamnb journal` lists what was learnt",
            )
        if live.label == NO_LABEL:
            nothing = Example(request.digest, "", ())
            return self._unchanged(nothing, live, "already forgotten")
        if live.folded:
            raise RefusedError(
                f"the message was learnt as {self.name(live.label)} before the checkpoint",
                hint="the checkpoint cannot be changed",
            )
        event = journal.outline(live.seq)
        assert event is not None, "a live event that is not folded is in the journal"
        seq, example = journal.last_seq + 1, example_of(event)
        plan = PlannedEvent(EventKind.FORGET, seq, example, live.label, NO_LABEL, live.seq, request)
        plan.person, plan.owner = event.person, event.owner
        self._note_in_force(plan, journal)
        return plan

    def _note_in_force(self, plan: PlannedEvent, journal: PendingJournal) -> None:
        """Note which label decides the verdict on the message when the plan is carried out."""
        if plan.example.digest and not plan.person:
            plan.in_force = journal.in_force(plan.example.digest, {plan.owner: plan.after})

    def undo(self, request: Undo, journal: PendingJournal) -> PlannedEvent | Receipt:
        """Plan an UNDO of the newest event of a message."""
        event = journal.outline(request.event)
        if event is None:
            raise RefError(
                f"the journal has no event {request.event}",
                hint="the event was merged into the checkpoint, or belongs to another model",
            )
        if event.kind == EventKind.ERASED:
            raise RefusedError(f"event {event.seq} was erased with its person")
        example = example_of(event)
        live = journal.state(event.label_key)
        assert live is not None, "every event of the journal has set a label"
        if event.seq not in journal.uncovered(live.seq):
            newer = journal.outline(live.seq)
            if newer and newer.undoes == event.seq:
                return self._unchanged(example, live, "already undone")
            raise RefusedError(
                f"event {event.seq} was followed by event {live.seq} on the same message",
                hint=f"undo {live.seq} first",
            )
        if event.before != NO_LABEL and journal.outline(event.previous) is None:
            raise RefusedError(
                f"event {event.seq} replaced an event that is in the checkpoint by now and cannot"
                " be restored",
                hint="forget the message, or train it with the other label",
            )
        seq = journal.last_seq + 1
        plan = PlannedEvent(
            EventKind.UNDO, seq, example, event.after, event.before, live.seq, request
        )
        plan.undoes, plan.person, plan.owner = event.seq, event.person, event.owner
        self._note_in_force(plan, journal)
        return plan

    def load(self, request: BulkLoad, journal: PendingJournal) -> PlannedEvent | Receipt:
        """Plan an IMPORT, EXPIRE or SCORES. Its digest makes sure that it is undone only once."""
        seq = journal.last_seq + 1
        unique = blake2b(f"load {seq} {request.time_us}".encode(), digest_size=16).digest()
        live = journal.state(request.digest)
        if live is not None and (live.folded or [*journal.uncovered(live.seq)][-1]):
            raise RefusedError(
                f"this was imported before: event {live.seq}",
                hint=f"`spamnb undo {live.seq}` removes it; with --again it counts twice",
            )
        none = tuple(np.zeros(0, np.uint64) for _ in range(self.recipe.groups))
        kind = EventKind.EXPIRE if request.expire else EventKind.IMPORT
        kind = EventKind.SCORES if request.scores else kind
        previous = live.seq if live else 0
        example = Example(request.digest or unique, "", none)
        plan = PlannedEvent(kind, seq, example, NO_LABEL, NO_LABEL, previous, request)
        plan.person = request.source.person
        return plan

    def name(self, label: int) -> str | None:
        """Return a label's name; None for NO_LABEL."""
        return None if label == NO_LABEL else self.recipe.labels[label]

    def with_reason(self, receipt: Receipt, in_force: LabelInForce | None) -> Receipt:
        """Return a receipt that says which label decides the verdict on the message, and why."""
        if in_force is None or in_force.label == NO_LABEL:
            return receipt
        return receipt._replace(in_force=self.name(in_force.label), why=str(in_force.reason))

    def _unchanged(self, example: Example, live: MessageState, reason: str) -> Receipt:
        name = self.name(live.label)
        digest = example.digest.hex()
        return Receipt(
            changed=False,
            event=0,
            digest=digest,
            message_id=example.message_id,
            before=name,
            after=name,
            reason=reason,
            already=live.seq,
        )


_PLANNERS: dict[type, Callable[..., PlannedEvent | Receipt]] = {
    Learn: Planner.teach,
    Forget: Planner.forget,
    Undo: Planner.undo,
    BulkLoad: Planner.load,
}


def owner_of(source: Source, digest: bytes, journal: PendingJournal) -> int:
    """Return the owner of the label that a source without a person changes.

    In models of version 0.1.0, the labels of users have no owner: such a label belongs to the user
    that its event names.
    """
    owner = 0 if source.person else source.owner
    if not owner or owner & UNVERIFIED or journal.state(label_key(digest, 0, owner)):
        return owner
    shared = journal.state(digest)
    if shared is None or shared.label == NO_LABEL or shared.folded:
        return owner
    event = journal.outline(shared.seq)
    is_own = isinstance(event, Event) and event.immediate and same_name(event.user, source.user)
    return 0 if is_own else owner


def own_key(source: Source, digest: bytes, journal: PendingJournal) -> bytes:
    """Return the key of a source's label: the person's, or an older one of the same user."""
    key = label_key(digest, source.person)
    if source.person and (journal.state(key) or not source.owner):
        return key
    older = label_key(digest, 0, owner_of(source._replace(person=0), digest, journal))
    return older if not source.person or journal.state(older) else key


def example_of(event: PlannedEvent | Event) -> Example:
    """Return the message of an event."""
    if isinstance(event, PlannedEvent):
        return event.example
    return stored_example(event)


def _refused(request: TrainingRequest, error: SpamnbError) -> Receipt:
    example = request.example if isinstance(request, Learn) else None
    digest = request.digest if isinstance(request, Forget) else example.digest if example else b""
    message_id = example.message_id if example else ""
    return Receipt(False, 0, digest.hex(), message_id, None, None, error=error)


CONFIRMED = 2
"""Users with this credit have a budget of their own; all others together share one."""
MOST = 8
"""A user that was right for a long time is doubted after (MOST - CONFIRMED) / 2 wrong labels."""
WRONG = 2


def moved(credit: int, *, agrees: bool | None) -> int:
    """Return a user's credit after a check; None changes nothing."""
    if agrees is None:
        return credit
    return max(-MOST, min(MOST, credit + (1 if agrees else -WRONG)))


def is_believed(credit: int) -> bool:
    """Return whether a user has an own budget, and may confirm or contradict other users."""
    return credit >= CONFIRMED


def weight(credit: int) -> float:
    """Return the factor of the steps of a user: halved by each contradiction not made up for."""
    return 1 / (1 << max(-credit, 0) // WRONG)


def agreement(label: int, others: Iterable[int]) -> bool | None:
    """Return whether most labels of others are this one; None without a majority."""
    votes = [1 if other == label else -1 for other in others]
    return sum(votes) > 0 if sum(votes) else None


def model_agreement(seen: Prediction, label: int) -> bool | None:
    """Return whether the model gives a message this label; None if it is not sure enough."""
    shares = softmax(seen.joint)
    if shares[label] == max(shares) and shares[label] > 1 / len(shares):
        return True
    return False if shares[label] * len(shares) < DOUBT else None
