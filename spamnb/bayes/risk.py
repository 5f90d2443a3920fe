"""Bayes' rule, actions of minimum risk, ROC curves, and the Bayes error.

Holds the posterior from priors and likelihoods; the risk of each action and the action of minimum
risk for any table of losses; the curve of error rates that a loss selects a point of; and the least
possible error (Bayes error): exact for known densities, bounded by nearest neighbours for a sample.
Must not know models. Invariants: of equal actions the first is chosen; with zero-one loss the
action is the most probable class. Failure: UserError for arrays that do not match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.tables import numbers
from spamnb.errors import UserError
from spamnb.model.smoothing import Floats

BLOCK = 1 << 22
"""Distances computed in one step: 32 MB."""
STEPS = 200_000
"""Steps of the integral over densities."""


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


class RocCurve(NamedTuple):
    """Error rates of deciding for the positive class at a score of at least each threshold."""

    fpr: Floats
    """share of the negative cases that are called positive"""
    tpr: Floats
    """share of the positive cases that are called positive"""
    thresholds: Floats

    @property
    def auc(self) -> float:
        """Area under the curve."""
        return float(np.trapezoid(self.tpr, self.fpr))

    def risks(self, losses: ArrayLike, prior: ArrayLike) -> Floats:
        """Return the expected loss at each threshold.

        `losses` has a row for deciding negative and one for positive, and a column for each class,
        negative first, as `prior`.
        """
        L, P = _two_classes(losses), _distribution(prior, 2)
        negative = L[0, 0] * (1 - self.fpr) + L[1, 0] * self.fpr
        positive = L[0, 1] * (1 - self.tpr) + L[1, 1] * self.tpr
        return np.asarray(P[0] * negative + P[1] * positive)


def bayes_rule(prior: ArrayLike, likelihood: ArrayLike, evidence: ArrayLike | None = None) -> Any:
    """Return P(class | evidence) = P(class) P(evidence | class) / P(evidence).

    Without the probability of the evidence, it is the sum of prior times likelihood over all
    classes, so these must be given for each class.

    >>> round(bayes_rule(0.1, 0.07, 0.05), 4)
    0.14
    >>> bayes_rule([0.005, 0.995], [0.99, 0.01]).round(3)
    array([0.332, 0.668])

    By hand: 0.005 * 0.99 = 0.00495 against 0.995 * 0.01 = 0.00995; 0.00495 / 0.0149 = 0.332.
    """
    P, given = np.asarray(prior, np.float64), np.asarray(likelihood, np.float64)
    if evidence is None:
        P = _distribution(prior, None)
        if given.shape != P.shape or not (given >= 0).all():
            raise UserError(f"{given.size} likelihoods for {P.size} classes, or one is below 0")
        products = P * given
        if not 0 < products.sum() < np.inf:
            raise UserError("the evidence is impossible: it has probability 0")
        return products / products.sum()
    whole = np.asarray(evidence, np.float64)
    found = P * given / np.where(whole > 0, whole, np.nan)
    if not ((found >= 0) & (found <= 1 + 1e-9)).all():
        raise UserError(
            f"{prior!r} * {likelihood!r} / {evidence!r} is no probability",
            hint="P(evidence) is above 0 and at least P(class) P(evidence | class)",
        )
    return np.minimum(found, 1.0) if found.ndim else min(float(found), 1.0)


def conditional_risk(probabilities: ArrayLike, losses: ArrayLike) -> Floats:
    """Return the expected loss of each action [M, actions], from P [M, K] and losses [actions, K].

    >>> conditional_risk([[0.9, 0.1]], [[0, 1], [0.05, 0.05]]).round(4)
    array([[0.1 , 0.05]])

    By hand: action 0 costs 0.9 * 0 + 0.1 * 1, action 1 always 0.05.
    """
    P, L = numbers(probabilities), numbers(losses)
    if P.shape[1] != L.shape[1]:
        raise UserError(f"probabilities of {P.shape[1]} classes, losses of {L.shape[1]} classes")
    # Class by class, not a matrix product: its rounding depends on the machine's BLAS, so ties
    # could be resolved either way.
    risks = P[:, :1] * L[:, 0]
    for k in range(1, P.shape[1]):
        risks += P[:, k, None] * L[:, k]
    return risks


def minimum_risk(probabilities: ArrayLike, losses: ArrayLike) -> NDArray[np.intp]:
    """Return the actions [M] of least expected loss, from P [M, K] and losses [actions, K].

    >>> minimum_risk([[0.9, 0.1], [0.99, 0.01]], [[0, 1], [0.05, 0.05]])
    array([1, 0])

    By hand: action 0 costs P(second class), 0.1 and 0.01; action 1 always costs 0.05.
    """
    return np.asarray(conditional_risk(probabilities, losses).argmin(axis=1))


def zero_one(K: int, reject: float | None = None) -> Floats:
    """Return losses [K, K] of 1 for every error and 0 for the correct class.

    `reject` is the loss of one more action, to decide for no class. It has the least risk where the
    most probable class has less than 1 - reject (Chow, 1970).

    >>> minimum_risk([[0.95, 0.05], [0.85, 0.15]], zero_one(2, reject=0.1))
    array([0, 2])
    """
    losses = 1.0 - np.eye(K)
    if reject is None:
        return losses
    if not 0 <= reject <= 1:
        raise UserError(f"the loss of a rejection is from 0 to 1, not {reject}")
    return np.vstack([losses, np.full(K, reject)])


def risk_threshold(losses: ArrayLike) -> float:
    """Return the probability of the second class above which its action has the least risk.

    >>> round(risk_threshold([[0, 1], [9, 0]]), 4)
    0.9

    By hand: at P the actions cost P and 9 (1 - P), which are equal at 9/10.
    """
    L = _two_classes(losses)
    false_alarm, miss = L[1, 0] - L[0, 0], L[0, 1] - L[1, 1]
    if not (false_alarm >= 0 and miss >= 0 and false_alarm + miss > 0):
        raise UserError("an error must not cost less than the correct decision")
    return float(false_alarm / (false_alarm + miss))


def roc_curve(y: ArrayLike, scores: ArrayLike) -> RocCurve:
    """Return the ROC curve of scores [M] for the truth [M], which is true for positive cases.

    >>> curve = roc_curve([False, False, True, True], [0.1, 0.4, 0.35, 0.8])
    >>> curve.fpr, curve.tpr, curve.auc
    (array([0. , 0. , 0.5, 0.5, 1. ]), array([0. , 0.5, 0.5, 1. , 1. ]), 0.75)

    By hand: of the four pairs of a positive and a negative case, only 0.35 and 0.4 are in the wrong
    order. A missed positive that costs ten times a false alarm moves the best threshold to 0.35:

    >>> risks = curve.risks([[0, 10], [1, 0]], prior=[0.5, 0.5])
    >>> curve.thresholds[risks.argmin()], risks.min()
    (np.float64(0.35), np.float64(0.25))
    """
    labels, s = np.asarray(y), np.asarray(scores, np.float64)
    if not np.isin(labels, [False, True]).all():
        raise UserError("the truth is True or False for each case", hint='give y == "spam"')
    truth = labels.astype(bool)
    if truth.ndim != 1 or truth.shape != s.shape or np.isnan(s).any():
        raise UserError("a ROC curve needs one score, which is a number, for each case")
    if truth.all() or not truth.any():
        raise UserError("a ROC curve needs cases of both classes")
    order = np.argsort(-s, kind="stable")
    truth, s = truth[order], s[order]
    last = np.append(s[1:] != s[:-1], True)  # of each score: equal scores have one point
    tpr, fpr = truth.cumsum()[last] / truth.sum(), (~truth).cumsum()[last] / (~truth).sum()
    return RocCurve(np.append(0.0, fpr), np.append(0.0, tpr), np.append(np.inf, s[last]))


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


def exact_bayes_error(
    priors: ArrayLike,
    densities: Sequence[Callable[[Floats], Floats]],
    interval: tuple[float, float],
) -> float:
    """Return the least possible error for known densities of one number.

        R* = 1 - integral of the largest P(k) p(x|k)

    >>> def bell(mean):
    ...     return lambda x: np.exp(-((x - mean) ** 2) / 2) / np.sqrt(2 * np.pi)
    >>> round(exact_bayes_error([0.5, 0.5], [bell(0), bell(2)], (-10, 12)), 6)
    0.158655

    By hand: the border is at 1, one standard deviation from both means, and a normal number is
    beyond one standard deviation on one side with probability 0.158655.
    """
    P = _distribution(priors, len(densities))
    x = np.linspace(*interval, STEPS + 1)
    values = np.stack([np.asarray(density(x), np.float64) for density in densities])
    areas = [float(np.trapezoid(of_class, x)) for of_class in values]
    if not (values >= 0).all() or not np.allclose(areas, 1, atol=1e-6):
        raise UserError(
            f"the densities have areas of {', '.join(f'{area:.6g}' for area in areas)}, not 1",
            hint="give densities, and an interval that contains nearly all of them",
        )
    return 1 - float(np.trapezoid((P[:, None] * values).max(axis=0), x))


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


def _two_classes(losses: ArrayLike) -> Floats:
    L = numbers(losses)
    if L.shape != (2, 2):
        raise UserError(f"losses of two actions and two classes, not of shape {L.shape}")
    return L


def _distribution(prior: ArrayLike, K: int | None) -> Floats:
    """Read the probabilities of the classes [K]."""
    P = np.asarray(prior, np.float64)
    if P.ndim != 1 or (K is not None and len(P) != K):
        raise UserError(f"give one probability for each class, not {prior!r}")
    if not ((P >= 0).all() and abs(P.sum() - 1) < 1e-9):
        raise UserError(f"probabilities of classes are at least 0 and sum to 1, not {prior!r}")
    return P
