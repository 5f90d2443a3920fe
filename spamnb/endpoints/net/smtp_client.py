"""Send one message to the next hop by SMTP or LMTP, with its original envelope lines. Blocking.

For messages released from quarantine. The envelope lines are sent as they were received, with their
parameters; nothing is parsed and rewritten (rewriting addresses has led to open relays). XFORWARD
lines are sent if the next hop announces XFORWARD. Must not know quarantine files, models or
settings.

Failure: PeerError if it is certain that the message was not delivered. If the reply to the final
dot is missing, the code is 0: it is unknown whether the message was delivered. Every wait is
bounded.
"""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from spamnb.endpoints.net import reply_parser
from spamnb.endpoints.net.address import Address
from spamnb.errors import PeerError
from spamnb.service.scanning.quarantined import ReleasedMessage, ReleaseReply

_LINE_END = re.compile(rb"\r\n|\r|\n")
_DOT = re.compile(rb"^\.", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Hostname and time limits."""

    hostname: str = "localhost"
    """the name in EHLO"""
    connect_s: float = 5.0
    command_s: float = 60.0
    final_s: float = 300.0
    """for the reply to the final dot: RFC 5321 4.5.3.2.6 asks for ten minutes, but here a user
    waits"""


class _SmtpConnection:
    def __init__(self, wire: socket.socket, plan: SendPlan) -> None:
        self._wire = wire
        self._plan = plan
        self._rest = b""

    def say(self, line: bytes, *wanted: int) -> ReleaseReply:
        """Send a command; PeerError unless the reply's first digit is in `wanted` (empty: any)."""
        self._wire.settimeout(self._plan.command_s)
        self._refuse_surplus()
        self._wire.sendall(line + b"\r\n")
        return self.hear(*wanted)

    def hear(self, *wanted: int) -> ReleaseReply:
        """The next reply."""
        reply = self._reply()
        if wanted and reply.code // 100 not in wanted:
            raise PeerError(f"the next hop replied {reply}", reply=str(reply).encode())
        return reply

    def _refuse_surplus(self) -> None:
        """Raise PeerError if unexpected data has arrived: it would be taken for the next reply."""
        if self._rest or select.select([self._wire], [], [], 0)[0]:
            raise PeerError("the next hop sent an unexpected reply or disconnected")

    def _reply(self) -> ReleaseReply:
        while True:
            try:
                reply, self._rest = reply_parser.take(self._rest)
            except ValueError as error:
                raise PeerError("the next hop sent an invalid SMTP reply") from error
            if reply:
                break
            more = self._wire.recv(8192)
            if not more:
                raise PeerError("the next hop closed the connection")
            self._rest += more
        text = " ".join(line[4:].decode("latin-1") for line in reply.split(b"\r\n")[:-1])
        return ReleaseReply(int(reply[:3]), text)

    def data(self, raw: bytes, recipients: int) -> list[ReleaseReply]:
        """Send the message; a reply for each recipient, with code 0 if it is missing."""
        self._refuse_surplus()
        replies: list[ReleaseReply] = []
        with suppress(OSError, PeerError):
            self._wire.settimeout(self._plan.final_s)
            self._wire.sendall(_in_wire_form(raw))
            for _ in range(recipients):
                replies.append(self._reply())  # noqa: PERF401 - those before a fault are kept
        return replies + [ReleaseReply(0)] * (recipients - len(replies))


def _in_wire_form(raw: bytes) -> bytes:
    """The message with CRLF line ends and stuffed dots, and the final dot."""
    body = _DOT.sub(b"..", _LINE_END.sub(b"\r\n", raw))
    return body + (b"" if body.endswith(b"\r\n") or not body else b"\r\n") + b".\r\n"


@contextmanager
def _connected(address: Address, plan: SendPlan) -> Iterator[_SmtpConnection]:
    try:
        if address.path:
            wire = socket.socket(socket.AF_UNIX)
            wire.settimeout(plan.connect_s)
            wire.connect(address.path)
        else:
            wire = socket.create_connection((address.host, address.port), plan.connect_s)
    except OSError as error:
        raise PeerError(
            f"{address} cannot be reached: {error.strerror or error}",
            hint="check that the next hop runs",
        ) from error
    with wire:
        yield _SmtpConnection(wire, plan)


def deliver(
    address: Address, released: ReleasedMessage, plan: SendPlan | None = None
) -> list[ReleaseReply]:
    """Send a message; a reply for each recipient, in order."""
    plan = plan or SendPlan()
    try:
        with _connected(address, plan) as line:
            replies = _transaction(line, released, address, plan)
            with suppress(OSError, PeerError):
                line.say(b"QUIT")
            return replies
    except OSError as error:
        raise PeerError(f"the connection to {address} failed: {error.strerror or error}") from error


def _transaction(
    line: _SmtpConnection, released: ReleasedMessage, address: Address, plan: SendPlan
) -> list[ReleaseReply]:
    hello = b"LHLO " if address.protocol == "lmtp" else b"EHLO "
    line.hear(2)
    announced = line.say(hello + plan.hostname.encode("ascii", "replace"), 2).text.upper().split()
    if "XFORWARD" in announced:
        for xforward in released.xforward_lines:
            line.say(xforward, 2)
    line.say(released.mail_line, 2)
    replies = [line.say(rcpt) for rcpt in released.rcpt_lines]
    taken = [at for at, reply in enumerate(replies) if reply.code // 100 == 2]
    if not taken:
        return replies
    line.say(b"DATA", 3)
    lmtp = address.protocol == "lmtp"
    final = line.data(released.raw, len(taken) if lmtp else 1)
    for at, reply in zip(taken, final if lmtp else final * len(taken), strict=True):
        replies[at] = reply
    return replies
