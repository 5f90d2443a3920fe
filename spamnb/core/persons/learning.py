"""Score a message for one person, and split that person's label into a shared and a personal step.

A person's model is the shared model with other corrections: w[f] + v[s(p, f)] instead of w[f].
Everything else is shared: evidence, biases, temperatures, calibration. So a person without
corrections gets the scores of the shared model, bit for bit.

The shared step does not depend on the person: it is the doubted step of `core.model.scoring`. The
personal step follows it, and is the same step from the errors that are left for this person,
without doubt. If the decision still contradicts the label, the missing score is added to all
features of the message, for this person alone.

Pure arithmetic; every number is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spamnb.core.model.correction import decision_margins, matches_label, missing_nats
from spamnb.core.model.costs import Costs, roles_of
from spamnb.core.model.events import STEP_ONE, Ids, Ints, Recipe, Totals
from spamnb.core.model.scoring import (
    SHARE,
    Floats,
    Prediction,
    cell_shares,
    joint_lead,
    maturity,
    predict,
    step,
)
from spamnb.core.persons.corrections import PersonalCorrections, Places, places_of


class PersonalMessage(NamedTuple):
    """A message's rows in the shared model, and the corrections of one person."""

    cells: Floats
    """[2K, m] n and w by group"""
    sizes: tuple[int, ...]
    """how many features each group has"""
    places: Places
    personal: PersonalCorrections

    @property
    def corrected(self) -> Floats:
        """[2K, m] n, and w with the person's corrections added."""
        if not len(self.personal.places):
            return self.cells
        n, w = np.split(self.cells, 2)
        return np.concatenate((n, w + self.personal.at(self.places)))

    def with_step(self, steps: Ints, sign: int = 1) -> PersonalMessage:
        """The message after a step [G, K - 1] on the person's corrections of its features."""
        changes = sign * steps.repeat(self.sizes, axis=0)
        return self._replace(personal=self.personal.plus(self.places, changes))


def personal_message(
    person: np.uint64, ids: tuple[Ids, ...], cells: Floats, personal: PersonalCorrections
) -> PersonalMessage:
    """A message of the shared model as it is for this person."""
    sizes = tuple(len(part) for part in ids)
    return PersonalMessage(cells, sizes, places_of(person, np.concatenate(ids)), personal)


def predict_for(recipe: Recipe, totals: Totals, message: PersonalMessage) -> Prediction:
    """The model's result for one message and one person."""
    return predict(recipe, totals, message.corrected, message.sizes)


class PersonalShares(NamedTuple):
    """What makes a message's log-odds for one person; all entries and the bias sum to them."""

    shared: Floats
    """[m] by feature: evidence and corrections of the shared model"""
    personal: Floats
    """[m] by feature: the person's corrections"""
    bias: float


def personal_shares(
    recipe: Recipe, totals: Totals, message: PersonalMessage, for_against: tuple[int, int]
) -> PersonalShares:
    """Split z[s] - z[h] for one person; the calibration of this score multiplies all shares."""
    entries, bias, unit = cell_shares(recipe, totals, message.corrected, message.sizes, for_against)
    corrections = message.personal.at(message.places)
    s, h = for_against
    personal = unit * (corrections[s] - corrections[h])
    return PersonalShares(entries - personal, personal, bias)


def personal_step(
    recipe: Recipe, totals: Totals, costs: Costs, message: PersonalMessage, label: int
) -> Ints:
    """[G, K - 1] what a label adds to the person's corrections of each group's features.

    After it, the message has the label for this person, and the decision that fits it.
    """
    seen = predict_for(recipe, totals, message)
    steps = step(recipe, seen, message.sizes, label, 1.0).steps[:, 1:]
    seen, roles = predict_for(recipe, totals, message.with_step(steps)), roles_of(recipe.labels)
    if matches_label(seen.z, label, costs, roles):
        return steps
    margin = joint_lead(decision_margins(costs)[roles[label]], maturity(totals))
    nats = missing_nats(seen.joint, label, margin)
    return steps + _towards(label, len(roles), message.sizes, nats)


def _towards(label: int, labels: int, sizes: Sequence[int], nats: float) -> Ints:
    """[G, K - 1] steps on all features alike that add at least so many nats to the label's lead.

    They add more where features share a place, or are averaged over fewer features than there are.
    """
    slope = nats / (SHARE * (sum(size > 0 for size in sizes) or 1))
    towards = np.array([(k == label) - 1 / labels for k in range(1, labels)])
    roots = np.sqrt(np.maximum(sizes, 1))[:, None]
    return np.rint(slope * STEP_ONE * towards / roots).astype(np.int64)
