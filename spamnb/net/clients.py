"""Clients of other servers: a scanner listener, and the next hop. Blocking.

    with connected(address, deadline) as peer:
        answer = ask(peer, message, {"From": ["a@example.org"]}, deadline)

Only the standard library, because the callers start for one message or must not fail. Every wait is
bounded. Failure: PeerError, also for an incomplete reply.
"""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from spamnb.errors import PeerError
from spamnb.net.address import Address
from spamnb.scan.values import ReleasedMessage, ReleaseReply

RETRY_S: Final = 0.05
"""until the next try to connect to a unix socket with a full queue"""
_RECEIVE_BYTES: Final = 65_536
_MOST_ADDED_BYTES: Final = 1 << 20
"""of head and added fields; a tag also makes each subject longer, so the limit is twice the size of
the message plus these bytes"""

RequestHeaders = Mapping[str, Iterable[str]]
"""From, Rcpt, IP, Helo, Hostname, Queue-Id, each with its values"""


class ScanAnswer(NamedTuple):
    """The scanner's answer."""

    header: bytes
    """the message's header section with the added fields, without forged copies; empty if deferred
    """
    outcome: dict[str, Any]
    """facts of the verdict: `decision`, `action` and others; empty if deferred"""

    @property
    def deferred(self) -> bool:
        """Whether the settings demand that the message is tried again later."""
        return not self.outcome


def connected(address: Address, deadline: float) -> socket.socket:
    """Connect."""
    try:
        while True:
            try:
                return socket_to(address, _left(deadline))
            except BlockingIOError:  # unix(7): the queue is full
                time.sleep(min(RETRY_S, _left(deadline)))
    except OSError as error:
        raise PeerError(f"no scanner at {address}: {error.strerror or error}") from error


def ask(
    peer: socket.socket, message: bytes | bytearray, headers: RequestHeaders, deadline: float
) -> ScanAnswer:
    """Send the message and return the answer.

    `POST /v1/message`. A deadline is a time of `time.monotonic`.
    """
    try:
        _send(peer, (_head(len(message), headers), message), deadline)
        return _parsed(_received(peer, 2 * len(message) + _MOST_ADDED_BYTES, deadline))
    except OSError as error:
        raise PeerError(f"the scanner gave no answer: {error.strerror or error}") from error


def socket_to(address: Address, timeout_s: float) -> socket.socket:
    """Return a connection; raises OSError."""
    if not address.path:
        return socket.create_connection((address.host, address.port), timeout_s)
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(timeout_s)
        peer.connect(address.path)
    except BaseException:
        peer.close()
        raise
    return peer


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _head(length: int, headers: RequestHeaders) -> bytes:
    lines = ["POST /v1/message HTTP/1.1", "Connection: close", f"Content-Length: {length}"]
    for name, values in headers.items():
        lines += (f"{name}: {value}" for value in values if _is_safe(value))
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")


def _is_safe(value: str) -> bool:
    """Whether a text is one value: a comma would end an address for the scanner."""
    return bool(value) and value.isprintable() and "," not in value


def _send(peer: socket.socket, parts: Iterable[bytes | bytearray], deadline: float) -> None:
    for part in parts:
        peer.settimeout(_left(deadline))
        try:
            peer.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            return  # the scanner may have refused the request before its end: see the reply


def _received(peer: socket.socket, most: int, deadline: float) -> bytes:
    """Read to the end."""
    reply = bytearray()
    while len(reply) <= most:
        peer.settimeout(_left(deadline))
        data = peer.recv(_RECEIVE_BYTES)
        if not data:
            return bytes(reply)
        reply += data
    raise PeerError("the scanner's reply is too long")


