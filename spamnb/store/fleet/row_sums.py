"""`RowSums`: sums over all values that events change; hosts compare their models by them. Pure.

    u64 rows | u64 texts | u64 persons | u64 dropped

Each change of a row updates the sums by the old and the new row, so they need no scan; see
`weights` for what is added. Each host drops persons when their labels are old in its own journal.
`persons` is the sum over all events, which is the same on all hosts; `dropped` is the part of this
sum that belongs to persons that this host has dropped.

Failure: inconsistent bytes raise StoreDamagedError.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from spamnb.errors import StoreDamagedError
from spamnb.store.rows.id_codec import Buffer

_SUMS = struct.Struct("<4Q")
MASK = (1 << 64) - 1


class RowSums(NamedTuple):
    """The sums of one model, modulo 2^64."""

    rows: int = 0
    texts: int = 0
    persons: int = 0
    """of all events"""
    dropped: int = 0
    """of the persons that this host has dropped"""

    def plus(self, rows: int = 0, texts: int = 0, persons: int = 0, dropped: int = 0) -> RowSums:
        """Return the sums after a change."""
        changes = rows, texts, persons, dropped
        return RowSums(*((a + b) & MASK for a, b in zip(self, changes, strict=True)))

    def same(self, scanned: RowSums) -> bool:
        """Return whether a scan of this host's rows gives the same sums."""
        return self.plus(persons=-self.dropped)[:3] == scanned[:3]

    def encode(self) -> bytes:
        """Return the sums as bytes."""
        return _SUMS.pack(*self)

    @staticmethod
    def decode(data: Buffer) -> RowSums:
        """Return the sums that these bytes encode."""
        try:
            return RowSums(*_SUMS.unpack(data))
        except struct.error as error:
            raise StoreDamagedError("the sums of the rows cannot be read") from error
