"""What a session needs from outside: its two connections, and what the listener's sessions share.

Interfaces only, so that the protocol core needs no sockets.
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
"""reasons not to read from a client: enough input is buffered; the next hop is slow; the memory
budget is used up; the client does not read its replies"""


class SessionIO(PausableReader, Protocol):
    """The two connections of a session."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""

    def write_client(self, data: bytes) -> None:
        """Send bytes to the client."""

    def write_upstream(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the next hop."""

    def connect_upstream(self, address: Address) -> bytes:
        """Begin to connect to the next hop, or return the reply that refuses it.

        `upstream_connected` or `upstream_lost` follows.
        """

    def has_unread(self) -> bool:
        """Whether bytes from the next hop have arrived and are unread."""

    def drop(self) -> None:
        """Abort the next hop's connection, so that an incomplete message is never completed."""

    def leave(self) -> None:
        """Send QUIT to the next hop and close."""

    def hang_up(self) -> None:
        """Close the client's connection after all replies are sent."""

    def pause_reading(self, reason: int) -> None:
        """Stop reading from the client for this reason."""

    def resume_reading(self, reason: int) -> None:
        """Remove this reason; read from the client if no other is left."""

    def is_paused(self, reason: int = INPUT | ROOM | MEMORY | STUCK) -> bool:
        """Whether reading has stopped for this reason, or for any."""

    def resume_later(self) -> None:
        """Call `resume` after other sessions have run."""


class ListenerContext(Protocol):
    """What the sessions of a listener share."""

    params: ListenerParams
    scanner: MessageScanner
    meters: Meters
    budget: MemoryBudget
    closing: bool

    def refusal_for(self, address: str, *, trusted: bool) -> bytes:
        """The reply that refuses a client for lack of room; empty if the client is counted."""

    def log_record(self, record: dict[str, object]) -> None:
        """Write a line to the log."""

    def log_refused(self, peer: str, address: str, reply: bytes) -> None:
        """Count and log a refused client."""

    def log_upstream_lost(self, address: Address, step: str) -> None:
        """Count and log a failure of the next hop."""

    def fault(self) -> str:
        """Count and log the exception being handled; returns its incident id."""


class TransferHost(Protocol):
    """A session, as its message transfer sees it."""

    io: SessionIO
    context: ListenerContext
    params: ListenerParams
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
        """The number of recipients that the next hop has accepted."""

    @property
    def upstream(self) -> Speech | None:
        """The next hop's protocol; None if it is not connected."""

    def envelope(self) -> Envelope:
        """The parsed envelope."""

    def upstream_failed(self, step: str) -> None:
        """Count and log a failure of the next hop."""

    def wait(self, seconds: float) -> float:
        """Set the deadline at which `expire` is called; returns the time now."""

    def has_unexpected_reply(self) -> bool:
        """Whether the next hop has sent something that no command asked for."""

    def drop(self) -> None:
        """Abort the next hop's connection."""

    def resume(self) -> None:
        """Process buffered client input."""

    def message_done(self, *, accepted: bool) -> None:
        """The transfer has ended, answered or not."""
