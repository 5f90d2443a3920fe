"""Lists: search in the verdicts, a user's own mail, the trainings."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final
from urllib.parse import urlencode

from spamnb.endpoints.console.operations.training import MOST_UNDONE
from spamnb.endpoints.console.pages.page import DAY, PageRequest, PageView, ask
from spamnb.endpoints.console.parameters import (
    FLAG,
    MOST_ID,
    TEXT,
    Parameter,
    choice,
    whole,
)
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.errors import RefError
from spamnb.service.engine.clock import iso

_DAY_US: Final = 86_400_000_000
_ROWS: Final = 50


_NO_PLAN: Final[Mapping[str, Any]] = {
    "selection": [],
    "found": {"undoable": 0, "superseded": 0},
    "back": "/trainings",
}


def _field(name: str) -> Parameter:
    return Parameter(name, TEXT, name, "")


_CURSOR: Final = Parameter("cursor", whole(0, MOST_ID), "Where the page before ended.")
_DAYS: Final = (
    Parameter("since", DAY, "The first day."),
    Parameter("until", DAY, "The last day."),
    _CURSOR,
)
SEARCHED: Final = (
    _field("q"), _field("from"), _field("to"),
    Parameter("decision", choice("deliver", "unsure", "junk", "reject"), "The decision.", ""),
    _field("label"), _field("client"), _field("listener"),
    Parameter("corrected", FLAG, "Only messages that were corrected."), *_DAYS,
)  # fmt: skip
OWN: Final = (_field("address"), _field("q"), _field("from"), _CURSOR)
TRAININGS: Final = (_field("user"), _field("channel"), _field("label"), *_DAYS)
SELECTED: Final = tuple(one for one in TRAININGS if one is not _CURSOR)


def search(site: ConsoleSite, request: PageRequest) -> PageView:
    """Search the verdicts; the address of the page has the query."""
    (caller,) = request.visitor.callers()
    found = ask(site, caller, "verdicts", limit=_ROWS, **asked_of(request.values))
    with site.reading() as model:
        labels = model.labels
    return PageView("search", _listed(request, found["verdicts"], found["next"], labels))


def own_mail(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the verdicts of the messages that were delivered to an address of the visitor."""
    callers = {caller.user: caller for caller in request.visitor.callers()}
    values = dict(request.values)
    address = values.pop("address") or next(iter(callers))
    if address not in callers:
        raise RefError(f"{address!r} is not one of your addresses")
    found = ask(site, callers[address], "verdicts", limit=_ROWS, **asked_of(values))
    with site.reading() as model:
        labels = model.labels
    by_day = [
        (day, list(rows))
        for day, rows in groupby(found["verdicts"], key=lambda one: one["time"][:10])
    ]
    facts = _listed(request, found["verdicts"], found["next"], labels)
    facts["days"] = [(day, list(rows)) for day, rows in by_day]
    return PageView("mail", facts | {"addresses": list(callers), "address": address})


def trainings(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the events of the journal; a user sees only the user's own events."""
    visitor = request.visitor
    asked = asked_of(request.values)
    pages = [ask(site, caller, "journal", limit=_ROWS, **asked) for caller in visitor.callers()]
    events = [event for page in pages for event in page["events"]]
    newest = sorted(events, key=lambda event: -event["event"])[:_ROWS]
    next_ = newest[-1]["event"] if len(newest) == _ROWS else None
    facts = _listed(request, newest, next_)
    given = {name: one for name, one in facts["given"].items() if one and name != "cursor"}
    facts["undo_path"] = f"/trainings/undo?{urlencode(given)}"
    return PageView("trainings", facts | {"sees_all": visitor.role != "user"})


def teachers(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the users with labels that other users or the model contradict."""
    (caller,) = request.visitor.callers()
    return PageView("teachers", {"found": ask(site, caller, "teachers")})


def undo_plan(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show which of the selected trainings can be undone."""
    (caller,) = request.visitor.callers()
    selection = {name: _as_given(name, one) for name, one in request.values.items() if one}
    if not selection:
        return PageView("undo_plan", _NO_PLAN)
    found = ask(site, caller, "undo_plan", limit=_ROWS, **asked_of(request.values))
    facts = {"selection": list(selection.items()), "found": found, "most": MOST_UNDONE}
    return PageView("undo_plan", facts | {"back": f"/trainings?{urlencode(selection)}"})


def asked_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the operation, with days as times; empty fields are left out."""
    asked = {name: value for name, value in values.items() if value not in (None, "")}
    if "since" in asked:
        asked["since"] = iso(asked["since"])
    if "until" in asked:
        asked["until"] = iso(asked["until"] + _DAY_US)
    return asked


def _listed(
    request: PageRequest, rows: list[Any], next_: int | None, labels: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return what all lists show: the rows, the form's values, and the link to the next page."""
    given = {name: _as_given(name, value) for name, value in request.values.items()}
    query = {name: value for name, value in given.items() if value and name != "cursor"}
    return {
        "rows": rows,
        "given": given,
        "asks": bool(query),
        "first": f"{request.path}?{urlencode(query)}" if given.get("cursor") else "",
        "next": f"{request.path}?{urlencode(query | {'cursor': next_})}" if next_ else "",
        "labels": labels,
    }


def _as_given(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return iso(value)[:10] if name in ("since", "until") else str(value)
