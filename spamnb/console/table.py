"""The table of the API: method, path, scope, parameters and reply of each operation. Pure.

Routes, checks, rights and the OpenAPI 3.1 document are derived from it, so they cannot differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from spamnb.console import operations, site
from spamnb.console.site import Place, Run
from spamnb.model.costs import DECISIONS
from spamnb.model.verdict import SIGNATURE
from spamnb.operations.figures import PERIODS
from spamnb.operations.logins import SCOPES
from spamnb.operations.parameters import (
    FLAG,
    MOST_ID,
    TEXT,
    TEXTS,
    TIME,
    Parameter,
    Schema,
    between,
    choice,
    pairs_by,
    whole,
)
from spamnb.policy.rulings import WORDS
from spamnb.records.console import STEPS
from spamnb.telemetry import COUNTERS

PREFIX: Final = "/api/v1"
MOST_MESSAGE_BYTES: Final = 32 << 20
MOST_JSON_BYTES: Final = 64 << 10
MESSAGE: Final = "message/rfc822"


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One row."""

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    """below `PREFIX`"""
    scope: str
    """what a caller needs; empty: nothing"""
    run: Run
    reply: Schema
    parameters: tuple[Parameter, ...] = ()
    """those that `path` names are required; the others are in the query or in the JSON body"""
    message: bool = False
    """whether the body may be a message"""
    place: Place = "quick"
    media_type: str = "application/json"
    review: bool = False
    """whether a reply with status 202 means that an administrator has to decide"""

    @property
    def summary(self) -> str:
        """What it does."""
        return (self.run.__doc__ or "").strip()

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return self.method != "GET" and self.name not in ("score", "explain", "whatif")

    @property
    def noted(self) -> bool:
        """Whether it is logged: it changes something, or gives the text of a message."""
        return self.changes or self.name in ("view", "raw", "review_view")

    @property
    def most_bytes(self) -> int:
        """The most bytes of its body."""
        if self.method == "GET":
            return 0
        return MOST_MESSAGE_BYTES if self.message else MOST_JSON_BYTES


