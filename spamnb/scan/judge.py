"""Judge a message: verdicts with a model that may be replaced or missing, recorded in the history.

session = ModelSession(SessionConfig(home), crash_register=register, log=log)
session.scan([raw, ...], [notes, ...]) -> [ScanVerdict | ScanFault, ...]    never raises
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from spamnb.engine.filter import ONE_IN, Filter, Pins
from spamnb.engine.scoring import with_costs
from spamnb.engine.values import Example
from spamnb.errors import SpamnbError, StoreBusyError
from spamnb.mail.envelope import LocalHosts, domain_of
from spamnb.mail.headers import shown_field
from spamnb.mail.message import parted
from spamnb.mail.other_filters import read_mark
from spamnb.mail.site_results import border_mark
from spamnb.model.costs import DECISIONS, Costs, roles_of
from spamnb.model.verdict import Clue, Verdict
from spamnb.policy.actions import LEAST_MESSAGES, PersonNames, RecipientCosts, limit_while_untrained
from spamnb.policy.headers import (
    ScanVerdict,
    add_to_message,
    header_end,
    junk_threshold,
    scanned_fields,
    verdict_for,
)
from spamnb.policy.senders import (
    ListOwner,
    OwnerKind,
    RecipientLists,
    SenderEvidence,
    SenderList,
    sender_form,
)
from spamnb.records.correspondents import Correspondents
from spamnb.records.verdicts import History
from spamnb.scan.values import Notes, ScanRequest
from spamnb.settings.values import HistoryLimits
from spamnb.store.model_store import DATA_FILE, open_store
from spamnb.telemetry import Log, incident, silent

_MAX_RECIPIENT_BYTES: Final = 16_384
"""for some 500 recipients in a history entry; others cannot correct by reference alone"""
_MAX_NOTE_CHARS: Final = 256
_MAX_SENDER_CHARS: Final = 128
_MAX_SHOWN_CHARS: Final = 160
_END_CHARS: Final = 80
_MAX_MARK_CHARS: Final = 512
_NO_HOSTS: Final = LocalHosts()
_BLANK = re.compile(r"\s")


def notes_of(request: ScanRequest, listener: str = "", *, described: bool = False) -> Notes:
    """What the history stores beside the verdict.

    `to`: the recipients that the next hop accepted, joined by blanks, to check a later corrector's
    ownership; `client`, `queue`: as trusted peers named them. An address with a blank in it
    (quoted) would look like two, so it is left out. If the message is `described`, also `from` (the
    envelope's sender), `header_from` (the field, if it says more), `subject`, `size` in bytes and
    `listener`, by which an administrator finds a verdict.
    """
    envelope = request.envelope
    kept, left = [], _MAX_RECIPIENT_BYTES
    for recipient in envelope.recipients:
        left -= len(recipient) + 1
        if left < 0:
            break
        if not _BLANK.search(recipient):
            kept.append(recipient)
    notes = {
        "to": " ".join(kept),
        "client": envelope.client.address[:_MAX_NOTE_CHARS],
        "queue": envelope.client.ident[:_MAX_NOTE_CHARS],
    }
    if described:
        head = request.raw[: request.header_bytes]
        header_from = _cut(shown_field(head, b"from"), _END_CHARS)
        notes |= {
            "from": envelope.sender[:_MAX_SENDER_CHARS],
            "header_from": header_from if header_from != envelope.sender else "",
            "subject": _cut(shown_field(head, b"subject")),
            "size": str(len(request.raw)),
            "listener": listener,
        }
    return {name: text for name, text in notes.items() if text}


def _cut(value: str, end: int = 0) -> str:
    """Cut a long text before its last `end` characters: in From, these are the address."""
    if len(value) <= _MAX_SHOWN_CHARS:
        return value
    return value[: _MAX_SHOWN_CHARS - end - 1] + "…" + value[len(value) - end :]


def author_notes(request: ScanRequest) -> Notes:
    """The note `author`, which a user may want or not: the one address in From.

    It takes 8 us, and is left out if it is the sender of the envelope.
    """
    head, sender = request.raw[: request.header_bytes], request.envelope.sender
    found = SenderEvidence(head, _NO_HOSTS, "").may_claim
    is_other = len(found) == 1 and sender_form(found[0]) != sender_form(sender)
    return {"author": found[0][:_MAX_SENDER_CHARS]} if is_other else {}


def other_notes(header: bytes, hosts: Collection[str], other: str) -> Notes:
    """What another filter said of a message, by its marks: the note `other`, if there are any."""
    mark = read_mark(header, hosts, other)
    return {"other": mark.text()[:_MAX_MARK_CHARS]} if mark is not None else {}


def known_note(verdict: Verdict) -> Notes:
    """The share of the message's features that the model knew, in percent."""
    return {"known": f"{100 * verdict.known:.0f}"}


Result = TypeVar("Result")

_MAX_PAUSE_S: Final = 60.0
_HISTORY_PAUSE_S: Final = 10.0
_CHECK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What to scan with."""

    home: Path
    """the model's folder"""
    local: LocalHosts = field(default_factory=LocalHosts)
    costs: Costs = field(default_factory=Costs)
    one_in: int = ONE_IN
    """at most one in so many ham is to be filed; 0: the shipped threshold of junk"""
    history: HistoryLimits = field(default_factory=HistoryLimits)
    clues: int = 0
    """how many of the strongest clues each verdict brings; each costs time and reveals words"""
    persons: PersonNames | None = None
    """who the recipients are; None: no recipient has corrections of their own"""
    recipient_costs: RecipientCosts = field(default_factory=RecipientCosts)
    """which recipients have costs of their own"""
    least_messages: int = LEAST_MESSAGES
    correspondents: bool = False
    """whether the people are remembered whom the site's users write to"""
    host_mark: bytes = b""
    """first bytes of all signatures, which name this host among several"""
    pins: Callable[[Path], Pins] | None = None
    """opens the corrections of a home that wait; their messages are judged as those say"""


class ScanFault(NamedTuple):
    """Why a message was not scanned."""

    reason: str
    """one of `REASONS`"""
    incident: str = ""
    """the id of the log record with details"""


Found = ScanVerdict | ScanFault
Recipients = Sequence[str]
"""recipients of one message, as its envelope names them"""


class _Job(NamedTuple):
    """A message to scan."""

    raw: bytes
    notes: Notes
    recipients: Recipients


class CrashRegister(Protocol):
    """Remembers which messages a process was scanning when it crashed."""

    def is_known_crasher(self, digest: bytes) -> bool:
        """Whether a process crashed on this message."""

    def mark(self, digest: bytes) -> None:
        """Record that the scan of a message begins."""

    def release(self) -> None:
        """Unmark all marked messages: they are scanned."""


class NoCrashRegister:
    """Remembers nothing: for a process without a supervisor."""

    def is_known_crasher(self, digest: bytes) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False."""
        return False

    def mark(self, digest: bytes) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


def digest_of(raw: bytes) -> bytes:
    """The digest that identifies a crashing message: 5 us for 5 KB."""
    return blake2b(raw, digest_size=16).digest()


def attempt(work: Callable[[], Result]) -> Result | Exception:
    """The result of a step of a scan, or its exception: the one boundary of scanning.

    Whatever fails, the mail has to pass by the policy for faults.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the caller logs it and answers the client
        return error


class ModelSession:
    """A model and its history, as far as they can be opened.

    One session serves one process and is opened on first use: the model read-only, the history for
    writing. Messages scanned together share one snapshot of the model and one history write. The
    mail path's workers and their scan processes use it; a scan process replies with `scan_to_json`,
    plain values for JSON. Must not know envelopes, lists or sockets.

    Every failure is a result. No model, or a damaged one: ScanFault "model"; the model is opened
    again after 1, 2, 4 ... 60 seconds. A model that was replaced on disk is reopened. A message
    that raises: ScanFault "fault" with an incident id; the others of its batch are scanned. A
    message that crashed an earlier process: "known_crasher". A history that cannot be written (disk
    full) costs the signature only, and is tried again after ten seconds.
    """

    def __init__(
        self,
        plan: SessionConfig,
        *,
        crash_register: CrashRegister | None = None,
        log: Log = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.crash_register: CrashRegister = crash_register or NoCrashRegister()
        self._log = log
        self._clock = clock
        self._model: Filter | None = None
        self._data = plan.home / DATA_FILE
        self._inode = (0, 0)
        self._next_check = 0.0
        self._is_trained = False
        self._counted_seq = -1
        """the last event when the model's own messages were counted"""
        self._listless_at = -1
        """`last_change` of the model when it had no list of senders"""
        self._pause_s = 0.0
        self._next_try = 0.0
        self._history_next = 0.0
        self._correspondents: Correspondents | None = None
        self._correspondents_next = 0.0

    def scan(
        self,
        raws: Sequence[bytes],
        notes: Sequence[Notes],
        recipients: Sequence[Recipients] = (),
    ) -> list[Found]:
        """The verdicts of at most `BATCH_MESSAGES` messages; never raises.

        `recipients` are those of each message, who may have verdicts of their own.
        """
        jobs = [_Job(*one) for one in zip(raws, notes, recipients or [()] * len(raws), strict=True)]
        digests = [digest_of(raw) for raw in raws]
        fresh = [
            at
            for at, digest in enumerate(digests)
            if not self.crash_register.is_known_crasher(digest)
        ]
        found: list[Found] = [ScanFault("known_crasher")] * len(raws)
        try:
            for at in fresh:
                self.crash_register.mark(digests[at])
            answers = self._scan([jobs[at] for at in fresh])
        finally:
            self.crash_register.release()
        for at, answer in zip(fresh, answers, strict=True):
            found[at] = answer
        return found

    def personal(
        self, raw: bytes, message: SenderEvidence, recipients: Recipients
    ) -> Mapping[str, ScanVerdict]:
        """The verdicts of recipients with their own, on a message scanned before; never raises.

        The recipients' lists of senders decide as in a scan. The administrator's lists have decided
        in the earlier scan.
        """
        found = attempt(partial(self._judge_again, raw, recipients))
        if isinstance(found, Exception):
            self._failed(found)
            return {}
        if found is None:
            return {}
        rulings = self.sender_lists(recipients).rulings(message)
        named = recipients if rulings.for_all else {**found.personal, **rulings.own}
        ruled = rulings.applied(found)
        return {one: ruled.of(one) for one in named}

    def _judge_again(self, raw: bytes, recipients: Recipients) -> ScanVerdict | None:
        model = self._open()
        if model is None:
            return None
        feature_batch = model.reader.feature_batch([raw])
        (verdict,) = model.score_batches([feature_batch])
        self._look_whether_trained(model)
        given = verdict, feature_batch.example(0)
        personal = self._scan_verdicts(self._personal(model, given, recipients))
        return self._scan_verdict(verdict)._replace(personal=personal)

    def is_known_crasher(self, raw: bytes) -> bool:
        """Whether a process crashed on this message."""
        return self.crash_register.is_known_crasher(digest_of(raw))

    def prepare(self) -> None:
        """Open the model now, if possible, so that the first message need not wait."""
        self._open()

    def correspondents(self) -> Correspondents | None:
        """Whom the site's users write to; None if that is not remembered, or cannot be read."""
        is_due = self.plan.correspondents and self._clock() >= self._correspondents_next
        if is_due and self._correspondents is None:
            found = attempt(self._open_correspondents)
            if isinstance(found, Exception):
                incident(self._log, "correspondents", found)
                self._correspondents_next = self._clock() + _MAX_PAUSE_S
                return None
            self._correspondents = found
        return self._correspondents

    def _open_correspondents(self) -> Correspondents | None:
        model = self._open()
        return Correspondents(self.plan.home, model.recipe.key) if model is not None else None

    def owner_of(self, address: str) -> str | None:
        """The person whose correspondents count for an address; None if it is no person's."""
        names = self.plan.persons
        return "" if names is None else names.of(address) or None

    def close(self) -> None:
        """Close the model; it is opened again when needed."""
        model, self._model = self._model, None
        known, self._correspondents = self._correspondents, None
        if known is not None:
            known.close()
        if model is not None:
            model.close()

    @property
    def local(self) -> LocalHosts:
        """The names of the site; with the key that proves results if there is a usable model."""
        model = attempt(self._open)
        usable = None if isinstance(model, Exception) else model
        return self.plan.local if usable is None else usable.reader.local

    def border(self, raw: bytes, queue: str) -> str:
        """The value of X-Spamnb-Border above a message from outside; empty without a model."""
        local = self.local
        block, body = parted(raw, local, set())
        return border_mark(block, body, local, queue.encode("ascii", "replace"))

    def sender_lists(self, recipients: Recipients) -> RecipientLists:
        """The lists of senders for these recipients; none if they cannot be read."""
        found = attempt(partial(self._sender_lists, recipients))
        if isinstance(found, Exception):
            incident(self._log, "senders", found)
            return RecipientLists()
        return found

    def _sender_lists(self, recipients: Recipients) -> RecipientLists:
        model, plan = self._open(), self.plan
        # Most models have no lists; then a message costs 1 us, and not the 9 us of a snapshot.
        if model is None or (change := model.store.last_change()) == self._listless_at:
            return RecipientLists()
        with model.store.read() as view:
            if next(view.sender_lists(), None) is None:
                self._listless_at = change
                return RecipientLists()

            @cache
            def lists(kind: OwnerKind, name: str) -> tuple[SenderList, ...]:
                owner = ListOwner(kind, name, model.person(name))
                found = view.senders(owner.key) if name or kind == "site" else None
                return (found,) if found else ()

            @cache
            def joined(name: str, domain: str) -> tuple[SenderList, ...]:
                own = lists("person", name) + lists("domain", domain)
                return own + lists("site", "") if own else ()

            keys = {
                one: (
                    plan.persons.of(one) if plan.persons else "",
                    domain_of(one) or plan.recipient_costs.login_domain,
                )
                for one in recipients
            }
            own = {one: mine for one, key in keys.items() if (mine := joined(*key))}
            return RecipientLists(lists("site", ""), own)

    # -- scanning -------------------------------------------------------------------------------

    def _scan(self, jobs: list[_Job]) -> list[Found]:
        found = attempt(partial(self._score_batch, jobs)) if jobs else []
        if not isinstance(found, Exception):
            return found
        if len(jobs) == 1:
            return [self._failed(found)]
        return [self._scan([job])[0] for job in jobs]

    def _score_batch(self, jobs: list[_Job]) -> list[Found]:
        model = self._open()
        if model is None:
            return [ScanFault("model")] * len(jobs)
        feature_batch = model.reader.feature_batch([job.raw for job in jobs])
        verdicts = model.score_batches([feature_batch])
        personal: list[dict[str, Verdict]] = [{}] * len(jobs)
        if self.plan.persons is not None or self.plan.recipient_costs:
            personal = [
                self._personal(model, (verdict, feature_batch.example(at)), job.recipients)
                for at, (verdict, job) in enumerate(zip(verdicts, jobs, strict=True))
            ]
        self._look_whether_trained(model)
        shown = [
            verdict_for(verdict, mine, job.recipients)
            for verdict, mine, job in zip(verdicts, personal, jobs, strict=True)
        ]
        if self._clock() >= self._history_next:
            try:
                notes = [
                    job.notes | known_note(one) for job, one in zip(jobs, verdicts, strict=True)
                ]
                shown = model.remember([feature_batch], shown, notes)
            except (SpamnbError, OSError) as error:  # a verdict without a signature is better
                self._history_next = self._clock() + _HISTORY_PAUSE_S
                incident(self._log, "history", error)
        return [
            self._scan_verdict(verdict)._replace(
                signature=one.signature,
                personal=self._scan_verdicts(mine),
            )
            for verdict, mine, one in zip(verdicts, personal, shown, strict=True)
        ]

    def _personal(
        self, model: Filter, given: tuple[Verdict, Example], recipients: Recipients
    ) -> dict[str, Verdict]:
        """The verdicts of recipients with corrections or costs of their own."""
        plan = self.plan
        names = {one: plan.persons.of(one) if plan.persons else "" for one in recipients}
        persons = {one: model.person(name) for one, name in names.items()}
        corrected = self._corrected(model, given, set(persons.values()) - {0})
        # Recipients of one domain share a verdict: the decision is made once for all of them.
        keys = {
            one: (person if person in corrected else 0, plan.recipient_costs.of(one, names[one]))
            for one, person in persons.items()
        }
        made = {
            (person, own): with_costs(corrected.get(person, given[0]), own)
            for person, own in set(keys.values()) - {(0, None)}
        }
        return {one: made[key] for one, key in keys.items() if key in made}

    def _corrected(
        self, model: Filter, given: tuple[Verdict, Example], persons: set[int]
    ) -> dict[int, Verdict]:
        """The verdicts of persons with corrections; none if these cannot be read."""
        if not persons:
            return {}
        explained = self.plan.clues > 0
        found = attempt(partial(model.personal_verdicts, given, persons, explained=explained))
        if isinstance(found, Exception):
            incident(self._log, "persons", found)
            return {}
        return found

    def _look_whether_trained(self, model: Filter) -> None:
        """Count the model's own messages, if any were learnt since the last look."""
        if self._is_trained:
            return
        with model.store.read() as view:
            seq = view.totals().last_seq
            if seq != self._counted_seq:
                most = self.plan.least_messages
                self._is_trained = _smaller_side(model.labels, view.learnt(most)) >= most
                self._counted_seq = seq

    def _scan_verdicts(self, mine: Mapping[str, Verdict]) -> dict[str, ScanVerdict]:
        """The verdict of each recipient; a shared one is made once, because clues take long."""
        distinct = {id(one): one for one in mine.values()}
        made = {key: self._scan_verdict(one) for key, one in distinct.items()}
        return {name: made[id(one)] for name, one in mine.items()}

    def _scan_verdict(self, verdict: Verdict) -> ScanVerdict:
        decision = (
            verdict.decision if self._is_trained else limit_while_untrained(verdict.decision, 0, 1)
        )
        return ScanVerdict(
            label=verdict.label,
            probability=verdict.probability,
            log_odds=verdict.spam_log_odds,
            decision=decision,
            signature=verdict.signature,
            reason=verdict.reason if decision == verdict.decision else "untrained",
            clues=tuple(verdict.clues(self.plan.clues)) if self.plan.clues else (),
        )

    def _failed(self, error: Exception) -> ScanFault:
        fault = ScanFault("fault", incident(self._log, "scan", error))
        if isinstance(error, SpamnbError) and not isinstance(error, StoreBusyError):
            self._close_and_back_off()
        return fault

    # -- opening the model ----------------------------------------------------------------------

    def _open(self) -> Filter | None:
        """The model that is on disk now; None while there is no usable one."""
        if self._model is not None:
            if self._is_current():
                return self._model
            self.close()
            self._pause_s = self._next_try = 0.0
        if self._clock() < self._next_try:
            return None
        opened = attempt(self._opened)
        if isinstance(opened, Exception):
            incident(self._log, "model", opened)
            self._close_and_back_off()
            return None
        self._model = opened
        self._pause_s, self._is_trained = 0.0, False
        self._counted_seq = self._listless_at = -1
        return opened

    def _opened(self) -> Filter:
        plan = self.plan
        self._inode = self._identity()
        store = open_store(plan.home, readonly=True)
        history = self._open_history()
        model = Filter(
            store, history=history, local=plan.local, costs=plan.costs, one_in=plan.one_in
        )
        model.host_mark = plan.host_mark
        model.pins = plan.pins(plan.home) if plan.pins else None
        return model

    def _open_history(self) -> History | None:
        """The history, if it can be opened; without it verdicts have no signatures."""
        plan = self.plan
        try:
            history = History.open(plan.home / "history", plan.history)
        except (SpamnbError, OSError) as error:  # a verdict without a signature is better
            incident(self._log, "history", error)
            return None
        if history.warning:
            self._log({"event": "history", "level": "warning", "text": history.warning})
        return history

    def _close_and_back_off(self) -> None:
        self.close()
        self._pause_s = min(_MAX_PAUSE_S, 2 * self._pause_s or 1.0)
        self._next_try = self._clock() + self._pause_s

    def _identity(self) -> tuple[int, int]:
        found = self._data.stat()
        return found.st_dev, found.st_ino

    def _is_current(self) -> bool:
        """Whether the open file is still the one at its path; checked once a second.

        If there is no file at the path, the open one is still used: a new one may follow soon.
        """
        if self._clock() < self._next_check:
            return True
        self._next_check = self._clock() + _CHECK_S
        try:
            return self._identity() == self._inode
        except OSError:
            return True


def _smaller_side(labels: tuple[str, ...], learnt: list[int]) -> int:
    """The number of taught messages of ham or spam, whichever is smaller."""
    roles = roles_of(labels)
    return min(
        sum(n for n, role in zip(learnt, roles, strict=True) if role == side)
        for side in ("ham", "spam")
    )


# -- across processes ---------------------------------------------------------------------------


def scan_to_json(
    model_session: ModelSession,
    raw: bytes,
    notes: Mapping[str, str],
    recipients: Recipients = (),
) -> dict[str, Any]:
    """A scan process's result for one message: plain values for `verdict_from_json`."""
    return model_session.scan([raw], [dict(notes)], [recipients])[0]._asdict()


def verdict_from_json(answer: Mapping[str, Any]) -> Found:
    """The verdict or fault in a scan process's result."""
    if "decision" not in answer:
        return ScanFault(str(answer["reason"]), str(answer.get("incident", "")))
    personal = {name: _from_list(one) for name, one in answer.get("personal", {}).items()}
    return _from_list(ScanVerdict(**answer))._replace(personal=personal)


def _from_list(values: Iterable[Any]) -> ScanVerdict:
    """A verdict whose clues JSON has made lists."""
    verdict = ScanVerdict(*values)
    return verdict._replace(clues=tuple(Clue(*clue) for clue in verdict.clues))


MOST_BYTES: Final = 1 << 20
"""larger messages keep their verdict: a scan of this size takes up to 0.2 s"""
_FIELD = re.compile(rb"^X-Spamnb-(Verdict|Signature):((?:[^\n]|\n[ \t])*)", re.MULTILINE)
_DECISIONS: Final = tuple(f"{one};".encode() for one in DECISIONS)


class PersonalCopies:
    """Judges messages again for their recipients; used by several threads.

    The delivery agent writes these copies. The message was scanned before, by the relay or another
    listener, so nothing is added to the history, and the signature stays. A verdict with a reason
    stays too: it is that of an access list, or of a scan that was limited. Must not know protocols
    or files.

    Failure: none; after a fault of the model there are no copies, and all get the message as it
    came.
    """

    def __init__(self, plan: SessionConfig, log: Log) -> None:
        self._log = log
        self._lock = Lock()
        self._session = ModelSession(plan, log=log)

    def apply_settings(self, plan: SessionConfig) -> None:
        """Judge by other settings from now on."""
        with self._lock:
            self._session.close()
            self._session = ModelSession(plan, log=self._log)

    @property
    def is_needed(self) -> bool:
        """Whether recipients may have verdicts of their own."""
        plan = self._session.plan
        return plan.persons is not None or bool(plan.recipient_costs)

    def of(self, raw: bytes, sender: str, recipients: Sequence[str]) -> Mapping[str, bytes]:
        """The message with LF line ends for each recipient with a verdict of their own."""
        end = header_end(raw)
        header = raw if end < 0 else raw[:end]
        signature = _signature_to_keep(header)
        if signature is None or len(raw) > MOST_BYTES:
            return {}
        with self._lock:
            plan = self._session.plan
            message = SenderEvidence(header, self._session.local, sender, raw)
            verdicts = self._session.personal(raw, message, recipients)
            junk = junk_threshold(plan.costs)
        rest = raw[len(header) :]
        return {
            one: _replaced(header, verdict._replace(signature=signature), junk) + rest
            for one, verdict in verdicts.items()
        }


def _signature_to_keep(header: bytes) -> str | None:
    """The signature of a message with a verdict of the model; None if it has another verdict."""
    found: dict[bytes, bytes] = {
        name: text.strip() for name, text in reversed(_FIELD.findall(header))
    }
    verdict = found.get(b"Verdict", b"")
    if not verdict.startswith(_DECISIONS) or b"reason=" in verdict:
        return None
    return str(found.get(b"Signature", b""), "ascii", "replace")


def _replaced(header: bytes, verdict: ScanVerdict, junk_log_odds: float) -> bytes:
    version: str = sys.modules["spamnb"].__version__
    fields = scanned_fields(verdict, junk_log_odds, version=version)
    return add_to_message(header, fields).replace(b"\r\n", b"\n")
