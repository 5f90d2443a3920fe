"""Charts of verdicts and of what people said of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from spamnb.core.model.costs import Role
from spamnb.core.model.evidence import reliability, wilson
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


def calibration_chart(judged: Sequence[JudgedMessage]) -> Chart:
    """Return predicted and found shares of spam, of mail that was judged before it was taught."""
    known = [one for one in judged if one.before]
    bins = reliability(
        np.array([one.said == "spam" for one in known], bool),
        np.array([one.entry.probability for one in known], np.float64),
    )
    series = (
        ChartSeries("interval", "band", tuple(100 * one.high for one in bins),
                    tuple(100 * one.low for one in bins)),
        ChartSeries("said", "line", tuple(100 * one.said for one in bins)),
        ChartSeries("found", "line", tuple(100 * one.seen for one in bins)),
    )  # fmt: skip
    places = tuple(f"{10 * int(9.9999 * one.said)} %" for one in bins)
    return Chart("calibration", "percent", places, series)


def known_chart(
    judged: Sequence[JudgedMessage], places: tuple[str, ...], starts: Sequence[int]
) -> Chart:
    """Return the mean share of the features of a message that the model knew."""
    sums = [[0, 0] for _ in starts]
    for one in judged:
        index = bisect_right(starts, one.entry.time_us // 1_000_000) - 1
        known = one.entry.notes.get("known", "")
        if index >= 0 and known.isdecimal():
            sums[index][0] += int(known)
            sums[index][1] += 1
    values = tuple(total / count if count else None for total, count in sums)
    return Chart("words", "percent", places, (ChartSeries("known", "line", values),))


def mistakes(judged: Sequence[JudgedMessage], now_us: int) -> dict[str, dict[str, float]]:
    """Return the reported mistakes per 1,000 messages: of the last 7 days, and of 30 before."""
    split = now_us - WEEK_US
    spans = {
        "week": [one for one in judged if one.entry.time_us >= split],
        "before": [one for one in judged if split - BEFORE_US <= one.entry.time_us < split],
    }
    return {name: _mistakes(found) for name, found in spans.items() if found}


def _mistakes(judged: Sequence[JudgedMessage]) -> dict[str, float]:
    wrong = sum(
        one.said is not None and (one.said == "spam") != (one.entry.decision in DECIDED[2:])
        for one in judged
    )
    low, high = wilson(wrong, len(judged))
    return {"messages": len(judged), "wrong": wrong, "share": 1000 * wrong / len(judged),
            "low": 1000 * low, "high": 1000 * high}  # fmt: skip
