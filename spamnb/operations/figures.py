"""Figures of judged mail and of teaching, and their graphs. Pure.

`draw` makes the SVG of a `Chart` without a library; the other functions make charts of counters,
of verdicts with the labels that people gave, and of who teaches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby, islice
from math import ceil, floor, inf, log10
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from spamnb.engine.event_filter import Takes
from spamnb.engine.filter import Filter
from spamnb.engine.lookup import in_force, labels_of
from spamnb.maintenance.attribution import doubt_of
from spamnb.model.costs import Role, roles_of
from spamnb.model.events import Event, EventKind, Recipe
from spamnb.model.scoring import reliability, wilson
from spamnb.records.verdicts import HistoryEntry, LookupIndex
from spamnb.store.table_views import ReadView
from spamnb.telemetry import BOUNDS_S, HISTOGRAMS, bucket, iso

SeriesKind = Literal["bar", "line", "band"]
Unit = Literal["count", "percent", "per_mille", "ms"]
Values = tuple[float | None, ...]

_MARGIN: Final = 10.0
_CHAR: Final = 7.6
"""width of a character of a label, 13 pixels high, at most"""
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
    """Series over the same places.

    A chart has places along its axis (hours, days, log-odds) and series: bars, which are stacked,
    lines, and bands around a line. Its looks are classes of a style sheet, because a strict content
    security policy refuses style attributes. A picture does not shrink well, so a small screen gets
    a drawing of its own. Must not know where the numbers came from.
    """

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
    left: float
    """where the axis is: right of its longest label"""

    @property
    def slot(self) -> float:
        return (self.size.width - self.left - _RIGHT) / max(self.places, 1)

    def x(self, place: float) -> float:
        return self.left + self.slot * place

    def y(self, value: float) -> float:
        height = self.size.height - _TOP - _BOTTOM
        return self.size.height - _BOTTOM - height * value / self.top


def draw(chart: Chart, words: ChartWords, size: ChartSize) -> str:
    """Return a chart as an SVG element."""
    step = _step(_highest(chart) / _TICKS)
    count = max(ceil(_highest(chart) / step - 1e-9), 1)
    ticks = [step * number for number in range(count + 1)]
    labels = [f"{number_text(tick)}{words.unit}" for tick in ticks]
    left = _MARGIN + _CHAR * max(3, *map(len, labels))  # 3: half of a label below
    plane = _Plane(size, len(chart.places), step * count, left)
    parts = [
        f'<svg class="chart {size.name}" viewBox="0 0 {size.width:g} {size.height:g}" role="img">',
        f"<title>{escape(words.title)}</title><desc>{escape(words.text)}</desc>",
        *_axes(plane, zip(ticks, labels, strict=True), words),
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


def _axes(
    plane: _Plane, ticks: Iterable[tuple[float, str]], words: ChartWords
) -> Iterator[str]:  # fmt: skip
    right, bottom = plane.size.width - _RIGHT, plane.size.height
    for tick, label in ticks:
        y = plane.y(tick)
        yield f'<path class="grid" d="M{plane.left:g} {y:.1f}H{right:g}"/>'
        yield f'<text class="up" x="{plane.left - 6:g}" y="{y + 4:.1f}">{escape(label)}</text>'
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
            f'<path class="mark" d="M0 {_TOP:g}V{bottom:g}" data-left="{plane.left:g}" '
            f'data-slot="{plane.slot:.3f}" transform="translate({plane.x(chart.mark):.1f} 0)"/>'
        )


_PARTS: Final[dict[str, Callable[[ChartSeries, _Plane], Iterator[str]]]] = {
    "line": _line,
    "band": _band,
}
"""the drawing of each kind but bars, which depend on those below them"""


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
_TAUGHT_LABELS: Final = ("learned_ham", "learned_spam", "learned_other", "forgotten")


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
        Chart(
            "teaching", "count", places, tuple(_series(one, "bar", grown) for one in _TAUGHT_LABELS)
        ),
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


_BATCH: Final = 1000
_LAST_SEQ: Final = (1 << 63) - 1
_BY_ITSELF: Final = ("trap",)
"""channels that teach without a person"""


class JudgedMessage(NamedTuple):
    """A verdict without the ids of its features, and what is known of its message."""

    entry: HistoryEntry
    said: Role | None
    """the role of the label that a person gave it"""
    before: bool
    """whether it was judged before it was taught"""


def judged_mail(
    model: Filter, index: LookupIndex, most: int, since_us: int = 0
) -> list[JudgedMessage]:
    """Return the newest verdicts since a time, newest first."""
    assert model.history is not None, "the caller opens the history"
    roles = roles_of(model.labels)
    found: list[JudgedMessage] = []
    until = _LAST_SEQ
    with model.store.read() as view:
        while until and len(found) < most:
            seqs, until = index.page((), until, since_us, min(_BATCH, most - len(found)))
            entries = model.history.facts_at(seqs)
            found += [_judged(view, roles, entry) for entry in entries]
    return found


def _judged(view: ReadView, roles: tuple[Role, ...], entry: HistoryEntry) -> JudgedMessage:
    said, event = said_of(view, roles, entry.digest)
    before = said is not None and event is not None and event.time_us > entry.time_us
    return JudgedMessage(entry, said, before)


def said_of(
    view: ReadView, roles: tuple[Role, ...], digest: bytes, ignored: Takes = lambda _: False
) -> tuple[Role | None, Event | None]:
    """Return the role of the label in force for a message, and the event that gave it.

    Labels that no person gave, and those of ignored events, do not count.
    """
    given = labels_of(view, digest)
    counted = [one for one in given if one.event is None or _counts(one.event, ignored)]
    if not counted:
        return None, given[0].event if given else None
    label = in_force(view, digest, [one.owner for one in counted]).label
    return roles[label], next(one.event for one in counted if one.label == label)


def _counts(event: Event, ignored: Takes) -> bool:
    return event.channel not in _BY_ITSELF and not ignored(event)


MOST_TESTED: Final = 500
"""labels that are compared with the model, half a millisecond each"""


@dataclass(slots=True)
class Teacher:
    """A user's labels among the newest trainings."""

    user: str
    labels: int = 0
    """messages that the user gave a label; the last label of each message counts"""
    by_others: int = 0
    """those of them that another user gave another label"""
    tested: int = 0
    """those that were compared with the model"""
    by_model: int = 0
    """tested ones that all other trainings contradict, as in `spamnb doubt`"""


