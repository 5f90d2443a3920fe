"""The page Graphs: charts, and the same numbers as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask
from spamnb.endpoints.console.pages.rendering import Drawing
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import Parameter, choice
from spamnb.endpoints.console.site import ConsoleSite
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
_GAP: Final = "–"


class ShownChart(NamedTuple):
    """A chart, its drawings, and its numbers as a table."""

    chart: Chart
    drawings: tuple[Drawing, ...]
    rows: list[tuple[str, list[str]]]


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the charts of a period up to now."""
    (caller,) = request.visitor.callers()
    period = request.values["period"]
    found = ask(site, caller, "graphs", period=period)
    charts = [_shown(_chart(one), _TIMES[period]) for one in found["charts"]]
    facts = {"charts": charts, "period": period, "periods": list(PERIODS)}
    return PageView("graphs", facts | {"messages": found["messages"]})


def _chart(facts: Mapping[str, Any]) -> Chart:
    series = (
        ChartSeries(one["name"], one["kind"], tuple(one["values"]), tuple(one.get("low", ())))
        for one in facts["series"]
    )
    return Chart(facts["name"], facts["unit"], tuple(facts["places"]), tuple(series))


def _shown(chart: Chart, form: str) -> ShownChart:
    timed = chart.name != "log_odds"
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
    """A time as the pictures have it; the script would turn a time element into another zone."""
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
