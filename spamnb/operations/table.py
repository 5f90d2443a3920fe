"""The table of administrative operations, and the rights to use them.

Admins may name a user (`for`) and the user's trust level (`trust`: admin, user, stranger), or the
person that their own label is for (`person`). Delegates may name a user, with the trust level user.
Any other caller acts under its own name, on messages delivered to it.

The control socket offers this table in the daemon, and the command line uses it on a home that no
daemon serves. Must not know connections. Failure: UserError for an invalid request.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol, Self, TypeVar

from spamnb.engine.filter import Filter
from spamnb.engine.prior import Prior, is_prior, prior_load, read_prior
from spamnb.engine.receipt import Receipt
from spamnb.engine.score_watch import store_trained_scores
from spamnb.engine.values import Source
from spamnb.errors import RefusedError, StoreError, StoreMissingError, UserError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.spool import SpoolFile
from spamnb.maintenance.attribution import influential
from spamnb.maintenance.expiry import expire
from spamnb.maintenance.export import create, lines_of, load, merge, read_export
from spamnb.maintenance.home_files import CostChoice, choose, take_back, warning
from spamnb.maintenance.imports import DumpOptions, dump_digest, read_dump
from spamnb.maintenance.rewind import changed_recipe
from spamnb.model.verdict import BINS
from spamnb.operations import status
from spamnb.operations.home import ModelConfig, open_model, open_service, read_clock
from spamnb.operations.listings import observation
from spamnb.operations.parameters import (
    FLAG,
    MOST_ID,
    NAME,
    NUMBERS,
    TEXTS,
    Parameter,
    between,
    choice,
    lists,
    read_known,
    whole,
)
from spamnb.operations.request import (
    FEEDBACK,
    SENDER,
    SENDERS,
    SOURCE,
    SWITCHES,
    AdminClient,
    AdminDaemon,
    AdminModel,
    AdminRequest,
    AdminResponse,
    Caller,
    Header,
    Switch,
    feedback_of,
    optional,
    sender_change_of,
    speaker_of,
    target_of,
    turn,
)
from spamnb.operations.status import Facts
from spamnb.policy.senders import warning_of
from spamnb.store.maintenance import exclusive
from spamnb.telemetry import Log, iso, now_us, prometheus
from spamnb.timemachine import Preview, PreviewTask, TimeMachine, Wanted


def gathered(model: AdminModel, daemon: AdminDaemon | None) -> Facts:
    """Return all facts of `status`, with warnings."""
    home = model.config.home
    facts: Facts = {"home": str(home), "model": None, "fault": model.fault}
    facts |= dict.fromkeys(SWITCHES, False)
    if daemon is not None:
        empty = {"messages": 0, "bytes": 0}
        facts |= {"clock": "", "review": 0, "quarantine": empty} | daemon.facts()
    with status.noted(facts):
        status.check_home(home)
        facts["free_bytes"] = shutil.disk_usage(home).free
        if daemon is None:
            facts |= {switch: (home / switch).exists() for switch in SWITCHES}
        facts["review"] = model.review_queue.count()
        facts["quarantine"] = status.quarantine_size(model.config.quarantine or home / "quarantine")
        if daemon is not None:
            with model.service() as service:
                facts["clock"] = warning(read_clock(model.config, service.model))
                if observed := observation(service.model):
                    facts["observing"] = observed
    try:
        with model.reading() as opened:
            facts["model"] = status.model_facts(home, opened)
            facts["model"]["influential"] = influential(opened, now_us())
    except StoreError as error:
        facts["fault"] = facts["fault"] or str(error)
    facts["warnings"] = status.warnings(facts, model.config.quiet_days)
    return facts


_SHOW_S: Final = 0.5
"""how long `show` waits for the end of a preview, so that clients need not ask often"""


class AnyAdministration(Protocol):
    """What these operations use."""

    model: AdminModel
    daemon: AdminDaemon | None
    time_machine: TimeMachine

    def forget_facts(self) -> None:
        """Gather the facts of `status` again at the next request."""


def rewind(admin: AnyAdministration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Preview or apply the state of an earlier time, or a model that was kept.

    In a fleet the hosts share one model, so it is not replaced while a daemon runs.
    """
    return _do(admin, request, fields, _rewinding)


