"""EHLO, HELO and LHLO: the command for the next hop, and the reply for the client.

The relay announces only extensions that the next hop has and that a relay can honour. Never
STARTTLS, AUTH, CHUNKING, BINARYMIME, ETRN, VRFY, XCLIENT or anything unknown. Pure; never fails.
"""

from __future__ import annotations

import re

from spamnb.endpoints.net.address import MailProtocol

RELAYED_KEYWORDS = frozenset(
    (b"SIZE", b"8BITMIME", b"SMTPUTF8", b"DSN", b"ENHANCEDSTATUSCODES", b"PIPELINING")
)
TRUSTED_KEYWORDS = frozenset((b"XFORWARD",))

UPSTREAM_HELLO: dict[tuple[bytes, MailProtocol], bytes] = {
    (b"EHLO", "smtp"): b"EHLO",
    (b"HELO", "smtp"): b"HELO",
    (b"LHLO", "smtp"): b"EHLO",
    (b"EHLO", "lmtp"): b"LHLO",
    (b"HELO", "lmtp"): b"LHLO",
    (b"LHLO", "lmtp"): b"LHLO",
}
"""(the client's command, the next hop's protocol) -> the command for the next hop"""

_NUMBER = re.compile(rb"[0-9]{1,18}")

CLIENT_HELLOS: dict[MailProtocol, frozenset[bytes]] = {
    "smtp": frozenset((b"EHLO", b"HELO")),
    "lmtp": frozenset((b"LHLO",)),
}
"""the hello commands that a client may use (RFC 2033, 4.1: EHLO is no command of LMTP)"""


def upstream_command(line: bytes, upstream: MailProtocol) -> bytes:
    """The line for the next hop."""
    return UPSTREAM_HELLO[line[:4].upper(), upstream] + line[4:]


def client_hello_reply(
    reply: bytes, line: bytes, hostname: str, *, trusted: bool, limit: int
) -> bytes:
    """The reply to the client's EHLO, made from the next hop's reply."""
    name = hostname.encode("ascii", "replace")
    if line[:4].upper() == b"HELO":
        return b"250 " + name + b"\r\n"
    kept = [name]
    for offer in reply.split(b"\r\n")[1:-1]:
        words = offer[4:].split()
        keyword = words[0].upper() if words else b""
        if keyword == b"SIZE":
            kept.append(_size(words, limit))
        elif keyword in RELAYED_KEYWORDS or (trusted and keyword in TRUSTED_KEYWORDS):
            kept.append(offer[4:])
    lines = [b"250-" + text for text in kept[:-1]] + [b"250 " + kept[-1]]
    return b"\r\n".join(lines) + b"\r\n"


def _size(words: list[bytes], limit: int) -> bytes:
    theirs = int(words[1]) if len(words) > 1 and _NUMBER.fullmatch(words[1]) else 0
    both = [number for number in (theirs, limit) if number]
    return b"SIZE %d" % min(both) if both else b"SIZE"
