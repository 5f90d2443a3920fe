"""Naive Bayes over categories and over counts.

`CategoricalNB` takes any hashable values: words, numbers, bins, tuples; None and NaN are missing
and are ignored. A value exists while some case has it, so forgetting its last case leaves no trace.
The classifiers of counts use the formulas of the filter's kinds `multinomial` and `bernoulli`, but
every column counts, seen or not; 0 times an impossible column is 0.

Invariant: results equal those of scikit-learn's classifiers of these names on the same cases.
Failure: as `Classifier`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import lgamma
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.classifier import (
    Cases,
    Classifier,
    Columns,
    Factor,
    Joint,
    ProductClassifier,
    fractions,
    prior_of,
)
from spamnb.bayes.sums import COUNT_ONE, NamedCounts, Tally, is_missing
from spamnb.bayes.tables import TableLike, numbers, read_values
from spamnb.errors import UserError
from spamnb.model.events import Ints
from spamnb.model.smoothing import Assumptions, Floats, log_m_estimate


class Values(NamedTuple):
    """Slots for the values of all columns; the slots of one column are adjacent.

    Slot V, one past the last, stands for missing and for unseen values.
    """

    slots: tuple[dict[Hashable, int], ...]
    column: Ints
    """[V] the column of each slot"""
    outcomes: Floats
    """[d] number of possible values of each column"""

    def at(self, cases: Cases) -> Ints:
        """Return the slot of each value [M, d]."""
        found = np.full(cases.shape, len(self.column), np.int64)
        for j, slots in enumerate(self.slots):
            found[:, j] = [slots.get(value, len(self.column)) for value in cases[:, j]]
        return found

    def split(self, n: Floats) -> list[Floats]:
        """Return n [K, V] or more as one array for each column: [K, values]."""
        return [n[:, list(slots.values())] for slots in self.slots]

    def column_sums(self, n: Floats) -> Floats:
        """Return the sums of n [..., V] over the values of each column: [..., d]."""
        sums = np.zeros((*n.shape[:-1], len(self.slots)))
        for j, slots in enumerate(self.slots):
            sums[..., j] = n[..., sorted(slots.values())].sum(axis=-1)
        return sums


def ordered(values: Iterable[Any]) -> list[Any]:
    """Sort values; those of different types by their text."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda value: (type(value).__name__, repr(value)))


def values_of(seen: Iterable[Any], width: int, least: ArrayLike | None) -> Values:
    """Assign a slot to every (column, value), by column; `least` is the minimum of `outcomes`."""
    slots: tuple[dict[Hashable, int], ...] = tuple({} for _ in range(width))
    column: list[int] = []
    by_column: list[set[Hashable]] = [set() for _ in range(width)]
    for j, value in seen:
        by_column[j].add(value)
    for j, of_column in enumerate(by_column):
        for value in ordered(of_column):
            slots[j][value] = len(column)
            column.append(j)
    known = [len(of_column) for of_column in slots]
    outcomes = np.maximum(known, 1 if least is None else np.asarray(least)).astype(np.float64)
    return Values(slots, np.array(column, np.int64), outcomes)


class Estimates(NamedTuple):
    """m-estimates (n + m p) / (N + m) of each value, then of an unseen value of each column."""

    values: Values
    n: Floats
    """[K, V + d] cases of each class with the value"""
    N: Floats
    """[K, V + d] cases of each class with any value in the column"""
    m: Floats
    """[V + d] pseudo-cases"""
    p: Floats
    """[V + d] their share with the value"""

    @property
    def logs(self) -> Floats:
        """[K, V + d] log P(value | class)."""
        return log_m_estimate(self.n, self.N, self.m, self.p)

    def at(self, cases: Cases) -> Ints:
        """Return the position of each value [M, d]; missing values are at the unseen ones."""
        V, found = len(self.values.column), self.values.at(cases)
        return np.where(found == V, V + np.arange(cases.shape[1]), found)


