"""Both sides of a relayed session. Pure: bytes come in, actions go out.

`ClientState`: address, trust, envelope, quota, replies without the next hop. `NextHop` connects on
demand, greets, and splits replies:

    gone -> called -> greeting -> hello -> up

It keeps the command while it connects again, so the session continues after a message that was not
forwarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from spamnb.mail.envelope import Client, Envelope
from spamnb.net import clients
from spamnb.net.actions import (
    ROOM,
    AskUpstream,
    ConnectUpstream,
    DropUpstream,
    LogUpstreamLost,
    Output,
    QuitUpstream,
    SendUpstream,
)
from spamnb.net.address import Address, MailProtocol
from spamnb.net.clients import EXPECTED_REPLIES, UpstreamCommand
from spamnb.settings.values import Limits, ListenerParams, Timeouts
from spamnb.smtp import relay_replies, syntax
from spamnb.smtp.syntax import CommandRule, Phase

MIN_RATE_BYTES_S = 500
"""what a client must send while resources are short: as Postfix's smtpd_min_data_rate"""


@dataclass(slots=True)
class Transaction:
    """One message's envelope before DATA: the lines that the next hop accepted, without CRLF."""

    mail: bytes = b""
    rcpts: list[bytes] = field(default_factory=list)
    xforwards: list[bytes] = field(default_factory=list)
    began: float = 0.0
    """when MAIL came"""

    @property
    def is_open(self) -> bool:
        """Whether a new connection to the next hop would lack a part of the envelope."""
        return bool(self.mail or self.xforwards)


