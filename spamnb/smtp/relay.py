"""Listener and connections of the relay.

`RelayListener` has the sessions of one listener, their deadlines, settings and end;
`ClientConnection` and `UpstreamConnection` move the bytes of a session, tell the time, and perform
its actions. Invariant: each message and each fault is logged once.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, ClassVar, cast

from spamnb.errors import incident_id
from spamnb.mail.envelope import network_of
from spamnb.mail.limits import shown
from spamnb.net import actions
from spamnb.net import actions as scan_actions
from spamnb.net.actions import MEMORY, ROOM, STUCK, TURN
from spamnb.net.address import Address, wide_network_of
from spamnb.net.server import (
    LARGE_BYTES,
    ConnectionCounts,
    MemoryBudget,
    OpenConnections,
    acknowledge_at_once,
    after_others,
    peer_of,
    tcp_socket_of,
)
from spamnb.scan.values import MessageScanner, ScanRequest, ScanResult, StopScan
from spamnb.settings.values import ListenerParams
from spamnb.smtp import relay_replies
from spamnb.smtp.relay_session import RelaySession
from spamnb.smtp.relay_sides import ClientState
from spamnb.telemetry import Log, Meters


def _client_key(address: str) -> str:
    return f"client {network_of(address)}"


class ConnectionLimits:
    """The open connections of one listener; those of untrusted clients also by client.

    Trusted clients are bounded by the limit of all connections only.
    """

    def __init__(self, params: ListenerParams, counts: ConnectionCounts) -> None:
        self.params = params
        self.counts = counts
        """over all processes"""
        self.open = 0
        """connections of clients, admitted or not"""
        self.starved = 0
        """clients without a connection from their network that the next hop's limit refused"""
        self._untrusted = OpenConnections()
        """of untrusted clients, by wide network"""

    def refusal_for(self, address: str, *, trusted: bool) -> bytes:
        """The reply that refuses a client for lack of room; empty if the client is counted.

        A network of untrusted clients may use at most as many connections as are still free, as in
        `claim_upstream`.
        """
        limits = self.params.limits
        if self.open > limits.connections:
            return relay_replies.CROWDED
        if trusted:
            return b""
        most, network = limits.untrusted_part(limits.connections), wide_network_of(address)
        if full := self._untrusted.full(network, most, most - self._untrusted.total):
            return relay_replies.CROWDED if full == "all" else relay_replies.CROWDED_CLIENT
        if self.counts.add(_client_key(address)) > limits.connections_an_address:
            self.counts.add(_client_key(address), -1)
            return relay_replies.CROWDED_CLIENT
        self._untrusted.enter(network)
        return b""

    def leave(self, address: str) -> None:
        """Stop counting a connection; `address` is that of a counted untrusted client, or empty."""
        self.open -= 1
        if address:
            self._untrusted.leave(wide_network_of(address))
            self.counts.add(_client_key(address), -1)

    def claim_upstream(
        self, client: ClientState, upstream: Address
    ) -> tuple[tuple[str, ...], bytes]:
        """Count a connection to the next hop: the keys to release, and the reply if it is refused.

        Trusted clients are not counted. A network may use at most as many connections as are still
        free: a single network gets half, two networks get a third each, and the first client of a
        new network always gets one.
        """
        if client.trusted:
            return (), b""
        keys = (f"upstream {upstream}", f"upstream {upstream} {wide_network_of(client.address)}")
        total, theirs = [self.counts.add(key) for key in keys]
        free = self.params.limits.untrusted_part(self.params.limits.upstream_connections) - total
        if free >= 0 and theirs <= free + 1:
            return keys, b""
        self.starved += theirs == 1
        self.release_upstream(keys)
        return (), relay_replies.CROWDED if theirs == 1 else relay_replies.CROWDED_CLIENT

    def release_upstream(self, keys: tuple[str, ...]) -> None:
        """Stop counting a connection to the next hop."""
        for key in keys:
            self.counts.add(key, -1)

    def is_short(self, *, trusted: bool) -> bool:
        """Whether most of the connections for trusted or untrusted clients are used."""
        limits = self.params.limits
        untrusted = limits.untrusted_part(limits.connections)
        busy = self.open > limits.busy_share * limits.connections
        if trusted:
            return busy and self.open - self._untrusted.total > limits.connections - untrusted
        upstream = limits.untrusted_part(limits.upstream_connections)
        return (
            busy
            or self._untrusted.total > limits.busy_share * untrusted
            or self.counts.of(f"upstream {self.params.upstream}") > limits.busy_share * upstream
        )