@dataclass(eq=False, kw_only=True)
class CategoricalNB(ProductClassifier[NamedCounts]):
    """Categorical naive Bayes: columns are independent given the class.

        p(v|k) = (n[v,k] + m p) / (N[k] + m),   m = alpha * outcomes and p = 1 / outcomes

    >>> days = [["sunny", "hot"], ["sunny", "mild"], ["rain", "mild"], ["rain", "hot"]]
    >>> model = CategoricalNB(alpha=0).fit(days, ["no", "no", "yes", "no"])
    >>> np.exp(model.predict_joint_log_proba([["sunny", "mild"]])).round(4)
    array([[0.1667, 0.    ]])

    By hand: three days of four are no, two of these sunny, one mild: 3/4 * 2/3 * 1/3 = 1/6.
    Without smoothing, sunny has probability 0 given yes; with m = 1, (0 + 1 * 1/2) / (1 + 1) = 1/4.

    >>> CategoricalNB(m=1).fit(days, ["no", "no", "yes", "no"]).p(0, "sunny")
    array([0.625, 0.25 ])

    `m` pseudo-cases per column replace `alpha` per value; `value_prior` distributes them: `uniform`
    over the values, or `marginal`, by their shares in all classes together. `unseen` values are
    ignored, or scored by the pseudo-cases alone (`smooth`).
    """

    alpha: float = 1.0
    m: float | None = None
    value_prior: Literal["uniform", "marginal"] = "uniform"
    unseen: Literal["ignore", "smooth"] = "ignore"
    fit_prior: bool = True
    class_prior: ArrayLike | None = None
    min_categories: ArrayLike | None = None
    """minimum number of possible values of each column"""

    def __post_init__(self) -> None:
        Assumptions(alpha=self.alpha if self.m is None else self.m)

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.class_prior, fit_prior=self.fit_prior)

    def _read(self, X: TableLike) -> Cases:
        return read_values(X)

    def _of(self, cases: Cases, weights: Floats) -> NamedCounts:
        return NamedCounts.of_columns(cases, weights)

    def p(self, column: int, value: Hashable) -> Floats:
        """Return P(value | class) of a value of a column, for each class: [K].

        A value that was never seen has the probability of the pseudo-cases alone, 0 without any;
        the parameter `unseen` concerns predictions only.
        """
        if is_missing(value):
            raise UserError(f"{value} is a missing value: it has no probability")
        estimates = self._estimates(self._all_sums())
        if not 0 <= column < len(estimates.values.slots):
            raise UserError(f"there is no column {column}")
        slots, V = estimates.values.slots[column], len(estimates.values.column)
        return np.asarray(np.exp(estimates.logs[:, slots.get(value, V + column)]))

    @property
    def categories_(self) -> list[list[Hashable]]:
        """[d] the values of each column, in the order of `category_count_`."""
        return [list(slots) for slots in self._estimates(self._all_sums()).values.slots]

    @property
    def category_count_(self) -> list[Floats]:
        """[d] contingency tables: cases of each class with each value, [K, values]."""
        estimates = self._estimates(self._all_sums())
        return estimates.values.split(estimates.n)

    @property
    def feature_log_prob_(self) -> list[Floats]:
        """[d] log P(value | class) of each column, [K, values]."""
        estimates = self._estimates(self._all_sums())
        return estimates.values.split(estimates.logs)

    def _estimates(self, sums: Sequence[NamedCounts]) -> Estimates:
        seen = (key for class_sums in sums for key in class_sums.counts)
        width = self._layout.width if self._layout else 0
        values = values_of(seen, width, self.min_categories)
        counts = counted(sums, values)
        sizes = values.column_sums(counts)
        shares = 1 / values.outcomes[values.column]
        if self.value_prior == "marginal":
            whole = counts.sum(axis=0)
            shares = whole / np.maximum(values.column_sums(whole)[values.column], 1e-300)
        column = np.concatenate([values.column, np.arange(width)])
        cases = self.alpha * values.outcomes if self.m is None else np.full(width, self.m)
        return Estimates(
            values,
            np.hstack([counts, np.zeros((len(sums), width))]),
            sizes[:, column],
            cases[column],
            np.concatenate([shares, 1 / values.outcomes]),
        )

    def _columns(self, sums: Sequence[NamedCounts]) -> Columns:
        estimates = self._estimates(sums)
        logs, V = estimates.logs, len(estimates.values.column)
        if self.unseen == "ignore":
            logs[:, V:] = 0.0

        def columns(cases: Cases) -> Iterator[Floats]:
            at, gaps = estimates.at(cases), missing(cases)
            for j in range(cases.shape[1]):
                yield np.where(gaps[:, j, None], 0.0, logs[:, at[:, j]].T)

        return columns

    def _described(
        self, sums: Sequence[NamedCounts], case: Cases, names: Sequence[str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        estimates = self._estimates(sums)
        V = len(estimates.values.column)
        for name, value, at in zip(names, case[0], estimates.at(case)[0], strict=True):
            n, N, m, p = (table[..., at] for table in estimates[1:])
            if is_missing(value) or (at >= V and self.unseen == "ignore"):
                yield f"{name} = {value}: ignored", ()
            else:
                yield f"P({name} = {value} | class)", fractions(n, m * p, N, m)


def missing(cases: Cases) -> NDArray[np.bool_]:
    """Return where values are missing [M, d]."""
    return np.array([[is_missing(value) for value in row] for row in cases.tolist()], bool).reshape(
        cases.shape
    )


def counted(sums: Sequence[NamedCounts], values: Values) -> Floats:
    """Return the count of each value in each class: [K, V]."""
    n = np.zeros((len(sums), len(values.column)))
    for k, class_sums in enumerate(sums):
        for j, slots in enumerate(values.slots):
            for value, slot in slots.items():
                n[k, slot] = class_sums.counts.get((j, value), 0)
    return n / COUNT_ONE


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
