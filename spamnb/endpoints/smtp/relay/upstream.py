"""The next hop's side of a session: called when it is needed, greeted, and its replies cut apart.

A protocol core without sockets. It remembers a command while the next hop is called anew, so that
after a message that was kept from it the session goes on as if nothing had been. Never raises.
"""

from __future__ import annotations

from typing import Literal, Protocol

from spamnb.endpoints.net import reply_parser
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.smtp.protocol import ehlo
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.ports import SessionIO

State = Literal["gone", "called", "greeting", "hello", "up"]
"""not there; called; its greeting awaited; its answer to the hello awaited; there"""


class ReplyHandler(Protocol):
    """Whoever asks the next hop."""

    def replied(self, reply: bytes, *, alone: bool) -> None:
        """A reply; `alone` says that nothing came behind it."""

    def upstream_lost(self, reply: bytes = b"") -> None:
        """No reply will come; `reply` says why."""


class NextHop:
    """One connection to it, or none."""

    __slots__ = ("_asker", "_ends", "_heard", "_hello", "_line", "address", "state")

    def __init__(self, io: SessionIO, handler: ReplyHandler, address: Address) -> None:
        self._ends, self._asker = io, handler
        self.address = address
        self.state: State = "gone"
        self._line = self._hello = self._heard = b""

    def has_surplus(self) -> bool:
        """Whether it has sent what no command asked for: the next reply would be this one.

        Bytes that arrived before a command is sent cannot answer it. They may wait unread in the
        kernel, since the client's command can come out of the event loop first.
        """
        return self._heard != b"" or self._ends.has_unread()

    def ask(self, line: bytes, first: bytes, address: Address) -> bytes:
        """Send a command; call `address` before that if need be, and say the hello in `first`.

        If the command is that hello, its reply is told, else only the reply to the command. Gives
        what to say to a client for whom it has no connection left.
        """
        self._line, self._hello = line, first
        if self.state == "up":
            self._send()
            return b""
        if refusal := self._ends.dial(address):
            return refusal
        self.state, self.address = "called", address
        return b""

    def _send(self) -> None:
        is_hello = self._line is self._hello
        line = ehlo.asked(self._line, self.address.speaks) if is_hello else self._line
        self._ends.pass_on(line)

    def hear(self, data: bytes) -> None:
        """Bytes from the next hop."""
        if self.state == "up" and not self._heard and reply_parser.is_one(data):
            self._asker.replied(data, alone=True)
            return
        self._heard += data
        while self._heard and self.state != "gone":
            try:
                reply, self._heard = reply_parser.take(self._heard)
            except ValueError:
                self._asker.upstream_lost(replies.LOST_UPSTREAM)
                return
            if not reply:
                return
            if self.state == "up":
                self._asker.replied(reply, alone=not self._heard)
            elif self._heard:
                self._asker.upstream_lost(replies.NO_UPSTREAM)
            else:
                self._introduced(reply)

    def _introduced(self, reply: bytes) -> None:
        """Greeting and hello of a next hop that was just called."""
        is_told = self.state == "hello" and self._line is self._hello
        good = reply.startswith(b"220" if self.state == "greeting" else b"250")
        if is_told:
            self.state = "up"
            self._asker.replied(reply, alone=True)
        elif not good:
            self._asker.upstream_lost(replies.NO_UPSTREAM)
        elif self.state == "greeting":
            self.state = "hello"
            self._ends.pass_on(ehlo.asked(self._hello, self.address.speaks))
        else:
            self.state = "up"
            self._send()

    def drop(self) -> None:
        """Break off: what is not complete shall not be."""
        self.state, self._heard = "gone", b""
        self._ends.drop()

    def leave(self, *, politely: bool) -> None:
        """Be done with it."""
        if self.state == "up" and politely:
            self.state = "gone"
            self._ends.leave()
        elif self.state != "gone":
            self.drop()
