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
    costs   do = choose | take_back, junk_from, at  another threshold of junk             admins
    review  do = list | show | accept | refuse, name                                      admins
    import  format, most, label_ham, label_spam, again, bytes                             admins
    rewind, relearn     do = preview | show | apply | cancel: see `time_machine`          admins
    expire, reload                                  maintenance                           admins

Admins may name a user (`for`) and the user's trust level (`trust`: admin, user, stranger), or the
person that their own label is for (`person`).
Delegates may name a user, with the trust level user. Any other caller acts under its own name, on
messages delivered to it. The control socket offers this table in the daemon, and the command line
uses it on a home that no daemon serves. Must not know connections. Failure: UserError for an
invalid request.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from spamnb.core.model.site_threshold import BINS
from spamnb.core.policy.sender_evidence import warning_of
from spamnb.errors import RefusedError, StoreMissingError, UserError
from spamnb.service.admin.bypass import turn_bypass
from spamnb.service.admin.facts import gathered
from spamnb.service.admin.model_config import read_clock
from spamnb.service.admin.ports import AdminDaemon, AdminModel
from spamnb.service.admin.request import (
    FEEDBACK,
    SENDER,
    SENDERS,
    SOURCE,
    AdminRequest,
    AdminResponse,
    Caller,
    Field,
    Header,
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
)
from spamnb.service.admin.time_machine import RELEARN, REWIND, relearn, rewind
from spamnb.service.engine.clock import iso, now_us
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Source
from spamnb.service.engine.score_watch import store_trained_scores
from spamnb.service.feedback.spool import SpoolFile
from spamnb.service.foreign.formats import dump_digest, read_dump
from spamnb.service.foreign.mapper import DumpOptions
from spamnb.service.maintenance.cost_file import CostChoice, choose, take_back
from spamnb.service.maintenance.expiry import expire
from spamnb.service.maintenance.expiry_clock import warning
from spamnb.service.maintenance.export_import import create, lines_of, load, merge, read_export
from spamnb.service.maintenance.prior import Prior, is_prior, prior_load, read_prior
from spamnb.service.telemetry import status
from spamnb.service.telemetry.log import Log
from spamnb.service.telemetry.metrics import prometheus
from spamnb.service.telemetry.status import Facts
from spamnb.service.timemachine.jobs import TimeMachine

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


def _bypass(admin: Administration, _: AdminRequest, fields: Header) -> AdminResponse:
    """Turn the bypass on or off; a file in the home keeps it over a restart."""
    turn_bypass(admin.model.config.home, on=fields["on"])
    if admin.daemon is not None:
        admin.daemon.set_bypass(on=fields["on"])
    admin.forget_facts()
    return AdminResponse({"bypass": fields["on"]})


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
    "bypass": Operation(_bypass, "admins", {"on": boolean}),
    "costs": Operation(_costs, "admins", COSTS),
    "review": Operation(_review, "admins", {"do": text, "name": text}),
    "import": Operation(_import, "admins", SOURCE | DUMP),
    "rewind": Operation(rewind, "admins", REWIND),
    "relearn": Operation(relearn, "admins", RELEARN),
    "expire": Operation(_expire, "admins", SOURCE | {"trust_clock": anything}),
    "reload": Operation(_reload, "admins", {"settings": anything}),
}
