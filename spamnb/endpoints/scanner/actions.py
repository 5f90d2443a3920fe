"""What a scanner session asks its connection to do. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spamnb.endpoints.net.scan_actions import LogMessage, StartScan, StopScan


@dataclass(frozen=True, slots=True)
class SendReply:
    """Send bytes to the client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class EndConnection:
    """Close the connection after all bytes are sent."""


@dataclass(frozen=True, slots=True)
class AskDaemon:
    """Ask the learner for an administrative operation; `asked` follows."""

    op: str
    body: bytes = b""
    fields: Mapping[str, object] = field(default_factory=dict)


ScannerAction = SendReply | EndConnection | AskDaemon | StartScan | StopScan | LogMessage
