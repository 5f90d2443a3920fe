"""Naive Bayes over counts and presence: multinomial, complement, Bernoulli, on tables of numbers.

The same formulas as the filter's own kinds (`multinomial`, `bernoulli`), for whoever has a table
[cases, columns] at hand. Here every column takes part, seen or not, as scikit-learn has it. Must
not know words or mail. Invariants: equal to scikit-learn's models of these names on the same cases;
0 times an impossible column is 0. Fails as its parent does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.classifier import Cases, Classifier, Joint, numbers, prior_of
from spamnb.bayes.sums import COUNT_ONE, Tally
from spamnb.core.model.likelihood.smoothing import Assumptions, Floats, log_m_estimate
from spamnb.errors import UserError


@dataclass(eq=False, kw_only=True)
class _Counting(Classifier[Tally]):
    """A classifier that keeps how often each column was seen."""

    alpha: float = 1.0
    """cases supposed to have been seen of everything, before the first"""
    fit_prior: bool = True
    class_prior: ArrayLike | None = None
    binarize: float | None = None
    """a number above this is 1, any other 0; None takes numbers as they are"""

    def __post_init__(self) -> None:
        Assumptions(alpha=self.alpha)

    def _read(self, X: ArrayLike) -> Cases:
        if self.binarize is None:
            return numbers(X, least=0.0)
        return np.asarray(numbers(X) > self.binarize, np.float64)

    def _of(self, cases: Cases, weights: Floats) -> Tally:
        return Tally.of(cases, weights)

    @property
    def _assumed(self) -> Assumptions:
        return prior_of(self.class_prior, fit_prior=self.fit_prior)


@dataclass(eq=False, kw_only=True)
class MultinomialNB(_Counting):
    """Each case is drawn, occurrence by occurrence, from its class's columns.

        log p(f|k) = log(n[f,k] + alpha) - log(T[k] + alpha V)

    >>> model = MultinomialNB().fit([[2, 1], [1, 0], [0, 3]], ["spam", "spam", "ham"])
    >>> model.predict([[1, 0]])
    array(['spam'], dtype='<U4')

    By hand: p(first|spam) = (3 + 1) / (4 + 2) and p(first|ham) = (0 + 1) / (3 + 2), so the odds of
    spam are 2/3 * 4/6 against 1/3 * 1/5, and its probability is (4/9) / (4/9 + 1/15) = 20/23:

    >>> model.predict_proba([[1, 0]]).round(4)
    array([[0.1304, 0.8696]])

    `binarize=0` counts presence. `length_power` divides the evidence by that power of the case's
    length: 0 is the classical sum, 1 the mean, which keeps long cases comparable with short ones.
    """

    length_power: float = 0.0

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        n = _counts(sums)
        V = max(n.shape[1], 1)
        logs = log_m_estimate(n, n.sum(axis=1, keepdims=True), self.alpha * V, 1 / V)

        def joint(cases: Cases) -> Floats:
            size = np.maximum(cases.sum(axis=1, keepdims=True), 1.0) ** self.length_power
            return np.asarray(prior + _weighed(cases, logs) / size)

        return joint


@dataclass(eq=False, kw_only=True)
class ComplementNB(_Counting):
    """Each class is judged by how badly all the others explain the case.

        w[f,k] = -log((n of f outside k + alpha) / (T outside k + alpha V))

    Steadier than the multinomial where classes have few cases. There is no prior, except for a
    class that is alone; `norm` divides each class's weights by their sum, so what it gives are
    scores, not log probabilities, as in scikit-learn.

    >>> model = ComplementNB().fit([[2, 1], [1, 0], [0, 3]], ["spam", "spam", "ham"])
    >>> model.predict_joint_log_proba([[1, 0]]).round(4)
    array([[0.4055, 1.6094]])

    By hand: outside ham the first column has 3 of 4, so -log(4/6); outside spam 0 of 3: -log(1/5).
    """

    norm: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise UserError(f"the complement needs an alpha above 0, not {self.alpha}")

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        n = _counts(sums)
        V, outside = max(n.shape[1], 1), n.sum(axis=0) - n
        logs = log_m_estimate(outside, outside.sum(axis=1, keepdims=True), self.alpha * V, 1 / V)
        weights = logs / logs.sum(axis=1, keepdims=True) if self.norm else -logs
        start = prior if len(sums) == 1 else np.zeros(len(sums))
        return lambda cases: np.asarray(start + _weighed(cases, weights))


@dataclass(eq=False, kw_only=True)
class BernoulliNB(_Counting):
    """Each column is there or not, and both count.

        p(f|k) = (n[f,k] + alpha) / (N[k] + 2 alpha)

    >>> rows = [[0, 1], [1, 1], [0, 0], [1, 1], [1, 0], [0, 0], [1, 1], [0, 0], [0, 1], [1, 0]]
    >>> model = BernoulliNB(alpha=0).fit(rows, list("ABAABABBBB"))
    >>> model.predict_proba([[1, 1], [0, 1]]).round(12)
    array([[0.2, 0.8],
           [0.6, 0.4]])

    By hand: A has 4 of 10 rows with p = 1/4, 1/2; B has 6 with p = 2/3, 1/2. For (1, 1) that is
    4/10 * 1/4 * 1/2 = 1/20 against 6/10 * 2/3 * 1/2 = 1/5.
    """

    binarize: float | None = 0.0

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        n, N = _counts(sums), np.array([held.weight for held in sums])[:, None]
        present = log_m_estimate(n, N, 2 * self.alpha, 0.5)
        absent = log_m_estimate(N - n, N, 2 * self.alpha, 0.5)

        def joint(cases: Cases) -> Floats:
            return np.asarray(prior + _weighed(cases, present) + _weighed(1 - cases, absent))

        return joint


def _counts(sums: Sequence[Tally]) -> Floats:
    """[K, F] counts in cases."""
    return np.asarray(np.stack([held.counts for held in sums]) / COUNT_ONE)


def _weighed(cases: Cases, logs: Floats) -> Floats:
    """[M, K] of cases [M, F] and logs [K, F]: the sum of x_f log p(f|k), where 0 log 0 is 0."""
    impossible = np.isneginf(logs)
    sums: Floats = cases @ np.where(impossible, 0.0, logs).T
    sums[cases @ impossible.T > 0] = -np.inf
    return sums
