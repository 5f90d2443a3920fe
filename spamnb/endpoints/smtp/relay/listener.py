"""One listener: its sessions, their deadlines, settings and end.

A sweep once a second checks all deadlines (a timer for each command would cost as much as the
command). The daemon binds the sockets. Invariant: each message and each fault is logged once.
"""

from __future__ import annotations

import asyncio

from spamnb.endpoints.net.connection_counts import ConnectionCounts
from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.connection_limits import ConnectionLimits
from spamnb.endpoints.smtp.relay.connections import ClientConnection, ListenerState
from spamnb.endpoints.smtp.relay.listener_log import ListenerLog
from spamnb.endpoints.smtp.relay.params import ListenerParams
from spamnb.service.scanning.types import MessageScanner
from spamnb.service.telemetry.log import Log
from spamnb.service.telemetry.metrics import Meters

FAIR_BYTES_S = 5000
"""A message that arrives at this rate is not ended for others: ten times the minimum rate."""


class RelayListener:
    """The sessions of one listener."""

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
            connection.run(connection.session.stop, replies.CLOSING)
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
                connection.run(session.stop, replies.TIMEOUT)
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
