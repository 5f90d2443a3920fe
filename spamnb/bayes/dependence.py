"""One-dependence classifiers: each column depends on the class and on one other column.

A tree (TAN) gives each column the parent with the most information about it; averaging (AODE)
takes the mean over models with each column as the parent of all others. Both use counts of pairs
of values, so both learn and forget single cases. Invariants: equal to exact inference in the
corresponding belief network (`network`); missing and unseen values are ignored. Failure: as
`Classifier`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.categorical import Values, counted, values_of
from spamnb.bayes.classifier import Cases, Classifier, Columns, Joint, ProductClassifier, prior_of
from spamnb.bayes.sums import COUNT_ONE, NamedCounts, is_missing
from spamnb.bayes.tables import TableLike, read_values
from spamnb.core.model.likelihood.smoothing import Assumptions, Floats, log_m_estimate, log_sum_exp


class _PairCounts(NamedTuple):
    """Counts and log probabilities of values and pairs of values; row and column V are 0."""

    values: Values
    n: Floats
    """[K, V]"""
    both: Floats
    """[K, V, V] cases with both values; 0 where they are of one column"""
    alone: Floats
    """[K, V + 1] log p(value | class)"""
    given: Floats
    """[K, V + 1, V + 1] log p(second | class, first); 0 where they are of one column"""


@dataclass(eq=False, kw_only=True)
class _PairCounting(Classifier[NamedCounts]):
    """A classifier that keeps the counts of values and of pairs of values."""

    alpha: float = 1.0
    fit_prior: bool = True
    class_prior: ArrayLike | None = None
    min_categories: ArrayLike | None = None

    def __post_init__(self) -> None:
        Assumptions(alpha=self.alpha)

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.class_prior, fit_prior=self.fit_prior)

    def _read(self, X: TableLike) -> Cases:
        return read_values(X)

    def _of(self, cases: Cases, weights: Floats) -> NamedCounts:
        return NamedCounts.of(map(_values_and_pairs, cases.tolist()), weights)

    def _pairs(self, sums: Sequence[NamedCounts]) -> _PairCounts:
        seen = (key for class_sums in sums for key in class_sums.counts if len(key) == 2)
        values = values_of(seen, self._layout.width if self._layout else 0, self.min_categories)
        n, both = counted(sums, values), _pair_counts(sums, values)
        m, p = self.alpha * values.outcomes[values.column], 1 / values.outcomes[values.column]
        of = values.column
        alone = log_m_estimate(n, values.column_sums(n)[:, of], m, p)
        given = log_m_estimate(both, values.column_sums(both)[:, :, of], m, p)
        given[:, of[:, None] == of] = 0.0
        return _PairCounts(
            values,
            n,
            both,
            np.pad(alone, ((0, 0), (0, 1))),
            np.pad(given, ((0, 0), (0, 1), (0, 1))),
        )


@dataclass(eq=False, kw_only=True)
class AveragedOneDependence(_PairCounting):
    """AODE: the mean over models in which all columns depend on one column.

        P(x, k) = mean over columns i of p(x_i, k) * product over j of p(x_j | k, x_i)

    Only values of at least `min_count` cases serve as parents; a case without any such value is
    scored by naive Bayes.

    >>> days = [["sunny", "hot"], ["sunny", "hot"], ["rain", "cool"], ["rain", "hot"]]
    >>> model = AveragedOneDependence().fit(days, ["no", "no", "no", "yes"])
    >>> np.exp(model.predict_joint_log_proba([["sunny", "hot"]])).round(4)
    array([[0.3375, 0.0486]])

    By hand: no has 3/4 of the days. Through sunny it is 3/4 * (2 + 1)/(3 + 2) * (2 + 1)/(2 + 2),
    through hot the same, so 0.3375. Yes has 1/4: through sunny it is 1/4 * 1/3 * 1/2 = 1/24,
    through hot 1/4 * 2/3 * 1/3 = 1/18, and the mean of both is 0.0486.
    """

    min_count: float = 1.0

    def _prepare(self, sums: Sequence[NamedCounts], prior: Floats) -> Joint:
        pairs = self._pairs(sums)
        frequent = np.append(pairs.n.sum(axis=0) >= self.min_count, False)

        def joint(cases: Cases) -> Floats:
            at = pairs.values.at(cases)
            # [K, M, d] the log probability with each column as the parent.
            by_column = np.stack(
                [pairs.alone[:, of] + pairs.given[:, of[:, None], at].sum(axis=2) for of in at.T],
                axis=2,
            )
            allowed = frequent[at]
            mean = log_sum_exp(np.where(allowed, by_column, -np.inf)) - np.log(
                np.maximum(allowed.sum(axis=1), 1)
            )
            naive = pairs.alone[:, at].sum(axis=2)
            return np.asarray(prior + np.where(allowed.any(axis=1), mean, naive).T)

        return joint


@dataclass(eq=False, kw_only=True)
class TreeAugmentedNB(_PairCounting, ProductClassifier[NamedCounts]):
    """TAN: each column depends on the class and on its parent in a tree of columns.

        P(x, k) = p(k) * product over columns j of p(x_j | k, x_parent(j))

    The parents form the tree of greatest mutual information given the class (Chow and Liu, 1968;
    Friedman, Geiger and Goldszmidt, 1997); the first column is its root.

    >>> days = [["sunny", "hot"], ["sunny", "hot"], ["rain", "cool"], ["rain", "hot"]]
    >>> model = TreeAugmentedNB().fit(days, ["no", "no", "no", "yes"])
    >>> model.parents_
    (None, 0)
    >>> np.exp(model.predict_joint_log_proba([["sunny", "hot"]])).round(4)
    array([[0.3375, 0.0417]])

    By hand: 3/4 * (2 + 1)/(3 + 2) * (2 + 1)/(2 + 2) = 0.3375, and 1/4 * 1/3 * 1/2 = 0.0417.
    """

    @property
    def parents_(self) -> tuple[int | None, ...]:
        """The column that each column depends on; None for the root."""
        return _tree(_information(self._pairs(self._all_sums())))

    def _columns(self, sums: Sequence[NamedCounts]) -> Columns:
        pairs = self._pairs(sums)
        parents = _tree(_information(pairs))
        V = len(pairs.values.column)

        def columns(cases: Cases) -> Iterator[Floats]:
            at = pairs.values.at(cases)
            for j, parent in enumerate(parents):
                parent_values = np.full(len(cases), V) if parent is None else at[:, parent]
                # Without the parent's value, the column depends on the class alone.
                yield np.where(
                    parent_values == V,
                    pairs.alone[:, at[:, j]],
                    pairs.given[:, parent_values, at[:, j]],
                ).T

        return columns

    def _described(
        self, sums: Sequence[NamedCounts], case: Cases, names: Sequence[str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        pairs = self._pairs(sums)
        known = (pairs.values.at(case)[0] < len(pairs.values.column)).tolist()
        texts = [f"{name} = {value}" for name, value in zip(names, case[0], strict=True)]
        for j, parent in enumerate(_tree(_information(pairs))):
            given = "class" if parent is None or not known[parent] else f"{texts[parent]}, class"
            yield f"P({texts[j]} | {given})" if known[j] else f"{texts[j]}: ignored", ()


def _values_and_pairs(case: Sequence[Hashable]) -> list[Hashable]:
    """Keys of the counts of a case: its values, and its pairs of values."""
    single = [(j, value) for j, value in enumerate(case) if not is_missing(value)]
    return [*single, *((*a, *b) for a, b in combinations(single, 2))]


def _pair_counts(sums: Sequence[NamedCounts], values: Values) -> Floats:
    """[K, V, V] number of cases of each class with both values."""
    V = len(values.column)
    both = np.zeros((len(sums), V, V))
    for k, class_sums in enumerate(sums):
        for key, count in class_sums.counts.items():
            if len(key) == 4:
                i, a, j, b = key
                both[k, values.slots[i][a], values.slots[j][b]] = count
    return (both + both.transpose(0, 2, 1)) / COUNT_ONE


def _information(pairs: _PairCounts) -> Floats:
    """[d, d] mutual information of two columns given the class, in cases times nats, unsmoothed.

    Shares are of the cases where both columns are known. `fsum` makes the sums exact: otherwise a
    rounding error, which depends on the order of learning, would choose between equal columns.
    """
    of, both = pairs.values.column, pairs.both
    by_first = pairs.values.column_sums(both)
    first = by_first[:, :, of]
    cases = pairs.values.column_sums(by_first.transpose(0, 2, 1))[:, of][:, :, of]
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = np.log(both * cases / (first * first.transpose(0, 2, 1)))
    nats = both * np.where(both > 0, lift, 0.0)
    columns = [(of == j).nonzero()[0] for j in range(len(pairs.values.slots))]
    found = [[fsum(nats[:, a[:, None], b].flat) for b in columns] for a in columns]
    return np.array(found).reshape(len(columns), len(columns))


def _tree(information: Floats) -> tuple[int | None, ...]:
    """Maximum spanning tree (Prim) as parents, rooted at the first column; ties take the first."""
    d = len(information)
    parents: list[int | None] = [None] * d
    inside = [0] if d else []
    while len(inside) < d:
        outside = [j for j in range(d) if j not in inside]
        best = max(outside, key=lambda j: (max(information[i, j] for i in inside), -j))
        parents[best] = max(inside, key=lambda i: (information[i, best], -i))
        inside.append(best)
    return tuple(parents)
