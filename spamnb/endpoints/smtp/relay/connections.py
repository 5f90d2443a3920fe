"""The asyncio protocols of a session's two connections: client and next hop.

They work with asyncio's event loop and with uvloop. uvloop raises on a write to a closed transport,
so nothing is written to a closing one. An exception in a session ends that session with a 421, is
counted, and is logged with an incident id; other sessions are not affected.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Protocol, cast

from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.networks import UNIX
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.message_transfer import MessageTransfer
from spamnb.endpoints.smtp.relay.ports import INPUT, MEMORY, ROOM, STUCK, ListenerContext
from spamnb.endpoints.smtp.relay.session import RelaySession

_BUFFER = memoryview(bytearray(131072))
"""One read buffer for all connections: no other code runs between `get_buffer` and
`buffer_updated`. Without it asyncio allocates 256 KB for each read, which cost a third of a 5 KB
message's CPU time."""

_SMALL_BUFFER = _BUFFER[:4096]

_NO_POLL = select.poll().poll
"""a poll object with nothing registered: the result is always empty"""

_LOOPBACK_FAMILY = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}

ANY = INPUT | ROOM | MEMORY | STUCK


class ConnectionContext(ListenerContext, Protocol):
    """The listener, as its connections see it."""

    loop: asyncio.AbstractEventLoop

    def enter(self, connection: ClientConnection) -> None:
        """Register a new connection."""

    def leave(self, connection: ClientConnection) -> None:
        """Remove a connection. A second call for the same connection does nothing."""

    def claim_upstream(self, connection: ClientConnection, address: Address) -> bytes:
        """Count a connection to the next hop, or return the reply that refuses it."""

    def release_upstream(self, connection: ClientConnection) -> None:
        """Stop counting the connection's next-hop connection. A second call does nothing."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """The connection to the next hop."""

    __slots__ = ("_client", "transport", "unread")

    def __init__(self, client: ClientConnection) -> None:
        self._client: ClientConnection | None = client
        self.unread = _NO_POLL
        """polls the descriptor in 1 us; a read takes 3"""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the session that the next hop is connected, or close if the session has gone."""
        self.transport = cast("asyncio.Transport", transport)
        if self._client is None:
            transport.close()
        else:
            poll = select.poll()
            poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
            self.unread = poll.poll
            self._client.upstream_connected()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next hop's bytes."""
        del sizehint
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the next hop's bytes to the session."""
        if self._client is not None:
            self._client.upstream_data(bytes(_BUFFER[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the session that the next hop's connection has ended."""
        del exc
        client, self._client = self._client, None
        if client is not None:
            client.upstream_lost()

    def pause_writing(self) -> None:
        """Stop reading from the client while the next hop's write buffer is full."""
        if self._client is not None:
            self._client.pause_reading(ROOM)

    def resume_writing(self) -> None:
        """Continue reading from the client."""
        if self._client is not None:
            self._client.upstream_writable()

    def detach(self) -> asyncio.Transport | None:
        """Ignore all further events; returns the transport if it is open."""
        self._client = None
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport


class ClientConnection(asyncio.BufferedProtocol):
    """The connection to a client; implements `SessionIO` for its session."""

    __slots__ = (
        "_connecting", "_context", "_lost", "_pause_reasons", "_transport", "_upstream",
        "count_keys", "now", "session",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._transport: asyncio.Transport | None = None
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._pause_reasons = 0
        self._lost = False
        self.count_keys: tuple[str, ...] = ()
        """keys that the connection to the next hop is counted under"""
        self.now = context.loop.time
        self.session: RelaySession | None = None

    # -- events -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session of a new client."""
        self._transport = cast("asyncio.Transport", transport)
        peer = peer_of(transport)
        if peer:
            self.session = RelaySession(self, self._context, peer)
            self._context.enter(self)
            self._guarded(self.session.begin)
        else:
            transport.abort()  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the client's bytes; a small one while memory is short."""
        del sizehint
        return _BUFFER if self._context.budget.has_room else _SMALL_BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the client's bytes to the session."""
        session = self.session
        if session is not None and not session.closed:
            try:
                session.from_client(bytes(_BUFFER[:nbytes]))
            except Exception:  # noqa: BLE001 - the boundary of a session
                self._fail()

    def eof_received(self) -> bool:
        """The client has closed its sending side; it may still read."""
        if self.session is not None and not self.session.closed:
            self._guarded(self.session.client_eof)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the session that the client's connection has ended."""
        del exc
        self._lost = True
        if self.session is not None:
            self._guarded(self.session.client_lost)
            self.part()

    def part(self) -> None:
        """Unregister the connection once the next hop has answered the last message, too."""
        if self._lost and self.session is not None and self.session.transfer is None:
            self._context.leave(self)

    def expire(self) -> None:
        """Handle the session's passed deadline."""
        session = self.session
        if session is not None and session.closed and session.transfer is None:
            self.abort()
        elif session is not None:
            self._guarded(session.expire)
            self.part()

    def pause_writing(self) -> None:
        """The client does not read: stop reading its commands."""
        if self.session is not None:
            self.session.client_full()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self.session is not None:
            self._guarded(self.session.client_drained)

    def upstream_connected(self) -> None:
        """Tell the session that the next hop is connected."""
        if self.session is not None:
            self._guarded(self.session.upstream_connected)

    def upstream_data(self, data: bytes) -> None:
        """Pass the next hop's bytes to the session."""
        session = self.session
        if session is not None:
            try:
                session.hop.receive(data)
            except Exception:  # noqa: BLE001 - the boundary of a session
                self._fail()
            if self._lost:
                self.part()

    def upstream_lost(self) -> None:
        """Tell the session that the next hop's connection has ended."""
        if self.session is not None:
            self._guarded(self.session.upstream_lost)
            self.part()

    def upstream_writable(self) -> None:
        """Continue after the next hop's write buffer has drained."""
        self.resume_reading(ROOM)
        if self.session is not None:
            self._guarded(self.session.resume)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001 - the boundary of a session
            self._fail()

    def _fail(self) -> None:
        """End the session with a 421 after an exception; the client keeps its message."""
        self._context.fault()
        try:
            if self.session is not None:
                self.session.stop(replies.FAULT_CLOSING)
        except Exception:  # noqa: BLE001 - the same fault again
            self._context.fault()
        self.drop()
        self.hang_up()

    # -- SessionIO --------------------------------------------------------------------------------

    def write_client(self, data: bytes) -> None:
        """Send bytes to the client."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def write_upstream(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the next hop."""
        upstream = self._upstream
        if upstream is not None and upstream.transport is not None:
            transport = upstream.transport
            if not transport.is_closing():
                transport.write(data)

    def connect_upstream(self, address: Address) -> bytes:
        """Begin to connect to the next hop, or return the reply that refuses it."""
        if refusal := self._context.claim_upstream(self, address):
            return refusal
        self._upstream = UpstreamConnection(self)
        self._connecting = self._context.loop.create_task(
            self._connect_upstream(address, self._upstream)
        )
        return b""

    async def _connect_upstream(self, address: Address, upstream: UpstreamConnection) -> None:
        loop = self._context.loop
        try:
            if address.path:
                await loop.create_unix_connection(lambda: upstream, address.path)
            elif address.host in _LOOPBACK_FAMILY and isinstance(loop, asyncio.SelectorEventLoop):
                await loop.create_connection(
                    lambda: upstream, sock=await _connect_loopback(loop, address)
                )
            else:
                await loop.create_connection(lambda: upstream, address.host, address.port)
        except (OSError, ValueError):  # an invalid host name is a ValueError
            upstream.connection_lost(None)

    def has_unread(self) -> bool:
        """Whether bytes or an end of file from the next hop have arrived and are unread."""
        upstream = self._upstream
        return upstream is not None and bool(upstream.unread(0))

    def drop(self) -> None:
        """Abort the next hop's connection."""
        self.resume_reading(ROOM)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None and (transport := self._upstream.detach()):
            transport.abort()
        self._upstream = self._connecting = None
        self._context.release_upstream(self)

    def leave(self) -> None:
        """Send QUIT to the next hop and close, without waiting for its reply."""
        self.resume_reading(ROOM)
        if self._upstream is not None and (transport := self._upstream.detach()):
            transport.write(b"QUIT\r\n")
            transport.close()
        self._upstream = self._connecting = None
        self._context.release_upstream(self)

    def hang_up(self) -> None:
        """Close the client's connection after all replies are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the client's connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self, reason: int) -> None:
        """Stop reading from the client for this reason."""
        if (
            not self._pause_reasons
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._transport.pause_reading()
        self._pause_reasons |= reason

    def resume_reading(self, reason: int) -> None:
        """Remove this reason; read from the client if no other is left."""
        if self._pause_reasons & reason:
            self._pause_reasons &= ~reason
            transport = self._transport
            if not self._pause_reasons and transport is not None and not transport.is_closing():
                transport.resume_reading()

    def is_paused(self, reason: int = ANY) -> bool:
        """Whether reading has stopped for this reason, or for any."""
        return bool(self._pause_reasons & reason)

    def pause_for_memory(self) -> None:
        """Stop reading because the process's memory budget is used up."""
        self.pause_reading(MEMORY)

    def resume_after_memory(self) -> None:
        """Read again: the memory budget has room."""
        self.resume_reading(MEMORY)

    @property
    def transfer(self) -> MessageTransfer | None:
        """The message transfer in progress."""
        return self.session.transfer if self.session is not None else None

    def memory_cost(self, now: float) -> float:
        """Byte-seconds that the current message has cost, if the client must send the rest."""
        transfer = self.transfer
        return transfer.memory_cost(now) if transfer is not None else 0.0

    def shed(self) -> int:
        """End the session to free memory for others; returns the bytes that it freed."""
        before = self._context.budget.used
        if (transfer := self.transfer) is not None:
            self._guarded(transfer.shed)
            self.part()
        return before - self._context.budget.used

    def resume_later(self) -> None:
        """Call the session's `resume` after other sessions have run."""
        if self.session is not None:
            self._context.loop.call_soon(self._guarded, self.session.resume)


async def _connect_loopback(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    """Connect to a port of this host.

    The connection completes immediately, and a second `connect` call reports it. asyncio waits for
    it in the event loop: 85 us of CPU a connection instead of 57. uvloop's own way takes 25.
    """
    sock = socket.socket(_LOOPBACK_FAMILY[address.host])
    try:
        sock.setblocking(False)
        if sock.connect_ex((address.host, address.port)):
            await loop.sock_connect(sock, (address.host, address.port))
    except BaseException:
        sock.close()
        raise
    return sock


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The peer's address; empty if the peer has already left."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and name:
        return str(name[0])
    # A disconnected TCP peer has no name either and must not be taken for a unix socket's peer.
    sock = transport.get_extra_info("socket")
    return UNIX if sock is not None and sock.family == socket.AF_UNIX else ""
