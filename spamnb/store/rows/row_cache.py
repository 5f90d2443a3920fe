"""A cache of rows that were read lately; valid as long as the store does not change.

A new message has a hundred and thirty features that are not hot rows, each in a bucket of its own:
a walk down a tree and some lines of main memory, in all a fifth of the time to score the message.
After a thousand messages, half of these rows were read before.

A cached row belongs to one version of the store, the number of its last transaction, and is not
used for any other. So the cache helps where messages are scored more often than learnt, and
elsewhere costs 30 us a message. An id has one slot, chosen by its low bits, and the last row stored
there stays: a table kept in order hit a tenth more and took four times as long.

Must not know tables nor what a row means. Threads share it; each sees the rows of its snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from spamnb.core.model.events import Ids
from spamnb.store.rows.codec import Rows, opaque_rows

SLOTS = 1 << 17
"""5.5 MB at two labels, once the slots are filled. Of 134 rows of a message, some 50 are not in the
cache with so many slots, 60 with half of them."""
MAX_REQUEST = 8192
"""A request for more ids reads most buckets anyway, and would replace all cached rows."""


class RowCache:
    """Rows of one dtype. The first transaction has number 1: a slot of version 0 holds nothing."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._lock = threading.Lock()
        # Stored side by side: a lookup of one id reads one or two lines of main memory.
        self._slots = np.zeros(SLOTS, [("version", "<i8"), ("sought", "<u8"), ("row", dtype)])

    def find(self, version: int, ids: Ids, look: Callable[[Ids], Rows]) -> Rows:
        """A row for each of these distinct ids; `look` reads those that are not cached."""
        if len(ids) > MAX_REQUEST:
            return look(ids)
        slots = (ids & np.uint64(SLOTS - 1)).astype(np.intp)
        with self._lock:
            kept = opaque_rows(self._slots).take(slots).view(self._slots.dtype)
        rows = opaque_rows(kept["row"])
        at = ((kept["sought"] != ids) | (kept["version"] != version)).nonzero()[0]
        if len(at):
            sought = ids.take(at)
            rows[at] = opaque_rows(look(sought))
            kept["version"], kept["sought"] = version, ids
            with self._lock:
                opaque_rows(self._slots)[slots.take(at)] = opaque_rows(kept).take(at)
        return kept["row"]
