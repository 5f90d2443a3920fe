"""The wall clock. The engine takes every time as an argument, so that events can be replayed."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


def duration(seconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def iso(time_us: int) -> str:
    """Return a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="microseconds")
