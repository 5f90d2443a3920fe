"""The page Time machine: another state of the model, previewed and then applied."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from spamnb.endpoints.console.operations.time_machine import MOST_EVENTS
from spamnb.endpoints.console.pages.page import Act, Notice, PageRequest, PageView, ask
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import MOST_ID, TEXT, Parameter, ParameterType, whole
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.engine.clock import iso


def show(site: ConsoleSite, request: PageRequest) -> PageView:
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


def _apply(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    done = ask(site, caller, "apply_preview", **request.values)
    return [Notice("done", text("timemachine.done"), str(done["kept"]))]


def _end(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    ask(site, caller, "end_preview", **request.values)
    return [Notice("done", text("timemachine.discarded"))]


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
APPLY: Final = Act(
    _apply, (_JOB, Parameter("expect", whole(0, MOST_ID), "The last event.", required=True))
)
END: Final = Act(_end, (_JOB,))
