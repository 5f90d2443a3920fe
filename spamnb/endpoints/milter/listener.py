"""One milter listener: its connections, their limits and deadlines.

The daemon binds the sockets. A connection that cannot be served is closed at once: the MTA then
does what its `milter_default_action` or `F=` says, as if the filter were down. Failure: an
exception ends one connection, is counted, and is logged with an incident id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, cast

from spamnb.endpoints.milter.actions import CloseConnection, SendPackets
from spamnb.endpoints.milter.params import MilterParams
from spamnb.endpoints.milter.session import PROGRESS_S, MilterSession
from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.endpoints.net.peers import peer_of
from spamnb.endpoints.net.scan_actions import LogMessage, StartScan, StopScan, Withdraw
from spamnb.service.scanning.types import MessageScanner, ScanRequest, ScanResult
from spamnb.service.telemetry.log import Log, incident
from spamnb.service.telemetry.metrics import Meters

SWEEP_S = 1.0
"""interval between two checks of all deadlines"""


class MilterListener:
    """The connections of one listener, and what they share."""

    def __init__(  # noqa: PLR0913 - the daemon gives each dependency by name
        self,
        params: MilterParams,
        scanner: MessageScanner,
        *,
        meters: Meters,
        log: Log,
        budget: MemoryBudget,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.params = params
        self.scanner, self.meters, self.log = scanner, meters, log
        self.budget, self.loop = budget, loop
        self.closing = False
        self._connections: set[MilterConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def protocol(self) -> MilterConnection:
        """Make the protocol of a new connection."""
        return MilterConnection(self)

    @property
    def open_sessions(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def apply_settings(self, params: MilterParams, scanner: MessageScanner) -> None:
        """Take new settings, for messages that come from now on."""
        self.params, self.scanner = params, scanner
        for connection in self._connections:
            connection.session.params = params

    async def drain(self, seconds: float) -> None:
        """Close connections without a message; let current messages end for up to `seconds`."""
        self.closing = True
        for connection in list(self._connections):
            connection.close_if_idle()
        if self._connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                for connection in list(self._connections):
                    connection.break_off()
        await asyncio.sleep(0)

    def admit(self, connection: MilterConnection, peer: str) -> bool:
        """Register a new connection; False if it is refused."""
        self.meters.count("connections")
        reason = ""
        if not self.params.peers.contains(peer):
            reason = "not one of the listener's peers"
        elif len(self._connections) >= self.params.connections:
            reason = "too many connections"
        if reason or self.closing:
            self.meters.count("connections_refused")
            self.log({"event": "turned-away", "peer": peer, "error": reason or "closing"})
            return False
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        return True

    def leave(self, connection: MilterConnection) -> None:
        """Remove a connection. A second call does nothing."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check_time(now)
        self.budget.rotate(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep) if self._connections else None


class MilterConnection(asyncio.Protocol):
    """The connection to an MTA: runs its session."""

    session: MilterSession
    _transport: asyncio.Transport

    def __init__(self, listener: MilterListener) -> None:
        self._listener = listener
        self._stop_scan: Callable[[str], None] | None = None
        self._held_bytes = 0
        self._share = listener.budget.shares[True]
        self._progress_at = 0.0

    def run(self, event: Callable[..., None], *args: Any) -> None:
        """Pass an event to the session, and perform the actions that follow."""
        try:
            event(*args, self._listener.loop.time())
            while self.session.actions:
                action = self.session.actions.popleft()
                self._PERFORM[type(action)](self, action)
            self._account(self.session.held_bytes)
        except Exception as error:  # noqa: BLE001 - the boundary of a connection
            self._listener.meters.count("faults")
            incident(self._listener.log, "milter", error)
            self.break_off()

    def break_off(self) -> None:
        """Close the connection immediately."""
        self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if it has no message."""
        if self.session.state in ("new", "ready"):
            self.run(self.session.close)

    def check_time(self, now: float) -> None:
        """Handle a passed deadline; send progress."""
        if self.session.deadline <= now:
            self.run(self.session.timeout)
        elif self.session.state == "scanning" and now >= self._progress_at:
            self._progress_at = now + PROGRESS_S
            self.run(self.session.progress)

    # -- events -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session of a new MTA."""
        listener, peer = self._listener, peer_of(transport)
        self._transport = cast("asyncio.Transport", transport)
        self.session = MilterSession(listener.params, listener.meters, peer, listener.loop.time())
        if not listener.admit(self, peer):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass the MTA's bytes to the session."""
        self.run(self.session.receive, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session."""
        del exc
        self.run(self.session.close)
        self._listener.leave(self)

    def pause_writing(self) -> None:
        """The MTA does not read: stop reading its packets."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The MTA reads again."""
        self._transport.resume_reading()

    # -- actions ----------------------------------------------------------------------------------

    def _send(self, action: SendPackets) -> None:
        if not self._transport.is_closing():
            self._transport.write(action.data)
            if self._listener.closing:
                self._listener.loop.call_soon(self.close_if_idle)

    def _start_scan(self, action: StartScan) -> None:
        self._stop_scan = None
        self._progress_at = self._listener.loop.time() + PROGRESS_S
        done = partial(self._scan_done, action.request)
        self._stop_scan = self._listener.scanner.scan(action.request, done)

    def _scan_done(self, request: ScanRequest, result: ScanResult) -> None:
        self.run(self.session.scan_done, request, result)

    def _end_scan(self, action: StopScan) -> None:
        if self._stop_scan is not None:
            self._stop_scan(action.reason)

    def _withdraw(self, action: Withdraw) -> None:
        action.delete()

    def _log(self, action: LogMessage) -> None:
        self._listener.log(action.record)

    def _close(self, _action: CloseConnection) -> None:
        self._transport.close()

    _PERFORM: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        SendPackets: _send,
        StartScan: _start_scan,
        StopScan: _end_scan,
        Withdraw: _withdraw,
        LogMessage: _log,
        CloseConnection: _close,
    }

    # -- memory -----------------------------------------------------------------------------------

    def _account(self, held: int) -> None:
        """Take the memory that the message holds from the trusted clients' share, or give it."""
        before, self._held_bytes = self._held_bytes, held
        if held > before:
            self._share.take(held - before, self, held)
        elif held < before:
            self._share.give(before - held)
        if before and not held:
            self._share.forget(self)

    def pause_for_memory(self) -> None:
        """Stop reading because the process's memory budget is used up."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_after_memory(self) -> None:
        """Read again: the memory budget has room."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def memory_cost(self, now: float) -> float:
        """Byte-seconds of the message: an MTA sends at once what it has, so it is never shed."""
        del now
        return 0.0

    def shed(self) -> int:
        """End the connection to free memory for others; returns the bytes that it freed."""
        held = self._held_bytes
        self.break_off()
        return held
