"""The wall clock. The engine takes every time as an argument, so that events can be replayed."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


def iso(time_us: int) -> str:
    """Return a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="microseconds")
