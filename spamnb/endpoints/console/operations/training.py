"""Labels and lists of senders: teach, forget, undo, review, and the journal.

The learner changes the model. It gets the requests by the control socket, with the user and the
trust of the caller.
"""

from __future__ import annotations

import json
from typing import Any, Final

from spamnb.core.mail.domains import same_name
from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.operations.verdicts import missing, one_of
from spamnb.endpoints.console.preview.document import HEADERS, preview
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.errors import SpamnbError, UserError
from spamnb.service.admin.client import answer_of, failed
from spamnb.service.admin.listings import event_facts, journal
from spamnb.service.admin.request import AdminResponse
from spamnb.service.engine.filter import Filter
from spamnb.service.feedback.sender_lists import SenderLists
from spamnb.service.feedback.types import ListTarget, Trust
from spamnb.service.maintenance.event_filter import EventFilter
from spamnb.service.maintenance.rewind import UndoPlan, undoable
from spamnb.store.contract import ReadView

MOST_UNDONE: Final = 500
"""events that one request undoes, which takes some seconds"""


def teach(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Set the label of a message."""
    one_of(request)
    return _changed(_tell(site, request, "teach", label=request.values["label"]))


def forget(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Remove the training of a message."""
    one_of(request)
    return _changed(_tell(site, request, "forget"))


def undo(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Undo an event of the journal."""
    number, caller = request.values["event"], request.caller
    with site.reading() as model, model.store.read() as view:
        event = view.event(number)
    if event is None or (caller.user and not same_name(event.user, caller.user)):
        missing(f"event {number}")
    return _changed(site.ask("undo", event=number, **speaker(caller)))


def _tell(site: ConsoleSite, request: ApiRequest, op: str, **fields: str) -> AdminResponse:
    ref = request.values["ref"]
    refs = [ref] if ref else []
    return site.ask(op, request.message, refs=refs, **fields, **speaker(request.caller))


def speaker(caller: ApiCaller) -> dict[str, str]:
    """The fields of the control socket that name the user of a change."""
    trust = "user" if caller.user else "admin"
    return {"for": caller.user or caller.name, "trust": trust, "channel": "api"}


def _changed(response: AdminResponse) -> ApiReply:
    """The learner's answer: 202 if it waits for review; a refusal is raised."""
    answer = answer_of(response.header)
    if answer.state == "refused":
        raise failed({"error": answer.reason, **answer.facts})
    return ApiReply(answer.as_dict(), 202 if answer.state == "review" else 200)


def senders(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """List wanted and unwanted senders: of one list, or for an administrator of all."""
    values, caller = request.values, request.caller
    trust: Trust = "user" if caller.user else "admin"
    target = ListTarget(caller.user or caller.name, trust, values["person"], values["domain"])
    with site.reading() as model:
        found = list(SenderLists(model, site.config.persons, site.config.teaching).shown(target))
    sender = values["sender"]
    return ApiReply({"senders": [one for one in found if sender in ("", one["sender"])]})


def list_sender(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Want a sender, or not, or remove the sender from the list; a user changes the own list."""
    values = request.values
    fields = {name: values[name] for name in ("sender", "person", "domain")}
    fields["word"] = "" if values["word"] == "none" else values["word"]
    refs = [values["ref"]] if values["ref"] else []
    return _changed(site.ask("sender", refs=refs, **fields, **speaker(request.caller)))


def trainings(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """List the events of the journal, newest first."""
    limit = request.values["limit"]
    with site.reading() as model:
        wanted = _selection(model, request)
        found = journal(model, wanted, limit, request.values["cursor"] or None)
    next_ = found[-1]["event"] if len(found) == limit else None
    return ApiReply({"events": found, "next": next_})


def _selection(model: Filter, request: ApiRequest) -> EventFilter:
    values = request.values
    user = request.caller.user or values["user"]
    return EventFilter(
        user=(user,) if user else (),
        channel=(values["channel"],) if values["channel"] else (),
        label=model.label(values["label"]) if values["label"] else None,
        since_us=values["since"] or None,
        until_us=values["until"] or None,
    )


def undo_plan(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Which of the selected events can be undone; nothing is changed."""
    with site.reading() as model, model.store.read() as view:
        plan = _plan(model, view, request)
        newest = (view.event(seq) for seq in plan.events[: request.values["limit"]])
        facts = [event_facts(view, event, model.labels) for event in newest if event]
    found: dict[str, Any] = {"events": facts, "undoable": len(plan.events)}
    return ApiReply(
        found | {"superseded": len(plan.superseded), "last_event": max(plan.events, default=0)}
    )


def undo_selected(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Undo the selected events up to `last_event`, the newest first, at most 500 at once."""
    with site.reading() as model, model.store.read() as view:
        plan = _plan(model, view, request)
    events = [one for one in plan.events if one <= request.values["last_event"]]
    undone = 0
    try:
        for event in events[:MOST_UNDONE]:
            answer = answer_of(site.ask("undo", event=event, **speaker(request.caller)).header)
            undone += answer.state == "learnt"
    except SpamnbError as error:
        said = f"{undone} of {len(events)} trainings are undone, then: {error}"
        raise type(error)(said, hint="look at the list, and press the button again") from error
    return ApiReply({"undone": undone, "left": len(events[MOST_UNDONE:])})


def _plan(model: Filter, view: ReadView, request: ApiRequest) -> UndoPlan:
    if not (wanted := _selection(model, request)):
        raise UserError("nothing is selected", hint="give user, channel, label, since or until")
    return undoable(view, model.recipe, wanted)


def review_list(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """List the feedback that waits for review, oldest first."""
    lines = site.ask("review", do="list").body.splitlines()
    return ApiReply({"entries": list(map(json.loads, lines))})


def review_view(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The message of an entry as a safe HTML document, if it was given."""
    name = request.values["name"]
    message = site.ask("review", do="show", name=name).body
    return shown(message or missing(f"message of the review {name}"))


def shown(message: bytes) -> ApiReply:
    """Return the preview of a message."""
    page = preview(message).encode("utf-8", "replace")
    return ApiReply(data=page, media_type="text/html; charset=utf-8", headers=HEADERS)


def review_decide(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Accept or refuse feedback that waits for review."""
    return _changed(site.ask("review", **request.values))
