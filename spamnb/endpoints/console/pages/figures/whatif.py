"""The page What-if: what another threshold of junk would have decided, and how to put it in force.

This page changes nothing: a separate page shows the state before and after, and asks for
confirmation. The page contains the numbers for all positions of the slider, so a move of the slider
needs no request. The form asks for one threshold, and also works without script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from spamnb.core.model.costs import DECISIONS, junk_from, log_odds_of
from spamnb.endpoints.console.pages.figures.graphs import shown_chart
from spamnb.endpoints.console.pages.page import Act, Notice, PageRequest, PageView, ask
from spamnb.endpoints.console.pages.rendering import number, percent
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import TEXT, Parameter, between, choice
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.figures.whatif import EDGES, STEP

_PATH: Final = "/whatif"
_LISTED: Final = 100
_MESSAGES: Final = ("1000", "5000", "20000")
ASKED: Final = (
    Parameter("junk_from", between(0, 100), "The probability above which messages are junk, in %."),
    Parameter("messages", choice(*_MESSAGES), "How many of the newest messages.", "5000"),
)


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show what a threshold changes: the present one, if none is asked for."""
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


def _apply(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    asked = {name: request.values[name] / 100 for name in ("junk_from", "expect")}
    done = ask(site, caller, "choose_costs", **asked)
    at = ask(site, caller, "costs")["stored"]["at"]
    return [_changed("whatif.applied", done, (("do", "take_back"), ("at", at)))]


def _take_back(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    return [_changed("whatif.taken_back", ask(site, caller, "take_back_costs", **request.values))]


def _changed(
    key: str, done: Mapping[str, Mapping[str, float]], back: tuple[tuple[str, str], ...] = ()
) -> Notice:
    after, before = (percent(done[name]["junk"]) for name in ("after", "before"))
    said = text(key, after=after, before=before)
    return Notice("done", said, text("whatif.applied_more"), back=back)


def _flat(effect: Mapping[str, Any], log_odds: float, line: float) -> dict[str, str]:
    """Return the numbers of one threshold, under the names in the texts of the page."""
    counts = {(one["old"], one["new"]): one["messages"] for one in effect["counts"]}
    junk, clean, most = (effect[name] for name in ("newly_junk", "newly_delivered", "at_most"))
    shown = {
        "line": percent(line),
        "field": f"{100 * line:.8g}",
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
APPLY: Final = Act(_apply, (_JUNK_FROM, _EXPECT))
TAKE_BACK: Final = Act(_take_back, (Parameter("at", TEXT, "When it was chosen.", required=True),))
