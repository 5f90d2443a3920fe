"""Exact sums over the cases of one class, which can be added and subtracted.

`Tally` counts columns, `NamedCounts` counts hashable keys (values, pairs of values), `Moments` sums
numbers and their products. Must not know classes, priors or formulas. Invariants: every sum is an
integer, so sums commute: learning and forgetting in any order restores every number, and merging is
addition. A count is in units of 2^-32, and the weight of each case is rounded once to this unit;
moments are never rounded. Instances are frozen, so a refused change changes nothing. Failure:
RefusedError if more is subtracted than was added, or if a count would exceed 64 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import RefusedError, UserError
from spamnb.model.events import Ints
from spamnb.model.smoothing import Floats

Wholes = NDArray[np.object_]
"""arrays of Python integers, which have no maximum"""

COUNT_ONE = 1 << 32
"""One case in units of counts. Integer and dyadic weights are exact, others to 10^-10."""
COUNT_MAX = 1 << 62
FLOAT_BITS = 1126
"""Every float64 is a multiple of 2^-1126: frexp's smallest exponent is -1073, minus 53 bits. Sums
in this unit are exact for numbers of any size."""
ROWS = 1 << 13
"""Cases that `Moments` sums in one step, and the bits of the numbers that it multiplies: the sum of
2^13 products of two numbers of 20 bits, or of three of 13, is at most 2^53, so exact in float64."""
TWO_FACTORS, THREE_FACTORS = 20, 13


class Sums(Protocol):
    """Interface of the three kinds of sums."""

    @property
    def weight(self) -> float:
        """Sum of the weights of the cases."""

    @property
    def empty(self) -> bool:
        """Whether there are no cases."""

    def plus(self, other: Self) -> Self:
        """Return the sum of both."""

    def negated(self) -> Self:
        """Return the negative: adding it subtracts these sums."""


def never_learnt() -> RefusedError:
    """Return the error for subtracting more than was added."""
    return RefusedError(
        "more would be forgotten than was learnt",
        hint="forget only what was learnt, with the same class and weight",
    )


def _counted(amounts: Floats) -> Ints:
    """Convert amounts to units of counts, each rounded once."""
    units = np.rint(amounts * COUNT_ONE)
    if not np.abs(units).sum() < COUNT_MAX:
        raise RefusedError("a count would exceed 64 bits", hint="use smaller weights or numbers")
    return units.astype(np.int64)


def is_missing(value: object) -> bool:
    """Whether a value is None or not a number; other values are never compared."""
    return value is None or (isinstance(value, float) and value != value)  # noqa: PLR0124


def _totals(values: NDArray[Any], units: Ints) -> dict[Any, int]:
    """The sum of the units of each distinct value of [M]."""
    totals: dict[Any, int] = {}
    if len(units) and (units == units[0]).all():
        if values.dtype == object:
            totals = Counter(values.tolist())
        else:
            distinct, times = np.unique(values, return_counts=True)
            totals = dict(zip(distinct.tolist(), times.tolist(), strict=True))
        return {value: n * int(units[0]) for value, n in totals.items()}
    for value, unit in zip(values.tolist(), units.tolist(), strict=True):
        totals[value] = totals.get(value, 0) + unit
    return totals


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of columns, and the number of cases."""

    cases: int
    counts: Ints
    """[F] in units of counts, as `cases`"""

    @classmethod
    def of(cls, X: Floats, weights: Floats) -> Tally:
        """Sum the columns of the cases X [M, F]."""
        counts = _counted(X * weights[:, None]).sum(axis=0)
        return cls(int(_counted(weights).sum()), counts)

    @property
    def weight(self) -> float:
        return self.cases / COUNT_ONE

    @property
    def empty(self) -> bool:
        return self.cases == 0

    def plus(self, other: Tally) -> Tally:
        cases, counts = self.cases + other.cases, self.counts + other.counts
        if cases < 0 or (counts < 0).any() or (cases == 0 and counts.any()):
            raise never_learnt()
        if max(cases, int(counts.max(initial=0))) > COUNT_MAX:
            raise RefusedError("a count would exceed 64 bits", hint="use smaller weights")
        return Tally(cases, counts)

    def negated(self) -> Tally:
        return Tally(-self.cases, -self.counts)


