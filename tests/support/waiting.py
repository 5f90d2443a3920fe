"""Waiting in tests: no wait for another process is shorter than LIMIT_S."""

import asyncio
import time

LIMIT_S = 300
"""Only a test that hangs waits so long, even on a machine with ten times the load."""


def until(condition, what="the condition"):
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {LIMIT_S} s for {what}"
        time.sleep(0.01)
    return found


async def until_true(condition, what="the condition"):
    """Wait until a condition holds, while the event loop runs."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT_S} s for {what}"
        await asyncio.sleep(0.002)
