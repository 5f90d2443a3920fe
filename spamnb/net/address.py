"""Addresses, networks, and the header of the PROXY protocol. Must not know sockets.

Failure: ValueError, which says what is allowed.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

MailProtocol = Literal["smtp", "lmtp"]

_SCHEME = re.compile(r"(smtp|lmtp):(?://)?(?=.*[:/])", re.IGNORECASE)
_TCP = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})")
MOST_PATH_BYTES = 107
"""sun_path has 108 bytes with its NUL (unix(7))"""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address or a socket's path, for SMTP or LMTP; one of `host` and `path` is empty.

    `127.0.0.1:25`, `[::1]:25`, `localhost:25` and `unix:/path`, each with or without `smtp:`,
    `lmtp:`, `smtp://` or `lmtp://` in front.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    protocol: MailProtocol = "smtp"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse the text form."""
        scheme = _SCHEME.match(text)
        protocol: MailProtocol = "lmtp" if scheme and scheme[1].lower() == "lmtp" else "smtp"
        rest = text[scheme.end() :] if scheme else text
        if rest.startswith("unix:"):
            return cls(path=_path(rest[5:], text), protocol=protocol)
        if rest.startswith("/"):
            return cls(path=_path(rest, text), protocol=protocol)
        found = _TCP.fullmatch(rest)
        if not found or not 0 <= int(found[3]) <= 65535:
            raise ValueError(
                f"{text!r} is not an address: give host:port, [IPv6]:port or unix:/path,"
                " optionally with smtp:// or lmtp:// in front"
            )
        if found[1]:
            _check_ipv6(found[1], text)
        return cls(host=found[1] or found[2], port=int(found[3]), protocol=protocol)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can be at the other end."""
        if self.path or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def socket_name(self) -> str:
        """The text form without the protocol."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.socket_name if self.protocol == "smtp" else f"lmtp:{self.socket_name}"


def _path(path: str, text: str) -> str:
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{text!r} is not an absolute path")
    if len(path.encode()) > MOST_PATH_BYTES:
        raise ValueError(
            f"{text!r} is longer than {MOST_PATH_BYTES} bytes, the limit for a socket's path"
        )
    return path


def _check_ipv6(host: str, text: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        raise ValueError(f"{text!r} has no valid IPv6 address in its brackets") from error


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
UNIX = "unix"
"""the address of a client on a unix socket"""
MAX_REMEMBERED = 4096
"""bounds the cache against a scan of all IPv4 addresses; clearing it costs 2 us an address"""


class NetworkSet:
    """An immutable set of networks: CIDR blocks, and `unix` for peers on a unix socket.

    It is asked once for each connection, so answers are cached. An invalid address is in no set.
    """

    __slots__ = ("_known", "networks", "texts")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = tuple(texts)
        self.networks: tuple[Network, ...] = tuple(
            ipaddress.ip_network(text, strict=False) for text in self.texts if text != UNIX
        )
        self._known: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __repr__(self) -> str:
        return f"NetworkSet({self.texts!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NetworkSet) and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def contains(self, address: str) -> bool:
        """Whether an address, as text, is in one of the networks."""
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[address] = self._look(address)
        return known

    def _look(self, address: str) -> bool:
        if address == UNIX:
            return UNIX in self.texts
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        # A dual-stack listener shows IPv4 peers as ::ffff:192.0.2.1.
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
            found = found.ipv4_mapped
        return any(found in network for network in self.networks)


def wide_network_of(address: str) -> str:
    """The largest network that one customer of a provider has: 24 bits of IPv4, 48 of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return f"{int(found) >> 80:x}"
        found = found.ipv4_mapped
    return str(found).rpartition(".")[0]


LOOPBACK = NetworkSet(("127.0.0.0/8", "::1/128", UNIX))


SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
MAX_TEXT_BYTES = 107
MAX_BINARY_BYTES = 4096

_FAMILIES = {1: 12, 2: 36, 3: 216}
"""family -> bytes of its addresses: AF_INET, AF_INET6, AF_UNIX"""


def address_of_server(text: str) -> tuple[str, int]:
    """The address and the port of a name server, 53 by default."""
    host, port = text, "53"
    if text.count(":") == 1 or text.startswith("["):
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
    try:
        found = ipaddress.ip_address(host), int(port)
    except ValueError:
        found = None
    if found is None or not 0 < found[1] < 65_536:
        raise ValueError(
            f"{text!r} is not the address of a name server: give one such as 192.0.2.53,"
            " 127.0.0.1:5353 or [2001:db8::53]:53"
        )
    return str(found[0]), found[1]


class ProxiedClient(NamedTuple):
    """The content of a header."""

    address: str
    """the client's; empty for the proxy's own connections (LOCAL, UNKNOWN)"""
    used: int
    """length of the header in bytes"""


def parse(data: bytes) -> ProxiedClient | None:
    """Parse the header of the PROXY protocol, version 1 or 2, at the start of a connection.

    Bounded: a version 1 header has at most 107 bytes, a version 2 header 4 KB here (the rest would
    be TLVs that no proxy sends to a mail server). None means that more bytes are needed. See
    proxy-protocol.txt, 2.1 and 2.2.
    """
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
