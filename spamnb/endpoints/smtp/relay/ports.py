"""What a session sees of the world: its two connections, and what it shares with other sessions.

Interfaces only, so that the protocol cores need no sockets and are tried without any.
"""

from __future__ import annotations

from typing import Protocol

from spamnb.core.mail.envelope import Envelope
from spamnb.endpoints.net.address import Address, Speech
from spamnb.endpoints.smtp.relay.params import (
    ListenerParams,
    MemoryBudget,
    MemoryShare,
    PausableReader,
)
from spamnb.service.scanning.types import MessageScanner
from spamnb.service.telemetry.metrics import Meters

INPUT, ROOM, MEMORY, STUCK = 1, 2, 4, 8
"""why a client is not read: enough input waits; the next hop is slow; the process holds too much;
the client does not read our replies"""


class SessionIO(PausableReader, Protocol):
    """The two ends of a session, as a core sees them."""

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""

    def say(self, data: bytes) -> None:
        """To the client."""

    def pass_on(self, data: bytes | bytearray | memoryview) -> None:
        """To the next hop."""

    def dial(self, address: Address) -> bytes:
        """Call the next hop; `upstream_met` or `upstream_lost` follows. Or refuse with a reply."""

    def has_unread(self) -> bool:
        """Whether bytes of the next hop have arrived that were not read yet."""

    def drop(self) -> None:
        """Break the next hop's connection off: what is not complete shall not be."""

    def leave(self) -> None:
        """Say QUIT to the next hop and close."""

    def hang_up(self) -> None:
        """Close the client's connection, once all is sent."""

    def hold(self, why: int) -> None:
        """Stop reading from the client."""

    def free(self, why: int) -> None:
        """Go on reading, if there is no other reason not to."""

    def is_held(self, why: int = INPUT | ROOM | MEMORY | STUCK) -> bool:
        """Whether reading has stopped for that reason, or for any."""

    def later(self) -> None:
        """Call `resume` when other sessions had their turn."""


class ListenerContext(Protocol):
    """What the sessions of a front door share."""

    door: ListenerParams
    scanner: MessageScanner
    meters: Meters
    budget: MemoryBudget
    closing: bool

    def turn_away(self, address: str, *, trusted: bool) -> bytes:
        """The reply to a client for whom there is no room; else it is counted in."""

    def tell(self, record: dict[str, object]) -> None:
        """Write a line to the log."""

    def tell_refused(self, peer: str, address: str, reply: bytes) -> None:
        """Count and log a client that was turned away."""

    def tell_upstream_lost(self, address: Address, step: str) -> None:
        """Count and log a next hop that failed us."""

    def fault(self) -> str:
        """Count and log the fault that is being handled; gives its incident id."""


class TransferHost(Protocol):
    """A session, as the passage of a message through it sees it."""

    io: SessionIO
    place: ListenerContext
    door: ListenerParams
    speaks: Speech
    started: float
    deadline: float
    closed: bool
    eof: bool
    share: MemoryShare

    @property
    def peer(self) -> str:
        """The client socket's address."""

    @property
    def recipients(self) -> int:
        """How many the next hop has accepted."""

    @property
    def upstream(self) -> Speech | None:
        """What the next hop speaks; None if it is gone."""

    def envelope(self) -> Envelope:
        """The parsed copy of what was said."""

    def upstream_failed(self, step: str) -> None:
        """Count and log that the next hop failed us."""

    def wait(self, seconds: float) -> float:
        """Set the time at which `expire` is due; gives the time now."""

    def is_answering(self) -> bool:
        """Whether the next hop has sent something that no command asked for."""

    def drop(self) -> None:
        """Break off with the next hop."""

    def resume(self) -> None:
        """Work off what the client has sent."""

    def message_done(self, *, accepted: bool) -> None:
        """The message has its reply, or nobody who waits for one."""