@dataclass(frozen=True, slots=True)
class NamedCounts:
    """Counts of hashable keys, and the number of cases; keys with a count of 0 are removed."""

    cases: int = 0
    counts: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def of(cls, cases: Iterable[Iterable[Hashable]], weights: Floats) -> NamedCounts:
        """Count the keys of each case."""
        units, counts = _counted(weights), dict[Any, int]()
        for keys, unit in zip(cases, units.tolist(), strict=True):
            for key in keys:
                counts[key] = counts.get(key, 0) + unit
        return cls(int(units.sum()), counts)

    @classmethod
    def of_columns(cls, cases: NDArray[Any], weights: Floats) -> NamedCounts:
        """Count the values of each column of the cases [M, d], as (column, value)."""
        units, counts = _counted(weights), dict[Any, int]()
        for j in range(cases.shape[1]):
            try:
                found = _totals(cases[:, j], units)
            except TypeError as error:
                raise UserError(f"column {j} has a value that is no key: {error}") from error
            counts |= {(j, value): n for value, n in found.items() if not is_missing(value)}
        return cls(int(units.sum()), counts)

    @property
    def weight(self) -> float:
        return self.cases / COUNT_ONE

    @property
    def empty(self) -> bool:
        return self.cases == 0

    def plus(self, other: NamedCounts) -> NamedCounts:
        counts = dict(self.counts)
        for key, count in other.counts.items():
            total = counts.pop(key, 0) + count
            if total < 0:
                raise never_learnt()
            if total:
                counts[key] = total
        cases = self.cases + other.cases
        if cases < 0 or (cases == 0 and counts):
            raise never_learnt()
        return NamedCounts(cases, counts)

    def negated(self) -> NamedCounts:
        return NamedCounts(-self.cases, {key: -count for key, count in self.counts.items()})


