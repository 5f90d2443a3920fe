"""Naive Bayes over counts: multinomial, complement and Bernoulli models for [cases, columns].

They use the formulas of the filter's kinds `multinomial` and `bernoulli`, but every column counts,
seen or not, as in scikit-learn. Invariants: results equal those of scikit-learn's models of these
names on the same cases; 0 times an impossible column is 0. Failure: as `Classifier`.
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
    """A classifier that keeps the count of each column."""

    alpha: float = 1.0
    """pseudo-count added to every count"""
    fit_prior: bool = True
    class_prior: ArrayLike | None = None
    binarize: float | None = None
    """numbers above this become 1, others 0; None keeps the numbers"""

    def __post_init__(self) -> None:
        Assumptions(alpha=self.alpha)

    def _read(self, X: ArrayLike) -> Cases:
        if self.binarize is None:
            return numbers(X, least=0.0)
        return np.asarray(numbers(X) > self.binarize, np.float64)

    def _of(self, cases: Cases, weights: Floats) -> Tally:
        return Tally.of(cases, weights)

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.class_prior, fit_prior=self.fit_prior)


@dataclass(eq=False, kw_only=True)
class MultinomialNB(_Counting):
    """Multinomial naive Bayes over counts.

        log p(f|k) = log(n[f,k] + alpha) - log(T[k] + alpha V)

    >>> model = MultinomialNB().fit([[2, 1], [1, 0], [0, 3]], ["spam", "spam", "ham"])
    >>> model.predict([[1, 0]])
    array(['spam'], dtype='<U4')

    By hand: p(first|spam) = (3 + 1) / (4 + 2) and p(first|ham) = (0 + 1) / (3 + 2), so the odds of
    spam are 2/3 * 4/6 against 1/3 * 1/5, and its probability is (4/9) / (4/9 + 1/15) = 20/23:

    >>> model.predict_proba([[1, 0]]).round(4)
    array([[0.1304, 0.8696]])

    `binarize=0` counts presence. The log likelihood is divided by the sum of the case to the power
    `length_power`: 0 gives the classical sum, 1 the mean, which treats long and short cases alike.
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
    """Complement naive Bayes: scores a class by the counts of all other classes.

        w[f,k] = -log((n of f outside k + alpha) / (T outside k + alpha V))

    More stable than the multinomial model for classes with few cases. As in scikit-learn, the prior
    is used only if there is a single class, and `norm` divides the weights of each class by their
    sum, so the results are scores, not log probabilities.

    >>> model = ComplementNB().fit([[2, 1], [1, 0], [0, 3]], ["spam", "spam", "ham"])
    >>> model.predict_joint_log_proba([[1, 0]]).round(4)
    array([[0.4055, 1.6094]])

    By hand: outside ham the first column has 3 of 4, so -log(4/6); outside spam 0 of 3: -log(1/5).
    """

    norm: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise UserError(f"ComplementNB needs an alpha above 0, not {self.alpha}")

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        n = _counts(sums)
        V, outside = max(n.shape[1], 1), n.sum(axis=0) - n
        logs = log_m_estimate(outside, outside.sum(axis=1, keepdims=True), self.alpha * V, 1 / V)
        weights = logs / logs.sum(axis=1, keepdims=True) if self.norm else -logs
        start = prior if len(sums) == 1 else np.zeros(len(sums))
        return lambda cases: np.asarray(start + _weighed(cases, weights))


@dataclass(eq=False, kw_only=True)
class BernoulliNB(_Counting):
    """Bernoulli naive Bayes: presence and absence of each column both count.

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
        n, N = _counts(sums), np.array([class_sums.weight for class_sums in sums])[:, None]
        present = log_m_estimate(n, N, 2 * self.alpha, 0.5)
        absent = log_m_estimate(N - n, N, 2 * self.alpha, 0.5)

        def joint(cases: Cases) -> Floats:
            return np.asarray(prior + _weighed(cases, present) + _weighed(1 - cases, absent))

        return joint


def _counts(sums: Sequence[Tally]) -> Floats:
    """[K, F] counts, in units of cases."""
    return np.asarray(np.stack([class_sums.counts for class_sums in sums]) / COUNT_ONE)


def _weighed(cases: Cases, logs: Floats) -> Floats:
    """[M, K] sums of x_f log p(f|k), from cases [M, F] and logs [K, F]; 0 log 0 is 0."""
    impossible = np.isneginf(logs)
    sums: Floats = cases @ np.where(impossible, 0.0, logs).T
    sums[cases @ impossible.T > 0] = -np.inf
    return sums
