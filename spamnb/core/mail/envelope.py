"""Sender, recipients and client of a message: a parsed copy of the envelope, beside its bytes.

The copy serves rules, logs and reports; the next hop always gets the original bytes (filters that
wrote a parsed envelope out again have become open relays). Must not know sockets. Parsing never
fails: an unreadable part gives an empty text, and does not change what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple


class Client(NamedTuple):
    """The client that handed the message to this site, as far as trusted peers report it."""

    address: str = ""
    """IP address; by XFORWARD or PROXY if a trusted peer sent one, else the socket's"""
    name: str = ""
    helo: str = ""
    ident: str = ""
    """the queue id at the peer (XFORWARD IDENT)"""
    source: str = ""
    """XFORWARD SOURCE: LOCAL or REMOTE"""


def network_of(address: str) -> str:
    """The network of one customer: an IPv4 address, or 64 bits of IPv6."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped else str(int(found) >> 64)
    return str(found)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message's envelope."""

    sender: str = ""
    """without the angle brackets; empty for the null sender"""
    recipients: tuple[str, ...] = ()
    """those that the next hop accepted"""
    client: Client = field(default_factory=Client)
    mail_line: bytes = b""
    """the command as it came, with its parameters, without CRLF"""
    rcpt_lines: tuple[bytes, ...] = ()
    """one for each of `recipients`"""
    xforward_lines: tuple[bytes, ...] = ()
