"""The pages of messages that wait: quarantine, review, and links of the digest.

A user with several addresses acts as each of them on its own part of a message. A signed link leads
to one message, for one recipient, without a login: it has the rights of a caller of one user, so
the settings that limit what users may release apply to it, too. A GET only shows a message; only
the forms act.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from spamnb.console.page import (
    CHOSEN,
    Act,
    Notice,
    PageRequest,
    PageView,
    Visitor,
    ask,
    ask_reply,
    joined,
    joined_kept,
    joined_parts,
    kept_parts,
    owned,
)
from spamnb.console.pages_mail import QUARANTINE_PATH, each, notice_of, quarantine_form
from spamnb.console.site import ApiCaller, ApiError, ApiReply, ConsoleSite
from spamnb.console.texts import text
from spamnb.errors import RefError, SpamnbError, UserError
from spamnb.operations.parameters import FLAG, TEXT, TEXTS, Parameter
from spamnb.telemetry import iso

CURSOR: Final = Parameter("cursor", TEXT, "Where the page before ended.", "")
ID: Final = Parameter("id", TEXT, "The message's ID.", required=True)
SEARCHED: Final = (Parameter("q", TEXT, "Words of the subject or of the sender.", ""), CURSOR)
_REFS: Final = Parameter("ref", CHOSEN, "The IDs of messages.", required=True)
_ONLY: Final = Parameter("only", TEXTS, "The recipients; all without it.")
_AGAIN: Final = Parameter("again", FLAG, "Also if they may have it.", default=False)
_ROWS: Final = 50


# --- looking -------------------------------------------------------------------------------------


def show_quarantine(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the messages that wait, newest first."""
    visitor, asked = request.visitor, request.values
    pages = [
        ask(site, caller, "quarantine", limit=_ROWS, q=asked["q"], cursor=asked["cursor"])
        for caller in visitor.callers()
    ]
    by_id: dict[str, list[dict[str, Any]]] = {}
    for page in pages:
        for one in page["messages"]:
            by_id.setdefault(one["id"], []).append(one)
    # Each list may be incomplete below its last message.
    end = max((page["next"] or "" for page in pages), default="")
    names = sorted((name for name in by_id if name >= end), reverse=True)
    rows = [joined_parts(by_id[name]) for name in names[:_ROWS]]
    below = names[_ROWS - 1] if len(names) > _ROWS else end
    words = {"q": asked["q"]} if asked["q"] else {}
    first = f"{QUARANTINE_PATH}?{urlencode(words)}" if words else QUARANTINE_PATH
    facts = {
        "rows": rows,
        "q": asked["q"],
        "first": first if asked["cursor"] else "",
        "next": f"{QUARANTINE_PATH}?{urlencode(words | {'cursor': below})}" if below else "",
    }
    return PageView("quarantine", facts)


def count(site: ConsoleSite, visitor: Visitor) -> str:
    """Return how many messages wait for a visitor, as far as one page of the list shows them."""
    pages = [ask(site, caller, "quarantine", limit=_ROWS) for caller in visitor.callers()]
    found = len({one["id"] for page in pages for one in page["messages"]})
    more = any(page["next"] for page in pages)
    return f"{found}+" if found and more else str(found or "")


