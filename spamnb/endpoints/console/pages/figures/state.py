"""The pages Status, Settings and Fleet: what the daemon does, how it is set, and its hosts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from spamnb.endpoints.console.pages.page import Act, Notice, PageRequest, PageView, ask
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import FLAG, Parameter
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.engine.site_scores import threshold_text
from spamnb.service.telemetry.status import quantile

CHANGED: Final = Parameter("changed", FLAG, "Only settings that differ from the default.", "")


def fleet(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the hosts of the fleet."""
    (caller,) = request.visitor.callers()
    return PageView("fleet", {"found": ask(site, caller, "fleet")})


def status(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the facts of `spamnb status`."""
    (caller,) = request.visitor.callers()
    found = ask(site, caller, "status")
    counted, timed = _counters(found["counters"])
    threshold = threshold_text(found["model"]["threshold"]) if found.get("model") else ""
    return PageView(
        "status", {"found": found, "counted": counted, "timed": timed, "threshold": threshold}
    )


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
    shown = changed if request.values["changed"] else found["settings"]
    sections = [
        (section, list(rows))
        for section, rows in groupby(shown, key=lambda one: one["name"].rpartition(".")[0])
    ]
    facts = {"file": found["file"], "sections": sections, "changed": len(changed)}
    return PageView("settings", facts | {"only_changed": bool(request.values["changed"])})


def _bypass(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    is_on = ask(site, caller, "bypass", **request.values)["bypass"]
    return [Notice("done", text("status.bypass_on" if is_on else "status.bypass_off"))]


def _reload(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    if fault := ask(site, caller, "reload")["fault"]:
        return [Notice("error", text("status.no_model"), fault)]
    return [Notice("done", text("status.reloaded"), text("status.reloaded_more"))]


BYPASS: Final = Act(_bypass, (Parameter("on", FLAG, "Whether mail passes.", required=True),))
RELOAD: Final = Act(_reload)
