"""The table of administrative operations, and the rights to use them.

    ping                                            served home, caller's role
    teach   label, bytes or refs, channel, for      set the label of a message
    forget  bytes or refs                           remove a message's training
    undo    event, waiting                          undo an event, or a correction that waits
    batch   sizes, labels, bytes, person            sorted mail of `train`                admins
    scores  ham, spam                               the scores of that mail, by step      admins
    sender  word, sender, bytes or refs, domain     set a sender's word; without word remove it
    senders domain                                  the list of wanted and unwanted senders
    status, metrics                                 state; metrics in Prometheus format
    bypass  on                                      deliver all mail unscanned            admins
    live    on                                      let listeners that observe mark mail  admins
    costs   do = choose | take_back, junk_from, at  another threshold of junk             admins
    review  do = list | show | accept | refuse, name                                      admins
    import  format, most, label_ham, label_spam, again, bytes                             admins
    rewind, relearn     do = preview | show | apply | cancel: see `rewind`                admins
    expire, reload                                  maintenance                           admins

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
from dataclasses import dataclass, field
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
    Field,
    Header,
    Switch,
    anything,
    boolean,
    feedback_of,
    label,
    positive,
    read_fields,
    sender_change_of,
    share,
    speaker_of,
    target_of,
    text,
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

        do = preview    begin to make the model, and to compare it with the present one
        do = show       the preview `job`, as soon as it is made, or after half a second; without
                        `job` the present one
        do = apply      put it in the place of the present model; `expect`: as shown, the last
                        event of the model that was copied
        do = cancel     end the preview

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
    if do == "apply":
        user = fields["for"] or request.caller.login
        return _facts(_applied(admin, user, job, _number(fields, "expect")))
    raise UserError("`do` must be preview, show, apply or cancel")


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
    return Wanted("rewind", _number(fields, "to_us"))


def _relearning(admin: AnyAdministration, fields: Header) -> Wanted:
    constants = fields["set"] or {}
    if not isinstance(constants, dict) or not all(map(_is_number, constants.values())):
        raise UserError("`set` must be an object of numbers")
    with admin.model.reading() as model:
        changed_recipe(model.recipe, constants)
    return Wanted(
        "relearn",
        without=_texts(fields, "without"),
        without_channel=_texts(fields, "without_channel"),
        constants=tuple(sorted((name, float(value)) for name, value in constants.items())),
    )


def _number(fields: Header, name: str) -> int:
    found = fields[name]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 63:
        raise UserError(f"`{name}` must be a whole number of 0 or more")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(fields: Header, name: str) -> tuple[str, ...]:
    found = fields[name] or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UserError(f"`{name}` must be a list of texts")
    return tuple(found)


_COMMON: Final[Mapping[str, Field]] = {"do": text, "job": text, "expect": anything, "for": text}
REWIND: Final = {**_COMMON, "to_us": anything, "kept": text}
RELEARN: Final = {
    **_COMMON,
    **dict.fromkeys(("without", "without_channel", "set"), anything),
}


_IMPORT_BYTES = 1 << 33
_FRESH_S = 1.0
"""how long the facts of `status` are cached: they need two thousand journal headers"""
_SHOWN_REASONS = 10
_NO_FACTS: tuple[float, Facts] = (0.0, {})


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    run: Callable[[Administration, AdminRequest, Header], AdminResponse]
    right: Literal["every user", "admins"] = "every user"
    fields: Mapping[str, Field] = field(default_factory=dict)


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
        return operation.run(self, request, read_fields(operation.fields, request.header))

    def teach_spooled(self, left: SpoolFile, caller: Caller) -> None:
        """Learn a file of a spool, in the name of its author."""
        header = {"channel": "imap"} | left.head | {"label": left.label}
        feedback = feedback_of(caller, read_fields(FEEDBACK, header), left.raw)
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
    raw = request.body(admin.model.config.teaching.limit_bytes)
    feedback = feedback_of(request.caller, fields, raw)
    with admin.model.service() as service:
        return AdminResponse(service.teach(feedback).as_dict())


def _forget(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    return _teach(admin, request, fields | {"label": ""})


def _undo(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    feedback = feedback_of(request.caller, fields, b"")
    with admin.model.service() as service:
        undo = service.take_back if fields["waiting"] is True else service.undo
        return AdminResponse(undo(fields["event"], feedback).as_dict())


def _sender(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Set or remove the word of a sender in a list."""
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
    """List the senders of a list, or of all lists."""
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
    """Train with sorted mail in one transaction."""
    sizes, labels = fields["sizes"], fields["labels"]
    if not (isinstance(sizes, list) and isinstance(labels, list) and len(sizes) == len(labels)):
        raise UserError("`sizes` and `labels` must be lists of the same length")
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise UserError("`sizes` must contain whole numbers of 0 or more")
    raw = request.body(1 << 62)
    if sum(sizes) != len(raw):
        raise UserError("`sizes` do not add up to `bytes`")
    body = io.BytesIO(raw)
    messages = [(str(name), body.read(size)) for size, name in zip(sizes, labels, strict=True)]
    with admin.model.service() as service:
        receipts = service.batch(messages, _source(request, fields), fields["person"])
    return AdminResponse(_tally(receipts))


