"""A batch of messages as rows of gathered counts, and sums over it.

Holds the rows of each message's features; must not know what the features are. Invariants: message
m owns `rows[offsets[m]:offsets[m + 1]]`, its rows are distinct, and sums are added in the order of
the rows, so a message scores the same alone and in any batch. Fails with BugError when the
offsets do not cover the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ints
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.errors import BugError


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages as flat rows, with the start of each message and the count of each row."""

    rows: Ints
    """[E] rows of the records, message after message"""
    offsets: Ints
    """[M + 1] where each message starts, and the end"""
    times: NDArray[np.uint32] | None = None
    """[E] occurrences, for models that count them; None counts presence"""

    def __post_init__(self) -> None:
        ends = self.offsets
        if not len(ends) or ends[0] != 0 or ends[-1] != len(self.rows) or (np.diff(ends) < 0).any():
            raise BugError("the offsets of a batch must rise from 0 to the number of its rows")
        if self.times is not None and len(self.times) != len(self.rows):
            raise BugError(f"{len(self.times)} occurrences for {len(self.rows)} rows")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def owners(self) -> Ints:
        """[E] the message of each entry."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))


def known(n: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """[F] whether any message contains the feature; the event models ignore all others."""
    return np.asarray(n.any(axis=1))


def sums(batch: Batch, values: Floats) -> Floats:
    """[M, K] of values[F, K]: for each message and label, the sum over its entries.

    bincount adds one by one in the order of the entries. add.reduceat adds in pairs, which is more
    exact, but gives a neighbour's value for an empty message.
    """
    owners, found = batch.owners(), np.empty((len(batch), values.shape[1]))
    for k in range(values.shape[1]):
        entries = values[batch.rows, k]
        if batch.times is not None:
            # Not a plain product: an entry that occurs 0 times would turn -inf into nan.
            entries = np.multiply(
                entries, batch.times, where=batch.times > 0, out=np.zeros(len(entries))
            )
        found[:, k] = np.bincount(owners, weights=entries, minlength=len(batch))
    return found


class ClassPair(NamedTuple):
    """The two labels that a share of evidence supports and opposes, per message or for all."""

    s: int | Ints
    h: int | Ints

    def differences(self, values: Floats, owners: Ints, rows: Ints) -> Floats:
        """values[row, s] - values[row, h] of each entry, with the pair of its own message."""
        s, h = _each(self.s, owners), _each(self.h, owners)
        shares: Floats = values[rows, s] - values[rows, h]
        return shares

    def bias(self, constants: Floats, messages: int) -> Floats:
        """[M] the difference of the constants of the two labels."""
        every = np.arange(messages, dtype=np.int64)
        bias: Floats = constants[_each(self.s, every)] - constants[_each(self.h, every)]
        return bias


def _each(side: int | Ints, owners: Ints) -> Ints:
    return np.full(len(owners), side, np.int64) if isinstance(side, int) else side[owners]
