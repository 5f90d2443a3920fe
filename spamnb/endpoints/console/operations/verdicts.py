"""Verdicts: score and explain a message, search the history, follow it as it grows."""

from __future__ import annotations

from typing import Any, NoReturn

from spamnb.core.mail.domains import same_name
from spamnb.core.model.events import NO_LABEL
from spamnb.core.model.verdict import SIGNATURE, Verdict, signature_bytes, signature_text
from spamnb.core.persons.names import named_person
from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.problems import ApiError
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.errors import RefError, UserError
from spamnb.service.admin.listings import label_facts, trainings_of, verdict_facts
from spamnb.service.admin.verdict_search import VerdictQuery, search
from spamnb.service.engine.message_labels import own_label
from spamnb.service.feedback.ownership import OwnershipCheck, delivered_to, own_notes
from spamnb.service.maintenance.attribution import bisect
from spamnb.service.training.bulk_scoring import verdict_as_dict
from spamnb.store.history.entry import HistoryEntry

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
        }
    )


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
