"""Charts of how the counters grew, over a day, a week, a month or a year. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from spamnb.service.telemetry.charts import Chart, ChartSeries, SeriesKind


class GraphPeriod(NamedTuple):
    """A span of time up to now, in equal steps."""

    step: str
    """the step of the series that it is made from"""
    seconds: int
    """the length of its own steps, a multiple of the other"""
    length: int
    """the number of its steps"""

    def starts(self, now_s: int) -> tuple[int, ...]:
        """Return when its steps begin; the last one is not over."""
        last = now_s - now_s % self.seconds
        return tuple(last - self.seconds * back for back in reversed(range(self.length)))


PERIODS: Final[Mapping[str, GraphPeriod]] = {
    "day": GraphPeriod("quarter", 3600, 24),
    "week": GraphPeriod("quarter", 6 * 3600, 28),
    "month": GraphPeriod("day", 86_400, 30),
    "year": GraphPeriod("day", 7 * 86_400, 52),
}
DECIDED: Final = ("deliver", "unsure", "junk", "reject")
_FAULTS: Final = ("unscanned", "scan_overruns", "deferred", "faults")
_TAUGHT: Final = ("learned_ham", "learned_spam", "learned_other", "forgotten")


def growth_in(
    rows: Iterable[tuple[int, Mapping[str, int]]], starts: Sequence[int], seconds: int
) -> list[Counter[str]]:
    """Return how each counter grew in each step, from points of shorter steps."""
    found = [Counter[str]() for _ in starts]
    for at, growth in rows:
        index = (at - starts[0]) // seconds
        if 0 <= index < len(found):
            found[index].update(growth)
    return found


def counter_charts(places: tuple[str, ...], grown: Sequence[Counter[str]]) -> list[Chart]:
    """Return the charts of what the counters say."""
    decided = [[one[f"decision_{name}"] for name in DECIDED] for one in grown]
    share = tuple(
        100 * (junk + reject) / total if (total := deliver + unsure + junk + reject) else None
        for deliver, unsure, junk, reject in decided
    )
    volume = [
        ChartSeries(name, "bar", tuple(one[f"decision_{name}"] for one in grown))
        for name in DECIDED
    ]
    return [
        Chart("volume", "count", places, (*volume, _series("unscanned", "bar", grown))),
        Chart("junk_share", "percent", places, (ChartSeries("junk", "line", share),)),
        Chart("work", "count", places, tuple(_series(one, "line", grown) for one in _FAULTS)),
        Chart("teaching", "count", places, tuple(_series(one, "bar", grown) for one in _TAUGHT)),
    ]


def _series(name: str, kind: SeriesKind, grown: Sequence[Counter[str]]) -> ChartSeries:
    return ChartSeries(name, kind, tuple(one[name] for one in grown))
