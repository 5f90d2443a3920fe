"""Base class of the classifiers: learn, forget, merge and predict.

Holds the sums of each class and computes the posterior by Bayes' rule, in log space. A subclass
defines which sums to keep of some cases (`_of`) and how to get the joint log probability of a case
and each class from them (`_prepare`). Invariants: learning adds the sums of the cases, forgetting
subtracts them, merging adds those of another model, so the order of operations does not matter and
forgetting restores every number; a call that fails changes nothing. A class exists while it is
declared or has cases. Failure: UserError for invalid input, RefusedError for forgetting cases that
were not learnt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.sums import Sums
from spamnb.core.model.likelihood.smoothing import (
    Assumptions,
    Floats,
    log_prior,
    log_softmax,
    softmax,
)
from spamnb.errors import UserError

S = TypeVar("S", bound=Sums)
Label = Any
"""Name of a class: any hashable that can be sorted."""
Cases = NDArray[Any]
"""[M, d] numbers, or other values that the subclass reads"""
Joint = Callable[[Cases], Floats]

LARGEST = 1e150
"""Larger numbers are refused: their squares could leave the range of float64."""


@dataclass(eq=False, kw_only=True)
class Classifier(ABC, Generic[S]):
    """A Bayes classifier that can learn and forget single cases.

    The parameters are fixed when the model is created.
    """

    _declared: tuple[Label, ...] = field(default=(), init=False, repr=False)
    _sums: dict[Label, S] = field(default_factory=dict, init=False, repr=False)
    _width: int | None = field(default=None, init=False, repr=False)
    _joint: Joint | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def _of(self, cases: Cases, weights: Floats) -> S:
        """Return the sums of these cases; for no cases, empty sums."""

    @abstractmethod
    def _prepare(self, sums: Sequence[S], prior: Floats) -> Joint:
        """Return a function from cases to [M, K] log P(case, class)."""

    def _read(self, X: ArrayLike) -> Cases:
        """Return the input as [M, d] cases; by default numbers."""
        return numbers(X)

    @property
    def _prior_assumptions(self) -> Assumptions:
        return Assumptions()

    def learn(self, x: ArrayLike, y: Label, weight: float = 1.0) -> Self:
        """Learn one case."""
        return self.partial_fit(_single(x), [y], sample_weight=[weight])

    def forget(self, x: ArrayLike, y: Label, weight: float = 1.0) -> Self:
        """Forget one case that was learnt with this class and weight."""
        return self.partial_forget(_single(x), [y], sample_weight=[weight])

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: Iterable[Label] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn more cases. `classes` declares classes that have no cases yet."""
        width, sums_by_class = self._sums_by_class(X, y, sample_weight, self._width)
        declared = {*self._declared, *_as_list(classes if classes is not None else ())}
        return self._replace_state(_add_by_class(self._sums, sums_by_class), declared, width)

    def partial_forget(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Forget cases that were learnt with these classes and weights."""
        width, sums_by_class = self._sums_by_class(X, y, sample_weight, self._width)
        negated = {label: sums.negated() for label, sums in sums_by_class.items()}
        # A class without cases gets empty sums, so that subtracting from it is refused.
        empty = {label: sums.plus(negated[label]) for label, sums in sums_by_class.items()}
        remaining = _add_by_class(empty | self._sums, negated)
        return self._replace_state(remaining, self._declared, width)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn these cases."""
        width, sums_by_class = self._sums_by_class(X, y, sample_weight, None)
        return self._replace_state(sums_by_class, (), width)

    def merge(self, other: Self) -> Self:
        """Learn all cases of another model of the same kind and parameters."""
        if repr(self) != repr(other):
            raise UserError(
                "models of different kinds or parameters cannot be merged",
                hint="create both with the same parameters",
            )
        width, sums, declared = other._width, other._sums, other._declared
        _check_width(width, self._width)
        return self._replace_state(
            _add_by_class(self._sums, sums), {*self._declared, *declared}, self._width or width
        )

    @property
    def classes_(self) -> NDArray[Any]:
        """[K] the classes, sorted; the order of the columns of `predict_proba`."""
        return np.array(self._labels())

    @property
    def class_count_(self) -> Floats:
        """[K] sum of the weights of the cases learnt of each class."""
        return np.array(
            [self._sums[label].weight if label in self._sums else 0.0 for label in self._labels()]
        )

    def predict_joint_log_proba(self, X: ArrayLike) -> Floats:
        """[M, K] log P(case, class)."""
        cases = self._read(X)
        _check_width(cases.shape[1], self._width)
        if self._joint is None:
            prior = log_prior(self._prior_assumptions, self.class_count_)
            self._joint = self._prepare(self._all_sums(), prior)
        return self._joint(cases)

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """[M, K] log P(class | case)."""
        return log_softmax(self.predict_joint_log_proba(X))

    def predict_proba(self, X: ArrayLike) -> Floats:
        """[M, K] P(class | case); rows sum to 1."""
        return softmax(self.predict_joint_log_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """[M] the most probable class of each case; of ties, the first."""
        return np.asarray(self.classes_[self.predict_joint_log_proba(X).argmax(axis=1)])

    def __getstate__(self) -> dict[str, Any]:
        # The cached function cannot be pickled; it is made again from the sums.
        return self.__dict__ | {"_joint": None}

    def _labels(self) -> list[Label]:
        return sorted({*self._declared, *self._sums})

    def _all_sums(self) -> list[S]:
        if self._width is None:
            raise UserError("nothing has been learnt yet", hint="call fit or learn first")
        none = self._of(np.empty((0, self._width)), np.empty(0))
        return [self._sums.get(label, none) for label in self._labels()]

    def _sums_by_class(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, learnt: int | None
    ) -> tuple[int, dict[Label, S]]:
        """Return the number of columns, and the sums of the cases of each class."""
        cases, labels = self._read(X), _as_list(y)
        _check_width(cases.shape[1], learnt)
        weights = _weights(sample_weight, len(cases))
        if len(labels) != len(cases):
            raise UserError(f"{len(labels)} labels for {len(cases)} cases")
        rows: dict[Label, list[int]] = {}
        for row, label in enumerate(labels):
            rows.setdefault(label, []).append(row)
        sums = {label: self._of(cases[at], weights[at]) for label, at in rows.items()}
        return cases.shape[1], sums

    def _replace_state(
        self, sums: dict[Label, S], declared: Iterable[Label], width: int | None
    ) -> Self:
        self._sums = {label: kept for label, kept in sums.items() if not kept.empty}
        self._declared, self._joint = tuple(sorted(declared)), None
        self._width = width if self._sums or self._declared else None
        return self


def numbers(X: ArrayLike, least: float = -LARGEST) -> Floats:
    """Read a table of numbers [M, d], each between `least` and LARGEST."""
    cases = np.asarray(X, np.float64)
    if cases.ndim != 2:
        raise UserError(
            f"cases must be a table with 2 dimensions, not {cases.ndim}",
            hint="give one list of numbers per case",
        )
    if not ((cases >= least) & (cases <= LARGEST)).all():
        raise UserError(f"a number is missing, or below {least:g} or above {LARGEST:g}")
    return cases


def prior_of(class_prior: ArrayLike | None, *, fit_prior: bool = True) -> Assumptions:
    """Return the prior for scikit-learn's parameters `class_prior` and `fit_prior`."""
    if class_prior is not None:
        return Assumptions(prior=tuple(np.asarray(class_prior, np.float64).tolist()))
    return Assumptions(prior="counts" if fit_prior else "uniform")


def _add_by_class(sums: dict[Label, S], added: dict[Label, S]) -> dict[Label, S]:
    total = sums | added
    for label in sums.keys() & added.keys():
        total[label] = sums[label].plus(added[label])
    return total


def _check_width(given: int | None, learnt: int | None) -> None:
    if None not in (given, learnt) and given != learnt:
        raise UserError(f"{given} columns, but the model has {learnt}")


def _single(x: ArrayLike) -> Any:
    return x[None] if isinstance(x, np.ndarray) else [x]


def _as_list(y: Any) -> list[Label]:
    return y.tolist() if isinstance(y, np.ndarray) else list(y)


def _weights(given: ArrayLike | None, cases: int) -> Floats:
    weights = np.ones(cases) if given is None else np.asarray(given, np.float64)
    if weights.shape != (cases,) or not ((weights > 0) & (weights < np.inf)).all():
        raise UserError(
            "weights must be positive numbers, one per case",
            hint="leave a case out instead of giving it weight 0",
        )
    return weights
