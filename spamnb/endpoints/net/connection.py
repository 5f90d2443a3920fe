"""One connection of a listener: runs its session, performs its actions, accounts for its memory.

The session is the protocol without I/O: events go in, actions (`scan_actions`) come out. Failure:
an exception ends this connection, is counted, and is logged with an incident id.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, Protocol, cast

from spamnb.endpoints.net.listener import ScanListener
from spamnb.endpoints.net.peers import acknowledge_at_once, peer_of, tcp_socket_of
from spamnb.endpoints.net.scan_actions import (
    CloseConnection,
    LogMessage,
    SendBytes,
    StartScan,
    StopScan,
    Withdraw,
)
from spamnb.service.scanning.types import Done, ScanRequest, ScanResult
from spamnb.service.telemetry.log import incident

MEMORY: Final = 1
"""reading is paused: the memory budget is used up"""
UNREAD: Final = 2
"""reading is paused: the peer does not read what it was sent"""


class ScanSession(Protocol):
    """What each session of such a connection has."""

    actions: deque[Any]
    closed: bool
    deadline: float

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""

    def receive(self, chunk: bytes, now: float) -> None:
        """Take bytes from the peer."""

    def scan_done(self, request: ScanRequest, result: ScanResult, now: float) -> None:
        """Take the result of a scan."""

    def timeout(self, now: float) -> None:
        """Handle the passed deadline."""

    def close(self, now: float) -> None:
        """End the session."""


class ScanConnection(asyncio.Protocol, ABC):
    """A connection; each protocol adds how its session begins and how it scans."""

    __slots__ = (
        "_held_bytes", "_is_performing", "_listener", "_paused", "_scanned", "_share", "_stop_scan",
        "_tcp", "_transport", "session",
    )  # fmt: skip

    name: ClassVar[str]
    """in the log of faults"""
    is_trusted: ClassVar[bool]
    """which share of the memory budget it uses"""
    session: Any
    """a ScanSession"""

    def __init__(self, listener: ScanListener[Any, Any]) -> None:
        self._listener: Any = listener
        self._transport: asyncio.Transport | None = None
        self._tcp: Any = None
        self._share = listener.budget.shares[self.is_trusted]
        self._scanned: ScanRequest | None = None
        self._stop_scan: Callable[[str], None] | None = None
        self._held_bytes = self._paused = 0
        self._is_performing = False

    @abstractmethod
    def begin_session(self, peer: str, now: float) -> ScanSession:
        """Return the session of a new connection."""

    @abstractmethod
    def start(self, request: ScanRequest, done: Done) -> Callable[[str], None] | None:
        """Start a scan; return a function that ends it."""

    def run(self, event: Callable[..., None], *args: Any) -> None:
        """Pass an event to the session, and perform the actions that follow.

        If an action causes an event, the actions of that event are performed afterwards.
        """
        try:
            event(*args, self._listener.loop.time())
            if not self._is_performing:
                self._perform()
                self._account()
        except Exception as error:  # noqa: BLE001 - the boundary of a connection
            self.session.actions.clear()
            self._listener.meters.count("faults")
            incident(self._listener.log, self.name, error)
            self.break_off()

    def _perform(self) -> None:
        actions, self._is_performing = self.session.actions, True
        try:
            while actions:
                action = actions.popleft()
                self.PERFORM[type(action)](self, action)
        finally:
            self._is_performing = False

    def break_off(self) -> None:
        """Close the connection immediately."""
        self.transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if nothing is under way."""
        if self.session.is_idle and not self.session.closed:
            self.run(self.session.close)

    def check_time(self, now: float) -> None:
        """Handle a passed deadline; account for replies that the peer has read."""
        self._account()
        waits = self._paused & MEMORY and self._scanned is None
        if waits or self.session.deadline > now:
            return
        if self.session.closed:
            self.break_off()
        else:
            self.run(self.session.timeout)

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""
        assert self._transport is not None, "events come after connection_made"
        return self._transport

    # -- events -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session of a new connection."""
        peer = peer_of(transport)
        self._transport = cast("asyncio.Transport", transport)
        self._tcp = tcp_socket_of(transport, peer)
        self.session = self.begin_session(peer, self._listener.loop.time())
        if not self._listener.admit(self, peer):
            self.session.closed = True
            self.break_off()

    def data_received(self, data: bytes) -> None:
        """Pass the peer's bytes to the session."""
        self.run(self.session.receive, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session."""
        del exc
        self.run(self.session.close)
        self._set_held(0)
        self._listener.leave(self)

    def pause_writing(self) -> None:
        """The peer does not read: stop reading."""
        self._pause(UNREAD)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._resume(UNREAD)

    def _pause(self, reason: int) -> None:
        self._paused |= reason
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume(self, reason: int) -> None:
        """Read again unless another reason to pause remains."""
        self._paused &= ~reason
        if not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- actions ----------------------------------------------------------------------------------

    def _send(self, action: SendBytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(action.data)
            acknowledge_at_once(self._tcp)
            if self._listener.closing:
                self._listener.loop.call_soon(self.close_if_idle)

    def _start_scan(self, action: StartScan) -> None:
        request = self._scanned = action.request
        stop = self.start(request, partial(self._scan_done, request))
        if self._scanned is request:
            self._stop_scan = stop

    def _scan_done(self, request: ScanRequest, result: ScanResult) -> None:
        if self._scanned is request:
            self._scanned = self._stop_scan = None  # both hold the message
        self.run(self.session.scan_done, request, result)

    def _end_scan(self, action: StopScan) -> None:
        stop, self._stop_scan = self._stop_scan, None
        if stop is not None:
            stop(action.reason)

    def _withdraw(self, action: Withdraw) -> None:
        action.delete()

    def _log(self, action: LogMessage) -> None:
        self._listener.log(action.record)

    def _close(self, _action: CloseConnection) -> None:
        self.transport.close()

    PERFORM: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        SendBytes: _send,
        StartScan: _start_scan,
        StopScan: _end_scan,
        Withdraw: _withdraw,
        LogMessage: _log,
        CloseConnection: _close,
    }
    """what is done for each action"""

    # -- memory -----------------------------------------------------------------------------------

    def _account(self) -> None:
        """Take memory for the message and unread bytes from the share, or give memory back."""
        held = self.session.held_bytes
        if held or self._held_bytes:
            held += self.transport.get_write_buffer_size()
            self._set_held(held)

    def _set_held(self, held: int) -> None:
        before, self._held_bytes = self._held_bytes, held
        if held > before:
            self._share.take(held - before, self, held)
        elif held < before:
            self._share.give(before - held)
        if before and not held:
            self._share.forget(self)

    def pause_for_memory(self) -> None:
        """Stop reading because the process's memory budget is used up."""
        self._pause(MEMORY)

    def resume_after_memory(self) -> None:
        """Read again: the memory budget has room."""
        self._resume(MEMORY)

    def memory_cost(self, now: float) -> float:
        """Byte-seconds of an incomplete message; 0: the connection is not ended for others."""
        del now
        return 0.0

    def shed(self) -> int:
        """End the connection to free memory for others; returns the bytes that it freed."""
        held = self._held_bytes
        self.break_off()
        return held
