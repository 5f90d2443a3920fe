"""Calibrate the joint score of the experts: the probability that a lead of a label stands for.

The experts learn from mistakes, so the leads of the joint score stay as small as they can be
without a mistake. Where only mistakes and doubtful messages are taught, the correct log-odds of
the larger leads are twice as large (docs/decisions/0034). The lead of the best label becomes
    LOW lead + t more,   more = GAIN (lead - SURE), within 0 and MORE,   t = min(1, min_k N_k / FEW)
and all scores are multiplied by the same factor, so labels keep their order; with two labels,
messages keep their order, too. This is a fixed function of the score and of N: nothing is learned
or stored for it.

Plain numbers; must not know features. Invariants: continuous, and rises with the lead.
"""

from __future__ import annotations

from collections.abc import Sequence

from spamnb.core.model.events import Totals

LOW = 0.86
"""The factor of each nat. With 1, fewer messages are doubtful and taught: 1-AUC where only those
are taught is a tenth higher."""
SURE = 2.5
"""The lead above which a nat counts more; multiplied by LOW it is odds of 9 to 1."""
GAIN, MORE = 1.5, 1.75
"""What each nat above SURE adds, and the limit of the sum: enough to file the spam that the model
is sure of. Without a limit, a ham of the SpamAssassin corpus would be rejected."""
FEW = 100
"""GAIN and MORE count in full when each label has so many messages. A young model would file ham
with them."""


def maturity(totals: Totals) -> float:
    """From 0 to 1: how far the label with the fewest messages has come to FEW."""
    least: int = min(totals.messages.tolist())
    return min(1.0, least / FEW)


def factor(joint: Sequence[float], mature: float) -> float:
    """The number by which the joint scores [K] of a message are multiplied."""
    second, first = sorted(joint)[-2:]
    lead = first - second
    if lead <= SURE:
        return LOW
    return LOW + mature * min(GAIN * (lead - SURE), MORE) / lead


def calibrated(joint: Sequence[float], mature: float) -> list[float]:
    """The scores [K] of the verdict."""
    times = factor(joint, mature)
    return [times * score for score in joint]


def joint_lead(lead: float, mature: float) -> float:
    """The lead of the joint score that becomes this lead of the verdict."""
    rising = (lead + mature * GAIN * SURE) / (LOW + mature * GAIN)
    return min(lead / LOW, max(rising, (lead - mature * MORE) / LOW))
