"""The operations of the API and the pages.

Numbers, state, verdicts, quarantine, people and tokens; teaching, undoing and earlier states of the
model. The learner makes all changes: it gets the requests by the control socket, with the user and
the trust of the caller. A caller of one user finds the messages to that user, releases them to that
user, and deletes them for that user; other messages and recipients do not exist for this caller
(RefError).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

from spamnb.console.preview import HEADERS, MOST_BYTES, preview
from spamnb.console.site import ApiCaller, ApiError, ApiReply, ApiRequest, ConsoleSite
from spamnb.console.whatif import slider_facts, whatif_facts
from spamnb.engine.bulk import verdict_as_dict
from spamnb.engine.event_filter import EventFilter
from spamnb.engine.filter import Filter
from spamnb.engine.lookup import own_label
from spamnb.errors import RefError, SettingsError, SpamnbError, StoreDamagedError, UserError
from spamnb.feedback.review import SenderLists
from spamnb.feedback.rights import OwnershipCheck, delivered_to, own_addresses, own_notes
from spamnb.feedback.values import Answer, ListTarget, Trust
from spamnb.mail.envelope import same_name
from spamnb.maintenance.attribution import bisect
from spamnb.maintenance.home_files import stored_facts, thresholds_of
from spamnb.maintenance.rewind import UndoPlan, undoable
from spamnb.model.costs import junk_from, log_odds_of
from spamnb.model.events import NO_LABEL
from spamnb.model.scoring import Passage
from spamnb.model.verdict import SIGNATURE, Verdict, signature_bytes, signature_text
from spamnb.operations.figures import (
    BEFORE_US,
    PERIODS,
    WEEK_US,
    calibration_chart,
    correction_charts,
    counter_charts,
    growth_in,
    judged_mail,
    known_chart,
    last_taught,
    log_odds_chart,
    marks_in,
    mistakes,
    newest_trainings,
    teacher_facts,
    teaching_charts,
)
from spamnb.operations.listings import (
    VerdictQuery,
    event_facts,
    journal,
    label_facts,
    search,
    seen_senders,
    timeline,
    trainings_of,
    verdict_facts,
)
from spamnb.operations.logins import new_token
from spamnb.operations.request import AdminResponse, answer_of, failed
from spamnb.policy.actions import named_person
from spamnb.records.console import STEPS
from spamnb.records.verdicts import HistoryEntry
from spamnb.scan.values import QuarantinedMessage
from spamnb.store.maintenance import kept_files, kept_since
from spamnb.store.table_views import ReadView
from spamnb.telemetry import iso, now_us

_DAY_US: Final = 86_400_000_000

_MOST_JUDGED = 20_000
"""verdicts that one request for graphs reads"""
_LAST_S = 1 << 40


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


def teachers(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Users, and how many of their labels other users or the rest of the model contradict."""
    with site.reading() as model, model.store.read() as view:
        return ApiReply(teacher_facts(view, model.recipe, newest_trainings(model)))


