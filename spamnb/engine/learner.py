"""The learner: one writer, groups of commits.

`Committer` gathers the requests of several threads into one transaction, `Learner` and
`LearningBatch` turn them into events and rows, `StepBudgets` limits how far the feedback of users
changes the shared corrections, and `with_personal_step` has the personal part of a label. Failure:
a refused request gives a receipt with its error, and the others are carried out; an error of the
rows or the store aborts the transaction, and nothing is changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.engine import planner
from spamnb.engine.planner import (
    STREAK,
    EarlierLabel,
    PendingJournal,
    PlannedEvent,
    Planner,
    pseudo_random,
)
from spamnb.engine.receipt import Receipt
from spamnb.engine.scoring import score_examples
from spamnb.engine.values import (
    BulkLoad,
    Example,
    Learn,
    MergedWords,
    Source,
    TrainingRequest,
    WordSource,
)
from spamnb.errors import BugError, RefusedError
from spamnb.model.correction import (
    FeatureHolders,
    correction_updates,
    decision_margins,
    matches_label,
    missing_nats,
)
from spamnb.model.costs import Costs, roles_of
from spamnb.model.events import (
    DIGEST_BYTES,
    NO_LABEL,
    STEP_ONE,
    UNVERIFIED,
    Event,
    EventKind,
    Ids,
    Ints,
    Recipe,
    RehearsalUpdate,
    Update,
    no_update,
)
from spamnb.model.features import Key, Words, digest_id, distinct
from spamnb.model.persons import PersonalMessage, PersonalRows, personal_message, personal_step
from spamnb.model.scoring import (
    RowView,
    correction_weights,
    doubt,
    good_blocks,
    joint_lead,
    maturity,
    probabilities,
    scores,
    softmax,
    step,
)
from spamnb.model.training_rows import MessageRows, TrainingRows, day_of
from spamnb.store.codec import charged_bytes
from spamnb.store.table_views import ReadView, Store, WriteView


def message_for_person(
    recipe: Recipe, plan: PlannedEvent, training_rows: TrainingRows
) -> PersonalMessage:
    """Return the message as it is for the person of the plan, with the present numbers.

    A label of a person belongs to message and person (`label_key`): two persons may give one
    message different labels, and each of them can undo only their own.
    """
    persons = training_rows.persons
    if persons is None:
        raise BugError("an event of a person needs the corrections of persons")
    rows = training_rows.message_rows(plan.rows, plan.sizes)
    seen = training_rows.predict(recipe, rows, plan.example.blocks)
    shared = seen, maturity(training_rows.totals)
    return personal_message(plan.person, plan.example.ids, shared, persons.of(plan.person))


def scores_for_person(recipe: Recipe, view: ReadView, example: Example, person: int) -> list[float]:
    """Return the scores of a message for a person, by the model of a store."""
    every = np.unique(np.concatenate(example.ids))
    training_rows = TrainingRows(view.totals(), every, view.gather(every))
    seen = training_rows.predict(recipe, training_rows.find(example.ids), example.blocks)
    personal = PersonalRows(len(recipe.labels), view.personal).of(person)
    shared = seen, maturity(training_rows.totals)
    return personal_message(person, example.ids, shared, personal).predict().z


def with_personal_step(
    recipe: Recipe, costs: Costs, plan: PlannedEvent, training_rows: TrainingRows, update: Update
) -> Update:
    """Add the personal step to the update of a label, and to the person's corrections."""
    message = message_for_person(recipe, plan, training_rows)
    steps = personal_step(recipe, costs, message, plan.after)
    assert training_rows.persons is not None, "message_for_person has read them"
    training_rows.persons.put(plan.person, message.with_step(steps).personal)
    return update._replace(personal=steps)


DAY_US = 86_400_000_000
WINDOW_US = 30 * DAY_US
"""The time in which the steps of all users without credit are limited, and credit is kept."""
RECENT_EVENTS = 1000
"""Newest events in which a person's messages are counted."""
MOST_EVENTS = 50_000
"""Maximum number of events of thirty days that are read. The first correction decodes them, 20 us
each; a later one takes less than a millisecond for all."""
_AT_ONCE = 256
_SIZE_ONE = 1 << 30
"""Sizes are integers, so a sum does not depend on the order."""
_ROW = np.dtype([
    ("seq", "i8"), ("time", "i8"), ("size", "i8"), ("person", "i4"), ("user", "i4"),
    ("messages", "i4"), ("pooled", "?"), ("labelled", "?"), ("credit", "i1"),
])  # fmt: skip
_Rows = NDArray[np.void]
_Used = tuple[int, int, int, int, int, int, bool, bool, int]
"""What an event used of a budget: number, time, size, person, user, 1 for a message learnt and -1
for one forgotten, whether it used the shared budget, whether it set a user's label, and credit."""
_NOTHING: _Used = (0, 0, 0, -1, -1, 0, False, False, 0)
MIN_STEPS = 0.5
"""Full steps of one person in a day: the twenty worst corrections found let 1.4 points more spam
through; without a budget, 97 (decision 0030)."""
SHARED_STEPS = 1.0
"""Full steps of all users without credit in thirty days. With a budget for each of them alone,
twenty accounts with one label each had 31 points of ham not delivered; with 2, 3.6 (0066)."""
CREDIT_STEPS = 0.25
"""Full steps of a user with credit in thirty days, for each point of credit."""
LIMITED = MIN_STEPS / 2
"""A label that may take less than this part of a full step is reported as limited."""
YOUNG_MODEL_STEPS = 40.0
"""A model with few messages has a larger budget: this many steps, divided by the messages of all
labels but the most frequent one."""


