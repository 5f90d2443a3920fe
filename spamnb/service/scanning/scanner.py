"""Letters to outcomes: judge, look at the lists, decide what becomes of the message.

    bench = Bench(BenchPlan(home, ...), hand=hand, log=log)              one for each process
    Scanner(bench, ScanPolicy(...), Around(rules=..., quarantine=..., offload=...,
                  bypassed=..., later=loop.call_soon, aside=..., meters=..., log=...))

`scan(letter, done)` calls `done(outcome)` exactly once and never raises. Letters that arrive in one
turn of the event loop are judged together, on one snapshot and with one commit; large ones go to a
helper process (`Offload`). Letters that wait are taken in an order that is fair to their clients; a
letter that waited too long is not judged any more (`busy`). The order of precedence: bypass, what
is too large, what killed a process before, the lists, the model; then own clients and `observe`
take the headers away again.

A letter that is not judged is delivered, with a header that says unscanned and why, or deferred:
see `requests.Fallbacks`. The incident id is in the facts and in one log record; neither reply nor
header holds anything internal. Must not know sockets or event loops.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from spamnb.core.mail.domains import LocalDomains
from spamnb.core.mail.envelope import Envelope, network_of
from spamnb.core.model.costs import Decision
from spamnb.core.policy.actions import ActionPolicy, Handling
from spamnb.core.policy.verdict_headers import (
    VerdictHeaders,
    as_delivered,
    format_headers,
    header_end,
    junk_threshold,
    signature_block,
    written,
)
from spamnb.errors import StoreFullError, StoreMissingError
from spamnb.service.scanning.access_lists import AccessLists, NetworkTable, Side
from spamnb.service.scanning.fair_queue import FairQueue
from spamnb.service.scanning.model_session import (
    TOGETHER,
    Found,
    Log,
    ModelSession,
    Notes,
    ScanFault,
    ScanVerdict,
    incident,
    silent,
    verdict_from_json,
)
from spamnb.service.scanning.options import ScanOptions
from spamnb.service.scanning.spamtraps import Traps
from spamnb.service.scanning.types import Done, Fallbacks, ScanRequest, ScanResult, unjudged
from spamnb.service.telemetry.metrics import Meters

Result = TypeVar("Result")

KEPT: Final = b"2.0.0 Ok: queued as "
REFUSED: Final = b"5.7.1 This message is not wanted here"
RULED: Final[dict[Side, Decision]] = {"allow": "deliver", "block": "reject"}
"""what a list's word means; the mapping says what becomes of it"""
FAULTS: Final = frozenset(("fault", "overrun", "model"))
"""reasons that are counted as faults of the daemon"""
TOGETHER_BYTES: Final = 65_536
"""judged in one turn of the event loop, or one message more: 10 ms of the worst mail"""
_VERSION: Final[str] = sys.modules["spamnb"].__version__
_MOST_NOTE_BYTES: Final = 16_384
"""of recipients in one history entry, some 500; others cannot correct by reference alone"""
_MOST_NOTE: Final = 256
_BLANK = re.compile(r"\s")


@dataclass(frozen=True)
class ScanPolicy(ScanOptions, Fallbacks):
    """How one listener's letters are treated."""

    action_policy: ActionPolicy = field(default_factory=ActionPolicy)
    observe: bool = False
    """judge and log, but add nothing but the signature"""
    served: LocalDomains = field(default_factory=LocalDomains)
    """whose mailboxes are here: mail to others gets no signature, for with it they could teach"""
    wait_s: float = 30.0
    """how long a letter may wait until its scan begins"""


class QuarantineWriter(Protocol):
    """Where messages are kept; see `quarantine`."""

    def keep(self, raw: bytes, envelope: Envelope, facts: dict[str, object]) -> str:
        """Keep, durably, and name it. StoreError if there is no room."""

    def delete(self, identity: str) -> None:
        """Throw it away."""


class Offload(Protocol):
    """Judges large messages elsewhere, with a deadline."""

    def submit(
        self, raw: bytes, notes: Notes, done: Callable[[dict[str, Any]], None]
    ) -> Callable[[], None] | None:
        """Have it judged by `scan_to_json`; `done` gets that, once, in the caller's thread.

        What went wrong on the way is {"reason": ...}, one of `stamp.Reason`, maybe with an
        "incident". What is returned takes the message back; `done` is then not called.
        """


def at_once(run: Callable[[], None]) -> None:
    """Run now, where there is no event loop to wait for."""
    run()


