"""Choose actions of minimum risk, and bound the Bayes error.

Holds minimum-risk actions for any table of losses, the expected error of probabilities, and bounds
on the least possible error (Bayes error) from nearest neighbours. Must not know models.
Invariants: of equal actions the first is chosen; with zero-one loss the action is the most
probable class. Failure: UserError for arrays that do not match.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.tables import numbers
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.errors import UserError

BLOCK = 1 << 22
"""Distances computed in one step: 32 MB."""


@dataclass(frozen=True, slots=True)
class BayesError:
    """Bounds on the least possible error, and the data behind them."""

    lower: float
    upper: float
    nearest: float
    """share of cases with another class than their nearest neighbour"""
    deviation: float
    """standard deviation of `nearest`, from the size of the sample alone"""
    cases: int


def minimum_risk(probabilities: ArrayLike, losses: ArrayLike) -> NDArray[np.intp]:
    """Return the actions [M] of least expected loss, from P [M, K] and losses [actions, K].

    >>> minimum_risk([[0.9, 0.1], [0.99, 0.01]], [[0, 1], [0.05, 0.05]])
    array([1, 0])

    By hand: action 0 costs P(second class), 0.1 and 0.01; action 1 always costs 0.05.
    """
    P, L = numbers(probabilities), numbers(losses)
    if P.shape[1] != L.shape[1]:
        raise UserError(f"probabilities of {P.shape[1]} classes, losses of {L.shape[1]} classes")
    return _least_expected(P, L)


def _least_expected(P: Floats, L: Floats) -> NDArray[np.intp]:
    # Class by class, not a matrix product: its rounding depends on the machine's BLAS, so ties
    # could be resolved either way.
    expected = P[:, :1] * L[:, 0]
    for k in range(1, P.shape[1]):
        expected += P[:, k, None] * L[:, k]
    return np.asarray(expected.argmin(axis=1))


def zero_one(K: int) -> Floats:
    """Return losses [K, K] of 1 for every error and 0 for the correct class."""
    return np.asarray(1.0 - np.eye(K))


def error_probability(probabilities: ArrayLike) -> float:
    """Return the expected error of choosing the most probable class, if probabilities are right.

    >>> round(error_probability([[0.9, 0.1], [0.3, 0.7]]), 9)
    0.2
    """
    return float(np.mean(1 - numbers(probabilities).max(axis=1)))


def bayes_error(X: ArrayLike, y: ArrayLike) -> BayesError:
    """Bound the least possible error by nearest neighbours (Cover and Hart, 1967).

    In a large sample the nearest neighbour's error R lies between the Bayes error R* and
    R* (2 - K R* / (K - 1)). So R* <= R, and

        R* >= (K - 1)/K * (1 - sqrt(1 - K R / (K - 1)))

    R is the share of cases with another class than their nearest neighbour; equally near neighbours
    count with the share of them that disagree. Scale the columns to similar variances first. In a
    finite sample R tends to be too large, more so with more columns, and so do both bounds.

    >>> found = bayes_error([[0], [1], [2], [10], [11], [12]], [0, 0, 1, 1, 1, 1])
    >>> found.upper, round(found.lower, 4)
    (0.25, 0.1464)

    By hand: the case 2 disagrees with 1, its nearest; 1 is half way between 0 and 2 and disagrees
    with one of them; R = (1 + 1/2) / 6 = 1/4, and the lower bound is (1 - sqrt(1 - 1/2)) / 2.
    """
    cases = numbers(X)
    names, labels = np.unique(np.asarray(y), return_inverse=True)
    if len(labels) != len(cases):
        raise UserError(f"{len(labels)} labels for {len(cases)} cases")
    K, M = len(names), len(cases)
    if K < 2 or M < 2:
        raise UserError(f"{M} cases of {K} classes", hint="give cases of at least two classes")
    R = float(_disagreeing(cases, labels).mean())
    return BayesError(least_error(R, K), R, R, sqrt(R * (1 - R) / M), M)


def least_error(nearest: float, K: int) -> float:
    """Return Cover and Hart's lower bound on the Bayes error, from the nearest neighbour's error.

    >>> round(least_error(0.18, 2), 9)
    0.1

    By hand: if one label in ten is wrong by chance, neighbours disagree in 2 * 0.1 * 0.9 = 18 %.
    """
    inside = max(1 - K * nearest / (K - 1), 0.0)
    return (K - 1) / K * (1 - sqrt(inside))


def _disagreeing(cases: Floats, labels: NDArray[Any]) -> Floats:
    """[M] share of each case's nearest neighbours that has another class."""
    squares = (cases * cases).sum(axis=1)
    found = np.empty(len(cases))
    step = max(1, BLOCK // len(cases))
    for start in range(0, len(cases), step):
        part = slice(start, min(start + step, len(cases)))
        distance = squares[part, None] + squares - 2 * cases[part] @ cases.T
        here = np.arange(part.start, part.stop)
        distance[here - start, here] = np.inf
        nearest = distance.min(axis=1, keepdims=True)
        # The expanded square has rounding errors relative to its largest term.
        near = distance <= nearest + 1e-12 * (squares[part, None] + squares.max())
        other = labels[part, None] != labels
        found[part] = (near & other).sum(axis=1) / near.sum(axis=1)
    return found