class Used(NamedTuple):
    """What one person, or all persons together, have used."""

    steps: float
    """full steps, in the time of the budget"""
    messages: int
    """of the newest events"""


def budget(messages: Ints, own: int, steps: float = MIN_STEPS) -> float:
    """Return the full steps, for `messages` per label, `own` of them by the person or persons."""
    every = int(messages.sum())
    others = max(1 - own / every, 0.0) if every else 0.0
    least = max(steps, YOUNG_MODEL_STEPS / max(every - int(messages.max()), 1))
    return least / others if others else inf


def person_of(source: Source | Event) -> str | None:
    """Return the name of the budget that a request uses; None for training without budget.

    All channels with reduced weight share one budget.
    """
    if source.immediate:
        return _name_of(source)
    return None if source.weight >= 1 else ""


def _name_of(source: Source | Event) -> str:
    """Return the name of a user; a person has one budget, whatever address is used."""
    return f"person {source.person:016x}" if source.person else source.user.casefold()


class StepBudgets:
    """What is left of the budgets of one model.

    The size of a step is its error, 1 - P(label), times its weight and the reduction for
    contradicting labels. The steps of one person within a day sum to less than a budget: each is
    scaled by what is left of it, so strong contradictions have less effect the more there are.
    Labels that the model agrees with use up next to nothing. Counts still change by one, and the
    corrected message still gets the person's label (`model.correction`). Bulk training has no
    budget: the owner of the model runs it.

    All users without enough credit (`planner`) share one more budget, for thirty days: many
    new accounts have no more effect than one, and waiting for the next day gains nothing. A user
    with credit does not use it, and has an own one for thirty days that grows with the credit.

    Persons that trained most of a model can harm few others, so a budget grows with the share of
    the messages of its person, or of all users without credit: a model trained by one person's
    corrections alone has no limit.

    Spent budgets, shares and credit are read from the journal, so a restart, another process or a
    relearning gets the same numbers. Must not know scores.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._names: dict[str | None, int] = {}
        self._first, self._count = 1, 0
        """number of the first event of `_rows`, and how many there are"""
        self._rows = np.zeros(0, _ROW)
        self._noted: dict[int, _Used] = {}
        """of the newest events, which need not be read again"""

    def left(self, plan: PlannedEvent, messages: Ints, journal: PendingJournal) -> float:
        """Return the fraction of a full step, 0 to 1, that this request may take."""
        person = person_of(plan.request.source)
        if person is None:
            return 1.0
        own, month, together = self._in_journal(person, plan, journal)
        budgets = [(own, MIN_STEPS)]
        if _shares(plan):
            believed = planner.is_believed(plan.credit)
            steps = CREDIT_STEPS * plan.credit
            budgets.append((month, steps) if believed else (together, SHARED_STEPS))
        return planner.weight(plan.credit) * min(
            # At most the budget itself, which may be less than one full step.
            max(0.0, min(most, 1.0) * (1 - used.steps / most))
            for used, steps in budgets
            for most in (budget(messages, used.messages, steps),)
        )

    def check(self, plan: PlannedEvent, journal: PendingJournal) -> EarlierLabel | None:
        """Choose an earlier label of the user of a plan, to be compared with what others say."""
        if not plan.owner or not sets_users_label(plan):
            return None
        labels = self._labels_of(plan, journal)
        seqs = labels["seq"].tolist()
        now = plan.request.time_us
        seqs += [
            seq
            for seq, one in journal.planned.items()
            if one.owner == plan.owner
            and seq < plan.seq
            and sets_users_label(one)
            and now - WINDOW_US < one.request.time_us < now + DAY_US
        ]
        if not seqs:
            return None
        seq = seqs[pseudo_random(plan.seq) % len(seqs)]
        earlier = journal.outline(seq)
        state = journal.state(earlier.label_key) if earlier else None
        if earlier is None or state is None or state.seq != seq:
            return None
        states = journal.labels_of(earlier.label_key[:DIGEST_BYTES])
        administrators = states.pop(0).label if 0 in states else NO_LABEL
        others = tuple(
            (other.label, other.seq)
            for owner, other in sorted(states.items())
            if owner != earlier.owner and other.label != NO_LABEL
        )
        stored = earlier if isinstance(earlier, Event) else None
        return EarlierLabel(seq, stored, administrators, others)

    def credit_before(self, plan: PlannedEvent, journal: PendingJournal) -> int:
        """Return the credit of the newest label of the user of a plan; 0 without one."""
        labels = self._labels_of(plan, journal)
        return int(labels["credit"][-1]) if len(labels) else 0

    def _labels_of(self, plan: PlannedEvent, journal: PendingJournal) -> _Rows:
        """Return the rows of the labels of the user of a plan, in the time that credit is kept."""
        now = plan.request.time_us
        rows = self._before(plan.seq, now - WINDOW_US, journal)
        chosen = rows["labelled"] & (rows["user"] == self._name(_name_of(plan.request.source)))
        labels: _Rows = rows[chosen & _inside(rows, now, WINDOW_US)]
        return labels

    def note(self, events: Iterable[Event]) -> None:
        """Take events that a transaction has added to the store."""
        self._noted |= {event.seq: self._used(event) for event in events}

    def _in_journal(
        self, person: str, plan: PlannedEvent, journal: PendingJournal
    ) -> tuple[Used, Used, Used]:
        """Return what the person used in a day and in `WINDOW_US`, and the users without credit.

        An event with a time of more than a day ahead was made before the clock was set back. It
        does not count: otherwise it would use up the budget until the clock reaches its time.
        """
        now = plan.request.time_us
        rows = self._before(plan.seq, now - WINDOW_US, journal)
        recent = rows[-RECENT_EVENTS:]
        name = self._name(person)
        own = int(recent["messages"][recent["user"] == name].sum()) if person else 0
        every = int(recent["messages"][recent["pooled"]].sum())
        is_own = rows["person"] == name
        return (
            Used(_spent(rows, now, DAY_US, is_own), own),
            Used(_spent(rows, now, WINDOW_US, is_own & ~rows["pooled"]), own),
            Used(_spent(rows, now, WINDOW_US, rows["pooled"]), every),
        )

    def _before(self, seq: int, since: int, journal: PendingJournal) -> _Rows:
        """Return the rows of the events before this one, at least as far back as they count."""
        self._read_new(journal)
        least = max(seq - MOST_EVENTS, 1)
        while self._first > least and (
            not self._count or self._first >= seq - RECENT_EVENTS or self._rows[0]["time"] > since
        ):
            if not self._read_older(journal):
                break
        planned = map(journal.event, range(max(journal.stored + 1, least), seq))
        pending = np.array([self._used(event) for event in planned if event], _ROW)
        stored = self._rows[max(least - self._first, 0) : self._count]
        return np.concatenate((stored, pending)) if len(pending) else stored

    def _read_new(self, journal: PendingJournal) -> None:
        """Read the events that were stored since the last call."""
        at, new = self._first + self._count, list[_Used]()
        # After a large training, only the newest events count; they are read backwards.
        if at > journal.stored + 1 or journal.stored - at >= RECENT_EVENTS:
            self._first, self._count = journal.stored + 1, 0
            self._noted.clear()
            return
        for seq in range(at, journal.stored + 1):
            event = None if seq in self._noted else journal.view.event(seq)
            new.append(self._used(event) if event else self._noted.pop(seq, _NOTHING))
        self._noted.clear()
        if self._count + len(new) > len(self._rows):
            kept = self._rows[max(self._count - MOST_EVENTS, 0) : self._count]
            self._first += self._count - len(kept)
            self._rows = np.zeros(2 * (len(kept) + len(new)), _ROW)
            self._rows[: len(kept)] = kept
            self._count = len(kept)
        if new:
            self._rows[self._count : self._count + len(new)] = new
            self._count += len(new)

    def _read_older(self, journal: PendingJournal) -> int:
        """Read some events before the known ones; return how many there were."""
        older: list[_Used] = []
        for seq in range(self._first - 1, max(self._first - 1 - _AT_ONCE, 0), -1):
            event = journal.view.event(seq)
            if event is None:  # it is in the checkpoint
                break
            older.append(self._used(event))
        if older:
            known = self._rows[: self._count]
            self._rows = np.concatenate((np.array(older[::-1], _ROW), known))
            self._first -= len(older)
            self._count += len(older)
        return len(older)

    def _used(self, event: Event) -> _Used:
        person = person_of(event)
        step = event.kind in (EventKind.LEARN, EventKind.MOVE) and event.before != event.after
        messages = (event.after != NO_LABEL) - (event.before != NO_LABEL)
        size = round(self._size(event) * _SIZE_ONE) if step and person is not None else 0
        user = self._name(_name_of(event))
        pooled = _shares(event) and not planner.is_believed(event.credit)
        labelled = event.owner != 0 and sets_users_label(event)
        return (
            event.seq, event.time_us, size, self._name(person), user, messages,
            pooled, labelled, event.credit,
        )  # fmt: skip

    def _name(self, name: str | None) -> int:
        return self._names.setdefault(name, len(self._names))

    def _size(self, event: Event) -> float:
        """Return the size of an event's step, in full steps: that of the larger group."""
        full = self._recipe.eta / 2 * STEP_ONE
        if not full:
            return 0.0
        steps: list[int] = event.net_update.steps[:, event.after].tolist()
        roots = [sqrt(max(len(part), 1)) for part in event.counted_ids]
        return max(0.0, *(step * root / full for step, root in zip(steps, roots, strict=False)))