def relearn(admin: AnyAdministration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Preview or apply the model without some training, or with other constants."""
    return _do(admin, request, fields, _relearning)


def _do(
    admin: AnyAdministration,
    request: AdminRequest,
    fields: Header,
    wanted: Callable[[AnyAdministration, Header], Wanted],
) -> AdminResponse:
    do, job = fields["do"], fields["job"]
    if do == "preview":
        return _facts(_begun(admin, wanted(admin, fields)))
    if do == "show":
        found = admin.time_machine.find(job)
        if job:
            found.made.wait(_SHOW_S)
        return _facts(found)
    if do == "cancel":
        found = admin.time_machine.find(job)
        found.end()
        return _facts(found)
    if fields["expect"] is None:
        raise UserError("`apply` needs `expect`, as `show` gives it")
    user = fields["for"] or request.caller.login
    return _facts(_applied(admin, user, job, fields["expect"]))


def _facts(preview: Preview) -> AdminResponse:
    facts = preview.as_dict()
    return AdminResponse({"job": facts["job"], "state": facts["state"]}, json.dumps(facts).encode())


def _begun(admin: AnyAdministration, wanted: Wanted) -> Preview:
    config = admin.model.config
    if admin.daemon is not None and config.fleet is not None:
        raise RefusedError(
            "a host of a fleet cannot replace the model while it runs",
            hint="stop the daemon of this host, and try again: see docs/fleet.md",
        )
    costs_of = partial(config.recipient_costs.of_label, names=config.persons)
    task = PreviewTask(
        config.home, Path(), wanted, config.costs, config.history, costs_of, config.one_in
    )
    return admin.time_machine.start(task, config.log)


def _applied(admin: AnyAdministration, user: str, job: str, expect: int) -> Preview:
    began = time.monotonic()
    found = admin.time_machine.apply(job, expect, admin.model.replaced)
    admin.forget_facts()
    if admin.daemon is not None:
        admin.model.config.log(
            {"event": "model replaced", "user": user, "file": found.kept}
            | {"closed_ms": round(1000 * (time.monotonic() - began))}
        )
    return found


# --- what is wanted ------------------------------------------------------------------------------


def _rewinding(_: AnyAdministration, fields: Header) -> Wanted:
    kept = fields["kept"]
    if bool(kept) == (fields["to_us"] is not None):
        raise UserError("give `to_us` or `kept`, and not both")
    if kept:
        return Wanted("kept", kept=kept)
    return Wanted("rewind", fields["to_us"])


def _relearning(admin: AnyAdministration, fields: Header) -> Wanted:
    constants = fields["set"]
    with admin.model.reading() as model:
        changed_recipe(model.recipe, constants)
    return Wanted(
        "relearn",
        without=tuple(fields["without"]),
        without_channel=tuple(fields["without_channel"]),
        constants=tuple(sorted(constants.items())),
    )


_COMMON: Final = (
    Parameter(
        "do",
        choice("preview", "show", "apply", "cancel"),
        "`preview` begins to make the model and to compare it with the present one; `show` gives "
        "that as soon as it is made, or after half a second; `apply` puts it in the place of the "
        "present model; `cancel` ends it.",
        required=True,
    ),
    optional("job", "The preview; without it `show` gives the newest one."),
    Parameter(
        "expect", whole(0, MOST_ID), "To apply: as shown, the last event of the model copied."
    ),
    optional("for", "The user who applies it, for the log."),
)
_REWIND: Final = (
    *_COMMON,
    Parameter("to_us", whole(0, MOST_ID), "The state at this time, in microseconds."),
    optional("kept", "Instead: the name of a model that was kept."),
)
_RELEARN: Final = (
    *_COMMON,
    Parameter("without", TEXTS, "Without the training by these users.", ()),
    Parameter("without_channel", TEXTS, "Without the training of these channels.", ()),
    Parameter("set", NUMBERS, "Constants of the model to change.", {}),
)


_IMPORT_BYTES = 1 << 33
_MOST_TOGETHER = 1 << 16
"""messages of a batch"""
_FRESH_S = 1.0
"""how long the facts of `status` are cached: they need two thousand journal headers"""
_SHOWN_REASONS = 10
_NO_FACTS: tuple[float, Facts] = (0.0, {})


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    run: Callable[[Administration, AdminRequest, Header], AdminResponse]
    right: Literal["every user", "admins"] = "every user"
    parameters: tuple[Parameter, ...] = ()

    @property
    def summary(self) -> str:
        """What it does."""
        return (self.run.__doc__ or "").partition("\n\n")[0]


class Administration:
    """Runs the operations for all callers."""

    def __init__(self, model: AdminModel, daemon: AdminDaemon | None = None) -> None:
        self.model = model
        self.daemon = daemon
        self.time_machine = TimeMachine()
        self._lock = threading.Lock()
        self._facts = _NO_FACTS

    def __call__(self, request: AdminRequest) -> AdminResponse:
        """Run one request."""
        name = request.header.get("op")
        operation = OPERATIONS.get(name) if isinstance(name, str) else None
        if operation is None:
            raise UserError("there is no such operation", hint=f"one of {', '.join(OPERATIONS)}")
        if operation.right == "admins" and request.caller.role != "admin":
            raise RefusedError(f"only administrators (the model's owner and root) may use {name}")
        return operation.run(self, request, read_known(operation.parameters, request.header))

    def teach_spooled(self, left: SpoolFile, caller: Caller) -> None:
        """Learn a file of a spool, in the name of its author."""
        header = {"channel": "imap"} | left.head | {"label": left.label}
        feedback = feedback_of(caller, read_known(OPERATIONS["teach"].parameters, header), left.raw)
        with self.model.service() as service:
            answer = service.teach(feedback)
        if answer.state == "refused":
            # The program that wrote the file does not wait for an answer.
            self.model.config.log(
                {"event": "spool file not learnt", "uid": left.uid, "reason": answer.reason}
            )

    def facts(self) -> Facts:
        """Return all facts of `status`, at most a second old."""
        with self._lock:
            made, facts = self._facts
            if time.monotonic() - made > _FRESH_S or not facts:
                facts = gathered(self.model, self.daemon)
                self._facts = (time.monotonic(), facts)
            return facts

    def close(self) -> None:
        """End what still runs."""
        self.time_machine.close()

    def forget_facts(self) -> None:
        """Gather the facts of `status` again at the next request."""
        self._facts = _NO_FACTS


# --- feedback ------------------------------------------------------------------------------------


def _teach(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Set the label of a message, which is the body unless `refs` name it."""
    raw = request.body(admin.model.config.teaching.limit_bytes)
    feedback = feedback_of(request.caller, fields, raw)
    with admin.model.service() as service:
        return AdminResponse(service.teach(feedback).as_dict())


def _forget(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Remove the training of a message, which is the body unless `refs` name it."""
    return _teach(admin, request, fields)


def _undo(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Undo an event of the journal, or take back a correction that waits."""
    feedback = feedback_of(request.caller, fields, b"")
    with admin.model.service() as service:
        undo = service.take_back if fields["waiting"] else service.undo
        return AdminResponse(undo(fields["event"], feedback).as_dict())


def _sender(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Set or remove the word of a sender in a list; a message in the body names its author."""
    config = admin.model.config
    raw = request.body(config.teaching.limit_bytes)
    asked = sender_change_of(request.caller, fields, raw)
    with admin.model.service() as service:
        answer = service.list_sender(asked)
    if answer.state == "listed" and admin.daemon is not None:
        _log_listed(config.log, asked.target.user, answer.facts)
    answer.facts["warning"] = _unproven(admin) if fields["word"] == "wanted" else ""
    return AdminResponse(answer.as_dict())


def _log_listed(log: Log, user: str, said: Mapping[str, object]) -> None:
    log(
        {
            "event": "sender listed",
            "user": user,
            "sender": said["sender"],
            "word": said["word"],
            "before": said["before"],
            "list": said["list"],
            "owner": said["owner"],
        }
    )


def _senders(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """List the senders of a list, or of all lists, as lines of JSON in the reply's body."""
    target = target_of(request.caller, fields)
    with admin.model.service() as service:
        found = list(service.sender_lists.shown(target))
    lines = [json.dumps(one).encode() + b"\n" for one in found]
    wanted = any(one["word"] == "wanted" for one in found)
    warning = _unproven(admin) if wanted else ""
    return AdminResponse({"entries": len(lines), "warning": warning}, b"".join(lines))


def _unproven(admin: Administration) -> str:
    return warning_of(admin.model.config.local, "wanted senders")


def _batch(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Train with sorted mail, which is joined in the body, in one transaction."""
    sizes, labels = fields["sizes"], fields["labels"]
    if len(sizes) != len(labels):
        raise UserError("`sizes` and `labels` must be lists of the same length")
    raw = request.body(1 << 62)
    if sum(sizes) != len(raw):
        raise UserError("`sizes` do not add up to `bytes`")
    body = io.BytesIO(raw)
    messages = [(name, body.read(size)) for size, name in zip(sizes, labels, strict=True)]
    with admin.model.service() as service:
        receipts = service.batch(messages, _source(request, fields), fields["person"])
    return AdminResponse(_tally(receipts))


def _scores(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Store the scores that a training found by cross-validation; they set the threshold."""
    ham, spam = tuple(fields["ham"]), tuple(fields["spam"])
    user = _source(request, fields).user
    with admin.model.service() as service:
        changed = store_trained_scores(service.model, ham, spam, user, now_us())
    admin.forget_facts()
    return AdminResponse({"changed": changed})


def _source(request: AdminRequest, fields: Header) -> Source:
    return Source(speaker_of(request.caller, fields)[0], fields["channel"] or "api")


def _tally(receipts: list[Receipt]) -> Header:
    refused = [str(receipt.error) for receipt in receipts if receipt.error is not None]
    return {
        "learnt": sum(r.changed and r.before is None for r in receipts),
        "moved": sum(r.changed and r.before is not None for r in receipts),
        "duplicates": sum(not (r.changed or r.waiting) and r.error is None for r in receipts),
        "waiting": sum(r.waiting != 0 for r in receipts),
        "refused": len(refused),
        "reasons": refused[:_SHOWN_REASONS],
    }


def _review(admin: Administration, _: AdminRequest, fields: Header) -> AdminResponse:
    """List, show, accept or refuse queued feedback."""
    do, name = fields["do"], fields["name"]
    review_queue = admin.model.review_queue
    if do == "list":
        lines = [json.dumps(entry.as_dict()).encode() + b"\n" for entry in review_queue.entries()]
        return AdminResponse({"entries": len(lines)}, b"".join(lines))
    if do == "show":
        entry, raw = review_queue.get(name)
        return AdminResponse({"entry": entry.as_dict()}, raw)
    with admin.model.service() as service:
        answer = service.accept(name) if do == "accept" else service.refuse(name)
    return AdminResponse(answer.as_dict())


# --- status --------------------------------------------------------------------------------------


def _ping(admin: Administration, request: AdminRequest, _: Header) -> AdminResponse:
    """Return the served home and the caller's role."""
    model, caller = admin.model, request.caller
    home = os.path.realpath(model.config.home)
    facts = {"home": home, "pid": os.getpid(), "role": caller.role, "login": caller.login}
    # Its text may contain paths.
    fault = model.fault if caller.role == "admin" else model.fault and "see the log"
    return AdminResponse(facts | {"documents": model.documents, "fault": fault})


def _status(admin: Administration, request: AdminRequest, _: Header) -> AdminResponse:
    """Return the state of the home and of its daemon; administrators get all of it."""
    facts = dict(admin.facts())
    if request.caller.role != "admin":
        facts = status.public(facts)
    return AdminResponse({"status": facts})


def _metrics(admin: Administration, _: AdminRequest, __: Header) -> AdminResponse:
    """Return the counters in the format of Prometheus, as the reply's body."""
    if admin.daemon is None:
        raise UserError("no daemon serves this home", hint="start it with `spamnb serve`")
    text_format = prometheus(admin.daemon.meters(), status.gauges(admin.facts()))
    return AdminResponse({}, text_format.encode())


# --- maintenance ---------------------------------------------------------------------------------


def _bypass(admin: Administration, _: AdminRequest, fields: Header) -> AdminResponse:
    """Deliver all mail unscanned while this is on."""
    return _turned(admin, "bypass", on=fields["on"])


def _live(admin: Administration, _: AdminRequest, fields: Header) -> AdminResponse:
    """Let listeners that only observe mark and file mail while this is on."""
    return _turned(admin, "live", on=fields["on"])


def _turned(admin: Administration, switch: Switch, *, on: bool) -> AdminResponse:
    turn(admin.model.config.home, switch, on=on)
    if admin.daemon is not None:
        admin.daemon.set_switch(switch, on=on)
    admin.forget_facts()
    return AdminResponse({switch: on})


def _import(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Add an export, a prior, or another filter's dump, which is the body.

    It may be larger than the memory.
    """
    with tempfile.TemporaryFile(dir=_scratch(admin)) as file:
        request.save_body(_IMPORT_BYTES, file.fileno())
        file.seek(0)
        if fields["format"]:
            return _import_dump(admin, file, fields, _source(request, fields))
        try:
            with io.TextIOWrapper(file, "utf-8") as lines:
                found = read_prior(lines) if is_prior(lines) else read_export(lines_of(lines))
        except UnicodeDecodeError as error:
            raise UserError(f"this is not an export: {error}") from error
    source = _source(request, fields)
    with admin.model.service() as service:
        if isinstance(found, Prior):
            receipt = service.model.run(prior_load(service.model.recipe, found, source))
        else:
            receipt = merge(service.model, found, source=source)
    return AdminResponse({"receipt": receipt.as_dict(), "features": found.features})


def _scratch(admin: Administration) -> Path:
    """Return the home, or its nearest existing parent folder."""
    home = admin.model.config.home
    return next(place for place in (home, *home.parents) if place.is_dir())


def _import_dump(
    admin: Administration, file: BinaryIO, fields: Header, source: Source
) -> AdminResponse:
    """Add the counts of another filter; the model is not held while they are read.

    A missing model is created after that, so a dump that cannot be read creates none.
    """
    options = DumpOptions(
        fields["format"],
        (fields["label_ham"], fields["label_spam"]),
        fields["most"],
        _scratch(admin),
    )
    digest = b"" if fields["again"] else dump_digest(file)
    new = None
    try:
        with admin.model.reading() as model:
            recipe = model.recipe
    except StoreMissingError:
        recipe = new = admin.model.config.recipe()
    found = read_dump(recipe, file, options)
    if new is not None:
        create(admin.model.config.home, new)
        admin.model.open()
    with admin.model.service() as service:
        receipt = load(service.model, found.bulk, found.words, source, digest)
    return AdminResponse({"receipt": receipt.as_dict(), **found.as_dict()})


def _expire(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Delete old data, by the settings."""
    config, source = admin.model.config, _source(request, fields)
    with admin.model.service() as service:
        model = service.model
        mark = read_clock(config, model, trust=fields["trust_clock"])
        now = mark.expires_us
        expired = expire(model.store, model.history, config.expiry, now_us=now, source=source)
    admin.forget_facts()
    return AdminResponse({"expired": expired.as_dict(), "warning": warning(mark)})


def _reload(admin: Administration, _: AdminRequest, fields: Header) -> AdminResponse:
    """Open the model if it is not open; reread the settings unless `settings` is false."""
    if admin.daemon is not None and fields["settings"]:
        admin.daemon.reread_settings()
    admin.model.open()
    return AdminResponse({"fault": admin.model.fault})


def _costs(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Store costs with another threshold of junk, or restore the earlier costs; apply them."""
    config, user = admin.model.config, fields["for"] or request.caller.login
    home, rules, do = config.home, config.cost_rules, fields["do"]
    if do == "choose":
        choice = CostChoice(fields["junk_from"], fields["expect"], user, iso(now_us()))
        done = choose(home, rules, choice)
    else:
        done = take_back(home, rules, fields["at"])
    if admin.daemon is not None:
        before, after = (one["junk"] for one in done.as_dict().values())
        config.log(
            {"event": "costs changed", "user": user, "do": do} | {"before": before, "after": after}
        )
        admin.daemon.reread_settings()
    return AdminResponse({**done.as_dict()})


_COUNTS: Final = lists(whole(0, (1 << 31) - 1), BINS, BINS)
_COSTS: Final = (
    Parameter("do", choice("choose", "take_back"), "What to do.", required=True),
    optional("for", "The user who does it."),
    optional("at", "The time of the choice that is taken back."),
    Parameter("junk_from", between(0, 1), "The probability above which messages are junk.", 0.5),
    Parameter("expect", between(0, 1), "The threshold that is replaced.", 0.5),
)
_DUMP: Final = (
    optional("format", "The filter that the dump is of; empty: an export of spamnb."),
    optional("label_ham", "The label of what the other filter calls ham."),
    optional("label_spam", "The label of what it calls spam."),
    Parameter(
        "most", whole(0, MOST_ID), "The most messages that it counts for.", DumpOptions("").most
    ),
    Parameter("again", FLAG, "Import a dump that was imported before.", default=False),
)
_ON: Final = (Parameter("on", FLAG, "Whether it is on.", required=True),)
OPERATIONS: Mapping[str, Operation] = {
    "ping": Operation(_ping),
    "teach": Operation(
        _teach, parameters=(*FEEDBACK, Parameter("label", NAME, "The label.", required=True))
    ),
    "forget": Operation(_forget, parameters=FEEDBACK),
    "undo": Operation(
        _undo,
        parameters=(
            *FEEDBACK,
            Parameter("event", whole(1, MOST_ID), "The event's number.", required=True),
            Parameter("waiting", FLAG, "Whether it is a correction that waits.", default=False),
        ),
    ),
    "sender": Operation(_sender, parameters=SENDER),
    "senders": Operation(_senders, parameters=SENDERS),
    "batch": Operation(
        _batch,
        "admins",
        (
            *SOURCE,
            Parameter(
                "sizes",
                lists(whole(0, MOST_ID), 0, _MOST_TOGETHER),
                "Bytes of each message.",
                required=True,
            ),
            Parameter(
                "labels", lists(NAME, 0, _MOST_TOGETHER), "Label of each message.", required=True
            ),
        ),
    ),
    "scores": Operation(
        _scores,
        "admins",
        (
            *SOURCE,
            Parameter("ham", _COUNTS, "How many ham have a score of each step.", required=True),
            Parameter("spam", _COUNTS, "How many spam.", required=True),
        ),
    ),
    "status": Operation(_status),
    "metrics": Operation(_metrics),
    "bypass": Operation(_bypass, "admins", _ON),
    "live": Operation(_live, "admins", _ON),
    "costs": Operation(_costs, "admins", _COSTS),
    "review": Operation(
        _review,
        "admins",
        (
            Parameter(
                "do", choice("list", "show", "accept", "refuse"), "What to do.", required=True
            ),
            optional("name", "The entry; not to `list`."),
        ),
    ),
    "import": Operation(_import, "admins", (*SOURCE, *_DUMP)),
    "rewind": Operation(rewind, "admins", _REWIND),
    "relearn": Operation(relearn, "admins", _RELEARN),
    "expire": Operation(
        _expire,
        "admins",
        (
            *SOURCE,
            Parameter("trust_clock", FLAG, "Expire although the clock jumped.", default=False),
        ),
    ),
    "reload": Operation(
        _reload,
        "admins",
        (Parameter("settings", FLAG, "Whether to read the settings, too.", default=True),),
    ),
}


Result = TypeVar("Result")


class HomeModel:
    """`AdminModel` of a home without a daemon; opened when the first operation needs it."""

    fault = ""

    def __init__(self, config: ModelConfig, warn: Callable[[str], None]) -> None:
        self.config = config
        self._warn = warn
        self._service: FeedbackService | None = None

    @property
    def documents(self) -> bool:
        with self.service() as service:
            return service.documents

    @property
    def review_queue(self) -> ReviewQueue:
        return self.config.review_queue

    @contextmanager
    def service(self) -> Iterator[FeedbackService]:
        if self._service is None:
            self._service = open_service(self.config, self._warn)
        yield self._service

    @contextmanager
    def reading(self) -> Iterator[Filter]:
        """Yield the model, opened for reading only."""
        with open_model(self.config, readonly=True) as model:
            yield model

    def open(self) -> None:
        """Do nothing: the first operation opens the model."""

    def replaced(self, replace: Callable[[], Result]) -> Result:
        """Run a function while the model is closed, if no other process has it open."""
        self.close()
        with exclusive(self.config.home):
            pass
        return replace()

    def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.model.close()


class LocalClient(AdminClient):
    """Runs the operations in this process, on a home; the caller is an admin."""

    def __init__(self, config: ModelConfig, login: str, warn: Callable[[str], None]) -> None:
        self._model = HomeModel(config, warn)
        self._administration = Administration(self._model)
        self._caller = Caller(os.geteuid(), "admin", login)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._administration.close()
        self._model.close()

    def ask(self, op: str, body: bytes = b"", **fields: Any) -> AdminResponse:
        return self._run(op, io.BytesIO(body), fields)

    def ask_with_file(self, op: str, file: BinaryIO, size: int, **fields: Any) -> Header:  # noqa: ARG002 - as of a socket
        return self._run(op, file, fields).header

    def _run(self, op: str, file: BinaryIO, fields: Header) -> AdminResponse:
        def save_body(_: int, handle: int) -> None:
            with open(handle, "wb", closefd=False) as copy:
                shutil.copyfileobj(file, copy)

        header = {"op": op, **fields}
        return self._administration(
            AdminRequest(self._caller, header, lambda _: file.read(), save_body)
        )
