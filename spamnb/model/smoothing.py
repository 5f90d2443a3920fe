"""The smoothing rule, and sums over a batch of messages: what all event models share.

A batch is rows of gathered counts; it must not know what the features are. Invariants: message m
owns `rows[offsets[m]:offsets[m + 1]]`, its rows are distinct, and sums are added in the order of
the rows, so a message scores the same alone and in any batch; float64 throughout and no clipping,
so a score keeps its order however long the message. An impossible case is -inf, never nan. Fails
with BugError for constants that no model can have, and for offsets that do not cover the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.errors import BugError
from spamnb.model.events import Ints

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


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages as flat rows, with the start of each message and the count of each row."""

    rows: Ints
    """[E] rows of the records, message after message"""
    offsets: Ints
    """[M + 1] where each message starts, and the end"""
    times: NDArray[np.uint32] | None = None
    """[E] occurrences, for models that count them; None counts presence"""

    def __post_init__(self) -> None:
        ends = self.offsets
        if not len(ends) or ends[0] != 0 or ends[-1] != len(self.rows) or (np.diff(ends) < 0).any():
            raise BugError("the offsets of a batch must rise from 0 to the number of its rows")
        if self.times is not None and len(self.times) != len(self.rows):
            raise BugError(f"{len(self.times)} occurrences for {len(self.rows)} rows")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def owners(self) -> Ints:
        """[E] the message of each entry."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))


def known(n: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """[F] whether any message contains the feature; the event models ignore all others."""
    return np.asarray(n.any(axis=1))


def sums(batch: Batch, values: Floats) -> Floats:
    """[M, K] of values[F, K]: for each message and label, the sum over its entries.

    bincount adds one by one in the order of the entries. add.reduceat adds in pairs, which is more
    exact, but gives a neighbour's value for an empty message.
    """
    owners, found = batch.owners(), np.empty((len(batch), values.shape[1]))
    for k in range(values.shape[1]):
        entries = values[batch.rows, k]
        if batch.times is not None:
            # Not a plain product: an entry that occurs 0 times would turn -inf into nan.
            entries = np.multiply(
                entries, batch.times, where=batch.times > 0, out=np.zeros(len(entries))
            )
        found[:, k] = np.bincount(owners, weights=entries, minlength=len(batch))
    return found


class ClassPair(NamedTuple):
    """The two labels that a share of evidence supports and opposes, per message or for all."""

    s: int | Ints
    h: int | Ints

    def differences(self, values: Floats, owners: Ints, rows: Ints) -> Floats:
        """values[row, s] - values[row, h] of each entry, with the pair of its own message."""
        s, h = _each(self.s, owners), _each(self.h, owners)
        shares: Floats = values[rows, s] - values[rows, h]
        return shares

    def bias(self, constants: Floats, messages: int) -> Floats:
        """[M] the difference of the constants of the two labels."""
        every = np.arange(messages, dtype=np.int64)
        bias: Floats = constants[_each(self.s, every)] - constants[_each(self.h, every)]
        return bias


def _each(side: int | Ints, owners: Ints) -> Ints:
    return np.full(len(owners), side, np.int64) if isinstance(side, int) else side[owners]
