"""Parameters of a milter listener."""

from __future__ import annotations

from dataclasses import dataclass

from spamnb.endpoints.net.networks import LOOPBACK, NetworkSet


@dataclass(frozen=True, slots=True)
class MilterParams:
    """One listener: its MTAs and its limits."""

    peers: NetworkSet = LOOPBACK
    """MTAs that may connect; the socket's mode decides as well if it is a unix socket"""
    before_queue: bool = True
    """whether the SMTP client waits for the reply, so that a message can be refused"""
    keeps: bool = False
    """whether quarantine is possible, because there is a server for released messages"""
    scan_limit_bytes: int = 1 << 20
    header_limit_bytes: int = 256 << 10
    scan_total_s: float = 40.0
    """limit for waiting and scanning together"""
    connections: int = 4000
    border: bool = False
    """whether it comes before all other milters, and scans nothing: it removes results of
    authentication under `authserv_ids`, and marks where the sender's fields begin"""
    authserv_ids: tuple[str, ...] = ()
    other: str = ""
    """the filter in front of spamnb, whose marks are kept; empty if there is none"""
