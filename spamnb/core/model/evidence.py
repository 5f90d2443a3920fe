"""What counts of messages prove: bounds of shares, and how far probabilities held. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.likelihood.smoothing import Floats

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Messages with about the same probability: mean probability and share of spam."""

    said: float
    seen: float
    low: float
    """Wilson's 95 % interval of `seen`"""
    high: float
    messages: int


@lru_cache(maxsize=1024)
def most_lost(lost: int, ham: int, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson's upper bound of the share lost, given `lost` of `ham`."""
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
    """Probability of at most `lost` of `ham` if each is lost with probability `share`."""
    if share >= 1:
        return 0.0
    a, b = log(share) if share else -inf, log1p(-share)
    total = 0.0
    for k in range(lost + 1):
        log_ways = lgamma(ham + 1) - lgamma(k + 1) - lgamma(ham - k + 1)
        total += exp(log_ways + (k * a if k else 0.0) + (ham - k) * b)
    return total


def ham_needed(one_in: int, confidence: float = CONFIDENCE) -> int:
    """Number of ham, none of them lost, that guarantee one in N: about 3 N."""
    return ceil(log(1 - confidence) / log1p(-1 / one_in))


def reliability(
    truth: NDArray[np.bool_], probability: Floats, bins: int = 10
) -> tuple[ReliabilityBin, ...]:
    """Return the share of spam in each bin of the probabilities; empty bins are left out."""
    at = np.minimum((probability * bins).astype(int), bins - 1)
    found = []
    for number in np.unique(at):
        inside = at == number
        count, right = int(inside.sum()), int(truth[inside].sum())
        low, high = wilson(right, count)
        found.append(
            ReliabilityBin(float(probability[inside].mean()), right / count, low, high, count)
        )
    return tuple(found)


def wilson(right: int, of: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927), clipped to contain the share and lie in [0, 1].

    For 0 of n and n of n one end is the share itself; without clipping, rounding misses it for
    half of all counts.
    """
    z = 1.959963984540054
    share, spread = right / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * (share * (1 - share) / of + spread / (4 * of)) ** 0.5 / (1 + spread)
    return max(min(middle - half, share), 0.0), min(max(middle + half, share), 1.0)
