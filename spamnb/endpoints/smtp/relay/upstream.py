"""The next hop's side of a session: connect on demand, greet, split replies.

A protocol core without sockets. It keeps the pending command while it connects again, so after a
message that was not forwarded the session goes on unchanged. Never raises.
"""

from __future__ import annotations

from typing import Literal, Protocol

from spamnb.endpoints.net import reply_parser
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.smtp.protocol import ehlo
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.ports import SessionIO

State = Literal["gone", "called", "greeting", "hello", "up"]
"""gone: not connected; called: connecting; greeting: 220 expected; hello: EHLO reply expected;
up: ready for commands"""


class ReplyHandler(Protocol):
    """Receives the next hop's replies."""

    def replied(self, reply: bytes, *, alone: bool) -> None:
        """A reply; `alone` says that no bytes followed it."""

    def upstream_lost(self, reply: bytes = b"") -> None:
        """No reply will come; `reply` tells the client why."""


class NextHop:
    """One connection to the next hop, or none."""

    __slots__ = ("_handler", "_heard", "_hello", "_io", "_line", "address", "state")

    def __init__(self, io: SessionIO, handler: ReplyHandler, address: Address) -> None:
        self._io, self._handler = io, handler
        self.address = address
        self.state: State = "gone"
        self._line = self._hello = self._heard = b""

    def has_unexpected_data(self) -> bool:
        """Whether the next hop sent what no command asked for.

        The session would take it for the next reply. Bytes that arrived before a command is sent
        cannot answer it. They may be unread in the kernel, since the event loop may deliver the
        client's command first.
        """
        return self._heard != b"" or self._io.has_unread()

    def ask(self, line: bytes, first: bytes, address: Address) -> bytes:
        """Send a command; if not connected, connect to `address` and send the EHLO `first` before.

        If the command is that EHLO, the handler gets its reply, else only the command's reply.
        Returns the reply to the client if no connection is allowed.
        """
        self._line, self._hello = line, first
        if self.state == "up":
            self._send()
            return b""
        if refusal := self._io.connect_upstream(address):
            return refusal
        self.state, self.address = "called", address
        return b""

    def _send(self) -> None:
        is_hello = self._line is self._hello
        line = ehlo.upstream_command(self._line, self.address.speaks) if is_hello else self._line
        self._io.write_upstream(line)

    def receive(self, data: bytes) -> None:
        """Bytes from the next hop."""
        if self.state == "up" and not self._heard and reply_parser.is_one(data):
            self._handler.replied(data, alone=True)
            return
        self._heard += data
        while self._heard and self.state != "gone":
            try:
                reply, self._heard = reply_parser.take(self._heard)
            except ValueError:
                self._handler.upstream_lost(replies.LOST_UPSTREAM)
                return
            if not reply:
                return
            if self.state == "up":
                self._handler.replied(reply, alone=not self._heard)
            elif self._heard:
                self._handler.upstream_lost(replies.NO_UPSTREAM)
            else:
                self._introduced(reply)

    def _introduced(self, reply: bytes) -> None:
        """Handle the greeting and the EHLO reply of a new connection."""
        is_wanted = self.state == "hello" and self._line is self._hello
        good = reply.startswith(b"220" if self.state == "greeting" else b"250")
        if is_wanted:
            self.state = "up"
            self._handler.replied(reply, alone=True)
        elif not good:
            self._handler.upstream_lost(replies.NO_UPSTREAM)
        elif self.state == "greeting":
            self.state = "hello"
            self._io.write_upstream(ehlo.upstream_command(self._hello, self.address.speaks))
        else:
            self.state = "up"
            self._send()

    def drop(self) -> None:
        """Abort the connection, so that an incomplete message is never completed."""
        self.state, self._heard = "gone", b""
        self._io.drop()

    def leave(self, *, send_quit: bool) -> None:
        """Close the connection, with QUIT if that is allowed now."""
        if self.state == "up" and send_quit:
            self.state = "gone"
            self._io.leave()
        elif self.state != "gone":
            self.drop()
