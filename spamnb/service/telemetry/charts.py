"""Charts of numbers as SVG, without a library. Pure.

    draw(chart, words, DESK)

A chart has places along its axis (hours, days, log-odds) and series: bars, which are stacked,
lines, and bands around a line. Its looks are classes of a style sheet, because a strict content
security policy refuses style attributes. A picture does not shrink well, so a small screen gets a
drawing of its own. Must not know where the numbers came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil, floor, log10
from typing import Any, Final, Literal, NamedTuple

SeriesKind = Literal["bar", "line", "band"]
Unit = Literal["count", "percent", "per_mille", "ms"]
Values = tuple[float | None, ...]

_LEFT: Final = 52.0
_RIGHT: Final = 8.0
_TOP: Final = 10.0
_BOTTOM: Final = 26.0
_TICKS: Final = 4
_LEAST: Final = 1e-6
"""A chart of less is drawn as one of nothing: its labels would all be 0."""
_BAR: Final = 0.72
"""of the space of a place"""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One series: a value for each place, None where there is none."""

    name: str
    kind: SeriesKind
    values: Values
    low: Values = ()
    """the lower edge of a band; its `values` are the upper edge"""
    title: str = ""
    """what it is called, if the name does not say it"""


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over the same places."""

    name: str
    unit: Unit
    places: tuple[str, ...]
    series: tuple[ChartSeries, ...]
    mark: float | None = None
    """where a line stands, in places from the left; a script may move it"""
    events: tuple[int, ...] = ()
    """places with a dotted line: something happened there"""

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as a value of JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            "places": list(self.places),
            "series": [
                {"name": one.name, "kind": one.kind, "values": list(one.values)}
                | ({"low": list(one.low)} if one.low else {})
                | ({"title": one.title} if one.title else {})
                for one in self.series
            ],
        }


class ChartWords(NamedTuple):
    """The text of a drawing."""

    title: str
    text: str
    unit: str
    places: tuple[str, ...]


class ChartSize(NamedTuple):
    """The size of a drawing, and how many places are named below it."""

    name: str
    width: float
    height: float
    labels: int


DESK: Final = ChartSize("desk", 540, 220, 7)
PHONE: Final = ChartSize("phone", 320, 200, 3)


class _Plane(NamedTuple):
    """Where values are in a drawing."""

    size: ChartSize
    places: int
    top: float
    """the value at the upper edge"""

    @property
    def slot(self) -> float:
        return (self.size.width - _LEFT - _RIGHT) / max(self.places, 1)

    def x(self, place: float) -> float:
        return _LEFT + self.slot * place

    def y(self, value: float) -> float:
        height = self.size.height - _TOP - _BOTTOM
        return self.size.height - _BOTTOM - height * value / self.top


def draw(chart: Chart, words: ChartWords, size: ChartSize) -> str:
    """Return a chart as an SVG element."""
    step = _step(_highest(chart) / _TICKS)
    count = max(ceil(_highest(chart) / step - 1e-9), 1)
    plane = _Plane(size, len(chart.places), step * count)
    parts = [
        f'<svg class="chart {size.name}" viewBox="0 0 {size.width:g} {size.height:g}" role="img">',
        f"<title>{escape(words.title)}</title><desc>{escape(words.text)}</desc>",
        *_axes(plane, [step * number for number in range(count + 1)], words),
        *_bars(chart, plane),
        *(
            part
            for one in chart.series
            if one.kind in _PARTS
            for part in _PARTS[one.kind](one, plane)
        ),
        *_events(chart, plane),
        *_mark(chart, plane),
        "</svg>",
    ]
    return "\n".join(parts)


def number_text(value: float) -> str:
    """Return a number with at most four digits after the point, and spaces between thousands."""
    digits = 0 if value == int(value) else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    text = f"{value:,.{digits}f}".replace(",", "\u202f")
    return text.rstrip("0").rstrip(".") if digits else text


def _highest(chart: Chart) -> float:
    bars = [one.values for one in chart.series if one.kind == "bar"]
    stacked = [sum(value or 0 for value in values) for values in zip(*bars, strict=True)]
    others = [value or 0 for one in chart.series if one.kind != "bar" for value in one.values]
    highest = max([*stacked, *others], default=0)
    return highest if highest >= _LEAST else 1


def _step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20 and so on (and their parts) that is not less."""
    power = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _axes(plane: _Plane, ticks: list[float], words: ChartWords) -> Iterator[str]:
    right, bottom = plane.size.width - _RIGHT, plane.size.height
    for tick in ticks:
        y = plane.y(tick)
        yield f'<path class="grid" d="M{_LEFT:g} {y:.1f}H{right:g}"/>'
        label = f"{number_text(tick)}{words.unit}"
        yield f'<text class="up" x="{_LEFT - 6:g}" y="{y + 4:.1f}">{escape(label)}</text>'
    every = ceil(plane.places / plane.size.labels) or 1
    for place in range(0, plane.places, every):
        x = plane.x(place + 0.5)
        yield f'<text x="{x:.1f}" y="{bottom - 8:g}">{escape(words.places[place])}</text>'


