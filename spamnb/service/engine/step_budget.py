"""Limit how far one person's feedback changes the shared corrections in a day.

The size of a step is its error, 1 - P(label), times its weight and the reduction for contradicting
labels. The steps of one person within a day sum to less than a budget: each is scaled by what is
left of it, so strong contradictions have less effect the more there are. Counts still change by
one, and the corrected message still gets the person's label (`core.model.correction`). Bulk
training has no budget: the owner of the model runs it.

A person that trained most of a model alone can harm few others, so the budget grows with the
person's share of the messages: a model trained by one person's corrections alone has no limit.

Spent budgets and shares are read from the journal, so a restart, another process or a relearning
gets the same numbers. Must not know scores.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt
from typing import NamedTuple

from spamnb.core.model.events import NO_LABEL, STEP_ONE, Event, EventKind, Ints, Recipe
from spamnb.service.engine.planner import PendingJournal, PlannedEvent
from spamnb.service.engine.requests import Source

DAY_US = 86_400_000_000
RECENT_EVENTS = 1000
"""Newest events in which a person's messages are counted."""
MAX_DAY_EVENTS = 50_000
"""Maximum number of events of one day that are read: ten persons at their daily quota. The first
correction decodes them, 20 us each; a later one reads the cache, 0.1 us each."""
MIN_STEPS = 0.5
"""Full steps of one person in a day: the twenty worst corrections found let 1.4 points more spam
through; without a budget, 97 (decision 0030)."""
LIMITED = MIN_STEPS / 2
"""A label that may take less of a full step is reported as limited: half of the budget is spent."""
YOUNG_MODEL_STEPS = 40.0
"""A model with few messages has a larger budget: this many steps, divided by the messages of all
labels but the most frequent one."""


class Spent(NamedTuple):
    """How much budget one event used, and whether it added a message."""

    time_us: int
    person: str | None
    size: float
    user: str
    messages: int
    """1 for a message learnt, -1 for one forgotten"""


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
        self._known: dict[int, Spent | None] = {}
        """of events that were in the store before the transaction"""

    def left(self, plan: PlannedEvent, messages: Ints, journal: PendingJournal) -> float:
        """Return the fraction of a full step, 0 to 1, that this request may take."""
        person = person_of(plan.request.source)
        if person is None:
            return 1.0
        spent, own = self._in_journal(person, plan, journal)
        most = budget(messages, own)
        # At most the budget itself, which may be less than one full step.
        return max(0.0, min(most, 1.0) * (1 - spent / most))

    def _in_journal(
        self, person: str, plan: PlannedEvent, journal: PendingJournal
    ) -> tuple[float, int]:
        """Return what the person spent within a day, and the person's recent messages.

        An event of more than a day ahead was made before the clock was set back: it would otherwise
        use up the budget until the clock is there again.
        """
        spent, own = 0.0, 0
        since, until = plan.request.time_us - DAY_US, plan.request.time_us + DAY_US
        for back, seq in enumerate(range(plan.seq - 1, max(plan.seq - 1 - MAX_DAY_EVENTS, 0), -1)):
            event = self._of(seq, journal)
            is_recent = back < RECENT_EVENTS
            if event is None or not (is_recent or event.time_us > since):
                break
            spent += event.size * (event.person == person and since < event.time_us < until)
            own += event.messages * (is_recent and event.user == person != "")
        return spent, own

    def _of(self, seq: int, journal: PendingJournal) -> Spent | None:
        """Return what an event used; None if it is in the checkpoint."""
        if seq > journal.stored:
            event = journal.event(seq)
            return self._read(event) if event else None
        if seq not in self._known:
            event = journal.view.event(seq)
            self._known[seq] = self._read(event) if event else None
        return self._known[seq]

    def note(self, events: Iterable[Event]) -> None:
        """Take events that a transaction has added to the store."""
        if len(self._known) > 2 * MAX_DAY_EVENTS:
            self._known.clear()
        self._known.update((event.seq, self._read(event)) for event in events)

    def _read(self, event: Event) -> Spent:
        person = person_of(event)
        step = event.kind in (EventKind.LEARN, EventKind.MOVE) and event.before != event.after
        messages = (event.after != NO_LABEL) - (event.before != NO_LABEL)
        size = self._size(event) if step and person is not None else 0.0
        return Spent(event.time_us, person, size, _name_of(event), messages)

    def _size(self, event: Event) -> float:
        """Return the size of an event's step, in full steps: that of the larger group."""
        full = self._recipe.eta / 2 * STEP_ONE
        if not full:
            return 0.0
        steps: list[int] = event.net_update.steps[:, event.after].tolist()
        roots = [sqrt(max(len(part), 1)) for part in event.ids]
        return max(0.0, *(step * root / full for step, root in zip(steps, roots, strict=False)))
