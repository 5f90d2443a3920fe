"""From probabilities to actions, and how well anybody could do.

Holds minimum-risk actions for any table of losses, the probability of error, and a bound on the
least error that is possible (Bayes error) from how often a case and its nearest neighbour disagree.
Must not know models. Invariants: of equal actions the first is taken; under zero-one loss the
action is the most probable class. Fails with UserError for arrays that do not match.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.classifier import numbers
from spamnb.core.model.likelihood.losses import least_expected
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.errors import UserError

BLOCK = 1 << 22
"""Distances looked at in one step: 32 MB."""


@dataclass(frozen=True, slots=True)
class BayesError:
    """Between which bounds the least possible error lies, and what they come from."""

    lower: float
    upper: float
    nearest: float
    """how often a case has another class than its nearest neighbour"""
    deviation: float
    """standard deviation of `nearest`, from the size of the sample alone"""
    cases: int


def minimum_risk(probabilities: ArrayLike, losses: ArrayLike) -> NDArray[np.intp]:
    """[M] the action of least expected loss, from P [M, K] and losses [actions, K].

    >>> minimum_risk([[0.9, 0.1], [0.99, 0.01]], [[0, 1], [0.05, 0.05]])
    array([1, 0])

    By hand: delivering (first) costs the chance of spam, asking always 0.05.
    """
    P, L = numbers(probabilities), numbers(losses)
    if P.shape[1] != L.shape[1]:
        raise UserError(f"probabilities of {P.shape[1]} classes, losses of {L.shape[1]}")
    return least_expected(P, L)


def zero_one(K: int) -> Floats:
    """[K, K] losses where every error costs the same."""
    return np.asarray(1.0 - np.eye(K))


def error_probability(probabilities: ArrayLike) -> float:
    """How often the most probable class is expected to be wrong, if the probabilities are true.

    >>> round(error_probability([[0.9, 0.1], [0.3, 0.7]]), 9)
    0.2
    """
    return float(np.mean(1 - numbers(probabilities).max(axis=1)))


def bayes_error(X: ArrayLike, y: ArrayLike) -> BayesError:
    """Bound the least possible error by nearest neighbours (Cover and Hart, 1967).

    In a large sample the nearest neighbour's error R lies between the Bayes error R* and
    R* (2 - K R* / (K - 1)). So R* <= R, and

        R* >= (K - 1)/K * (1 - sqrt(1 - K R / (K - 1)))

    Each case is judged by the nearest other one; of equally near ones, by the share of them that
    disagree. Columns should vary alike: scale them first. In a finite sample R is rather too
    large, the more so the more columns there are; then so are both bounds.

    >>> found = bayes_error([[0], [1], [2], [10], [11], [12]], [0, 0, 1, 1, 1, 1])
    >>> found.upper, round(found.lower, 4)
    (0.25, 0.1464)

    By hand: 2 disagrees with 1, its nearest; 1 is half way between 0 and 2 and disagrees with one
    of them; R = (1 + 1/2) / 6 = 1/4, and the lower bound is (1 - sqrt(1 - 1/2)) / 2.
    """
    cases = numbers(X)
    names, labels = np.unique(np.asarray(y), return_inverse=True)
    if len(labels) != len(cases):
        raise UserError(f"{len(labels)} classes for {len(cases)} cases")
    K, M = len(names), len(cases)
    if K < 2 or M < 2:
        raise UserError("an error needs cases of two classes", hint="give more cases")
    R = float(_disagreeing(cases, labels).mean())
    return BayesError(least_error(R, K), R, R, sqrt(R * (1 - R) / M), M)


def least_error(nearest: float, K: int) -> float:
    """Cover and Hart's lower bound on the least possible error, from the nearest neighbour's.

    >>> round(least_error(0.18, 2), 9)
    0.1

    By hand: if one label in ten is wrong by chance, neighbours disagree in 2 * 0.1 * 0.9 = 18 %.
    """
    inside = max(1 - K * nearest / (K - 1), 0.0)
    return (K - 1) / K * (1 - sqrt(inside))


def _disagreeing(cases: Floats, labels: NDArray[Any]) -> Floats:
    """[M] which share of its nearest neighbours has another class."""
    squares = (cases * cases).sum(axis=1)
    found = np.empty(len(cases))
    step = max(1, BLOCK // len(cases))
    for start in range(0, len(cases), step):
        part = slice(start, min(start + step, len(cases)))
        distance = squares[part, None] + squares - 2 * cases[part] @ cases.T
        here = np.arange(part.start, part.stop)
        distance[here - start, here] = np.inf
        nearest = distance.min(axis=1, keepdims=True)
        # The expanded square is off by some roundings of its largest term.
        near = distance <= nearest + 1e-12 * (squares[part, None] + squares.max())
        other = labels[part, None] != labels
        found[part] = (near & other).sum(axis=1) / near.sum(axis=1)
    return found
