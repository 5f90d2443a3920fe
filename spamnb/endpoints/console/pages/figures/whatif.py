"""The page What-if: what another threshold of junk would have decided. It changes nothing.

The numbers of all positions of the slider come with the page, so that it moves without requests.
The form asks for one threshold, and also works without script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import log
from typing import Any, Final

from spamnb.core.model.costs import DECISIONS, thresholds
from spamnb.endpoints.console.pages.figures.graphs import shown_chart
from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask
from spamnb.endpoints.console.pages.rendering import number, percent
from spamnb.endpoints.console.parameters import Parameter, between, choice
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.figures.whatif import EDGES, STEP

_LISTED: Final = 100
_MESSAGES: Final = ("1000", "5000", "20000")
ASKED: Final = (
    Parameter("junk_from", between(0, 100), "The probability above which messages are junk, in %."),
    Parameter("messages", choice(*_MESSAGES), "How many of the newest messages.", "5000"),
)


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show what a threshold changes: the present one, if none is asked for."""
    (caller,) = request.visitor.callers()
    messages = request.values["messages"]
    now = {one.decision: one.probability for one in thresholds(site.config.costs)}
    asked = request.values["junk_from"]
    line = now.get("junk", 0.5) if asked is None else asked / 100
    wanted = {"junk_from": line, "messages": int(messages), "limit": _LISTED, "steps": True}
    found = ask(site, caller, "whatif", **wanted)
    steps = found["steps"]
    shown = _flat(found, _log_odds(line), line)
    at = round((_log_odds(line) - steps[0]["log_odds"]) / STEP)
    facts = {
        "now": now,
        "messages": messages,
        "choices": _MESSAGES,
        "decisions": DECISIONS,
        "found": found,
        "n": shown,
        "position": min(max(at, 0), len(steps) - 1),
        "last": len(steps) - 1,
        "rows": json.dumps([_flat(one, one["log_odds"], one["probability"]) for one in steps]),
        "spread": shown_chart(found["spread"], mark=float(shown["place"])),
    }
    return PageView("whatif", facts)


def _log_odds(probability: float) -> float:
    return log(probability / (1 - probability))


def _flat(effect: Mapping[str, Any], log_odds: float, line: float) -> dict[str, str]:
    """Return the numbers of one threshold as the page shows them, under the names in its texts."""
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
