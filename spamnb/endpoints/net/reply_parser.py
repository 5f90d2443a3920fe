"""The next hop's replies: cut out of the stream, checked, and otherwise left as they are.

Pure. Fails with ValueError for what is no SMTP reply or has no end: the next hop is then at fault,
and nothing that it says later can be trusted to answer what we asked.
"""

from __future__ import annotations

import re
from typing import Literal

Asked = Literal["hello", "xforward", "mail", "rcpt", "data", "reset"]

TAKEN: dict[Asked, tuple[bytes, ...]] = {
    "hello": (b"250", b"4", b"5"),
    "xforward": (b"250", b"4", b"5"),
    "mail": (b"250", b"4", b"5"),
    "rcpt": (b"25", b"4", b"5"),
    "data": (b"354", b"4", b"5"),
    "reset": (b"250", b"4", b"5"),
}
"""What is asked -> how an answer can begin (RFC 5321, 4.3.2). A 250 to DATA is none; nor is a
second greeting one to the hello: another reply code shows that replies and commands are shifted."""

MOST_BYTES = 16384
"""a reply; 50 EHLO lines are 2 KB, and Postfix drops lines above 2 KB"""

_ONE = re.compile(rb"[2-5][0-9][0-9] [^\r\n\0]*\r\n")
_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])([^\n]*))?")
_QUEUED = re.compile(rb"(?:queued as|\bid=|\bid )[ <]*([\w.:-]{4,64})")


def is_one(data: bytes) -> bool:
    """Whether it is a reply of one good line, and nothing more."""
    return _ONE.fullmatch(data) is not None


def take(data: bytes) -> tuple[bytes, bytes]:
    """Cut off the first whole reply: (reply, what is left); the reply is empty if none is whole."""
    found = _ONE.match(data)
    if found:
        return found[0], data[found.end() :]
    return _take_lines(data)


def _take_lines(data: bytes) -> tuple[bytes, bytes]:
    lines: list[bytes] = []
    at, code = 0, b""
    while (end := data.find(b"\n", at)) >= 0 and end < MOST_BYTES:
        found = _LINE.fullmatch(data[at:end].removesuffix(b"\r"))
        if not found or code not in {b"", found[1]}:
            raise ValueError("no SMTP reply")
        code = found[1]
        # A bare CR or a NUL would be ours once we repeat it.
        text = (found[3] or b"").replace(b"\r", b"?").replace(b"\0", b"?")
        lines.append(code + (found[2] or b" ") + text + b"\r\n")
        at = end + 1
        if found[2] != b"-":
            return b"".join(lines), data[at:]
    if len(data) >= MOST_BYTES:
        raise ValueError("an SMTP reply without end")
    return b"", data


def queue_id(reply: bytes) -> str:
    """The id that the next hop gave the message, if its reply names one as most servers do."""
    found = _QUEUED.search(reply)
    return found[1].decode("ascii", "replace") if found else ""
