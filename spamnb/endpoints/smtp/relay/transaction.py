"""What was said of one message before its DATA: the lines as they came, and a parsed copy.

Pure. The lines are those that the next hop accepted; nothing is ever written out from the copy.
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
        """Bytes that the recipients take: kept, for it is asked with each of any number of them."""
        self.xforwards: list[bytes] = []
        self._envelope: Envelope | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next hop knows something that a new one would not."""
        return bool(self.mail or self.xforwards)

    def add(self, rcpt: bytes) -> None:
        """One more recipient."""
        self.rcpts.append(rcpt)
        self.size += len(rcpt)

    def envelope(self, seen: Client) -> Envelope:
        """The parsed copy, from the client as it was seen; made once, when all is said."""
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
