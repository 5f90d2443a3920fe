"""The wall clock. The engine takes every time as an argument, so that events can be replayed."""

from __future__ import annotations

import time


def now_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000
