"""Why a case has its probabilities: the product of Bayes' rule, factor by factor.

Must not know models or sums. Invariant: prior times factors is the product, and the posterior is
the product divided by its sum over the classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, floor, inf, log
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spamnb.core.model.likelihood.smoothing import Floats, softmax

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
