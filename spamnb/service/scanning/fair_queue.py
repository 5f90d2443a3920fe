"""A queue in which each client gets a fair share of the work.

    queue.put(client, item)     queue.take() -> item     queue.charge(client, cost)

The next item is that of the client that has cost least so far; items of one client keep their
order. So a client that sends a hundred items delays another client's item by one of its own, and a
client whose items cost more gets fewer turns. A client that comes anew begins at the cost of the
client that was served last, so that absence earns no credit (start-time fair queueing, Goyal 1996).
Pure; not for more than one thread.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")

MOST_REMEMBERED = 1024
"""clients without a waiting item whose cost is kept; a stranger can invent any number of them"""


class FairQueue(Generic[Item]):
    """Items that wait, by client."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}
        self._cost: dict[str, float] = {}
        self._floor = 0.0
        """the cost of the client that was served last, when it was served"""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, client: str, item: Item) -> None:
        """Add an item behind the others of its client."""
        self._of(client).append(item)

    def put_back(self, client: str, item: Item) -> None:
        """Add an item before the others of its client."""
        self._of(client).appendleft(item)

    def take(self) -> Item:
        """Take the next item; IndexError if none waits."""
        if not self._waiting:
            raise IndexError("nothing waits")
        client = min(self._waiting, key=self._cost.__getitem__)
        self._floor = max(self._floor, self._cost[client])
        item = self._waiting[client].popleft()
        self._removed(client)
        return item

    def remove(self, client: str, item: Item) -> bool:
        """Remove an item; False if it does not wait."""
        try:
            self._waiting[client].remove(item)
        except (KeyError, ValueError):
            return False
        self._removed(client)
        return True

    def charge(self, client: str, cost: float) -> None:
        """Account for work that was done for a client."""
        self._cost[client] = max(self._cost.get(client, 0.0), self._floor) + cost

    def _of(self, client: str) -> deque[Item]:
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._cost[client] = max(self._cost.get(client, 0.0), self._floor)
        self._length += 1
        return self._waiting[client]

    def _removed(self, client: str) -> None:
        self._length -= 1
        if not self._waiting[client]:
            del self._waiting[client]
            if len(self._cost) > MOST_REMEMBERED + len(self._waiting):
                self._cost = {name: self._cost[name] for name in self._waiting}
