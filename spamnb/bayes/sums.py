"""Exact sums over the cases of one class, which can be added and subtracted.

`Tally` counts columns, `NamedCounts` counts hashable keys (values, pairs of values), `Moments` sums
numbers and their products. Must not know classes, priors or formulas. Invariants: every sum is an
integer, so sums commute: learning and forgetting in any order restores every number, and merging is
addition. A count is in units of 2^-32, and the weight of each case is rounded once to this unit;
moments are never rounded. Instances are frozen, so a refused change changes nothing. Failure:
RefusedError if more is subtracted than was added, or if a count would exceed 64 bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ints
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.errors import RefusedError

Wholes = NDArray[np.object_]
"""arrays of Python integers, which have no maximum"""

COUNT_ONE = 1 << 32
"""One case in units of counts. Integer and dyadic weights are exact, others to 10^-10."""
COUNT_MAX = 1 << 62
FLOAT_BITS = 1126
"""Every float64 is a multiple of 2^-1126: frexp's smallest exponent is -1073, minus 53 bits. Sums
in this unit are exact for numbers of any size."""


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


def _never_learnt() -> RefusedError:
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
            raise _never_learnt()
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
                raise _never_learnt()
            if total:
                counts[key] = total
        cases = self.cases + other.cases
        if cases < 0 or (cases == 0 and counts):
            raise _never_learnt()
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
        x, low = _aligned(X)
        v, light = _aligned(weights)
        vx = x * v[:, None]
        seconds = vx.T @ x if products else (vx * x).sum(axis=0)
        return cls(
            sum(v.tolist()) << (light + FLOAT_BITS),
            np.asarray(vx.sum(axis=0) << (light + low + 2 * FLOAT_BITS), object),
            np.asarray(seconds << (light + 2 * low + 3 * FLOAT_BITS), object),
        )

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
            raise _never_learnt()
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


def _aligned(values: Floats) -> tuple[NDArray[Any], int]:
    """Integers and a common exponent: values = integers * 2^exponent, exactly."""
    mantissas, exponents = np.frexp(values)
    low = int(exponents.min(initial=0, where=values != 0))
    whole = (mantissas * 2.0**53).astype(np.int64).astype(object)
    # The exponent of 0 is ignored: 0 stays 0 whatever the shift.
    shifts = np.where(values != 0, exponents - low, 0).astype(object)
    return np.asarray(whole << shifts, object), low - 53


def _divided(above: Wholes, below: int) -> Floats:
    """Quotients of integers of any size, each rounded once."""
    return np.asarray(above / below, np.float64)
