"""Scan messages in order, fairly among clients: verdict, access lists, action, quarantine.

`Scanner.scan` calls `done(result)` exactly once and never raises. `FairQueue` gives each client a
fair share of the work.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from spamnb.errors import StoreFullError
from spamnb.mail.envelope import LocalDomains, LocalHosts, address_of, domain_of, network_of
from spamnb.mail.message import parted
from spamnb.mail.results import Result, passed_domains, read_results, results_shown
from spamnb.model.costs import DECISIONS, Decision
from spamnb.policy.actions import MAIL_ACTIONS, ActionPolicy, Fallbacks, MailAction
from spamnb.policy.headers import (
    REASONS,
    Fields,
    ScanVerdict,
    add_to_message,
    asks_for_junk,
    border_fields,
    decision_threshold,
    junk_threshold,
    placed,
    reject_score_of,
    scanned_fields,
    score_of,
    signature_fields,
    statement_fields,
    unscanned_fields,
    with_results,
)
from spamnb.policy.letters import answered_in, letter_in, person_name
from spamnb.policy.rulings import Ruling, Rulings, shown_verdict
from spamnb.policy.senders import SenderEvidence, aligned
from spamnb.records.correspondents import RELATIONS
from spamnb.scan.access_lists import AccessLists, NetworkTable, Traps
from spamnb.scan.judge import (
    Found,
    ModelSession,
    ScanFault,
    attempt,
    author_notes,
    notes_of,
    other_notes,
    verdict_from_json,
)
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.shadow import Shadow
from spamnb.scan.values import (
    BATCH_MESSAGES,
    Advice,
    Done,
    Notes,
    Observed,
    Offload,
    ScanOptions,
    ScanRequest,
    ScanResult,
    SenderChecker,
    StopScan,
    observed_by,
)
from spamnb.telemetry import Log, Meters, incident, now_us

Item = TypeVar("Item")

MAX_REMEMBERED = 1024
"""number of clients without a queued item to remember; a sender can invent any number"""


class FairQueue(Generic[Item]):
    """Queued items, by client.

        queue.put(client, item)     queue.take() -> item     queue.charge(client, cost)

    The next item is that of the client with the lowest cost so far; items of one client keep their
    order. So a client that sends a hundred items delays another client's item by one of its own,
    and a client with costlier items gets fewer turns. A new client starts at the cost of the client
    that was served last, so a client gets no credit for idle time (start-time fair queueing, Goyal
    1996). Pure; for one thread only.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}
        self._cost: dict[str, float] = {}
        self._served_cost = 0.0
        """the cost of the client that was served last, at that time"""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, client: str, item: Item) -> None:
        """Add an item behind the others of its client."""
        self._of(client).append(item)

    def put_back(self, client: str, item: Item) -> None:
        """Add an item before the others of its client."""
        self._of(client).appendleft(item)

    def take(self) -> Item:
        """Remove and return the next item; IndexError if the queue is empty."""
        if not self._waiting:
            raise IndexError("the queue is empty")
        client = min(self._waiting, key=self._cost.__getitem__)
        self._served_cost = max(self._served_cost, self._cost[client])
        item = self._waiting[client].popleft()
        self._removed(client)
        return item

    def remove(self, client: str, item: Item) -> bool:
        """Remove an item; False if it is not queued."""
        try:
            self._waiting[client].remove(item)
        except (KeyError, ValueError):
            return False
        self._removed(client)
        return True

    def charge(self, client: str, cost: float) -> None:
        """Add the cost of finished work to a client."""
        self._cost[client] = max(self._cost.get(client, 0.0), self._served_cost) + cost

    def _of(self, client: str) -> deque[Item]:
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._cost[client] = max(self._cost.get(client, 0.0), self._served_cost)
        self._length += 1
        return self._waiting[client]

    def _removed(self, client: str) -> None:
        self._length -= 1
        if not self._waiting[client]:
            del self._waiting[client]
            if len(self._cost) > MAX_REMEMBERED + len(self._waiting):
                self._cost = {name: self._cost[name] for name in self._waiting}


