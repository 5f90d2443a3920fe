"""The page What-if: what another threshold of junk would have decided. It changes nothing."""

from __future__ import annotations

from typing import Final

from spamnb.core.model.costs import DECISIONS, thresholds
from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask
from spamnb.endpoints.console.parameters import Parameter, between, choice
from spamnb.endpoints.console.site import ConsoleSite

_LISTED: Final = 100
_MESSAGES: Final = ("1000", "5000", "20000")
ASKED: Final = (
    Parameter("junk_from", between(0, 100), "The probability above which messages are junk, in %."),
    Parameter("messages", choice(*_MESSAGES), "How many of the newest messages.", "5000"),
)


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the form, and what it asks for."""
    (caller,) = request.visitor.callers()
    line, messages = request.values["junk_from"], request.values["messages"]
    now = {one.decision: one.probability for one in thresholds(site.config.costs)}
    facts = {
        "now": now,
        "line": f"{100 * now.get('junk', 0.5) if line is None else line:.8g}",
        "messages": messages,
        "choices": _MESSAGES,
        "decisions": DECISIONS,
        "found": None,
    }
    if line is not None:
        asked = {"junk_from": line / 100, "messages": int(messages), "limit": _LISTED}
        found = ask(site, caller, "whatif", **asked)
        counts = {(one["old"], one["new"]): one["messages"] for one in found["counts"]}
        changed = sum(count for (old, new), count in counts.items() if old != new)
        facts |= {"found": found, "counts": counts, "changed": changed}
    return PageView("whatif", facts)
