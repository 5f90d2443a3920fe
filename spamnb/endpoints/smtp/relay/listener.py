"""The front door on asyncio: what the sessions of one listener share.

Holds settings, counts of connections, the log's rules, and the sweep that looks at all deadlines
once a second (a timer for each command would cost as much as the command). Binding sockets is the
daemon's business. Invariant: each message and each fault is logged once.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from spamnb.core.mail.envelope import network_of
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.connection_counts import ConnectionCounts
from spamnb.endpoints.net.networks import wide_network_of
from spamnb.endpoints.smtp.protocol.commands import shown
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.connections import ClientConnection
from spamnb.endpoints.smtp.relay.params import ListenerParams, MemoryBudget
from spamnb.service.scanning.types import MessageScanner
from spamnb.service.telemetry.metrics import Meters

FAIR_BYTES_S = 5000
"""A message that comes so fast is not ended for others: ten times the least rate."""

Log = Callable[[dict[str, object]], None]


@dataclass(slots=True)
class RateLimitedLog:
    """A kind of log line that strangers can bring about at will."""

    told_at: float = -inf
    untold: int = 0


def _client_key(address: str) -> str:
    return f"client {network_of(address)}"


class RelayListener:
    """One listener's sessions, and what they share."""

    def __init__(  # noqa: PLR0913 - the joint where the daemon ties everything together
        self,
        door: ListenerParams,
        scanner: MessageScanner,
        *,
        meters: Meters,
        log: Log,
        budget: MemoryBudget,
        loop: asyncio.AbstractEventLoop,
        counts: ConnectionCounts | None = None,
    ) -> None:
        self.door = door
        self.scanner, self.meters, self.budget, self.loop = scanner, meters, budget, loop
        self.closing = False
        self._log = log
        self._sides: set[ClientConnection] = set()
        self._counts = counts or ConnectionCounts.alone()
        self._strangers = 0
        self._networks: Counter[str] = Counter()
        """of these, by wide network"""
        self._starved = 0
        """clients of networks without any that found no connection to the next hop left"""
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._seldom: dict[str, RateLimitedLog] = {}

    def protocol(self) -> ClientConnection:
        """Make the protocol of one more connection."""
        return ClientConnection(self)

    @property
    def open_sessions(self) -> int:
        """How many there are."""
        return len(self._sides)

    def apply_settings(self, door: ListenerParams) -> None:
        """Take new settings; each session goes over to them between two messages."""
        self.door = door

    async def drain(self, seconds: float) -> None:
        """Take no more messages; what is under way may finish, then it is broken off."""
        self.closing = True
        for side in list(self._sides):
            if side.session is not None and side.session.is_between:
                side.session.stop(replies.CLOSING)
        if self._sides:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                self._break_off()
        await asyncio.sleep(0)

    def _break_off(self) -> None:
        for side in list(self._sides):
            if side.session is not None:
                side.session.stop(replies.CLOSING)
            side.drop()
            side.abort()
            side.part()

    # -- the connections --------------------------------------------------------------------------

    def enter(self, side: ClientConnection) -> None:
        """One more connection."""
        self.meters.count("connections")
        self._sides.add(side)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self.door.times.sweep_s, self._sweep)

    def leave(self, side: ClientConnection) -> None:
        """One connection less."""
        if side not in self._sides:
            return
        self._sides.discard(side)
        if side.session is not None and side.session.access.is_counted:
            self._strangers -= 1
            network = wide_network_of(side.session.access.address)
            self._networks[network] -= 1
            if not self._networks[network]:
                del self._networks[network]
            self._counts.add(_client_key(side.session.access.address), -1)
        if not self._sides:
            self._empty.set()

    def turn_away(self, address: str, *, trusted: bool) -> bytes:
        """The reply to a client for whom there is no room.

        One network of strangers gets no more than it leaves free, as of the next hop in `claim`.
        """
        limits = self.door.limits
        if len(self._sides) > limits.connections:
            return replies.CROWDED
        if trusted:
            return b""
        free = limits.of_strangers(limits.connections) - self._strangers
        if free <= 0:
            return replies.CROWDED
        network = wide_network_of(address)
        if self._networks[network] >= free:
            return replies.CROWDED_CLIENT
        if self._counts.add(_client_key(address)) > limits.connections_an_address:
            self._counts.add(_client_key(address), -1)
            return replies.CROWDED_CLIENT
        self._strangers += 1
        self._networks[network] += 1
        return b""

    def claim(self, side: ClientConnection, address: Address) -> bytes:
        """Count a connection to the next hop, or give the reply that refuses it.

        Trusted clients are not counted. One network of others gets no more than it leaves free:
        one that wants all gets half, two a third each, and the first of another always gets one.
        """
        if side.session is None or side.session.access.trusted:
            return b""
        upstream = str(address)
        client = wide_network_of(side.session.access.address)
        side.claimed = (f"upstream {upstream}", f"upstream {upstream} {client}")
        total, theirs = [self._counts.add(key) for key in side.claimed]
        free = self.door.limits.of_strangers(self.door.limits.upstream_connections) - total
        if free >= 0 and theirs <= free + 1:
            return b""
        self._starved += theirs == 1
        self.release(side)
        return replies.CROWDED if theirs == 1 else replies.CROWDED_CLIENT

    def release(self, side: ClientConnection) -> None:
        """The side's connection to the next hop is gone."""
        claimed, side.claimed = side.claimed, ()
        for key in claimed:
            self._counts.add(key, -1)

    def _sweep(self) -> None:
        """Look at all clocks."""
        now = self.loop.time()
        short = {trusted: self._is_short(trusted=trusted) for trusted in (True, False)}
        for side in list(self._sides):
            session = side.session
            if session is None:
                continue
            transfer, is_short = session.transfer, short[session.access.trusted]
            slow = transfer is not None and transfer.is_slow(now)
            if session.deadline <= now:
                side.expire()
            elif slow and is_short:
                side.shed()
            elif is_short and session.is_idle(now):
                session.stop(replies.TIMEOUT)
        self._feed_starved(now)
        self.budget.turn(now)
        times = self.door.times
        waits = self._tell_untold(now) or self._sides
        self._sweeper = self.loop.call_later(times.sweep_s, self._sweep) if waits else None

    def _is_short(self, *, trusted: bool) -> bool:
        """Whether most of what such clients share is taken."""
        limits, sides = self.door.limits, len(self._sides)
        strangers = limits.of_strangers(limits.connections)
        crowded = sides > limits.crowded * limits.connections
        if self.budget.shares[trusted].is_beyond(limits.crowded):
            return True
        if trusted:
            return crowded and sides - self._strangers > limits.connections - strangers
        upstream = limits.of_strangers(limits.upstream_connections)
        return (
            crowded
            or self._strangers > limits.crowded * strangers
            or self._counts.of(f"upstream {self.door.upstream}") > limits.crowded * upstream
        )

    def _feed_starved(self, now: float) -> None:
        """End the slowest messages of strangers, for others that found no connection left."""
        wanted, self._starved = self._starved, 0
        if not wanted:
            return
        longest = self.door.times.crowded_data_s
        found = [
            (transfer.rate(now), at, side)
            for at, side in enumerate(self._sides)
            if side.claimed and (transfer := side.transfer) is not None
            and transfer.waits_for_client and now - transfer.began > longest
            and transfer.rate(now) < FAIR_BYTES_S
        ]  # fmt: skip
        for _, _, side in sorted(found)[:wanted]:
            side.shed()

    # -- the log ----------------------------------------------------------------------------------

    def tell(self, record: dict[str, object]) -> None:
        """Write a line to the log."""
        self._log(record)

    def tell_refused(self, peer: str, address: str, reply: bytes) -> None:
        """Count and log a client that was turned away."""
        self.meters.count("connections_refused")
        self._tell_seldom(
            {"event": "turned-away", "peer": peer, "client": address}
            | {"code": replies.code_of(reply), "reply": shown(reply.strip())}
        )

    def tell_upstream_lost(self, address: Address, step: str) -> None:
        """Count and log a next hop that failed us."""
        self.meters.count("upstream_failures")
        self._tell_seldom({"event": "upstream-lost", "upstream": str(address), "step": step})

    def _tell_seldom(self, record: dict[str, object]) -> None:
        """Log one line a second of a kind, and how many there were besides."""
        event, now = str(record["event"]), self.loop.time()
        seldom = self._seldom.setdefault(event, RateLimitedLog())
        if now - seldom.told_at < 1.0:
            seldom.untold += 1
        else:
            seldom.told_at = now
            self._log(record)

    def _tell_untold(self, now: float) -> bool:
        """Log how many lines were held back; whether some still are."""
        for event, seldom in self._seldom.items():
            if seldom.untold and now - seldom.told_at >= 1.0:
                self._log({"event": event, "more": seldom.untold})
                seldom.untold, seldom.told_at = 0, now
        return any(seldom.untold for seldom in self._seldom.values())

    def fault(self) -> str:
        """Count and log the fault that is being handled; gives its incident id."""
        self.meters.count("faults")
        incident = secrets.token_hex(4)
        error = sys.exc_info()[1]
        frames = traceback.extract_tb(error.__traceback__) if error else []
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        what = shown(repr(error).encode("utf-8", "replace"))[:300]
        self._log({"event": "fault", "incident": incident, "error": what, "where": where})
        return incident
