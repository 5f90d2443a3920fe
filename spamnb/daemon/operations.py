"""Operations of the control socket, and the roles that may use them.

    ping                                            served home, caller's role
    teach   label, bytes or refs, channel, for      set the label of a message
    forget  bytes or refs                           remove a message's training
    undo    event                                   undo an event
    batch   sizes, labels, bytes                    sorted mail of `train`                admins
    status, metrics                                 state; metrics in Prometheus format
    bypass  on                                      deliver all mail unscanned            admins
    review  do = list | show | accept | refuse, name                                      admins
    import, expire, reload                          maintenance                           admins

Admins may name a user (`for`) and the user's trust level (`trust`: admin, user, stranger).
Delegates may name a user, with the trust level user. All other callers act for themselves, on
messages delivered to them. Must not know connections. Failure: UserError for an invalid request.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

from spamnb.daemon.processes.bypass import turn_bypass
from spamnb.daemon.processes.shared_state import ProcessState, ProcessStatus, SharedState
from spamnb.daemon.roles.model_holder import ModelHolder
from spamnb.endpoints.control.protocol import Header, answered
from spamnb.endpoints.control.server import ControlRequest, ControlResponse, Peer
from spamnb.errors import RefusedError, StoreError, UserError
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Source
from spamnb.service.feedback.spool import Spool, SpoolFile, problem
from spamnb.service.feedback.types import Feedback, Trust
from spamnb.service.maintenance.expiry import expire
from spamnb.service.maintenance.expiry_clock import warning
from spamnb.service.maintenance.export_import import merge, read_export
from spamnb.service.telemetry import status, unscanned
from spamnb.service.telemetry.metrics import as_dict, prometheus

LOG = logging.getLogger("spamnb.learner")

MOST_REFS = 16
_REF_CHARS = 1000
_CLIENT_CHARS = 64
_IMPORT_BYTES = 1 << 33
_FRESH_S = 1.0
"""how long the facts of `status` are cached: they need two thousand journal headers"""
_SHOWN_REASONS = 10


@dataclass(frozen=True, slots=True)
class _Operation:
    run: Callable[[Operations, ControlRequest], ControlResponse]
    admins_only: bool = False


class Operations:
    """Runs the requests of all connections."""

    def __init__(
        self, holder: ModelHolder, shared: SharedState, spools: Sequence[Spool], *, parent: int = 0
    ) -> None:
        self.holder = holder
        self.shared = shared
        self.spools = spools
        self._parent = parent
        self._lock = threading.Lock()
        self._facts: tuple[float, dict[str, Any]] = (0.0, {})

    def __call__(self, request: ControlRequest) -> ControlResponse:
        """Run one request."""
        name = request.header.get("op")
        operation = _OPERATIONS.get(name) if isinstance(name, str) else None
        if operation is None:
            raise UserError("there is no such operation", hint=f"one of {', '.join(_OPERATIONS)}")
        if operation.admins_only and request.peer.role != "admin":
            raise RefusedError(f"only administrators (the model's owner and root) may use {name}")
        return operation.run(self, request)

    # -- teaching -------------------------------------------------------------------------------

    def teach(self, request: ControlRequest) -> ControlResponse:
        """Set the label of a message."""
        if not _text(request.header, "label"):
            raise UserError("no label is given")
        return self._teach(request)

    def forget(self, request: ControlRequest) -> ControlResponse:
        """Remove a message's training."""
        request.header["label"] = ""
        return self._teach(request)

    def _teach(self, request: ControlRequest) -> ControlResponse:
        raw = request.body(self.holder.learning.teaching.limit_bytes)
        feedback = feedback_of(request.peer, request.header, raw)
        with self.holder.service() as service:
            return ControlResponse(answered(service.teach(feedback)))

    def undo(self, request: ControlRequest) -> ControlResponse:
        """Undo one journal event."""
        event = _number(request.header, "event")
        feedback = feedback_of(request.peer, request.header, b"")
        with self.holder.service() as service:
            return ControlResponse(answered(service.undo(event, feedback)))

    def batch(self, request: ControlRequest) -> ControlResponse:
        """Train with sorted mail in one transaction."""
        sizes, labels = request.header.get("sizes"), request.header.get("labels")
        if not (isinstance(sizes, list) and isinstance(labels, list) and len(sizes) == len(labels)):
            raise UserError("`sizes` and `labels` must be lists of the same length")
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise UserError("`sizes` must contain whole numbers of 0 or more")
        raw = request.body(1 << 62)
        if sum(sizes) != len(raw):
            raise UserError("`sizes` do not add up to `bytes`")
        body, messages = io.BytesIO(raw), list[tuple[str, bytes]]()
        for size, label in zip(sizes, labels, strict=True):
            messages.append((str(label), body.read(size)))
        who = feedback_of(request.peer, request.header, b"")
        with self.holder.service() as service:
            receipts = service.batch(messages, Source(who.who, who.channel))
        return ControlResponse({"ok": True, **_tally(receipts)})

    def of_spool(self, left: SpoolFile, peer: Peer) -> None:
        """Learn a file of a spool, in the name of `peer`."""
        header = {"channel": "imap"} | left.head | {"label": left.label}
        with self.holder.service() as service:
            answer = service.teach(feedback_of(peer, header, left.raw))
        if answer.state == "refused":
            # The program that wrote the file does not wait for an answer.
            LOG.info("spool file of uid %d was not learnt: %s", left.uid, answer.reason)

    # -- status --------------------------------------------------------------------------------

    def ping(self, request: ControlRequest) -> ControlResponse:
        """Return the served home and the caller's role."""
        home = os.path.realpath(self.holder.learning.home)
        peer = request.peer
        facts = {"home": home, "pid": os.getpid(), "role": peer.role, "login": peer.login}
        # Its text may contain paths.
        fault = self.holder.fault if peer.role == "admin" else self.holder.fault and "see the log"
        return ControlResponse(
            {"ok": True, **facts, "documents": self.holder.documents, "fault": fault}
        )

    def status(self, request: ControlRequest) -> ControlResponse:
        """Return the state of the daemon, with warnings."""
        facts = dict(self.facts())
        if request.peer.role != "admin":
            facts = status.public(facts)
        return ControlResponse({"ok": True, "status": facts})

    def metrics(self, _: ControlRequest) -> ControlResponse:
        """Return the metrics in Prometheus' text format."""
        facts = self.facts()
        text = prometheus(self.shared.total(), status.gauges(facts))
        return ControlResponse({"ok": True}, text.encode())

    def facts(self) -> dict[str, Any]:
        """Return all facts of `status`, at most a second old."""
        with self._lock:
            made, facts = self._facts
            if time.monotonic() - made > _FRESH_S or not facts:
                facts = self._gathered()
                self._facts = (time.monotonic(), facts)
            return facts

    def _gathered(self) -> dict[str, Any]:
        learning = self.holder.learning
        facts: dict[str, Any] = {
            "home": str(learning.home),
            "up_s": round(self.shared.up_s, 1),
            "processes": [
                _process(one) for one in self.shared.seats() if one.state != ProcessState.EMPTY
            ],
            "counters": as_dict(self.shared.total()),
            "bypass": self.shared.bypass,
            "lately": unscanned.facts_of(self.shared.lately) | {"alarm": self.shared.alarm},
            "model": None,
            "fault": self.holder.fault,
            "clock": "",
            "review": 0,
            "quarantine": {"messages": 0, "bytes": 0},
            "spool": {
                "waiting": sum(spool.waiting() for spool in self.spools),
                "set_aside": sum(spool.set_aside for spool in self.spools),
            },
            "moves_failed": sum(spool.failed() for spool in self.spools),
            "spool_problems": self._spool_problems(),
        }
        with status.noted(facts):
            status.check_home(learning.home)
            facts["review"] = self.holder.review_queue.count()
            kept = learning.quarantine or learning.home / "quarantine"
            facts["quarantine"] = status.folder_size(kept)
            facts["clock"] = warning(self.holder.read_clock())
        with suppress(StoreError), self.holder.service() as service:
            facts["model"] = status.model_facts(learning.home, service.model)
        facts["warnings"] = status.warnings(facts, learning.quiet_days)
        return facts

    def _spool_problems(self) -> list[str]:
        """Return why feedback cannot be written to the spools, or not read from them."""
        learning = self.holder.learning
        outside = [one for one in self.spools if not one.folder.is_relative_to(learning.home)]
        found = [str(error) for one in outside if (error := problem(one.folder))]
        if learning.delegates and not outside and not status.is_open(learning.home):
            found.append(
                "serve.delegates is set, but delegates cannot reach a spool:"
                " set feedback.spool, or create /var/spool/spamnb"
            )
        return found

    # -- maintenance ------------------------------------------------------------------------------

    def bypass(self, request: ControlRequest) -> ControlResponse:
        """Turn the bypass on or off; a file in the home keeps it over a restart."""
        on = request.header.get("on")
        if not isinstance(on, bool):
            raise UserError("`on` must be true or false")
        turn_bypass(self.holder.learning.home, self.shared, on=on)
        self._facts = (0.0, {})
        return ControlResponse({"ok": True, "bypass": on})

    def review(self, request: ControlRequest) -> ControlResponse:
        """List, show, accept or refuse queued feedback."""
        do, name = _text(request.header, "do"), _text(request.header, "name")
        review_queue = self.holder.review_queue
        if do == "list":
            entries = [entry.as_dict() for entry in review_queue.entries()]
            return ControlResponse({"ok": True, "entries": len(entries)}, _lines(entries))
        if do == "show":
            entry, raw = review_queue.get(name)
            return ControlResponse({"ok": True, "entry": entry.as_dict()}, raw)
        if do not in ("accept", "refuse"):
            raise UserError("`do` must be list, show, accept or refuse")
        with self.holder.service() as service:
            answer = service.accept(name) if do == "accept" else service.refuse(name)
        return ControlResponse(answered(answer))

    def import_(self, request: ControlRequest) -> ControlResponse:
        """Add an export, which may be larger than the memory."""
        home = self.holder.learning.home
        with tempfile.TemporaryFile(dir=home) as file:
            request.pour(_IMPORT_BYTES, file.fileno())
            file.seek(0)
            try:
                with io.TextIOWrapper(file, "utf-8") as lines:
                    exported = read_export(lines)
            except UnicodeDecodeError as error:
                raise UserError(f"this is not an export: {error}") from error
        who = feedback_of(request.peer, request.header, b"")
        with self.holder.service() as service:
            receipt = merge(service.model, exported, source=Source(who.who, who.channel))
        count = len(exported.bulk.ids)
        return ControlResponse({"ok": True, "receipt": receipt.as_dict(), "features": count})

    def expire(self, request: ControlRequest) -> ControlResponse:
        """Delete old data, by the daemon's settings."""
        who = feedback_of(request.peer, request.header, b"")
        source = Source(who.who, who.channel)
        mark = self.holder.read_clock(trust=request.header.get("trust_clock") is True)
        now = mark.expires_us
        with self.holder.service() as service:
            model, rules = service.model, self.holder.learning.expiry
            expired = expire(model.store, model.history, rules, now_us=now, source=source)
        self._facts = (0.0, {})
        return ControlResponse({"ok": True, "expired": expired.as_dict(), "warning": warning(mark)})

    def reload(self, request: ControlRequest) -> ControlResponse:
        """Open the model if it is not open; reread the settings unless `settings` is false."""
        if self._parent and request.header.get("settings", True):
            os.kill(self._parent, signal.SIGHUP)
        self.holder.open()
        return ControlResponse({"ok": True, "fault": self.holder.fault})


