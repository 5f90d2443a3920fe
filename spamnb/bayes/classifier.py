"""What every classifier does: learn, forget, merge, predict, and derive its result.

`Classifier` holds the sums of each class and computes the posterior by Bayes' rule, in log space. A
subclass defines which sums to keep of some cases (`_of`) and how to get the joint log probability
of a case and each class from them (`_prepare`); `ProductClassifier` is the base of those that
multiply one factor for each column. A `Derivation` has these factors: prior times factors is the
product, and the posterior is the product divided by its sum over the classes.

Invariants: learning adds the sums of the cases, forgetting subtracts them, merging adds those of
another model, so the order of operations does not matter and forgetting restores every number; a
call that fails changes nothing. A class exists while it is declared or has cases. Failure:
UserError for invalid input, RefusedError for forgetting cases that were not learnt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, floor, inf, log
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.sums import Sums, is_missing
from spamnb.bayes.tables import TableLike, has_names, numbers, read_table
from spamnb.errors import UserError
from spamnb.model.events import Ints
from spamnb.model.smoothing import Assumptions, Floats, log_prior, log_softmax, softmax

if TYPE_CHECKING:
    from rich.table import Table


class Factor(NamedTuple):
    """One factor of the product: a probability or a density for each class."""

    name: str
    logs: Floats
    """[K] logarithms of the factor"""
    how: tuple[str, ...] = ()
    """[K] how it was computed, if there is a short form, such as 3/9"""

    def cells(self) -> list[str]:
        """Return the text for each class, such as `3/9 = 0.3333`."""
        shown = [shown_exp(value) for value in self.logs.tolist()]
        if not self.how:
            return shown
        return [f"{how} = {value}" for how, value in zip(self.how, shown, strict=True)]


@dataclass(frozen=True, slots=True)
class Derivation:
    """The product that decides on a case. `print` shows text; `rich.print` shows a table."""

    classes: tuple[Any, ...]
    prior: Factor
    factors: tuple[Factor, ...]

    @property
    def product(self) -> Floats:
        """[K] log P(case, class): the sum of the logarithms of all factors."""
        return np.asarray(self.prior.logs + sum(factor.logs for factor in self.factors))

    @property
    def posterior(self) -> Floats:
        """[K] P(class | case)."""
        return softmax(self.product)

    def rows(self) -> list[list[str]]:
        """Return the lines of the table: a name, and the text for each class."""
        with np.errstate(divide="ignore"):
            posterior = Factor("P(class | case)", np.log(self.posterior))
        lines = [self.prior, *self.factors, Factor("product", self.product), posterior]
        return [[line.name, *line.cells()] for line in lines]

    def __str__(self) -> str:
        lines = [["", *map(str, self.classes)], *self.rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def __rich__(self) -> Table:
        from rich.markup import escape  # noqa: PLC0415 - only who prints with rich waits for it
        from rich.table import Table  # noqa: PLC0415

        table = Table("", *(escape(str(name)) for name in self.classes))
        rows = self.rows()
        for number, line in enumerate(rows):
            table.add_row(*map(escape, line), end_section=number == len(rows) - 3)
        return table


def column_names(names: Sequence[Any] | None, width: int) -> list[str]:
    """Return the names of the columns for an explanation; without names x0, x1 and so on."""
    return [f"x{j}" for j in range(width)] if names is None else [str(name) for name in names]


def fractions(n: Floats, added: float | Floats, N: Floats, m: float | Floats) -> tuple[str, ...]:
    """Return the m-estimate (n + added) / (N + m) of each class as text.

    >>> fractions(np.array([3.0, 2.0]), 1, np.array([9.0, 5.0]), 3)
    ('(3 + 1)/(9 + 3)', '(2 + 1)/(5 + 3)')
    >>> fractions(np.array([3.0, 2.0]), 0, np.array([9.0, 5.0]), 0)
    ('3/9', '2/5')
    """
    rows: Iterable[tuple[float, ...]] = np.stack(np.broadcast_arrays(n, added, N, m)).T.tolist()
    return tuple(
        f"({n:g} + {mp:.4g})/({N:g} + {m:g})" if m else f"{n:g}/{N:g}" for n, mp, N, m in rows
    )


def shown_exp(logarithm: float) -> str:
    """Return exp(logarithm) in four digits, also outside the range of float64.

    >>> shown_exp(log(2 / 9)), shown_exp(-inf), shown_exp(log(2e-5)), shown_exp(-57564.627)
    ('0.2222', '0', '2.000e-05', '1.000e-25000')
    """
    if logarithm == -inf:
        return "0"
    if log(1e-3) <= logarithm < log(1e6):
        return f"{exp(logarithm):.4f}"
    power = floor(logarithm / log(10))
    digits = f"{exp(logarithm - power * log(10)):.3f}"
    if digits == "10.000":
        digits, power = "1.000", power + 1
    return f"{digits}e{power:+03d}"


S = TypeVar("S", bound=Sums)
Label = Any
"""Name of a class: any hashable that can be sorted."""
Cases = Any
"""[M, d] numbers, or other values that the subclass reads: an array, or a `Table`"""
Joint = Callable[[Cases], Floats]
Columns = Callable[[Cases], Iterator[Floats]]


class Layout(NamedTuple):
    """What a model knows of its columns."""

    width: int
    names: tuple[Any, ...] | None = None
    kinds: tuple[str, ...] = ()
    """the kinds that `MixedNB` chose"""


@dataclass(eq=False, kw_only=True)
class Classifier(ABC, Generic[S]):
    """A Bayes classifier that can learn and forget single cases.

    The parameters are fixed when the model is created.
    """

    _declared: tuple[Label, ...] = field(default=(), init=False, repr=False)
    _sums: dict[Label, S] = field(default_factory=dict, init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _joint: Joint | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def _of(self, cases: Cases, weights: Floats) -> S:
        """Return the sums of these cases; for no cases, empty sums."""

    @abstractmethod
    def _prepare(self, sums: Sequence[S], prior: Floats) -> Joint:
        """Return a function from cases to [M, K] log P(case, class)."""

    def _read(self, X: TableLike) -> Cases:
        """Return the input as [M, d] cases; by default numbers."""
        return numbers(X)

    def _lay_out(self, X: TableLike, learnt: Layout | None) -> tuple[Cases, Layout]:
        """Read cases, in the order of the learnt columns if both have names."""
        names = None
        if has_names(X):
            table = read_table(X, learnt.names if learnt else None)
            X, names = table.cells(), table.names
        cases = self._read(X)
        return cases, agreed(Layout(cases.shape[1], names), learnt)

    def _factors(self, sums: Sequence[S], case: Cases, names: Sequence[str]) -> list[Factor]:
        """Return the factors of the likelihood of one case; by default one for all columns."""
        logs = self._prepare(sums, np.zeros(len(sums)))(case)[0]
        return [Factor(f"P({', '.join(names)} | class)", logs)]

    @property
    def _prior_assumptions(self) -> Assumptions:
        return Assumptions()

    def learn(self, x: TableLike, y: Label, weight: float = 1.0) -> Self:
        """Learn one case."""
        return self.partial_fit(_single(x), [y], sample_weight=[weight])

    def forget(self, x: TableLike, y: Label, weight: float = 1.0) -> Self:
        """Forget one case that was learnt with this class and weight."""
        return self.partial_forget(_single(x), [y], sample_weight=[weight])

    def partial_fit(
        self,
        X: TableLike,
        y: ArrayLike,
        classes: Iterable[Label] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn more cases. `classes` declares classes that have no cases yet."""
        layout, sums_by_class = self._sums_by_class(X, y, sample_weight, self._layout)
        declared = {*self._declared, *_as_list(classes if classes is not None else ())}
        return self._replace_state(_add_by_class(self._sums, sums_by_class), declared, layout)

    def partial_forget(
        self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Forget cases that were learnt with these classes and weights."""
        layout, sums_by_class = self._sums_by_class(X, y, sample_weight, self._layout)
        negated = {label: sums.negated() for label, sums in sums_by_class.items()}
        # A class without cases gets empty sums, so that subtracting from it is refused.
        empty = {label: sums.plus(negated[label]) for label, sums in sums_by_class.items()}
        remaining = _add_by_class(empty | self._sums, negated)
        return self._replace_state(remaining, self._declared, layout)

    def fit(self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn these cases."""
        layout, sums_by_class = self._sums_by_class(X, y, sample_weight, None)
        return self._replace_state(sums_by_class, (), layout)

    def merge(self, other: Self) -> Self:
        """Learn all cases of another model of the same kind and parameters."""
        if repr(self) != repr(other):
            raise UserError(
                "models of different kinds or parameters cannot be merged",
                hint="create both with the same parameters",
            )
        layout, sums, declared = other._layout, other._sums, other._declared
        if layout is not None:
            layout = agreed(layout, self._layout)
        return self._replace_state(
            _add_by_class(self._sums, sums), {*self._declared, *declared}, layout or self._layout
        )

    @property
    def classes_(self) -> NDArray[Any]:
        """[K] the classes, sorted; the order of the columns of `predict_proba`."""
        labels = self._labels()
        if any(isinstance(label, tuple) for label in labels):
            return np.fromiter(labels, object, len(labels))
        return np.array(labels)

    @property
    def class_count_(self) -> Floats:
        """[K] sum of the weights of the cases learnt of each class."""
        return np.array(
            [self._sums[label].weight if label in self._sums else 0.0 for label in self._labels()]
        )

    @property
    def class_log_prior_(self) -> Floats:
        """[K] log P(class)."""
        return log_prior(self._prior_assumptions, self.class_count_)

    @property
    def class_prior_(self) -> Floats:
        """[K] P(class)."""
        return np.asarray(np.exp(self.class_log_prior_))

    @property
    def n_features_in_(self) -> int:
        """Number of columns."""
        return self._known_layout().width

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """[d] names of the columns."""
        layout = self._known_layout()
        return np.array(column_names(layout.names, layout.width), object)

    def predict_joint_log_proba(self, X: TableLike) -> Floats:
        """[M, K] log P(case, class)."""
        cases, _ = self._lay_out(X, self._known_layout())
        if self._joint is None:
            self._joint = self._prepare(self._all_sums(), self.class_log_prior_)
        return self._joint(cases)

    def predict_log_proba(self, X: TableLike) -> Floats:
        """[M, K] log P(class | case)."""
        return log_softmax(self.predict_joint_log_proba(X))

    def predict_proba(self, X: TableLike) -> Floats:
        """[M, K] P(class | case); rows sum to 1."""
        return softmax(self.predict_joint_log_proba(X))

    def predict(self, X: TableLike) -> NDArray[Any]:
        """[M] the most probable class of each case; of ties, the first."""
        return np.asarray(self.classes_[self.predict_joint_log_proba(X).argmax(axis=1)])

    def explain(self, x: Any, names: Sequence[str] | None = None) -> Derivation:
        """Return the product that decides on one case: `print` shows its factors."""
        case, layout = self._lay_out(_single(x), self._known_layout())
        n, prior = self.class_count_, self.class_log_prior_
        counted = self._prior_assumptions.prior == "counts" and n.any()
        shares = fractions(n, 0, n * 0 + n.sum(), 0) if counted else ()
        if names is not None and len(names) != layout.width:
            raise UserError(f"{len(names)} names for {layout.width} columns")
        named = column_names(names or layout.names, layout.width)
        factors = self._factors(self._all_sums(), case, named)
        return Derivation(tuple(self._labels()), Factor("P(class)", prior, shares), tuple(factors))

    def __getstate__(self) -> dict[str, Any]:
        # The cached function cannot be pickled; it is made again from the sums.
        return self.__dict__ | {"_joint": None}

    def _labels(self) -> list[Label]:
        return _sorted({*self._declared, *self._sums})

    def _known_layout(self) -> Layout:
        if self._layout is None:
            raise UserError("nothing has been learnt yet", hint="call fit or learn first")
        return self._layout

    def _nothing(self, layout: Layout) -> S:
        """Return the sums of no cases."""
        return self._of(np.empty((0, layout.width)), np.empty(0))

    def _all_sums(self) -> list[S]:
        none = self._nothing(self._known_layout())
        return [self._sums.get(label, none) for label in self._labels()]

    def _sums_by_class(
        self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None, learnt: Layout | None
    ) -> tuple[Layout, dict[Label, S]]:
        """Return what is known of the columns, and the sums of the cases of each class."""
        cases, layout = self._lay_out(X, learnt)
        weights = case_weights(sample_weight, len(cases))
        labels, rows = _rows_by_class(y, len(cases))
        sums = {
            label: self._of(cases[at], weights[at]) for label, at in zip(labels, rows, strict=True)
        }
        return layout, sums

    def _replace_state(
        self, sums: dict[Label, S], declared: Iterable[Label], layout: Layout | None
    ) -> Self:
        kept = {label: of_class for label, of_class in sums.items() if not of_class.empty}
        _sorted({*declared, *kept})  # or refused, before anything is changed
        self._sums, self._declared, self._joint = kept, tuple(_sorted(declared)), None
        self._layout = layout if self._sums or self._declared else None
        return self


class ProductClassifier(Classifier[S]):
    """A classifier with a likelihood that is a product: one factor for each column."""

    @abstractmethod
    def _columns(self, sums: Sequence[S]) -> Columns:
        """Return a function from cases to [M, K] log P(value | class) of each column in turn."""

    def _prepare(self, sums: Sequence[S], prior: Floats) -> Joint:
        columns = self._columns(sums)

        def joint(cases: Cases) -> Floats:
            scores = np.tile(prior, (len(cases), 1))
            for logs in columns(cases):
                scores += logs
            return scores

        return joint

    def _factors(self, sums: Sequence[S], case: Cases, names: Sequence[str]) -> list[Factor]:
        columns = self._columns(sums)(case)
        names_with_values = self._described(sums, case, names)
        return [
            Factor(name, logs[0], how)
            for (name, how), logs in zip(names_with_values, columns, strict=True)
        ]

    @abstractmethod
    def _described(
        self, sums: Sequence[S], case: Cases, names: Sequence[str]
    ) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Return the name of each column's factor, and how it is computed for each class."""


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


def agreed(given: Layout, learnt: Layout | None) -> Layout:
    """Return what is known of the columns after both, or refuse columns that differ."""
    if learnt is None:
        return given
    if given.width != learnt.width:
        raise UserError(f"{given.width} columns, but the model has {learnt.width}")
    if given.names and learnt.names and given.names != learnt.names:
        raise UserError(f"the columns are {given.names}, but the model has {learnt.names}")
    if given.kinds != learnt.kinds:
        raise UserError(f"the columns are {given.kinds}, but the model has {learnt.kinds}")
    return Layout(learnt.width, learnt.names or given.names, learnt.kinds)


def _single(x: Any) -> Any:
    if hasattr(x, "columns"):
        return x
    return x[None] if isinstance(x, np.ndarray) else [x]


def _as_list(y: Any) -> list[Label]:
    return y.tolist() if isinstance(y, np.ndarray) else list(y)


def _sorted(labels: Iterable[Label]) -> list[Label]:
    try:
        return sorted(labels)
    except TypeError as error:
        raise UserError(
            f"classes cannot be sorted: {error}", hint="give classes of one type"
        ) from error


def _rows_by_class(y: Any, cases: int) -> tuple[list[Label], list[Ints]]:
    """Return the classes, and the rows of the cases of each."""
    if isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype != object:
        found, codes = np.unique(y, return_inverse=True)
        labels = found.tolist()
    else:
        given, order = _as_list(y), dict[Label, int]()
        codes = np.array([order.setdefault(label, len(order)) for label in given], np.int64)
        labels = list(order)
    if len(codes) != cases:
        raise UserError(f"{len(codes)} labels for {cases} cases")
    if any(is_missing(label) for label in labels):
        raise UserError("a label is missing", hint="leave out cases without a label")
    rows = np.argsort(codes, kind="stable")
    ends = np.bincount(codes, minlength=len(labels)).cumsum()
    return labels, np.split(rows, ends)[: len(labels)]


def case_weights(given: ArrayLike | None, cases: int) -> Floats:
    """Read the weights of the cases [M]; without any, each case has weight 1."""
    weights = np.ones(cases) if given is None else np.asarray(given, np.float64)
    if weights.shape != (cases,) or not ((weights > 0) & (weights < np.inf)).all():
        raise UserError(
            "weights must be positive numbers, one per case",
            hint="leave a case out instead of giving it weight 0",
        )
    return weights
