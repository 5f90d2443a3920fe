"""The pages of the quarantine: messages, one message with its preview, release and delete.

A user with several addresses acts as each of them on its own part of a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.pages.logins.visitors import Visitor
from spamnb.endpoints.console.pages.page import Act, Notice, PageRequest, PageView, ask, ask_reply
from spamnb.endpoints.console.pages.teaching import notice_of
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import FLAG, TEXT, TEXTS, Parameter
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.errors import RefError

LIST_PATH: Final = "/quarantine"
CURSOR: Final = Parameter("cursor", TEXT, "Where the page before ended.", "")
ID: Final = Parameter("id", TEXT, "The message's ID.", required=True)
_ONLY: Final = Parameter("only", TEXTS, "The recipients.", required=True)
_AGAIN: Final = Parameter("again", FLAG, "Also if they may have it.", default=False)
_ROWS: Final = 50


# --- looking -------------------------------------------------------------------------------------


def show_list(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the messages that wait, newest first."""
    visitor, cursor = request.visitor, request.values["cursor"]
    pages = [
        ask(site, caller, "quarantine", limit=_ROWS, cursor=cursor) for caller in visitor.callers()
    ]
    by_id: dict[str, list[dict[str, Any]]] = {}
    for page in pages:
        for one in page["messages"]:
            by_id.setdefault(one["id"], []).append(one)
    # Each list may be incomplete below its last message.
    end = max((page["next"] or "" for page in pages), default="")
    names = sorted((name for name in by_id if name >= end), reverse=True)
    rows = [_joined(by_id[name]) for name in names[:_ROWS]]
    below = names[_ROWS - 1] if len(names) > _ROWS else end
    next_ = f"{LIST_PATH}?{urlencode({'cursor': below})}" if below else ""
    return PageView("quarantine", {"rows": rows, "first": cursor and LIST_PATH, "next": next_})


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show one message."""
    visitor = request.visitor
    parts = [part for _, part in _parts(site, visitor, request.values["id"])]
    token = visitor.form_token(LIST_PATH)
    return PageView("kept", {"kept": _joined(parts), "act": LIST_PATH, "act_token": token})


def view(operation: str, site: ConsoleSite, request: PageRequest) -> PageView:
    """Return the reply of an operation of the API: a document or a file of one message."""
    caller, _ = next(iter(_parts(site, request.visitor, request.values["id"])))
    return PageView(reply=ask_reply(site, caller, operation, **request.values))


def _parts(
    site: ConsoleSite, visitor: Visitor, name: str
) -> Iterator[tuple[ApiCaller, dict[str, Any]]]:
    """What each address of the visitor sees of a message. Failure: RefError if none sees it."""
    found = False
    for caller in visitor.callers():
        with suppress(RefError):
            part = ask(site, caller, "quarantined", id=name)
            found = True
            yield caller, part
    if not found:
        raise RefError(f"there is no message {name} in quarantine")


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One message as several addresses of a visitor see it."""
    joined = dict(parts[0])
    for name in ("recipients", "waiting"):
        joined[name] = [address for part in parts for address in part[name]]
    joined["releasing"] = any(part["state"] == "releasing" for part in parts)
    return joined


# --- acting --------------------------------------------------------------------------------------


def _release(teach: bool, site: ConsoleSite, request: PageRequest) -> list[Notice]:  # noqa: FBT001
    values = request.values
    notices: list[Notice] = []
    # A list, because a release changes what the next address would see.
    for caller, part in list(_parts(site, request.visitor, values["id"])):
        only = [one for one in part["recipients"] if one in values["only"]]
        if only:
            given = {"id": part["id"], "only": only, "teach": teach, "again": values["again"]}
            notices += released(ask(site, caller, "release", **given))
    return notices or [Notice("error", text("kept.no_recipient"))]


def released(answer: dict[str, Any]) -> Iterator[Notice]:
    """Describe the result of a release and of its training."""
    done = [one["recipient"] for one in answer["results"] if one["reply"] == "delivered"]
    if done:
        yield Notice("done", text("kept.released", names=", ".join(done)))
    for one in answer["results"]:
        if one["reply"] != "delivered":
            said = text("kept.not_released", name=one["recipient"])
            yield Notice("error", said, one["reply"])
    if answer["training"]:
        yield notice_of(answer["training"])


def _delete(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    for caller, part in list(_parts(site, request.visitor, request.values["id"])):
        ask(site, caller, "delete", id=part["id"])
    return [Notice("done", text("kept.deleted"))]


RELEASE: Final = Act(partial(_release, False), (ID, _ONLY, _AGAIN), "next hop")
RELEASE_AND_TEACH: Final = Act(partial(_release, True), (ID, _ONLY, _AGAIN), "next hop")
DELETE: Final = Act(_delete, (ID,), "quick")
