"""Gaussian classifiers over numbers: naive Bayes and linear and quadratic discriminants.

Mean and variance come from exact sums, so forgetting leaves no rounding error and cancellation
cannot make a variance negative. Invariants: equal to scikit-learn's GaussianNB,
LinearDiscriminantAnalysis and QuadraticDiscriminantAnalysis on the same cases; a class may have a
single case, and columns may be constant or dependent: a variance of 0 is raised to a floor. A class
without cases has probability 0. Failure: as `Classifier`.

`variance` names the formula: `population` is 1/N times the sum of (x - mean)^2 over the N cases of
a class, `sample` is 1/(N - 1) times this sum. Population is the default: it maximises the
likelihood, scikit-learn uses it (older versions used the sample variance for discriminants), and it
is defined for one case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log, pi
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.classifier import (
    Cases,
    Classifier,
    Columns,
    Joint,
    ProductClassifier,
    prior_of,
)
from spamnb.bayes.sums import Moments
from spamnb.core.model.likelihood.smoothing import Assumptions, Floats
from spamnb.errors import UserError

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