class SessionQuota:
    """The commands and time that a client may use until its next message.

    An untrusted client occupies a connection to the next hop from its EHLO on, so activity without
    a message is bounded: by the number of commands, and by the time since the connection or the
    last accepted message. Further commands and rejected messages do not renew it. Time spent
    waiting for the next hop or transferring a message does not count. Trusted clients may keep a
    connection: only the time between commands limits them.
    """

    __slots__ = (
        "commands", "greeted_at", "is_free", "is_greeted", "last_message_at", "mailed", "paused_at",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.greeted_at = self.last_message_at = now
        """greeted_at: when the client connected, or got the reply to its first EHLO;
        last_message_at: when its last message was accepted"""
        self.paused_at = 0.0
        """since when the client has waited for the next hop or sent a message, or zero"""
        self.commands = 0
        """since the last message, without accepted recipients"""
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

    def due(self, now: float, times: Timeouts) -> float:
        """The deadline for the client's next command."""
        if self.is_free and self.mailed:
            return now + times.command_s
        if self.paused_at:
            self.last_message_at += now - self.paused_at
            self.paused_at = 0.0
        if not self.mailed:
            return self.greeted_at + times.first_mail_s
        return min(now + times.command_s, self.last_message_at + times.message_s)

    def reset(self, now: float) -> None:
        """Start again after an accepted message."""
        self.last_message_at, self.paused_at, self.commands = now, 0.0, 0

    def is_idle(self, now: float, times: Timeouts) -> bool:
        """Whether a client that must send may be disconnected while resources are short."""
        if not self.mailed:
            return now - self.greeted_at > times.first_mail_busy_s
        return not self.is_free and now - self.last_message_at > times.first_mail_s


class DataRate:
    """How fast a client sends its message, and what the message costs in memory meanwhile."""

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


class ClientState:
    """One client of one listener."""

    __slots__ = (
        "_seen", "address", "hello", "is_closing", "params", "peer", "protocol", "quota",
        "transaction", "trusted",
    )  # fmt: skip

    def __init__(self, params: ListenerParams, peer: str, now: float) -> None:
        self.params = params
        self.protocol = params.protocol
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

    @property
    def wrote_received(self) -> bool:
        """Whether it is an MTA that puts a Received field above all that its client sent.

        In front of the queue a trusted client is such an MTA only if it names its client.
        """
        return self.trusted and (self.params.queue == "after" or bool(self.transaction.xforwards))

    def accept(self, what: UpstreamCommand, line: bytes) -> int:
        """Record a command that the next hop has accepted; return the bytes that it adds."""
        if what == "hello":
            self.hello = line
            helo = syntax.argument_of(line[:-2])
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
        """A parsed copy of the envelope; the relay never writes anything from it."""
        lines = self.transaction
        return syntax.envelope_of(lines.mail, lines.rcpts, lines.xforwards, self._seen)


# -- the relay's own replies ----------------------------------------------------------------------


class OwnReply(NamedTuple):
    """A reply of the relay itself."""

    text: bytes
    kind: Literal["answer", "refuse", "end"] = "refuse"
    """refuse: counts as an error of the client; end: it is the last reply of the session"""


def rule_of(line: bytes, most: int) -> CommandRule | OwnReply:
    """The rule for a line of at most `most` bytes, or the reply to a line that is no command."""
    if len(line) > most:
        return OwnReply(relay_replies.LONG_COMMAND)
    if not syntax.is_whole(line):
        return OwnReply(relay_replies.BARE_COMMAND)
    found = syntax.verb_of(line[:-2])
    return OwnReply(relay_replies.SYNTAX) if found is None else found[1]


def own_reply(
    rule: CommandRule, line: bytes, client: ClientState, upstream: MailProtocol | None
) -> OwnReply | None:
    """The reply to a command, or None if it is forwarded.

    `upstream` is the protocol of the connected next hop.
    """
    quota = client.quota
    if not (quota.is_free or quota.spend(client.params.limits)):
        return OwnReply(relay_replies.TOO_MANY_COMMANDS, "end")
    if client.phase not in rule.phases:
        return OwnReply(relay_replies.SEQUENCE)
    if rule.reply:
        return OwnReply(rule.reply, "refuse" if rule.reply is relay_replies.UNKNOWN else "answer")
    check = _CHECKS.get(rule.action)
    return check(line, client, upstream) if check is not None else None


def _hello(line: bytes, client: ClientState, _upstream: MailProtocol | None) -> OwnReply | None:
    if line[:4].upper() not in syntax.CLIENT_HELLOS[client.protocol]:
        return OwnReply(relay_replies.SYNTAX)
    return OwnReply(relay_replies.CLOSING, "end") if client.is_closing else None


def _xforward(_line: bytes, client: ClientState, _upstream: MailProtocol | None) -> OwnReply | None:
    return None if client.trusted else OwnReply(relay_replies.NOT_TRUSTED)


def _mail(line: bytes, client: ClientState, _upstream: MailProtocol | None) -> OwnReply | None:
    limit = client.params.size_limit_bytes
    if client.is_closing:
        return OwnReply(relay_replies.CLOSING, "end")
    if limit and syntax.declared_bytes(line[:-2]) > limit:
        return OwnReply(relay_replies.TOO_BIG)
    return None


def _rcpt(line: bytes, client: ClientState, upstream: MailProtocol | None) -> OwnReply | None:
    params, rcpts = client.params, client.transaction.rcpts
    if not (client.trusted or syntax.is_for(line[:-2], params.recipient_domains)):
        return OwnReply(relay_replies.RELAY_DENIED)
    if rcpts and (client.protocol, upstream) == ("smtp", "lmtp"):
        # The client gets one final reply, which cannot report two different LMTP replies.
        return OwnReply(relay_replies.ONE_RECIPIENT, "answer")
    if len(rcpts) >= params.limits.recipients and not client.trusted:
        client.quota.commands -= 1
        return OwnReply(relay_replies.TOO_MANY_RECIPIENTS, "answer")
    return None


def _reset(_line: bytes, _client: ClientState, upstream: MailProtocol | None) -> OwnReply | None:
    return None if upstream else OwnReply(relay_replies.DONE, "answer")


def _quit(_line: bytes, _client: ClientState, _upstream: MailProtocol | None) -> OwnReply | None:
    return OwnReply(relay_replies.BYE, "end")


_CHECKS: dict[str, Callable[[bytes, ClientState, MailProtocol | None], OwnReply | None]] = {
    "hello": _hello,
    "xforward": _xforward,
    "mail": _mail,
    "rcpt": _rcpt,
    "reset": _reset,
    "quit": _quit,
}


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
        return syntax.upstream_command(self._hello or self.line, self.address.protocol)

    def next_reply(self, data: bytes = b"") -> bytes:
        """Take bytes from the next hop; return the next reply that the session handles, if any.

        Raises UpstreamError. The greeting and the EHLO of a new connection are handled here.
        """
        if self.state == "up" and not self.received and clients.ONE_LINE.fullmatch(data):
            return self._checked(data)
        self.received += data
        while self.received and self.state != "gone":
            try:
                reply, self.received = clients.take(self.received)
            except ValueError:
                raise UpstreamError(relay_replies.LOST_UPSTREAM) from None
            if not reply:
                return b""
            if self.state == "up":
                return self._checked(reply)
            if self.received:
                raise UpstreamError(relay_replies.NO_UPSTREAM)
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
                raise UpstreamError(relay_replies.LOST_UPSTREAM)
            if reply.startswith(b"421"):
                raise UpstreamError(reply)
            if not reply.startswith(EXPECTED_REPLIES[self.asked]):
                raise UpstreamError(relay_replies.LOST_UPSTREAM)
            self.asked = None
        return reply

    def _introduced(self, reply: bytes) -> None:
        """Handle the greeting and the EHLO reply of a new connection."""
        if not reply.startswith(b"220" if self.state == "greeting" else b"250"):
            raise UpstreamError(relay_replies.NO_UPSTREAM)
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
