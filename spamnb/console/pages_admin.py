"""Pages of administrators: Graphs, Overview, Settings, Fleet, Time machine, What if and People."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from spamnb.console.operations import MOST_EVENTS
from spamnb.console.page import (
    CHOSEN,
    Act,
    Drawing,
    Notice,
    PageRequest,
    PageView,
    ask,
    number,
    percent,
    status_or_fault,
    threshold,
)
from spamnb.console.site import ConsoleSite
from spamnb.console.texts import of, text
from spamnb.console.whatif import EDGES, STEP
from spamnb.engine.site_scores import threshold_text
from spamnb.errors import SpamnbError
from spamnb.model.costs import DECISIONS, junk_from, log_odds_of
from spamnb.operations.figures import (
    DESK,
    PERIODS,
    PHONE,
    Chart,
    ChartSeries,
    ChartWords,
    number_text,
)
from spamnb.operations.logins import SCOPES
from spamnb.operations.parameters import (
    FLAG,
    MOST_ID,
    TEXT,
    Parameter,
    ParameterType,
    between,
    choice,
    whole,
)
from spamnb.operations.request import Switch
from spamnb.operations.status import observation_text, quantile
from spamnb.telemetry import iso

PERIOD: Final = Parameter("period", choice(*PERIODS), "How far back.", "week")
_TIMES: Final = {"day": "%H:%M", "week": "%a %H:%M", "month": "%d %b", "year": "%d %b"}
GROUPS: Final = (
    ("now", ("volume", "junk_share")),
    ("right", ("spam_delivered", "ham_filed", "calibration", "log_odds", "words")),
    ("people", ("teaching", "channels", "teachers")),
    ("machine", ("work", "reasons", "scan_seconds", "upstream_seconds", "learn_seconds")),
)
"""the charts in the order of the questions that they answer"""
_OVERVIEW_PERIOD: Final = "week"
_OVERVIEW: Final = ("volume", "spam_delivered", "ham_filed")
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


def show_graphs(site: ConsoleSite, request: PageRequest) -> PageView:
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
            (_utc_times(iso(one["time_s"] * 1_000_000)), _mark_text(one["kind"], one["count"]))
            for one in marks
        ],
    }
    return PageView("graphs", facts)


def trend_text(mistakes: Mapping[str, Mapping[str, float]]) -> str:
    """Say whether people report more mistakes than before, if that is certain."""
    week, before = mistakes.get("week"), mistakes.get("before")
    if week is None:
        return "No message was judged in the last 7 days."
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
        (_utc_times(place) if timed else place, list(_cells(chart, index)))
        for index, place in enumerate(places)
    ]
    return ShownChart(chart, tuple(Drawing(chart, words, size) for size in (DESK, PHONE)), rows)


def _utc_times(place: str) -> str:
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


LISTED: Final = (
    Parameter("changed", FLAG, "Only settings that differ from the default.", ""),
    Parameter("q", TEXT, "Words of the name or of the meaning.", ""),
)


def fleet(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the hosts of the fleet."""
    (caller,) = request.visitor.callers()
    return PageView("fleet", {"found": ask(site, caller, "fleet")})


