"""A queue in which each client gets a fair share of the work.

    queue.put(client, item)     queue.take() -> item     queue.charge(client, cost)

The next item is that of the client with the lowest cost so far; items of one client keep their
order. So a client that sends a hundred items delays another client's item by one of its own, and a
client with costlier items gets fewer turns. A new client starts at the cost of the client that was
served last, so a client gets no credit for idle time (start-time fair queueing, Goyal 1996). Pure;
for one thread only.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")

MAX_REMEMBERED = 1024
"""number of clients without a queued item to remember; a sender can invent any number"""


class FairQueue(Generic[Item]):
    """Queued items, by client."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}
        self._cost: dict[str, float] = {}
        self._served_cost = 0.0
        """the cost of the client that was served last, at that time"""
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
        """Remove and return the next item; IndexError if the queue is empty."""
        if not self._waiting:
            raise IndexError("the queue is empty")
        client = min(self._waiting, key=self._cost.__getitem__)
        self._served_cost = max(self._served_cost, self._cost[client])
        item = self._waiting[client].popleft()
        self._removed(client)
        return item

    def remove(self, client: str, item: Item) -> bool:
        """Remove an item; False if it is not queued."""
        try:
            self._waiting[client].remove(item)
        except (KeyError, ValueError):
            return False
        self._removed(client)
        return True

    def charge(self, client: str, cost: float) -> None:
        """Add the cost of finished work to a client."""
        self._cost[client] = max(self._cost.get(client, 0.0), self._served_cost) + cost

    def _of(self, client: str) -> deque[Item]:
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._cost[client] = max(self._cost.get(client, 0.0), self._served_cost)
        self._length += 1
        return self._waiting[client]

    def _removed(self, client: str) -> None:
        self._length -= 1
        if not self._waiting[client]:
            del self._waiting[client]
            if len(self._cost) > MAX_REMEMBERED + len(self._waiting):
                self._cost = {name: self._cost[name] for name in self._waiting}