KEPT_REPLY: Final = b"2.0.0 Ok: queued as "
REFUSED_REPLY: Final = b"5.7.1 This message is not wanted here"
DEFERRED_REPLY: Final = b"4.3.0 Temporary failure, please try again later"
BUSY_REPLY: Final = b"4.3.2 Too much mail at the moment, please try again later"
FAULTS: Final = frozenset(("fault", "overrun", "model"))
"""reasons that count as faults of the daemon"""
BATCH_BYTES: Final = 65_536
"""scanned in one turn of the event loop, plus a last message: 10 ms for the slowest mail"""
_TEST: Final = Ruling("test", "message", "spamnb doctor")
_VERSION: Final[str] = sys.modules["spamnb"].__version__


@dataclass(frozen=True)
class ScanPolicy(ScanOptions, Fallbacks):
    """How one listener's messages are treated."""

    action_policy: ActionPolicy = field(default_factory=ActionPolicy)
    observe: bool = False
    """scan and log, but add only the signature"""
    served: LocalDomains = field(default_factory=LocalDomains)
    """the domains with mailboxes here: mail to other domains gets no signature, because recipients
    there could correct with it"""
    wait_s: float = 30.0
    """how long a message may be queued until its scan begins"""
    listener: str = ""
    """name of the listener, for the notes of the history"""
    other: str = ""
    """the filter in front, the marks of which are noted; empty if there is none"""
    before_mailboxes: bool = False
    """the next hop delivers to mailboxes of persons; each should get a message of their own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannerDeps:
    """What a scanner works with."""

    rules: AccessLists
    quarantine: Quarantine
    offload: Offload
    traps: Traps | None
    bypassed: Callable[[], bool]
    live: Callable[[], bool]
    """whether listeners that observe mark and file mail; not those behind another filter"""
    call_soon: Callable[[Callable[[], None]], object]
    """runs a callable after those that are already scheduled, such as loop.call_soon"""
    run_in_thread: Callable[[Callable[[], Any], Callable[[Any], None]], None]
    """does slow work (two fsyncs) in another thread, then calls back in this one"""
    meters: Meters
    log: Log
    shadow: Shadow | None = None
    """another filter that is asked about a share of the mail"""
    senders: SenderChecker | None = None
    """checks mail from outside; None: only the results of other programs are read"""


@dataclass(slots=True, eq=False)
class _PendingScan:
    request: ScanRequest
    done: Done
    is_own: bool
    """whether one of the site's own clients sent it"""
    observed: Observed | None
    """the setting because of which the message is not marked"""
    advised: bool
    """whether the client carries out the verdict itself"""
    began: float
    raw: bytes
    """the message for the parser"""
    header_bytes: int
    """of `raw`"""
    client: str = ""
    """while it is queued: the client's network"""
    open: bool = True
    rulings: Rulings = field(default_factory=Rulings)
    """what lists decide about it"""
    results: Fields = ()
    """the results of authentication that this program found, or the list of the proven ones"""
    is_checked: bool = False
    """whether this program has checked the sender"""
    evidence: SenderEvidence | None = None
    """of a message whose sender is checked: its parsed header, with the results"""
    auth: str = ""
    """what is known of the sender, for people"""
    by_header: bool = False
    """whether only its header is scanned"""
    cancel: Callable[[], None] | None = None
    """cancels the scan in the scan process"""