def _scores(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Store the scores that a training found by cross-validation; they set the threshold."""
    ham, spam = (_steps(fields, name) for name in ("ham", "spam"))
    user = _source(request, fields).user
    with admin.model.service() as service:
        changed = store_trained_scores(service.model, ham, spam, user, now_us())
    admin.forget_facts()
    return AdminResponse({"changed": changed})


def _steps(fields: Header, name: str) -> tuple[int, ...]:
    found = fields[name]
    good = isinstance(found, list) and len(found) == BINS
    if not good or not all(type(count) is int and 0 <= count < 1 << 31 for count in found):
        raise UserError(f"`{name}` must be {BINS} counts")
    return tuple(found)


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
    if do not in ("accept", "refuse"):
        raise UserError("`do` must be list, show, accept or refuse")
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
    facts = dict(admin.facts())
    if request.caller.role != "admin":
        facts = status.public(facts)
    return AdminResponse({"status": facts})


def _metrics(admin: Administration, _: AdminRequest, __: Header) -> AdminResponse:
    if admin.daemon is None:
        raise UserError("no daemon serves this home", hint="start it with `spamnb serve`")
    text_format = prometheus(admin.daemon.meters(), status.gauges(admin.facts()))
    return AdminResponse({}, text_format.encode())


# --- maintenance ---------------------------------------------------------------------------------


def _turn(switch: Switch, admin: Administration, _: AdminRequest, fields: Header) -> AdminResponse:
    """Turn a switch on or off; a file in the home keeps it over a restart."""
    turn(admin.model.config.home, switch, on=fields["on"])
    if admin.daemon is not None:
        admin.daemon.set_switch(switch, on=fields["on"])
    admin.forget_facts()
    return AdminResponse({switch: fields["on"]})


def _import(admin: Administration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Add an export (it may be larger than the memory), a prior, or another filter's dump."""
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
    digest = b"" if fields["again"] is True else dump_digest(file)
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
        mark = read_clock(config, model, trust=fields["trust_clock"] is True)
        now = mark.expires_us
        expired = expire(model.store, model.history, config.expiry, now_us=now, source=source)
    admin.forget_facts()
    return AdminResponse({"expired": expired.as_dict(), "warning": warning(mark)})


def _reload(admin: Administration, _: AdminRequest, fields: Header) -> AdminResponse:
    """Open the model if it is not open; reread the settings unless `settings` is false."""
    if admin.daemon is not None and fields["settings"] is not False:
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
    elif do == "take_back":
        done = take_back(home, rules, fields["at"])
    else:
        raise UserError("`do` must be choose or take_back")
    if admin.daemon is not None:
        before, after = (one["junk"] for one in done.as_dict().values())
        config.log(
            {"event": "costs changed", "user": user, "do": do} | {"before": before, "after": after}
        )
        admin.daemon.reread_settings()
    return AdminResponse({**done.as_dict()})


COSTS: dict[str, Field] = {
    "do": text, "for": text, "at": text, "junk_from": share, "expect": share,
}  # fmt: skip
"""`expect` is the threshold that is replaced, `at` the time of the choice that is undone"""
DUMP: dict[str, Field] = {
    **dict.fromkeys(("format", "label_ham", "label_spam"), text),
    "most": anything,
    "again": anything,
}
"""how the dump of another filter is imported"""
OPERATIONS: Mapping[str, Operation] = {
    "ping": Operation(_ping),
    "teach": Operation(_teach, fields=FEEDBACK | {"label": label}),
    "forget": Operation(_forget, fields=FEEDBACK),
    "undo": Operation(_undo, fields=FEEDBACK | {"event": positive, "waiting": anything}),
    "sender": Operation(_sender, fields=SENDER),
    "senders": Operation(_senders, fields=SENDERS),
    "batch": Operation(_batch, "admins", SOURCE | {"sizes": anything, "labels": anything}),
    "scores": Operation(_scores, "admins", SOURCE | {"ham": anything, "spam": anything}),
    "status": Operation(_status),
    "metrics": Operation(_metrics),
    "bypass": Operation(partial(_turn, "bypass"), "admins", {"on": boolean}),
    "live": Operation(partial(_turn, "live"), "admins", {"on": boolean}),
    "costs": Operation(_costs, "admins", COSTS),
    "review": Operation(_review, "admins", {"do": text, "name": text}),
    "import": Operation(_import, "admins", SOURCE | DUMP),
    "rewind": Operation(rewind, "admins", REWIND),
    "relearn": Operation(relearn, "admins", RELEARN),
    "expire": Operation(_expire, "admins", SOURCE | {"trust_clock": anything}),
    "reload": Operation(_reload, "admins", {"settings": anything}),
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
