"""Rows that readers found lately, for the next ones, as long as the store does not change.

A new message has a hundred and thirty features that are not on the tray, each on a shelf of its
own: a walk down a tree and some lines of main memory, in all a fifth of what it takes to score the
message. After a thousand messages, half of these rows were read before.

A row that is kept belongs to one version of the store, the number of its last transaction, and is
none for any other. So it serves whoever scores more often than the model is taught, and costs the
others 30 us a message. An id has one slot, that of its low bits, and the last one there stays: a
table kept in order hit a tenth more and took four times as long as this one.

Must not know tables nor what a row means. Threads share it; each sees the rows of its snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from spamnb.core.model.events import Ids
from spamnb.store.rows.codec import Rows, unparted

SLOTS = 1 << 17
"""5.5 MB at two labels, once they are filled. Of 134 rows of a message, some 50 have to be looked
for with so many kept, 60 with half of them."""
MOST_ASKED = 8192
"""Who asks for more at once reads most shelves anyway, and would leave nothing to others."""


class RowCache:
    """Rows of one dtype. The first transaction has number 1: a slot of version 0 holds nothing."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._turn = threading.Lock()
        # Side by side: of each id that is looked for, one or two lines of main memory are read.
        self._slots = np.zeros(SLOTS, [("version", "<i8"), ("sought", "<u8"), ("row", dtype)])

    def find(self, version: int, ids: Ids, look: Callable[[Ids], Rows]) -> Rows:
        """A row for each of these distinct ids; `look` gives those that are not kept."""
        if len(ids) > MOST_ASKED:
            return look(ids)
        slots = (ids & np.uint64(SLOTS - 1)).astype(np.intp)
        with self._turn:
            kept = unparted(self._slots).take(slots).view(self._slots.dtype)
        rows = unparted(kept["row"])
        at = ((kept["sought"] != ids) | (kept["version"] != version)).nonzero()[0]
        if len(at):
            sought = ids.take(at)
            rows[at] = unparted(look(sought))
            kept["version"], kept["sought"] = version, ids
            with self._turn:
                unparted(self._slots)[slots.take(at)] = unparted(kept).take(at)
        return kept["row"]
