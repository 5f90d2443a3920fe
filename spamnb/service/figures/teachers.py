"""Users whose labels are contradicted: by labels of other users, and by the rest of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from spamnb.core.model.events import Event, Recipe
from spamnb.service.maintenance.doubt import doubt_of
from spamnb.store.contract import ReadView

MOST_TESTED: Final = 500
"""labels that are compared with the model, half a millisecond each"""


@dataclass(slots=True)
class Teacher:
    """A user's labels among the newest trainings."""

    user: str
    labels: int = 0
    """messages that the user gave a label; the last label of each message counts"""
    by_others: int = 0
    """those of them that another user gave another label"""
    tested: int = 0
    """those that were compared with the model"""
    by_model: int = 0
    """tested ones that all other trainings contradict, as in `spamnb doubt`"""


def teacher_facts(view: ReadView, recipe: Recipe, events: Sequence[Event]) -> dict[str, Any]:
    """Return all users of these trainings (newest first), the most contradicted first."""
    last: dict[bytes, dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.user and event.digest:
            last[event.digest].setdefault(event.user, event.after)
    found: dict[str, Teacher] = {}
    for labels in last.values():
        for user, label in labels.items():
            teacher = found.setdefault(user, Teacher(user))
            teacher.labels += 1
            teacher.by_others += any(other != label for other in labels.values())
    for event in islice(_testable(view, events), MOST_TESTED):
        teacher = found[event.user]
        teacher.tested += 1
        teacher.by_model += doubt_of(view, recipe, event, event) is not None
    ranked = sorted(found.values(), key=lambda one: (-one.by_others - one.by_model, one.user))
    return {"events": len(events), "teachers": [asdict(one) for one in ranked]}


def _testable(view: ReadView, events: Sequence[Event]) -> Iterator[Event]:
    """Yield the trainings in force, except those for one person, which may differ."""
    for event in events:
        live = view.live(event.label_key) if event.user and event.digest else None
        if live is not None and live.seq == event.seq and not event.person:
            yield event
