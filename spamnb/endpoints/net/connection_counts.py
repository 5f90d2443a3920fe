"""Connections counted by key over all processes of a daemon, in shared memory.

Each process has a row of cells and writes only that one; a count is the sum over all rows. A row is
cleared when its process ends, so `kill -9` leaves no connection counted. Keys are hashed with a
secret to one cell in each half of a row, and the smaller sum is the count. It is never too small,
and too large only if other keys use both cells. Must not know what is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

CELLS = 8192
"""in each half of a row. 80 addresses with 50 connections each use 1 % of it, so the count of
another address is too high in one of 10,000 cases; because of the secret a client cannot choose
this address"""
SECRET_BYTES = 16

Row = memoryview | list[int]


class ConnectionCounts:
    """The counts of this process and the others."""

    __slots__ = ("_own", "_rows", "_secret")

    def __init__(self, own: Row, rows: Sequence[Row], secret: bytes) -> None:
        self._own, self._rows, self._secret = own, rows, secret

    @classmethod
    def alone(cls) -> ConnectionCounts:
        """Counts for a single process."""
        row = [0] * (2 * CELLS)
        return cls(row, [row], b"")

    def add(self, key: str, by: int = 1) -> int:
        """Add to a key; return its new count over all processes.

        The process adds before it reads: if two processes add at once, at least one sees both.
        """
        first, second = self._cells(key)
        self._own[first] += by
        self._own[second] += by
        return self._read(first, second)

    def of(self, key: str) -> int:
        """The count of a key over all processes."""
        return self._read(*self._cells(key))

    def _cells(self, key: str) -> tuple[int, int]:
        found = int.from_bytes(blake2b(key.encode(), digest_size=8, key=self._secret).digest())
        return found % CELLS, CELLS + (found >> 32) % CELLS

    def _read(self, first: int, second: int) -> int:
        sums = [sum(row[cell] for row in self._rows) for cell in (first, second)]
        return min(sums)
