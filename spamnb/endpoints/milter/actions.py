"""What a milter session asks its connection to do. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from spamnb.endpoints.net.scan_actions import LogMessage, StartScan, StopScan, Withdraw


@dataclass(frozen=True, slots=True)
class SendPackets:
    """Send packets to the MTA."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection after all packets are sent."""


MilterAction = SendPackets | CloseConnection | StartScan | StopScan | Withdraw | LogMessage