def here(work: Callable[[], Result], then: Callable[[Result], None]) -> None:
    """Do slow work in this thread."""
    then(work())


def never() -> bool:
    """No."""
    return False


@dataclass(frozen=True, slots=True)
class ScannerDeps:
    """What a scanner works with."""

    rules: AccessLists = field(default_factory=AccessLists)
    quarantine: QuarantineWriter | None = None
    offload: Offload | None = None
    traps: Traps = field(default_factory=Traps)
    bypassed: Callable[[], bool] = never
    later: Callable[[Callable[[], None]], object] = at_once
    """runs something after what is waiting now, such as loop.call_soon"""
    aside: Callable[[Callable[[], Any], Callable[[Any], None]], None] = here
    """does slow work (two fsyncs) in another thread, then calls back in this one"""
    meters: Meters = field(default_factory=Meters)
    log: Log = silent


@dataclass(slots=True, eq=False)
class _PendingScan:
    """A letter on its way."""

    request: ScanRequest
    done: Done
    observed: bool
    began: float
    open: bool = True
    by_header: bool = False
    """whether it is judged by its header alone"""
    cancel: Callable[[], None] | None = None
    """takes it back from the helper"""

    @property
    def client(self) -> str:
        """For whom it is judged, where shares are to be fair."""
        return network_of(self.request.envelope.client.address)


