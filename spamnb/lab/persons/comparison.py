"""Compare the models for several persons on worlds: the figures of each model in each world."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from spamnb.core.model.costs import Costs
from spamnb.lab.persons.figures import WorldFigures, rules, world_figures
from spamnb.lab.persons.models import MODELS
from spamnb.lab.persons.run import Played, Progress, play
from spamnb.lab.persons.world import World
from spamnb.lab.trial import Options, Sample


@dataclass(frozen=True, slots=True)
class WorldResult:
    """The figures of one model in one world."""

    world: str
    model: str
    figures: dict[str, WorldFigures]
    """by kind of delivery; "all" first"""
    rules: dict[str, float]
    """of messages with several recipients: wrong verdicts in percent if all get the same verdict"""

    def as_dict(self) -> dict[str, object]:
        """Return one entry of `results` in the JSON output."""
        figures = {kind: found.as_dict() for kind, found in self.figures.items()}
        names = {"world": self.world, "model": self.model}
        return names | {"figures": figures, "one_verdict_wrong_percent": self.rules}


def compare_models(
    worlds: Iterable[World],
    samples: Sequence[Sample],
    options: Options,
    models: Sequence[str] = tuple(MODELS),
) -> list[WorldResult]:
    """Play each world with a new instance of each model; worlds of one name are pooled."""
    costs = options.costs or Costs()
    results = []
    for name, group in groupby(worlds, lambda world: world.name):
        parts = list(group)
        world = _joined(parts)
        for model in models:
            report = _WorldProgress(options.progress, len(world.deliveries))
            played = _concatenated(
                [play(part, samples, MODELS[model](options), report.part) for part in parts]
            )
            figures = world_figures(world, played, costs)
            results.append(WorldResult(name, model, figures, rules(world, played)))
    return results


class _WorldProgress:
    """Adds up the progress of parts."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def part(self, done: int, count: int) -> None:
        """Report the progress within one part."""
        if self._progress is not None:
            self._progress(self._done + done, self._total)
        if done == count:
            self._done += count


def _joined(parts: Sequence[World]) -> World:
    """Return one world of all deliveries, each part with its own persons."""
    deliveries, persons = [], 0
    for part in parts:
        deliveries += [each._replace(person=each.person + persons) for each in part.deliveries]
        persons += part.persons
    return World(parts[0].name, persons, tuple(deliveries))


def _concatenated(parts: Sequence[Played]) -> Played:
    return Played(*map(np.concatenate, zip(*parts, strict=True)))
