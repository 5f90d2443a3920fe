"""Find the junk threshold that loses at most one in N ham with 95 % confidence.

The threshold is the score of one of the highest ham that were scored before they were learnt. If
`k` of `n` ham lie above it, the true share above it is distributed as Beta(k + 1, n - k) (order
statistics need no assumption on the scores), so its 95 % bound is that of Clopper and Pearson;
with k = 0 it takes 3 N ham to guarantee one in N. The bound holds for mail like the mail scored.
Pure functions; must not know models. Invariant: with too few ham the threshold is None.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass

import numpy as np

from spamnb.core.model.costs import Costs, junk_from
from spamnb.core.model.evidence import ham_needed, most_lost
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.lab.statistics.metrics import Bools


@dataclass(frozen=True, slots=True)
class HamLossBound:
    """The lowest junk threshold that the scored ham can guarantee, and its evidence."""

    one_in: int
    ham: int
    ham_needed: int
    """number of ham needed before any threshold can be guaranteed"""
    log_odds: float | None
    """the threshold: junk is above it; None: too few ham"""
    ham_above: int
    """scored ham above the threshold"""
    at_worst_percent: float
    """95 % upper bound of the share of ham above the threshold"""
    expected_percent: float | None
    """share of ham above the threshold by the predicted probabilities"""
    spam_missed_percent: float | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def ham_loss_bound(truth: Bools, log_odds: Floats, one_in: int) -> HamLossBound:
    """Return the lowest threshold with a 95 % bound of at most one in `one_in` ham lost."""
    ham = np.sort(log_odds[~truth])[::-1]
    needed, count = ham_needed(one_in), len(ham)
    if count < needed:
        worst = 100 * most_lost(0, count) if count else 100.0
        return HamLossBound(one_in, count, needed, None, 0, worst, None, None)
    # The bound rises with the number lost and is always above the share lost.
    lost = range(1, count // one_in + 1)
    above = bisect_right(lost, 1 / one_in, key=lambda k: most_lost(k, count))
    threshold = float(ham[above])
    return HamLossBound(
        one_in=one_in,
        ham=count,
        ham_needed=needed,
        log_odds=threshold,
        ham_above=int((ham > threshold).sum()),
        at_worst_percent=100 * most_lost(above, count),
        expected_percent=_expected(log_odds, threshold),
        spam_missed_percent=100 * float((log_odds[truth] <= threshold).mean())
        if truth.any()
        else None,
    )


def _expected(log_odds: Floats, threshold: float) -> float:
    """Share of ham above the threshold by the probabilities; defined even if no ham lies there."""
    ham = 1 / (1 + np.exp(np.clip(log_odds, -700, 700)))
    return 100 * float(ham[log_odds > threshold].sum() / ham.sum())


def costs_for(costs: Costs, found: HamLossBound) -> Costs:
    """Return the costs with the price of ham in junk that gives the threshold of `found`."""
    if found.log_odds is None:
        return costs
    return junk_from(costs, found.log_odds)
