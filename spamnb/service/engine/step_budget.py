"""Limit how far the feedback of users changes the shared corrections.

The size of a step is its error, 1 - P(label), times its weight and the reduction for contradicting
labels. The steps of one person within a day sum to less than a budget: each is scaled by what is
left of it, so strong contradictions have less effect the more there are. Labels that the model
agrees with use up next to nothing. Counts still change by one, and the corrected message still gets
the person's label (`core.model.correction`). Bulk training has no budget: the owner of the model
runs it.

All users without enough credit (`engine.credit`) share one more budget, for thirty days: many new
accounts have no more effect than one, and waiting for the next day gains nothing. A user with
credit does not use it, and has an own one for thirty days that grows with the credit.

Persons that trained most of a model can harm few others, so a budget grows with the share of the
messages of its person, or of all users without credit: a model trained by one person's corrections
alone has no limit.

Spent budgets, shares and credit are read from the journal, so a restart, another process or a
relearning gets the same numbers. Must not know scores.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import (
    DIGEST_BYTES,
    NO_LABEL,
    STEP_ONE,
    UNVERIFIED,
    Event,
    EventKind,
    Ints,
    Recipe,
)
from spamnb.service.engine import credit
from spamnb.service.engine.planner import EarlierLabel, PendingJournal, PlannedEvent, pseudo_random
from spamnb.service.engine.requests import Source

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
    """What is left of the budgets of one model."""

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
            believed = credit.is_believed(plan.credit)
            steps = CREDIT_STEPS * plan.credit
            budgets.append((month, steps) if believed else (together, SHARED_STEPS))
        return credit.weight(plan.credit) * min(
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
        pooled = _shares(event) and not credit.is_believed(event.credit)
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
        roots = [sqrt(max(len(part), 1)) for part in event.ids]
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
