"""What a session knows of its client: address, trust, settings, and the accepted envelope. Pure."""

from __future__ import annotations

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.endpoints.net.reply_parser import UpstreamCommand
from spamnb.endpoints.smtp.protocol import commands
from spamnb.endpoints.smtp.protocol.commands import Phase
from spamnb.endpoints.smtp.relay.params import ListenerParams
from spamnb.endpoints.smtp.relay.session_quota import SessionQuota


class Transaction:
    """One message's envelope before DATA: the lines that the next hop accepted, without CRLF.

    The relay never writes anything from the parsed copy.
    """

    __slots__ = ("_envelope", "mail", "rcpts", "xforwards")

    def __init__(self) -> None:
        self.mail = b""
        self.rcpts: list[bytes] = []
        self.xforwards: list[bytes] = []
        self._envelope: Envelope | None = None

    @property
    def is_open(self) -> bool:
        """Whether a new connection to the next hop would lack something of the envelope."""
        return bool(self.mail or self.xforwards)

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


class ClientState:
    """One client of one listener."""

    __slots__ = (
        "_seen", "address", "hello", "is_closing", "params", "peer", "quota", "speaks",
        "transaction", "trusted",
    )  # fmt: skip

    def __init__(self, params: ListenerParams, peer: str, now: float) -> None:
        self.params = params
        self.speaks = params.speaks
        """its protocol, which a reload does not change"""
        self.peer = self.address = peer
        """`peer` is the socket's address; `address`, which may come from a PROXY header, is the one
        that all trust decisions use"""
        self.trusted = False
        self.is_closing = False
        """whether the daemon shuts down"""
        self.quota = SessionQuota(now)
        self.hello = b""
        """its last accepted EHLO, HELO or LHLO"""
        self._seen = Client()
        self.transaction = Transaction()

    @property
    def phase(self) -> Phase:
        """Which commands are allowed."""
        if self.transaction.rcpts:
            return "rcpt"
        if self.transaction.mail:
            return "mail"
        return "ready" if self.hello else "start"

    def update_trust(self) -> None:
        """Set `trusted` by the current settings."""
        self.trusted = self.quota.is_free = self.params.peers.contains(self.address)

    def accept(self, what: UpstreamCommand, line: bytes) -> int:
        """Record a command that the next hop has accepted; returns the bytes that it adds."""
        if what == "hello":
            self.hello = line
            helo = commands.argument_of(line[:-2])
            self._seen = Client(address=self.address, helo=helo)
        elif what == "mail":
            self.transaction.mail = line[:-2]
        elif what == "rcpt":
            self.quota.commands -= 1
            self.transaction.rcpts.append(line[:-2])
            return len(line)
        elif what == "xforward":
            self.transaction.xforwards.append(line[:-2])
        return 0

    def envelope(self) -> Envelope:
        """The parsed envelope."""
        return self.transaction.envelope(self._seen)
