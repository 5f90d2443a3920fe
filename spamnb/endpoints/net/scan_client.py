"""Ask a scanner listener about one message (`POST /v1/message`), within a deadline.

    with connected(address, deadline) as peer:
        answer = ask(peer, message, {"From": ["a@example.org"]}, deadline)

Blocking, and only with the standard library, because its callers start for one message or must not
fail. A deadline is a time of `time.monotonic`. Failure: PeerError, also for an incomplete reply;
its `reply` is the first line of a refusal.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from spamnb.endpoints.net.address import Address
from spamnb.errors import PeerError

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
                return _connected(address, _left(deadline))
            except BlockingIOError:  # unix(7): the queue is full
                time.sleep(min(RETRY_S, _left(deadline)))
    except OSError as error:
        raise PeerError(f"no scanner at {address}: {error.strerror or error}") from error


def ask(
    peer: socket.socket, message: bytes | bytearray, headers: RequestHeaders, deadline: float
) -> ScanAnswer:
    """Send the message and return the answer."""
    try:
        _send(peer, (_head(len(message), headers), message), deadline)
        return _parsed(_received(peer, 2 * len(message) + _MOST_ADDED_BYTES, deadline))
    except OSError as error:
        raise PeerError(f"the scanner gave no answer: {error.strerror or error}") from error


def _connected(address: Address, timeout_s: float) -> socket.socket:
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