def _spent(rows: _Rows, now: int, span: int, chosen: NDArray[np.bool_]) -> float:
    """Return the sum of the chosen steps within a span."""
    return int(rows["size"][chosen & _inside(rows, now, span)].sum()) / _SIZE_ONE


def _inside(rows: _Rows, now: int, span: int) -> NDArray[np.bool_]:
    """Return which rows are within a span, without events before an older one."""
    since, times = now - span, rows["time"]
    older = (times[:-RECENT_EVENTS] <= since).nonzero()[0]
    inside: NDArray[np.bool_] = (since < times) & (times < now + DAY_US)
    inside[: int(older[-1]) + 1 if len(older) else 0] = False
    return inside


def _source(one: PlannedEvent | Event) -> Source | Event:
    return one.request.source if isinstance(one, PlannedEvent) else one


def _shares(one: PlannedEvent | Event) -> bool:
    """Return whether an event is a correction by a user who is no administrator."""
    proven = one.owner != 0 and not one.owner & UNVERIFIED
    return _source(one).immediate and (proven or one.person != 0)


def sets_users_label(one: PlannedEvent | Event) -> bool:
    """Return whether an event gives a message the label of a user who is no administrator."""
    is_label = one.kind in (EventKind.LEARN, EventKind.MOVE) and one.after != NO_LABEL
    return is_label and _shares(one) and not one.person