@dataclass(slots=True)
class RateLimitedLog:
    """State of a log event that is limited.

    Untrusted clients can cause these lines as often as they like, so each event is logged at most
    once a second; the suppressed lines are counted. Each fault is logged.
    """

    logged_at: float = -inf
    suppressed: int = 0


class ListenerLog:
    """Counts and logs refused clients, failures of the next hop and faults."""

    def __init__(self, log: Log, meters: Meters, clock: Callable[[], float]) -> None:
        self.write = log
        """logs a record without a limit"""
        self._meters, self._clock = meters, clock
        self._limited: dict[str, RateLimitedLog] = {}

    def refused(self, peer: str, address: str, reply: bytes) -> None:
        """Count and log a refused client."""
        self._meters.count("connections_refused")
        self._write_limited(
            {"event": "turned-away", "peer": peer, "client": address}
            | {"code": int(reply[:3]), "reply": shown(reply.strip())}
        )

    def upstream_lost(self, address: Address, step: str) -> None:
        """Count and log a failure of the next hop."""
        self._meters.count("upstream_failures")
        self._write_limited({"event": "upstream-lost", "upstream": str(address), "step": step})

    def _write_limited(self, record: dict[str, object]) -> None:
        event, now = str(record["event"]), self._clock()
        limited = self._limited.setdefault(event, RateLimitedLog())
        if now - limited.logged_at < 1.0:
            limited.suppressed += 1
        else:
            limited.logged_at = now
            self.write(record)

    def write_suppressed(self, now: float) -> bool:
        """Log how many lines were suppressed; whether some still are."""
        for event, limited in self._limited.items():
            if limited.suppressed and now - limited.logged_at >= 1.0:
                self.write({"event": event, "more": limited.suppressed})
                limited.suppressed, limited.logged_at = 0, now
        return any(limited.suppressed for limited in self._limited.values())

    def fault(self) -> str:
        """Count and log the exception being handled; returns its incident id."""
        self._meters.count("faults")
        incident = incident_id()
        error = sys.exc_info()[1]
        frames = traceback.extract_tb(error.__traceback__) if error else []
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        what = shown(repr(error).encode("utf-8", "replace"))[:300]
        self.write({"event": "fault", "incident": incident, "error": what, "where": where})
        return incident


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
    """The connection to a client: runs its session.

    They work with asyncio's event loop and with uvloop. uvloop raises on a write to a closed
    transport, so nothing is written to a closing one. An exception in a session ends that session
    with a 421, is counted, and is logged with an incident id; other sessions are not affected.
    """

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
            self.run(session.stop, relay_replies.FAULT_CLOSING)
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
        if self._held_bytes > LARGE_BYTES and not self.session.output.paused & TURN:
            self.run(self.session.pause, TURN)
            after_others(self._listener.loop, self._resume_turn)

    def _resume_turn(self) -> None:
        if not self._is_lost:
            self.run(self.session.resume, TURN)

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
            self.run(self.session.stop, relay_replies.FAULT_CLOSING)

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


FAIR_BYTES_S = 5000
"""A message that arrives at this rate is not ended for others: ten times the minimum rate."""


