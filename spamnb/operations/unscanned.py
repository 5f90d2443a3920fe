"""Count the messages that passed unscanned in the last ten minutes, by reason.

    lately = RecentUnscanned()
    found = lately.seen(now, meters)        numbers in the order of COUNTED
    too_many(found, percent)

The counters of `metrics` only grow, so a window over them needs their old values: the supervisor
keeps them and shares the result with the other processes. Must not know shared state or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from spamnb.policy.headers import REASONS
from spamnb.telemetry import Meters

WINDOW_S: Final = 600.0
MIN_UNSCANNED: Final = 5
"""minimum number of unscanned messages for an alarm: at night, one of three is no reason for it"""
_STEP_S: Final = 30.0
_REASONS: Final = tuple(sorted(REASONS))
COUNTED: Final = (
    "scanned",
    "unscanned_deferred",
    *(f"unscanned_{reason}" for reason in _REASONS),
)
_FIRST: Final = 2
"""index of the first reason"""


class RecentUnscanned:
    """A sliding window over the counters."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, list[int]]] = deque()

    def seen(self, now: float, meters: Meters) -> list[int]:
        """Return how much each counter grew within the window that ends now."""
        values = [meters.value(name) for name in COUNTED]
        samples = self._samples
        if not samples or now - samples[-1][0] >= _STEP_S:
            samples.append((now, values))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()
        return [new - old for new, old in zip(values, samples[0][1], strict=True)]


def facts_of(found: Sequence[int]) -> dict[str, Any]:
    """Return the numbers by name, without reasons that have no messages."""
    by_reason = dict(zip(_REASONS, found[_FIRST:], strict=True))
    return {
        "minutes": round(WINDOW_S / 60),
        "scanned": found[0],
        "deferred": found[1],
        "unscanned": {reason: number for reason, number in by_reason.items() if number},
    }


def too_many(found: Sequence[int], percent: float) -> bool:
    """Return whether more than `percent` passed unscanned, not counting bypassed messages."""
    unscanned = sum(found[_FIRST:]) - found[_FIRST + _REASONS.index("bypass")]
    return unscanned >= MIN_UNSCANNED and unscanned * 100 > percent * (found[0] + unscanned)


def sentence(facts: dict[str, Any]) -> str:
    """Return the numbers as one sentence, for logs and warnings."""
    unscanned = facts["unscanned"]
    number = sum(unscanned.values())
    reasons = ", ".join(f"{reason} {count}" for reason, count in unscanned.items())
    return (
        f"{number} of {facts['scanned'] + number} messages of the last {facts['minutes']} minutes "
        f"passed unscanned: {reasons}; {facts['deferred']} were deferred instead"
    )
