"""The pages of messages.

Live view, search, a user's mail, one message, trainings, and forms that teach. Each form answers
with a sentence and with the event that can be undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from spamnb.console.operations import MOST_UNDONE
from spamnb.console.page import (
    CHOSEN,
    DAY,
    EVENTS,
    Act,
    Notice,
    PageRequest,
    PageView,
    Visitor,
    ask,
    joined,
    joined_kept,
    owned,
    percent,
    status_or_fault,
    undone,
)
from spamnb.console.pages_senders import sender_view
from spamnb.console.site import KEPT, ConsoleSite
from spamnb.console.texts import text
from spamnb.errors import RefError, SpamnbError
from spamnb.operations.parameters import FLAG, MOST_ID, TEXT, Parameter, choice, whole
from spamnb.telemetry import iso

_Thing = TypeVar("_Thing", int, str)
_DAY_US: Final = 86_400_000_000
QUARANTINE_PATH: Final = "/quarantine"
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
    facts = _listed(request, found["verdicts"], found["next"], labels)
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


_MOST_ROWS: Final = 100
_MINUTE_S: Final = 60.0
_MANY: Final = KEPT // 2
_UNSCANNED: Final = "unscanned"
DECISIONS: Final = ("deliver", "unsure", "junk", "reject", _UNSCANNED)
FILTERS: Final = (
    Parameter("decision", choice(*DECISIONS), "Only messages with this decision.", ""),
    Parameter("listener", TEXT, "Only messages of this listener.", ""),
)


class MailFlow(NamedTuple):
    """How many messages arrive now."""

    per_minute: float
    junk: float | None
    """share of the scanned messages; None if there are none"""


def show_live(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the newest verdicts, messages without one, and the warnings of `spamnb status`."""
    (caller,) = request.visitor.callers()
    decision, listener = request.values["decision"], request.values["listener"]
    asked = {name: value for name, value in request.values.items() if value}
    outcomes = site.events.recent("verdict")
    verdicts = []
    if decision != _UNSCANNED:
        verdicts = ask(site, caller, "verdicts", limit=_MOST_ROWS, **asked)["verdicts"]
    rows = live_rows(verdicts, shown_outcomes(outcomes, decision, listener))
    facts = {
        "rows": rows,
        "given": request.values,
        "decisions": DECISIONS,
        "listeners": sorted({listener, *(one["listener"] for one in outcomes)} - {""}),
        "flow": mail_flow(outcomes, time.time()),
        "status": status_or_fault(site, caller),
        "unknown": any(row["outcome"] is None for row in rows),
    }
    return PageView("live", facts)


def shown_outcomes(
    outcomes: Sequence[dict[str, Any]], decision: str, listener: str
) -> list[dict[str, Any]]:
    """Return the outcomes of a listener, without unscanned ones if another decision is chosen."""
    return [
        one
        for one in outcomes
        if listener in ("", one["listener"]) and (one["signature"] or decision in ("", _UNSCANNED))
    ]


