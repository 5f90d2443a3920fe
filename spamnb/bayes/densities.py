"""Naive Bayes over numbers of any distribution: histograms (bins) and kernel densities.

Both store the distinct numbers with their counts, so bins and kernels always fit the cases learnt
and not forgotten. Invariants: columns are independent given the class; a class without cases has
density 0 with kernels, and the smoothed probability with bins. Cost: memory and, for kernels, the
time of a prediction grow with the number of distinct numbers. Failure: as `Classifier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.classifier import Cases, Columns, ProductClassifier, prior_of
from spamnb.bayes.derivation import fractions
from spamnb.bayes.sums import COUNT_ONE, NamedCounts
from spamnb.core.model.likelihood.smoothing import Assumptions, Floats, log_m_estimate, log_sum_exp
from spamnb.errors import UserError

Strategy = Literal["uniform", "quantile"]
BLOCK = 1 << 20
"""Distances that a kernel computes in one step: 8 MB."""


class _Column(NamedTuple):
    """The distinct numbers of one column in one class, sorted, with their counts."""

    numbers: Floats
    counts: Floats


@dataclass(eq=False, kw_only=True)
class _ValueCounting(ProductClassifier[NamedCounts]):
    """A classifier that keeps the distinct numbers with their counts."""

    priors: ArrayLike | None = None

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.priors)

    def _of(self, cases: Cases, weights: Floats) -> NamedCounts:
        return NamedCounts.of_columns(cases, weights)

    def _seen(self, sums: Sequence[NamedCounts]) -> list[list[_Column]]:
        """[K][d] numbers and counts."""
        width = self._layout.width if self._layout else 0
        return [[_column(class_sums, j) for j in range(width)] for class_sums in sums]


@dataclass(eq=False, kw_only=True)
class BinnedNB(_ValueCounting):
    """Naive Bayes over histograms: numbers become bins, with add-alpha smoothing.

    `uniform` bins have equal width, `quantile` bins hold equal shares of all cases. Numbers outside
    the range fall into the first or the last bin.

    >>> model = BinnedNB(n_bins=2).fit([[1], [2], [3], [9]], ["low", "low", "low", "high"])
    >>> model.edges_
    [array([5.])]
    >>> model.predict_proba([[8]]).round(4)
    array([[0.5263, 0.4737]])

    By hand: 1 to 9 is cut at 5. High has 1/4 of the cases and (1 + 1) / (1 + 2) of its own above 5,
    low 3/4 and (0 + 1) / (3 + 2). That is 1/6 against 3/20, so high has 10/19.
    """

    n_bins: int = 8
    strategy: Strategy = "uniform"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        Assumptions(alpha=self.alpha)
        if self.n_bins < 1 or self.strategy not in _CUTS:
            raise UserError(
                f"cannot make {self.n_bins} {self.strategy} bins",
                hint=f"n_bins is at least 1, strategy one of {', '.join(_CUTS)}",
            )

    @property
    def edges_(self) -> list[Floats]:
        """[d] the cut points of each column."""
        return self._edges(self._seen(self._all_sums()))

    def _edges(self, columns: list[list[_Column]]) -> list[Floats]:
        return [
            cut(np.concatenate(numbers), np.concatenate(counts), self.n_bins, self.strategy)
            for numbers, counts in (
                zip(*(seen[j] for seen in columns), strict=True) for j in range(len(columns[0]))
            )
        ]

    def _columns(self, sums: Sequence[NamedCounts]) -> Columns:
        columns = self._seen(sums)
        edges = self._edges(columns)
        logs = [
            log_m_estimate(*_binned([seen[j] for seen in columns], edge, self.alpha))
            for j, edge in enumerate(edges)
        ]

        def of(cases: Cases) -> Iterator[Floats]:
            for j, edge in enumerate(edges):
                yield logs[j][:, np.searchsorted(edge, cases[:, j], side="right")].T

        return of

    def _described(
        self, sums: Sequence[NamedCounts], case: Cases, names: Sequence[str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        columns = self._seen(sums)
        for j, edge in enumerate(self._edges(columns)):
            n, N, m, p = _binned([seen[j] for seen in columns], edge, self.alpha)
            at = int(np.searchsorted(edge, case[0, j], side="right"))
            low, high = [-np.inf, *edge, np.inf][at : at + 2]
            yield (
                f"P({low:g} <= {names[j]} < {high:g} | class)",
                fractions(n[:, at], m * p, N[:, 0], m),
            )


@dataclass(eq=False, kw_only=True)
class KernelNB(_ValueCounting):
    """Naive Bayes over kernel densities: the mean of a normal density at each number seen.

        p(x|k) = mean over seen v of normal(x; v, h)

    `bandwidth` is h; or `flexible`, 1 / sqrt(cases of the class) as in John and Langley (1995), for
    columns that vary by about 1; or `silverman`, 0.9 times the column's spread in the class (the
    smaller of standard deviation and 0.75 of the interquartile range) times cases^(-1/5).

    >>> model = KernelNB(bandwidth=1.0).fit([[0], [2], [9]], ["low", "low", "high"])
    >>> model.predict_joint_log_proba([[1]]).round(4)
    array([[-34.0176,  -1.8244]])

    By hand: low has prior 2/3 and two kernels, both at distance 1: log(2/3 * 0.2420) = -1.8244.
    High has prior 1/3 and one kernel at distance 8: log(1/3 * 0.3989) - 8^2 / 2 = -34.0175.
    """

    bandwidth: float | Literal["flexible", "silverman"] = "flexible"

    def __post_init__(self) -> None:
        if not isinstance(self.bandwidth, str) and not 0 < self.bandwidth < np.inf:
            raise UserError(f"bandwidth must be above 0, not {self.bandwidth}")

    def _columns(self, sums: Sequence[NamedCounts]) -> Columns:
        columns = self._seen(sums)
        widths = [[self._bandwidth(seen) for seen in row] for row in columns]

        def of(cases: Cases) -> Iterator[Floats]:
            for j in range(cases.shape[1]):
                yield np.stack(
                    [_density(row[j], widths[k][j], cases[:, j]) for k, row in enumerate(columns)],
                    axis=1,
                )

        return of

    def _described(
        self, _sums: Sequence[NamedCounts], case: Cases, names: Sequence[str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        for name, x in zip(names, case[0].tolist(), strict=True):
            yield f"p({name} = {x:g} | class)", ()

    def _bandwidth(self, seen: _Column) -> float:
        if not isinstance(self.bandwidth, str):
            return self.bandwidth
        cases = max(float(seen.counts.sum()), 1.0)
        narrow: float = cases**-0.5
        if self.bandwidth == "flexible" or not len(seen.numbers):
            return narrow
        return float(0.9 * _spread(seen) * cases**-0.2) or narrow


def cut(numbers: Floats, counts: Floats, bins: int, strategy: Strategy = "uniform") -> Floats:
    """Return the points that cut numbers with these counts into bins; fewer if numbers are equal.

    A number equal to a cut point belongs to the bin above.

    >>> cut(np.array([0.0, 1.0, 9.0]), np.ones(3), 3)
    array([3., 6.])
    >>> cut(np.array([0.0, 1.0, 9.0]), np.array([1.0, 1.0, 2.0]), 2, "quantile")
    array([5.])
    """
    if not len(numbers):
        return np.zeros(0)
    return np.unique(_CUTS[strategy](numbers, counts, bins))


def _equally_wide(numbers: Floats, _counts: Floats, bins: int) -> Floats:
    low, high = float(numbers.min()), float(numbers.max())
    return np.linspace(low, high, bins + 1)[1:-1] if low < high else np.zeros(0)


def _equally_full(numbers: Floats, counts: Floats, bins: int) -> Floats:
    """Cut half way between the two neighbours nearest to each wanted share of cases."""
    found, at = np.unique(numbers, return_inverse=True)
    below = np.bincount(at, counts).cumsum()
    if len(found) < 2:
        return np.zeros(0)
    wanted = below[-1] * np.arange(1, bins) / bins
    gap = np.abs(below[:-1, None] - wanted).argmin(axis=0)
    return np.asarray((found[gap] + found[gap + 1]) / 2)


_CUTS = {"uniform": _equally_wide, "quantile": _equally_full}


def _column(class_sums: NamedCounts, j: int) -> _Column:
    numbers = sorted(number for column, number in class_sums.counts if column == j)
    counts = [class_sums.counts[j, number] / COUNT_ONE for number in numbers]
    return _Column(np.array(numbers, np.float64), np.array(counts, np.float64))


def _binned(
    columns: Sequence[_Column], edges: Floats, alpha: float
) -> tuple[Floats, Floats, float, float]:
    """[K, bins] counts, [K, 1] their sums, and the m and p of the m-estimate."""
    bins = len(edges) + 1
    n = np.zeros((len(columns), bins))
    for k, seen in enumerate(columns):
        at = np.searchsorted(edges, seen.numbers, side="right")
        n[k] = np.bincount(at, seen.counts, bins)
    return n, n.sum(axis=1, keepdims=True), alpha * bins, 1 / bins


def _density(seen: _Column, width: float, x: Floats) -> Floats:
    """[M] log density at each x."""
    if not len(seen.numbers):
        return np.full(len(x), -np.inf)
    start = np.log(seen.counts / seen.counts.sum()) - np.log(width) - 0.5 * np.log(2 * np.pi)
    found, step = np.empty(len(x)), max(1, BLOCK // len(seen.numbers))
    for at in range(0, len(x), step):
        part = x[at : at + step, None]
        found[at : at + step] = log_sum_exp(start - 0.5 * ((part - seen.numbers) / width) ** 2)
    return found


def _spread(seen: _Column) -> float:
    """Robust standard deviation: at most 0.75 of the interquartile range, unless that is 0."""
    numbers, share = seen.numbers, seen.counts / seen.counts.sum()
    mean = float((numbers * share).sum())
    deviation = sqrt(float(((numbers - mean) ** 2 * share).sum()))
    low, high = numbers[np.searchsorted(share.cumsum(), [0.25, 0.75])].tolist()
    return min(deviation, 0.75 * (high - low)) or deviation