@dataclass(frozen=True, slots=True)
class Moments:
    """Weighted sums of 1, x and x x, from which mean and (co)variance are computed.

    A running mean (Welford's) rounds at every step, so forgetting would leave rounding errors.
    These sums are integers; mean and variance are quotients of them, rounded once.
    """

    ones: int
    """in units of 2^-1126"""
    firsts: Wholes
    """[d], in units of 2^-2252"""
    seconds: Wholes
    """[d] of squares or [d, d] of products, in units of 2^-3378"""

    @classmethod
    def of(cls, X: Floats, weights: Floats, *, products: bool = False) -> Moments:
        """Sum over the cases X [M, d]; `products` includes products of different columns."""
        # An equal weight is a factor of the sums: then two numbers are multiplied, not three.
        equal = len(X) > 0 and bool((weights == weights[0]).all())
        ones, d = 0, X.shape[1]
        firsts, seconds = _zeros(d), _zeros(d, d) if products else _zeros(d)
        for start in range(0, len(X), ROWS):
            rows = slice(start, start + ROWS)
            v = np.ones((1, len(X[rows]))) if equal else weights[None, rows]
            parts, light = _split(v, 1 if equal else THREE_FACTORS)
            x, low = _split(X[rows].T, TWO_FACTORS if equal else THREE_FACTORS)
            low = low + FLOAT_BITS
            for heavy, shift in zip(parts[0], light[0] + FLOAT_BITS, strict=True):
                vx = heavy * x
                ones += int(heavy.sum()) << shift
                firsts = firsts + (_whole(vx.sum(axis=2)) << low + shift).sum(axis=1)
                seconds = seconds + _second_sums(vx, x, low + shift, low, products=products)
        if equal:
            above, below = float(weights[0]).as_integer_ratio()
            return cls(ones * above // below, firsts * above // below, seconds * above // below)
        return cls(ones, firsts, seconds)

    @property
    def weight(self) -> float:
        return self.ones / (1 << FLOAT_BITS)

    @property
    def empty(self) -> bool:
        return self.ones == 0

    def plus(self, other: Moments) -> Moments:
        ones, firsts = self.ones + other.ones, self.firsts + other.firsts
        seconds = self.seconds + other.seconds
        squares = np.diagonal(seconds) if seconds.ndim == 2 else seconds
        if ones < 0 or (squares * ones < firsts * firsts).any() or (ones == 0 and squares.any()):
            raise never_learnt()
        return Moments(ones, firsts, seconds)

    def negated(self) -> Moments:
        return Moments(-self.ones, -self.firsts, -self.seconds)

    def mean(self) -> Floats:
        """Return the mean [d], rounded once."""
        return _divided(self.firsts, self.ones << FLOAT_BITS)

    def scatter(self) -> Floats:
        """Return the sum of (x - mean)(x - mean) in the shape of `seconds`, rounded once."""
        return _divided(self._spread(), self.ones << 3 * FLOAT_BITS)

    def variance(self, ddof: int = 0) -> Floats:
        """Return scatter / (cases - ddof); zeros if that divisor is not above 0.

        ddof = 0 gives the population variance, ddof = 1 the sample variance.
        """
        below = self.ones - (ddof << FLOAT_BITS)
        if below <= 0:
            return np.zeros(self.seconds.shape)
        return _divided(self._spread(), self.ones * below << 2 * FLOAT_BITS)

    def _spread(self) -> Wholes:
        """Scatter times the number of cases, in units of 2^-4504."""
        square = self.seconds.ndim == 2
        crossed = np.outer(self.firsts, self.firsts) if square else self.firsts * self.firsts
        return np.asarray(self.seconds * self.ones - crossed, object)


def _split(values: Floats, bits: int) -> tuple[Floats, Wholes]:
    """Split numbers [d, n] into sums of integers of few bits, exactly (Ozaki et al., 2012).

    Returns integers [d, S, n] of at most `bits` bits in float64, and their exponents [d, S]: the
    sum over S of integers * 2^exponent is the numbers.
    """
    parts, exponents = [], []
    while (top := np.abs(values).max(axis=1, initial=0.0)).any():
        exponent = np.frexp(top)[1] - bits
        part = np.rint(np.ldexp(values, -exponent[:, None]))
        values = values - np.ldexp(part, exponent[:, None])
        parts.append(part)
        exponents.append(exponent)
    if not parts:
        return np.zeros((len(values), 0, values.shape[1])), _zeros(len(values), 0)
    return np.stack(parts, axis=1), np.stack(exponents, axis=1).astype(object)


def _second_sums(a: Floats, b: Floats, low: Wholes, base: Wholes, *, products: bool) -> Wholes:
    """Sums of the products of split numbers [d, S, n]: [d] of equal columns, or [d, d] of all."""
    d, S, n = a.shape
    if products:
        crossed = _whole(a.reshape(d * S, n) @ b.reshape(d * S, n).T)
        crossed = crossed << (low.reshape(-1, 1) + base.reshape(-1))
        return np.asarray(crossed.reshape(d, S, d, S).sum(axis=(1, 3)), object)
    squares = _whole(a @ b.transpose(0, 2, 1)) << (low[:, :, None] + base[:, None, :])
    return np.asarray(squares.sum(axis=(1, 2)), object)


def _whole(values: Floats) -> Wholes:
    return np.asarray(values.astype(np.int64), object)


def _zeros(*shape: int) -> Wholes:
    return np.full(shape, 0, object)


def _divided(above: Wholes, below: int) -> Floats:
    """Quotients of integers of any size, each rounded once."""
    return np.asarray(above / below, np.float64)