def live_rows(
    verdicts: list[dict[str, Any]], outcomes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return verdicts with what became of the messages, and messages without a verdict.

    A scanner's verdict is only in the history, and an unscanned message only in the outcomes.
    """
    became = {one["signature"]: one for one in outcomes if one["signature"]}
    rows = [{**one, "outcome": became.get(one["signature"])} for one in verdicts]
    rows += [
        {"time": iso(int(one["time"] * 1_000_000)), "signature": "", "notes": {}, "outcome": one}
        for one in outcomes
        if not one["signature"]
    ]
    return sorted(rows, key=lambda row: str(row["time"]), reverse=True)[:_MOST_ROWS]


def mail_flow(outcomes: Sequence[dict[str, Any]], now: float) -> MailFlow:
    """Return the rate of the last minute, or of the time that the kept events cover."""
    newest = [one for one in outcomes if now - one["time"] <= _MINUTE_S]
    span = _MINUTE_S
    if len(newest) == len(outcomes) and len(newest) >= _MANY:
        span = max(now - newest[0]["time"], 1.0)
    decided = [one["decision"] for one in newest if one["decision"]]
    junk = sum(one in ("junk", "reject") for one in decided)
    return MailFlow(_MINUTE_S * len(newest) / span, junk / len(decided) if decided else None)


def stream(site: ConsoleSite, _: PageRequest) -> PageView:
    """Tell the page that something is new; the page then asks for it with its session."""
    site.events.require_room()
    return PageView(stream=site.events.changes())


_TRIED: Final = 12
"""clues for which the page says what the verdict would be without that clue"""
_SHOWN: Final = 20
_INFLUENCES: Final = 10
_HALF: Final = 60
"""units of the drawing to the left and to the right of the middle of a bar"""


class ClueRow(NamedTuple):
    """One clue, its bar, and the verdict without the clue if it was computed."""

    location: str
    token: str
    nats: float
    start: float
    """where its bar begins, from 0 to 2 * `_HALF`"""
    length: float
    without: Mapping[str, Any] | None
    prior: bool


def show_message(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show one message."""
    signature = request.values["signature"]
    caller, found = owned(site, request.visitor, signature)
    person = found["person"] or ""
    explained = ask(site, caller, "explain", ref=signature, without=_TRIED, person=person)
    outcomes = [
        one for one in site.events.recent("verdict") if one["signature"] == signature
    ]  # fmt: skip
    with site.reading() as model:
        labels = model.labels
    return PageView(
        "message",
        {
            "found": found,
            "labels": labels,
            "outcome": outcomes[-1] if outcomes else None,
            "clues": clue_rows(explained["clues"][:_SHOWN], explained["without"]),
            "half": _HALF,
            "more": max(len(explained["clues"]) - _SHOWN, 0),
            "rest": sum(clue["nats"] for clue in explained["clues"][_SHOWN:]),
            "bias": explained["bias"],
            "deciding": deciding(explained["without"], found["now"]["decision"]),
            "evidence": explained["evidence"],
            "novelty": explained.get("novelty"),
            "sender": sender_view(site, request, caller, found["notes"]),
            "sees_all": request.visitor.role != "user",
            **kept_facts(site, request.visitor, found["kept"]),
        },
    )


def kept_facts(site: ConsoleSite, visitor: Visitor, name: str | None) -> dict[str, Any]:
    """Return what the page shows of a message in quarantine; `kept` is None if it is not there."""
    kept = None
    with suppress(RefError):
        kept = joined_kept(site, visitor, name) if name else None
    return {"kept": kept, **quarantine_form(visitor)}


def quarantine_form(visitor: Visitor) -> dict[str, Any]:
    """Return where the forms for a message in quarantine are sent, and their token."""
    return {"act": QUARANTINE_PATH, "act_token": visitor.form_token(QUARANTINE_PATH)}


def clue_rows(
    clues: Sequence[Mapping[str, Any]], without: Sequence[Mapping[str, Any]]
) -> list[ClueRow]:
    """Return clues with their bars, whose lengths are relative to the strongest."""
    strongest = max((abs(clue["nats"]) for clue in clues), default=0.0) or 1.0
    rows = []
    for index, clue in enumerate(clues):
        length = _HALF * abs(clue["nats"]) / strongest
        start = _HALF if clue["nats"] > 0 else _HALF - length
        other = without[index] if index < len(without) else None
        place, token, nats, prior = clue["location"], clue["token"], clue["nats"], clue["prior"]
        rows.append(ClueRow(place, token, nats, start, length, other, prior))
    return rows


def deciding(without: Sequence[Mapping[str, Any]], decision: str) -> Mapping[str, Any] | None:
    """Return the strongest clue without which the decision would be different."""
    return next((one for one in without if one["decision"] != decision), None)


def show_influence(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the trainings that moved the score of a message most."""
    signature = request.values["signature"]
    (caller,) = request.visitor.callers()
    found = ask(site, caller, "verdict", signature=signature)
    influence = ask(site, caller, "influence", signature=signature, limit=_INFLUENCES)
    return PageView("influence", {"found": found, "influence": influence})


_LABEL: Final = Parameter("label", TEXT, "The label.", required=True)
_REF: Final = Parameter("ref", CHOSEN, "Signatures of messages.", required=True)
_SIGNATURE: Final = Parameter("signature", TEXT, "The signature.", required=True)
_EVENTS: Final = Parameter("event", EVENTS, "The numbers of events.", required=True)


def _teach(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    values = request.values
    return _taught(site, request, values["signature"], values["label"])


def _teach_chosen(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Teach several messages; one that is refused does not stop the others."""
    label = request.values["label"]
    notices = each(request.values["ref"], lambda ref: _taught(site, request, ref, label))
    kept = [one for one in notices if one.path]
    taught = [one for one in notices if not one.path]
    return [*joined(taught, "receipt.several", label=label), *kept[:1]]


def _taught(site: ConsoleSite, request: PageRequest, ref: str, label: str) -> list[Notice]:
    # For a message of another user the answer is that it does not exist; it is not reviewed.
    caller, found = owned(site, request.visitor, ref)
    notices = [notice_of(ask(site, caller, "teach", ref=ref, label=label))]
    if found["kept"] and label == "ham":
        notices.append(
            Notice("waits", text("kept.still"), path=f"{QUARANTINE_PATH}/{found['kept']}")
        )
    return notices


def each(things: Iterable[_Thing], run: Callable[[_Thing], list[Notice]]) -> list[Notice]:
    """Change several things; one of several that is refused does not stop the others."""
    different = list(dict.fromkeys(things))
    if len(different) == 1:
        return run(different[0])
    notices = []
    for one in different:
        try:
            notices += run(one)
        except SpamnbError as error:
            notices.append(Notice("error", str(error), error.hint))
    return notices


def _forget(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    ref = request.values["signature"]
    caller, _ = owned(site, request.visitor, ref)
    return [notice_of(ask(site, caller, "forget", ref=ref))]


def _undo(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Undo events, the newest first."""

    def undo(event: int) -> list[Notice]:
        return [notice_of(undone(site, request.visitor, event), undid=event)]

    notices = each(sorted(request.values["event"], reverse=True), undo)
    return joined(notices, "receipt.several_undone")


def _undo_selected(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    done = ask(site, caller, "undo_selected", **asked_of(request.values))
    left = text("undo_plan.left", count=done["left"]) if done["left"] else ""
    return [Notice("done", text("undo_plan.done", count=done["undone"]), left)]


def notice_of(answer: Mapping[str, Any], undid: int = 0) -> Notice:
    """Return the learner's answer as a sentence."""
    if answer["state"] == "review":
        return Notice("waits", "an administrator has to decide.", answer["reason"])
    receipt = answer["receipt"] or {}
    if answer["state"] == "waiting":
        return Notice("waits", "the correction waits to be learnt.", answer["reason"])
    if answer["state"] == "unchanged" or not receipt.get("changed"):
        reason = receipt.get("reason") or answer["reason"]
        return Notice("done", text("receipt.unchanged"), reason)
    if undid:
        said = f"event {undid} is undone."
    elif receipt["after"] is None:
        said = "the training is forgotten."
    else:
        said = text("receipt.learnt", label=receipt["after"])
    before, after = receipt["probability_before"], receipt["probability_after"]
    moved = ""
    if before is not None and after is not None:
        moved = f"The probability of spam went from {percent(before)} to {percent(after)}."
    if (label := receipt.get("in_force")) and label != receipt["after"]:
        moved += " " * bool(moved) + text("receipt.in_force", label=label, why=receipt["why"])
    return Notice("done", said, moved, (receipt["event"],) if receipt["event"] else ())


TEACH: Final = Act(_teach, (_SIGNATURE, _LABEL))
TEACH_CHOSEN: Final = Act(_teach_chosen, (_REF, _LABEL))
FORGET: Final = Act(_forget, (_SIGNATURE,))
UNDO: Final = Act(_undo, (_EVENTS,))
UNDO_SELECTED: Final = Act(
    _undo_selected,
    (*SELECTED, Parameter("last_event", whole(1, MOST_ID), "The last event.", required=True)),
)
UNDO_HERE: Final = Act(_undo, (_EVENTS, Parameter("signature", TEXT, "The signature.")))
"""on the page of a message"""