_OPERATIONS = {
    "ping": _Operation(Operations.ping),
    "teach": _Operation(Operations.teach),
    "forget": _Operation(Operations.forget),
    "undo": _Operation(Operations.undo),
    "batch": _Operation(Operations.batch, admins_only=True),
    "status": _Operation(Operations.status),
    "metrics": _Operation(Operations.metrics),
    "bypass": _Operation(Operations.bypass, admins_only=True),
    "review": _Operation(Operations.review, admins_only=True),
    "import": _Operation(Operations.import_, admins_only=True),
    "expire": _Operation(Operations.expire, admins_only=True),
    "reload": _Operation(Operations.reload, admins_only=True),
}


MAILBOXES = ("imap", "maildir")
"""Channels that read a user's mailbox. Their server confirms that a message is the user's own, even
if it is older than the history or than this installation."""


def feedback_of(peer: Peer, header: Header, raw: bytes) -> Feedback:
    """Build the feedback of a request, with the user and trust that the caller may claim."""
    who, trust = _speaker(peer, header)
    channel = _text(header, "channel") or "api"
    return Feedback(
        label=_text(header, "label"),
        raw=raw,
        refs=_refs(header),
        who=who,
        channel=channel,
        trust=trust,
        vouched=channel in MAILBOXES and peer.role in ("admin", "delegate"),
        domain=_text(header, "domain") if peer.role == "admin" else "",
        client=_text(header, "client")[:_CLIENT_CHARS] if peer.role == "admin" else "",
    )


