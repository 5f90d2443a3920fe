"""Limit how far one person's feedback changes the shared corrections in a day.

The size of a step is its error, 1 - P(label), times its weight and the reduction for contradicting
labels. The steps of one person within a day sum to less than a budget: each is scaled by what is
left of the budget, so strong contradictions have less effect the more there are. Counts still
change by one, and the corrected message still gets the person's label (`core.model.correction`).
Bulk training has no budget: the owner of the model runs it.

A person that trained most of a model alone can harm few others, so the budget grows with the
person's share of the messages: a model trained by one person's corrections alone has no limit.

Spent budgets and shares are read from the journal, so a restart, another process or a relearning
gets the same numbers. Must not know scores.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import NO_LABEL, STEP_ONE, Event, EventKind, Ints, Recipe
from spamnb.service.engine.planner import PendingJournal, PlannedEvent
from spamnb.service.engine.requests import Source

DAY_US = 86_400_000_000
RECENT_EVENTS = 1000
"""Newest events in which a person's messages are counted."""
MAX_DAY_EVENTS = 50_000
"""Maximum number of events of one day that are read: ten persons at their daily quota. The first
correction decodes them, 20 us each; a later one takes 150 us for all."""
_AT_ONCE = 256
_SIZE_ONE = 1 << 30
"""Sizes are integers, so a sum does not depend on the order."""
_ROW = np.dtype(
    [("time", "i8"), ("size", "i8"), ("person", "i4"), ("user", "i4"), ("messages", "i4")]
)
_Used = tuple[int, int, int, int, int]
"""What an event used of a budget: time, size, person, user, and 1 for a message learnt, -1 for one
forgotten."""
_NOTHING: _Used = (0, 0, -1, -1, 0)
MIN_STEPS = 0.5
"""Full steps of one person in a day: the twenty worst corrections found let 1.4 points more spam
through; without a budget, 97 (decision 0030)."""
LIMITED = MIN_STEPS / 2
"""A label that may take less than this part of a full step is reported as limited."""
YOUNG_MODEL_STEPS = 40.0
"""A model with few messages has a larger budget: this many steps, divided by the messages of all
labels but the most frequent one."""


def budget(messages: Ints, own: int) -> float:
    """Return the full steps in a day, for `messages` per label, `own` of them by the person."""
    every = int(messages.sum())
    others = max(1 - own / every, 0.0) if every else 0.0
    least = max(MIN_STEPS, YOUNG_MODEL_STEPS / max(every - int(messages.max()), 1))
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
    """The remaining daily budget of each person in one model."""

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
        spent, own = self._in_journal(person, plan, journal)
        most = budget(messages, own)
        # At most the budget itself, which may be less than one full step.
        return max(0.0, min(most, 1.0) * (1 - spent / most))

    def note(self, events: Iterable[Event]) -> None:
        """Take events that a transaction has added to the store."""
        self._noted |= {event.seq: self._used(event) for event in events}

    def _in_journal(
        self, person: str, plan: PlannedEvent, journal: PendingJournal
    ) -> tuple[float, int]:
        """Return what the person spent within a day, and the person's recent messages.

        An event with a time of more than a day ahead was made before the clock was set back. It
        does not count: otherwise it would use up the budget until the clock reaches its time.
        """
        since, until = plan.request.time_us - DAY_US, plan.request.time_us + DAY_US
        rows = self._before(plan.seq, since, journal)
        recent = rows[-RECENT_EVENTS:]
        older = rows[:-RECENT_EVENTS]["time"] <= since
        if older.any():
            rows = rows[int(older.nonzero()[0][-1]) + 1 :]
        name, times = self._name(person), rows["time"]
        spent = rows["size"][(rows["person"] == name) & (since < times) & (times < until)].sum()
        own = recent["messages"][recent["user"] == name].sum() if person else 0
        return int(spent) / _SIZE_ONE, int(own)

    def _before(self, seq: int, since: int, journal: PendingJournal) -> NDArray[np.void]:
        """Return the rows of the events before this one, at least as far back as they count."""
        self._read_new(journal)
        least = max(seq - MAX_DAY_EVENTS, 1)
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
            kept = self._rows[max(self._count - MAX_DAY_EVENTS, 0) : self._count]
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
        return event.time_us, size, self._name(person), user, messages

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
