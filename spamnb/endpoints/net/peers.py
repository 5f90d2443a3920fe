"""The peer of a connection."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from spamnb.endpoints.net.networks import UNIX

_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The peer's address; empty if the peer has already left."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and name:
        return str(name[0])
    # A disconnected TCP peer has no name either and must not be taken for a unix socket's peer.
    sock = transport.get_extra_info("socket")
    return UNIX if sock is not None and sock.family == socket.AF_UNIX else ""


def tcp_socket_of(transport: asyncio.BaseTransport, peer: str) -> Any:
    """The socket for `acknowledge_at_once`; None for a unix socket, or without this option.

    The connection keeps it, because uvloop makes a new object for each call.
    """
    return None if _QUICKACK is None or peer == UNIX else transport.get_extra_info("socket")


def acknowledge_at_once(tcp_socket: Any) -> None:
    """Have the peer's next bytes acknowledged when they are read; to be called after each write.

    Otherwise the kernel waits for up to 40 ms, and a peer with Nagle's algorithm delays its next
    small write as long: Postfix writes the parts of a message to a milter one by one, and most of
    them get no reply. The option lasts until the kernel sends bytes again.
    """
    if tcp_socket is not None:
        tcp_socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
