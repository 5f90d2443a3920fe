"""The operations of the API, as functions of the served home and a checked request.

What changes the model is asked of the learner by the control socket, with the caller's user and
trust. A caller of one user finds only what was delivered to that user: everything else does not
exist for the caller (RefError). Failure: the errors of the services.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from typing import Any, NoReturn

from spamnb.core.mail.domains import same_name
from spamnb.core.model.costs import junk_from
from spamnb.core.model.events import NO_LABEL, label_key
from spamnb.core.model.verdict import SIGNATURE, Verdict, signature_bytes, signature_text
from spamnb.core.persons.names import named_person
from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.preview.document import HEADERS, preview
from spamnb.endpoints.console.problems import ApiError
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.errors import RefError, SettingsError, UserError
from spamnb.service.admin.client import answer_of, failed
from spamnb.service.admin.listings import journal, timeline, trainings_of, verdict_facts
from spamnb.service.admin.request import AdminResponse
from spamnb.service.admin.verdict_search import VerdictQuery, search
from spamnb.service.engine.clock import iso, now_us
from spamnb.service.feedback.ownership import OwnershipCheck, delivered_to, own_notes
from spamnb.service.feedback.sender_lists import SenderLists
from spamnb.service.feedback.types import ListTarget, Trust
from spamnb.service.figures.judged_mail import judged_mail
from spamnb.service.figures.teaching_charts import last_taught, newest_trainings, teaching_charts
from spamnb.service.figures.verdict_charts import (
    BEFORE_US,
    WEEK_US,
    calibration_chart,
    correction_charts,
    known_chart,
    log_odds_chart,
    mistakes,
)
from spamnb.service.figures.whatif import slider_facts, whatif_facts
from spamnb.service.maintenance.attribution import bisect
from spamnb.service.maintenance.event_filter import EventFilter
from spamnb.service.telemetry.graphs import PERIODS, counter_charts, growth_in, marks_in
from spamnb.service.training.bulk_scoring import verdict_as_dict
from spamnb.store.history.entry import HistoryEntry
from spamnb.store.rebuild import kept_files, kept_since
from spamnb.store.series import STEPS

_LAST_S = 1 << 40
_MOST_JUDGED = 20_000
"""verdicts of one request for graphs"""
MOST_EVENTS = 5000
"""newest events of the journal that the time machine shows by day and user"""
_MOST_TRAININGS = 20
"""of one message"""

# --- state ---------------------------------------------------------------------------------------


def health(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Whether messages can be scored."""
    with site.reading():
        return ApiReply({"ok": True})


