"""The next hop's side of a session: connect on demand, greet, split replies.

    gone -> called -> greeting -> hello -> up

It keeps the command while it connects again, so the session continues after a message that was not
forwarded. No sockets: bytes come in, actions go out.
"""

from __future__ import annotations

from typing import Literal

from spamnb.endpoints.net import reply_parser
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.reply_parser import EXPECTED_REPLIES, UpstreamCommand
from spamnb.endpoints.smtp.protocol import ehlo
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.actions import (
    ROOM,
    AskUpstream,
    ConnectUpstream,
    DropUpstream,
    LogUpstreamLost,
    Output,
    QuitUpstream,
    SendUpstream,
)

HopState = Literal["gone", "called", "greeting", "hello", "up"]
"""gone: not connected; called: connecting; greeting: 220 expected; hello: EHLO reply expected;
up: ready for commands"""


class UpstreamError(Exception):
    """The next hop breaks the protocol; `reply` is for the client."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply


class NextHop:
    """One connection to the next hop, or none."""

    __slots__ = ("_hello", "_output", "address", "asked", "line", "received", "state")

    def __init__(self, output: Output, address: Address) -> None:
        self._output = output
        self.address = address
        self.state: HopState = "gone"
        self.asked: UpstreamCommand | None = None
        """the command with a reply that is still to come"""
        self.line = self._hello = b""
        """the last command, and the EHLO that a new connection needs before it"""
        self.received = b""
        """bytes that are no complete reply, or follow one"""

    def ask(self, what: UpstreamCommand, line: bytes, hello: bytes, address: Address) -> None:
        """Send a command; if not connected, first connect to `address` and send the EHLO `hello`.

        `hello` is empty if the command is this EHLO, or if the connected next hop has refused EHLO.
        """
        self.asked, self.line, self._hello = what, line, hello
        if self.state == "up":
            self._output.add(AskUpstream(self._hello_line() if what == "hello" else line))
        else:
            self.state, self.address = "called", address
            self._output.add(ConnectUpstream(address))

    def _hello_line(self) -> bytes:
        return ehlo.upstream_command(self._hello or self.line, self.address.protocol)

    def next_reply(self, data: bytes = b"") -> bytes:
        """Take bytes from the next hop; return the next reply that the session handles, if any.

        Raises UpstreamError. The greeting and the EHLO of a new connection are handled here.
        """
        if self.state == "up" and not self.received and reply_parser.ONE_LINE.fullmatch(data):
            return self._checked(data)
        self.received += data
        while self.received and self.state != "gone":
            try:
                reply, self.received = reply_parser.take(self.received)
            except ValueError:
                raise UpstreamError(replies.LOST_UPSTREAM) from None
            if not reply:
                return b""
            if self.state == "up":
                return self._checked(reply)
            if self.received:
                raise UpstreamError(replies.NO_UPSTREAM)
            if self.state == "hello" and not self._hello:
                self.state = "up"
                return self._checked(reply)
            self._introduced(reply)
        return b""

    def _checked(self, reply: bytes) -> bytes:
        """The reply, if it is a possible reply to the command."""
        if self.asked is not None:
            # More than one reply to one command: it is unknown which of them answers it.
            if self.received:
                raise UpstreamError(replies.LOST_UPSTREAM)
            if reply.startswith(b"421"):
                raise UpstreamError(reply)
            if not reply.startswith(EXPECTED_REPLIES[self.asked]):
                raise UpstreamError(replies.LOST_UPSTREAM)
            self.asked = None
        return reply

    def _introduced(self, reply: bytes) -> None:
        """Handle the greeting and the EHLO reply of a new connection."""
        if not reply.startswith(b"220" if self.state == "greeting" else b"250"):
            raise UpstreamError(replies.NO_UPSTREAM)
        if self.state == "greeting":
            self.state = "hello"
            self._output.add(SendUpstream(self._hello_line()))
        else:
            self.state = "up"
            self._output.add(SendUpstream(self.line))

    def log_failure(self, step: str) -> None:
        """Count and log a failure."""
        self._output.add(LogUpstreamLost(self.address, step))

    def drop(self) -> None:
        """Abort the connection, so that an incomplete message is never completed."""
        if self.state != "gone":
            self._close(DropUpstream())

    def leave(self, *, send_quit: bool) -> None:
        """Close the connection, with QUIT if that is allowed now."""
        if self.state != "gone":
            self._close(QuitUpstream() if self.state == "up" and send_quit else DropUpstream())

    def _close(self, action: DropUpstream | QuitUpstream) -> None:
        self.state, self.received = "gone", b""
        self._output.add(action)
        self._output.resume(ROOM)
