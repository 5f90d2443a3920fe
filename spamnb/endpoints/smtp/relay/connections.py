"""The connections of a session: they move bytes, tell the time, and perform the session's actions.

They work with asyncio's event loop and with uvloop. uvloop raises on a write to a closed transport,
so nothing is written to a closing one. An exception in a session ends that session with a 421, is
counted, and is logged with an incident id; other sessions are not affected.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, cast

from spamnb.endpoints.net import scan_actions
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.endpoints.net.peers import acknowledge_at_once, peer_of, tcp_socket_of
from spamnb.endpoints.smtp.relay import actions, replies
from spamnb.endpoints.smtp.relay.actions import MEMORY, ROOM, STUCK
from spamnb.endpoints.smtp.relay.connection_limits import ConnectionLimits
from spamnb.endpoints.smtp.relay.listener_log import ListenerLog
from spamnb.endpoints.smtp.relay.params import ListenerParams
from spamnb.endpoints.smtp.relay.session import RelaySession
from spamnb.service.scanning.types import MessageScanner, ScanRequest, ScanResult, StopScan
from spamnb.service.telemetry.metrics import Meters

_BUFFER = memoryview(bytearray(131072))
"""One read buffer for all connections: no other code runs between `get_buffer` and
`buffer_updated`. Without it asyncio allocates 256 KB for each read, which cost a third of a 5 KB
message's CPU time."""

_SMALL_BUFFER = _BUFFER[:4096]

_NO_POLL = select.poll().poll
"""a poll object with nothing registered: the result is always empty"""

_LOOPBACK_FAMILY = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


