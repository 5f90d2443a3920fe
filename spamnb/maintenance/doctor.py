"""Checks of an installation: `spamnb doctor`.

`Doctor` sends a test message, checks each step from delivery to learning, and removes it again.
`ModelRecords` has what the records of a home contain about the message. The caller passes mailbox,
transport and records: must not know protocols, files or terminals. Failure: SpamnbErrors; the hint
of an error takes precedence over the table's. The checks, each after those on its left:

    daemon > next hops > model > persons > mailbox > delivery > arrival > headers > hosts > results
           > filing > marked mail > verdict > move > learning > person > score > move back
           > learning again
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from spamnb.engine.filter import Filter
from spamnb.errors import PeerError, RefError, SpamnbError, UserError
from spamnb.feedback.review import ReviewItem, ReviewQueue
from spamnb.feedback.values import Answer, Feedback
from spamnb.mail.envelope import BY, LocalHosts
from spamnb.mail.message import parted
from spamnb.mail.results import passed_domains
from spamnb.mail.site_results import STATEMENT
from spamnb.model.events import NO_LABEL, Totals
from spamnb.model.verdict import Verdict, signature_bytes
from spamnb.policy.actions import LEAST_MESSAGES, PersonNames, pairing_fault
from spamnb.policy.headers import marked_message_id
from spamnb.records.verdicts import HistoryEntry
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.scanner import REFUSED_REPLY
from spamnb.telemetry import now_us

Forget = Callable[[Feedback], Answer]
"""passes a feedback to the feedback service; raises if it is refused"""


_LOOKED_BACK = 1000
"""newest events, of which the users are checked"""


class JournalEntry(NamedTuple):
    """One journal event of a message."""

    event: int
    label: str | None
    """None if the message was forgotten"""
    user: str
    channel: str


class Snapshot(NamedTuple):
    """The model's sums at a time."""

    time_us: int
    totals: Totals


