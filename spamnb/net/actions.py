"""What the session of a protocol asks its connection to do, and where it collects this. Values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from spamnb.net.address import Address
from spamnb.scan.values import ScanRequest


@dataclass(frozen=True, slots=True)
class SendBytes:
    """Send bytes to the peer."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection after all bytes are sent."""


@dataclass(frozen=True, slots=True)
class StartScan:
    """Scan a message; `scan_done` follows."""

    request: ScanRequest


@dataclass(frozen=True, slots=True)
class StopScan:
    """End the scan; if a reason is given, `scan_done` follows with the fallback result."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete a message from quarantine: its result came too late."""

    delete: Callable[[], None]


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Write the log line of a message."""

    record: dict[str, object]


ScanAction = SendBytes | CloseConnection | StartScan | StopScan | Withdraw | LogMessage


INPUT, ROOM, MEMORY, STUCK, TURN = 1, 2, 4, 8, 16
"""reasons not to read from a client: enough input is buffered; the next hop is slow; the memory
budget is used up; the client does not read its replies; other clients of the process are served
before the next part of a large message"""


@dataclass(frozen=True, slots=True)
class AdmitClient:
    """Count the client if there is room; `admitted` follows."""

    address: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class SendClient:
    """Send bytes to the client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the client's connection after all replies are sent."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Close the client's connection immediately."""


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Stop reading from the client."""


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read from the client again."""


@dataclass(frozen=True, slots=True)
class ResumeLater:
    """Call `resume` after other sessions have run."""


@dataclass(frozen=True, slots=True)
class ConnectUpstream:
    """Connect to the next hop; `upstream_connected`, `upstream_lost` or `stop` follows."""

    address: Address


@dataclass(frozen=True, slots=True)
class SendUpstream:
    """Send bytes to the next hop."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class AskUpstream:
    """Send a command or the end of a message, unless unread bytes of the next hop have arrived.

    Bytes that the next hop sent earlier cannot be the answer. The event loop may deliver the bytes
    of the client first, so the socket must be checked. If it has unread bytes, nothing is sent, and
    `unexpected_data` follows.
    """

    data: bytes


@dataclass(frozen=True, slots=True)
class DropUpstream:
    """Abort the next hop's connection, so that an incomplete message is never completed."""


@dataclass(frozen=True, slots=True)
class QuitUpstream:
    """Send QUIT to the next hop and close, without waiting for its reply."""


@dataclass(frozen=True, slots=True)
class LogRefused:
    """Count and log a refused client."""

    peer: str
    address: str
    reply: bytes


@dataclass(frozen=True, slots=True)
class LogUpstreamLost:
    """Count and log a failure of the next hop."""

    address: Address
    step: str


Action = (
    AdmitClient | SendClient | HangUp | Abort | PauseReading | ResumeReading | ResumeLater
    | ConnectUpstream | SendUpstream | AskUpstream | DropUpstream | QuitUpstream
    | StartScan | StopScan | Withdraw | LogRefused | LogUpstreamLost | LogMessage
)  # fmt: skip


class Output:
    """Where the parts of one session collect actions; `now` is the time of the current event."""

    __slots__ = ("actions", "add", "deadline", "held_bytes", "now", "paused")

    def __init__(self, now: float) -> None:
        self.actions: deque[Action] = deque()
        """to be performed in this order after each event"""
        self.add = self.actions.append
        self.now = now
        """seconds on a monotonic clock"""
        self.deadline = 0.0
        """when `timeout` is to be called"""
        self.held_bytes = 0
        """of the memory for messages"""
        self.paused = 0
        """the reasons not to read from the client"""

    def pause(self, reason: int) -> None:
        """Stop reading from the client for this reason."""
        if not self.paused:
            self.add(PauseReading())
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Remove this reason; read from the client if no other is left."""
        if self.paused & reason:
            self.paused &= ~reason
            if not self.paused:
                self.add(ResumeReading())
