"""Charts of who teaches, and when each label was taught last, from the newest events."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from spamnb.core.model.events import Event, EventKind
from spamnb.service.engine.clock import iso
from spamnb.service.engine.filter import Filter
from spamnb.service.telemetry.charts import Chart, ChartSeries

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