class ModelRecords:
    """The records of one home.

    Reads the journal, the history, the review queue and the quarantine of one home, while other
    processes may write them. Its only changes: it asks the feedback service to forget the message,
    and deletes the message from review queue and quarantine.
    """

    def __init__(
        self,
        opened: Callable[[], Filter],
        home: Path,
        forget: Forget,
        names: PersonNames | None = None,
    ) -> None:
        self._names = names
        self._opened = opened
        self._model = opened()
        self._home = home
        self._forget = forget
        self.labels = self._model.labels

    def close(self) -> None:
        self._model.close()

    def snapshot(self) -> Snapshot:
        """Return the current sums of the model."""
        with self._model.store.read() as view:
            return Snapshot(now_us(), view.totals())

    def learnt(self) -> dict[str, int]:
        """Return the number of messages of each label."""
        counts: list[int] = self.snapshot().totals.messages.tolist()
        return dict(zip(self.labels, counts, strict=True))

    def own(self, most: int) -> dict[str, int]:
        """Return the number of messages of each label without imports, at most `most` of each."""
        with self._model.store.read() as view:
            return dict(zip(self.labels, view.learnt(most), strict=True))

    def events_since(self, message_id: str, since: Snapshot) -> list[JournalEntry]:
        """Return the journal events of a message since a snapshot, oldest first."""
        with self._model.store.read() as view:
            return [
                JournalEntry(event.seq, self._name(event.after), event.user, event.channel)
                for event in view.events(since.totals.last_seq + 1)
                if event.message_id == message_id
            ]

    def _name(self, label: int) -> str | None:
        return None if label == NO_LABEL else self.labels[label]

    def teachers(self) -> set[str]:
        """Return the users of the newest labels of persons."""
        with self._model.store.read() as view:
            newest = (view.event(seq) for seq, _ in view.last_events(_LOOKED_BACK))
            return {event.user for event in newest if event and event.person}

    def verdict(self, raw: bytes, signature: str, user: str) -> Verdict:
        """Return the current verdict for a user, with the features as scanned if known."""
        person = self._model.person(self._names.of(user)) if self._names else 0
        with suppress(RefError):
            return self._model.explain(signature, person=person)
        return self._model.score(raw, remember=False, person=person)

    @property
    def local(self) -> LocalHosts:
        """Return the names of the site, with the key of the model."""
        return self._model.reader.local

    def history_entry(self, signature: str) -> HistoryEntry | None:
        """Return the history entry of a signature; None if there is none."""
        history = self._model.history
        found = history.find(signature=signature_bytes(signature)) if history else []
        return found[0] if found else None

    def in_review(self, message_id: str) -> list[ReviewItem]:
        """Return the feedback on the message in the review queue."""
        entries = ReviewQueue(self._home / "review").entries()
        return [entry for entry in entries if entry.message_id == message_id]

    def quarantined(self, message_id: str, since: Snapshot) -> list[str]:
        """Return the ids of the message in quarantine."""
        kept = Quarantine(self._home / "quarantine")
        found, wanted = [], message_id.encode()
        for entry in kept.messages():
            if entry.time_us >= since.time_us:
                with suppress(RefError):
                    if wanted in kept.raw(entry.id):
                        found.append(entry.id)
        return found

    # -- removal --------------------------------------------------------------------------------

    def take_back(self, message_id: str, since: Snapshot) -> list[str]:
        """Forget the message and delete it from review queue and quarantine; return what failed."""
        steps = (self._forget_it, self._drop_reviews, self._drop_quarantined)
        faults = []
        for step in steps:
            try:
                step(message_id, since)
            except SpamnbError as error:
                faults.append(str(error))
        return faults

    def _forget_it(self, message_id: str, since: Snapshot) -> None:
        live = self._live(message_id, since)
        if not live:
            return
        # Without a daemon this process writes, which it cannot while its own store is read-only.
        self._model.close()
        try:
            for digest, person in live:
                self._forget(Feedback("", refs=(digest.hex(),), person=person))
        finally:
            self._model = self._opened()

    def _live(self, message_id: str, since: Snapshot) -> list[tuple[bytes, str]]:
        """Return digest and user of each label of a person, and the digest of each shared one."""
        with self._model.store.read() as view:
            taught = {
                event.label_key: (event.digest, event.user if event.person else "")
                for event in view.events(since.totals.last_seq + 1)
                if event.message_id == message_id
            }
            states = {key: view.live(key) for key in taught}
        live = [key for key, state in states.items() if state and state.label != NO_LABEL]
        return list(dict.fromkeys(taught[key] for key in live))

    def _drop_reviews(self, message_id: str, _: Snapshot) -> None:
        for entry in self.in_review(message_id):
            ReviewQueue(self._home / "review").drop(entry.name)

    def _drop_quarantined(self, message_id: str, since: Snapshot) -> None:
        for identity in self.quarantined(message_id, since):
            Quarantine(self._home / "quarantine").delete(identity)

    def difference(self, message_id: str, since: Snapshot) -> str:
        """Return how the message still affects the model; empty if it does not.

        Compares the sums with those of the snapshot, unless other messages were learnt meanwhile.
        """
        if self._live(message_id, since):
            return "the message is still learnt"
        with self._model.store.read() as view:
            now = view.totals()
            events = view.events(since.totals.last_seq + 1, now.last_seq + 1)
            others = any(event.message_id != message_id for event in events)
        return "" if others or _same(since.totals, now) else "the model's sums have changed"


def _same(one: Totals, other: Totals) -> bool:
    """Return whether two totals are equal except for the number of the last event."""
    names = ("messages", "tokens", "bias", "temperatures", "histogram")
    alike = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
    return alike and one.known == other.known


Side = Literal["inbox", "junk"]

SIDES: Final[tuple[Side, ...]] = ("inbox", "junk")
LABEL: Final[Mapping[Side, str]] = {"inbox": "ham", "junk": "spam"}
"""the label of messages in this folder"""
OTHER: Final[Mapping[Side, Side]] = {"inbox": "junk", "junk": "inbox"}


class FoundMessage(NamedTuple):
    """The test message, and the folder it was found in."""

    side: Side
    raw: bytes