class Scanner:
    """Implements `types.MessageScanner`.

        session = ModelSession(SessionConfig(home, ...), crash_register=..., log=log)  # per process
        Scanner(session, ScanPolicy(...), ScannerDeps(rules=..., quarantine=..., offload=...,
                bypassed=..., call_soon=loop.call_soon, run_in_thread=..., meters=..., log=...))

    `scan(request, done)` calls `done(result)` exactly once and never raises. Messages that arrive
    in one turn of the event loop are scanned together, on one snapshot and with one commit; large
    ones go to a scan process (`Offload`). Queued messages are scanned in an order that is fair to
    their clients; one that was queued too long is not scanned (`busy`). Order of precedence:
    bypass, too large, known crasher, lists (`policy.rulings`), model. Mail of own clients, and
    all mail with `observe`, gets no verdict headers.

    A message that is not scanned is delivered with an X-Spamnb header that gives the reason, or
    deferred, by `Fallbacks`; no other module decides this. A message is counted once, when its
    result is returned. `advise` does the same, but keeps and rejects nothing: the client gets the
    verdict and acts. The incident id is in the facts and in one log record; reply and headers
    contain nothing internal. Must not know sockets or event loops.
    """

    def __init__(self, model_session: ModelSession, policy: ScanPolicy, deps: ScannerDeps) -> None:
        self._session = model_session
        self._waiting: FairQueue[_PendingScan] = FairQueue()
        self._run_scheduled = False
        self.apply_settings(policy, deps)

    def apply_settings(self, policy: ScanPolicy, deps: ScannerDeps) -> None:
        """Take new settings, for messages that come from now on."""
        self._policy = policy
        self._deps = deps
        self._own = NetworkTable(policy.own_clients)
        costs = self._session.plan.costs
        self._junk_log_odds = junk_threshold(costs)
        self._reject_score = reject_score_of(
            decision_threshold(costs, "reject"), self._junk_log_odds
        )

    def scan(self, request: ScanRequest, done: Done) -> StopScan:
        """Scan; `done` is called exactly once, in this thread, unless the scan is stopped."""
        return self._submit(request, done, advised=False)

    def advise(self, request: ScanRequest, done: Done) -> StopScan:
        """Scan as `scan` does, but only return the verdict: nothing is kept or rejected."""
        return self._submit(request, done, advised=True)

    def _submit(self, request: ScanRequest, done: Done, *, advised: bool) -> StopScan:
        own, now = self._own_by(request), time.perf_counter()
        only_observes = self._policy.observe and (self._policy.other or not self._deps.live())
        observed: Observed | None = "listener" if only_observes else own
        pending = _PendingScan(
            request, done, own is not None, observed, advised, now, *self._placed(request)
        )
        self._guarded([pending], partial(self._verify, pending))
        return partial(self._stop, pending)

    def _placed(self, request: ScanRequest) -> tuple[bytes, int]:
        """The message for the parser, which knows if no Received field in it is the site's."""
        if request.is_received or not self._session.plan.local.authserv_ids:
            return request.raw, request.header_bytes
        return placed(request.raw, request.header_bytes, request.envelope.client.ident)

    def border(self, request: ScanRequest) -> Fields:
        """Return the field that stands above a message from outside; none if there is no key."""
        return border_fields(self._session.border(request.raw, request.envelope.client.ident))

    def _stop(self, pending: _PendingScan, reason: str) -> None:
        if not pending.open:
            return
        if pending.cancel is not None:
            pending.cancel()
        else:
            self._waiting.remove(pending.client, pending)
        if reason:
            self._answer_unscanned(pending, ScanFault(reason))
        pending.open = False

    def _record_spamtrap_hit(self, pending: _PendingScan) -> None:
        """Learn what a spamtrap received; a failure is logged and does not stop the message."""
        traps, log = self._deps.traps, self._deps.log
        if traps is None or pending.observed or not (trap := traps.caught(pending.request)):
            return

        def then(error: Exception | None) -> None:
            if error is not None:
                incident(log, "trap", error)

        self._deps.run_in_thread(partial(attempt, partial(traps.keep, pending.request, trap)), then)

    # -- request to verdict ---------------------------------------------------------------------

    def _verify(self, pending: _PendingScan) -> None:
        """Ask who sent a message from outside, before it is scanned."""
        checker = self._deps.senders
        is_asked = pending.request.whole and not pending.is_own and not self._deps.bypassed()
        local = self._session.local if is_asked and checker and checker.is_on else None
        if checker is None or local is None or not local.key:
            self._start(pending)
            return
        head, sender = pending.raw[: pending.header_bytes], pending.request.envelope.sender
        message = pending.evidence = SenderEvidence(head, local, sender, pending.raw)
        if message.parts[0].results:  # another program of the site has checked it
            self._use_results(pending, message, local, "")
            self._start(pending)
            return
        then = partial(self._verified, pending, message, local)
        started = attempt(partial(checker.start, pending.request, message, then))
        if isinstance(started, Exception):
            incident(self._deps.log, "auth", started)
            self._start(pending)
        else:
            pending.cancel = started

    def _verified(
        self, pending: _PendingScan, message: SenderEvidence, local: LocalHosts, results: str
    ) -> None:
        if not pending.open:
            return
        pending.cancel, pending.began = None, time.perf_counter()

        def start() -> None:
            if results:
                self._count_check(results)
                self._use_results(pending, message, local, results)
            self._start(pending)

        self._guarded([pending], start)

    def _use_results(
        self, pending: _PendingScan, message: SenderEvidence, local: LocalHosts, own: str
    ) -> None:
        """Add results to a message that has others, or has these; after a fault it has none."""

        def work() -> None:
            site, block = local.authserv_ids, message.parts[0]
            found = list(block.results)
            if own:
                found += read_results(f"{site[0]}; {own}".encode(), site) or []
            if known := self._known(pending, message, found):
                found += read_results(f"{site[0]}; {known}".encode(), site) or []
            self._add_results(pending, message, local, "; ".join(filter(None, (own, known))))
            block.results = found

        if isinstance(error := attempt(work), Exception):
            incident(self._deps.log, "auth", error)

    def _add_results(
        self, pending: _PendingScan, message: SenderEvidence, local: LocalHosts, results: str
    ) -> None:
        """Put results above a message, for the model, for lists, and for the next hop."""
        if not results:
            return
        pending.raw, pending.header_bytes, fields = with_results(
            pending.raw, pending.header_bytes, message.parts, local, results
        )
        checker = self._deps.senders
        adds = checker is not None and checker.adds_fields
        pending.is_checked = True
        pending.results = fields if adds else statement_fields(message.statement)

    def _known(self, pending: _PendingScan, message: SenderEvidence, results: list[Result]) -> str:
        """What letters tell of the author, as results; how one is known only if authentic.

        A message for several recipients must not tell one whom another one knows.
        """
        known, envelope = self._session.correspondents(), pending.request.envelope
        if known is None:
            return ""
        fields, domain = message.parts[0].fields, domain_of(message.author)
        author, now = address_of(message.author, ""), now_us()
        name = "" if domain in self._session.local.domains else person_name(fields)
        said = ["x-name=user"] if name and known.has_name_of_user(name, author, now) else []
        if not any(aligned(domain, one) for one in passed_domains(results)):
            return "; ".join(said)
        answered = answered_in(fields)
        owners = {self._session.owner_of(one) for one in envelope.recipients}
        found = [
            known.relation(owner, author, answered, now) if owner is not None else None
            for owner in owners
        ]
        weakest = min((one for one in found if one), key=RELATIONS.index, default=None)
        said += [f"x-known={weakest}"] if weakest and None not in found else []
        return "; ".join(said)

    def _note_letter(self, pending: _PendingScan) -> None:
        """Remember whom one of the site's own users writes to."""
        known = self._session.correspondents() if pending.is_own else None
        envelope = pending.request.envelope
        owner = self._session.owner_of(envelope.sender) if envelope.sender else None
        if known is None or owner is None:
            return
        block, _ = parted(pending.raw, self._session.local, set())
        letter = letter_in(block.fields, envelope.recipients)
        if letter is None:
            return
        log, now, name = self._deps.log, now_us(), person_name(block.fields)

        def then(error: Exception | None) -> None:
            if error is not None:
                incident(log, "correspondents", error)

        def work() -> None:
            known.note(owner, letter.addresses, letter.message_id, now)
            if name:
                known.note_name(owner, name, address_of(envelope.sender, ""), now)

        self._deps.run_in_thread(partial(attempt, work), then)

    def _start(self, pending: _PendingScan) -> None:
        request, deps = pending.request, self._deps
        self._record_spamtrap_hit(pending)
        if deps.bypassed():
            self._finish(pending, ScanFault("bypass"))
        elif not request.whole and self._policy.fallback_for("large") != "head":
            self._finish(pending, ScanFault("large"))
        else:
            self._guarded([], partial(self._note_letter, pending), "correspondents")
            pending.rulings = found = self._rulings_of(pending)
            if found.for_all == _TEST and pending.observed != "listener":
                pending.observed = None  # the doctor asks how mail from outside is filed
            self._queue(pending)

    def _queue(self, pending: _PendingScan) -> None:
        if len(pending.raw) > self._policy.large_bytes:
            self._offload(pending)
        else:
            pending.client = network_of(pending.request.envelope.client.address)
            self._waiting.put(pending.client, pending)
            self._schedule_run()

    def _rulings_of(self, pending: _PendingScan) -> Rulings:
        """What lists decide, before the scan, so that the history has it."""
        envelope, head = pending.request.envelope, pending.raw[: pending.header_bytes]
        local = self._session.local
        message = pending.evidence or SenderEvidence(head, local, envelope.sender, pending.raw)
        # Any local program may ask for advice, about any message: it gets no proof of results.
        if local.authserv_ids and not (pending.advised or pending.is_checked):
            pending.results = statement_fields(message.statement)
        if pending.results or pending.is_checked:
            pending.auth = results_shown(message.parts[0].results)
        if asks_for_junk(head, local.test_key):
            return Rulings(_TEST)
        if found := self._deps.rules.on(envelope, message):
            return Rulings(found)
        return self._session.sender_lists(envelope.recipients).rulings(message)

    def _offload(self, pending: _PendingScan) -> None:
        def arrived(answer: dict[str, Any]) -> None:
            if pending.open:
                self._guarded([pending], lambda: self._finish(pending, verdict_from_json(answer)))

        if self._session.is_known_crasher(pending.raw):
            self._finish(pending, ScanFault("known_crasher"))
        else:
            notes, recipients = self._notes_of(pending), pending.request.envelope.recipients
            pending.cancel = self._deps.offload.submit(pending.raw, notes, arrived, recipients)

    def _offload_header(self, pending: _PendingScan) -> bool:
        """Scan only the header of a known crasher; False if there is no body to leave out."""
        raw, end = pending.raw, pending.header_bytes
        header = raw[: min(end, self._policy.large_bytes)]
        if not header or end == len(raw):
            return False
        pending.by_header = True
        pending.raw, pending.header_bytes = header, len(header)
        pending.request = pending.request._replace(whole=False)
        self._offload(pending)
        return True

    def _schedule_run(self) -> None:
        """Schedule `_run`, once."""
        if self._run_scheduled:
            return
        self._run_scheduled = True
        try:
            self._deps.call_soon(self._run)
        except BaseException:
            self._run_scheduled = False  # or `_run` would never be scheduled again
            raise

    def _run(self) -> None:
        """Scan queued messages, a few at a time, so that other sessions run in between."""
        self._run_scheduled = False
        batch: list[_PendingScan] = []
        size = 0
        while self._waiting and len(batch) < BATCH_MESSAGES and size < BATCH_BYTES:
            pending = self._waiting.take()
            if time.perf_counter() - pending.began > self._policy.wait_s:
                self._guarded([pending], partial(self._finish, pending, ScanFault("busy")))
                continue
            batch.append(pending)
            size += len(pending.raw)
            self._waiting.charge(pending.client, len(pending.raw))
        if self._waiting:
            self._schedule_run()
        self._guarded(batch, lambda: self._scan_batch(batch))

    def _scan_batch(self, batch: list[_PendingScan]) -> None:
        raws = [pending.raw for pending in batch]
        recipients = [pending.request.envelope.recipients for pending in batch]
        notes = [self._notes_of(pending) for pending in batch]
        found = self._session.scan(raws, notes, recipients)
        for pending, one in zip(batch, found, strict=True):
            self._guarded([pending], partial(self._finish, pending, one))

    def _notes_of(self, pending: _PendingScan) -> Notes:
        request, plan = pending.request, self._session.plan
        described = plan.history.keep_subject
        notes = notes_of(request, self._policy.listener, described=described)
        if described and plan.persons is not None:
            notes |= author_notes(request)
        if pending.auth:
            notes["auth"] = pending.auth
        if reason := pending.rulings.reason(request.envelope.recipients):
            notes["list"] = reason
        if pending.observed:
            notes["observed"] = observed_by(pending.observed, self._policy.listener)
        elif not pending.advised and not pending.rulings.own and plan.persons is None:
            notes["actions"] = self._actions_of(pending)
        if self._policy.other:
            head = request.raw[: request.header_bytes]
            notes |= other_notes(head, self._session.plan.local.hosts, self._policy.other)
        return notes

    def _actions_of(self, pending: _PendingScan) -> str:
        """The action for each decision, in the order of `DECISIONS`: the history has the verdict.

        The notes are written together with the verdict, before the action is known.
        """
        request, ruling = pending.request, pending.rulings.for_all
        ruled = (ruling.decide(one) if ruling else one for one in DECISIONS)
        return " ".join(
            self._policy.action_policy.of(
                one,
                request.envelope.recipients,
                refusable=request.before_queue,
                whole=request.whole,
            )
            for one in ruled
        )

    def _guarded(
        self, batch: list[_PendingScan], run: Callable[[], None], where: str = "scan"
    ) -> None:
        """Run a step; after an exception each message without a result gets the one for faults."""
        try:
            run()
        except Exception as error:  # noqa: BLE001 - the boundary: the client needs a reply
            fault = ScanFault("fault", incident(self._deps.log, where, error))
            for pending in batch:
                if pending.open:
                    self._answer_unscanned(pending, fault)

    # -- verdict to result ----------------------------------------------------------------------

    def _finish(self, pending: _PendingScan, found: Found) -> None:
        if isinstance(found, ScanFault):
            self._not_scanned(pending, found)
            return
        request = pending.request
        envelope, rulings = request.envelope, pending.rulings
        if self._policy.before_mailboxes and len(envelope.recipients) > 1:
            self._deps.meters.count("mailboxes_together")
        is_served = self._policy.served.holds(envelope.recipients, outgoing=pending.is_own)
        ruled = rulings.applied(found)
        shown = shown_verdict(ruled, envelope.recipients)
        verdict = shown._replace(
            signature=found.signature if is_served else "",
            reason=shown.reason or ("" if request.whole else "head"),
        )
        mail_action = self._mail_action(request, ruled)
        facts: dict[str, object] = {
            "verdict": verdict.label,
            "probability": round(verdict.probability, 6),
            "decision": verdict.decision,
            "mail_action": mail_action,
            "reason": verdict.reason,
            "rule": rulings.entry,
            "signature": verdict.signature,
        }
        if pending.auth:
            facts["auth"] = pending.auth
        if pending.observed:
            facts["observed"] = True
            facts["observed_by"] = observed_by(pending.observed, self._policy.listener)
            add = signature_fields(verdict.signature)
            self._answer(pending, ScanResult("relay", add, facts=facts))
        else:
            self._handle(pending, verdict, mail_action, facts)

    def _mail_action(self, request: ScanRequest, verdict: ScanVerdict) -> MailAction:
        """The mildest action of all recipients, each by their own verdict."""
        groups: dict[Decision, list[str]] = {}
        for recipient in request.envelope.recipients:
            groups.setdefault(verdict.of(recipient).decision, []).append(recipient)
        actions = (
            self._policy.action_policy.of(
                decision, recipients, refusable=request.before_queue, whole=request.whole
            )
            for decision, recipients in (groups or {verdict.decision: []}).items()
        )
        return min(actions, key=MAIL_ACTIONS.index)

    def _handle(
        self,
        pending: _PendingScan,
        verdict: ScanVerdict,
        mail_action: MailAction,
        facts: dict[str, object],
    ) -> None:
        redirect = self._policy.redirect if mail_action == "redirect" else ""
        add = scanned_fields(verdict, self._junk_log_odds, redirect=redirect, version=_VERSION)
        add += () if pending.advised else pending.results
        tag = self._policy.tag.encode() if mail_action == "tag" else b""
        if pending.advised:
            score = score_of(verdict, self._junk_log_odds)
            advice = Advice(verdict, mail_action, score, self._reject_score)
            self._answer(pending, ScanResult("relay", add, tag, facts=facts, advice=advice))
        elif mail_action == "quarantine":
            self._keep(pending, add, facts)
        elif mail_action == "reject":
            self._answer(pending, ScanResult("refuse", add, reply=REFUSED_REPLY, facts=facts))
        else:
            self._answer(pending, ScanResult("relay", add, tag, facts=facts))

    def _keep(self, pending: _PendingScan, add: Fields, facts: dict[str, object]) -> None:
        quarantine, request = self._deps.quarantine, pending.request

        def work() -> str:
            stored = add_to_message(request.raw, add)
            return quarantine.keep(stored, request.envelope, facts)

        def then(kept: str | Exception) -> None:
            self._guarded([pending], partial(self._kept, pending, add, facts, kept))

        self._deps.run_in_thread(partial(attempt, work), then)

    def _kept(
        self, pending: _PendingScan, add: Fields, facts: dict[str, object], kept: str | Exception
    ) -> None:
        if isinstance(kept, str):
            facts["quarantine"] = kept
            withdraw = partial(self._withdraw, kept)
            result = ScanResult(
                "keep", add, reply=KEPT_REPLY + kept.encode(), withdraw=withdraw, facts=facts
            )
        else:
            facts["mail_action"] = "headers"
            full = isinstance(kept, StoreFullError)
            facts["reason"] = "quarantine-full" if full else "quarantine-fault"
            facts["incident"] = incident(self._deps.log, "quarantine", kept)
            self._deps.meters.count("faults")
            result = ScanResult("relay", add, facts=facts)
        self._answer(pending, result)

    def _withdraw(self, kept: str) -> None:
        """Delete a message from quarantine that was stored after the client got another reply."""
        quarantine, log = self._deps.quarantine, self._deps.log

        def then(error: Exception | None) -> None:
            record: dict[str, object] = {"event": "kept too late", "quarantine": kept}
            if error is not None:
                record["incident"] = incident(log, "quarantine", error)
            log(record | {"level": "warning", "withdrawn": error is None})

        self._deps.run_in_thread(partial(attempt, partial(quarantine.delete, kept)), then)

    def _not_scanned(self, pending: _PendingScan, fault: ScanFault) -> None:
        """Scan the header alone if allowed, else return the result for an unscanned message."""
        reason = fault.reason
        may_try = reason == "known_crasher" and self._policy.fallback_for(reason) == "head"
        if not may_try or pending.by_header or not self._offload_header(pending):
            self._answer_unscanned(pending, fault)

    def _answer_unscanned(self, pending: _PendingScan, fault: ScanFault) -> None:
        reason = fault.reason if fault.reason in REASONS else "fault"
        facts: dict[str, object] = {"verdict": "unscanned", "reason": reason}
        if fault.incident:
            facts["incident"] = fault.incident
        if self._policy.fallback_for(reason, observed=pending.observed is not None) == "defer":
            reply = BUSY_REPLY if reason == "busy" else DEFERRED_REPLY
            result = ScanResult("defer", reply=reply, facts=facts)
        else:
            add = () if pending.observed else unscanned_fields(reason)
            result = ScanResult("relay", add, facts=facts)
        self._answer(pending, result)

    def _answer(self, pending: _PendingScan, result: ScanResult) -> None:
        """Call back once; an exception there does not cause a second call."""
        if not pending.open:
            if result.withdraw is not None:
                result.withdraw()
            return
        pending.open = False
        took = time.perf_counter() - pending.began
        result.facts["scan_ms"] = round(took * 1000, 3)
        if result.facts["verdict"] == "unscanned":
            self._count_unscanned(result)
        else:
            self._count_scanned(pending, result.facts, took)
        self._guarded([], partial(pending.done, result), "answer")
        if self._deps.shadow is not None and not pending.is_own and pending.request.whole:
            work = partial(self._deps.shadow.offer, pending.request.raw, result.facts)
            self._guarded([], work, "trial")

    def _count_check(self, results: str) -> None:
        self._deps.meters.count("senders_checked")
        self._deps.meters.count("senders_unanswered", "=temperror" in results)

    def _count_unscanned(self, result: ScanResult) -> None:
        meters, reason = self._deps.meters, result.facts["reason"]
        meters.count("faults", reason in FAULTS)
        meters.count("scan_overruns", reason == "overrun")
        if result.action == "defer":
            meters.count("unscanned_deferred")
        else:
            meters.count("unscanned")
            meters.count(f"unscanned_{reason}")

    def _count_scanned(self, pending: _PendingScan, facts: dict[str, object], took: float) -> None:
        meters = self._deps.meters
        meters.count("scanned")
        meters.count("scanned_head", not pending.request.whole)
        meters.count(f"decision_{facts['decision']}")
        meters.count("observed" if pending.observed else f"mail_action_{facts['mail_action']}")
        if pending.observed:
            meters.count(f"observed_{pending.observed}")
        meters.observe("scan_seconds", took)

    def _own_by(self, request: ScanRequest) -> Observed | None:
        """By which setting one of the site's own clients sent it; None for all other clients."""
        client = request.envelope.client
        if client.source.upper() == "LOCAL" and self._policy.local == "observe":
            return "local"
        return "own_clients" if self._own.find(client.address) else None
