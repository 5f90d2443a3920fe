"""Naive Bayes over categories: each column holds one of several values.

Values are any hashables: words, numbers, bins, tuples. None and NaN are missing and are ignored.
Invariants: a value exists while some case has it, so forgetting its last case leaves no trace;
results equal those of scikit-learn's CategoricalNB on the same cases. Failure: as `Classifier`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.classifier import Cases, Columns, ProductClassifier, prior_of
from spamnb.bayes.derivation import fractions
from spamnb.bayes.sums import COUNT_ONE, NamedCounts, is_missing
from spamnb.bayes.tables import TableLike, read_values
from spamnb.core.model.events import Ints
from spamnb.core.model.likelihood.smoothing import Assumptions, Floats, log_m_estimate
from spamnb.errors import UserError


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