def _object(**properties: str) -> Schema:
    """Return the schema of an object: each property's type, with ? if it may be null."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": {name: _typed(kind) for name, kind in properties.items()},
    }


def _typed(kind: str) -> Schema:
    plain = kind.rstrip("?")
    return {"type": [plain, "null"] if kind.endswith("?") else plain}


def _page(name: str, items: Schema, next_: str = "integer?") -> Schema:
    listed = {"type": "array", "items": items}
    properties = {name: listed, "next": _typed(next_)}
    return {"type": "object", "required": [name, "next"], "properties": properties}


_VERDICT: Final = _object(
    id="string", label="string", probability="number", log_odds="number", decision="string",
    evidence="number", clues="array",
)  # fmt: skip
_LISTED: Final = _object(
    time="string", id="string", message_id="string", signature="string", label="string",
    probability="number", log_odds="number", decision="string", notes="object",
)  # fmt: skip
_EVENT: Final = _object(
    event="integer", time="string", kind="string", user="string", channel="string",
    before="string?", after="string?", digest="string", message_id="string", undoes="integer?",
    owner="string", in_force="string?", why="string", subject="string", signature="string",
)  # fmt: skip
_SAID: Final = {"in_force": "string?", "why": "string", "given": "array"}
_ANSWER: Final = _object(
    state="string", reason="string", review="string", receipt="object?", facts="object"
)
_QUARANTINED: Final = _object(
    id="string", time="string", bytes="integer", sender="string", recipients="array",
    waiting="array", state="string", subject="string", header_from="string", until="string",
    may_release="boolean", facts="object",
)  # fmt: skip
_CHANGED_COSTS: Final = _object(before="object", after="object")
_TOKEN: Final = _object(
    name="string", scopes="array", user="string", created="string", ends="string"
)


def _with(schema: Schema, **properties: str) -> Schema:
    """Return the schema of an object with more properties."""
    more = _object(**properties)
    return {
        "type": "object",
        "required": [*schema["required"], *more["required"]],
        "properties": {**schema["properties"], **more["properties"]},
    }


_REF: Final = Parameter(
    "ref", TEXT, "The message's signature, digest or Message-ID, instead of the message.", ""
)
_PERSON: Final = Parameter(
    "person", TEXT, "Judge for this person, an address or a login; needs persons.enabled.", ""
)
_LIMIT: Final = Parameter("limit", whole(1, 200), "The most entries of the reply.", 50)
_CURSOR: Final = Parameter("cursor", whole(0, MOST_ID), "`next` of the page before.", 0)
_SINCE: Final = Parameter("since", TIME, "Not before this time.", 0)
_UNTIL: Final = Parameter("until", TIME, "Before this time.", 0)


def _text(name: str, text: str) -> Parameter:
    return Parameter(name, TEXT, text, "")


def _id(name: str, text: str) -> Parameter:
    return Parameter(name, TEXT, text, required=True)


_OF_LIST: Final = (
    _text("person", "Whose list, by address or login; only an administrator names a list."),
    _text("domain", "The domain of recipients that have the list."),
)
_EVENTS: Final = (
    _text("user", "The user that trained; a caller of one user finds only the own ones."),
    _text("channel", "The channel."),
    _text("label", "The label before or after."),
    _SINCE,
    _UNTIL,
)
"""which events of the journal"""
_SIGNATURE: Final = _id("signature", f"The signature: {SIGNATURE.pattern}")
_JOB: Final = _id("job", "The preview's name.")
_PREVIEW: Final = _object(
    job="string", state="string", wanted="object", began="string", ends="string?", kept="string?",
    facts="object?", error="object?",
)  # fmt: skip
_QUARANTINE_ID: Final = _id("id", "The message's ID.")

OPERATIONS: Final[tuple[ApiOperation, ...]] = (
    ApiOperation("health", "GET", "/health", "", operations.health, _object(ok="boolean")),
    ApiOperation(
        "metrics", "GET", "/metrics", "metrics", operations.metrics, {"type": "string"},
        media_type="text/plain", place="learner",
    ),
    ApiOperation(
        "series", "GET", "/series", "metrics", operations.series,
        _object(name="string", step_s="integer", points="array"),
        (
            Parameter("name", choice(*COUNTERS), "A counter of `/metrics`, without the prefix and "
                      "`_total`.", required=True),
            Parameter("step", choice(*STEPS), "The length of a step.", "minute"), _SINCE, _UNTIL,
        ),
    ),
    ApiOperation(
        "status", "GET", "/status", "admin", operations.status, _object(warnings="array"),
        place="learner",
    ),
    ApiOperation(
        "fleet", "GET", "/fleet", "admin", operations.fleet,
        _object(fault="string", lag_s="number", waiting="integer", host="string", hosts="array"),
        place="learner",
    ),
    ApiOperation(
        "settings", "GET", "/settings", "admin", operations.settings,
        _object(file="string", settings="array"),
    ),
    ApiOperation(
        "bypass", "POST", "/bypass", "admin", operations.bypass, _object(bypass="boolean"),
        (Parameter("on", FLAG, "Whether mail passes unscanned.", required=True),),
        place="learner",
    ),
    ApiOperation(
        "live", "POST", "/live", "admin", operations.live, _object(live="boolean"),
        (Parameter("on", FLAG, "Whether listeners that observe mark mail.", required=True),),
        place="learner",
    ),
    ApiOperation(
        "reload", "POST", "/reload", "admin", operations.reload, _object(fault="string"),
        place="learner",
    ),
    ApiOperation(
        "me", "GET", "/me", "", operations.me, _object(name="string", user="string", scopes="array")
    ),
    ApiOperation(
        "score", "POST", "/score", "score", operations.score, _VERDICT,
        (
            Parameter("clues", whole(0, 1000), "How many of the strongest clues to list.", 0),
            Parameter("remember", FLAG, "Store the verdict in the history; the reply then has its "
                      "signature.", default=False),
            _PERSON,
        ),
        message=True, place="heavy",
    ),
    ApiOperation(
        "explain", "POST", "/explain", "read", operations.explain,
        _with(_VERDICT, bias="number", without="array", **_SAID),
        (
            _REF, _PERSON,
            Parameter("without", whole(0, 50), "For how many of the strongest clues to say what "
                      "the verdict were without it.", 0),
        ),
        message=True, place="heavy",
    ),
    ApiOperation(
        "teach", "POST", "/teach", "teach", operations.teach, _ANSWER,
        (Parameter("label", TEXT, "The label: one of the model's.", required=True), _REF),
        message=True, review=True, place="learner",
    ),
    ApiOperation(
        "forget", "POST", "/forget", "teach", operations.forget, _ANSWER, (_REF,),
        message=True, review=True, place="learner",
    ),
    ApiOperation(
        "undo", "POST", "/undo", "teach", operations.undo, _ANSWER,
        (Parameter("event", whole(1, MOST_ID), "The event's number.", required=True),),
        place="learner",
    ),
    ApiOperation(
        "senders", "GET", "/senders", "read", operations.senders, _object(senders="array"),
        (*_OF_LIST, _text("sender", "Only this address or domain.")), place="heavy",
    ),
    ApiOperation(
        "senders_seen", "GET", "/senders/seen", "admin", operations.senders_seen,
        _object(senders="array"),
        (Parameter("days", whole(1, 400), "How far back.", 30), _LIMIT), place="heavy",
    ),
    ApiOperation(
        "list_sender", "POST", "/senders", "teach", operations.list_sender, _ANSWER,
        (
            Parameter("word", choice(*WORDS, "none"), "What it is; none removes it from the list.",
                      required=True),
            _text("sender", "The sender: an address or a domain."),
            Parameter("ref", TEXT, "A message's signature, digest or Message-ID, the author of "
                      "which is meant, instead of the sender.", ""),
            *_OF_LIST,
        ),
        place="learner",
    ),
    ApiOperation(
        "verdicts", "GET", "/verdicts", "read", operations.verdicts,
        _page("verdicts", _with(_LISTED, trained="string?")),
        (
            _text("to", "A recipient's address."),
            _text("from", "The sender's address, or its domain."),
            _text("q", "Words of the subject."),
            Parameter("decision", choice("deliver", "unsure", "junk", "reject"),
                      "The model's decision.", ""),
            _text("label", "The verdict's label."),
            _text("client", "The client's IP address."),
            _text("listener", "The listener's name in the settings."),
            Parameter("corrected", FLAG, "Whether the message was taught under another label."),
            _SINCE, _UNTIL, _CURSOR, _LIMIT,
        ),
        place="heavy",
    ),
    ApiOperation(
        "stream", "GET", "/verdicts/stream", "read", operations.stream, {"type": "string"},
        media_type="text/event-stream",
    ),
    ApiOperation(
        "verdict", "GET", "/verdicts/{signature}", "read", operations.verdict,
        _with(_LISTED, trained="string?", training="object?", trainings="array", now="object",
              person="string?", kept="string?", **_SAID),
        (_SIGNATURE,), place="heavy",
    ),
    ApiOperation(
        "influence", "GET", "/verdicts/{signature}/influence", "admin", operations.influence,
        _object(log_odds="number", between="array", shares="array", folded="integer"),
        (_SIGNATURE, _LIMIT), place="heavy",
    ),
    ApiOperation(
        "graphs", "GET", "/graphs", "admin", operations.graphs,
        _object(step_s="integer", messages="integer", charts="array", marks="array",
                mistakes="object", last_taught="array"),
        (Parameter("period", choice(*PERIODS), "How far back.", "week"),), place="heavy",
    ),
    ApiOperation(
        "whatif", "POST", "/whatif", "admin", operations.whatif,
        _object(
            messages="integer", since="string?", old_thresholds="object", new_thresholds="object",
            counts="array", newly_junk="object", newly_delivered="object", at_most="object",
            reliability="array", changed="array", steps="array?", spread="object?",
        ),
        (
            Parameter("junk_from", between(0, 1), "The probability above which messages are junk."),
            Parameter("costs", pairs_by(*DECISIONS), "Costs of decisions, for ham and for spam, "
                      "instead."),
            Parameter("messages", whole(1, 20_000), "How many of the newest messages.", 5000),
            Parameter("one_in", whole(2, 1_000_000), "The bound on lost ham needs the evidence for "
                      "one in so many; without it that for `ham_loss.one_in`."),
            Parameter("steps", FLAG, "Also the numbers of 76 thresholds of junk, and the spread "
                      "of the log-odds.", default=False),
            _LIMIT,
        ),
        place="heavy",
    ),
    ApiOperation(
        "costs", "GET", "/costs", "admin", operations.costs,
        _object(thresholds="object", set_at="string", stored="object?"),
    ),
    ApiOperation(
        "choose_costs", "POST", "/costs", "admin", operations.choose_costs, _CHANGED_COSTS,
        (
            Parameter("junk_from", between(0, 1), "The probability above which messages are junk.",
                      required=True),
            Parameter("expect", between(0, 1), "The one in force, as `GET /costs` gives it.",
                      required=True),
        ),
        place="learner",
    ),
    ApiOperation(
        "take_back_costs", "DELETE", "/costs", "admin", operations.take_back_costs, _CHANGED_COSTS,
        (_id("at", "`at` of what is stored, as `GET /costs` gives it."),), place="learner",
    ),
    ApiOperation(
        "time_machine", "GET", "/timemachine", "admin", operations.time_machine,
        _object(
            last_event="integer", days="array", users="array", channels="array", kept="array",
            preview="object?",
        ),
        place="heavy",
    ),
    ApiOperation(
        "begin_preview", "POST", "/timemachine", "admin", operations.begin_preview, _PREVIEW,
        (
            Parameter("to", TIME, "The state at this time.", 0),
            Parameter("without", TEXTS, "Without the training by these users.", ()),
            Parameter("without_channel", TEXTS, "Without the training of these channels.", ()),
            _text("kept", "A model that was kept: the name of its file."),
        ),
        place="learner",
    ),
    ApiOperation(
        "job", "GET", "/jobs/{job}", "admin", operations.job, _PREVIEW, (_JOB,), place="learner",
    ),
    ApiOperation(
        "end_preview", "DELETE", "/jobs/{job}", "admin", operations.end_preview, _PREVIEW,
        (_JOB,), place="learner",
    ),
    ApiOperation(
        "apply_preview", "POST", "/timemachine/{job}/apply", "admin", operations.apply_preview,
        _PREVIEW,
        (
            _JOB,
            Parameter("expect", whole(0, MOST_ID), "The preview's `expect`: the last event.",
                      required=True),
        ),
        place="learner",
    ),
    ApiOperation(
        "journal", "GET", "/journal", "read", operations.trainings, _page("events", _EVENT),
        (*_EVENTS, _CURSOR, _LIMIT), place="heavy",
    ),
    ApiOperation(
        "teachers", "GET", "/journal/users", "admin", operations.teachers,
        _object(events="integer", teachers="array"), place="heavy",
    ),
    ApiOperation(
        "undo_plan", "GET", "/journal/undo", "admin", operations.undo_plan,
        _object(events="array", undoable="integer", superseded="integer", last_event="integer"),
        (*_EVENTS, _LIMIT), place="heavy",
    ),
    ApiOperation(
        "undo_selected", "POST", "/journal/undo", "admin", operations.undo_selected,
        _object(undone="integer", left="integer"),
        (
            *_EVENTS,
            Parameter("last_event", whole(0, MOST_ID), "`last_event` of the plan: events after it "
                      "stay.", required=True),
        ),
        place="learner",
    ),
    ApiOperation(
        "review", "GET", "/review", "admin", operations.review_list, _object(entries="array"),
        place="learner",
    ),
    ApiOperation(
        "review_view", "GET", "/review/{name}/view", "admin", operations.review_view,
        {"type": "string"}, (_id("name", "The entry's name."),),
        media_type="text/html", place="heavy",
    ),
    ApiOperation(
        "decide", "POST", "/review/{name}", "admin", operations.review_decide, _ANSWER,
        (
            _id("name", "The entry's name."),
            Parameter("do", choice("accept", "refuse"), "Train with it, or delete it.",
                      required=True),
        ),
        place="learner",
    ),
    ApiOperation(
        "quarantine", "GET", "/quarantine", "quarantine", operations.listed_messages,
        _page("messages", _QUARANTINED, "string?"),
        (_text("q", "Words of the subject or of the sender."),
         _text("cursor", "`next` of the page before."), _LIMIT),
    ),
    ApiOperation(
        "quarantined", "GET", "/quarantine/{id}", "quarantine", operations.show_kept, _QUARANTINED,
        (_QUARANTINE_ID,),
    ),
    ApiOperation(
        "view", "GET", "/quarantine/{id}/view", "quarantine", operations.view_kept,
        {"type": "string"}, (_QUARANTINE_ID,), media_type="text/html", place="heavy",
    ),
    ApiOperation(
        "raw", "GET", "/quarantine/{id}/raw", "quarantine", operations.raw, {"type": "string"},
        (_QUARANTINE_ID,), media_type="application/octet-stream",
    ),
    ApiOperation(
        "release", "POST", "/quarantine/{id}/release", "quarantine", operations.release,
        _object(results="array", delivered="boolean", training="object?"),
        (
            _QUARANTINE_ID,
            Parameter("only", TEXTS, "The recipients' addresses; all without it."),
            Parameter("teach", FLAG, "Also train it as ham.", default=False),
            Parameter("again", FLAG, "Also if an interrupted release may have sent it.",
                      default=False),
        ),
        place="next hop",
    ),
    ApiOperation(
        "delete", "DELETE", "/quarantine/{id}", "quarantine", operations.delete,
        _object(deleted="string"), (_QUARANTINE_ID,),
    ),
    ApiOperation(
        "restore", "POST", "/quarantine/{id}/restore", "quarantine", operations.restore,
        _object(restored="string"), (_QUARANTINE_ID,),
    ),
    ApiOperation(
        "people", "GET", "/people", "admin", operations.people, _object(people="array"),
    ),
    ApiOperation(
        "end_sessions", "DELETE", "/people/{name}/sessions", "admin", operations.end_sessions,
        _object(ended="integer"), (_id("name", "The login."),),
    ),
    ApiOperation(
        "tokens", "GET", "/tokens", "admin", operations.listed_tokens, _object(tokens="array"),
    ),
    ApiOperation(
        "create_token", "POST", "/tokens", "admin", operations.create,
        _with(_TOKEN, token="string"),  # noqa: S106 - the type of a property
        (
            _id("name", "The token's name, for the list and the journal."),
            Parameter("scopes", TEXTS, "What it may do; the caller must have these scopes.",
                      required=True),
            _text("user", "Only messages to this user: an address or a login."),
            Parameter("days", whole(1, 3650), "How long it is valid.", 90),
        ),
    ),
    ApiOperation(
        "revoke_token", "DELETE", "/tokens/{name}", "admin", operations.revoke,
        _object(revoked="string"), (_id("name", "The token's name."),),
    ),
)  # fmt: skip
"""all operations; a path without parameters comes before similar paths with parameters"""


_ERRORS = (400, 401, 403, 404, 408, 409, 413, 415, 421, 429, 500, 502, 503)
_IN_PATH = re.compile(r"\{(\w+)\}")


def document(version: str) -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _described(operation)
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "spamnb",
            "version": version,
            "description": "The console's API. Within version 1 there are only additions.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": site.SCHEMA},
            "responses": {"Problem": {"description": "An error (RFC 9457).", "content": {
                site.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer",
                "description": f"A token of `spamnb token create`; scopes: {', '.join(SCOPES)}."}},
        },
    }  # fmt: skip


def in_path(operation: ApiOperation) -> list[str]:
    """Return the names of the parameters in the operation's path."""
    return _IN_PATH.findall(operation.path)


