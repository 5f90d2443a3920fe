"""Exact intervals of shares, and the exact test of two filters on the same messages. Pure."""

from __future__ import annotations

from math import comb

from spamnb.core.model.evidence import CONFIDENCE, most_lost

Share = tuple[float, float]


def exact_interval(count: int, of: int, confidence: float = CONFIDENCE) -> Share:
    """Clopper and Pearson's two-sided interval of a share; 0 to 1 if `of` is 0."""
    if not of:
        return 0.0, 1.0
    side = 1 - (1 - confidence) / 2
    return 1 - most_lost(of - count, of, side), most_lost(count, of, side)


def exact_p(first: int, second: int) -> float:
    """McNemar's exact two-sided p.

    Of the messages that one filter alone judged right, `first` are those of one filter and `second`
    those of the other.
    """
    both = first + second
    tail = sum(comb(both, k) for k in range(min(first, second) + 1))
    return min(1.0, tail / 2 ** (both - 1)) if both else 1.0
