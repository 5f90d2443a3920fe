"""Charts of verdicts and of what people said of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from spamnb.core.model.costs import Role
from spamnb.core.model.evidence import wilson
from spamnb.service.figures.judged_mail import JudgedMessage
from spamnb.service.telemetry.charts import Chart, ChartSeries
from spamnb.service.telemetry.graphs import DECIDED

_DAY_US: Final = 86_400_000_000
WEEK_US: Final = 7 * _DAY_US
BEFORE_US: Final = 30 * _DAY_US
EDGES: Final = tuple(range(-15, 16, 3))
"""of the log-odds, in nats"""


def log_odds_chart(judged: Sequence[JudgedMessage], now_us: int) -> Chart:
    """Return how log-odds are spread: the last 7 days by decision, and the 30 days before."""
    split = now_us - WEEK_US
    week = [one.entry for one in judged if one.entry.time_us >= split]
    past = [one.entry for one in judged if split - BEFORE_US <= one.entry.time_us < split]

    def shares(found: Sequence[float], total: int) -> tuple[float | None, ...]:
        counts = [0] * (len(EDGES) + 1)
        for value in found:
            counts[bisect_right(EDGES, value)] += 1
        return tuple(100 * count / total if total else None for count in counts)

    bars = [
        ChartSeries(
            name, "bar", shares([e.log_odds for e in week if e.decision == name], len(week))
        )
        for name in DECIDED
    ]
    line = ChartSeries("before", "line", shares([e.log_odds for e in past], len(past)))
    places = (f"< {EDGES[0]}", *map(str, EDGES))
    return Chart("log_odds", "percent", places, (*bars, line))


def correction_charts(
    judged: Sequence[JudgedMessage], places: tuple[str, ...], starts: Sequence[int]
) -> list[Chart]:
    """Return the mistakes that people reported: spam delivered, and ham filed as junk."""
    sides: tuple[tuple[str, tuple[str, ...], Role], ...] = (
        ("spam_delivered", DECIDED[:2], "spam"),
        ("ham_filed", DECIDED[2:], "ham"),
    )
    charts = []
    for name, decisions, wrong in sides:
        counts = [[0, 0] for _ in starts]
        for one in judged:
            index = bisect_right(starts, one.entry.time_us // 1_000_000) - 1
            if index >= 0 and one.entry.decision in decisions:
                counts[index][0] += 1
                counts[index][1] += one.said == wrong
        share = tuple(1000 * bad / count if count else None for count, bad in counts)
        bounds = [wilson(bad, count) if count else None for count, bad in counts]
        low = tuple(1000 * bound[0] if bound else None for bound in bounds)
        high = tuple(1000 * bound[1] if bound else None for bound in bounds)
        series = (ChartSeries("interval", "band", high, low), ChartSeries("share", "line", share))
        charts.append(Chart(name, "per_mille", places, series))
    return charts