def _parsed(reply: bytes) -> ScanAnswer:
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    status = first.split(" ")[1:2]
    if status == ["503"]:
        return ScanAnswer(b"", {})
    if not first:
        raise PeerError("the scanner closed the connection without a reply")
    if status != ["200"]:
        raise PeerError(f"the scanner refuses the message: {first!r}", reply=first.encode())
    fields = {name.lower(): value.strip() for name, _, value in map(_split, lines)}
    if fields.get("content-length") != str(len(body)):
        raise PeerError("the scanner's reply is not complete")
    try:
        outcome = json.loads(fields.get("spamnb-outcome", ""))
    except ValueError as error:
        raise PeerError("the scanner's reply has no verdict") from error
    if not isinstance(outcome, dict) or not outcome:
        raise PeerError("the scanner's reply has no verdict")
    return ScanAnswer(body, outcome)


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(":")


UpstreamCommand = Literal["hello", "xforward", "mail", "rcpt", "data", "reset"]

EXPECTED_REPLIES: dict[UpstreamCommand, tuple[bytes, ...]] = {
    "hello": (b"250", b"4", b"5"),
    "xforward": (b"250", b"4", b"5"),
    "mail": (b"250", b"4", b"5"),
    "rcpt": (b"25", b"4", b"5"),
    "data": (b"354", b"4", b"5"),
    "reset": (b"250", b"4", b"5"),
}
"""Command -> allowed beginnings of its reply (RFC 5321, 4.3.2). Another code, such as 250 to
DATA or a second greeting to EHLO, shows that replies and commands are out of step."""

MOST_BYTES = 16384
"""of a reply; 50 EHLO lines are 2 KB, and Postfix drops lines above 2 KB"""

ONE_LINE = re.compile(rb"[2-5][0-9][0-9] [^\r\n\0]*\r\n")
"""a reply of one line"""
_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])([^\n]*))?")
_QUEUED = re.compile(rb"(?:queued as|\bid=|\bid )[ <]*([\w.:-]{4,64})")


def take(data: bytes) -> tuple[bytes, bytes]:
    """Split off the first complete reply: (reply, rest); the reply is empty if none is complete.

    Fails with ValueError for bytes that are no SMTP reply or have no end. The next hop is then at
    fault, and none of its later replies can be matched to a command.
    """
    found = ONE_LINE.match(data)
    if found:
        return found[0], data[found.end() :]
    return _take_lines(data)


def _take_lines(data: bytes) -> tuple[bytes, bytes]:
    lines: list[bytes] = []
    at, code = 0, b""
    while (end := data.find(b"\n", at)) >= 0 and end < MOST_BYTES:
        found = _LINE.fullmatch(data[at:end].removesuffix(b"\r"))
        if not found or code not in {b"", found[1]}:
            raise ValueError("not an SMTP reply")
        code = found[1]
        # The relay must not repeat a bare CR or a NUL.
        text = (found[3] or b"").replace(b"\r", b"?").replace(b"\0", b"?")
        lines.append(code + (found[2] or b" ") + text + b"\r\n")
        at = end + 1
        if found[2] != b"-":
            return b"".join(lines), data[at:]
    if len(data) >= MOST_BYTES:
        raise ValueError("an SMTP reply without an end")
    return b"", data


def queue_id(reply: bytes) -> str:
    """The next hop's queue id, if its reply names one as most servers' replies do."""
    found = _QUEUED.search(reply)
    return found[1].decode("ascii", "replace") if found else ""


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
                reply, self._rest = take(self._rest)
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
def _connected_hop(address: Address, plan: SendPlan) -> Iterator[_SmtpConnection]:
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
    """Send a message; a reply for each recipient, in order.

    For messages released from quarantine. The envelope lines are sent as they were received, with
    their parameters; nothing is parsed and rewritten (rewriting addresses has led to open relays).
    XFORWARD lines are sent if the next hop announces XFORWARD. Must not know quarantine files,
    models or settings.

    Failure: PeerError if it is certain that the message was not delivered. If the reply to the
    final dot is missing, the code is 0: it is unknown whether the message was delivered. Every wait
    is bounded.
    """
    plan = plan or SendPlan()
    try:
        with _connected_hop(address, plan) as line:
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
