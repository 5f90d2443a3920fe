"""How far one person may move the shared corrections in a day.

The size of a step is its error, 1 - P(label), doubted and weighed. The steps of one person within a
day sum to less than a budget: each is scaled by what is left of it, so strong contradictions count
less the more there are. Counts move by one all the same, and the corrected message is judged as the
person said all the same (`core.insistence`). The labels of bulk training have no budget: whoever
trains a model from folders owns it.

Who has taught most of a model by themselves can harm hardly anyone else, so a budget grows with the
person's share of the messages: a site of one person, taught by corrections alone, has none.

What was spent and what was taught is read from the journal, so a restart, another process or a
relearning comes to the same numbers. Must not know scores.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from spamnb.core.model.events import NO_LABEL, STEP_ONE, Event, EventKind, Ints, Recipe
from spamnb.service.engine.planner import PendingJournal, PlannedEvent

DAY_US = 86_400_000_000
LOOKED_BACK = 1000
"""Events of which the messages are counted that a person brought."""
DAY_EVENTS = 50_000
"""Events of one day that are read for what was spent, at most: ten persons at their daily cap. The
first correction reads them, 20 us each; a later one looks at them again, 0.1 us each."""
LEAST = 0.5
"""Full steps of one person in a day: the twenty worst words that were found let 1.4 points more
spam through, without a budget 97 (docs/decisions/0030)."""
YOUNG = 40.0
"""A model of fewer messages has nothing to lose yet: the budget is so many steps, divided by the
messages of all labels but the most frequent one."""


class Spent(NamedTuple):
    """What one event took of a budget, and whether it brought a message."""

    time_us: int
    person: str | None
    size: float
    who: str
    messages: int
    """1 for a message learnt, -1 for one forgotten"""


def budget(messages: Ints, own: int) -> float:
    """Full steps in a day, in a model of so many messages [K], `own` of them by the person."""
    every = int(messages.sum())
    others = max(1 - own / every, 0.0) if every else 0.0
    least = max(LEAST, YOUNG / max(every - int(messages.max()), 1))
    return least / others if others else inf


def person_of(who: str, weight: float, *, immediate: bool) -> str | None:
    """Whose budget a word takes from; None for training. Unproven channels share one."""
    if immediate:
        return who.casefold()
    return None if weight >= 1 else ""


class StepBudgets:
    """What is left of each person's budget in one model."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._known: dict[int, Spent | None] = {}
        """of events that are in the store, whatever becomes of the transaction"""

    def left(self, plan: PlannedEvent, messages: Ints, journal: PendingJournal) -> float:
        """The share of a full step that this lesson may take: 1 down to 0."""
        source = plan.request.source
        person = person_of(source.who, source.weight, immediate=source.immediate)
        if person is None:
            return 1.0
        spent, own = self._in_journal(person, plan, journal)
        most = budget(messages, own)
        # At most the budget itself, which may be less than one full step.
        return max(0.0, min(most, 1.0) * (1 - spent / most))

    def _in_journal(
        self, person: str, plan: PlannedEvent, journal: PendingJournal
    ) -> tuple[float, int]:
        """What the person spent within a day, and the messages they brought lately."""
        spent, own = 0.0, 0
        since = plan.request.time_us - DAY_US
        for back, seq in enumerate(range(plan.seq - 1, max(plan.seq - 1 - DAY_EVENTS, 0), -1)):
            event = self._of(seq, journal)
            is_recent = back < LOOKED_BACK
            if event is None or not (is_recent or event.time_us > since):
                break
            spent += event.size * (event.person == person and event.time_us > since)
            own += event.messages * (is_recent and event.who == person != "")
        return spent, own

    def _of(self, seq: int, journal: PendingJournal) -> Spent | None:
        """What an event took; None if it is in the checkpoint."""
        if seq > journal.stored:
            event = journal.event(seq)
            return self._read(event) if event else None
        if seq not in self._known:
            if len(self._known) > 2 * DAY_EVENTS:
                self._known.clear()
            event = journal.view.event(seq)
            self._known[seq] = self._read(event) if event else None
        return self._known[seq]

    def _read(self, event: Event) -> Spent:
        person = person_of(event.who, event.weight, immediate=event.immediate)
        step = event.kind in (EventKind.LEARN, EventKind.MOVE) and event.before != event.after
        messages = (event.after != NO_LABEL) - (event.before != NO_LABEL)
        size = self._size(event) if step and person is not None else 0.0
        return Spent(event.time_us, person, size, event.who.casefold(), messages)

    def _size(self, event: Event) -> float:
        """The step that an event took, in full ones."""
        full = self._recipe.eta / 2 / self._recipe.groups * STEP_ONE
        if not full or not event.ids:
            return 0.0
        step = int(event.net_update.steps[0, event.after])
        return float(max(step * max(len(event.ids[0]), 1) ** 0.5 / full, 0.0))
