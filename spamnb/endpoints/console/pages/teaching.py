"""Forms that teach: each answers with a sentence and with the event that can be undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spamnb.endpoints.console.pages.lists import SELECTED, asked_of
from spamnb.endpoints.console.pages.page import (
    CHOSEN,
    Act,
    Notice,
    PageRequest,
    ask,
    owned,
    undone,
)
from spamnb.endpoints.console.pages.rendering import percent
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import MOST_ID, TEXT, Parameter, whole
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.errors import SpamnbError

_LABEL: Final = Parameter("label", TEXT, "The label.", required=True)
_REF: Final = Parameter("ref", CHOSEN, "Signatures of messages.", required=True)
_SIGNATURE: Final = Parameter("signature", TEXT, "The signature.", required=True)
_EVENT: Final = Parameter("event", whole(1, MOST_ID), "The event's number.", required=True)


def _teach(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    values = request.values
    return [_taught(site, request, values["signature"], values["label"])]


def _teach_chosen(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Teach several messages; one that is refused does not stop the others."""
    notices = []
    for ref in dict.fromkeys(request.values["ref"]):
        try:
            notices.append(_taught(site, request, ref, request.values["label"], named=True))
        except SpamnbError as error:
            notices.append(Notice("error", str(error), error.hint))
    return notices


def _taught(
    site: ConsoleSite, request: PageRequest, ref: str, label: str, *, named: bool = False
) -> Notice:
    # For a message of another user the answer is that it does not exist; it is not reviewed.
    caller, found = owned(site, request.visitor, ref)
    answer = ask(site, caller, "teach", ref=ref, label=label)
    subject = found["notes"].get("subject") or text("no_subject")
    return notice_of(answer, subject if named else "")


def _forget(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    ref = request.values["signature"]
    caller, _ = owned(site, request.visitor, ref)
    return [notice_of(ask(site, caller, "forget", ref=ref))]


def _undo(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    event = request.values["event"]
    return [notice_of(undone(site, request.visitor, event), undid=event)]


def _undo_selected(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    done = ask(site, caller, "undo_selected", **asked_of(request.values))
    left = text("undo_plan.left", count=done["left"]) if done["left"] else ""
    return [Notice("done", text("undo_plan.done", count=done["undone"]), left)]


def notice_of(answer: Mapping[str, Any], subject: str = "", undid: int = 0) -> Notice:
    """Return the learner's answer as a sentence."""
    about = text("receipt.about", subject=subject) if subject else ""
    if answer["state"] == "review":
        return Notice("waits", about + text("receipt.review"), answer["reason"])
    receipt = answer["receipt"] or {}
    if answer["state"] == "waiting":
        return Notice("waits", about + text("receipt.waiting"), answer["reason"])
    if answer["state"] == "unchanged" or not receipt.get("changed"):
        reason = receipt.get("reason") or answer["reason"]
        return Notice("done", about + text("receipt.unchanged"), reason)
    if undid:
        said = text("receipt.undone", event=undid)
    elif receipt["after"] is None:
        said = text("receipt.forgotten")
    else:
        said = text("receipt.learnt", label=receipt["after"])
    before, after = receipt["probability_before"], receipt["probability_after"]
    moved = ""
    if before is not None and after is not None:
        moved = text("receipt.moved", before=percent(before), after=percent(after))
    if (label := receipt.get("in_force")) and label != receipt["after"]:
        moved += " " * bool(moved) + text("receipt.in_force", label=label, why=receipt["why"])
    return Notice("done", about + said, moved, receipt["event"] or 0)


TEACH: Final = Act(_teach, (_SIGNATURE, _LABEL))
TEACH_CHOSEN: Final = Act(_teach_chosen, (_REF, _LABEL))
FORGET: Final = Act(_forget, (_SIGNATURE,))
UNDO: Final = Act(_undo, (_EVENT,))
UNDO_SELECTED: Final = Act(
    _undo_selected,
    (*SELECTED, Parameter("last_event", whole(1, MOST_ID), "The last event.", required=True)),
)
UNDO_HERE: Final = Act(_undo, (_EVENT, Parameter("signature", TEXT, "The signature.")))
"""on the page of a message"""
