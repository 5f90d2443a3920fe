"""One milter listener and its connections.

To an MTA a connection that is closed at once is a filter that is down: it does what its
`milter_default_action` or `F=` says. Failure: an exception ends one connection, is counted, and is
logged with an incident id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, cast

from spamnb.endpoints.milter.actions import CloseConnection, SendPackets
from spamnb.endpoints.milter.params import MilterParams
from spamnb.endpoints.milter.session import PROGRESS_S, MilterSession
from spamnb.endpoints.net.listener import ScanListener
from spamnb.endpoints.net.peers import peer_of
from spamnb.endpoints.net.scan_actions import LogMessage, StartScan, StopScan, Withdraw
from spamnb.service.scanning.types import MessageScanner, ScanRequest, ScanResult
from spamnb.service.telemetry.log import incident


class MilterListener(ScanListener[MilterParams, MessageScanner]):
    """The connections of one listener."""

    def protocol(self) -> MilterConnection:
        """Make the protocol of a new connection."""
        return MilterConnection(self)


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
        self.resume_after_memory()

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
