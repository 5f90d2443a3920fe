"""The smoothing rule and the log-space functions that all event models share.

Holds numbers and arrays only. Invariants: float64 throughout and no clipping, so a score keeps its
order however long the message. An impossible case is -inf, never nan. Fails with BugError when a
caller passes constants that no model can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.core.model.events import Ints
from spamnb.errors import BugError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a model assumes without any data: the pseudo-count and the prior."""

    alpha: float = 1.0
    prior: Literal["counts", "uniform"] | tuple[float, ...] = "counts"
    """from the counts of messages, the same for all, or one probability a label"""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < np.inf:
            raise BugError(f"alpha must be finite and not negative, not {self.alpha}")
        if isinstance(self.prior, tuple) and not (
            min(self.prior, default=-1.0) >= 0 and abs(sum(self.prior) - 1) < 1e-9
        ):
            raise BugError(f"a given prior must be probabilities that sum to 1, not {self.prior}")


def m_estimate(count: ArrayLike, total: ArrayLike, m: ArrayLike, p: ArrayLike) -> Floats:
    """(n + m p) / (d + m): the share seen, as if m more cases had been seen with share p.

    Laplace's add-alpha over a set of outcomes is m = alpha * outcomes, p = 1 / outcomes.

    >>> m_estimate([12, 0], 55, 2, 1 / 2) * 57
    array([13.,  1.])
    """
    n, d, m = (np.asarray(value, np.float64) for value in (count, total, m))
    estimate: Floats = (n + m * np.asarray(p, np.float64)) / (d + m)
    return estimate


def log_m_estimate(count: ArrayLike, total: ArrayLike, m: ArrayLike, p: ArrayLike) -> Floats:
    """Logarithm of the m-estimate; -inf where both the count and the assumption are 0."""
    n, d, m = (np.asarray(value, np.float64) for value in (count, total, m))
    with np.errstate(divide="ignore"):
        above = np.log(n + m * np.asarray(p, np.float64))
        # 0 of 0 cases without smoothing is no evidence: the result is -inf, not nan.
        below = np.where(d + m > 0, np.log(d + m), 0.0)
    logs: Floats = above - below
    return logs


def log_prior(assumptions: Assumptions, messages: Ints | Floats) -> Floats:
    """Log probability of each label before a message is read; uniform without any messages."""
    K, seen = len(messages), float(messages.sum())
    if isinstance(assumptions.prior, tuple):
        if len(assumptions.prior) != K:
            raise BugError(f"{len(assumptions.prior)} priors for {K} labels")
        weights = np.array(assumptions.prior, np.float64)
    elif assumptions.prior == "counts" and seen > 0:
        weights = messages.astype(np.float64)
    else:
        weights = np.ones(K)
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(weights) - np.log(weights.sum())
    return logs


def log_sum_exp(scores: Floats) -> Floats:
    """log(sum(exp(scores))) along the last axis, without over- or underflow."""
    top = scores.max(axis=-1, keepdims=True)
    # An infinite top would subtract to nan; any finite pivot leaves the rest exact.
    pivot = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        sums: Floats = np.log(np.exp(scores - pivot).sum(axis=-1)) + pivot[..., 0]
    return sums


def log_softmax(scores: Floats) -> Floats:
    """Log posterior from joint log likelihoods; uniform where every label is impossible."""
    hopeless = np.isneginf(scores).all(axis=-1, keepdims=True)
    safe = np.where(hopeless, 0.0, scores)
    # The top is subtracted first: beside a score of 1e20 the logarithm of the sum is rounded away.
    below = safe - safe.max(axis=-1, keepdims=True)
    logs: Floats = below - log_sum_exp(below)[..., None]
    return logs


def softmax(scores: Floats) -> Floats:
    """Posterior from joint log likelihoods."""
    posterior: Floats = np.exp(log_softmax(scores))
    return posterior
