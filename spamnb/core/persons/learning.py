"""Score a message for one person, and split that person's label into a shared and a personal step.

A person's corrections are added to the experts' scores:
    z_gk(p) = z_gk + sum_{f in g} v[s(p, f), k] / sqrt(s_g),   j_k(p) = SHARE sum_g z_gk(p)
Everything else is shared: evidence, biases, temperatures, and the calibration of j(p). So a person
without corrections gets the scores of the shared model, bit for bit. Unlike shared corrections,
personal ones are not weighed by how many messages contain the feature: the difference is within the
noise (docs/decisions/0045).

The shared step does not depend on the person: it is the doubted step of `core.model.scoring`. The
personal step follows it: the same formula without doubt, from the errors that are left for this
person. If the decision still contradicts the label, the missing score is added to all features of
the message, for this person alone.

Pure arithmetic; every number is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.correction import decision_margins, matches_label, missing_nats
from spamnb.core.model.costs import Costs, roles_of
from spamnb.core.model.events import STEP_ONE, Ids, Ints, Recipe, Totals
from spamnb.core.model.scoring import (
    SHARE,
    Floats,
    Prediction,
    calibrated,
    cell_shares,
    correction_weights,
    factor,
    joint_lead,
    step,
    sums_by_group,
)
from spamnb.core.persons.corrections import PersonalCorrections, Places, places_of


class PersonalMessage(NamedTuple):
    """A message's result in the shared model, and the corrections of one person."""

    shared: Prediction
    mature: float
    """`maturity` of the shared model"""
    sizes: tuple[int, ...]
    """how many features each group has"""
    places: Places
    personal: PersonalCorrections

    def with_step(self, steps: Ints, sign: int = 1) -> PersonalMessage:
        """The message after a step [G, K - 1] on the person's corrections of its features."""
        changes = sign * steps.T.repeat(self.sizes, axis=1)
        return self._replace(personal=self.personal.plus(self.places, changes))

    def predict(self) -> Prediction:
        """The model's result for the person."""
        corrections = self.personal.values.take(self.places, axis=1).astype(np.float64)
        sums = sums_by_group(corrections, self.sizes)
        return personal_prediction(self.shared, self.mature, sums)


def personal_prediction(
    shared: Prediction, mature: float, sums: Sequence[Sequence[float]]
) -> Prediction:
    """The model's result with the sums [G][K - 1] of a person's corrections."""
    experts = []
    for expert, moved, span in zip(shared.experts, sums, shared.spans, strict=True):
        root, changes = span**0.5 * STEP_ONE, (-sum(moved), *moved)
        experts.append([z + w / root for z, w in zip(expert, changes, strict=True)])
    joint = [SHARE * sum(line) for line in zip(*experts, strict=True)]
    return Prediction(calibrated(joint, mature), joint, experts, shared.E, shared.spans)


def personal_scores(
    shared: Prediction, mature: float, corrections: NDArray[np.int32], sizes: Sequence[int]
) -> Floats:
    """[P, K] z for each of P persons, with their corrections [P, K - 1, m] of a message.

    The same as `PersonalMessage.predict`, in a fifth of the time.
    """
    persons, _, m = corrections.shape
    by_group = sums_by_group(corrections.reshape(-1, m).astype(np.float64), sizes)
    joint = np.zeros((persons, len(shared.joint)))
    for expert, sums, span in zip(shared.experts, by_group, shared.spans, strict=True):
        others = np.array(sums).reshape(persons, -1)
        moved = np.concatenate((-others.sum(axis=1, keepdims=True), others), axis=1)
        joint += np.array(expert) + moved / (span**0.5 * STEP_ONE)
    joint *= SHARE
    return np.asarray(joint * [[factor(line, mature)] for line in joint.tolist()])


def personal_message(
    person: int,
    ids: tuple[Ids, ...],
    shared: tuple[Prediction, float],
    personal: PersonalCorrections,
) -> PersonalMessage:
    """A message as it is for this person, from its shared result and the shared maturity."""
    sizes = tuple(len(part) for part in ids)
    return PersonalMessage(
        *shared, sizes, places_of(np.uint64(person), np.concatenate(ids)), personal
    )


class PersonalShares(NamedTuple):
    """What makes a message's log-odds for one person; all entries and the bias sum to them."""

    shared: Floats
    """[m] by feature: evidence and corrections of the shared model"""
    personal: Floats
    """[m] by feature: the person's corrections"""
    bias: float


def personal_shares(
    recipe: Recipe,
    totals: Totals,
    cells: Floats,
    message: PersonalMessage,
    for_against: tuple[int, int],
) -> PersonalShares:
    """Split z[s] - z[h] for one person, from the shared n and w [2K, m] of the message.

    The calibration of the person's score multiplies all shares.
    """
    s, h = for_against
    corrections = message.personal.at(message.places)
    n, w = np.split(cells, 2)
    mine = np.concatenate((n, w + corrections / correction_weights(totals.messages, n)))
    entries, bias, unit = cell_shares(recipe, totals, mine, message.sizes, for_against)
    personal = unit * (corrections[s] - corrections[h])
    return PersonalShares(entries - personal, personal, bias)


def personal_step(recipe: Recipe, costs: Costs, message: PersonalMessage, label: int) -> Ints:
    """[G, K - 1] what a label adds to the person's corrections of each group's features.

    After it, the message has the label for this person, and the decision that fits it.
    """
    steps = step(recipe, message.predict(), message.sizes, label, 1.0).steps[:, 1:]
    seen, roles = message.with_step(steps).predict(), roles_of(recipe.labels)
    if matches_label(seen.z, label, costs, roles):
        return steps
    margin = joint_lead(decision_margins(costs)[roles[label]], message.mature)
    nats = missing_nats(seen.joint, label, margin)
    return steps + _towards(label, len(roles), message.sizes, nats)


def _towards(label: int, labels: int, sizes: Sequence[int], nats: float) -> Ints:
    """[G, K - 1] steps on all features alike that add at least so many nats to the label's lead.

    The steps add more where features share a place, or where the group is averaged over fewer
    features than it has.
    """
    slope = nats / (SHARE * (sum(size > 0 for size in sizes) or 1))
    towards = np.array([(k == label) - 1 / labels for k in range(1, labels)])
    roots = np.sqrt(np.maximum(sizes, 1))[:, None]
    return np.rint(slope * STEP_ONE * towards / roots).astype(np.int64)
