"""The two connections of a session on asyncio, around its core.

Works on asyncio's loop and on uvloop, which raises on a write to a closed transport: nothing is
written to one that is closing. A fault in a session ends that session with a 421, is counted, and
logged with an incident id; other sessions notice nothing.
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

_SCRATCH = memoryview(bytearray(131072))
"""One for all connections: nothing else runs between `get_buffer` and `buffer_updated`. Without it
asyncio asks the kernel for 256 KB for each read, which cost a third of a 5 KB message's CPU."""

_SIP = _SCRATCH[:4096]

_NOTHING = select.poll().poll
"""nothing is registered here"""

_NEAR = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}

ANY = INPUT | ROOM | MEMORY | STUCK


class ConnectionContext(ListenerContext, Protocol):
    """The front door, as its connections see it."""

    loop: asyncio.AbstractEventLoop

    def enter(self, side: ClientConnection) -> None:
        """One more connection."""

    def leave(self, side: ClientConnection) -> None:
        """One connection less; a second call for the same one does nothing."""

    def claim(self, side: ClientConnection, address: Address) -> bytes:
        """Count a connection to the next hop, or give the reply that refuses it."""

    def release(self, side: ClientConnection) -> None:
        """The side's connection to the next hop is gone; a second call does nothing."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """The connection to the next hop."""

    __slots__ = ("_client", "transport", "unread")

    def __init__(self, client: ClientConnection) -> None:
        self._client: ClientConnection | None = client
        self.unread = _NOTHING
        """polls its descriptor: 1 us, where a read costs 3"""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there, unless nobody wants it any more."""
        self.transport = cast("asyncio.Transport", transport)
        if self._client is None:
            transport.close()
        else:
            poll = select.poll()
            poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
            self.unread = poll.poll
            self._client.met()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what it says."""
        del sizehint
        return _SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        """It speaks."""
        if self._client is not None:
            self._client.heard(bytes(_SCRATCH[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        del exc
        client, self._client = self._client, None
        if client is not None:
            client.upstream_lost()

    def pause_writing(self) -> None:
        """It is slow."""
        if self._client is not None:
            self._client.hold(ROOM)

    def resume_writing(self) -> None:
        """It has room again."""
        if self._client is not None:
            self._client.roomy()

    def let_go(self) -> asyncio.Transport | None:
        """Whatever happens to it now is nobody's business; gives the transport, if it is open."""
        self._client = None
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport


