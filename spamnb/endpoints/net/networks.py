"""Sets of client addresses: CIDR blocks, and `unix` for peers on a unix socket.

Checked once for each connection, so answers are cached. Must not know sockets. Fails with
ValueError for a text that is no network; an invalid address is in no set.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
UNIX = "unix"
"""the address of a client on a unix socket"""
MAX_REMEMBERED = 4096
"""bounds the cache against a scan of all IPv4 addresses; clearing it costs 2 us an address"""


class NetworkSet:
    """An immutable set of networks."""

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