def _described(operation: ApiOperation) -> dict[str, Any]:
    has_body = operation.method == "POST"
    named = in_path(operation)
    listed = [
        _parameter(one, "path" if one.name in named else "query")
        for one in operation.parameters
        if one.name in named or not has_body or operation.message
    ]
    if operation.message:  # the label may be in the JSON body instead
        listed = [one | {"required": one["in"] == "path"} for one in listed]
    content = {operation.media_type: {"schema": operation.reply}}
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": listed,
        "responses": {
            "200": {"description": "Done.", "content": content},
            **{str(code): {"$ref": "#/components/responses/Problem"} for code in _ERRORS},
        },
    }
    if operation.review:
        found["responses"]["202"] = {
            "description": "It waits for an administrator's decision.", "content": content,
        }  # fmt: skip
    if operation.scope:
        found["security"] = [{"token": []}]
        found["x-scope"] = operation.scope
    if has_body:
        found["requestBody"] = {"content": _body(operation, named)}
    return found


def _parameter(one: Parameter, place: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": place,
        "description": one.text,
        "required": one.required,
        "schema": dict(one.type.schema),
    }


def _body(operation: ApiOperation, named: list[str]) -> dict[str, Any]:
    fields = [one for one in operation.parameters if one.name not in named]
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": [one.name for one in fields if one.required],
        "properties": {one.name: {**one.type.schema, "description": one.text} for one in fields},
    }
    found: dict[str, Any] = {"application/json": {"schema": schema}}
    if operation.message:
        found[MESSAGE] = {}
    return found
