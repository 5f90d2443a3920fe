"""The page Live: verdicts as they come, and what became of the messages."""

from __future__ import annotations

from typing import Any, Final

from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.engine.clock import iso

_MOST_ROWS: Final = 100


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the newest verdicts, messages without one, and the warnings of `spamnb status`."""
    (caller,) = request.visitor.callers()
    verdicts = ask(site, caller, "verdicts", limit=_MOST_ROWS)["verdicts"]
    status = ask(site, caller, "status")
    rows = live_rows(verdicts, site.events.recent("verdict"))
    return PageView("live", {"rows": rows, "warnings": status["warnings"]})


def live_rows(
    verdicts: list[dict[str, Any]], outcomes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return verdicts with what became of the messages, and messages without a verdict.

    A scanner's verdict is in the history alone, and an unscanned message in the outcomes alone.
    """
    became = {one["signature"]: one for one in outcomes if one["signature"]}
    rows = [{**one, "outcome": became.get(one["signature"])} for one in verdicts]
    rows += [
        {"time": iso(int(one["time"] * 1_000_000)), "signature": "", "notes": {}, "outcome": one}
        for one in outcomes
        if not one["signature"]
    ]
    return sorted(rows, key=lambda row: str(row["time"]), reverse=True)[:_MOST_ROWS]


def stream(site: ConsoleSite, _: PageRequest) -> PageView:
    """Tell the page when there is something new; what it is, the page asks with its session."""
    site.events.require_room()
    return PageView(stream=site.events.changes())