class Scanner:
    """Implements `requests.Scanner`."""

    def __init__(
        self, model_session: ModelSession, policy: ScanPolicy, around: ScannerDeps | None = None
    ) -> None:
        self._bench = model_session
        self._waiting: FairQueue[_PendingScan] = FairQueue()
        self._due = False
        self.apply_settings(policy, around or ScannerDeps())

    def apply_settings(self, policy: ScanPolicy, around: ScannerDeps) -> None:
        """Take new settings, for letters that come from now on."""
        self._policy = policy
        self._around = around
        self._own = NetworkTable(policy.own_clients)
        self._junk_log_odds = junk_threshold(self._bench.plan.costs)

    def scan(self, request: ScanRequest, done: Done) -> Callable[[], None]:
        """Judge; `done` is called exactly once, in this thread, unless the letter is taken back."""
        case = _PendingScan(request, done, self._is_observed(request), time.perf_counter())
        self._spring(case)
        self._guarded([case], lambda: self._begin(case))
        return partial(self._take_back, case)

    def _take_back(self, case: _PendingScan) -> None:
        """The answer is not wanted any more."""
        case.open = False
        if case.cancel is not None:
            case.cancel()
        else:
            self._waiting.remove(case.client, case)

    def _spring(self, case: _PendingScan) -> None:
        """Learn what went into a trap; that it fails is told, and no reason to stop the message."""
        around = self._around
        trap = "" if case.observed else around.traps.caught(case.request)
        if not trap:
            return

        def work() -> Exception | None:
            try:
                around.traps.keep(case.request, trap)
            except Exception as error:  # noqa: BLE001 - in another thread: told in this one
                return error
            return None

        def then(error: Exception | None) -> None:
            if error is not None:
                incident(around.log, "trap", error)

        around.aside(work, then)

    # -- on the way to a judgement --------------------------------------------------------------

    def _begin(self, case: _PendingScan) -> None:
        request, around = case.request, self._around
        if around.bypassed():
            self._finish(case, ScanFault("bypass"))
        elif not request.whole and self._policy.oversize == "unscanned":
            self._finish(case, ScanFault("large"))
        elif around.offload is not None and len(request.raw) > self._policy.large_bytes:
            self._send_away(case, around.offload)
        else:
            self._waiting.put(case.client, case)
            self._soon()

    def _send_away(self, case: _PendingScan, offload: Offload) -> None:
        def arrived(answer: dict[str, Any]) -> None:
            if case.open:
                self._guarded([case], lambda: self._finish(case, verdict_from_json(answer)))

        # Kept in the letter too, or a queue of these would hold two copies of each.
        case.request = case.request._replace(raw=as_delivered(case.request.raw))
        if self._bench.is_known_crasher(case.request.raw):
            self._finish(case, ScanFault("known_crasher"))
        else:
            case.cancel = offload.submit(case.request.raw, notes_of(case.request), arrived)

    def _send_header(self, case: _PendingScan, offload: Offload) -> bool:
        """Have a message that ended a process judged by its header; False if there is no more."""
        raw = as_delivered(case.request.raw)
        header = raw[: max(0, header_end(raw))][: self._policy.large_bytes]
        if not header or len(header) == len(raw):
            return False
        case.by_header = True
        case.request = case.request._replace(raw=header, whole=False)
        self._send_away(case, offload)
        return True

    def _soon(self) -> None:
        """See to it that `_run` comes, once."""
        if self._due:
            return
        self._due = True
        try:
            self._around.later(self._run)
        except BaseException:
            self._due = False  # or nobody would ever ask again
            raise

    def _run(self) -> None:
        """Judge what has come, a few at a time, so that others have their turn between."""
        self._due = False
        cases: list[_PendingScan] = []
        size = 0
        while self._waiting and len(cases) < TOGETHER and size < TOGETHER_BYTES:
            case = self._waiting.take()
            if time.perf_counter() - case.began > self._policy.wait_s:
                self._guarded([case], partial(self._finish, case, ScanFault("busy")))
                continue
            cases.append(case)
            size += len(case.request.raw)
            self._waiting.charge(case.client, len(case.request.raw))
        if self._waiting:
            self._soon()
        self._guarded(cases, lambda: self._judge(cases))

    def _judge(self, cases: list[_PendingScan]) -> None:
        raws = [as_delivered(case.request.raw) for case in cases]
        found = self._bench.judge(raws, [notes_of(case.request) for case in cases])
        for case, one in zip(cases, found, strict=True):
            self._guarded([case], partial(self._finish, case, one))

    def _guarded(self, cases: list[_PendingScan], run: Callable[[], None]) -> None:
        """Run a step; whoever has no answer after it failed gets the one for faults."""
        try:
            run()
        except Exception as error:  # noqa: BLE001 - a letter's boundary: its sender needs an answer
            fault = ScanFault("fault", incident(self._around.log, "scan", error))
            for case in cases:
                if case.open:
                    self._pass(case, fault)

    # -- from a judgement to an outcome ---------------------------------------------------------

    def _finish(self, case: _PendingScan, found: Found) -> None:
        if isinstance(found, ScanFault):
            self._unjudged(case, found)
            return
        request = case.request
        if not self._policy.served.holds(
            request.envelope.recipients, outgoing=self._is_own(request)
        ):
            found = replace(found, signature="")
        ruling = self._around.rules.on(request.envelope, request.raw, self._bench.plan.local)
        decision = found.decision if ruling is None else RULED[ruling.side]
        handling = self._policy.action_policy.of(
            decision,
            request.envelope.recipients,
            refusable=request.before_queue,
            whole=request.whole,
        )
        facts: dict[str, object] = {
            "verdict": found.label,
            "probability": round(found.probability, 6),
            "decision": decision,
            "handling": handling,
            "reason": ruling.reason
            if ruling
            else found.reason or ("" if request.whole else "head"),
            "rule": ruling.entry if ruling else "",
            "signature": found.signature,
        }
        self._around.meters.count("scanned")
        self._around.meters.count("scanned_head", not request.whole)
        self._around.meters.count(f"decision_{decision}")
        said = self._said(found, decision, str(facts["reason"]))
        if case.observed:
            facts["observed"] = True
            self._answer(case, ScanResult("relay", signature_block(said.signature), facts=facts))
        else:
            self._handle(case, said, handling, facts)

    def _said(self, found: ScanVerdict, decision: Decision, reason: str) -> VerdictHeaders:
        return VerdictHeaders(
            label=found.label,
            probability=found.probability,
            log_odds=found.log_odds,
            decision=decision,
            junk_log_odds=self._junk_log_odds,
            signature=found.signature,
            reason=reason,
            clues=found.clues,
            version=_VERSION,
        )

    def _handle(
        self, case: _PendingScan, said: VerdictHeaders, handling: Handling, facts: dict[str, object]
    ) -> None:
        redirect = self._policy.redirect if handling == "redirect" else ""
        block = format_headers(replace(said, redirect=redirect) if redirect else said)
        if handling == "quarantine":
            self._keep(case, block, facts)
        elif handling == "reject":
            self._answer(case, ScanResult("refuse", block, reply=REFUSED, facts=facts))
        else:
            tag = self._policy.tag.encode() if handling == "tag" else b""
            self._answer(case, ScanResult("relay", block, tag, facts=facts))

    def _keep(self, case: _PendingScan, block: bytes, facts: dict[str, object]) -> None:
        quarantine, request = self._around.quarantine, case.request

        def work() -> str | Exception:
            if quarantine is None:
                return StoreMissingError("no quarantine was set up")
            try:
                return quarantine.keep(written(request.raw, block), request.envelope, facts)
            except Exception as error:  # noqa: BLE001 - what cannot be kept is delivered
                return error

        def then(kept: str | Exception) -> None:
            self._guarded([case], partial(self._kept, case, block, facts, kept))

        self._around.aside(work, then)

    def _kept(
        self, case: _PendingScan, block: bytes, facts: dict[str, object], kept: str | Exception
    ) -> None:
        if isinstance(kept, str):
            facts["quarantine"] = kept
            withdraw = partial(self._withdraw, kept)
            outcome = ScanResult(
                "keep", block, reply=KEPT + kept.encode(), withdraw=withdraw, facts=facts
            )
        else:
            facts["handling"] = "headers"
            full = isinstance(kept, StoreFullError)
            facts["reason"] = "quarantine-full" if full else "quarantine-fault"
            facts["incident"] = incident(self._around.log, "quarantine", kept)
            self._around.meters.count("faults")
            outcome = ScanResult("relay", block, facts=facts)
        self._answer(case, outcome)

    def _withdraw(self, kept: str) -> None:
        """The disk was slow, and the message was answered otherwise: nobody shall get it twice."""
        quarantine, log = self._around.quarantine, self._around.log

        def work() -> Exception | None:
            try:
                if quarantine is not None:
                    quarantine.delete(kept)
            except Exception as error:  # noqa: BLE001 - told in the log; the sender has an answer
                return error
            return None

        def then(error: Exception | None) -> None:
            record: dict[str, object] = {"event": "kept too late", "quarantine": kept}
            if error is not None:
                record["incident"] = incident(log, "quarantine", error)
            log(record | {"level": "warning", "withdrawn": error is None})

        self._around.aside(work, then)

    def _unjudged(self, case: _PendingScan, fault: ScanFault) -> None:
        """Judge by less, if that may do, or answer for a message that was not judged."""
        offload = self._around.offload if self._policy.known_crasher == "head" else None
        may_try = fault.reason == "known_crasher" and not case.by_header
        if offload is None or not may_try or not self._send_header(case, offload):
            self._pass(case, fault)

    def _pass(self, case: _PendingScan, fault: ScanFault) -> None:
        """Answer for a message that was not judged."""
        meters = self._around.meters
        if fault.reason in FAULTS:
            meters.count("faults")
        if fault.reason == "overrun":
            meters.count("scan_overruns")
        outcome = unjudged(fault.reason, self._policy, meters, observed=case.observed)
        if fault.incident:
            outcome.facts["incident"] = fault.incident
        self._answer(case, outcome)

    def _answer(self, case: _PendingScan, outcome: ScanResult) -> None:
        """Call back, once; what goes wrong there is no reason to call again."""
        if not case.open:
            if outcome.withdraw is not None:
                outcome.withdraw()
            return
        case.open = False
        took = time.perf_counter() - case.began
        meters = self._around.meters
        if outcome.facts["verdict"] != "unscanned":
            meters.observe("scan_seconds", took)
            name = "observed" if case.observed else f"handling_{outcome.facts['handling']}"
            meters.count(name)
        outcome.facts["scan_ms"] = round(took * 1000, 3)
        try:
            case.done(outcome)
        except Exception as error:  # noqa: BLE001 - the others of this turn must be answered too
            incident(self._around.log, "answer", error)

    def _is_observed(self, request: ScanRequest) -> bool:
        return self._policy.observe or self._is_own(request)

    def _is_own(self, request: ScanRequest) -> bool:
        """Whether the site's own people sent it."""
        client = request.envelope.client
        local = client.source.upper() == "LOCAL" and self._policy.local == "observe"
        return local or bool(self._own.find(client.address))


def notes_of(request: ScanRequest) -> Notes:
    """What the history keeps of a letter beside its verdict, so that it can be asked whose it was.

    `to`: the recipients that the next hop took, joined by blanks; `client`, `queue`: by the word of
    trusted peers. An address with a blank in it (quoted) could pass for two, so it is left out.
    """
    envelope = request.envelope
    kept, left = [], _MOST_NOTE_BYTES
    for recipient in envelope.recipients:
        left -= len(recipient) + 1
        if left < 0:
            break
        if not _BLANK.search(recipient):
            kept.append(recipient)
    notes = {
        "to": " ".join(kept),
        "client": envelope.client.address[:_MOST_NOTE],
        "queue": envelope.client.ident[:_MOST_NOTE],
    }
    return {name: text for name, text in notes.items() if text}