def metrics(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Counters in the format of Prometheus."""
    text = site.ask("metrics").body
    return ApiReply(data=text, media_type="text/plain; version=0.0.4; charset=utf-8")


def series(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """How a counter grew, by minute, quarter of an hour or day."""
    values = request.values
    name, step = values["name"], values["step"]
    since, until = values["since"] // 1_000_000, values["until"] // 1_000_000 or _LAST_S
    points = site.series.points(name, step, since, until)
    found = [{"time": iso(at * 1_000_000), "value": value} for at, value in points]
    return ApiReply({"name": name, "step_s": STEPS[step].seconds, "points": found})


def status(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The facts of `spamnb status --json`."""
    return ApiReply(site.ask("status").header["status"])


def fleet(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The hosts of the fleet, as this host has last heard of them."""
    alone = {"fault": "", "lag_s": 0, "waiting": 0, "host": "", "hosts": []}
    return ApiReply(site.ask("status").header["status"].get("fleet", alone))


def me(_: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Who the caller is, and what the caller may do."""
    caller = request.caller
    return ApiReply(
        {"name": caller.name, "user": caller.user, "scopes": sorted(caller.scopes)}
    )  # fmt: skip


# --- verdicts ------------------------------------------------------------------------------------


def score(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Score a message."""
    values = request.values
    if values["remember"] and request.caller.user:
        # A remembered message would count as delivered to the user.
        raise ApiError(403, "a caller of one user cannot store a verdict in the history")
    person = _person_of(site, request)
    with site.reading() as model:
        judging = site.judging(model, person)
        verdict = model.score(_message(request), remember=values["remember"], **judging)
    return ApiReply(_scored(verdict, values["clues"]))


def explain(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Give all clues of a message; with the bias they add up to the log-odds."""
    ref, person = request.values["ref"], _person_of(site, request)
    _one_of(request)
    with site.reading() as model:
        if ref and request.caller.user:
            check = OwnershipCheck(model, site.config.teaching)
            own = check.owned(request.caller.user, ref)
            ref = signature_text((own or _missing(f"verdict {ref!r}")).signature)
        judging = site.judging(model, person)
        verdict = model.explain(ref or request.message, **judging)
        count = request.values["without"]
        without = model.without(ref or request.message, count, **judging) if count else []
    facts = [clue._asdict() | _short(changed) for clue, changed in without]
    return ApiReply(_scored(verdict, None) | {"bias": verdict.bias, "without": facts})


def verdicts(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Search the verdicts of the history, newest first."""
    values = request.values
    query = VerdictQuery(
        to=values["to"],
        sender=values["from"],
        words=values["q"],
        decision=values["decision"],
        label=values["label"],
        client=values["client"],
        listener=values["listener"],
        corrected=values["corrected"],
        since_us=values["since"],
        until_us=values["until"],
        below=values["cursor"],
        user=request.caller.user,
    )
    with site.reading() as model:
        found = search(model, site.index, site.config.teaching, query, values["limit"])
    return ApiReply({"verdicts": found.verdicts, "next": found.below or None})


def verdict(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """One verdict, the training of its message, and what the model says of the message now."""
    with site.reading() as model:
        entry = _verdict_of(site, request.caller, request.values["signature"])
        recipient = request.caller.user or _only_recipient(entry)
        judging = site.judging(model, recipient)
        now = model.explain(signature_text(entry.signature), **judging)
        with model.store.read() as view:
            mine = view.live(label_key(entry.digest, judging["person"]))
            live = mine or view.live(entry.digest)
            known = live is not None and live.label != NO_LABEL
        trained = model.labels[live.label] if live is not None and known else None
        events = trainings_of(model, entry.digest, _MOST_TRAININGS)
    user, rules = request.caller.user, site.config.teaching
    return ApiReply(
        verdict_facts(entry)
        | {
            "notes": own_notes(entry.notes, user, rules) if user else entry.notes,
            "trained": trained,
            "training": events[0] if known and events else None,
            "trainings": [one for one in events if not user or same_name(user, one["user"])],
            "now": _short(now),
            "person": recipient if judging["person"] else None,
        }
    )


def influence(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The trainings that moved the score of a message most, as `spamnb bisect` computes them."""
    with site.reading() as model:
        entry = _verdict_of(site, request.caller, request.values["signature"])
        example = model.lookup(signature_text(entry.signature))
        with model.store.read() as view:
            found = bisect(view, model.recipe, example, request.values["limit"])
    return ApiReply(found.as_dict())


def stream(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Send each verdict of the daemon as it is given (server-sent events)."""
    if request.caller.user:
        raise ApiError(403, "a caller of one user cannot follow the verdicts of all")
    site.events.require_room()
    return ApiReply(
        media_type="text/event-stream", stream=site.events.events(request.last_event)
    )  # fmt: skip


def _scored(verdict: Verdict, clues: int | None) -> dict[str, Any]:
    found = verdict_as_dict("", verdict, verdict.clues(clues))
    del found["path"]
    return found


def _short(verdict: Verdict) -> dict[str, Any]:
    names = ("label", "probability", "log_odds", "decision")
    return {name: getattr(verdict, name) for name in names}


def _person_of(site: ConsoleSite, request: ApiRequest) -> str:
    """The person to judge for; a caller of one user may name this user alone."""
    given, user = request.values["person"], request.caller.user
    if not given:
        return ""
    names = site.config.persons
    name = named_person(names, given)
    if names and user and name != names.of(user):
        raise ApiError(403, "a caller of one user cannot ask for another person's verdict")
    return str(given)


def _only_recipient(entry: HistoryEntry) -> str:
    """The recipient of a message that had no other; empty if there were several."""
    to = entry.notes.get("to", "").split()
    return to[0] if len(to) == 1 else ""


def _message(request: ApiRequest) -> bytes:
    if not request.message:
        raise UserError("no message is given", hint="send it as message/rfc822")
    return request.message


def _one_of(request: ApiRequest) -> None:
    """Raise unless the request has either a message or a reference."""
    if bool(request.message) == bool(request.values["ref"]):
        raise UserError("give a message or `ref`, and not both")


def _verdict_of(site: ConsoleSite, caller: ApiCaller, signature: str) -> HistoryEntry:
    """The verdict with this signature, if the caller may see it."""
    known = SIGNATURE.fullmatch(signature)
    found = site.history.find(signature=signature_bytes(signature)) if known else []
    if not found:
        _missing(f"verdict {signature!r}")
    if caller.user and not delivered_to(found[0], caller.user, site.config.teaching):
        _missing(f"verdict {signature!r}")
    return found[0]


def _missing(what: str) -> NoReturn:
    raise RefError(f"there is no {what}", hint="see /api/v1/openapi.json")


# --- graphs --------------------------------------------------------------------------------------


def graphs(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The numbers of the page Graphs, over a day, a week, a month or a year."""
    period, now = PERIODS[request.values["period"]], now_us()
    starts = period.starts(now // 1_000_000)
    places = tuple(iso(start * 1_000_000) for start in starts)
    rows = site.series.growth(period.step, starts[0], _LAST_S)
    grown = growth_in(rows, starts, period.seconds)
    charts = counter_charts(places, grown)
    replaced = [int(kept_since(one).timestamp()) for one in kept_files(site.config.home)]
    since = min(starts[0] * 1_000_000, now - WEEK_US - BEFORE_US)
    with site.reading() as model:
        judged = judged_mail(model, site.index, _MOST_JUDGED, since)
        events, labels = newest_trainings(model), model.labels
    charts += teaching_charts(events, places, starts)
    charts += [
        *correction_charts(judged, places, starts),
        calibration_chart(judged),
        log_odds_chart(judged, now),
        known_chart(judged, places, starts),
    ]
    return ApiReply(
        {
            "step_s": period.seconds,
            "messages": len(judged),
            "charts": [chart.as_dict() for chart in charts],
            "marks": marks_in(grown, replaced, starts, period.seconds),
            "mistakes": mistakes(judged, now),
            "last_taught": last_taught(events, labels),
        }
    )


def whatif(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """What other costs would have decided on the newest messages; nothing is changed."""
    values, old = request.values, site.config.costs
    junk, costs = values["junk_from"], values["costs"]
    if (junk is None) == (costs is None):
        raise UserError("give `junk_from` or `costs`, and not both")
    try:
        new = junk_from(old, log(junk / (1 - junk))) if junk else replace(old, **costs)
    except SettingsError as error:
        raise UserError(str(error), hint=error.hint) from error
    with site.reading() as model:
        judged = judged_mail(model, site.index, values["messages"])
        labels = model.labels
    one_in = values["one_in"]
    found = whatif_facts(judged, labels, (old, new), one_in, values["limit"])
    wanted = values["steps"]
    steps = slider_facts(judged, labels, old, one_in) if wanted else {"steps": None, "spread": None}
    return ApiReply(found | steps)


# --- training ------------------------------------------------------------------------------------


def teach(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Set the label of a message."""
    _one_of(request)
    return _changed(_tell(site, request, "teach", label=request.values["label"]))


def forget(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Remove the training of a message."""
    _one_of(request)
    return _changed(_tell(site, request, "forget"))


def undo(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Undo an event of the journal."""
    number, caller = request.values["event"], request.caller
    with site.reading() as model, model.store.read() as view:
        event = view.event(number)
    if event is None or (caller.user and not same_name(event.user, caller.user)):
        _missing(f"event {number}")
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
    values, user = request.values, request.caller.user
    limit = values["limit"]
    with site.reading() as model:
        wanted = EventFilter(
            user=tuple(one for one in (user or values["user"],) if one),
            channel=tuple(one for one in (values["channel"],) if one),
            label=model.label(values["label"]) if values["label"] else None,
            since_us=values["since"] or None,
            until_us=values["until"] or None,
        )
        found = journal(model, wanted, limit, values["cursor"] or None)
    next_ = found[-1]["event"] if len(found) == limit else None
    return ApiReply({"events": found, "next": next_})


# --- review --------------------------------------------------------------------------------------


def review_list(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """List the feedback that waits for review, oldest first."""
    lines = site.ask("review", do="list").body.splitlines()
    return ApiReply({"entries": list(map(json.loads, lines))})


def review_view(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The message of an entry as a safe HTML document, if it was given."""
    name = request.values["name"]
    message = site.ask("review", do="show", name=name).body
    return shown(message or _missing(f"message of the review {name}"))


def shown(message: bytes) -> ApiReply:
    """Return the preview of a message."""
    page = preview(message).encode("utf-8", "replace")
    return ApiReply(data=page, media_type="text/html; charset=utf-8", headers=HEADERS)


def review_decide(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Accept or refuse feedback that waits for review."""
    return _changed(site.ask("review", **request.values))


# --- time machine --------------------------------------------------------------------------------


def time_machine(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """When and by whom the model was trained, the models that were kept, the newest preview."""
    kept = [
        {"kept": one.name, "replaced": kept_since(one).isoformat(), "bytes": one.stat().st_size}
        for one in kept_files(site.config.home)
    ]
    with site.reading() as model:
        facts = timeline(model, MOST_EVENTS)
    try:
        newest = _preview(site.ask("rewind", do="show"))
    except RefError:
        newest = None
    return ApiReply(facts | {"kept": kept, "preview": newest})


def begin_preview(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Make another state of the model beside the present one, and say what it changes."""
    to_us, kept, *left_out = (
        request.values[name] for name in ("to", "kept", "without", "without_channel")
    )
    if sum(map(bool, (to_us, kept, any(left_out)))) != 1:
        raise UserError("give one of `to`, `kept`, and `without` or `without_channel`")
    if any(left_out):
        users, channels = left_out
        answer = site.ask("relearn", do="preview", without=users, without_channel=channels)
    else:
        wanted = {"kept": kept} if kept else {"to_us": to_us}
        answer = site.ask("rewind", do="preview", **wanted)
    return ApiReply(_preview(answer))


def job(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """A preview: its state, and what it changes when it is made."""
    return ApiReply(_preview(site.ask("rewind", do="show", job=request.values["job"])))


def end_preview(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """End a preview, and remove its model."""
    return ApiReply(_preview(site.ask("rewind", do="cancel", job=request.values["job"])))


def apply_preview(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Replace the model by that of a preview, if nothing was learnt since; the old one is kept."""
    values, caller = request.values, request.caller
    wanted = {"job": values["job"], "expect": values["expect"]}
    return ApiReply(_preview(site.ask("rewind", do="apply", **wanted, **{"for": caller.name})))


def _preview(answer: AdminResponse) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body)
    return found
