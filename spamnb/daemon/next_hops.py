"""Ask the next hop of each listener for its greeting: `config check` and `spamnb doctor`.

A wrong port of an upstream is a valid setting, so that `serve` starts with it; each message is then
deferred. Both commands report it by the same sentence. Failure: faults are returned, not raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spamnb.net.address import Address
from spamnb.net.clients import socket_to
from spamnb.settings import Settings

_WAIT_S = 5.0
_MOST_BYTES = 512
_REMEDY = (
    "set it to the address where the mail server takes mail back from spamnb, and check that the "
    "mail server listens there: `ss -ltn`; until then all mail of this listener is deferred"
)


class NextHopFault(NamedTuple):
    """A next hop that does not answer."""

    text: str
    remedy: str = _REMEDY


def next_hop_faults(settings: Settings) -> Iterator[NextHopFault]:
    """Yield the faults of the next hops; the delivery agent of the daemon itself is not asked."""
    for name, listener in settings.listener.items():
        if listener.upstream and listener.upstream != settings.delivery.address:
            address = Address.parse(listener.upstream)
            if fault := _fault(address):
                yield NextHopFault(
                    f"the upstream of listener.{name}, {address.socket_name}, {fault}"
                )


def _fault(address: Address) -> str:
    """Return what is wrong with a next hop; empty if it greets as a mail server does."""
    try:
        with socket_to(address, _WAIT_S) as wire:
            greeting = wire.recv(_MOST_BYTES)
            if not greeting.startswith(b"220"):
                return "does not greet as a mail server does"
            wire.sendall(b"QUIT\r\n")
            wire.recv(_MOST_BYTES)
    except OSError as error:
        return f"does not answer: {error.strerror or error}"
    return ""
