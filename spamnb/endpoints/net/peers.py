"""The peer of a connection."""

from __future__ import annotations

import asyncio
import socket

from spamnb.endpoints.net.networks import UNIX


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The peer's address; empty if the peer has already left."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and name:
        return str(name[0])
    # A disconnected TCP peer has no name either and must not be taken for a unix socket's peer.
    sock = transport.get_extra_info("socket")
    return UNIX if sock is not None and sock.family == socket.AF_UNIX else ""
