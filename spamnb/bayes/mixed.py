"""Naive Bayes over a table with columns of different kinds: words, numbers, counts, yes or no.

Each column has a classifier of one column, and their factors are multiplied. Invariants: equal to
the classifiers of the single columns; a missing value is ignored, in learning and in prediction; a
class without any value in a column uses those of all classes there. Failure: as `Classifier`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.categorical import BernoulliNB, CategoricalNB, PoissonNB
from spamnb.bayes.classifier import (
    Classifier,
    Factor,
    Joint,
    Layout,
    agreed,
    column_names,
    prior_of,
)
from spamnb.bayes.gaussian import BinnedNB, GaussianNB, KernelNB
from spamnb.bayes.sums import Tally, is_missing, never_learnt
from spamnb.bayes.tables import CaseTable, Cells, TableLike, number_column, read_table
from spamnb.errors import UserError
from spamnb.model.events import Ints
from spamnb.model.smoothing import Assumptions, Floats

Kind = Literal["categorical", "binary", "count", "gaussian", "binned", "kernel"]
ColumnModel = CategoricalNB | BernoulliNB | PoissonNB | GaussianNB | BinnedNB | KernelNB
NUMBER_TYPES = ("int", "uint", "float", "double", "decimal")
"""how the names of the types of numbers begin, in numpy, pandas, polars and Arrow"""


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """The sums of each column, over the cases with a value there, and the number of cases."""

    cases: Tally
    columns: tuple[Any, ...]

    @property
    def weight(self) -> float:
        """Sum of the weights of the cases."""
        return self.cases.weight

    @property
    def empty(self) -> bool:
        """Whether there are no cases."""
        return self.cases.empty

    def plus(self, other: ColumnSums) -> ColumnSums:
        """Return the sum of both."""
        both = zip(self.columns, other.columns, strict=True)
        total = ColumnSums(self.cases.plus(other.cases), tuple(a.plus(b) for a, b in both))
        if total.empty and not all(column.empty for column in total.columns):
            raise never_learnt()
        return total

    def negated(self) -> ColumnSums:
        """Return the negative: adding it subtracts these sums."""
        columns = tuple(column.negated() for column in self.columns)
        return ColumnSums(self.cases.negated(), columns)


@dataclass(eq=False, kw_only=True)
class MixedNB(Classifier[ColumnSums]):
    """Naive Bayes over columns of several kinds.

        P(x, k) = P(k) * product over columns j of P(x_j | k), each by its own kind

    `kinds` gives the kind of each column, in a list or by name or number: `categorical`, `binary`,
    `count` (Poisson), `gaussian`, `binned` or `kernel`; or a classifier that has parameters of its
    own, such as `CategoricalNB(m=1)` or `GaussianNB(variance="sample")`. A column without a kind
    gets it from the values that are learnt first: numbers are gaussian, booleans binary, all others
    categorical. In a frame of pandas or polars the types of the columns decide. `alpha` smooths the
    kinds without parameters of their own. None and NaN are missing values and are ignored.

    >>> X = {"age": [23, 35, 40, 31, 20, 38, 22],
    ...      "credit": ["fair", "good", "fair", "fair", "good", "good", None]}
    >>> y = ["no", "no", "no", "yes", "yes", "yes", "yes"]
    >>> model = MixedNB(alpha=0, kinds={"age": GaussianNB(variance="sample")}).fit(X, y)
    >>> print(model.explain({"age": 30, "credit": "fair"}))
                              no                            yes
    P(class)                  3/7 = 0.4286                  4/7 = 0.5714
    p(age = 30 | class)       N(30; 32.67, 76.33) = 0.0436  N(30; 27.75, 69.58) = 0.0461
    P(credit = fair | class)  2/3 = 0.6667                  1/3 = 0.3333
    product                   0.0125                        0.0088
    P(class | case)           0.5864                        0.4136
    """

    kinds: Mapping[Any, Kind | ColumnModel] | Sequence[Kind | ColumnModel] | None = None
    alpha: float = 1.0
    fit_prior: bool = True
    class_prior: ArrayLike | None = None

    def __post_init__(self) -> None:
        Assumptions(alpha=self.alpha)
        kinds = () if self.kinds is None else self.kinds
        for kind in kinds.values() if isinstance(kinds, Mapping) else kinds:
            if kind not in _MODELS and not isinstance(kind, ColumnModel):
                raise UserError(
                    f"unknown kind of column {kind!r}",
                    hint=f"use one of {', '.join(_MODELS)}, or a classifier with parameters",
                )

    @property
    def kinds_(self) -> tuple[str, ...]:
        """[d] the kind of each column, as given or as chosen."""
        return self._known_layout().kinds

    def column(self, name: Any) -> ColumnModel:
        """Return the classifier of one column, by name or number, with its learnt numbers."""
        layout = self._known_layout()
        j = _number(name, layout)
        model = self._models(layout)[j]
        learnt = {label: of_class.columns[j] for label, of_class in self._sums.items()}
        model._replace_state(learnt, self._labels(), Layout(1))  # noqa: SLF001 - a part of this model
        return model

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.class_prior, fit_prior=self.fit_prior)

    def _lay_out(self, X: TableLike, learnt: Layout | None) -> tuple[_Cases, Layout]:
        table = read_table(X, learnt.names if learnt else None)
        plain = Layout(table.shape[1], table.names)
        kinds = learnt.kinds if learnt else self._kinds(table, plain)
        layout = agreed(plain._replace(kinds=kinds), learnt)
        names = column_names(layout.names, layout.width)
        columns = []
        for name, column, model in zip(names, table.columns, self._models(layout), strict=True):
            try:
                columns.append((model, _read_column(model, column)))
            except UserError as error:
                raise UserError(f"column {name}: {error}", hint=error.hint) from error
        return _Cases(tuple(columns), table.length), layout

    def _kinds(self, table: CaseTable, layout: Layout) -> tuple[str, ...]:
        """Return the kind of each column: the given one, or one that fits the values."""
        given, names = self._given(layout), column_names(layout.names, layout.width)
        return tuple(
            str(given[j]) if j in given else _fitting_kind(table, j, names[j])
            for j in range(layout.width)
        )

    def _given(self, layout: Layout) -> dict[int, Kind | ColumnModel]:
        """Return what `kinds` gives, by the number of the column."""
        if self.kinds is None:
            return {}
        if isinstance(self.kinds, Mapping):
            return {_number(name, layout): kind for name, kind in self.kinds.items()}
        if len(self.kinds) != layout.width:
            raise UserError(f"{len(self.kinds)} kinds for {layout.width} columns")
        return dict(enumerate(self.kinds))

    def _models(self, layout: Layout) -> list[ColumnModel]:
        """Return a classifier without cases for each column."""
        given = self._given(layout)
        models = []
        for j, kind in enumerate(layout.kinds):
            own = given.get(j)
            model = copy(own) if isinstance(own, ColumnModel) else _MODELS[kind](self.alpha)
            model._layout = Layout(1)  # noqa: SLF001 - a part of this model
            models.append(model)
        return models

    def _of(self, cases: _Cases, weights: Floats) -> ColumnSums:
        found = []
        for model, column in cases.columns:
            known = ~_missing(column)
            found.append(model._of(column[known, None], weights[known]))  # noqa: SLF001
        return ColumnSums(Tally.of(np.empty((len(cases), 0)), weights), tuple(found))

    def _nothing(self, layout: Layout) -> ColumnSums:
        columns = tuple((model, np.empty(0)) for model in self._models(layout))
        return self._of(_Cases(columns, 0), np.empty(0))

    def _parts(self, sums: Sequence[ColumnSums]) -> list[tuple[int, ColumnModel, list[Any]]]:
        """Return the number, the classifier and the sums of each column that has any value."""
        parts = []
        for j, model in enumerate(self._models(self._known_layout())):
            of_classes = [class_sums.columns[j] for class_sums in sums]
            whole = reduce(lambda a, b: a.plus(b), of_classes)
            if not whole.empty:
                parts.append((j, model, [whole if own.empty else own for own in of_classes]))
        return parts

    def _prepare(self, sums: Sequence[ColumnSums], prior: Floats) -> Joint:
        none = np.zeros(len(sums))
        parts = [
            (j, model._prepare(of_column, none))  # noqa: SLF001
            for j, model, of_column in self._parts(sums)
        ]

        def joint(cases: _Cases) -> Floats:
            scores = np.tile(prior, (len(cases), 1))
            for j, of_column in parts:
                _, column = cases.columns[j]
                known = ~_missing(column)
                scores[known] += of_column(column[known, None])
            return scores

        return joint

    def _factors(
        self, sums: Sequence[ColumnSums], case: _Cases, names: Sequence[str]
    ) -> list[Factor]:
        factors = []
        for j, model, of_column in self._parts(sums):
            _, column = case.columns[j]
            if _missing(column)[0]:
                factors.append(Factor(f"{names[j]}: missing, ignored", np.zeros(len(sums))))
            else:
                factors += model._factors(of_column, column[:, None], [names[j]])  # noqa: SLF001
        return factors


@dataclass(frozen=True, slots=True)
class _Cases:
    """The classifier and the values of each column."""

    columns: tuple[tuple[ColumnModel, Cells], ...]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: Ints) -> _Cases:
        columns = tuple((model, column[rows]) for model, column in self.columns)
        return _Cases(columns, len(rows))


_MODELS: dict[str, Callable[[float], ColumnModel]] = {
    "categorical": lambda alpha: CategoricalNB(alpha=alpha),
    "binary": lambda alpha: BernoulliNB(alpha=alpha),
    "count": lambda alpha: PoissonNB(alpha=alpha),
    "gaussian": lambda _alpha: GaussianNB(),
    "binned": lambda alpha: BinnedNB(alpha=alpha),
    "kernel": lambda _alpha: KernelNB(),
}


def _number(name: Any, layout: Layout) -> int:
    """Return the number of a column, from its name or number."""
    names = list(layout.names or ())
    if name in names:
        return names.index(name)
    if isinstance(name, int) and 0 <= name < layout.width:
        return name
    raise UserError(f"there is no column {name!r}, only {', '.join(map(str, names))}")


def _fitting_kind(table: CaseTable, j: int, name: str) -> Kind:
    """Choose a kind by the type of a column, or by its values if it has objects."""
    column = table.columns[j]
    type_name = (table.types[j] if table.types else str(column.dtype)).lower()
    if type_name.startswith("bool"):
        return "binary"
    if type_name.startswith(NUMBER_TYPES):
        return "gaussian"
    if type_name != "object":
        return "categorical"
    values = [value for value in column.tolist() if not is_missing(value)]
    if not values:
        raise UserError(f"column {name} has no value yet", hint="give its kind in `kinds`")
    if all(isinstance(value, bool | np.bool_) for value in values):
        return "binary"
    return "gaussian" if all(isinstance(value, Real) for value in values) else "categorical"


def _read_column(model: ColumnModel, column: Cells) -> Cells:
    """Return the values as the classifier reads them; a missing number is NaN."""
    if isinstance(model, CategoricalNB):
        return column
    values = number_column(column)
    known = ~np.isnan(values)
    values[known] = model._read(values[known, None])[:, 0]  # noqa: SLF001
    return values


def _missing(column: Cells) -> NDArray[np.bool_]:
    """[M] where a value is missing."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype != object:
        return np.zeros(len(column), bool)
    return np.fromiter(map(is_missing, column.tolist()), bool, len(column))
