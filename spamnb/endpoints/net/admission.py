"""Admission of connections: a limit for all clients of a kind, and one for each of them."""

from __future__ import annotations

from collections import Counter
from typing import Literal

Full = Literal["", "all", "client"]
"""which limit is reached, if any"""


class OpenConnections:
    """Open connections by client, within one process. Not for use by several threads at once."""

    __slots__ = ("_by_client", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_client: Counter[str] = Counter()

    def full(self, client: str, most: int, each: int) -> Full:
        """Return the limit that one more connection of a client would exceed."""
        if self.total >= most:
            return "all"
        return "client" if self._by_client[client] >= each else ""

    def enter(self, client: str) -> None:
        """Count a connection."""
        self.total += 1
        self._by_client[client] += 1

    def leave(self, client: str) -> None:
        """Stop counting a connection."""
        self.total -= 1
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]
