"""The log lines and counters of one listener that belong to no message.

Untrusted clients can cause them as often as they like, so each event is logged at most once a
second; the suppressed lines are counted. Each fault is logged.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from spamnb.core.mail.printable import shown
from spamnb.endpoints.net.address import Address
from spamnb.errors import incident_id
from spamnb.service.telemetry.log import Log
from spamnb.service.telemetry.metrics import Meters


@dataclass(slots=True)
class RateLimitedLog:
    """State of a log event that is limited."""

    logged_at: float = -inf
    suppressed: int = 0


class ListenerLog:
    """Counts and logs refused clients, failures of the next hop and faults."""

    def __init__(self, log: Log, meters: Meters, clock: Callable[[], float]) -> None:
        self.write = log
        """logs a record without a limit"""
        self._meters, self._clock = meters, clock
        self._limited: dict[str, RateLimitedLog] = {}

    def refused(self, peer: str, address: str, reply: bytes) -> None:
        """Count and log a refused client."""
        self._meters.count("connections_refused")
        self._write_limited(
            {"event": "turned-away", "peer": peer, "client": address}
            | {"code": int(reply[:3]), "reply": shown(reply.strip())}
        )

    def upstream_lost(self, address: Address, step: str) -> None:
        """Count and log a failure of the next hop."""
        self._meters.count("upstream_failures")
        self._write_limited({"event": "upstream-lost", "upstream": str(address), "step": step})

    def _write_limited(self, record: dict[str, object]) -> None:
        event, now = str(record["event"]), self._clock()
        limited = self._limited.setdefault(event, RateLimitedLog())
        if now - limited.logged_at < 1.0:
            limited.suppressed += 1
        else:
            limited.logged_at = now
            self.write(record)

    def write_suppressed(self, now: float) -> bool:
        """Log how many lines were suppressed; whether some still are."""
        for event, limited in self._limited.items():
            if limited.suppressed and now - limited.logged_at >= 1.0:
                self.write({"event": event, "more": limited.suppressed})
                limited.suppressed, limited.logged_at = 0, now
        return any(limited.suppressed for limited in self._limited.values())

    def fault(self) -> str:
        """Count and log the exception being handled; returns its incident id."""
        self._meters.count("faults")
        incident = incident_id()
        error = sys.exc_info()[1]
        frames = traceback.extract_tb(error.__traceback__) if error else []
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        what = shown(repr(error).encode("utf-8", "replace"))[:300]
        self.write({"event": "fault", "incident": incident, "error": what, "where": where})
        return incident
