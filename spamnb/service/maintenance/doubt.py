"""Find trained messages with a label that all other trainings contradict: it may be wrong.

Each training in force is removed from the rows of its own message, and the message is scored
without it. The label is therefore compared with the other trainings, not with itself. Trainings in
the checkpoint have no events and cannot be tested; labels of persons may contradict the others.
Must not know terminals.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from spamnb.core.model.events import NO_LABEL, Event, Recipe
from spamnb.service.engine.clock import iso
from spamnb.service.engine.requests import Example
from spamnb.service.maintenance.attribution import LeaveOneOut, trainings_in_force
from spamnb.store.contract import ReadView

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
    example = Example(event.digest, event.message_id, event.ids, event.times)
    (z,) = LeaveOneOut(view, recipe, example).without([(event, trained)])
    likely = int(z.argmax())
    if likely == event.after:
        return None
    return Doubt(
        trained.seq, trained.time_us, trained.user, trained.channel,
        recipe.labels[event.after], recipe.labels[likely],
        float(z[likely] - z[event.after]), event.digest, event.message_id,
    )  # fmt: skip
