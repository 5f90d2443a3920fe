"""Split the next hop's byte stream into replies, check them, and leave them unchanged.

Pure. Fails with ValueError for bytes that are no SMTP reply or have no end. The next hop is then at
fault, and none of its later replies can be matched to a command.
"""

from __future__ import annotations

import re
from typing import Literal

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
    """Split off the first complete reply: (reply, rest); the reply is empty if none is complete."""
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
