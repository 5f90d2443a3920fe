"""Where to put the threshold so that at most one in N good messages is lost, with confidence.

The threshold is the score of one of the highest ham that was judged before it was learnt. If `k` of
`n` ham lie above it, the true share above it is distributed as Beta(k + 1, n - k) (order statistics
need no assumption on the scores), so its 95 % bound is Clopper and Pearson's, and with nothing lost
it takes 3 N ham to promise one in N. It holds for mail like that which was judged. Pure; must not
know models. Invariant: what the ham cannot promise is no threshold but None.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from math import ceil, exp, inf, lgamma, log, log1p

import numpy as np

from spamnb.core.model.costs import Costs
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.lab.statistics.metrics import Bools

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class HamLossBound:
    """What a collection of judged messages can promise about ham that is lost."""

    one_in: int
    ham: int
    ham_needed: int
    """so many are needed before any threshold can be promised"""
    log_odds: float | None
    """junk above it; None: not enough evidence yet"""
    ham_above: int
    """ham that lie above it all the same"""
    at_worst_percent: float
    """of ham lost above it, with 95 % confidence"""
    expected_percent: float | None
    """of ham lost above it, if the probabilities are right"""
    spam_missed_percent: float | None

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


def most_lost(lost: int, ham: int, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson's bound: the largest share under which so few would still be seen."""
    if lost >= ham:
        return 1.0
    low, high = lost / ham, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _at_most(lost, ham, middle) > 1 - confidence else (low, middle)
        )
    return high


def _at_most(lost: int, ham: int, share: float) -> float:
    """Chance of at most `lost` of `ham` if each is lost with this chance."""
    if share >= 1:
        return 0.0
    a, b = log(share) if share else -inf, log1p(-share)
    total = 0.0
    for k in range(lost + 1):
        ways = lgamma(ham + 1) - lgamma(k + 1) - lgamma(ham - k + 1)
        total += exp(ways + (k * a if k else 0.0) + (ham - k) * b)
    return total


def ham_needed(one_in: int, confidence: float = CONFIDENCE) -> int:
    """How many ham, none of them lost, promise one in N: about 3 N."""
    return ceil(log(1 - confidence) / log1p(-1 / one_in))


def assured(truth: Bools, log_odds: Floats, one_in: int) -> HamLossBound:
    """The lowest threshold that these outcomes can promise for."""
    ham = np.sort(log_odds[~truth])[::-1]
    needed, count = ham_needed(one_in), len(ham)
    if count < needed:
        worst = 100 * most_lost(0, count) if count else 100.0
        return HamLossBound(one_in, count, needed, None, 0, worst, None, None)
    # The bound rises with what is lost, and what is lost is below it.
    lost = range(1, count // one_in + 1)
    above = bisect_right(lost, 1 / one_in, key=lambda k: most_lost(k, count))
    edge = float(ham[above])
    return HamLossBound(
        one_in=one_in,
        ham=count,
        ham_needed=needed,
        log_odds=edge,
        ham_above=int((ham > edge).sum()),
        at_worst_percent=100 * most_lost(above, count),
        expected_percent=_expected(log_odds, edge),
        spam_missed_percent=100 * float((log_odds[truth] <= edge).mean()) if truth.any() else None,
    )


def _expected(log_odds: Floats, edge: float) -> float:
    """Ham lost by the probabilities alone, which say something even where no ham was seen."""
    ham = 1 / (1 + np.exp(np.clip(log_odds, -700, 700)))
    return 100 * float(ham[log_odds > edge].sum() / ham.sum())


def costs_for(costs: Costs, found: HamLossBound) -> Costs:
    """The same costs, but that losing a ham costs what puts the threshold of junk there.

    Never below where unsure begins, and rejecting stays as much dearer as it was.
    """
    if found.log_odds is None:
        return costs
    deliver, unsure, junk, reject = costs.deliver, costs.unsure, costs.junk, costs.reject
    first = log((unsure[0] - deliver[0]) / (deliver[1] - unsure[1])) if unsure != deliver else 0.0
    ham = unsure[0] + exp(min(max(found.log_odds, first), 40.0)) * (unsure[1] - junk[1])
    dearer = reject[0] / junk[0] if junk[0] else 1.0
    return replace(costs, junk=(ham, junk[1]), reject=(max(ham * dearer, reject[0]), reject[1]))