class ClientConnection(asyncio.BufferedProtocol):
    """The connection to a client, and the `Ends` of its session."""

    __slots__ = (
        "_calling", "_front", "_held", "_lost", "_transport", "_upstream", "claimed", "now",
        "session",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext) -> None:
        self._front = context
        self._transport: asyncio.Transport | None = None
        self._upstream: UpstreamConnection | None = None
        self._calling: asyncio.Task[None] | None = None
        self._held = 0
        self._lost = False
        self.claimed: tuple[str, ...] = ()
        """what its connection to the next hop is counted under"""
        self.now = context.loop.time
        self.session: RelaySession | None = None

    # -- what happens -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        peer = peer_of(transport)
        if peer:
            self.session = RelaySession(self, self._front, peer)
            self._front.enter(self)
            self._guarded(self.session.begin)
        else:
            transport.abort()  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what the client says; little of it, where much is held already."""
        del sizehint
        return _SCRATCH if self._front.budget.has_room else _SIP

    def buffer_updated(self, nbytes: int) -> None:
        """The client speaks."""
        session = self.session
        if session is not None and not session.closed:
            try:
                session.from_client(bytes(_SCRATCH[:nbytes]))
            except Exception:  # noqa: BLE001 - the boundary of a session
                self._fail()

    def eof_received(self) -> bool:
        """The client will not speak again, but may still listen."""
        if self.session is not None and not self.session.closed:
            self._guarded(self.session.client_eof)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        del exc
        self._lost = True
        if self.session is not None:
            self._guarded(self.session.client_lost)
            self.part()

    def part(self) -> None:
        """The session is over, once the next hop's word on its last message is in, too."""
        if self._lost and self.session is not None and self.session.transfer is None:
            self._front.leave(self)

    def expire(self) -> None:
        """The session's deadline has passed."""
        session = self.session
        if session is not None and session.closed and session.transfer is None:
            self.abort()
        elif session is not None:
            self._guarded(session.expire)
            self.part()

    def pause_writing(self) -> None:
        """The client does not read."""
        if self.session is not None:
            self.session.client_full()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self.session is not None:
            self._guarded(self.session.client_drained)

    def met(self) -> None:
        """The next hop has taken the call."""
        if self.session is not None:
            self._guarded(self.session.upstream_met)

    def heard(self, data: bytes) -> None:
        """The next hop speaks."""
        session = self.session
        if session is not None:
            try:
                session.hop.hear(data)
            except Exception:  # noqa: BLE001 - the boundary of a session
                self._fail()
            if self._lost:
                self.part()

    def upstream_lost(self) -> None:
        """The next hop is gone."""
        if self.session is not None:
            self._guarded(self.session.upstream_lost)
            self.part()

    def roomy(self) -> None:
        """The next hop takes more."""
        self.free(ROOM)
        if self.session is not None:
            self._guarded(self.session.resume)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001 - the boundary of a session
            self._fail()

    def _fail(self) -> None:
        """A fault of ours: the client keeps its message, others notice nothing."""
        self._front.fault()
        try:
            if self.session is not None:
                self.session.stop(replies.FAULT_CLOSING)
        except Exception:  # noqa: BLE001 - the fault struck again
            self._front.fault()
        self.drop()
        self.hang_up()

    # -- what a session asks for ------------------------------------------------------------------

    def say(self, data: bytes) -> None:
        """To the client."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def pass_on(self, data: bytes | bytearray | memoryview) -> None:
        """To the next hop."""
        upstream = self._upstream
        if upstream is not None and upstream.transport is not None:
            transport = upstream.transport
            if not transport.is_closing():
                transport.write(data)

    def dial(self, address: Address) -> bytes:
        """Call the next hop, or give the reply that refuses it."""
        if refusal := self._front.claim(self, address):
            return refusal
        self._upstream = UpstreamConnection(self)
        self._calling = self._front.loop.create_task(self._dial(address, self._upstream))
        return b""

    async def _dial(self, address: Address, upstream: UpstreamConnection) -> None:
        loop = self._front.loop
        try:
            if address.path:
                await loop.create_unix_connection(lambda: upstream, address.path)
            elif address.host in _NEAR and isinstance(loop, asyncio.SelectorEventLoop):
                await loop.create_connection(lambda: upstream, sock=await _call(loop, address))
            else:
                await loop.create_connection(lambda: upstream, address.host, address.port)
        except (OSError, ValueError):  # a host name that cannot be one is a ValueError
            upstream.connection_lost(None)

    def has_unread(self) -> bool:
        """Whether bytes of the next hop, or its end, have arrived that were not read yet."""
        upstream = self._upstream
        return upstream is not None and bool(upstream.unread(0))

    def drop(self) -> None:
        """Break the next hop's connection off."""
        self.free(ROOM)
        if self._calling is not None:
            self._calling.cancel()
        if self._upstream is not None and (transport := self._upstream.let_go()):
            transport.abort()
        self._upstream = self._calling = None
        self._front.release(self)

    def leave(self) -> None:
        """Say QUIT to the next hop and close; its answer changes nothing."""
        self.free(ROOM)
        if self._upstream is not None and (transport := self._upstream.let_go()):
            transport.write(b"QUIT\r\n")
            transport.close()
        self._upstream = self._calling = None
        self._front.release(self)

    def hang_up(self) -> None:
        """Close the client's connection, once all is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def hold(self, why: int) -> None:
        """Stop reading from the client."""
        if not self._held and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._held |= why

    def free(self, why: int) -> None:
        """Go on reading, if there is no other reason not to."""
        if self._held & why:
            self._held &= ~why
            transport = self._transport
            if not self._held and transport is not None and not transport.is_closing():
                transport.resume_reading()

    def is_held(self, why: int = ANY) -> bool:
        """Whether reading has stopped for that reason, or for any."""
        return bool(self._held & why)

    def hold_for_memory(self) -> None:
        """The process holds too much."""
        self.hold(MEMORY)

    def free_for_memory(self) -> None:
        """There is memory again."""
        self.free(MEMORY)

    @property
    def transfer(self) -> MessageTransfer | None:
        """The message that is under way."""
        return self.session.transfer if self.session is not None else None

    def burden(self, now: float) -> float:
        """Byte-seconds that its message has held until now, if the client must send the rest."""
        transfer = self.transfer
        return transfer.burden(now) if transfer is not None else 0.0

    def shed(self) -> int:
        """End the session in favour of others; gives the bytes that it held."""
        before = self._front.budget.used
        if (transfer := self.transfer) is not None:
            self._guarded(transfer.shed)
            self.part()
        return before - self._front.budget.used

    def later(self) -> None:
        """Let other sessions have their turn."""
        if self.session is not None:
            self._front.loop.call_soon(self._guarded, self.session.resume)


async def _call(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    """Connect to a port of this host.

    Its answer is there at once, and a second call of `connect` fetches it. asyncio waits for it in
    the event loop: 85 us of CPU for a connection instead of 57. uvloop's own way takes 25.
    """
    sock = socket.socket(_NEAR[address.host])
    try:
        sock.setblocking(False)
        if sock.connect_ex((address.host, address.port)):
            await loop.sock_connect(sock, (address.host, address.port))
    except BaseException:
        sock.close()
        raise
    return sock


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The address of whoever is at the other end; empty if they have left already."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and name:
        return str(name[0])
    # A TCP peer that is gone has no name either, and must not pass for one on a unix socket.
    sock = transport.get_extra_info("socket")
    return UNIX if sock is not None and sock.family == socket.AF_UNIX else ""