def whatif(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """What other costs would have decided on the newest messages; nothing is changed."""
    values, old = request.values, site.config.costs
    junk, costs = values["junk_from"], values["costs"]
    if (junk is None) == (costs is None):
        raise UserError("give `junk_from` or `costs`, and not both")
    try:
        new = junk_from(old, log_odds_of(junk)) if junk else replace(old, **costs)
    except SettingsError as error:
        raise UserError(str(error), hint=error.hint) from error
    with site.reading() as model:
        judged = judged_mail(model, site.index, values["messages"])
        labels = model.labels
    one_in = values["one_in"] or site.config.cost_rules.one_in
    found = whatif_facts(judged, labels, (old, new), one_in, values["limit"])
    wanted = values["steps"]
    steps = slider_facts(judged, labels, old, one_in) if wanted else {"steps": None, "spread": None}
    return ApiReply(found | steps)


def costs(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The thresholds in force, where they come from, and what an administrator chose."""
    config = site.config
    return ApiReply(
        {
            "thresholds": thresholds_of(config.costs),
            "set_at": config.cost_rules.set_at,
            "stored": stored_facts(config.home, config.cost_rules),
        }
    )


def choose_costs(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Put another threshold of junk in force, as `POST /whatif` tried it."""
    asked = {name: request.values[name] for name in ("junk_from", "expect")}
    who = request.caller.name
    return ApiReply(site.ask("costs", do="choose", **{"for": who}, **asked).header)


def take_back_costs(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Bring back the costs that were in force before an administrator chose others."""
    who, at = request.caller.name, request.values["at"]
    return ApiReply(site.ask("costs", do="take_back", **{"for": who}, at=at).header)


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


def settings(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The settings in force: value, default and help text of each; secrets are masked."""
    return ApiReply(site.settings._asdict())


def bypass(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Turn the bypass on or off: while it is on, all mail passes unscanned."""
    return ApiReply(site.ask("bypass", on=request.values["on"]).header)


def live(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Let listeners that only observe mark and file mail, or only observe again."""
    return ApiReply(site.ask("live", on=request.values["on"]).header)


def reload(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Read the settings again, and open a model that could not be opened."""
    return ApiReply(site.ask("reload").header)


def me(_: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Who the caller is, and what the caller may do."""
    caller = request.caller
    return ApiReply(
        {"name": caller.name, "user": caller.user, "scopes": sorted(caller.scopes)}
    )  # fmt: skip


MOST_EVENTS = 5000
"""newest events of the journal that the time machine shows by day and user"""


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
        raise UserError(
            "give exactly one of these: `to`; `kept`; or `without` and `without_channel`"
        )
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


def listed_tokens(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """List the tokens; none with its text."""
    return ApiReply({"tokens": [one.as_dict() for one in site.tokens.tokens().values()]})


def create(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Create a token; only this reply has its text."""
    values = request.values
    more = sorted(frozenset(values["scopes"]) - request.caller.scopes)
    if more:
        raise ApiError(403, f"the caller does not have the scope {more[0]!r}")
    made = new_token(
        values["name"], tuple(values["scopes"]), values["user"], values["days"], now_us()
    )
    text = site.tokens.create(made)
    return ApiReply(made.as_dict() | {"token": text})


def revoke(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """End a token at once."""
    site.tokens.revoke(request.values["name"])
    return ApiReply({"revoked": request.values["name"]})


def people(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """List the logins with their roles and sessions."""
    return ApiReply({"people": site.logins.people()})


def end_sessions(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """End all sessions of a login."""
    return ApiReply({"ended": site.logins.end_sessions(request.values["name"])})


_MOST_TRAININGS = 20
"""of one message"""


def score(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Score a message."""
    values = request.values
    if values["remember"] and request.caller.user:
        # A message in the history would count as delivered to the user.
        raise ApiError(403, "a caller of one user cannot store a verdict in the history")
    person = _person_of(site, request)
    with site.reading() as model:
        judging = site.judging(model, person)
        verdict = model.score(_message(request), remember=values["remember"], **judging)
    return ApiReply(_scored(verdict, values["clues"]))


def explain(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Give all clues of a message; with the bias they add up to the log-odds."""
    ref, person = request.values["ref"], _person_of(site, request)
    one_of(request)
    with site.reading() as model:
        if ref and request.caller.user:
            check = OwnershipCheck(model, site.config.teaching)
            own = check.owned(request.caller.user, ref)
            ref = signature_text((own or missing(f"verdict {ref!r}")).signature)
        judging = site.judging(model, person)
        verdict = model.explain(ref or request.message, **judging)
        digest = model.digest(ref or request.message)
        with model.store.read() as view:
            said = label_facts(view, digest, model.labels, named=not request.caller.user)
        count = request.values["without"]
        without = model.without(ref or request.message, count, **judging) if count else []
    facts = [clue._asdict() | _short(changed) for clue, changed in without]
    return ApiReply(_scored(verdict, None) | {"bias": verdict.bias, "without": facts} | said)


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
        user, rules = request.caller.user, site.config.teaching
        source = model.source_of(user, rules)._replace(person=judging["person"])
        with model.store.read() as view:
            said = label_facts(view, entry.digest, model.labels, named=not user)
            mine = own_label(view, entry.digest, source) if user or source.person else NO_LABEL
        trained = said["in_force"] if mine == NO_LABEL and not user else None
        if mine != NO_LABEL:
            trained = model.labels[mine]
        events = trainings_of(model, entry.digest, _MOST_TRAININGS)
    own = [one for one in events if not user or same_name(user, one["user"])]
    return ApiReply(
        verdict_facts(entry)
        | said
        | {
            "notes": own_notes(entry.notes, user, rules) if user else entry.notes,
            "trained": trained,
            "training": own[0] if trained and own else None,
            "trainings": own,
            "now": _short(now),
            "person": recipient if judging["person"] else None,
            "kept": _kept_of(site, request.caller, entry),
        }
    )


def _kept_of(site: ConsoleSite, caller: ApiCaller, entry: HistoryEntry) -> str | None:
    """The ID of the message in quarantine, if it waits there for the caller."""
    name = site.quarantine.find(signature_text(entry.signature), entry.time_us)
    with suppress(RefError, StoreDamagedError):
        return _entry(site, caller, name).id if name else None
    return None


def influence(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The trainings that moved the score of a message most, for its recipient if it has one."""
    with site.reading() as model:
        entry = _verdict_of(site, request.caller, request.values["signature"])
        example = model.lookup(signature_text(entry.signature))
        person = site.judging(model, _only_recipient(entry))["person"]
        with model.store.read() as view:
            limit = request.values["limit"]
            found = bisect(view, model.recipe, example, limit, person=person)
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
    """The person to judge for; a caller of one user may name only this user."""
    given, user = request.values["person"], request.caller.user
    if not given:
        return ""
    names = site.config.persons
    name = named_person(names, given)
    if names and user and name != names.of(user):
        raise ApiError(403, "a caller of one user cannot ask for another person's verdict")
    return str(given)


def _only_recipient(entry: HistoryEntry) -> str:
    """The recipient of a message; empty if there were several."""
    to = entry.notes.get("to", "").split()
    return to[0] if len(to) == 1 else ""


def _message(request: ApiRequest) -> bytes:
    if not request.message:
        raise UserError("no message is given", hint="send it as message/rfc822")
    return request.message


def one_of(request: ApiRequest) -> None:
    """Raise unless the request has either a message or a reference."""
    if bool(request.message) == bool(request.values["ref"]):
        raise UserError("give a message or `ref`, and not both")


def _verdict_of(site: ConsoleSite, caller: ApiCaller, signature: str) -> HistoryEntry:
    """The verdict with this signature, if the caller may see it."""
    known = SIGNATURE.fullmatch(signature)
    found = site.history.find(signature=signature_bytes(signature)) if known else []
    if not found:
        missing(f"verdict {signature!r}")
    if caller.user and not delivered_to(found[0], caller.user, site.config.teaching):
        missing(f"verdict {signature!r}")
    return found[0]


def missing(what: str) -> NoReturn:
    raise RefError(f"there is no {what}", hint="see /api/v1/openapi.json")


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


def senders_seen(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """List the domains of authors in the mail of some days, with how it was judged."""
    values = request.values
    since_us = now_us() - values["days"] * _DAY_US
    return ApiReply({"senders": seen_senders(site.history, since_us, values["limit"])})


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
    return ApiReply({"events": _named(site, request.caller, found), "next": next_})


def _named(
    site: ConsoleSite, caller: ApiCaller, events: list[dict[str, Any]]
) -> list[dict[str, Any]]:  # fmt: skip
    """Events with the messages that they are about."""
    return [one | _message_of(site, caller, one["digest"]) for one in events]


def _message_of(site: ConsoleSite, caller: ApiCaller, digest: str) -> dict[str, str]:
    """The newest verdict on a message that the caller may see, and its subject."""
    entries = site.history.find(digest=bytes.fromhex(digest))
    rules = site.config.teaching
    for entry in entries:
        if not caller.user or delivered_to(entry, caller.user, rules):
            subject = entry.notes.get("subject", "")
            return {"signature": signature_text(entry.signature), "subject": subject}
    return {"signature": "", "subject": ""}


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
    facts = _named(site, request.caller, facts)
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


def review_list(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """List the feedback that waits for review, oldest first."""
    lines = site.ask("review", do="list").body.splitlines()
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        found = _message_of(site, request.caller, entry["digest"])
        entry["signature"] = found["signature"]
        entry["subject"] = entry["subject"] or found["subject"]
    return ApiReply({"entries": entries})


def review_view(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The message of an entry as a safe HTML document, if it was given."""
    name = request.values["name"]
    message = site.ask("review", do="show", name=name).body
    return shown(message or missing(f"message of the review {name}"))


def shown(message: bytes, passage: Passage | None = None) -> ApiReply:
    """Return the preview of a message."""
    page = preview(message, passage).encode("utf-8", "replace")
    return ApiReply(data=page, media_type="text/html; charset=utf-8", headers=HEADERS)


def review_decide(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Accept or refuse feedback that waits for review."""
    return _changed(site.ask("review", **request.values))


MOST_READ: Final = 2_000
"""messages that one request looks at (60 ms). Some of them belong to other users, so a page can
have fewer messages than its limit even if more pages follow."""


def listed_messages(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """List the messages in quarantine, newest first."""
    caller, limit, below = request.caller, request.values["limit"], request.values["cursor"]
    words = request.values["q"].casefold().split()
    names = [name for name in reversed(site.quarantine.ids()) if not below or name < below]
    found: list[dict[str, Any]] = []
    last = ""
    for last in names[:MOST_READ]:
        # Another process may delete it meanwhile.
        with suppress(RefError, StoreDamagedError):
            facts = _facts(site, caller, _entry(site, caller, last))
            shown = f"{facts['subject']} {facts['header_from']} {facts['sender']}".casefold()
            if all(word in shown for word in words):
                found.append(facts)
        if len(found) == limit:
            break
    more = last != "".join(names[-1:])
    return ApiReply({"messages": found, "next": last if more else None})


def show_kept(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """One message: its envelope, verdict and subject."""
    caller = request.caller
    return ApiReply(_facts(site, caller, _entry(site, caller, request.values["id"])))


def view_kept(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """A message as a safe HTML document: header, text, hidden text, names of attachments."""
    entry = _entry(site, request.caller, request.values["id"])
    message = site.quarantine.raw(entry.id)
    passage = None
    with suppress(SpamnbError), site.reading() as model:
        # Of what the preview reads: its blocks are those of the whole text otherwise.
        passage = model.explain(message[:MOST_BYTES]).passage
    return shown(message, passage)


def raw(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The message itself, as a file."""
    entry = _entry(site, request.caller, request.values["id"])
    return ApiReply(
        data=site.quarantine.raw(entry.id), media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{entry.id}.eml"'},
    )  # fmt: skip


def release(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Deliver a message to recipients that do not have it; `teach` trains it as ham."""
    values, caller = request.values, request.caller
    entry = _entry(site, caller, values["id"])
    if not _may_release(site, caller, entry):
        raise ApiError(403, "only an administrator may release this message",
                       hint="see console.users_release")  # fmt: skip
    to = _own(site, caller, entry)
    if values["only"] is not None:
        to = entry.numbers_of(values["only"], to)
    message = site.quarantine.raw(entry.id)
    after = site.quarantine.release(entry.id, site.send, only=to, again=values["again"])
    delivered = to.isdisjoint(after.open)
    answer = _taught(site, caller, message) if values["teach"] and delivered else None
    results = [{"recipient": name, "reply": reply}
               for at, (name, reply) in enumerate(after.results()) if at in to]  # fmt: skip
    return ApiReply({"results": results, "delivered": delivered, "training": answer})


def _taught(site: ConsoleSite, caller: ApiCaller, message: bytes) -> dict[str, Any]:
    """The answer of the learner. Its error is not raised, because the release is already done."""
    try:
        asked = site.ask("teach", message, label="ham", **speaker(caller))
        return answer_of(asked.header).as_dict()
    except SpamnbError as error:
        return Answer("refused", reason=str(error)).as_dict()


def delete(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Delete a message; it is not delivered. A caller of one user deletes it for that user."""
    caller = request.caller
    entry = _entry(site, caller, request.values["id"])
    site.quarantine.delete_for(entry.id, _own(site, caller, entry) if caller.user else None)
    return ApiReply({"deleted": entry.id})


def restore(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Take back `delete`, which is possible for an hour; a user only what the user deleted."""
    caller, name = request.caller, request.values["id"]
    site.quarantine.restore(name, partial(_own, site, caller) if caller.user else None)
    return ApiReply({"restored": name})


def _entry(site: ConsoleSite, caller: ApiCaller, name: str) -> QuarantinedMessage:
    """A message that waits for the caller, or for any recipient if the caller may see all mail."""
    entry = site.quarantine.get(name)
    if caller.user and _own(site, caller, entry).isdisjoint(entry.open):
        raise RefError(
            f"there is no message {name} in quarantine", hint="see `spamnb quarantine list`"
        )
    return entry


def _own(site: ConsoleSite, caller: ApiCaller, entry: QuarantinedMessage) -> frozenset[int]:
    """The indexes of the recipients for whom the caller may act."""
    if not caller.user:
        return frozenset(range(len(entry.names)))
    return own_addresses(entry.names, caller.user, site.config.teaching)


def _facts(site: ConsoleSite, caller: ApiCaller, entry: QuarantinedMessage) -> dict[str, Any]:
    """What the caller sees of a message; other recipients are hidden, because of blind copies."""
    found = entry.as_dict(_own(site, caller, entry)) | site.quarantine.shown(entry.id)
    until = entry.time_us + site.quarantine.limits.keep_days * _DAY_US
    return found | {"until": iso(until), "may_release": _may_release(site, caller, entry)}


def _may_release(site: ConsoleSite, caller: ApiCaller, entry: QuarantinedMessage) -> bool:
    """Whether the settings let the caller release a message."""
    return not caller.user or entry.may_release(site.users_release)
