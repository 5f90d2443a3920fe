"""How fast a client sends its message, and what the message costs in memory meanwhile. Pure."""

from __future__ import annotations

MIN_RATE_BYTES_S = 500
"""What a client must send while resources are short: as Postfix's smtpd_min_data_rate."""


class DataRate:
    """The rate of one message."""

    __slots__ = ("_checked_at", "_checked_size", "_grace_s", "_slow_after", "began")

    def __init__(self, now: float, grace_s: float) -> None:
        self.began = self._checked_at = now
        self._checked_size = 0
        self._grace_s = grace_s
        self._slow_after = now + grace_s
        """the client counts as slow after this time; each byte received moves it"""

    def is_slow(self, now: float, size: int, *, waiting: bool) -> bool:
        """Whether the client sends below the minimum rate; called at each deadline check.

        `waiting` says that the client must send and is being read; other time does not count.
        Bytes received above that rate count for the grace period at most, so a client that has sent
        a megabyte in one burst must continue.
        """
        paused_s = 0.0 if waiting else now - self._checked_at
        self._slow_after += (size - self._checked_size) / MIN_RATE_BYTES_S + paused_s
        self._slow_after = min(self._slow_after, now + self._grace_s)
        self._checked_at, self._checked_size = now, size
        return waiting and now > self._slow_after

    def memory_cost(self, now: float, stored: int) -> float:
        """Stored bytes times the seconds that the message has taken beyond the grace period."""
        return stored * max(0.0, now - self.began - self._grace_s)

    def of(self, size: int, now: float) -> float:
        """Bytes a second since the message began."""
        return size / max(now - self.began, 1e-3)