def status(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the facts of `spamnb status`."""
    (caller,) = request.visitor.callers()
    found = status_or_fault(site, caller)
    counted, timed = _counters(found.get("counters", {}))
    threshold = threshold_text(found["model"]["threshold"]) if found.get("model") else ""
    observed = found.get("observing")
    facts = {"found": found, "counted": counted, "timed": timed, "threshold": threshold}
    facts["observing"] = observation_text(observed) if observed else ""
    facts |= {"recent": [], "trend": ""}
    with suppress(SpamnbError):  # a warning says what is wrong with the home
        shown = site.graphs.value(lambda: ask(site, caller, "graphs", period=_OVERVIEW_PERIOD))
        facts["trend"] = trend_text(shown["mistakes"])
        facts["recent"] = [
            shown_chart(one, _TIMES[_OVERVIEW_PERIOD])
            for one in shown["charts"]
            if one["name"] in _OVERVIEW
        ]
    return PageView("status", facts)


def _counters(counters: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the counters above 0, and the durations."""
    counted, timed = [], []
    for name, found in counters.items():
        if isinstance(found, dict):
            if found["count"]:
                half, most = (quantile(found, share) for share in (0.5, 0.99))
                shown = name.removesuffix("_seconds").replace("_", " ")
                timed.append((shown, found["count"], half, most))
        elif found:
            counted.append((name.replace("_", " "), found))
    return counted, timed


def settings(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the settings in force, by section."""
    (caller,) = request.visitor.callers()
    found = ask(site, caller, "settings")
    changed = [one for one in found["settings"] if one["changed"]]
    words = request.values["q"].casefold().split()
    shown = [
        one
        for one in (changed if request.values["changed"] else found["settings"])
        if all(word in f"{one['name']} {one['reason']}".casefold() for word in words)
    ]
    sections = [
        (section, list(rows))
        for section, rows in groupby(shown, key=lambda one: one["name"].rpartition(".")[0])
    ]
    facts = {"file": found["file"], "sections": sections, "changed": len(changed)}
    facts |= {"only_changed": bool(request.values["changed"]), "q": request.values["q"]}
    return PageView("settings", facts)


def _turn(switch: Switch, site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    is_on = ask(site, caller, switch, **request.values)[switch]
    return [Notice("done", text(f"status.{switch}_on" if is_on else f"status.{switch}_off"))]


def _reload(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    if fault := ask(site, caller, "reload")["fault"]:
        return [Notice("error", text("status.no_model"), fault)]
    return [Notice("done", "The daemon reads its settings again.", text("status.reloaded_more"))]


_ON: Final = (Parameter("on", FLAG, "Whether the switch is on.", required=True),)
STATUS_ACTS: Final = {
    "bypass": Act(partial(_turn, "bypass"), _ON),
    "live": Act(partial(_turn, "live"), _ON),
    "reload": Act(_reload),
}


def show_timemachine(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the newest preview, and the states that can be restored."""
    (caller,) = request.visitor.callers()
    found = ask(site, caller, "time_machine")
    preview = found["preview"]
    is_running = preview is not None and preview["state"] == "running"
    facts = {"found": found, "preview": preview, "most": MOST_EVENTS, "refresh": is_running}
    return PageView("timemachine", facts | {"of": _subject(preview) if preview else ""})


def _subject(preview: dict[str, Any]) -> str:
    """Say which model a preview makes."""
    wanted = preview["wanted"]
    if wanted["kind"] == "rewind":
        return text("timemachine.rewind", time=text("utc", time=iso(wanted["to_us"])[:16]))
    if wanted["kind"] == "kept":
        return text("timemachine.of_kept", name=wanted["kept"])
    names = [*wanted["without"], *wanted["without_channel"]]
    return text("timemachine.relearn", names=", ".join(names))


def _begin(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    given = {name: value for name, value in request.values.items() if value is not None}
    ask(site, caller, "begin_preview", **given)
    return [Notice("done", text("timemachine.begun"))]


def _again(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Begin again a preview that failed or has ended."""
    (caller,) = request.visitor.callers()
    wanted = ask(site, caller, "job", **request.values)["wanted"]
    if wanted["kind"] == "rewind":
        given = {"to": iso(wanted["to_us"])}
    else:
        given = {name: wanted[name] for name in ("without", "without_channel", "kept")}
    ask(site, caller, "begin_preview", **{name: value for name, value in given.items() if value})
    return [Notice("done", text("timemachine.begun"))]


def _apply_preview(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    done = ask(site, caller, "apply_preview", **request.values)
    return [Notice("done", "The model was replaced; the one before is kept", str(done["kept"]))]


def _end_preview(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    ask(site, caller, "end_preview", **request.values)
    return [Notice("done", "The preview was discarded")]


def _utc(value: Any) -> str:
    """Return the time of a field for local times, as UTC."""
    at = datetime.fromisoformat(str(value))
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return at.isoformat()


def _one(value: Any) -> list[str]:
    return [str(value)]


_TIME: Final = ParameterType({"type": "string"}, _utc, "a time, such as 2026-05-31T18:00")
_USER: Final = ParameterType({"type": "string"}, _one, "the name of a user")
_JOB: Final = Parameter("job", TEXT, "The preview's name.", required=True)
BEGIN: Final = Act(
    _begin,
    (
        Parameter("to", _TIME, "The state at this time."),
        Parameter("without", _USER, "Without the training by this user."),
        Parameter("kept", TEXT, "The name of a kept model."),
    ),
)
AGAIN: Final = Act(_again, (_JOB,))
APPLY_PREVIEW: Final = Act(
    _apply_preview, (_JOB, Parameter("expect", whole(0, MOST_ID), "The last event.", required=True))
)
END_PREVIEW: Final = Act(_end_preview, (_JOB,))


_PATH: Final = "/whatif"
_LISTED: Final = 100
_MESSAGES: Final = ("1000", "5000", "20000")
ASKED: Final = (
    Parameter("junk_from", between(0, 100), "The probability above which messages are junk, in %."),
    Parameter("messages", choice(*_MESSAGES), "How many of the newest messages.", "5000"),
)


def show_whatif(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show what a threshold changes: the present one, if none is asked for.

    This page changes nothing: a separate page shows the state before and after, and asks for
    confirmation. The page contains the numbers for all positions of the slider, so a move of the
    slider needs no request. The form asks for one threshold, and also works without script.
    """
    facts = _tried(site, request, steps=True)
    found, shown = facts["found"], facts["n"]
    steps = found["steps"]
    at = round((log_odds_of(facts["line"]) - steps[0]["log_odds"]) / STEP)
    facts |= {
        "choices": _MESSAGES,
        "position": min(max(at, 0), len(steps) - 1),
        "last": len(steps) - 1,
        "rows": json.dumps([_flat(one, one["log_odds"], one["probability"]) for one in steps]),
        "spread": shown_chart(found["spread"], mark=float(shown["place"])),
    }
    return PageView("whatif", facts)


def confirm(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the state before and after a change of the threshold, and ask for confirmation."""
    facts = _tried(site, request, steps=False)
    # The form goes to the page What-if, which then shows the result.
    facts |= {"act_path": _PATH, "act_token": request.visitor.form_token(_PATH)}
    costs = junk_from(site.config.costs, log_odds_of(facts["line"]))
    pairs = {"junk": costs.junk, "reject": costs.reject}
    facts["lines"] = [f"{name} = [{ham:.8g}, {spam:g}]" for name, (ham, spam) in pairs.items()]
    return PageView("whatif_apply", facts)


def _tried(site: ConsoleSite, request: PageRequest, *, steps: bool) -> dict[str, Any]:
    """Return what both pages show of a threshold."""
    (caller,) = request.visitor.callers()
    messages, asked = request.values["messages"], request.values["junk_from"]
    costs = ask(site, caller, "costs")
    now = costs["thresholds"]
    line = now.get("junk", 0.5) if asked is None else asked / 100
    wanted = {"junk_from": line, "messages": int(messages), "limit": _LISTED, "steps": steps}
    found = ask(site, caller, "whatif", **wanted)
    return {
        "now": now,
        "then": found["new_thresholds"],
        "costs": costs,
        "in_fleet": site.config.fleet is not None,
        "line": line,
        "messages": messages,
        "decisions": DECISIONS,
        "found": found,
        "n": _flat(found, log_odds_of(line), line),
    }


def _apply_threshold(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    asked = {name: request.values[name] / 100 for name in ("junk_from", "expect")}
    done = ask(site, caller, "choose_costs", **asked)
    return [_changed("whatif.applied", done)]


def _take_back(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    return [_changed("whatif.taken_back", ask(site, caller, "take_back_costs", **request.values))]


def _changed(key: str, done: Mapping[str, Mapping[str, float]]) -> Notice:
    after, before = (threshold(done[name]["junk"]) for name in ("after", "before"))
    said = text(key, after=after, before=before)
    return Notice("done", said, "The daemon reads it now, which takes a moment.")


def _flat(effect: Mapping[str, Any], log_odds: float, line: float) -> dict[str, str]:
    """Return the numbers of one threshold, under the names in the texts of the page."""
    counts = {(one["old"], one["new"]): one["messages"] for one in effect["counts"]}
    junk, clean, most = (effect[name] for name in ("newly_junk", "newly_delivered", "at_most"))
    shown = {
        "line": threshold(line),
        "field": threshold(line).removesuffix(" %"),
        "nats": f"{log_odds:.1f}",
        "place": f"{min(max(log_odds - EDGES[0] + 1, 0), len(EDGES) + 1):.2f}",
        "changed": number(sum(count for (old, new), count in counts.items() if old != new)),
        "ham": number(most["ham"]),
        "filed": number(most["filed"]),
        "needed": number(most["ham_needed"]),
        "share": "" if most["share"] is None else percent(most["share"]),
    }
    for name, moved in (("junk", junk), ("clean", clean)):
        shown |= {
            f"{name}": number(moved["messages"]),
            f"{name}_known": number(moved["known"]),
            f"{name}_wrong": number(moved["known_wrong"]),
            f"{name}_expected": f"{moved['expected_wrong']:.1f}",
        }
    pairs = [(old, new) for old in DECISIONS for new in DECISIONS]
    return shown | {f"{old}_{new}": number(counts.get((old, new), 0)) for old, new in pairs}


_EXPECT: Final = Parameter("expect", between(0, 100), "The threshold in force.", required=True)
_JUNK_FROM: Final = Parameter("junk_from", between(0, 100), "The new one, in %.", required=True)
APPLY_THRESHOLD: Final = Act(_apply_threshold, (_JUNK_FROM, _EXPECT))
TAKE_BACK: Final = Act(_take_back, (Parameter("at", TEXT, "When it was chosen.", required=True),))


_NAME: Final = Parameter("name", TEXT, "A login, or the name of a token.", required=True)


def show_people(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show logins and tokens."""
    (caller,) = request.visitor.callers()
    waiting = Counter(one["user"].casefold() for one in ask(site, caller, "review")["entries"])
    people = ask(site, caller, "people")["people"]
    for one in people:
        names = {name.casefold() for name in (one["name"], *one["addresses"])}
        one["waiting"] = sum(waiting[name] for name in names)
    tokens = ask(site, caller, "tokens")["tokens"]
    return PageView("people", {"people": people, "tokens": tokens, "scopes": SCOPES})


def _end(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    name = request.values["name"]
    ended = ask(site, caller, "end_sessions", name=name)["ended"]
    return [Notice("done", f"{of(ended, 'session', 'sessions')} of {name} ended.")]


def _create(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Create a token; its text is shown once."""
    (caller,) = request.visitor.callers()
    given: dict[str, Any] = {key: one for key, one in request.values.items() if one is not None}
    made = ask(site, caller, "create_token", **given | {"scopes": list(given["scopes"])})
    return [Notice("done", text("people.made", name=made["name"]), exact=made["token"])]


def _revoke(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    name = request.values["name"]
    ask(site, caller, "revoke_token", name=name)
    return [Notice("done", f"The token {name} is revoked.")]


END: Final = Act(_end, (_NAME,), place="quick")
CREATE: Final = Act(
    _create,
    (
        _NAME,
        Parameter("scopes", CHOSEN, "What it may do.", required=True),
        Parameter("user", TEXT, "Only messages to this user."),
        Parameter("days", whole(1, 3650), "How long it is valid."),
    ),
    place="quick",
)
REVOKE: Final = Act(_revoke, (_NAME,), place="quick")
