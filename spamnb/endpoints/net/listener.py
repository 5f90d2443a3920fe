"""The connections of one listener, and what they share: limits, deadlines, drain.

The daemon binds the sockets. A connection that cannot be served is closed at once: the client then
acts as it does without a filter. Must not know protocols.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Generic, Protocol, TypeVar

from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.endpoints.net.networks import NetworkSet
from spamnb.service.telemetry.log import Log
from spamnb.service.telemetry.metrics import Meters

SWEEP_S: Final = 1.0
"""interval between two checks of all deadlines"""


class ListenerParameters(Protocol):
    """What the parameters of each kind of listener have in common."""

    @property
    def peers(self) -> NetworkSet:
        """Clients that may connect."""

    @property
    def connections(self) -> int:
        """The most connections."""


class TimedConnection(Protocol):
    """One connection of a listener."""

    def close_if_idle(self) -> None:
        """Close the connection if nothing is under way."""

    def check_time(self, now: float) -> None:
        """Handle a passed deadline."""

    def break_off(self) -> None:
        """Close the connection immediately."""


Params = TypeVar("Params", bound=ListenerParameters)
Scans = TypeVar("Scans")


class ScanListener(Generic[Params, Scans]):
    """The connections of one listener."""

    def __init__(  # noqa: PLR0913 - the daemon gives each dependency by name
        self,
        params: Params,
        scanner: Scans,
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
        self.connections: set[Any] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    @property
    def open_sessions(self) -> int:
        """The number of open connections."""
        return len(self.connections)

    def apply_settings(self, params: Params, scanner: Scans) -> None:
        """Take new settings, for messages that come from now on."""
        self.params, self.scanner = params, scanner
        for connection in self.connections:
            connection.session.params = params

    async def drain(self, seconds: float) -> None:
        """Close connections without a message; let current ones end for up to `seconds`."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_if_idle()
        if self.connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.break_off()
        await asyncio.sleep(0)

    def admit(self, connection: TimedConnection, peer: str) -> bool:
        """Register a new connection; False if it is refused."""
        self.meters.count("connections")
        reason = ""
        if not self.params.peers.contains(peer):
            reason = "not one of the listener's peers"
        elif len(self.connections) >= self.params.connections:
            reason = "too many connections"
        if reason or self.closing:
            self.meters.count("connections_refused")
            self.log({"event": "turned-away", "peer": peer, "error": reason or "closing"})
            return False
        self.connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        return True

    def leave(self, connection: TimedConnection) -> None:
        """Remove a connection. A second call does nothing."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_time(now)
        self.budget.rotate(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep) if self.connections else None
