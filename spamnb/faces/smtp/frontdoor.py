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

from spamnb.core.envelope import network_of
from spamnb.faces.smtp import replies
from spamnb.faces.smtp.address import Address
from spamnb.faces.smtp.commands import shown
from spamnb.faces.smtp.door import Budget, Door
from spamnb.faces.smtp.sides import ClientSide
from spamnb.service.letters import Scanner
from spamnb.service.meters import Meters

Log = Callable[[dict[str, object]], None]


@dataclass(slots=True)
class Seldom:
    """A kind of log line that strangers can bring about at will."""

    told_at: float = -inf
    untold: int = 0


class FrontDoor:
    """One listener's sessions, and what they share."""

    def __init__(  # noqa: PLR0913 - the joint where the daemon ties everything together
        self,
        door: Door,
        scanner: Scanner,
        *,
        meters: Meters,
        log: Log,
        budget: Budget,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.door = door
        self.scanner, self.meters, self.budget, self.loop = scanner, meters, budget, loop
        self.closing = False
        self._log = log
        self._sides: set[ClientSide] = set()
        self._by_address: Counter[str] = Counter()
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._seldom: dict[str, Seldom] = {}

    def protocol(self) -> ClientSide:
        """Make the protocol of one more connection."""
        return ClientSide(self)

    @property
    def open_sessions(self) -> int:
        """How many there are."""
        return len(self._sides)

    def renew(self, door: Door) -> None:
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

    def enter(self, side: ClientSide) -> None:
        """One more connection."""
        self.meters.count("connections")
        self._sides.add(side)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self.door.times.sweep_s, self._sweep)

    def leave(self, side: ClientSide) -> None:
        """One connection less."""
        if side not in self._sides:
            return
        self._sides.discard(side)
        if side.session is not None and side.session.guest.is_counted:
            address = network_of(side.session.guest.address)
            self._by_address[address] -= 1
            if self._by_address[address] <= 0:
                del self._by_address[address]
        if not self._sides:
            self._empty.set()

    def turn_away(self, address: str, *, trusted: bool) -> bytes:
        """The reply to a client for whom there is no room."""
        limits = self.door.limits
        if len(self._sides) > limits.connections:
            return replies.CROWDED
        if trusted:
            return b""
        customer = network_of(address)
        if self._by_address[customer] >= limits.connections_an_address:
            return replies.CROWDED_CLIENT
        self._by_address[customer] += 1
        return b""

    def _sweep(self) -> None:
        """Look at all clocks."""
        times, limits = self.door.times, self.door.limits
        now = self.loop.time()
        crowded = len(self._sides) > limits.crowded * limits.connections
        for side in list(self._sides):
            session = side.session
            if session is None:
                continue
            passage = session.passage
            slow = passage is not None and passage.is_slow(now)
            if session.deadline <= now or (slow and crowded):
                side.expire()
            elif crowded and session.is_idle(now, times.crowded_s):
                session.stop(replies.TIMEOUT)
        self.budget.turn()
        waits = self._tell_untold(now) or self._sides
        self._sweeper = self.loop.call_later(times.sweep_s, self._sweep) if waits else None

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
        seldom = self._seldom.setdefault(event, Seldom())
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
