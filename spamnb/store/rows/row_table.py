"""`RowTable`: rows in memory, in a hash table of numpy arrays. Pure.

Ids are uniform hashes, so their top bits are the hash. `heads` has, for each value of the top bits,
the place of the newest entry; `next` has, for each entry, the place of the next one with the same
top bits; place 0 is the end. All ids of a look-up go from entry to entry together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ids
from spamnb.core.model.id_arrays import changes, order_of
from spamnb.store.rows.codec import Rows, RowSet, opaque_rows


class RowTable:
    """Rows by id, at most `room` of them. Not for several threads at once."""

    def __init__(self, room: int, dtype: np.dtype[np.void]) -> None:
        bits = room.bit_length()
        self._shift = np.uint64(64 - bits)
        self._heads = np.zeros(1 << bits, np.int32)
        self._next = np.zeros(room + 1, np.int32)
        self._ids = np.zeros(room + 1, np.uint64)
        self._rows = np.zeros(room + 1, dtype)
        self._size = 1

    def put(self, new: RowSet) -> bool:
        """Replace or add rows; False, and nothing has changed, if there is no room."""
        at = self._find(new.ids)
        others = (at == 0).nonzero()[0]
        start, stop = self._size, self._size + len(others)
        if stop > len(self._ids):
            return False
        at[others] = np.arange(start, stop)
        opaque_rows(self._rows)[at] = opaque_rows(new.rows)
        self._ids[start:stop] = new.ids.take(others)
        hashes = self._hashes(self._ids[start:stop])
        places, first = at.take(others), changes(hashes)
        self._next[start:stop] = np.where(first, self._heads.take(hashes), places - 1)
        last = np.roll(first, -1).nonzero()[0]
        self._heads[hashes.take(last)] = places.take(last)
        self._size = stop
        return True

    def fill(self, ids: Ids, out: Rows) -> NDArray[np.intp]:
        """Write the rows of these ids that are here into `out`; return the indexes of the rest."""
        if self._size == 1:
            return np.arange(len(ids))
        at = self._find(ids)
        here = at.nonzero()[0]
        opaque_rows(out)[here] = opaque_rows(self._rows).take(at.take(here))
        others: NDArray[np.intp] = (at == 0).nonzero()[0]
        return others

    def between(self, first: int, last: int) -> RowSet:
        """The rows of the ids from `first` to `last`."""
        ends = np.array([first, last], np.uint64)
        low, high = self._hashes(ends).tolist()
        at, found = self._heads[low : high + 1], []
        while len(at := at[at != 0]):
            found.append(at)
            at = self._next.take(at)
        at = np.concatenate([self._heads[:0], *found])
        ids = self._ids.take(at)
        at = at[(ids >= ends[0]) & (ids <= ends[1])]
        return RowSet(self._ids, self._rows).take(at.take(order_of(self._ids.take(at))))

    def _hashes(self, ids: Ids) -> NDArray[np.int64]:
        return (ids >> self._shift).view(np.int64)

    def _find(self, ids: Ids) -> NDArray[np.int32]:
        """The place of each id; 0 if it is not here."""
        at = self._heads.take(self._hashes(ids))
        rest = (self._ids.take(at) != ids).nonzero()[0]
        while len(rest):
            next_ = self._next.take(at.take(rest))
            at[rest] = next_
            rest = rest[(next_ != 0) & (self._ids.take(next_) != ids.take(rest))]
        return at
