"""Naive Bayes over categories: each column holds one of several values.

Values are any hashables: words, numbers, bins. `None` is a missing value and is ignored.
Invariants: a value exists while some case has it, so forgetting its last case leaves no trace;
results equal those of scikit-learn's CategoricalNB on the same cases. Failure: as `Classifier`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.classifier import Cases, Classifier, Joint, prior_of
from spamnb.bayes.sums import COUNT_ONE, NamedCounts
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

    def column_sums(self, n: Floats) -> Floats:
        """Return the sums of n [..., V] over the values of each column: [..., d]."""
        sums = np.zeros((*n.shape[:-1], len(self.slots)))
        for j, slots in enumerate(self.slots):
            sums[..., j] = n[..., sorted(slots.values())].sum(axis=-1)
        return sums


def values_of(seen: Iterable[Any], width: int, least: ArrayLike | None) -> Values:
    """Assign a slot to every (column, value), by column; `least` is the minimum of `outcomes`."""
    slots: tuple[dict[Hashable, int], ...] = tuple({} for _ in range(width))
    column: list[int] = []
    for j, value in sorted(dict.fromkeys(seen), key=lambda named: named[0]):
        slots[j][value] = len(column)
        column.append(j)
    known = [len(of_column) for of_column in slots]
    outcomes = np.maximum(known, 1 if least is None else np.asarray(least)).astype(np.float64)
    return Values(slots, np.array(column, np.int64), outcomes)


def read_values(X: ArrayLike) -> Cases:
    """Read a table of values [M, d] of any type."""
    cases = np.asarray(X, object)
    if cases.ndim != 2:
        raise UserError(
            f"cases must be a table with 2 dimensions, not {cases.ndim}",
            hint="give one list of values per case",
        )
    return cases


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Pseudo-counts of an m-estimate: (n + m p) / (d + m)."""

    m: Floats
    """[d] pseudo-cases of each column"""
    p: Floats
    """[V] prior share of each value"""

    @classmethod
    def laplace(cls, values: Values, alpha: float, m: float | None) -> Smoothing:
        """Use equal shares: m cases per column, or alpha per value (m = alpha * outcomes)."""
        cases = alpha * values.outcomes if m is None else np.full(len(values.slots), m)
        return cls(cases, 1 / values.outcomes[values.column])

    def log_p(self, values: Values, n: Floats) -> Floats:
        """Return the log share of each value in n [..., V], within its column."""
        column = values.column
        totals = values.column_sums(n)[..., column]
        return log_m_estimate(n, totals, self.m[column], self.p)


@dataclass(eq=False, kw_only=True)
class CategoricalNB(Classifier[NamedCounts]):
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

    def _read(self, X: ArrayLike) -> Cases:
        return read_values(X)

    def _of(self, cases: Cases, weights: Floats) -> NamedCounts:
        return NamedCounts.of(map(_named_values, cases.tolist()), weights)

    def p(self, column: int, value: Hashable) -> Floats:
        """Return P(value | class) of a value of a column, for each class: [K]."""
        values, logs = self._tables(self._all_sums())
        at = values.slots[column].get(value, len(values.column) + column)
        return np.asarray(np.exp(logs[:, at]))

    def _tables(self, sums: Sequence[NamedCounts]) -> tuple[Values, Floats]:
        """[K, V + d] log p of each value, then of an unseen value of each column."""
        seen = (key for class_sums in sums for key in class_sums.counts)
        values = values_of(seen, self._width or 0, self.min_categories)
        n = counted(sums, values)
        smoothing = Smoothing.laplace(values, self.alpha, self.m)
        if self.value_prior == "marginal":
            whole = n.sum(axis=0)
            totals = np.maximum(values.column_sums(whole)[values.column], 1e-300)
            smoothing = Smoothing(smoothing.m, whole / totals)
        none = np.zeros((len(sums), len(values.slots)))
        if self.unseen == "smooth":
            share = 1 / values.outcomes
            none = log_m_estimate(0, values.column_sums(n), smoothing.m, share)
        return values, np.hstack([smoothing.log_p(values, n), none])

    def _prepare(self, sums: Sequence[NamedCounts], prior: Floats) -> Joint:
        values, logs = self._tables(sums)
        V = len(values.column)

        def joint(cases: Cases) -> Floats:
            at = values.at(cases)
            at = np.where(at == V, V + np.arange(cases.shape[1]), at)
            logs_of_case = np.where(missing(cases), 0.0, logs[:, at])
            return np.asarray(prior + logs_of_case.sum(axis=2).T)

        return joint


def missing(cases: Cases) -> NDArray[np.bool_]:
    """Return where values are None [M, d], by identity: `==` of values may be overloaded."""
    return np.array([[value is None for value in row] for row in cases.tolist()], bool).reshape(
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


def _named_values(case: Sequence[Hashable]) -> list[Hashable]:
    return [(j, value) for j, value in enumerate(case) if value is not None]
