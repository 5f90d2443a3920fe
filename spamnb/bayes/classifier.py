"""What every classifier of the family does the same: learn, forget, merge, and judge.

Holds the sums of each class and the posterior by Bayes' rule, in log space; must not know what the
sums mean: a kind of model says what it keeps of some cases (`_of`) and how likely a case is for
each class given that (`_prepare`). Invariants: learning adds the sums of the new cases, forgetting
takes them away, merging adds another's, so the order of doing never matters and forgetting restores
every number; a call that fails changes nothing. A class exists while it was declared or has cases.
Fails with UserError for input that means nothing, RefusedError for forgetting what was not learnt.
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
"""A class by its name: anything that can be a key and be sorted."""
Cases = NDArray[Any]
"""[M, d] numbers, or anything else that the kind can read"""
Joint = Callable[[Cases], Floats]

LARGEST = 1e150
"""Squares of larger numbers leave the range of float64."""


@dataclass(eq=False, kw_only=True)
class Classifier(ABC, Generic[S]):
    """A naive Bayes classifier that can learn and forget one case at a time.

    The parameters are fixed when it is made; what it has learnt is all that changes.
    """

    _declared: tuple[Label, ...] = field(default=(), init=False, repr=False)
    _sums: dict[Label, S] = field(default_factory=dict, init=False, repr=False)
    _width: int | None = field(default=None, init=False, repr=False)
    _joint: Joint | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def _of(self, cases: Cases, weights: Floats) -> S:
        """What is kept of these cases; zero cases keep nothing."""

    @abstractmethod
    def _prepare(self, sums: Sequence[S], prior: Floats) -> Joint:
        """How to get [M, K] log P(case, class), from each class's sums and log prior."""

    def _read(self, X: ArrayLike) -> Cases:
        """[M, d] from whatever was given: here numbers."""
        return numbers(X)

    @property
    def _assumed(self) -> Assumptions:
        """Where the prior comes from."""
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
        """Learn more cases. Classes that have none yet can be declared, and so take part."""
        width, feature_batches = self._portions(X, y, sample_weight, self._width)
        declared = {*self._declared, *_plain(classes if classes is not None else ())}
        return self._now(_joined(self._sums, feature_batches), declared, width)

    def partial_forget(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Forget cases that were learnt with these classes and weights."""
        width, feature_batches = self._portions(X, y, sample_weight, self._width)
        nothing = {label: held.plus(held.negated()) for label, held in feature_batches.items()}
        taken = {label: held.negated() for label, held in feature_batches.items()}
        return self._now(_joined(nothing | self._sums, taken), self._declared, width)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn these cases and nothing else."""
        width, feature_batches = self._portions(X, y, sample_weight, None)
        return self._now(feature_batches, (), width)

    def merge(self, other: Self) -> Self:
        """Learn all that another of the same kind and parameters has learnt."""
        if repr(self) != repr(other):
            raise UserError(
                "models of different kinds or parameters cannot be merged",
                hint="make both with the same parameters",
            )
        width, sums, declared = other._width, other._sums, other._declared
        _same_width(width, self._width)
        return self._now(
            _joined(self._sums, sums), {*self._declared, *declared}, self._width or width
        )

    @property
    def classes_(self) -> NDArray[Any]:
        """[K] the classes, sorted; the columns of what `predict_proba` gives."""
        return np.array(self._labels())

    @property
    def class_count_(self) -> Floats:
        """[K] cases learnt of each class, by weight."""
        return np.array(
            [self._sums[label].weight if label in self._sums else 0.0 for label in self._labels()]
        )

    def predict_joint_log_proba(self, X: ArrayLike) -> Floats:
        """[M, K] log P(case, class)."""
        cases = self._read(X)
        _same_width(cases.shape[1], self._width)
        if self._joint is None:
            self._joint = self._prepare(self._all_sums(), self._log_prior())
        return self._joint(cases)

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """[M, K] log P(class | case)."""
        return log_softmax(self.predict_joint_log_proba(X))

    def predict_proba(self, X: ArrayLike) -> Floats:
        """[M, K] P(class | case); rows sum to 1."""
        return softmax(self.predict_joint_log_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """[M] the most probable class of each case; of equals the first."""
        return np.asarray(self.classes_[self.predict_joint_log_proba(X).argmax(axis=1)])

    def __getstate__(self) -> dict[str, Any]:
        # What was made ready from the sums is a function, which cannot be pickled; the sums can.
        return self.__dict__ | {"_joint": None}

    def _labels(self) -> list[Label]:
        return sorted({*self._declared, *self._sums})

    def _all_sums(self) -> list[S]:
        if self._width is None:
            raise UserError("nothing has been learnt yet", hint="call fit or learn first")
        none = self._of(np.empty((0, self._width)), np.empty(0))
        return [self._sums.get(label, none) for label in self._labels()]

    def _log_prior(self) -> Floats:
        return log_prior(self._assumed, self.class_count_)

    def _portions(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, learnt: int | None
    ) -> tuple[int, dict[Label, S]]:
        """How wide the cases are, and what there is of each class."""
        cases, labels = self._read(X), _plain(y)
        _same_width(cases.shape[1], learnt)
        weights = _weights(sample_weight, len(cases))
        if len(labels) != len(cases):
            raise UserError(f"{len(labels)} classes for {len(cases)} cases")
        rows: dict[Label, list[int]] = {}
        for row, label in enumerate(labels):
            rows.setdefault(label, []).append(row)
        feature_batches = {label: self._of(cases[of], weights[of]) for label, of in rows.items()}
        return cases.shape[1], feature_batches

    def _now(self, sums: dict[Label, S], declared: Iterable[Label], width: int | None) -> Self:
        """Take over what was made, all at once."""
        self._sums = {label: held for label, held in sums.items() if not held.nothing}
        self._declared, self._joint = tuple(sorted(declared)), None
        self._width = width if self._sums or self._declared else None
        return self


def numbers(X: ArrayLike, least: float = -LARGEST) -> Floats:
    """[M, d] numbers between `least` and a bound that keeps squares finite."""
    cases = np.asarray(X, np.float64)
    if cases.ndim != 2:
        raise UserError("cases come as rows of a table", hint="give one list of numbers per case")
    if not ((cases >= least) & (cases <= LARGEST)).all():
        raise UserError(f"a number is missing, below {least:g} or above {LARGEST:g}")
    return cases


def prior_of(class_prior: ArrayLike | None, *, fit_prior: bool = True) -> Assumptions:
    """Where the prior comes from, told in scikit-learn's way."""
    if class_prior is not None:
        return Assumptions(prior=tuple(np.asarray(class_prior, np.float64).tolist()))
    return Assumptions(prior="counts" if fit_prior else "uniform")


def _joined(held: dict[Label, S], added: dict[Label, S]) -> dict[Label, S]:
    """The sums of both, class by class."""
    joined = held | added
    for label in held.keys() & added.keys():
        joined[label] = held[label].plus(added[label])
    return joined


def _same_width(given: int | None, learnt: int | None) -> None:
    if None not in (given, learnt) and given != learnt:
        raise UserError(f"{given} columns, but {learnt} were learnt")


def _single(x: ArrayLike) -> Any:
    return x[None] if isinstance(x, np.ndarray) else [x]


def _plain(y: Any) -> list[Label]:
    return y.tolist() if isinstance(y, np.ndarray) else list(y)


def _weights(given: ArrayLike | None, cases: int) -> Floats:
    weights = np.ones(cases) if given is None else np.asarray(given, np.float64)
    if weights.shape != (cases,) or not ((weights > 0) & (weights < np.inf)).all():
        raise UserError(
            "weights must be positive numbers, one a case", hint="leave cases out instead"
        )
    return weights
