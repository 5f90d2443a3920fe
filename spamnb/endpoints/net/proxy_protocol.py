"""Parse the PROXY protocol header, versions 1 and 2: the address of the proxied client.

Pure: bytes in, a value out. Bounded: a version 1 header has at most 107 bytes, a version 2 header 4
KB here (the rest would be TLVs that no proxy sends to a mail server). Fails with ValueError for an
invalid header; None means that more bytes are needed. See proxy-protocol.txt, 2.1 and 2.2.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from spamnb.endpoints.net.networks import UNIX

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
MAX_TEXT_BYTES = 107
MAX_BINARY_BYTES = 4096

_FAMILIES = {1: 12, 2: 36, 3: 216}
"""family -> bytes of its addresses: AF_INET, AF_INET6, AF_UNIX"""


class ProxiedClient(NamedTuple):
    """The content of a header."""

    address: str
    """the client's; empty for the proxy's own connections (LOCAL, UNKNOWN)"""
    used: int
    """length of the header in bytes"""


def parse(data: bytes) -> ProxiedClient | None:
    """Parse the header at the start of a connection."""
    if data[:1] == b"P":
        return _text(data)
    if SIGNATURE.startswith(data[:12]):
        return _binary(data)
    raise ValueError("no PROXY header")


def _text(data: bytes) -> ProxiedClient | None:
    if not data.startswith(b"PROXY "[: len(data)]):
        raise ValueError("no PROXY header")
    end = data.find(b"\r\n", 0, MAX_TEXT_BYTES)
    if end < 0:
        if len(data) >= MAX_TEXT_BYTES:
            raise ValueError("a PROXY line without an end")
        return None
    words = data[:end].decode("ascii", "replace").split(" ")
    if words[1] == "UNKNOWN":
        return ProxiedClient("", end + 2)
    if len(words) != 6 or words[1] not in {"TCP4", "TCP6"}:
        raise ValueError("a PROXY line of an unknown form")
    address = ipaddress.ip_address(words[2])
    ipaddress.ip_address(words[3])
    if address.version != int(words[1][3]) or not (_is_port(words[4]) and _is_port(words[5])):
        raise ValueError("a PROXY line with invalid addresses")
    return ProxiedClient(str(address), end + 2)


def _is_port(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 5 and int(word) <= 65535


def _binary(data: bytes) -> ProxiedClient | None:
    if len(data) < 16:
        return None
    version_command, family, length = struct.unpack_from("!BBH", data, 12)
    if version_command not in {0x20, 0x21} or length > MAX_BINARY_BYTES:
        raise ValueError("a PROXY header of an unknown version, or too long")
    if len(data) < 16 + length:
        return None
    if version_command == 0x20 or family >> 4 == 0:
        return ProxiedClient("", 16 + length)
    needed = _FAMILIES.get(family >> 4)
    if needed is None or length < needed:
        raise ValueError("a PROXY header of an unknown family, or too short")
    if needed == 216:
        return ProxiedClient(UNIX, 16 + length)
    size = 4 if needed == 12 else 16
    return ProxiedClient(str(ipaddress.ip_address(data[16 : 16 + size])), 16 + length)