def teacher_facts(view: ReadView, recipe: Recipe, events: Sequence[Event]) -> dict[str, Any]:
    """Return all users of these trainings (newest first), the most contradicted first."""
    last: dict[bytes, dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.user and event.digest:
            last[event.digest].setdefault(event.user, event.after)
    found: dict[str, Teacher] = {}
    for labels in last.values():
        for user, label in labels.items():
            teacher = found.setdefault(user, Teacher(user))
            teacher.labels += 1
            teacher.by_others += any(other != label for other in labels.values())
    for event in islice(_testable(view, events), MOST_TESTED):
        teacher = found[event.user]
        teacher.tested += 1
        teacher.by_model += doubt_of(view, recipe, event, event) is not None
    ranked = sorted(found.values(), key=lambda one: (-one.by_others - one.by_model, one.user))
    return {"events": len(events), "teachers": [asdict(one) for one in ranked]}


def _testable(view: ReadView, events: Sequence[Event]) -> Iterator[Event]:
    """Yield the trainings in force, except those for one person, which may differ."""
    for event in events:
        live = view.live(event.label_key) if event.user and event.digest else None
        if live is not None and live.seq == event.seq and not event.person:
            yield event


MOST_EVENTS: Final = 5_000
_NAMED: Final = 5
_TAUGHT: Final = (EventKind.LEARN, EventKind.MOVE)


def newest_trainings(model: Filter) -> list[Event]:
    """Return the newest events that taught a message, newest first."""
    with model.store.read() as view:
        newest = islice(view.events(1, None, newest_first=True), MOST_EVENTS)
        return [event for event in newest if event.kind in _TAUGHT]


def teaching_charts(
    events: Sequence[Event], places: tuple[str, ...], starts: Sequence[int]
) -> list[Chart]:
    """Return how much each channel and each user has taught."""
    keys: tuple[tuple[str, Callable[[Event], str]], ...] = (
        ("channels", lambda event: event.channel),
        ("teachers", lambda event: event.user),
    )
    return [_ranked(name, events, key, places, starts) for name, key in keys]


def _ranked(
    name: str,
    events: Sequence[Event],
    key: Callable[[Event], str],
    places: tuple[str, ...],
    starts: Sequence[int],
) -> Chart:
    """The most frequent ones by name, all others together."""
    at = [
        (bisect_right(starts, event.time_us // 1_000_000) - 1, key(event) or "?")
        for event in events
    ]
    inside = [(index, one) for index, one in at if index >= 0]
    total = Counter(one for _, one in inside)
    named = [one for one, _ in total.most_common(_NAMED)]
    counts = Counter((index, one if one in named else "") for index, one in inside)

    def bar(shown: str, title: str, one: str) -> ChartSeries:
        values = tuple(counts[index, one] for index in range(len(starts)))
        return ChartSeries(shown, "bar", values, title=title)

    bars = [bar(f"rank{rank}", one, one) for rank, one in enumerate(named, 1)]
    rest = [bar("rank_other", "", "")] if len(total) > _NAMED or not named else []
    return Chart(name, "count", places, (*bars, *rest))


def last_taught(events: Sequence[Event], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return when each label was taught last, and by whom; None if no event has it."""
    newest: dict[int, Event] = {}
    for event in events:
        newest.setdefault(event.after, event)
    return [
        {"label": label, "time": iso(newest[at].time_us) if at in newest else None}
        | {"user": newest[at].user if at in newest else ""}
        for at, label in enumerate(labels)
    ]


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