def _speaker(peer: Peer, header: Header) -> tuple[str, Trust]:
    named, trust = _text(header, "for"), _text(header, "trust")
    if trust and trust not in get_args(Trust):
        raise UserError("`trust` must be admin, user or stranger")
    if peer.role == "admin":
        known: Trust = "user" if named else "admin"
        return named or peer.login, trust or known  # type: ignore[return-value]
    if named and peer.role != "delegate" and named != peer.login:
        raise RefusedError(
            f"{peer.login} may not act for {named}", hint="see serve.delegates in the settings"
        )
    return named or peer.login, "stranger" if trust == "stranger" else "user"


def _refs(header: Header) -> tuple[str, ...]:
    refs = header.get("refs", [])
    good = isinstance(refs, list) and len(refs) <= MOST_REFS
    if not good or not all(isinstance(ref, str) and len(ref) <= _REF_CHARS for ref in refs):
        raise UserError(f"`refs` must be a list of at most {MOST_REFS} references")
    return tuple(refs)


def _text(header: Header, name: str) -> str:
    found = header.get(name, "")
    if not isinstance(found, str):
        raise UserError(f"`{name}` must be a string")
    return found


def _number(header: Header, name: str) -> int:
    found = header.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 1 << 63:
        raise UserError(f"`{name}` must be a whole number of 1 or more")
    return found


def _tally(receipts: list[Receipt]) -> Header:
    refused = [str(receipt.error) for receipt in receipts if receipt.error is not None]
    return {
        "learnt": sum(r.changed and r.before is None for r in receipts),
        "moved": sum(r.changed and r.before is not None for r in receipts),
        "duplicates": sum(not r.changed and r.error is None for r in receipts),
        "refused": len(refused),
        "reasons": refused[:_SHOWN_REASONS],
    }


def _lines(entries: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def _process(process: ProcessStatus) -> dict[str, object]:
    return {
        "role": process.role,
        "slot": process.slot,
        "state": process.state.name.lower(),
        "pid": process.pid,
        "starts": process.starts,
        "up_s": round(process.up_s, 1),
        "beat_age_s": round(process.beat_age_s, 1),
        "open": process.open_sessions,
    }
