"""The memory that the connections of a process may use for messages.

It pauses and resumes readers, and ends the most costly messages. Must not know sockets.
"""

from __future__ import annotations

from typing import Protocol


class PausableReader(Protocol):
    """A connection that can stop reading for a time."""

    def pause_for_memory(self) -> None:
        """Stop reading."""

    def resume_after_memory(self) -> None:
        """Read again."""

    def memory_cost(self, now: float) -> float:
        """Bytes stored until the client has sent the rest, times the age of the message."""

    def shed(self) -> int:
        """End its message to free memory for others; returns the freed bytes."""


class MemoryBudget:
    """The message bytes that one process may store, in two shares.

    Untrusted clients may use all but the reserve. Trusted clients have the reserve and whatever
    else is free. So no number of untrusted clients can stop the relay from reading a trusted one.
    """

    __slots__ = ("has_room", "has_waiting", "limit_bytes", "shares", "unreserved_bytes", "used")

    def __init__(self, limit_bytes: int, reserved: float = 0.0) -> None:
        reserve = int(limit_bytes * reserved)
        self.limit_bytes = limit_bytes
        self.unreserved_bytes = limit_bytes - reserve
        """while the total is below this, neither share is exceeded"""
        self.used = 0
        self.has_room = True
        """whether any client may store more"""
        self.has_waiting = False
        """whether a reader may be paused"""
        self.shares = {
            True: MemoryShare(self, guaranteed=reserve, limit=limit_bytes),
            False: MemoryShare(self, guaranteed=0, limit=limit_bytes - reserve),
        }
        """whether a client is trusted -> its share"""

    def resume_waiting(self) -> None:
        """Resume the readers of each share that has room again."""
        still = [share.resume_waiting() for share in self.shares.values()]
        self.has_waiting = any(still)

    def rotate(self, now: float) -> None:
        """Rotate the paused readers of each share; called about once a second by each listener."""
        for share in self.shares.values():
            share.rotate(now)


class MemoryShare:
    """The memory share of one class of clients; above it reading pauses, nothing is rejected.

    While the share is exceeded, one reader (the head) still reads, or no message would ever finish
    and free its memory. A head that received little since the last `rotate` yields to the next
    reader. Small messages are always read: the connection limits bound their number. While readers
    are paused, a sixteenth of the share is freed each second: if the messages that end in that time
    free less, the messages with the highest cost (bytes times seconds) are ended. A message that
    arrives fast has a low cost at any size; one that stalls gets the highest.
    """

    LITTLE_BYTES = 32768
    SMALL_BYTES = 16384
    TURNOVER = 1 / 16
    TURN_S = 1.0

    __slots__ = (
        "_brought", "_given", "_head", "_large", "_pool", "_rotated_at", "_waiting", "guaranteed",
        "limit", "used",
    )  # fmt: skip

    def __init__(self, pool: MemoryBudget, guaranteed: int, limit: int) -> None:
        self._pool = pool
        self.guaranteed, self.limit = guaranteed, limit
        """guaranteed: bytes it may use whatever the other share uses; limit: bytes at which it
        is full"""
        self.used = self._given = self._brought = 0
        self._waiting: dict[PausableReader, None] = {}
        self._large: dict[PausableReader, None] = {}
        self._head: PausableReader | None = None
        self._rotated_at = 0.0

    def is_beyond(self, part: float = 1.0) -> bool:
        """Whether more than this part of the share is used."""
        pool = self._pool
        full = self.used > self.guaranteed and pool.used > pool.limit_bytes * part
        return full or self.used > self.limit * part

    def take(self, count: int, reader: PausableReader, size: int) -> None:
        """Account for bytes that a reader received; `size` is its message's total so far."""
        pool = self._pool
        self.used += count
        pool.used += count
        pool.has_room = pool.used <= pool.unreserved_bytes
        if size > self.SMALL_BYTES:
            self._large[reader] = None
            if not pool.has_room and self.is_beyond():
                self._over(reader, count)

    def give(self, count: int) -> None:
        """Account for freed bytes."""
        self.used -= count
        self._given += count
        pool = self._pool
        pool.used -= count
        pool.has_room = pool.used <= pool.unreserved_bytes
        if pool.has_waiting:
            pool.resume_waiting()

    def resume_waiting(self) -> bool:
        """Resume the paused readers if there is room; whether some are still paused."""
        if self._waiting and not self.is_beyond():
            self._head = None
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.resume_after_memory()
        return bool(self._waiting)

    def forget(self, reader: PausableReader) -> None:
        """Remove a reader that has ended its message or its connection."""
        self._large.pop(reader, None)
        if reader in self._waiting:
            del self._waiting[reader]
            reader.resume_after_memory()
        if reader is self._head:
            self._head = None
            self._next()

    def rotate(self, now: float) -> None:
        """Let the next paused reader read if the head received little; free memory if needed."""
        if self._waiting and self._brought < self.LITTLE_BYTES:
            if self._head is not None:
                self._wait(self._head)
            self._next()
        self._brought = 0
        if now - self._rotated_at >= self.TURN_S:
            if self._waiting:
                self._make_room(now, int(self.limit * self.TURNOVER) - self._given)
            self._rotated_at, self._given = now, 0

    def _make_room(self, now: float, wanted: int) -> None:
        """End the messages with the highest memory cost until so much is free."""
        worst = sorted(self._large, key=lambda reader: reader.memory_cost(now), reverse=True)
        for reader in worst:
            if wanted <= 0 or not self._waiting or reader.memory_cost(now) <= 0:
                return
            wanted -= reader.shed()

    def _over(self, reader: PausableReader, count: int) -> None:
        if self._head is None:
            self._head, self._brought = reader, self.LITTLE_BYTES
        if reader is self._head:
            self._brought += count
        else:
            self._wait(reader)

    def _wait(self, reader: PausableReader) -> None:
        self._waiting[reader] = None
        self._pool.has_waiting = True
        reader.pause_for_memory()

    def _next(self) -> None:
        self._head = next(iter(self._waiting), None)
        if self._head is not None:
            del self._waiting[self._head]
            self._brought = self.LITTLE_BYTES
            self._head.resume_after_memory()
