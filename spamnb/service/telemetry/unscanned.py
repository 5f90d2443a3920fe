"""What passed unscanned in the last ten minutes, by reason, and whether that is too much.

    lately = RecentUnscanned()
    found = lately.seen(now, meters)        numbers in the order of COUNTED
    too_many(found, percent)

The counters of `meters` only grow, so a window over them needs their old values: one process keeps
those (the supervisor), and tells the others what it found. Must not know boards or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from spamnb.core.policy.verdict_headers import REASONS
from spamnb.service.telemetry.metrics import Meters

WINDOW_S: Final = 600.0
LEAST: Final = 5
"""messages that passed unscanned before their share counts: one of three in a quiet night is no
reason to call an administrator"""
_STEP_S: Final = 30.0
_REASONS: Final = tuple(sorted(REASONS))
COUNTED: Final = (
    "scanned",
    "unscanned_deferred",
    *(f"unscanned_{reason}" for reason in _REASONS),
)
_FIRST: Final = 2
"""where the reasons begin"""


class RecentUnscanned:
    """A window over the counters."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, list[int]]] = deque()

    def seen(self, now: float, meters: Meters) -> list[int]:
        """How much each counter grew within the window that ends now."""
        values = [meters.value(name) for name in COUNTED]
        samples = self._samples
        if not samples or now - samples[-1][0] >= _STEP_S:
            samples.append((now, values))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()
        return [new - old for new, old in zip(values, samples[0][1], strict=True)]


def facts_of(found: Sequence[int]) -> dict[str, Any]:
    """The numbers by name; reasons without a message are left out."""
    by_reason = dict(zip(_REASONS, found[_FIRST:], strict=True))
    return {
        "minutes": round(WINDOW_S / 60),
        "scanned": found[0],
        "deferred": found[1],
        "unscanned": {reason: number for reason, number in by_reason.items() if number},
    }


def too_many(found: Sequence[int], percent: float) -> bool:
    """Whether more than this share passed unscanned, but for what the administrator bypasses."""
    unscanned = sum(found[_FIRST:]) - found[_FIRST + _REASONS.index("bypass")]
    return unscanned >= LEAST and unscanned * 100 > percent * (found[0] + unscanned)


def sentence(facts: dict[str, Any]) -> str:
    """What an administrator should know of it."""
    unscanned = facts["unscanned"]
    number = sum(unscanned.values())
    reasons = ", ".join(f"{reason} {count}" for reason, count in unscanned.items())
    return (
        f"{number} of {facts['scanned'] + number} messages of the last {facts['minutes']} minutes "
        f"passed unscanned: {reasons}; {facts['deferred']} were deferred instead"
    )
