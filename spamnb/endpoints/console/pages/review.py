"""The pages of what waits for review: entries by user, one entry with its message, decisions."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any, Final

from spamnb.core.model.verdict import SIGNATURE
from spamnb.endpoints.console.pages.page import (
    CHOSEN,
    Act,
    Notice,
    PageRequest,
    PageView,
    ask,
    ask_reply,
)
from spamnb.endpoints.console.pages.teaching import notice_of
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import TEXT, Parameter
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.errors import RefError, SpamnbError
from spamnb.service.engine.clock import iso

LIST_PATH: Final = "/review"
NAME: Final = Parameter("name", TEXT, "The entry's name.", required=True)
_NAMES: Final = Parameter("name", CHOSEN, "The entries' names.", required=True)


def show_list(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the entries by user, the oldest first."""
    found = sorted(_entries(site, request), key=lambda one: (one["user"], one["time"]))
    by_user = [(user, list(rows)) for user, rows in groupby(found, key=lambda one: one["user"])]
    oldest_first = sorted(by_user, key=lambda group: group[1][0]["time"])
    return PageView("review", {"groups": oldest_first})


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show one entry."""
    name = request.values["name"]
    entry = next((one for one in _entries(site, request) if one["name"] == name), None)
    if entry is None:
        raise RefError(f"there is no review {name!r}", hint="it may have been decided")
    token = request.visitor.form_token(LIST_PATH)
    return PageView("review_entry", {"entry": entry, "act": LIST_PATH, "act_token": token})


def view(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the message of an entry."""
    (caller,) = request.visitor.callers()
    return PageView(reply=ask_reply(site, caller, "review_view", **request.values))


def _entries(site: ConsoleSite, request: PageRequest) -> list[dict[str, Any]]:
    (caller,) = request.visitor.callers()
    return [
        one
        | {
            "time": iso(one["time_us"]),
            "signature": next((ref for ref in one["refs"] if SIGNATURE.fullmatch(ref)), ""),
        }
        for one in ask(site, caller, "review")["entries"]
    ]


def _decide(do: str, site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Decide several entries; one that cannot be decided does not stop the others."""
    (caller,) = request.visitor.callers()
    notices = []
    for name in dict.fromkeys(request.values["name"]):
        try:
            answer = ask(site, caller, "decide", name=name, do=do)
        except SpamnbError as error:
            notices.append(Notice("error", str(error), error.hint))
        else:
            refused = Notice("done", text("review.refused"))
            notices.append(notice_of(answer) if do == "accept" else refused)
    return notices


ACCEPT: Final = Act(partial(_decide, "accept"), (_NAMES,))
REFUSE: Final = Act(partial(_decide, "refuse"), (_NAMES,))