def show_kept(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show one message on the page of its verdict, or alone if the history has no verdict."""
    visitor = request.visitor
    kept = joined_kept(site, visitor, request.values["id"])
    with suppress(RefError):
        _, found = owned(site, visitor, kept["facts"].get("signature") or "")
        return PageView(see=f"/message/{found['signature']}")
    return PageView("message", {"found": None, "kept": kept, **quarantine_form(visitor)})


def view_kept(operation: str, site: ConsoleSite, request: PageRequest) -> PageView:
    """Return the reply of an operation of the API: a document or a file of one message."""
    caller, _ = kept_parts(site, request.visitor, request.values["id"])[0]
    return PageView(reply=ask_reply(site, caller, operation, **request.values))


# --- acting --------------------------------------------------------------------------------------


def _release(teach: bool, site: ConsoleSite, request: PageRequest) -> list[Notice]:  # noqa: FBT001
    values = request.values
    if not values["only"]:
        raise UserError(text("kept.no_recipient"))
    return _released(site, request, values["id"], teach=teach)


def _released(
    site: ConsoleSite, request: PageRequest, name: str, *, teach: bool
) -> list[Notice]:  # fmt: skip
    """Release a message to the named recipients, or to all that have not got it."""
    notices: list[Notice] = []
    wanted, again = request.values.get("only"), request.values.get("again", False)
    for caller, part in kept_parts(site, request.visitor, name):
        only = [one for one in part["waiting"] if wanted is None or one in wanted]
        if only:
            given = {"id": part["id"], "only": only, "teach": teach, "again": again}
            notices += released(ask(site, caller, "release", **given))
    return notices or [Notice("error", text("kept.no_recipient"))]


def _release_chosen(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Release several messages to all that have not got them, and teach them as ham."""

    def release(name: str) -> list[Notice]:
        first, *more = _released(site, request, name, teach=True)
        undo = tuple(event for one in more for event in one.undo)
        failed = [one for one in more if one.kind == "error"]
        return [first._replace(undo=undo), *failed]

    return joined(each(request.values["ref"], release), "kept.several_released")


def _delete(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    def delete(name: str) -> list[Notice]:
        for caller, part in kept_parts(site, request.visitor, name):
            ask(site, caller, "delete", id=part["id"])
        back = (("do", "restore"), ("ref", name))
        return [Notice("done", text("kept.deleted"), back=back)]

    return joined(each(request.values["ref"], delete), "kept.several_deleted")


def _restore(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Take back a deletion, for each address of the visitor that had the message."""

    def restore(name: str) -> list[Notice]:
        refused = None
        restored = False
        for caller in request.visitor.callers():
            try:
                ask(site, caller, "restore", id=name)
                restored = True
            except RefError as error:
                refused = error
        if refused and not restored:
            raise refused
        return [Notice("done", text("kept.restored"))]

    return joined(each(request.values["ref"], restore), "kept.several_restored")


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


RELEASE: Final = Act(partial(_release, False), (ID, _ONLY, _AGAIN), "next hop")
RELEASE_AND_TEACH: Final = Act(partial(_release, True), (ID, _ONLY, _AGAIN), "next hop")
DELETE: Final = Act(_delete, (_REFS,), "quick")
RESTORE: Final = Act(_restore, (_REFS,), "quick")
RELEASE_CHOSEN: Final = Act(_release_chosen, (_REFS,), "next hop")


LINK_PATH: Final = "/d"
_SCOPES: Final = frozenset(("quarantine", "teach"))


class LinkedMessage(NamedTuple):
    """The message of a link, and the caller that the link stands for."""

    caller: ApiCaller
    name: str

    def shown(self, site: ConsoleSite) -> dict[str, Any] | None:
        """The message as its recipient sees it; None if it does not wait any more."""
        try:
            found: dict[str, Any] = ask(site, self.caller, "quarantined", id=self.name)
        except RefError:
            return None
        return found

    def view(self, site: ConsoleSite) -> ApiReply:
        """The preview."""
        return ask_reply(site, self.caller, "view", id=self.name)

    def act(self, site: ConsoleSite, do: str, *, again: bool) -> list[Notice]:
        """Do what a form asks for; a refusal becomes a notice."""
        if do not in ("release", "release_teach", "delete", "restore"):
            raise ApiError(400, text("error.no_page"))
        try:
            if do in ("delete", "restore"):
                ask(site, self.caller, do, id=self.name)
                if do == "restore":
                    return [Notice("done", text("kept.restored"))]
                return [Notice("done", text("kept.deleted"), back=(("do", "restore"),))]
            given = {"id": self.name, "teach": do == "release_teach", "again": again}
            return list(released(ask(site, self.caller, "release", **given)))
        except SpamnbError as error:
            return [Notice("error", str(error), error.hint)]


def linked(site: ConsoleSite, link: str) -> LinkedMessage:
    """Return the message of a link. Failure: ApiError if the link is not valid."""
    found = site.links.read(link, time.time())
    caller = ApiCaller(f"link {found.user}", _SCOPES, found.user)
    return LinkedMessage(caller, found.message)


def digest_user(site: ConsoleSite, link: str) -> str:
    """Return the address whose digests a link can turn off. Failure: ApiError for another link."""
    found = site.links.read(link, time.time())
    if found.message:
        raise ApiError(404, "this link is not valid")
    return found.user


def link_facts(
    site: ConsoleSite, message: LinkedMessage, path: str, notices: list[Notice]
) -> Mapping[str, Any]:
    """Return what the template shows."""
    return {
        "visitor": None,
        "title": "A message in quarantine",
        "kept": message.shown(site),
        "user": message.caller.user,
        "path": path,
        "notices": notices,
    }


REVIEW_PATH: Final = "/review"
NAME: Final = Parameter("name", TEXT, "The entry's name.", required=True)
_NAMES: Final = Parameter("name", CHOSEN, "The entries' names.", required=True)


def show_reviews(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the entries by user, the oldest first."""
    found = sorted(_entries(site, request), key=lambda one: (one["user"], one["time"]))
    by_user = [(user, list(rows)) for user, rows in groupby(found, key=lambda one: one["user"])]
    oldest_first = sorted(by_user, key=lambda group: group[1][0]["time"])
    return PageView("review", {"groups": oldest_first})


def show_review(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show one entry."""
    name = request.values["name"]
    entry = next((one for one in _entries(site, request) if one["name"] == name), None)
    if entry is None:
        raise RefError(f"there is no review {name!r}", hint="it may have been decided")
    token = request.visitor.form_token(REVIEW_PATH)
    return PageView("review_entry", {"entry": entry, "act": REVIEW_PATH, "act_token": token})


def view_review(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the message of an entry."""
    (caller,) = request.visitor.callers()
    return PageView(reply=ask_reply(site, caller, "review_view", **request.values))


def _entries(site: ConsoleSite, request: PageRequest) -> list[dict[str, Any]]:
    (caller,) = request.visitor.callers()
    entries = ask(site, caller, "review")["entries"]
    return [one | {"time": iso(one["time_us"])} for one in entries]


def _decide(do: str, site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Decide several entries; one that cannot be decided does not stop the others."""
    (caller,) = request.visitor.callers()

    def decide(name: str) -> list[Notice]:
        answer = ask(site, caller, "decide", name=name, do=do)
        return [notice_of(answer) if do == "accept" else Notice("done", text("review.refused"))]

    return joined(each(request.values["name"], decide), f"review.several_{do}")


ACCEPT: Final = Act(partial(_decide, "accept"), (_NAMES,))
REFUSE: Final = Act(partial(_decide, "refuse"), (_NAMES,))