class RelayListener:
    """The sessions of one listener.

    A sweep once a second checks all deadlines (a timer for each command would cost as much as the
    command). The daemon binds the sockets.
    """

    def __init__(  # noqa: PLR0913 - the daemon gives each dependency by name
        self,
        params: ListenerParams,
        scanner: MessageScanner,
        *,
        meters: Meters,
        log: Log,
        budget: MemoryBudget,
        loop: asyncio.AbstractEventLoop,
        counts: ConnectionCounts | None = None,
    ) -> None:
        self.state = ListenerState(
            params=params,
            scanner=scanner,
            meters=meters,
            log=ListenerLog(log, meters, loop.time),
            budget=budget,
            loop=loop,
            connection_limits=ConnectionLimits(params, counts or ConnectionCounts.alone()),
            watch=self._watch,
        )
        self._sweeper: asyncio.TimerHandle | None = None

    def protocol(self) -> ClientConnection:
        """Make the protocol of a new connection."""
        return ClientConnection(self.state)

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""
        return len(self.state.connections)

    def apply_settings(self, params: ListenerParams, scanner: MessageScanner) -> None:
        """Take new settings; each session applies them between two messages."""
        state = self.state
        state.params = state.connection_limits.params = params
        state.scanner = scanner
        for connection in state.connections:
            connection.session.apply_settings(params)

    async def drain(self, seconds: float) -> None:
        """Refuse new messages; let current ones finish for up to `seconds`, then abort them."""
        state = self.state
        state.is_closing = True
        for connection in list(state.connections):
            connection.run(connection.session.drain)
        if state.connections:
            state.empty.clear()
            try:
                await asyncio.wait_for(state.empty.wait(), seconds)
            except TimeoutError:
                self._break_off()
        await asyncio.sleep(0)

    def _break_off(self) -> None:
        for connection in list(self.state.connections):
            connection.run(connection.session.stop, relay_replies.CLOSING)
            connection.break_off()

    # -- deadlines --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Check the deadlines from now on, until no connection is left."""
        if self._sweeper is None:
            state = self.state
            self._sweeper = state.loop.call_later(state.params.times.sweep_s, self._sweep)

    def _sweep(self) -> None:
        state, self._sweeper = self.state, None
        now = state.loop.time()
        short = {trusted: self._is_short(trusted=trusted) for trusted in (True, False)}
        for connection in list(state.connections):
            session = connection.session
            transfer, is_short = session.transfer, short[session.client.trusted]
            slow = transfer is not None and transfer.is_slow(now)
            if session.output.deadline <= now:
                connection.run(session.timeout)
            elif slow and is_short:
                connection.shed()
            elif is_short and session.is_idle(now):
                connection.run(session.stop, relay_replies.TIMEOUT)
        self._free_upstream_slots(now)
        state.budget.rotate(now)
        if state.log.write_suppressed(now) or state.connections:
            self._watch()

    def _is_short(self, *, trusted: bool) -> bool:
        """Whether most of the resources for trusted or untrusted clients are used."""
        state = self.state
        busy_share = state.params.limits.busy_share
        if state.budget.shares[trusted].is_beyond(busy_share):
            return True
        return state.connection_limits.is_short(trusted=trusted)

    def _free_upstream_slots(self, now: float) -> None:
        """End the slowest untrusted messages if others need their upstream connections."""
        state = self.state
        wanted, state.connection_limits.starved = state.connection_limits.starved, 0
        if not wanted:
            return
        longest = state.params.times.data_busy_s
        found = [
            (rate, at, connection)
            for at, connection in enumerate(state.connections)
            if connection.count_keys and (transfer := connection.session.transfer) is not None
            and transfer.waits_for_client and now - transfer.rate.began > longest
            and (rate := transfer.rate.of(transfer.size, now)) < FAIR_BYTES_S
        ]  # fmt: skip
        for _, _, connection in sorted(found)[:wanted]:
            connection.shed()
