"""What the session of an endpoint asks its connection to do. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spamnb.service.scanning.types import ScanRequest


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
