"""The envelope of one message before DATA: the lines that the next hop accepted, and a parsed copy.

Pure. The relay never writes anything from the parsed copy.
"""

from __future__ import annotations

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.endpoints.smtp.protocol import commands


class Transaction:
    """The lines of one message's envelope, without CRLF."""

    __slots__ = ("_envelope", "mail", "rcpts", "size", "xforwards")

    def __init__(self) -> None:
        self.mail = b""
        self.rcpts: list[bytes] = []
        self.size = 0
        """bytes of the recipients, kept because every RCPT asks for them"""
        self.xforwards: list[bytes] = []
        self._envelope: Envelope | None = None

    @property
    def is_open(self) -> bool:
        """Whether a new connection to the next hop would lack something of the envelope."""
        return bool(self.mail or self.xforwards)

    def add(self, rcpt: bytes) -> None:
        """Add a recipient."""
        self.rcpts.append(rcpt)
        self.size += len(rcpt)

    def envelope(self, seen: Client) -> Envelope:
        """The parsed copy, with `seen` as the connected client; made once."""
        if self._envelope is None:
            self._envelope = Envelope(
                sender=commands.path_of(self.mail),
                recipients=tuple(map(commands.path_of, self.rcpts)),
                client=commands.client_of(seen, self.xforwards) if self.xforwards else seen,
                mail_line=self.mail,
                rcpt_lines=tuple(self.rcpts),
                xforward_lines=tuple(self.xforwards),
            )
        return self._envelope
