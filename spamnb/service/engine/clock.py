"""The clock: the only place that asks what time it is, so that everything above can be replayed."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