@dataclass(slots=True, kw_only=True, eq=False)
class ListenerState:
    """What the connections of one listener share."""

    params: ListenerParams
    scanner: MessageScanner
    meters: Meters
    budget: MemoryBudget
    loop: asyncio.AbstractEventLoop
    log: ListenerLog
    connection_limits: ConnectionLimits
    watch: Callable[[], None]
    """starts to check deadlines"""
    is_closing: bool = False
    """whether the daemon shuts down"""
    connections: set[ClientConnection] = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """set when the last connection has ended"""

    def enter(self, connection: ClientConnection) -> None:
        """Register a new connection."""
        self.meters.count("connections")
        self.connections.add(connection)
        self.connection_limits.open += 1
        self.watch()

    def leave(self, connection: ClientConnection) -> None:
        """Remove a connection. A second call for the same connection does nothing."""
        if connection in self.connections:
            self.connections.discard(connection)
            self.connection_limits.leave(connection.counted_address)
            if not self.connections:
                self.empty.set()


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
            self._client.run(self._client.session.upstream_connected)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next hop's bytes."""
        del sizehint
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the next hop's bytes to the session."""
        if self._client is not None:
            self._client.run(self._client.session.upstream_bytes, bytes(_BUFFER[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the session that the next hop's connection has ended."""
        del exc
        client, self._client = self._client, None
        if client is not None:
            client.run(client.session.upstream_lost)

    def pause_writing(self) -> None:
        """Stop reading from the client while the next hop's write buffer is full."""
        if self._client is not None:
            self._client.run(self._client.session.pause, ROOM)

    def resume_writing(self) -> None:
        """Continue reading from the client."""
        if self._client is not None:
            self._client.run(self._client.session.resume, ROOM)

    def detach(self) -> asyncio.Transport | None:
        """Ignore all further events; return the transport if it is open."""
        self._client = None
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport


class ClientConnection(asyncio.BufferedProtocol):
    """The connection to a client: runs its session."""

    __slots__ = (
        "_connecting",
        "_held_bytes",
        "_is_lost",
        "_listener",
        "_now",
        "_share",
        "_stop_scan",
        "_tcp",
        "_transport",
        "_upstream",
        "count_keys",
        "counted_address",
        "session",
    )  # fmt: skip

    session: RelaySession
    _transport: asyncio.Transport

    def __init__(self, listener: ListenerState) -> None:
        self._listener, self._now = listener, listener.loop.time
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._stop_scan: StopScan | None = None
        self._is_lost = False
        self._held_bytes = 0
        self._share = listener.budget.shares[False]
        """of the memory for messages, from which the held bytes are taken"""
        self.count_keys: tuple[str, ...] = ()
        """keys that the connection to the next hop is counted under"""
        self.counted_address = ""
        """the address that an untrusted client is counted under"""

    def run(self, event: Callable[..., None], *args: Any) -> None:
        """Pass an event to the session, and perform the actions that follow."""
        output = self.session.output
        try:
            event(*args, self._now())
            while output.actions:
                action = output.actions.popleft()
                self._PERFORM[type(action)](self, action)
            if output.held_bytes != self._held_bytes:
                self._account(output.held_bytes)
        except Exception:  # noqa: BLE001 - the boundary of a session
            self._recover(event, self._listener.log.fault())
        if self._is_lost and self.session.stage == "closed":
            self._listener.leave(self)

    def _recover(self, event: Callable[..., None], incident: str) -> None:
        """Tell the session of an exception; if that fails, stop it; if that fails, disconnect."""
        session = self.session
        if event == session.stop:
            self.break_off()
        elif event == session.fault:
            self.run(session.stop, replies.FAULT_CLOSING)
        else:
            self.run(session.fault, incident)

    def break_off(self) -> None:
        """Close both connections immediately."""
        self._drop_upstream()
        self._transport.abort()
        self._listener.leave(self)

    # -- events -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session of a new client."""
        listener, peer = self._listener, peer_of(transport)
        self._transport = cast("asyncio.Transport", transport)
        self._tcp = tcp_socket_of(transport, peer)
        self.session = RelaySession(listener.params, listener.meters, peer, self._now())
        self.session.client.is_closing = listener.is_closing
        if peer:
            listener.enter(self)
            self.run(self.session.begin)
        else:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the client's bytes; a small one while memory is short."""
        del sizehint
        return _BUFFER if self._listener.budget.has_room else _SMALL_BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the client's bytes to the session."""
        self.run(self.session.client_bytes, bytes(_BUFFER[:nbytes]))

    def eof_received(self) -> bool:
        """The client has closed its sending side; it may still read."""
        self.run(self.session.client_eof)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the session that the client's connection has ended."""
        del exc
        self._is_lost = True
        self.run(self.session.client_lost)

    def pause_writing(self) -> None:
        """Stop reading commands, because the client does not read replies."""
        self.run(self.session.pause, STUCK)

    def resume_writing(self) -> None:
        """The client reads again."""
        self.run(self.session.resume, STUCK)

    # -- actions ----------------------------------------------------------------------------------

    def _admit(self, action: actions.AdmitClient) -> None:
        reply = self._listener.connection_limits.refusal_for(action.address, trusted=action.trusted)
        if not reply and not action.trusted:
            self.counted_address = action.address
        self.run(self.session.admitted, reply)

    def _send_client(self, action: actions.SendClient) -> None:
        if not self._transport.is_closing():
            self._transport.write(action.data)
            acknowledge_at_once(self._tcp)

    def _hang_up(self, _action: actions.HangUp) -> None:
        self._transport.close()

    def _abort(self, _action: actions.Abort) -> None:
        self._transport.abort()

    def _pause_reading(self, _action: actions.PauseReading) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self, _action: actions.ResumeReading) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _resume_later(self, _action: actions.ResumeLater) -> None:
        self._listener.loop.call_soon(self.run, self.session.resume, 0)

    def _ask_upstream(self, action: actions.AskUpstream) -> None:
        upstream = self._upstream
        if upstream is None or upstream.transport is None:
            return
        if upstream.unread(0):
            self.run(self.session.unexpected_data)
        elif not upstream.transport.is_closing():
            upstream.transport.write(action.data)

    def _send_upstream(self, action: actions.SendUpstream) -> None:
        upstream = self._upstream
        if upstream is None or upstream.transport is None:
            return
        if not upstream.transport.is_closing():
            upstream.transport.write(action.data)

    def _connect_upstream(self, action: actions.ConnectUpstream) -> None:
        limits = self._listener.connection_limits
        self.count_keys, refusal = limits.claim_upstream(self.session.client, action.address)
        if refusal:
            self.run(self.session.stop, refusal)
            return
        self._upstream = UpstreamConnection(self)
        self._connecting = self._listener.loop.create_task(
            _connect(self._listener.loop, action.address, self._upstream)
        )

    def _drop_upstream(self, _action: actions.DropUpstream | None = None) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None and (transport := self._upstream.detach()):
            transport.abort()
        self._forget_upstream()

    def _quit_upstream(self, _action: actions.QuitUpstream) -> None:
        if self._upstream is not None and (transport := self._upstream.detach()):
            transport.write(b"QUIT\r\n")
            transport.close()
        self._forget_upstream()

    def _forget_upstream(self) -> None:
        self._upstream = self._connecting = None
        count_keys, self.count_keys = self.count_keys, ()
        self._listener.connection_limits.release_upstream(count_keys)

    def _start_scan(self, action: scan_actions.StartScan) -> None:
        done = partial(self._scan_done, action.request)
        stop = self._listener.scanner.scan(action.request, done)
        if self._is_scanning(action.request):
            self._stop_scan = stop

    def _is_scanning(self, request: ScanRequest) -> bool:
        transfer = self.session.transfer
        return transfer is not None and transfer.request is request

    def _scan_done(self, request: ScanRequest, result: ScanResult) -> None:
        if self._is_scanning(request):
            self._stop_scan = None  # it holds the message
        self.run(self.session.scan_done, request, result)

    def _end_scan(self, action: scan_actions.StopScan) -> None:
        stop, self._stop_scan = self._stop_scan, None
        if stop is not None:
            stop(action.reason)
        elif action.reason:
            # The scan was not started, so it has no result.
            self.run(self.session.stop, replies.FAULT_CLOSING)

    def _withdraw(self, action: scan_actions.Withdraw) -> None:
        action.delete()

    def _log_refused(self, action: actions.LogRefused) -> None:
        self._listener.log.refused(action.peer, action.address, action.reply)

    def _log_upstream_lost(self, action: actions.LogUpstreamLost) -> None:
        self._listener.log.upstream_lost(action.address, action.step)

    def _log_message(self, action: scan_actions.LogMessage) -> None:
        self._listener.log.write(action.record)

    _PERFORM: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        actions.AdmitClient: _admit,
        actions.SendClient: _send_client,
        actions.HangUp: _hang_up,
        actions.Abort: _abort,
        actions.PauseReading: _pause_reading,
        actions.ResumeReading: _resume_reading,
        actions.ResumeLater: _resume_later,
        actions.SendUpstream: _send_upstream,
        actions.AskUpstream: _ask_upstream,
        actions.ConnectUpstream: _connect_upstream,
        actions.DropUpstream: _drop_upstream,
        actions.QuitUpstream: _quit_upstream,
        scan_actions.StartScan: _start_scan,
        scan_actions.StopScan: _end_scan,
        scan_actions.Withdraw: _withdraw,
        actions.LogRefused: _log_refused,
        actions.LogUpstreamLost: _log_upstream_lost,
        scan_actions.LogMessage: _log_message,
    }

    # -- memory -----------------------------------------------------------------------------------

    def _account(self, held: int) -> None:
        """Take the memory that the session holds from its client's share, or give it back."""
        before, self._held_bytes = self._held_bytes, held
        if not before:
            self._share = self._listener.budget.shares[self.session.client.trusted]
        if held > before:
            transfer = self.session.transfer
            self._share.take(held - before, self, transfer.size if transfer is not None else held)
        else:
            self._share.give(before - held)
        if not self._held_bytes:
            self._share.forget(self)

    def pause_for_memory(self) -> None:
        """Stop reading because the process's memory budget is used up."""
        self.run(self.session.pause, MEMORY)

    def resume_after_memory(self) -> None:
        """Read again: the memory budget has room."""
        self.run(self.session.resume, MEMORY)

    def memory_cost(self, now: float) -> float:
        """Byte-seconds that the current message has cost, if the client must send the rest."""
        transfer = self.session.transfer
        return transfer.memory_cost(now) if transfer is not None else 0.0

    def shed(self) -> int:
        """End the session to free memory for others; returns the bytes that it freed."""
        before = self._listener.budget.used
        self.run(self.session.shed)
        return before - self._listener.budget.used


async def _connect(
    loop: asyncio.AbstractEventLoop, address: Address, upstream: UpstreamConnection
) -> None:
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


async def _connect_loopback(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    """Connect to a port of this host.

    The connection completes immediately, and a second call of `connect` reports it. asyncio would
    wait in the event loop, which takes 85 us of CPU a connection instead of 57. uvloop's own method
    takes 25 us.
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
