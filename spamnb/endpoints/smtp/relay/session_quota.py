"""What a client may use until its next message: commands, and time.

A client that is not trusted holds a connection to the next hop from its hello on, so what leads to
no message is bounded: by the number of commands, and by the time from the connection or the last
message that was accepted. Neither another command nor a refused message renews it. The time that
the next hop takes for its replies, and a message for its transfer, is not the client's. Trusted
clients may keep a connection: they are bound by the time between commands alone. Pure.
"""

from __future__ import annotations

from spamnb.endpoints.smtp.relay.params import Limits, Timeouts


class SessionQuota:
    """The state of one session's quota."""

    __slots__ = ("_paused_at", "commands", "is_free", "mailed", "met", "since")

    def __init__(self, now: float) -> None:
        self.met = self.since = now
        """when the client connected, or had the answer to its first hello; and when it last had a
        message accepted"""
        self._paused_at = 0.0
        self.commands = 0
        """since then; accepted recipients are not among them"""
        self.mailed = False
        """whether a MAIL came"""
        self.is_free = True
        """whether the client is trusted"""

    def spend(self, limits: Limits) -> bool:
        """Count a command; whether there was one left."""
        self.commands += 1
        return self.commands <= limits.commands

    def pause(self, now: float) -> None:
        """The client waits for the next hop, or sends a message."""
        self._paused_at = now

    def due(self, now: float, times: Timeouts) -> float:
        """The client's turn: when it must have sent a command."""
        if self._paused_at:
            self.since += now - self._paused_at
            self._paused_at = 0.0
        if not self.mailed:
            return self.met + times.first_mail_s
        command = now + times.command_s
        return command if self.is_free else min(command, self.since + times.message_s)

    def reset(self, now: float) -> None:
        """A message was accepted."""
        self.since, self._paused_at, self.commands = now, 0.0, 0

    def is_idle(self, now: float, times: Timeouts) -> bool:
        """Whether the client, whose turn it is, is among the first to go where room is short."""
        if not self.mailed:
            return now - self.met > times.first_mail_busy_s
        return not self.is_free and now - self.since > times.first_mail_s
