"""Charts of how the counters grew, over a day, a week, a month or a year. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from spamnb.service.telemetry.charts import Chart, ChartSeries, SeriesKind
from spamnb.service.telemetry.metrics import BOUNDS_S, HISTOGRAMS, bucket


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
_REASONS: Final = tuple(
    f"unscanned_{reason}"
    for reason in ("bypass", "large", "busy", "overrun", "known_crasher", "model", "fault")
)
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


def marks_in(
    grown: Sequence[Counter[str]], replaced: Iterable[int], starts: Sequence[int], seconds: int
) -> list[dict[str, int | str]]:
    """Return what changed all charts: starts of the daemon, and when the model was replaced."""
    counts = Counter({("started", at): one["starts"] for at, one in enumerate(grown)})
    counts.update(("replaced", (time_s - starts[0]) // seconds) for time_s in replaced)
    return [
        {"kind": kind, "place": place, "time_s": starts[place], "count": count}
        for (kind, place), count in sorted(counts.items(), key=lambda one: one[0][1])
        if count and 0 <= place < len(starts)
    ]


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
        Chart("reasons", "count", places, tuple(_series(one, "bar", grown) for one in _REASONS)),
        *(_time_chart(name, places, grown) for name in HISTOGRAMS),
        Chart("teaching", "count", places, tuple(_series(one, "bar", grown) for one in _TAUGHT)),
    ]


def _time_chart(name: str, places: tuple[str, ...], grown: Sequence[Counter[str]]) -> Chart:
    """The median and the 99th percentile of a time, in each step."""
    series = (
        ChartSeries(shown, "line", tuple(quantile_ms(name, one, share) for one in grown))
        for shown, share in (("p50", 0.5), ("p99", 0.99))
    )
    return Chart(name, "ms", places, tuple(series))


def quantile_ms(name: str, grown: Mapping[str, int], share: float) -> float | None:
    """Return a quantile of a histogram in milliseconds, linear within its bucket; None if empty.

    The last bucket has no upper bound: a quantile in it is the lower one.
    """
    bounds = (*BOUNDS_S, inf)
    counts = [grown.get(bucket(name, bound), 0) for bound in bounds]
    left, low = share * sum(counts), 0.0
    if not left:
        return None
    for count, bound in zip(counts, bounds, strict=True):
        if left <= count and count:
            part = left / count if bound < inf else 0.0
            return 1000 * (low + part * ((bound if bound < inf else low) - low))
        left, low = left - count, bound
    return 1000 * BOUNDS_S[-1]


def _series(name: str, kind: SeriesKind, grown: Sequence[Counter[str]]) -> ChartSeries:
    return ChartSeries(name, kind, tuple(one[name] for one in grown))