FEATURE_BYTES = 60
"""Size of a new feature beside its text: a row of 41 bytes and 19 in the vocabulary, as measured
with 200,000 random words."""


class Learner:
    """Carries out the training requests of one model."""

    def __init__(self, recipe: Recipe, costs: Costs) -> None:
        self.recipe = recipe
        self.costs = costs
        self.planner = Planner(recipe, self._is_doubted)
        self._roles = roles_of(recipe.labels)
        self._margins = decision_margins(costs)
        self._key = Key(recipe.key)
        self._budgets = StepBudgets(recipe)
        self._recent: tuple[int, list[int]] = (-1, [])
        self._next_recent, self._next_corrections = self._recent, list[Event]()

    def run(
        self, view: WriteView, requests: Sequence[TrainingRequest], *, scored: bool = True
    ) -> list[Receipt]:
        """Run all requests in order; `scored` adds the probabilities before and after."""
        learning_batch = LearningBatch(self, view)
        receipts = learning_batch.take(requests, scored=scored)
        learning_batch.close()
        return receipts

    def finished(self, last_seq: int, labels: list[int], corrections: list[Event]) -> None:
        """Keep the results of a transaction; `committed` follows when they are in the store."""
        self._next_recent, self._next_corrections = (last_seq, labels), corrections

    def committed(self) -> None:
        """Note that the last run is in the store, so that its events need not be read again."""
        self._recent = self._next_recent
        self._budgets.note(self._next_corrections)

    def newest(self, view: ReadView, last_seq: int) -> list[int]:
        """Return the labels of the newest events, oldest first; reading them takes 0.2 ms."""
        known, labels = self._recent
        if known == last_seq:
            return labels
        return [label for _, label in view.last_events(STREAK)][::-1]

    def plan(self, request: TrainingRequest, journal: PendingJournal) -> PlannedEvent | Receipt:
        """Plan a request, and choose an earlier label of its user to check."""
        plan = self.planner.plan(request, journal)
        if isinstance(plan, PlannedEvent) and self.recipe.kind == "corrected":
            plan.checked = self._budgets.check(plan, journal)
        return plan

    def apply_plan(
        self,
        plan: PlannedEvent,
        training_rows: TrainingRows,
        journal: PendingJournal,
        *,
        scored: bool,
    ) -> Receipt:
        """Make the event of a plan and apply it to the rows."""
        message_rows = training_rows.message_rows(plan.rows, plan.sizes)
        scored = scored and bool(plan.example.digest)
        before = self._probability(training_rows, plan, message_rows) if scored else None
        plan.left_out = self._left_out(plan, message_rows, training_rows, journal)
        plan.message_rows = training_rows.find(plan.counted_ids) if plan.left_out else message_rows
        size = self._new_bytes(plan) if scored else 0
        event = _MAKERS[plan.kind](self, plan, training_rows, journal)
        if scored:
            message_rows = training_rows.message_rows(plan.rows, plan.sizes)
        after = self._probability(training_rows, plan, message_rows) if scored else None
        journal.made[plan.seq] = event
        receipt = Receipt(
            changed=True,
            event=plan.seq,
            digest=event.digest.hex(),
            message_id=event.message_id,
            before=self.planner.name(plan.before),
            after=self.planner.name(plan.after),
            probability_before=before,
            probability_after=after,
            limited=plan.left < LIMITED,
            stored_bytes=size + charged_bytes(event) if scored else 0,
        )
        return self.planner.with_reason(receipt, plan.in_force)

    def _left_out(
        self,
        plan: PlannedEvent,
        message_rows: MessageRows,
        training_rows: TrainingRows,
        journal: PendingJournal,
    ) -> bytes:
        """Return the blocks that an event does not count: those of the event it takes back."""
        if plan.kind != EventKind.LEARN:
            earlier = journal.event(plan.undoes or plan.previous)
            return earlier.left_out if earlier else b""
        recipe, blocks = self.recipe, plan.example.blocks
        if blocks is None or self._roles[plan.after] != "spam":
            return b""
        seen = training_rows.predict(recipe, message_rows, blocks)
        message = message_rows.cells, message_rows.sizes
        return good_blocks(recipe, training_rows.totals, message, seen, blocks)

    def _new_bytes(self, plan: PlannedEvent) -> int:
        """Return the size that the new features of a message and their texts will take."""
        assert plan.message_rows is not None
        is_new = plan.message_rows.cells[: len(self.recipe.labels)].sum(axis=0) == 0
        new = np.sort(np.concatenate(plan.counted_ids)[is_new])
        words = plan.example.words if self.recipe.vocabulary else None
        texts = int(words.words(new).sizes.sum()) if words else 0
        return FEATURE_BYTES * len(new) + texts

    def make_learn(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make a LEARN or MOVE event."""
        request, message_rows = plan.request, plan.message_rows
        assert isinstance(request, Learn)
        plan.credit = self._credit(plan, training_rows, journal)
        assert message_rows is not None
        if plan.before == plan.after:
            return self._reinforced(plan, training_rows, journal)
        times = plan.example.times
        back = self._take_back(plan, training_rows, journal)
        if plan.before != NO_LABEL:
            # The old label is removed first, so that the step is computed on the model without
            # this message, as a forget and a learn would.
            training_rows.count(message_rows, plan.before, NO_LABEL, times=times)
        update = self._step(plan, message_rows, training_rows, journal)
        training_rows.move(
            message_rows, NO_LABEL, plan.after, times=times, day=day_of(request.time_us)
        )
        training_rows.put(message_rows)
        update = self._rehearse(plan, training_rows, journal, update)
        contradicted = plan.in_force is not None and plan.in_force.contradicted
        if plan.person or request.source.immediate or contradicted:
            # Last, because rehearsals may change the score of this message again.
            update = self._enforce_label(plan, training_rows, update)
        delta = update if back is None else back.plus(update)
        return self._event(plan, delta, update)

    def _credit(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> int:
        """Return the credit of the user of a plan, after the check of an earlier label."""
        if not sets_users_label(plan) or self.recipe.kind != "corrected":
            return 0
        agrees = None
        if plan.checked:
            earlier = plan.checked.event or journal.event(plan.checked.seq)
            assert earlier is not None, "a live event that is not folded is in the journal"
            agrees = self._is_confirmed(earlier, plan.checked, training_rows, journal)
        return planner.moved(self._budgets.credit_before(plan, journal), agrees=agrees)

    def _is_confirmed(
        self,
        earlier: Event,
        checked: EarlierLabel,
        training_rows: TrainingRows,
        journal: PendingJournal,
    ) -> bool | None:
        """Return whether others, or else the model without the label, say the same."""
        if checked.administrators != NO_LABEL:
            return checked.administrators == earlier.after
        events = [(label, journal.event(seq)) for label, seq in checked.others]
        believed = [label for label, event in events if event and planner.is_believed(event.credit)]
        if events:
            # The model says of this message what most users say, also those without credit.
            return planner.agreement(earlier.after, believed)
        seen = training_rows.predict_without(self.recipe, earlier)
        return planner.model_agreement(seen, earlier.after)

    def _reinforced(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make an event with the steps still missing for the label that the message has."""
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        update = self._enforce_label(plan, training_rows, self._no_update())
        return self._event(plan, update, previous.net_update.plus(update))

    def _take_back(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Update | None:
        """Subtract the previous event's net update from the rows; return its negation."""
        if plan.before == NO_LABEL:
            return None
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        back = previous.net_update.negated()
        assert plan.message_rows is not None
        # The rehearsals first: they may share rows with this message.
        training_rows.apply_rehearsals(back)
        training_rows.add_to_totals(back)
        if training_rows.persons is not None:
            training_rows.persons.update(plan.person, plan.example.ids, back)
        plan.message_rows.cells = training_rows.find(plan.counted_ids).cells
        training_rows.update(plan.message_rows, back.steps)
        return back

    def _step(
        self,
        plan: PlannedEvent,
        message_rows: MessageRows,
        training_rows: TrainingRows,
        journal: PendingJournal,
    ) -> Update:
        recipe = self.recipe
        if recipe.kind != "corrected":
            return self._no_update()
        seen = training_rows.predict(recipe, message_rows)
        plan.left = self._budgets.left(plan, training_rows.totals.messages, journal)
        weight = plan.request.source.weight * plan.left * doubt(seen, plan.after)
        update = step(recipe, seen, message_rows.sizes, plan.after, weight)
        training_rows.update(message_rows, update.steps)
        training_rows.add_to_totals(update)
        return update

    def _enforce_label(
        self, plan: PlannedEvent, training_rows: TrainingRows, update: Update
    ) -> Update:
        """Add what the label in force still lacks, on features that few other messages contain.

        A label of a person with corrections of their own changes these instead.
        """
        if plan.person:
            costs = plan.request.source.costs or self.costs
            return with_personal_step(self.recipe, costs, plan, training_rows, update)
        if self.recipe.kind != "corrected":
            return update
        label = plan.after if plan.in_force is None else plan.in_force.label
        for rare in (True, False):
            more = self._missing(plan, training_rows, label, rare=rare)
            if more is None:
                break
            training_rows.apply_rehearsals(more)
            update = update.plus(more)
        return update

    def _missing(
        self, plan: PlannedEvent, training_rows: TrainingRows, label: int, *, rare: bool
    ) -> Update | None:
        """Return the steps that a label still lacks; None if the message is decided by it.

        Steps on rare features may miss the passage that decides. Steps on the message's own
        feature count for every passage.
        """
        recipe, message_rows = self.recipe, training_rows.message_rows(plan.rows, plan.sizes)
        seen = training_rows.predict(recipe, message_rows, plan.example.blocks)
        if matches_label(seen.z, label, self.costs, self._roles):
            return None
        margin = joint_lead(self._margins[self._roles[label]], maturity(training_rows.totals))
        nats = missing_nats(seen.judged, label, margin)
        counted_rows = training_rows.find(plan.counted_ids) if plan.left_out else message_rows
        counts = counted_rows.cells[: len(recipe.labels)]
        holders = counts.sum(axis=0)
        message = FeatureHolders(
            plan.counted_ids,
            holders if rare else np.full(len(holders), inf),
            correction_weights(training_rows.totals.messages, counts),
            digest_id(self._key, plan.example.digest),
        )
        rehearsals = correction_updates(recipe, message, label, nats)
        return self._no_update()._replace(rehearsals=rehearsals)

    def _is_doubted(self, view: ReadView, request: Learn) -> bool:
        """Return whether the stored model classifies a message otherwise than this label says."""
        example, source = request.example, request.source
        if source.person:
            z = scores_for_person(self.recipe, view, example, source.person)
        else:
            z = list(score_examples(self.recipe, self.costs, view, [example])[0].z)
        return not matches_label(z, request.label, source.costs or self.costs, self._roles)

    def _rehearse(
        self,
        plan: PlannedEvent,
        training_rows: TrainingRows,
        journal: PendingJournal,
        update: Update,
    ) -> Update:
        for label, planned in plan.rehearsed:
            ids = journal.made.get(planned.seq, planned).counted_ids
            message_rows = training_rows.find(ids)
            seen = training_rows.predict(self.recipe, message_rows)
            rehearsal = step(self.recipe, seen, message_rows.sizes, label, doubt(seen, label))
            training_rows.update(message_rows, rehearsal.steps)
            training_rows.put(message_rows)
            training_rows.add_to_totals(rehearsal)
            update = update._replace(
                bias=update.bias + rehearsal.bias,
                temperatures=update.temperatures + rehearsal.temperatures,
                rehearsals=(*update.rehearsals, RehearsalUpdate(ids, rehearsal.steps)),
            )
        return update

    def make_forget(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make a FORGET event: subtract the old step, then the counts."""
        back = self._take_back(plan, training_rows, journal)
        assert back is not None
        assert plan.message_rows is not None
        training_rows.move(plan.message_rows, plan.before, NO_LABEL, times=plan.example.times)
        training_rows.put(plan.message_rows)
        return self._event(plan, back, self._no_update())

    def make_undo(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make an UNDO event, the negation of another event."""
        undone = journal.event(plan.undoes)
        assert undone is not None, "what is undone is in the journal"
        older = journal.event(undone.previous) if undone.previous else None
        net_update = older.net_update if older else self._no_update()
        event = self._event(plan, undone.delta.negated(), net_update)
        bulk = undone.bulk.negated() if undone.bulk else None
        event = event._replace(undoes=undone.seq, bulk=bulk)
        training_rows.apply(event)
        return event

    def make_load(
        self, plan: PlannedEvent, training_rows: TrainingRows, _: PendingJournal
    ) -> Event:
        """Make an IMPORT, EXPIRE or SCORES event."""
        request = plan.request
        assert isinstance(request, BulkLoad)
        event = self._event(plan, self._no_update(), self._no_update())._replace(bulk=request.bulk)
        training_rows.apply(event)
        return event

    def _event(self, plan: PlannedEvent, delta: Update, net_update: Update) -> Event:
        example, request = plan.example, plan.request
        return Event(
            seq=plan.seq,
            kind=plan.kind,
            time_us=request.time_us,
            user=request.source.user,
            channel=request.source.channel,
            digest=example.digest,
            message_id=example.message_id,
            before=plan.before,
            after=plan.after,
            previous=plan.previous,
            ids=example.ids,
            delta=delta,
            net_update=net_update,
            times=example.times if self.recipe.occurrences else None,
            immediate=request.source.immediate,
            weight=request.source.weight,
            person=plan.person,
            owner=plan.owner,
            credit=plan.credit,
            blocks=example.blocks,
            left_out=plan.left_out,
        )

    def _no_update(self) -> Update:
        return no_update(self.recipe.groups, len(self.recipe.labels))

    def _probability(
        self, training_rows: TrainingRows, plan: PlannedEvent, message_rows: MessageRows
    ) -> float:
        """Return the probability of spam, or of the last label, for the person of a plan."""
        labels = self.recipe.labels
        at = labels.index("spam") if "spam" in labels else len(labels) - 1
        if plan.person:
            message = message_for_person(self.recipe, plan, training_rows)
            return softmax(message.predict().z)[at]
        if self.recipe.kind == "corrected":
            return softmax(training_rows.predict(self.recipe, message_rows, plan.example.blocks).z)[
                at
            ]
        records = training_rows.records_of(message_rows)
        rows = np.arange(len(message_rows.rows))
        view = RowView(
            rows, np.array([0, len(rows)]), np.array(message_rows.sizes), plan.example.times
        )
        return float(probabilities(scores(self.recipe, training_rows.totals, records, view))[0, at])


_MAKERS: dict[EventKind, Callable[..., Event]] = {
    EventKind.LEARN: Learner.make_learn,
    EventKind.MOVE: Learner.make_learn,
    EventKind.FORGET: Learner.make_forget,
    EventKind.UNDO: Learner.make_undo,
    EventKind.IMPORT: Learner.make_load,
    EventKind.EXPIRE: Learner.make_load,
    EventKind.SCORES: Learner.make_load,
}


class LearningBatch:
    """Requests of one transaction; their rows stay in memory until `close` writes them back.

    Reading and writing the rows for every thousand messages took a sixth of bulk training.

    Runs inside one write transaction on a whole batch of requests. It first plans all of them
    (labels, sequence numbers, rehearsals: nothing that depends on scores), then reads every row
    that the batch will change in one call, then applies request after request to those rows. A
    batch therefore leaves the same events and the same bytes as its requests one by one. Must not
    know messages, clocks or files.
    """

    def __init__(self, learner: Learner, view: WriteView) -> None:
        self._learner = learner
        self._view = view
        self._totals = view.totals()
        self._stored = self._totals.last_seq
        self._labels = learner.newest(view, self._totals.last_seq)
        self._rows: TrainingRows | None = None
        self._texts: list[Words] = []
        """the texts of all new features"""
        self._corrections: list[Event] = []
        """events that used a budget"""

    def take(self, requests: Sequence[TrainingRequest], *, scored: bool) -> list[Receipt]:
        """Run these requests; their changes are in the store after `close`."""
        learner, view = self._learner, self._view
        journal = PendingJournal(view, self._labels, self._totals.last_seq, stored=self._stored)
        plans = [learner.plan(request, journal) for request in requests]
        work = [plan for plan in plans if isinstance(plan, PlannedEvent)]
        receipts: dict[int, Receipt] = {}
        if work:
            training_rows = self._add_rows(work)
            for plan in work:
                receipts[plan.seq] = learner.apply_plan(plan, training_rows, journal, scored=scored)
            events = [journal.made[plan.seq] for plan in work]
            view.append(*events)
            self._corrections += [event for event in events if person_of(event) is not None]
            self._texts += self._words(work, training_rows.unknown_ids())
        self._totals.last_seq, self._labels = journal.last_seq, journal.labels
        return [plan if isinstance(plan, Receipt) else receipts[plan.seq] for plan in plans]

    def close(self) -> None:
        """Write the changed rows, totals and words to the store."""
        view, training_rows = self._view, self._rows
        if training_rows is not None:
            view.scatter(training_rows.ids, training_rows.to_records())
            training_rows.totals.last_seq = self._totals.last_seq
            view.put_totals(training_rows.totals)
            assert training_rows.persons is not None
            for person, personal in training_rows.persons.changed():
                view.put_personal(person, personal)
            if self._texts:
                # A feature learnt and forgotten within the transaction is not in the store.
                words = MergedWords(self._texts).words(training_rows.new_ids())
                if len(words.ids):
                    view.put_words(words)
        self._learner.finished(self._totals.last_seq, self._labels, self._corrections)

    def _add_rows(self, work: list[PlannedEvent]) -> TrainingRows:
        """Return rows for every id that these plans will change; set each plan's indexes."""
        chunks, spots = _distinct_parts(work)
        for plan in work:
            chunks += self._other_ids(plan)
        ids, places = distinct(chunks)
        rows = None
        if self._rows is None:
            persons = PersonalRows(len(self._learner.recipe.labels), self._view.personal)
            self._rows = TrainingRows(self._totals, ids, self._view.gather(ids), persons)
        else:
            rows = self._rows.add_rows(ids, self._view.gather)
        G = self._learner.recipe.groups
        for plan, spot in zip(work, spots, strict=True):
            shared_ids = plan.example.shared_ids
            if shared_ids is None:
                own = np.concatenate(places[spot : spot + G])
            else:
                own = places[spot].take(shared_ids.rows)
            plan.rows = own if rows is None else rows.take(own)
            plan.sizes = tuple(len(part) for part in plan.example.ids)
        return self._rows

    def _other_ids(self, plan: PlannedEvent) -> list[Ids]:
        """Return the ids that the plan will change beside those of its message."""
        view = self._view
        chunks = [part for _, earlier in plan.rehearsed for part in earlier.counted_ids]
        if isinstance(plan.request, BulkLoad) and not plan.person:
            chunks.append(plan.request.bulk.ids)
        previous = view.event(plan.previous) if plan.previous else None
        updates = [previous.net_update, previous.delta] if previous else []
        checked = plan.checked.event if plan.checked else None
        if checked:
            chunks += checked.ids
            updates.append(checked.net_update)
        undone = view.event(plan.undoes) if plan.undoes else None
        if undone:
            updates.append(undone.delta)
            if undone.bulk and not undone.person:
                chunks.append(undone.bulk.ids)
        return chunks + [
            part for update in updates for rehearsal in update.rehearsals for part in rehearsal.ids
        ]

    def _words(self, work: list[PlannedEvent], new: Ids) -> list[Words]:
        """Return the texts of new features, while later messages are still being parsed."""
        parts: list[Words] = []
        for word_source in _sources(work) if self._learner.recipe.vocabulary else ():
            parts.append(word_source.words(new))
            if len(parts[-1].ids) == len(new):
                break
            new = new[~np.isin(new, parts[-1].ids, assume_unique=True)]
        return parts


def _distinct_parts(work: list[PlannedEvent]) -> tuple[list[Ids], list[int]]:
    """Return the ids of these plans and where each plan's begin; a batch's ids are listed once.

    Sorting the ids of 256 messages took twice as long as sorting those of their four batches.
    """
    chunks: list[Ids] = []
    spots: list[int] = []
    shared: dict[int, int] = {}
    for plan in work:
        shared_ids, spot = plan.example.shared_ids, len(chunks)
        if shared_ids is None:
            chunks += plan.example.ids
        else:
            spot = shared.setdefault(id(shared_ids.ids), spot)
            if spot == len(chunks):
                chunks.append(shared_ids.ids)
        spots.append(spot)
    return chunks, spots


def _sources(work: list[PlannedEvent]) -> Iterable[WordSource]:
    """Return the distinct word sources of these plans."""
    found: dict[int, WordSource] = {}
    for plan in work:
        word_source = (
            plan.request.words if isinstance(plan.request, BulkLoad) else plan.example.words
        )
        if word_source is not None:
            found[id(word_source)] = word_source
    return found.values()


@dataclass(slots=True, eq=False)
class _Request:
    requests: Sequence[TrainingRequest]
    scored: bool
    receipts: list[Receipt] | None = None
    error: BaseException | None = field(default=None)


class ReplayableBatches:
    """Batches of requests from an iterator; each iteration begins again with the first batch.

    A transaction is run a second time when the map had to grow, or to finish interrupted work.
    """

    def __init__(self, source: Iterable[Sequence[TrainingRequest]]) -> None:
        self._source = source
        self._received: list[Sequence[TrainingRequest]] = []

    def __iter__(self) -> Iterator[Sequence[TrainingRequest]]:
        yield from self._received[:]
        for requests in self._source:
            self._received.append(requests)
            yield requests

    def stop(self) -> None:
        """Take nothing more from the source."""
        self._source = ()


class Committer:
    """Runs training requests on a store, one transaction at a time.

    The thread that gets the lock first commits all requests that are pending then; the other
    threads find their receipts ready. There is no background thread to start or stop. Invariants:
    requests of one caller stay together and in order; `run` returns only after its requests are on
    disk or refused.
    """

    def __init__(self, store: Store, learner: Learner) -> None:
        self._store = store
        self.learner = learner
        self.committing = threading.Lock()
        self._pending: list[_Request] = []
        self._pending_lock = threading.Lock()

    def run(self, requests: Sequence[TrainingRequest], *, scored: bool = True) -> list[Receipt]:
        """Run these requests and return a receipt for each, when the changes are on disk."""
        entry = _Request(requests, scored)
        with self._pending_lock:
            self._pending.append(entry)
        with self.committing:
            if entry.receipts is None and entry.error is None:
                with self._pending_lock:
                    entries, self._pending = self._pending, []
                self._commit(entries)
        if entry.error is not None:
            raise entry.error
        assert entry.receipts is not None
        return entry.receipts

    def run_stream(self, batches: ReplayableBatches) -> list[Receipt]:
        """Run requests as they arrive, in one transaction that blocks other writers meanwhile."""

        def body(view: WriteView) -> list[Receipt]:
            learning_batch = LearningBatch(self.learner, view)
            receipts = [
                r for requests in batches for r in learning_batch.take(requests, scored=False)
            ]
            learning_batch.close()
            return receipts

        with self.committing:
            receipts = self._store.transact(body)
            self.learner.committed()
        return receipts

    def _commit(self, entries: list[_Request]) -> None:
        try:
            self._commit_together(entries)
        except RefusedError as error:
            # One request would overflow a number: commit each entry separately.
            if len(entries) == 1:
                entries[0].error = error
                return
            for entry in entries:
                self._commit([entry])
        except BaseException as error:  # noqa: BLE001 - each caller raises it in its own thread
            for entry in entries:
                entry.error = error

    def _commit_together(self, entries: list[_Request]) -> None:
        requests = [request for entry in entries for request in entry.requests]
        scored = any(entry.scored for entry in entries)
        receipts = self._learnt(requests, scored=scored)
        start = 0
        for entry in entries:
            entry.receipts = receipts[start : start + len(entry.requests)]
            start += len(entry.requests)

    def _learnt(self, requests: Sequence[TrainingRequest], *, scored: bool) -> list[Receipt]:
        """Run requests in one transaction."""
        receipts = self._store.transact(
            lambda view: self.learner.run(view, requests, scored=scored)
        )
        self.learner.committed()
        return receipts
