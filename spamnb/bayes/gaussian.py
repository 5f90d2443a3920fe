"""Classifiers over numbers: Gaussian, by bins, and by kernel densities.

Gaussian: naive Bayes, and linear and quadratic discriminants. Mean and variance come from exact
sums, so forgetting leaves no rounding error and cancellation cannot make a variance negative. A
class may have a single case, and columns may be constant or dependent: a variance of 0 is raised to
a floor. A class without cases has probability 0. `variance` names the formula: `population` is 1/N
times the sum of (x - mean)^2 over the N cases of a class, `sample` is 1/(N - 1) times this sum.
Population is the default: it maximises the likelihood, scikit-learn uses it (older versions used
the sample variance for discriminants), and it is defined for one case.

Bins and kernels: the distinct numbers are stored with their counts, so they always fit the cases
learnt and not forgotten. Memory and, for kernels, the time of a prediction grow with the number of
distinct numbers. A class without cases has density 0 with kernels, and the smoothed probability
with bins.

Invariant: results equal those of scikit-learn's GaussianNB, LinearDiscriminantAnalysis and
QuadraticDiscriminantAnalysis on the same cases. Failure: as `Classifier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log, pi, sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.classifier import (
    Cases,
    Classifier,
    Columns,
    Joint,
    ProductClassifier,
    fractions,
    prior_of,
)
from spamnb.bayes.sums import COUNT_ONE, Moments, NamedCounts
from spamnb.errors import UserError
from spamnb.model.smoothing import Assumptions, Floats, log_m_estimate, log_sum_exp

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


Variance = Literal["population", "sample"]
DDOF: dict[Variance, int] = {"population": 0, "sample": 1}

Covariance = Literal[
    "full", "shared", "diagonal", "isotropic", "shared diagonal", "shared isotropic"
]


@dataclass(eq=False, kw_only=True)
class _MomentBased(Classifier[Moments]):
    """A classifier that keeps sums of numbers and of their products."""

    priors: ArrayLike | None = None
    variance: Variance = "population"

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.priors)

    def _of(self, cases: Cases, weights: Floats) -> Moments:
        return Moments.of(cases, weights)

    @property
    def theta_(self) -> Floats:
        """[K, d] the means."""
        return np.stack([_mean(class_sums) for class_sums in self._all_sums()])


@dataclass(eq=False, kw_only=True)
class GaussianNB(_MomentBased, ProductClassifier[Moments]):
    """Gaussian naive Bayes: each column has a normal distribution in each class.

        log p(x|k) = sum over columns of -log(2 pi s^2)/2 - (x - mean)^2 / (2 s^2)

    >>> ages = [[23], [35], [40], [31], [20], [38], [22]]
    >>> labels = ["no", "no", "no", "yes", "yes", "yes", "yes"]
    >>> model = GaussianNB(variance="sample", priors=[0.5, 0.5]).fit(ages, labels)
    >>> model.theta_.ravel().round(2), model.var_.ravel().round(2)
    (array([32.67, 27.75]), array([76.33, 69.58]))

    By hand: (23 + 35 + 40) / 3 = 32.67, and (9.67^2 + 2.33^2 + 7.33^2) / 2 = 76.33. The densities
    at 30 are 0.0436 and 0.0461:

    >>> (2 * np.exp(model.predict_joint_log_proba([[30]]))).round(4)
    array([[0.0436, 0.0461]])

    Every variance is raised by `var_smoothing` times the largest variance of any column over all
    cases, so that a column that is constant in a class does not decide alone.
    """

    var_smoothing: float = 1e-9

    @property
    def var_(self) -> Floats:
        """[K, d] the variances, with `var_smoothing` applied."""
        return self._variances(self._all_sums())

    def _variances(self, sums: Sequence[Moments]) -> Floats:
        whole = reduce(Moments.plus, sums)
        largest = whole.variance().max(initial=0.0) if not whole.empty else 0.0
        spread = np.stack([class_sums.variance(DDOF[self.variance]) for class_sums in sums])
        # If no column varies, there is no scale. Any value works, because all classes get the same.
        return np.asarray(spread + (self.var_smoothing * largest or 1.0))

    def _columns(self, sums: Sequence[Moments]) -> Columns:
        mean, spread = np.stack([_mean(class_sums) for class_sums in sums]), self._variances(sums)
        start = _log_present(sums)[:, None] - 0.5 * np.log(2 * pi * spread)

        def columns(cases: Cases) -> Iterator[Floats]:
            for j in range(cases.shape[1]):
                with np.errstate(over="ignore"):
                    distances = (cases[:, j, None] - mean[:, j]) ** 2 / spread[:, j]
                yield start[:, j] - 0.5 * distances

        return columns

    def _described(
        self, sums: Sequence[Moments], case: Cases, names: Sequence[str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        mean, spread = np.stack([_mean(class_sums) for class_sums in sums]), self._variances(sums)
        for j, (name, x) in enumerate(zip(names, case[0].tolist(), strict=True)):
            normals = zip(mean[:, j].tolist(), spread[:, j].tolist(), strict=True)
            yield (
                f"p({name} = {x:g} | class)",
                tuple(f"N({x:g}; {m:.4g}, {v:.4g})" for m, v in normals),
            )


class _Shape(NamedTuple):
    """Restrictions on a covariance."""

    shared: bool
    kind: Literal["full", "diagonal", "isotropic"]


_SHAPES: dict[Covariance, _Shape] = {
    "full": _Shape(shared=False, kind="full"),
    "shared": _Shape(shared=True, kind="full"),
    "diagonal": _Shape(shared=False, kind="diagonal"),
    "isotropic": _Shape(shared=False, kind="isotropic"),
    "shared diagonal": _Shape(shared=True, kind="diagonal"),
    "shared isotropic": _Shape(shared=True, kind="isotropic"),
}


class _Normal(NamedTuple):
    """A normal distribution; Mahalanobis distances are the lengths of (x - mean) @ whitener."""

    mean: Floats
    whitener: Floats
    log_norm: float


@dataclass(eq=False, kw_only=True)
class GaussianDiscriminant(_MomentBased):
    """Discriminant analysis: each class has a multivariate normal distribution.

    `covariance` restricts it: `full` gives each class its own (quadratic borders), `shared` one for
    all classes (linear borders), `diagonal` has independent columns, `isotropic` one variance for
    all columns. The shared covariance is the sum of the classes' scatters divided by the number of
    cases (minus the number of classes, for `sample`).

    >>> model = GaussianDiscriminant(covariance="shared isotropic")
    >>> model = model.fit([[0, 0], [2, 0], [0, 4], [2, 4]], ["low", "low", "high", "high"])
    >>> model.covariance_[0]
    array([[0.5, 0. ],
           [0. , 0.5]])

    By hand: the first column has variance 1 within each class and the second none; the mean is 1/2.
    Half way between the means (1, 0) and (1, 4) both are equally probable, and at (1, 1) the log
    odds of low are ((1-4)^2 - 1^2) / (2 * 1/2) = 8:

    >>> model.predict_proba([[1, 2]])
    array([[0.5, 0.5]])
    >>> log_odds = model.predict_log_proba([[1, 1]])
    >>> round(float(log_odds[0, 1] - log_odds[0, 0]), 9)
    8.0

    `shrinkage` moves the covariance towards its mean variance, `reg_param` towards the identity;
    both are shares from 0 to 1. The variance in any direction is at least `tol` times that of the
    columns over all cases, so a singular covariance still has a density.
    """

    covariance: Covariance = "full"
    shrinkage: float = 0.0
    reg_param: float = 0.0
    tol: float = 1e-9

    def __post_init__(self) -> None:
        if self.covariance not in _SHAPES:
            raise UserError(
                f"unknown covariance {self.covariance!r}", hint=f"use one of {', '.join(_SHAPES)}"
            )
        if not (0 <= self.shrinkage <= 1 and 0 <= self.reg_param <= 1 and 0 < self.tol <= 1):
            raise UserError(
                f"shrinkage {self.shrinkage}, reg_param {self.reg_param} and tol {self.tol} must "
                "be from 0 to 1, and tol above 0"
            )

    def _of(self, cases: Cases, weights: Floats) -> Moments:
        return Moments.of(cases, weights, products=_SHAPES[self.covariance].kind == "full")

    @property
    def covariance_(self) -> Floats:
        """[K, d, d] the covariances, restricted and shrunk, before the floor of `tol`."""
        return np.stack(self._covariances(self._all_sums()))

    def _covariances(self, sums: Sequence[Moments]) -> list[Floats]:
        shape, ddof = _SHAPES[self.covariance], DDOF[self.variance]
        if not shape.shared:
            found = [class_sums.variance(ddof) for class_sums in sums]
        else:
            nonempty = [class_sums for class_sums in sums if not class_sums.empty]
            cases = sum(class_sums.weight for class_sums in nonempty) - ddof * len(nonempty)
            scatter = sum(
                (class_sums.scatter() for class_sums in nonempty), np.zeros(sums[0].seconds.shape)
            )
            found = [scatter / cases if cases > 0 else scatter] * len(sums)
        return [self._shrunk(_shaped(spread, shape.kind)) for spread in found]

    def _shrunk(self, S: Floats) -> Floats:
        one = np.eye(len(S))
        S = (1 - self.shrinkage) * S + self.shrinkage * np.trace(S) / max(len(S), 1) * one
        return np.asarray((1 - self.reg_param) * S + self.reg_param * one)

    def _prepare(self, sums: Sequence[Moments], prior: Floats) -> Joint:
        whole = reduce(Moments.plus, sums)
        scale = _variances_of(whole.variance())
        # A constant column has no scale, so any works. A column with a deviation below 1e-100
        # counts as constant: its distances would leave the range of float64.
        scale = np.where(scale > 1e-200, scale, 1.0)
        if _SHAPES[self.covariance].kind == "isotropic":
            # One variance for all columns, divided by that of the smallest, may leave the range.
            scale = np.full_like(scale, scale.mean())
        normals = [
            _whitened(_mean(class_sums), S, scale, self.tol)
            for class_sums, S in zip(sums, self._covariances(sums), strict=True)
        ]
        start = prior + _log_present(sums)

        def joint(cases: Cases) -> Floats:
            scores = np.tile(start, (len(cases), 1))
            for k, normal in enumerate(normals):
                with np.errstate(over="ignore"):
                    distances = (((cases - normal.mean) @ normal.whitener) ** 2).sum(axis=1)
                scores[:, k] += normal.log_norm - 0.5 * distances
            return scores

        return joint


def _whitened(mean: Floats, S: Floats, scale: Floats, tol: float) -> _Normal:
    """Compute the whitener with columns scaled to a variance of about 1.

    Without scaling, a column of millionths beside one of millions is lost to the rounding of the
    eigenvalues.
    """
    unit = np.sqrt(scale)
    values, axes = np.linalg.eigh(S / unit / unit[:, None])
    values = np.maximum(values, tol)
    log_det = np.log(values).sum() + np.log(scale).sum()
    return _Normal(
        mean,
        (axes / np.sqrt(values)) / unit[:, None],
        -0.5 * float(log_det + len(mean) * log(2 * pi)),
    )


def _shaped(spread: Floats, kind: Literal["full", "diagonal", "isotropic"]) -> Floats:
    """[d, d] the restricted covariance, from variances [d] or a covariance [d, d]."""
    if kind == "full":
        return spread
    if kind == "isotropic":
        spread = np.full_like(spread, spread.mean())
    return np.asarray(np.diag(spread))


def _variances_of(spread: Floats) -> Floats:
    return np.asarray(np.diagonal(spread) if spread.ndim == 2 else spread)


def _mean(class_sums: Moments) -> Floats:
    return class_sums.mean() if not class_sums.empty else np.zeros(len(class_sums.firsts))


def _log_present(sums: Sequence[Moments]) -> Floats:
    """[K] 0 for a class with cases, -inf for a class without."""
    return np.where([class_sums.empty for class_sums in sums], -np.inf, 0.0)
