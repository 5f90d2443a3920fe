"""The page Graphs: charts, and the same numbers as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask
from spamnb.endpoints.console.pages.rendering import Drawing, number
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import Parameter, choice
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.engine.clock import iso
from spamnb.service.telemetry.charts import (
    DESK,
    PHONE,
    Chart,
    ChartSeries,
    ChartWords,
    number_text,
)
from spamnb.service.telemetry.graphs import PERIODS

PERIOD: Final = Parameter("period", choice(*PERIODS), "How far back.", "week")
_TIMES: Final = {"day": "%H:%M", "week": "%a %H:%M", "month": "%d %b", "year": "%d %b"}
GROUPS: Final = (
    ("now", ("volume", "junk_share")),
    ("right", ("spam_delivered", "ham_filed", "calibration", "log_odds", "words")),
    ("people", ("teaching", "channels", "teachers")),
    ("machine", ("work", "reasons", "scan_seconds", "upstream_seconds", "learn_seconds")),
)
"""the charts in the order of the questions that they answer"""
_UNTIMED: Final = ("log_odds", "spread", "calibration")
"""charts whose places are not times"""
_GAP: Final = "–"


class ShownChart(NamedTuple):
    """A chart, its drawings, and its numbers as a table."""

    chart: Chart
    drawings: tuple[Drawing, ...]
    rows: list[tuple[str, list[str]]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw: all numbers are 0, or missing."""
        return not any(value for one in self.chart.series for value in one.values)


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the charts of a period up to now."""
    (caller,) = request.visitor.callers()
    period = request.values["period"]
    found = ask(site, caller, "graphs", period=period)
    marks = found["marks"]
    places = tuple(sorted({one["place"] for one in marks}))
    charts = [shown_chart(one, _TIMES[period], events=places) for one in found["charts"]]
    by_name = {one.chart.name: one for one in charts}
    facts = {
        "groups": [(name, [by_name[one] for one in names]) for name, names in GROUPS],
        "period": period,
        "periods": list(PERIODS),
        "messages": found["messages"],
        "trend": trend_text(found["mistakes"]),
        "last_taught": found["last_taught"],
        "marks": [
            (_utc(iso(one["time_s"] * 1_000_000)), _mark_text(one["kind"], one["count"]))
            for one in marks
        ],
    }
    return PageView("graphs", facts)


def trend_text(mistakes: Mapping[str, Mapping[str, float]]) -> str:
    """Say whether people report more mistakes than before, if that is certain."""
    week, before = mistakes.get("week"), mistakes.get("before")
    if week is None:
        return text("trend.none")
    share, messages = f"{week['share']:.1f}", number(week["messages"])
    said = text("trend.week", share=share, messages=messages)
    if before is None:
        return said
    change = (
        "better" if week["high"] < before["low"] else
        "worse" if week["low"] > before["high"] else "same"
    )  # fmt: skip
    earlier = f"{before['share']:.1f}"
    return said + " " + text("trend." + change, share=earlier)


def _mark_text(kind: str, count: int) -> str:
    return text("mark." + (kind if count == 1 else f"{kind}.often"), count=count)


def shown_chart(
    facts: Mapping[str, Any],
    form: str = "",
    mark: float | None = None,
    events: tuple[int, ...] = (),
) -> ShownChart:
    """Return a chart of the API with its drawings; with a time format its places are times."""
    series = (
        ChartSeries(
            one["name"],
            one["kind"],
            tuple(one["values"]),
            tuple(one.get("low", ())),
            one.get("title", ""),
        )
        for one in facts["series"]
    )
    timed = facts["name"] not in _UNTIMED
    chart = Chart(
        facts["name"], facts["unit"], tuple(facts["places"]), tuple(series), mark,
        events if timed else (),
    )  # fmt: skip
    places = chart.places
    short = tuple(datetime.fromisoformat(one).strftime(form) for one in places) if timed else places
    words = ChartWords(
        text(f"graph.{chart.name}"),
        text(f"graph.{chart.name}.help"),
        text(f"unit.{chart.unit}.short"),
        short,
    )
    rows = [
        (_utc(place) if timed else place, list(_cells(chart, index)))
        for index, place in enumerate(places)
    ]
    return ShownChart(chart, tuple(Drawing(chart, words, size) for size in (DESK, PHONE)), rows)


def _utc(place: str) -> str:
    """A time as in the pictures: in UTC, since the script changes the zone of time elements."""
    return f"{datetime.fromisoformat(place):%Y-%m-%d %H:%M}"


def _cells(chart: Chart, index: int) -> Iterator[str]:
    for one in chart.series:
        value = one.values[index]
        if value is None:
            yield _GAP
        elif one.low:
            yield f"{number_text(one.low[index] or 0)} {_GAP} {number_text(value)}"
        else:
            yield number_text(value)
