"""Make a person's correction effective immediately without harm to other mail.

A correction first takes one doubted step, as any label does. If the message still gets another
label, the missing score is put on features that hardly any other message contains: some of it on
the rare ones, the rest on the message's own feature, which no other message has. Bias, temperatures
and common words do not move, so the most harmful message that a person can write changes the
verdicts of other mail no more than one step does.

Pure arithmetic; must not know stores or messages. Every number is rounded once, in
`RehearsalUpdate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np

from spamnb.model.costs import Costs, Decision, Role, thresholds
from spamnb.model.events import STEP_ONE, Ids, Recipe, RehearsalUpdate
from spamnb.model.scoring import SHARE, spam_log_odds
from spamnb.model.smoothing import Floats
from spamnb.model.verdict import decide

EXPECTED: dict[Role, tuple[Decision, ...]] = {
    "ham": ("deliver",),
    "spam": ("junk", "reject"),
}
"""The decisions that a person expects for a message with this label."""
RARE_MESSAGES = 3
"""A feature is rare if at most so many messages contain it, this one included."""
RARE_STEPS = 1.0
"""The most that rare features move, in full steps of the model."""
EXTRA_NATS = 1.0
"""Nats beyond the threshold, so that the next correction of similar mail does not undo this one."""


def decision_margins(costs: Costs) -> dict[Role, float]:
    """How far from even odds, in nats, a message must be for the expected decision."""
    steps = thresholds(costs)
    junk = [at.log_odds for at in steps if at.decision in EXPECTED["spam"]]
    above = [at.log_odds for at in steps if at.decision not in EXPECTED["ham"]]
    return {"spam": max(min(junk, default=0.0), 0.0), "ham": max(-min(above, default=0.0), 0.0)}


def matches_label(z: list[float], label: int, costs: Costs, roles: tuple[Role, ...]) -> bool:
    """Whether label and decision are what the person that gave this label expects."""
    if max(z) != z[label]:
        return False
    return decide(spam_log_odds(z, roles), costs) in EXPECTED[roles[label]]


def missing_nats(joint: Sequence[float], label: int, margin: float) -> float:
    """How many nats the label lacks in the joint score against all others together."""
    others = [value for k, value in enumerate(joint) if k != label]
    most = max(others)
    together = most + log(sum(exp(value - most) for value in others))
    return together - joint[label] + margin + EXTRA_NATS


class FeatureHolders(NamedTuple):
    """A message's features, group after group, and how many messages contain each."""

    ids: tuple[Ids, ...]
    holders: Floats
    """[m] the number of messages that contain each feature"""
    weights: Floats
    """[m] the weight of a correction of each feature"""
    own: np.uint64
    """the feature that only this message has"""


def correction_updates(
    recipe: Recipe, message: FeatureHolders, label: int, nats: float
) -> tuple[RehearsalUpdate, ...]:
    """Steps on a message's rare features and its own one that add `nats` to the label's lead.

    If the message's own feature is not among its ids (an import), the rarest ones take its place.
    """
    ids, holders, weights, own = message
    ends = np.cumsum([len(part) for part in ids])[:-1]
    alone = [part == own for part in ids]
    if not any(part.any() for part in alone):
        alone = np.split(holders == holders.min(initial=np.inf), ends)
    few = np.split(holders <= RARE_MESSAGES, ends)
    rare = [part & ~mine for part, mine in zip(few, alone, strict=True)]
    parts = np.split(weights, ends)
    reach = _reach(parts, rare)
    slope = min(nats / reach, RARE_STEPS * recipe.eta) if reach else 0.0
    rest = (nats - slope * reach) / (_reach(parts, alone) or 1.0)
    return tuple(
        _rehearsal_update(recipe, ids, chosen, size, label)
        for chosen, size in ((rare, slope), (alone, rest))
        if size > 0
    )


def _reach(weights: Sequence[Floats], chosen: Sequence[np.ndarray]) -> float:
    """What a slope of one on the chosen features adds to the message's score."""
    return SHARE * float(
        sum(
            part[mask].sum() / max(len(part), 1) for part, mask in zip(weights, chosen, strict=True)
        )
    )


def _rehearsal_update(
    recipe: Recipe, ids: tuple[Ids, ...], chosen: Sequence[np.ndarray], slope: float, label: int
) -> RehearsalUpdate:
    K = len(recipe.labels)
    towards = [(k == label) - 1 / K for k in range(K)]
    steps = [
        [round(slope * e * STEP_ONE / max(len(part), 1) ** 0.5) for e in towards] for part in ids
    ]
    some = tuple(part[mask] for part, mask in zip(ids, chosen, strict=True))
    return RehearsalUpdate(some, np.array(steps, np.int64))
