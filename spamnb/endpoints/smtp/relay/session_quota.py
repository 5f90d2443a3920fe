"""The commands and time that a client may use until its next message.

An untrusted client occupies a connection to the next hop from its EHLO on, so activity without a
message is bounded: by the number of commands, and by the time since the connection or the last
accepted message. Further commands and rejected messages do not renew it. Time spent waiting for the
next hop or transferring a message does not count. Trusted clients may keep a connection: only the
time between commands limits them. Pure.
"""

from __future__ import annotations

from spamnb.endpoints.smtp.relay.params import Limits, Timeouts


class SessionQuota:
    """The quota state of one session."""

    __slots__ = (
        "_paused_at",
        "commands",
        "greeted_at",
        "is_free",
        "is_greeted",
        "last_message_at",
        "mailed",
    )

    def __init__(self, now: float) -> None:
        self.greeted_at = self.last_message_at = now
        """greeted_at: when the client connected, or got the reply to its first EHLO;
        last_message_at: when its last message was accepted"""
        self._paused_at = 0.0
        self.commands = 0
        """since then, without accepted recipients"""
        self.is_greeted = False
        """whether the client has got the reply to an EHLO"""
        self.mailed = False
        """whether a MAIL command has come"""
        self.is_free = True
        """whether the client is trusted"""

    def greet(self, now: float) -> None:
        """Start the time until the first MAIL again: the client's first EHLO is accepted."""
        self.greeted_at, self.is_greeted = now, True

    def spend(self, limits: Limits) -> bool:
        """Count a command; whether it is within the limit."""
        self.commands += 1
        return self.commands <= limits.commands

    def pause(self, now: float) -> None:
        """Stop the clock: the client waits for the next hop or sends a message."""
        self._paused_at = now

    def due(self, now: float, times: Timeouts) -> float:
        """The deadline for the client's next command."""
        if self.is_free and self.mailed:
            return now + times.command_s
        if self._paused_at:
            self.last_message_at += now - self._paused_at
            self._paused_at = 0.0
        if not self.mailed:
            return self.greeted_at + times.first_mail_s
        return min(now + times.command_s, self.last_message_at + times.message_s)

    def reset(self, now: float) -> None:
        """Start again after an accepted message."""
        self.last_message_at, self._paused_at, self.commands = now, 0.0, 0

    def is_idle(self, now: float, times: Timeouts) -> bool:
        """Whether a client on its turn may be disconnected while resources are short."""
        if not self.mailed:
            return now - self.greeted_at > times.first_mail_busy_s
        return not self.is_free and now - self.last_message_at > times.first_mail_s