class Mailbox(Protocol):
    """A user's mailbox."""

    @property
    def user(self) -> str:
        """Return the user's login or address."""

    @property
    def about(self) -> str:
        """Return a short description of the mailbox."""

    @property
    def channels(self) -> frozenset[str]:
        """Return the feedback channels that report moves in this mailbox."""

    @property
    def advice(self) -> str:
        """Return what to check if moves are not reported."""

    def find(self, ident: str) -> FoundMessage | None:
        """Return the message with this Message-ID in the inbox or in Junk; None if missing."""

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move the message; return the method used."""

    def purge(self, ident: str) -> int:
        """Delete the message from every folder; return from how many."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class DoctorPorts:
    """The doctor's dependencies; None if the user did not give the option."""

    status: Callable[[], dict[str, Any] | None]
    """returns the daemon's status; None if no daemon runs"""
    open_records: Callable[[], ModelRecords]
    open_mailbox: Callable[[], Mailbox] | None = None
    submit: Callable[[bytes, str], str] | None = None
    """submits a message for a recipient to the mail server; returns its reply"""
    rcpt: str = ""
    wait_s: float = 60.0
    """time limit for each step of another program"""
    next_hops: Callable[[], Sequence[tuple[str, str]]] = tuple
    """returns the faults of the servers that the daemon passes mail to, and what to do"""
    names: PersonNames | None = None
    """the rules for names of persons; None if persons are not enabled"""
    logins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """the logins that the settings name, with their addresses if they are known"""


def checked_recipient(text: str) -> str:
    """Return the address if it is valid in an SMTP command; raise UserError otherwise."""
    local, at, domain = text.rpartition("@")
    good = text.isascii() and text.isprintable() and not set(text) & set(' <>",;:')
    if not (good and at and local and domain):
        raise UserError(f"{text!r} is not a mail address", hint="give one like user@example.org")
    return text


Result = TypeVar("Result")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""between two polls, to limit the load on the mail server"""

_FORGED_DOMAIN: Final = "forged.spamnb.invalid"
_FORGED: Final = "Authentication-Results: {site}; spf=pass smtp.mailfrom={domain}\n"
"""a result that no server wrote, at the top of the test message"""

_TEXT: Final = """\
From: spamnb doctor <{rcpt}>
To: <{rcpt}>
Subject: spamnb doctor {token}
Message-ID: {ident}
Date: {date}
Auto-Submitted: auto-generated
MIME-Version: 1.0
Content-Type: text/plain; charset=us-ascii

