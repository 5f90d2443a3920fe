"""Read tables of cases: lists of rows, arrays, columns by name, and frames of pandas and polars.

Frames are read by the methods that both libraries have, so neither is imported. Invariants: a
missing value of any library is None, or NaN among numbers; a tuple in a cell is one value. Failure:
UserError for what is no table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.bayes.sums import is_missing
from spamnb.errors import UserError
from spamnb.model.smoothing import Floats

LARGEST = 1e150
"""Larger numbers are refused: their squares could leave the range of float64."""
Cells = NDArray[Any]
Name = Hashable
TableLike = Any
"""rows of values or mappings from names to values, an array [M, d], columns by name, or a frame"""


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Columns of equal length, each of its own type."""

    columns: tuple[Cells, ...]
    """[d] arrays [M]"""
    length: int
    names: tuple[Name, ...] | None = None
    types: tuple[str, ...] = ()
    """[d] names of the columns' types in a frame; empty if it is no frame"""

    @property
    def shape(self) -> tuple[int, int]:
        """Cases and columns."""
        return self.length, len(self.columns)

    def cells(self) -> Cells:
        """Return all values as one array [M, d] of objects."""
        whole = np.empty(self.shape, object)
        for j, column in enumerate(self.columns):
            whole[:, j] = column
        return whole


def has_names(X: TableLike) -> bool:
    """Whether a table has names of columns: a frame, a mapping, or a list of mappings."""
    if isinstance(X, list | tuple):
        return bool(X) and isinstance(X[0], Mapping)
    return isinstance(X, Mapping) or hasattr(X, "columns")


def read_table(X: TableLike, names: Sequence[Name] | None = None) -> CaseTable:
    """Read a table. Named columns are put in the order of `names`, if these are given.

    >>> read_table([["fair", 31], [("a", "b"), None]]).columns[0].tolist()
    ['fair', ('a', 'b')]
    >>> read_table([{"age": 31}, {"credit": "fair"}]).names
    ('age', 'credit')
    """
    if isinstance(X, Mapping) or hasattr(X, "columns"):
        return _by_name(X, names)
    if isinstance(X, np.ndarray):
        if X.ndim != 2:
            raise _no_table(f"not {X.ndim}")
        return CaseTable(tuple(X.T), len(X), None)
    rows = list(X) if isinstance(X, Iterable) else [X]
    if not rows:
        raise _no_cases()
    if all(isinstance(row, Mapping) for row in rows):
        return _from_mappings(rows, names)
    return _from_rows(rows)


def read_values(X: TableLike) -> Cells:
    """Read a table of values [M, d] of any type."""
    return read_table(X).cells()


def numbers(X: ArrayLike, least: float = -LARGEST) -> Floats:
    """Read a table of numbers [M, d], each between `least` and LARGEST."""
    try:
        cells = np.asarray(X)
        if cells.dtype.kind in "USO" and any(isinstance(cell, str) for cell in cells.flat):
            text = next(cell for cell in cells.flat if isinstance(cell, str))
            raise UserError(f"a table of numbers contains the text {str(text)!r}")
        cases = cells.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"cases must be rows of numbers of equal length: {error}") from error
    if cases.ndim != 2:
        raise _no_table(f"not {cases.ndim}") if cases.size else _no_cases()
    if not ((cases >= least) & (cases <= LARGEST)).all():
        raise UserError(f"a number is missing, or below {least:g} or above {LARGEST:g}")
    return cases


def number_column(column: Cells) -> Floats:
    """Read one column of numbers; missing values become NaN."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    text = next((value for value in column if isinstance(value, str | bytes)), None)
    if text is not None:
        raise UserError(f"{text!r} is no number")
    try:
        plain = [np.nan if is_missing(value) else float(value) for value in column]
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"a value is no number: {error}") from error
    return np.array(plain, np.float64)


def _no_cases() -> UserError:
    return UserError("there are no cases", hint="give at least one case")


def _no_table(found: str) -> UserError:
    return UserError(
        f"cases must be a table with 2 dimensions, {found}", hint="give one list of values per case"
    )


def _by_name(X: Any, names: Sequence[Name] | None) -> CaseTable:
    """Read a mapping from names to columns, or a frame."""
    given = list(X) if isinstance(X, Mapping) else list(X.columns)
    order = given if names is None else list(names)
    if set(order) != set(given):
        raise UserError(
            f"the columns are {_listed(given)}, but the model has {_listed(order)}",
            hint="give the columns that the model was fitted with",
        )
    columns = tuple(_column(X[name]) for name in order)
    lengths = sorted({len(column) for column in columns})
    if len(lengths) != 1:
        raise UserError(f"columns have different lengths: {_listed(lengths)}")
    types = () if isinstance(X, Mapping) else tuple(str(X[name].dtype) for name in order)
    return CaseTable(columns, lengths[0], tuple(order), types)


def _column(given: Any) -> Cells:
    """Read one column of a frame, an array or a list."""
    if isinstance(given, np.ndarray):
        return given
    if not hasattr(given, "to_numpy"):
        return _objects(list(given))
    values: Cells = np.asarray(given.to_numpy())
    absent = given.isna() if hasattr(given, "isna") else given.is_null()
    gaps = np.asarray(absent.to_numpy(), bool)
    if gaps.any() and values.dtype.kind != "f":
        values = values.astype(object)
        values[gaps] = None
    return values


def _from_mappings(rows: list[Mapping[Name, Any]], names: Sequence[Name] | None) -> CaseTable:
    """Read cases that name their columns; a column that a case does not name is missing."""
    given = list(dict.fromkeys(chain.from_iterable(rows)))
    order = given if names is None else list(names)
    unknown = [name for name in given if name not in order]
    if unknown:
        raise UserError(f"there is no column {_listed(unknown)}, only {_listed(order)}")
    columns = tuple(_objects([row.get(name) for row in rows]) for name in order)
    return CaseTable(columns, len(rows), tuple(order))


def _from_rows(rows: list[Any]) -> CaseTable:
    for row in rows:
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise _no_table("not 1")
    cases = [list(row) for row in rows]
    width = len(cases[0])
    for number, row in enumerate(cases):
        if len(row) != width:
            raise UserError(f"row {number} has {len(row)} values, but row 0 has {width}")
    return CaseTable(tuple(_objects(column) for column in zip(*cases, strict=True)), len(rows))


def _objects(values: Sequence[Any]) -> Cells:
    """[M] objects; numpy would read a list of tuples as two dimensions."""
    return np.fromiter(values, object, len(values))


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))
