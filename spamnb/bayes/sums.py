"""What is kept of the cases of one class: sums that can be added and taken away exactly.

Three kinds, for three kinds of facts: a `Tally` counts columns (words), a `NamedCounts` counts
whatever can be named (values, pairs of values), `Moments` sum numbers and their products. Must not
know classes, priors or formulas. Invariants: every sum is an integer, so sums commute: learning and
forgetting in any order restores every number, and merging is adding. A count is in units of 2^-32
and each case's share of it is rounded once; moments are never rounded at all. The values are
frozen, so a refused change has changed nothing. Fails with RefusedError when more is taken away
than is there, or a count would leave 64 bits.
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
"""Python integers, which have no largest"""

COUNT_ONE = 1 << 32
"""One case, in the unit of counts. Whole and dyadic weights are exact; others are off by 10^-10."""
COUNT_MOST = 1 << 62
FLOAT_BITS = 1126
"""Every float64 is a whole number of 2^-1126: frexp's exponent goes down to -1073, its 53 bits
further. A sum of numbers in this unit is exact whatever their sizes."""


class Sums(Protocol):
    """What the classifiers ask of any of the three."""

    @property
    def weight(self) -> float:
        """How many cases there are, by weight."""

    @property
    def nothing(self) -> bool:
        """Whether no case is left."""

    def plus(self, other: Self) -> Self:
        """Both together."""

    def negated(self) -> Self:
        """What takes this away when it is added."""


def _never_learnt() -> RefusedError:
    return RefusedError(
        "more would be forgotten than was learnt",
        hint="forget only what was learnt, with the same class and weight",
    )


def _counted(amounts: Floats) -> Ints:
    """Amounts in the unit of counts, each rounded once."""
    units = np.rint(amounts * COUNT_ONE)
    if not np.abs(units).sum() < COUNT_MOST:
        raise RefusedError("a count would leave 64 bits", hint="use smaller weights or numbers")
    return units.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Tally:
    """How often each column was seen, and in how many cases."""

    cases: int
    counts: Ints
    """[F]"""

    @classmethod
    def of(cls, X: Floats, weights: Floats) -> Tally:
        """The columns of the cases X [M, F]."""
        counts = _counted(X * weights[:, None]).sum(axis=0)
        return cls(int(_counted(weights).sum()), counts)

    @property
    def weight(self) -> float:
        """How many cases there are, by weight."""
        return self.cases / COUNT_ONE

    @property
    def nothing(self) -> bool:
        """Whether no case is left."""
        return self.cases == 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        cases, counts = self.cases + other.cases, self.counts + other.counts
        if cases < 0 or (counts < 0).any() or (cases == 0 and counts.any()):
            raise _never_learnt()
        if max(cases, int(counts.max(initial=0))) > COUNT_MOST:
            raise RefusedError("a count would leave 64 bits", hint="use smaller weights")
        return Tally(cases, counts)

    def negated(self) -> Tally:
        """What takes this away when it is added."""
        return Tally(-self.cases, -self.counts)


@dataclass(frozen=True, slots=True)
class NamedCounts:
    """How often each named thing was seen, and in how many cases; what is at zero has no name."""

    cases: int = 0
    counts: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def of(cls, cases: Iterable[Iterable[Hashable]], weights: Floats) -> NamedCounts:
        """The things that each case shows."""
        units, counts = _counted(weights), dict[Any, int]()
        for shown, unit in zip(cases, units.tolist(), strict=True):
            for thing in shown:
                counts[thing] = counts.get(thing, 0) + unit
        return cls(int(units.sum()), counts)

    @property
    def weight(self) -> float:
        """How many cases there are, by weight."""
        return self.cases / COUNT_ONE

    @property
    def nothing(self) -> bool:
        """Whether no case is left."""
        return self.cases == 0

    def plus(self, other: NamedCounts) -> NamedCounts:
        """Both together."""
        counts = dict(self.counts)
        for thing, count in other.counts.items():
            total = counts.pop(thing, 0) + count
            if total < 0:
                raise _never_learnt()
            if total:
                counts[thing] = total
        cases = self.cases + other.cases
        if cases < 0 or (cases == 0 and counts):
            raise _never_learnt()
        return NamedCounts(cases, counts)

    def negated(self) -> NamedCounts:
        """What takes this away when it is added."""
        return NamedCounts(-self.cases, {thing: -count for thing, count in self.counts.items()})

    def share(self, thing: Hashable) -> float:
        """How often one thing was seen."""
        return self.counts.get(thing, 0) / COUNT_ONE


@dataclass(frozen=True, slots=True)
class Moments:
    """The sums that mean and (co)variance are made of: of 1, x and x x, weighted.

    A running mean (Welford's) rounds at every step, so that forgetting leaves dust. These sums are
    whole numbers; mean and variance are fractions of them, and each is rounded once, when asked.
    """

    ones: int
    """in units of 2^-1126"""
    firsts: Wholes
    """[d], in units of 2^-2252"""
    seconds: Wholes
    """[d] of squares or [d, d] of products, in units of 2^-3378"""

    @classmethod
    def of(cls, X: Floats, weights: Floats, *, products: bool = False) -> Moments:
        """The sums over the cases X [M, d]; products of different columns only where asked for."""
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
        """How many cases there are, by weight."""
        return self.ones / (1 << FLOAT_BITS)

    @property
    def nothing(self) -> bool:
        """Whether no case is left."""
        return self.ones == 0

    def plus(self, other: Moments) -> Moments:
        """Both together."""
        ones, firsts = self.ones + other.ones, self.firsts + other.firsts
        seconds = self.seconds + other.seconds
        squares = np.diagonal(seconds) if seconds.ndim == 2 else seconds
        if ones < 0 or (squares * ones < firsts * firsts).any() or (ones == 0 and squares.any()):
            raise _never_learnt()
        return Moments(ones, firsts, seconds)

    def negated(self) -> Moments:
        """What takes this away when it is added."""
        return Moments(-self.ones, -self.firsts, -self.seconds)

    def mean(self) -> Floats:
        """[d], rounded once."""
        return _divided(self.firsts, self.ones << FLOAT_BITS)

    def scatter(self) -> Floats:
        """Sum of (x - mean)(x - mean), in the shape of `seconds`, rounded once."""
        return _divided(self._spread(), self.ones << 3 * FLOAT_BITS)

    def variance(self, ddof: int = 0) -> Floats:
        """Scatter over the number of cases, less `ddof`; nothing where that number is not above 0.

        With ddof = 0 it is the population's (as if these were all cases), with 1 the sample's.
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
    """Integers and an exponent for all of them: values = integers * 2^exponent, exactly."""
    mantissas, exponents = np.frexp(values)
    low = int(exponents.min(initial=0, where=values != 0))
    whole = (mantissas * 2.0**53).astype(np.int64).astype(object)
    # A zero's exponent is 0 and may lie below the others; shifted by anything it stays zero.
    shifts = np.where(values != 0, exponents - low, 0).astype(object)
    return np.asarray(whole << shifts, object), low - 53


def _divided(above: Wholes, below: int) -> Floats:
    """Quotients of integers of any length, each correctly rounded."""
    return np.asarray(above / below, np.float64)
