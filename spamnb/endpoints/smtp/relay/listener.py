"""One listener: its sessions, connection limits, deadlines and log lines.

A sweep once a second checks all deadlines (a timer for each command would cost as much as the
command). The daemon binds the sockets. Invariant: each message and each fault is logged once.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from dataclasses import dataclass
from math import inf

from spamnb.core.mail.envelope import network_of
from spamnb.core.mail.printable import shown
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.admission import OpenConnections
from spamnb.endpoints.net.connection_counts import ConnectionCounts
from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.endpoints.net.networks import wide_network_of
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.connections import ClientConnection
from spamnb.endpoints.smtp.relay.params import ListenerParams
from spamnb.errors import incident_id
from spamnb.service.scanning.types import MessageScanner
from spamnb.service.telemetry.log import Log
from spamnb.service.telemetry.metrics import Meters

FAIR_BYTES_S = 5000
"""A message that arrives at this rate is not ended for others: ten times the minimum rate."""


@dataclass(slots=True)
class RateLimitedLog:
    """State of a log event that untrusted clients can trigger as often as they like."""

    logged_at: float = -inf
    suppressed: int = 0


def _client_key(address: str) -> str:
    return f"client {network_of(address)}"


class RelayListener:
    """The sessions of one listener, and what they share."""

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
        self.params = params
        self.scanner, self.meters, self.budget, self.loop = scanner, meters, budget, loop
        self.closing = False
        self.log = log
        self._connections: set[ClientConnection] = set()
        self._counts = counts or ConnectionCounts.alone()
        self._untrusted = OpenConnections()
        """of untrusted clients, by wide network"""
        self._starved = 0
        """clients without a connection from their network that the next hop's limit refused"""
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._limited: dict[str, RateLimitedLog] = {}

    def protocol(self) -> ClientConnection:
        """Make the protocol of a new connection."""
        return ClientConnection(self)

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""
        return len(self._connections)

    def apply_settings(self, params: ListenerParams) -> None:
        """Take new settings; each session applies them between two messages."""
        self.params = params
        for connection in self._connections:
            connection.session.apply_settings(params)

    async def drain(self, seconds: float) -> None:
        """Refuse new messages; let current ones finish for up to `seconds`, then abort them."""
        self.closing = True
        for connection in list(self._connections):
            connection.run(connection.session.drain)
        if self._connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                self._break_off()
        await asyncio.sleep(0)

    def _break_off(self) -> None:
        for connection in list(self._connections):
            connection.run(connection.session.stop, replies.CLOSING)
            connection.break_off()

    # -- the connections --------------------------------------------------------------------------

    def enter(self, connection: ClientConnection) -> None:
        """Register a new connection."""
        self.meters.count("connections")
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self.params.times.sweep_s, self._sweep)

    def leave(self, connection: ClientConnection) -> None:
        """Remove a connection."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        if address := connection.counted_address:
            self._untrusted.leave(wide_network_of(address))
            self._counts.add(_client_key(address), -1)
        if not self._connections:
            self._empty.set()

    def refusal_for(self, address: str, *, trusted: bool) -> bytes:
        """The reply that refuses a client for lack of room; empty if the client is admitted.

        A network of untrusted clients gets at most as many connections as it leaves free, as in
        `claim_upstream`.
        """
        limits = self.params.limits
        if len(self._connections) > limits.connections:
            return replies.CROWDED
        if trusted:
            return b""
        most, network = limits.untrusted_part(limits.connections), wide_network_of(address)
        if full := self._untrusted.full(network, most, most - self._untrusted.total):
            return replies.CROWDED if full == "all" else replies.CROWDED_CLIENT
        if self._counts.add(_client_key(address)) > limits.connections_an_address:
            self._counts.add(_client_key(address), -1)
            return replies.CROWDED_CLIENT
        self._untrusted.enter(network)
        return b""

    def claim_upstream(self, connection: ClientConnection, address: Address) -> bytes:
        """Count a connection to the next hop, or return the reply that refuses it.

        Trusted clients are not counted. A network gets at most as many connections as it leaves
        free: one network alone gets half, two get a third each, and a new network's first client
        always gets one.
        """
        if connection.session.client.trusted:
            return b""
        upstream = str(address)
        client = wide_network_of(connection.session.client.address)
        connection.count_keys = (f"upstream {upstream}", f"upstream {upstream} {client}")
        total, theirs = [self._counts.add(key) for key in connection.count_keys]
        free = self.params.limits.untrusted_part(self.params.limits.upstream_connections) - total
        if free >= 0 and theirs <= free + 1:
            return b""
        self._starved += theirs == 1
        self.release_upstream(connection)
        return replies.CROWDED if theirs == 1 else replies.CROWDED_CLIENT

    def release_upstream(self, connection: ClientConnection) -> None:
        """Stop counting the connection's next-hop connection."""
        count_keys, connection.count_keys = connection.count_keys, ()
        for key in count_keys:
            self._counts.add(key, -1)

    def _sweep(self) -> None:
        now = self.loop.time()
        short = {trusted: self._is_short(trusted=trusted) for trusted in (True, False)}
        for connection in list(self._connections):
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
        self.budget.rotate(now)
        times = self.params.times
        is_needed = self._log_suppressed(now) or self._connections
        self._sweeper = self.loop.call_later(times.sweep_s, self._sweep) if is_needed else None

    def _is_short(self, *, trusted: bool) -> bool:
        """Whether most of the resources that such clients share are used."""
        limits, open_count = self.params.limits, len(self._connections)
        untrusted = limits.untrusted_part(limits.connections)
        busy = open_count > limits.busy_share * limits.connections
        if self.budget.shares[trusted].is_beyond(limits.busy_share):
            return True
        if trusted:
            return busy and open_count - self._untrusted.total > limits.connections - untrusted
        upstream = limits.untrusted_part(limits.upstream_connections)
        return (
            busy
            or self._untrusted.total > limits.busy_share * untrusted
            or self._counts.of(f"upstream {self.params.upstream}") > limits.busy_share * upstream
        )

    def _free_upstream_slots(self, now: float) -> None:
        """End the slowest untrusted messages if others need their upstream connections."""
        wanted, self._starved = self._starved, 0
        if not wanted:
            return
        longest = self.params.times.data_busy_s
        found = [
            (rate, at, connection)
            for at, connection in enumerate(self._connections)
            if connection.count_keys and (transfer := connection.session.transfer) is not None
            and transfer.waits_for_client and now - transfer.rate.began > longest
            and (rate := transfer.rate.of(transfer.size, now)) < FAIR_BYTES_S
        ]  # fmt: skip
        for _, _, connection in sorted(found)[:wanted]:
            connection.shed()

    # -- the log ----------------------------------------------------------------------------------

    def log_refused(self, peer: str, address: str, reply: bytes) -> None:
        """Count and log a refused client."""
        self.meters.count("connections_refused")
        self._log_limited(
            {"event": "turned-away", "peer": peer, "client": address}
            | {"code": int(reply[:3]), "reply": shown(reply.strip())}
        )

    def log_upstream_lost(self, address: Address, step: str) -> None:
        """Count and log a failure of the next hop."""
        self.meters.count("upstream_failures")
        self._log_limited({"event": "upstream-lost", "upstream": str(address), "step": step})

    def _log_limited(self, record: dict[str, object]) -> None:
        """Log at most one line a second for each event; count the suppressed ones."""
        event, now = str(record["event"]), self.loop.time()
        limited = self._limited.setdefault(event, RateLimitedLog())
        if now - limited.logged_at < 1.0:
            limited.suppressed += 1
        else:
            limited.logged_at = now
            self.log(record)

    def _log_suppressed(self, now: float) -> bool:
        """Log how many lines were suppressed; whether some still are."""
        for event, limited in self._limited.items():
            if limited.suppressed and now - limited.logged_at >= 1.0:
                self.log({"event": event, "more": limited.suppressed})
                limited.suppressed, limited.logged_at = 0, now
        return any(limited.suppressed for limited in self._limited.values())

    def fault(self) -> str:
        """Count and log the exception being handled; returns its incident id."""
        self.meters.count("faults")
        incident = incident_id()
        error = sys.exc_info()[1]
        frames = traceback.extract_tb(error.__traceback__) if error else []
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        what = shown(repr(error).encode("utf-8", "replace"))[:300]
        self.log({"event": "fault", "incident": incident, "error": what, "where": where})
        return incident
