"""Play a world with a model: each message is scored for its recipient, who may then label it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from spamnb.core.model.scoring import Floats, softmax
from spamnb.lab.persons.models import Given, PersonsModel
from spamnb.lab.persons.world import NO_PERSON, Delivery, World
from spamnb.lab.statistics.metrics import Bools
from spamnb.lab.trial import UNSURE, Sample

DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US
PER_DAY = 40
"""Deliveries of one person in a day: budgets depend on the time."""

Progress = Callable[[int, int], None]


class Played(NamedTuple):
    """The result of each delivery, in order."""

    z: Floats
    """[D, K] for the person"""
    shared: Floats
    """[D, K] for a person without corrections"""
    taught: Bools


def play(
    world: World, samples: Sequence[Sample], model: PersonsModel, progress: Progress | None = None
) -> Played:
    """Train the model, then score and teach, one delivery after the other."""
    model.train([(samples[message], label) for message, label in world.trained])
    count = len(world.deliveries)
    z, shared = np.zeros((2, count, 2))
    taught = np.zeros(count, np.bool_)
    pause, number = DAY_US // (world.persons * PER_DAY), 0
    for message, deliveries in groupby(world.deliveries, lambda each: each.message):
        sample = samples[message]
        for_all = model.score(NO_PERSON, sample)
        for delivery in deliveries:
            shared[number], z[number] = for_all, model.score(delivery.person, sample)
            if _teaches(delivery, z[number].tolist()):
                taught[number] = True
                given = Given(delivery.person, sample, delivery.label, START_US + number * pause)
                model.teach(given)
            number += 1
        if progress is not None:
            progress(number, count)
    return Played(z, shared, taught)


def _teaches(delivery: Delivery, z: list[float]) -> bool:
    if delivery.teaching == "mistakes":
        return softmax(z)[delivery.label] <= UNSURE[1]
    return delivery.teaching == "always"
