"""Naive Bayes over counts: multinomial, complement, Bernoulli and Poisson models.

They use the formulas of the filter's kinds `multinomial` and `bernoulli`, but every column counts,
seen or not, as in scikit-learn. Invariants: results equal those of scikit-learn's models of these
names on the same cases; 0 times an impossible column is 0. Failure: as `Classifier`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.classifier import Cases, Classifier, Joint, prior_of
from spamnb.bayes.derivation import Factor, fractions
from spamnb.bayes.sums import COUNT_ONE, Tally
from spamnb.bayes.tables import TableLike, numbers
from spamnb.core.model.likelihood.smoothing import Assumptions, Floats, log_m_estimate
from spamnb.errors import UserError


class Estimate(NamedTuple):
    """m-estimates (n + m p) / (N + m), [K, F]."""

    n: Floats
    N: Floats
    m: float
    p: float

    @property
    def logs(self) -> Floats:
        """Logarithms of the estimates."""
        return log_m_estimate(*self)

    def text(self, j: int) -> tuple[str, ...]:
        """Return how the estimates of a column are computed."""
        n, N = np.broadcast_arrays(self.n, self.N)
        return fractions(n[:, j], self.m * self.p, N[:, j], self.m)


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

    def _read(self, X: TableLike) -> Cases:
        if self.binarize is None:
            return numbers(X, least=0.0)
        return np.asarray(numbers(X) > self.binarize, np.float64)

    def _of(self, cases: Cases, weights: Floats) -> Tally:
        return Tally.of(cases, weights)

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.class_prior, fit_prior=self.fit_prior)

    @property
    def feature_count_(self) -> Floats:
        """[K, F] sum of each column over the cases of each class."""
        return _counts(self._all_sums())

    @property
    def feature_log_prob_(self) -> Floats:
        """[K, F] log P(column | class)."""
        return self._estimates(self._all_sums()).logs

    @abstractmethod
    def _estimates(self, sums: Sequence[Tally]) -> Estimate:
        """Return the estimate of each column in each class."""


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

    def _estimates(self, sums: Sequence[Tally]) -> Estimate:
        n = _counts(sums)
        V = max(n.shape[1], 1)
        return Estimate(n, n.sum(axis=1, keepdims=True), self.alpha * V, 1 / V)

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        logs = self._estimates(sums).logs

        def joint(cases: Cases) -> Floats:
            return np.asarray(prior + _weighed(cases, logs) / self._size(cases))

        return joint

    def _size(self, cases: Cases) -> Floats:
        """[M, 1] what the log likelihood of each case is divided by."""
        return np.asarray(np.maximum(cases.sum(axis=1, keepdims=True), 1.0) ** self.length_power)

    def _factors(self, sums: Sequence[Tally], case: Cases, names: Sequence[str]) -> list[Factor]:
        estimates, size = self._estimates(sums), float(self._size(case)[0, 0])
        factors = []
        for j, name in enumerate(names):
            power = case[0, j] / size
            if power:
                exponent = "" if power == 1 else f"^{power:g}"
                how = tuple(
                    f"({text}){exponent}" if exponent else text for text in estimates.text(j)
                )
                factors.append(
                    Factor(f"P({name} | class){exponent}", power * estimates.logs[:, j], how)
                )
        return factors


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

    @property
    def feature_log_prob_(self) -> Floats:
        """[K, F] the weights, as in scikit-learn."""
        return self._weights(self._all_sums())

    def _factors(self, _sums: Sequence[Tally], _case: Cases, _names: Sequence[str]) -> list[Factor]:
        raise UserError("the scores of ComplementNB are no product of probabilities")

    def _estimates(self, sums: Sequence[Tally]) -> Estimate:
        n = _counts(sums)
        V, outside = max(n.shape[1], 1), n.sum(axis=0) - n
        return Estimate(outside, outside.sum(axis=1, keepdims=True), self.alpha * V, 1 / V)

    def _weights(self, sums: Sequence[Tally]) -> Floats:
        logs = self._estimates(sums).logs
        return logs / logs.sum(axis=1, keepdims=True) if self.norm else -logs

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        weights = self._weights(sums)
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

    def _estimates(self, sums: Sequence[Tally]) -> Estimate:
        return Estimate(_counts(sums), _cases(sums), 2 * self.alpha, 0.5)

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        estimates = self._estimates(sums)
        present, absent = estimates.logs, _absent(estimates).logs

        def joint(cases: Cases) -> Floats:
            return np.asarray(prior + _weighed(cases, present) + _weighed(1 - cases, absent))

        return joint

    def _factors(self, sums: Sequence[Tally], case: Cases, names: Sequence[str]) -> list[Factor]:
        present = self._estimates(sums)
        absent, factors = _absent(present), []
        for j, name in enumerate(names):
            x = case[:, j : j + 1]
            logs = _weighed(x, present.logs[:, [j]]) + _weighed(1 - x, absent.logs[:, [j]])
            # Without `binarize` a number between 0 and 1 is present in part.
            how = {1.0: present.text(j), 0.0: absent.text(j)}.get(float(x[0, 0]), ())
            factors.append(Factor(f"P({name} = {x[0, 0]:g} | class)", logs[0], how))
        return factors


@dataclass(eq=False, kw_only=True)
class PoissonNB(_Counting):
    """Poisson naive Bayes: each column is a count with its own rate in each class.

        p(x|k) = rate^x exp(-rate) / x!,   rate = (n[f,k] + alpha) / (N[k] + alpha)

    The smoothing adds `alpha` cases of count 1. The multinomial model compares the columns of one
    case with each other; this one also works for a single column.

    >>> model = PoissonNB(alpha=0).fit([[0], [2], [4]], ["seldom", "often", "often"])
    >>> np.exp(model.feature_log_prob_).ravel()
    array([3., 0.])
    >>> np.exp(model.predict_joint_log_proba([[2]])).round(4)
    array([[0.1494, 0.    ]])

    By hand: often has a rate of (2 + 4) / 2 = 3 and 2/3 of the cases; 2/3 * 3^2 exp(-3) / 2 =
    0.1494. Seldom has rate 0, so a count of 2 is impossible.
    """

    def _estimates(self, sums: Sequence[Tally]) -> Estimate:
        return Estimate(_counts(sums), _cases(sums), self.alpha, 1.0)

    def _prepare(self, sums: Sequence[Tally], prior: Floats) -> Joint:
        logs = self._estimates(sums).logs
        start = prior - np.exp(logs).sum(axis=1)
        log_factorial = np.vectorize(lgamma, otypes=[np.float64])

        def joint(cases: Cases) -> Floats:
            same = log_factorial(cases + 1).sum(axis=1, keepdims=True)
            return np.asarray(start + _weighed(cases, logs) - same)

        return joint

    def _factors(self, sums: Sequence[Tally], case: Cases, names: Sequence[str]) -> list[Factor]:
        factors = []
        for j, name in enumerate(names):
            of_column = [Tally(of.cases, of.counts[j : j + 1]) for of in sums]
            logs = self._prepare(of_column, np.zeros(len(sums)))(case[:, j : j + 1])
            rates = np.exp(self._estimates(of_column).logs[:, 0])
            how = tuple(f"Poisson({case[0, j]:g}; {rate:.4g})" for rate in rates)
            factors.append(Factor(f"P({name} = {case[0, j]:g} | class)", logs[0], how))
        return factors


def _absent(present: Estimate) -> Estimate:
    """The estimates of the absence of each column."""
    return present._replace(n=present.N - present.n)


def _cases(sums: Sequence[Tally]) -> Floats:
    """[K, 1] weights of the cases."""
    return np.array([class_sums.weight for class_sums in sums])[:, None]


def _counts(sums: Sequence[Tally]) -> Floats:
    """[K, F] counts, in units of cases."""
    return np.asarray(np.stack([class_sums.counts for class_sums in sums]) / COUNT_ONE)


def _weighed(cases: Cases, logs: Floats) -> Floats:
    """[M, K] sums of x_f log p(f|k), from cases [M, F] and logs [K, F]; 0 log 0 is 0."""
    impossible = np.isneginf(logs)
    sums: Floats = cases @ np.where(impossible, 0.0, logs).T
    sums[cases @ impossible.T > 0] = -np.inf
    return sums
