"""The order of 64-bit ids, as fast on every processor.

`np.argsort` of 64-bit numbers uses the widest vectors there are, and on some processors these are
slow: 30,000 ids took 1.6 ms on one. Sixteen bits numpy sorts by counting, and it merges what is
nearly in order in one pass: together 0.6 ms, and 6.5 us for the 700 ids of a message, where it took
20. This way does not depend on the processor, and equal ids keep their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_FEW = 256
"""Below this, one sort is faster than two."""
_TOP = np.uint64(48)
"""Ids are hashes: by their upper 16 bits they are all but sorted."""


def order_of(ids: U64) -> NDArray[np.intp]:
    """Where the ids stand in sorted order, equal ones as they came."""
    if len(ids) < _FEW:
        return merged_order(ids)
    order = (ids >> _TOP).astype(np.uint16).argsort(kind="stable")
    return order.take(merged_order(ids.take(order)))


def merged_order(ids: U64) -> NDArray[np.intp]:
    """The same for ids of which long runs are in order: sorted sets, one after the other."""
    return ids.argsort(kind="stable")


def changes(line: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a line has a value that does not stand right before."""
    new = np.empty(len(line), np.bool_)
    new[:1] = True
    np.not_equal(line[1:], line[:-1], out=new[1:])
    return new


def place(line: U64, ids: U64) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """For each id its place in a sorted line, and whether it is there."""
    at = line.searchsorted(ids)
    if len(line) == 0:
        return at, np.zeros(len(ids), np.bool_)
    return at, line.take(at, mode="clip") == ids