spamnb doctor sent this message to check delivery and learning. It deletes the message
within minutes. If it is still here, delete it.
{token}
"""


@dataclass(slots=True)
class CheckRun:
    """The state of one run of the doctor."""

    ports: DoctorPorts
    ident: str = field(default_factory=lambda: f"<doctor.{secrets.token_hex(12)}@spamnb.invalid>")
    marked_ident: str = ""
    """the Message-ID of the message that asks to be marked as junk; empty if none was sent"""
    marked_found: bool = False
    records: ModelRecords | None = None
    mailbox: Mailbox | None = None
    snapshot: Snapshot | None = None
    """the model before the message was sent; None if it was not"""
    sent: bool = False
    found: FoundMessage | None = None
    signature: str = ""
    before: Verdict | None = None
    moves: int = 0
    events: list[JournalEntry] = field(default_factory=list)

    @property
    def message_id(self) -> str:
        """Return the Message-ID without brackets, as the journal has it."""
        return self.ident[1:-1]

    def until(self, look: Callable[[], Result | None], most_s: float = 3600.0) -> Result | None:
        """Poll until `look` returns something; None after the time limit."""
        end, pause_s = time.monotonic() + min(self.ports.wait_s, most_s), _FIRST_PAUSE_S
        while not (found := look()) and time.monotonic() < end:
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return found

    def new_events(self) -> list[JournalEntry]:
        """Return the journal events of the message since the last call that found some."""
        assert self.records is not None
        assert self.snapshot is not None
        return self.records.events_since(self.message_id, self.snapshot)[len(self.events) :]


# --- the checks ---------------------------------------------------------------------------------


def _daemon(run: CheckRun) -> str:
    facts = run.ports.status()
    if facts is None:
        raise PeerError("no daemon serves this home")
    if facts["fault"]:
        raise PeerError(f"the daemon cannot use the model: {facts['fault']}")
    if facts["bypass"]:
        raise PeerError("bypass is on: all mail passes unscanned", hint="spamnb bypass off")
    return f"the daemon answers, with {len(facts['processes'])} processes"


def _next_hops(run: CheckRun) -> str:
    for text, remedy in run.ports.next_hops():
        raise PeerError(text, hint=remedy)
    return "each upstream of the settings answers"


def _model(run: CheckRun) -> str:
    run.records = run.ports.open_records()
    learnt = run.records.learnt()
    counts = ", ".join(f"{learnt[label]} {label}" for label in LABEL.values())
    own = run.records.own(LEAST_MESSAGES)
    few = min(own[label] for label in LABEL.values()) < LEAST_MESSAGES
    return counts + (
        f"; no message is marked as junk below {LEAST_MESSAGES} of each, without imports"
        if few
        else ""
    )


def _persons(run: CheckRun) -> str:
    """Compare, by names alone, the logins that teach with the addresses of their mail."""
    names, facts = run.ports.names, run.ports.status()
    assert names is not None
    assert run.records is not None
    logins = dict.fromkeys(run.records.teachers(), ()) | dict(run.ports.logins)
    faults = [fault for one in logins if (fault := pairing_fault(names, one, logins[one]))]
    if faults:
        raise PeerError("; ".join(faults[:_SHOWN]))
    if facts and (count := facts["counters"]["mailboxes_together"]):
        raise PeerError(
            f"{count} messages came to the mailboxes for several recipients at once",
            hint="lmtp_destination_recipient_limit = 1, see docs/persons.md, Two stations",
        )
    return f"{len(logins)} logins label for persons with an address here"


def _person(run: CheckRun) -> str:
    """Compare the recipient of the delivered message with the user that its label came from."""
    names = run.ports.names
    assert names is not None
    assert run.records is not None
    entry = run.records.history_entry(run.signature)
    to = entry.notes.get("to", "") if entry else ""
    fault = pairing_fault(names, run.events[-1].user, to.split() or [run.ports.rcpt])
    if fault:
        raise PeerError(fault)
    return f"recipient and login are {names.of(run.events[-1].user)}"


def _mailbox(run: CheckRun) -> str:
    assert run.ports.open_mailbox is not None
    run.mailbox = run.ports.open_mailbox()
    return run.mailbox.about


def _submitted(run: CheckRun, ident: str, above: str = "") -> str:
    """Send a test message with these lines above its header; return the reply."""
    assert run.ports.submit is not None
    token, rcpt = secrets.token_hex(8), run.ports.rcpt
    text = above + _TEXT.format(rcpt=rcpt, ident=ident, token=token, date=formatdate())
    return run.ports.submit(text.replace("\n", "\r\n").encode("ascii"), rcpt)


def _delivery(run: CheckRun) -> str:
    assert run.records is not None
    sites = run.records.local.authserv_ids[:1]
    above = "".join(_FORGED.format(site=site, domain=_FORGED_DOMAIN) for site in sites)
    run.snapshot = run.records.snapshot()
    reply = _submitted(run, run.ident, above)
    run.sent = True
    return reply


def _arrival(run: CheckRun) -> str:
    assert run.mailbox is not None
    assert run.records is not None
    assert run.snapshot is not None
    mailbox = run.mailbox
    run.found = run.until(lambda: mailbox.find(run.ident))
    if run.found is None:
        if run.records.quarantined(run.message_id, run.snapshot):
            raise PeerError(
                "the message was classified as junk and is in quarantine", hint="see [actions]"
            )
        raise PeerError(f"the message did not arrive within {run.ports.wait_s:.0f} s")
    return f"the message is in {_FOLDER[run.found.side]}"


_UNSIGNED = (
    "check that the recipient's domain is in local.domains, and the daemon's log for a full history"
)


def _headers(run: CheckRun) -> str:
    verdict, run.signature = (
        _header(run.found, "X-Spamnb-Verdict"),
        _header(run.found, "X-Spamnb-Signature"),
    )
    if verdict.startswith("unscanned"):
        reason = verdict.partition("reason=")[2]
        raise PeerError(f"the message passed unscanned: {reason}", hint=_UNSCANNED.get(reason, ""))
    if not (verdict or run.signature):
        raise PeerError("the message has no X-Spamnb headers: it did not pass through spamnb")
    if not run.signature:
        raise PeerError("the message has no signature", hint=_UNSIGNED)
    if verdict:
        return verdict
    setting = _observed_by(run, run.signature)
    return f"only the signature, because the settings have {setting}"


def _observed_by(run: CheckRun, signature: str) -> str:
    """Return the setting because of which a message was not marked, as the history has it."""
    records = run.records
    assert records is not None
    entry = run.until(lambda: records.history_entry(signature))
    return (entry and entry.notes.get("observed")) or "listener.*.observe or scan.local"


def _hosts(run: CheckRun) -> str:
    """Say which servers wrote Received fields that local.hosts does not name.

    All hops of the test message are the site's. A hop that is not named is a part of the message
    when it is scored again from the mailbox, so the score differs from that of the scan.
    """
    assert run.found is not None
    assert run.records is not None
    hosts = run.records.local.hosts
    known = {name.lower() for name in hosts}
    fields = BytesHeaderParser().parsebytes(run.found.raw).get_all("Received", [])
    named = [BY.search(str(field).encode("utf-8", "replace")) for field in fields]
    every = dict.fromkeys(one[1].decode("latin-1") for one in named if one)
    unknown = [name for name in every if name.lower() not in known]
    if unknown:
        wanted = ", ".join(f'"{name}"' for name in [*hosts, *unknown])
        raise PeerError(
            f"local.hosts does not name {', '.join(unknown)}: from the mailbox a message has "
            "another score than at the scan",
            hint=f"set [local] hosts = [{wanted}], and reload",
        )
    return "local.hosts names each server on the way"


def _results(run: CheckRun) -> str:
    """Say what became of the forged result, and whether the scan has believed any other."""
    assert run.found is not None
    assert run.records is not None
    local = run.records.local
    if not local.authserv_ids:
        return "no result is believed: local.authserv_ids is empty"
    block, _ = parted(run.found.raw, local, set())
    if _FORGED_DOMAIN in passed_domains(block.results):
        raise PeerError(f"a forged result of {local.authserv_ids[0]} is believed")
    is_there = any(_FORGED_DOMAIN.encode() in trace.value for trace in block.traces)
    fate = "ignored" if is_there else "removed"
    methods = sorted({f"{one.method}={one.result}" for one in block.results})
    if not methods:
        return f"the forged result was {fate}; no other is believed: see docs/postfix.md, Results"
    is_late = not _header(run.found, STATEMENT)
    late = ", after the scan: put the verifier in front of spamnb" if is_late else ""
    return f"the forged result was {fate}; the site's own are believed{late}: {', '.join(methods)}"


def _filing(run: CheckRun) -> str:
    assert run.found is not None
    flag, side = _header(run.found, "X-Spam-Flag") or "not set", run.found.side
    if flag == "YES" and side == "inbox":
        raise PeerError("the message is marked as junk but is in the inbox")
    if flag != "YES" and side == "junk":
        raise PeerError(
            "the message is not marked as junk but is in Junk",
            hint="find out which program or rule files messages there",
        )
    return f"X-Spam-Flag is {flag}, the message is in {_FOLDER[side]}"


def _marked_mail(run: CheckRun) -> str:
    """Send a message that the daemon marks as junk, and look where it lands."""
    assert run.mailbox is not None
    assert run.records is not None
    assert run.snapshot is not None
    mailbox, records, since = run.mailbox, run.records, run.snapshot
    ident = run.marked_ident = marked_message_id(records.local.test_key, secrets.token_hex(12))
    try:
        _submitted(run, ident)
    except PeerError as error:
        if REFUSED_REPLY.decode() in str(error):
            run.marked_ident = ""
            return "the mail server refuses the marked message, as [actions] says"
        raise
    found = run.until(lambda: mailbox.find(ident) or records.quarantined(ident[1:-1], since))
    run.marked_found = bool(found)
    if not found:
        raise PeerError(f"the marked message did not arrive within {run.ports.wait_s:.0f} s")
    if not isinstance(found, FoundMessage):
        return "the marked message is in quarantine, as [actions] says"
    if _header(found, "X-Spam-Flag") != "YES":
        signature = _header(found, "X-Spamnb-Signature")
        if not signature:
            raise PeerError("the marked message has no X-Spam-Flag and no signature")
        setting = _observed_by(run, signature)
        return f"no mail is marked, so none can be filed: the settings have {setting}"
    if found.side == "inbox":
        raise PeerError("the message has X-Spam-Flag: YES, but it is in the inbox, not in Junk")
    return "the message with X-Spam-Flag: YES is in Junk"


def _verdict(run: CheckRun) -> str:
    assert run.records is not None
    records = run.records
    entry = run.until(lambda: records.history_entry(run.signature))
    if entry is None:
        raise PeerError("the history of this home does not know the signature")
    return f"stored as {entry.decision}, label {entry.label}, {entry.probability:.4f}"


def _move(run: CheckRun) -> str:
    assert run.found is not None
    assert run.records is not None
    assert run.mailbox is not None
    run.before = run.records.verdict(run.found.raw, run.signature, run.mailbox.user)
    return _move_message(run, run.found.side, OTHER[run.found.side])


def _learning(run: CheckRun) -> str:
    assert run.found is not None
    return _learnt(run, LABEL[OTHER[run.found.side]])


def _score(run: CheckRun) -> str:
    assert run.found is not None
    assert run.records is not None
    assert run.before is not None
    event = run.events[-1]
    now, label = run.records.verdict(run.found.raw, run.signature, event.user), event.label
    change = f"{run.before.probability:.4f} -> {now.probability:.4f}"
    if now.label != label or now.log_odds == run.before.log_odds:
        raise PeerError(f"the message is still classified as {now.label}: {change}")
    return change


def _move_back(run: CheckRun) -> str:
    assert run.found is not None
    return _move_message(run, OTHER[run.found.side], run.found.side)


def _learning_again(run: CheckRun) -> str:
    assert run.found is not None
    return _learnt(run, LABEL[run.found.side])


def _move_message(run: CheckRun, source: Side, target: Side) -> str:
    assert run.mailbox is not None
    run.moves += 1
    way = run.mailbox.move(run.ident, source, target)
    return f"from {_FOLDER[source]} to {_FOLDER[target]}, by {way}"


def _learnt(run: CheckRun, label: str) -> str:
    """Wait for the next journal event of the message, and check it."""
    assert run.records is not None
    assert run.mailbox is not None
    new_events = run.until(run.new_events)
    if not new_events:
        for entry in run.records.in_review(run.message_id):
            raise PeerError(
                f"the feedback waits for review: {entry.reason}", hint="see docs/teaching.md"
            )
        what = f"nothing was learnt within {run.ports.wait_s:.0f} s"
        raise PeerError(what, hint=run.mailbox.advice)
    run.events += new_events
    event = new_events[-1]
    if event.label != label:
        raise PeerError(f"{event.label} was learnt, not {label}", hint=_OTHER_TRAINER)
    if event.channel not in run.mailbox.channels:
        raise PeerError(
            f"the feedback was received through the channel {event.channel}", hint=_OTHER_TRAINER
        )
    if not same_person(event.user, run.mailbox.user):
        raise PeerError(f"the feedback is from {event.user}, not from {run.mailbox.user}")
    return f"{label}, from {event.user} through {event.channel}, event {event.event}"


_OTHER_TRAINER = "find out which other program sends feedback for this mailbox"


def same_person(one: str, other: str) -> bool:
    """Return whether two names are of one user: a login and an address that begins with it."""
    one, other = sorted((one.casefold(), other.casefold()), key=len)
    return one == other or ("@" not in one and other.partition("@")[0] == one)


def _header(message: FoundMessage | None, name: str) -> str:
    assert message is not None
    found = BytesHeaderParser().parsebytes(message.raw)[name]
    return " ".join(str(found or "").split())


_SHOWN: Final = 10
"""most faults of logins that one line shows"""
_FOLDER: Final[Mapping[Side, str]] = {"inbox": "the inbox", "junk": "Junk"}
_UNSCANNED: Final = {
    "bypass": "spamnb bypass off",
    "model": "see `spamnb status`: the model cannot be used",
}


def _nothing(_: DoctorPorts) -> str:
    return ""


def _mailbox_option(ports: DoctorPorts) -> str:
    return "" if ports.open_mailbox else "neither --imap nor --maildir is given"


def _recipient_option(ports: DoctorPorts) -> str:
    return "" if ports.submit and ports.rcpt else "no --rcpt is given"


class Check(NamedTuple):
    """One check.

    The first message has the verdict of the model. The second one, of the check marked mail, asks
    the daemon to mark it as junk (`policy.headers`), so that the rule of the mail server that files
    junk is tried, too.

    A check returns a sentence, or raises an error that says what is wrong. A message classified as
    junk is moved from Junk to the inbox and back, so both labels are learnt in any case. If the
    daemon does not run, no message is sent, because its feedback would be learnt later.
    """

    name: str
    run: Callable[[CheckRun], str]
    todo: str
    needs: tuple[str, ...] = ()
    """checks that must have succeeded"""
    lacks: Callable[[DoctorPorts], str] = _nothing
    """returns which required option was not given; empty if none is missing"""
    of_persons: bool = False
    """whether it is left out if persons are not enabled"""


_NAMES: Final = "see docs/persons.md, Who is a person: feedback.domains, persons.aliases"
_LEARNING: Final = "see docs/teaching.md, `spamnb status` and the daemon's log"

CHECKS: Final = (
    Check("daemon", _daemon, "start it with `spamnb serve`; see `spamnb status`"),
    Check("next hops", _next_hops, "see listener.NAME.upstream"),
    Check("model", _model, "spamnb train HAM SPAM"),
    Check("persons", _persons, _NAMES, ("model",), of_persons=True),
    Check("mailbox", _mailbox, "see --imap, --user, --maildir and --junk", lacks=_mailbox_option),
    Check("delivery", _delivery, "see --smtp, docs/postfix.md and the mail server's log",
        ("daemon", "model", "mailbox"), _recipient_option),
    Check("arrival", _arrival, "check that --rcpt belongs to this mailbox; see the mail server's "
        "log, and docs/postfix.md, The return listener", ("delivery",)),
    Check("headers", _headers, "see docs/postfix.md, Before the queue, After the queue",
        ("arrival",)),
    Check("hosts", _hosts, "see docs/postfix.md, The least settings", ("headers",)),
    Check("results", _results, "see docs/postfix.md, Results of authentication: local.hosts, and a "
        "milter listener with border = true", ("headers",)),
    Check("filing", _filing, "see docs/dovecot.md, File spam into Junk", ("headers",)),
    Check("marked mail", _marked_mail, "see docs/dovecot.md, File spam into Junk", ("headers",)),
    Check("verdict", _verdict, "check that --home is the home of the daemon that took the mail",
        ("headers",)),
    Check("move", _move, "check that this user may move messages to and from Junk", ("arrival",)),
    Check("learning", _learning, _LEARNING, ("move",)),
    Check("person", _person, _NAMES, ("learning",), of_persons=True),
    Check("score", _score, "see `spamnb check`", ("learning",)),
    Check("move back", _move_back, "check that this user may move messages to and from Junk",
        ("learning",)),
    Check("learning again", _learning_again, _LEARNING, ("move back",)),
)  # fmt: skip


State = Literal["ok", "broken", "skipped"]

CLEANING: Final = "cleaning up"
_SETTLE_S: Final = 2.0
"""how long to wait for feedback that is not learnt yet, before the message is forgotten"""


class CheckResult(NamedTuple):
    """The result of one check."""

    check: str
    state: State
    what: str
    todo: str = ""


class Doctor:
    """One run of all checks: call `walk`, and then `clean` in any case.

    After any failure, `clean` deletes the message from all folders and lets the model forget it, so
    that the model's sums are as before. It reports what it could not remove, and what to do.
    """

    def __init__(self, ports: DoctorPorts) -> None:
        self._run = CheckRun(ports)
        self._states: dict[str, State] = {}

    @property
    def message_id(self) -> str:
        """Return the Message-ID of the test message."""
        return self._run.message_id

    def walk(self) -> Iterator[CheckResult]:
        """Run the checks in order and yield their results."""
        for check in CHECKS:
            if check.of_persons and self._run.ports.names is None:
                continue
            result = self._result(check)
            self._states[check.name] = result.state
            yield result

    def _result(self, check: Check) -> CheckResult:
        for need in check.needs:
            if self._states[need] != "ok":
                return CheckResult(check.name, "skipped", f"{need} is {self._states[need]}")
        lack = check.lacks(self._run.ports)
        if lack:
            return CheckResult(check.name, "skipped", lack)
        try:
            return CheckResult(check.name, "ok", check.run(self._run))
        except SpamnbError as error:
            return CheckResult(check.name, "broken", str(error), error.hint or check.todo)

    def clean(self) -> CheckResult:
        """Delete and forget the test message; call it once, at the end."""
        run = self._run
        try:
            if run.snapshot is None or run.records is None:
                return CheckResult(CLEANING, "skipped", "nothing was sent")
            return self._cleaned(run, run.records, run.snapshot)
        finally:
            for resource in (run.mailbox, run.records):
                if resource is not None:
                    resource.close()

    def _cleaned(self, run: CheckRun, records: ModelRecords, snapshot: Snapshot) -> CheckResult:
        faults = _delete(run, records, snapshot)
        with suppress(SpamnbError):
            if run.moves > len(run.events):
                run.until(run.new_events, _SETTLE_S)
        faults += _forget(run, records, snapshot)
        try:
            events = records.events_since(run.message_id, snapshot)
            faults += filter(None, [records.difference(run.message_id, snapshot)])
            # Forgetting makes events too; they have no label.
            late = run.moves > sum(event.label is not None for event in events)
        except SpamnbError as error:
            faults, late = [*faults, str(error)], False
        if faults:
            todo = f"delete the message, then: spamnb forget '{run.message_id}'"
            return CheckResult(CLEANING, "broken", "; ".join(faults), todo)
        what = "the message is deleted and its training removed"
        todo = f"if it is learnt later: spamnb forget '{run.message_id}'" if late else ""
        return CheckResult(CLEANING, "ok", what, todo)


def _delete(run: CheckRun, records: ModelRecords, snapshot: Snapshot) -> list[str]:
    """Delete the message from the mailbox; return what failed."""
    try:
        try:
            count = _purged(run)
        except SpamnbError:
            # The connection may have failed: try again with a new one.
            assert run.ports.open_mailbox is not None
            run.mailbox = run.ports.open_mailbox()
            count = _purged(run)
        kept = count or run.found or records.quarantined(run.message_id, snapshot)
    except SpamnbError as error:
        return [f"the message was not deleted: {error}"]
    is_marked_away = run.marked_ident and not run.marked_found
    if run.sent and (not kept or is_marked_away):
        return ["the message was sent and did not arrive; it may still arrive"]
    return []


def _purged(run: CheckRun) -> int:
    """Delete both messages from the mailbox; return the number of copies of the first."""
    if run.mailbox is None:
        return 0
    if run.marked_ident:
        run.marked_found |= bool(run.mailbox.purge(run.marked_ident))
    return run.mailbox.purge(run.ident)


def _forget(run: CheckRun, records: ModelRecords, snapshot: Snapshot) -> list[str]:
    """Remove the message's training; return what failed. Waits for a daemon that restarts."""
    faults: list[str] = []

    def done() -> bool:
        faults[:] = records.take_back(run.message_id, snapshot)
        if run.marked_ident:
            faults.extend(records.take_back(run.marked_ident[1:-1], snapshot))
        return not faults

    run.until(done, _SETTLE_S)
    return faults
