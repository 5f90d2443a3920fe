"""The page Live: new verdicts, their rate, and what became of the messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.event_stream import KEPT
from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask
from spamnb.endpoints.console.parameters import TEXT, Parameter, choice
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.engine.clock import iso

_MOST_ROWS: Final = 100
_MINUTE_S: Final = 60.0
_MANY: Final = KEPT // 2
_UNSCANNED: Final = "unscanned"
DECISIONS: Final = ("deliver", "unsure", "junk", "reject", _UNSCANNED)
FILTERS: Final = (
    Parameter("decision", choice(*DECISIONS), "Only messages with this decision.", ""),
    Parameter("listener", TEXT, "Only messages of this listener.", ""),
)


class MailFlow(NamedTuple):
    """How many messages arrive now."""

    per_minute: float
    junk: float | None
    """share of the scanned messages; None if there are none"""


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the newest verdicts, messages without one, and the warnings of `spamnb status`."""
    (caller,) = request.visitor.callers()
    decision, listener = request.values["decision"], request.values["listener"]
    asked = {name: value for name, value in request.values.items() if value}
    outcomes = site.events.recent("verdict")
    verdicts = []
    if decision != _UNSCANNED:
        verdicts = ask(site, caller, "verdicts", limit=_MOST_ROWS, **asked)["verdicts"]
    rows = live_rows(verdicts, shown_outcomes(outcomes, decision, listener))
    facts = {
        "rows": rows,
        "given": request.values,
        "decisions": DECISIONS,
        "listeners": sorted({listener, *(one["listener"] for one in outcomes)} - {""}),
        "flow": mail_flow(outcomes, time.time()),
        "warnings": ask(site, caller, "status")["warnings"],
        "unknown": any(row["outcome"] is None for row in rows),
    }
    return PageView("live", facts)


def shown_outcomes(
    outcomes: Sequence[dict[str, Any]], decision: str, listener: str
) -> list[dict[str, Any]]:
    """Return the outcomes of a listener, without unscanned ones if another decision is chosen."""
    return [
        one
        for one in outcomes
        if listener in ("", one["listener"]) and (one["signature"] or decision in ("", _UNSCANNED))
    ]


def live_rows(
    verdicts: list[dict[str, Any]], outcomes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return verdicts with what became of the messages, and messages without a verdict.

    A scanner's verdict is only in the history, and an unscanned message only in the outcomes.
    """
    became = {one["signature"]: one for one in outcomes if one["signature"]}
    rows = [{**one, "outcome": became.get(one["signature"])} for one in verdicts]
    rows += [
        {"time": iso(int(one["time"] * 1_000_000)), "signature": "", "notes": {}, "outcome": one}
        for one in outcomes
        if not one["signature"]
    ]
    return sorted(rows, key=lambda row: str(row["time"]), reverse=True)[:_MOST_ROWS]


def mail_flow(outcomes: Sequence[dict[str, Any]], now: float) -> MailFlow:
    """Return the rate of the last minute, or of the time that the kept events cover."""
    newest = [one for one in outcomes if now - one["time"] <= _MINUTE_S]
    span = _MINUTE_S
    if len(newest) == len(outcomes) and len(newest) >= _MANY:
        span = max(now - newest[0]["time"], 1.0)
    decided = [one["decision"] for one in newest if one["decision"]]
    junk = sum(one in ("junk", "reject") for one in decided)
    return MailFlow(_MINUTE_S * len(newest) / span, junk / len(decided) if decided else None)


def stream(site: ConsoleSite, _: PageRequest) -> PageView:
    """Tell the page that something is new; the page then asks for it with its session."""
    site.events.require_room()
    return PageView(stream=site.events.changes())