def _bars(chart: Chart, plane: _Plane) -> Iterator[str]:
    below = [0.0] * plane.places
    width = plane.slot * _BAR
    for one in chart.series:
        if one.kind != "bar":
            continue
        for place, value in enumerate(one.values):
            if value:
                y, foot = plane.y(below[place] + value), plane.y(below[place])
                below[place] += value
                x = plane.x(place) + (plane.slot - width) / 2
                yield (
                    f'<rect class="s-{one.name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                    f'height="{foot - y:.1f}"/>'
                )


def _runs(values: Values) -> Iterator[list[tuple[int, float]]]:
    """Yield the places and values between gaps."""
    for known, run in groupby(enumerate(values), lambda pair: pair[1] is not None):
        if known:
            yield [(place, float(value or 0)) for place, value in run]


def _line(one: ChartSeries, plane: _Plane) -> Iterator[str]:
    for run in _runs(one.values):
        points = [f"{plane.x(place + 0.5):.1f} {plane.y(value):.1f}" for place, value in run]
        # A single point is a line without length, which a round end makes a dot.
        yield f'<path class="line s-{one.name}" d="M{"L".join(points)}{"h0" * (len(run) == 1)}"/>'


def _band(one: ChartSeries, plane: _Plane) -> Iterator[str]:
    for run in _runs(one.values):
        upper = [(place, value) for place, value in run]
        lower = [(place, one.low[place] or 0.0) for place, _ in reversed(run)]
        points = [
            f"{plane.x(place + side):.1f} {plane.y(value):.1f}"
            for edge, sides in ((upper, (0.25, 0.75)), (lower, (0.75, 0.25)))
            for place, value in edge
            for side in sides
        ]
        yield f'<path class="band s-{one.name}" d="M{"L".join(points)}Z"/>'


def _events(chart: Chart, plane: _Plane) -> Iterator[str]:
    for place in chart.events:
        bottom = plane.size.height - _BOTTOM
        yield f'<path class="event" d="M{plane.x(place + 0.5):.1f} {_TOP:g}V{bottom:g}"/>'


def _mark(chart: Chart, plane: _Plane) -> Iterator[str]:
    if chart.mark is not None:
        bottom = plane.size.height - _BOTTOM
        yield (
            f'<path class="mark" d="M0 {_TOP:g}V{bottom:g}" data-left="{_LEFT:g}" '
            f'data-slot="{plane.slot:.3f}" transform="translate({plane.x(chart.mark):.1f} 0)"/>'
        )


_PARTS: Final[dict[str, Callable[[ChartSeries, _Plane], Iterator[str]]]] = {
    "line": _line,
    "band": _band,
}
"""the drawing of each kind but bars, which depend on those below them"""
