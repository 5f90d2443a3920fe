"""The doctor: one message of its own goes the whole way of learning, hop by hop, and is taken back.

    daemon > model > mailbox > delivery > arrival > headers > filing > verdict
           > move > learning > score > move back > learning again > cleaning up

The hops are a table: what each asks, which ones it needs, what to do if it fails. A hop gives a
sentence, or an error that says what is wrong. A message that was judged junk goes the same way
round from Junk, so both labels are taught whatever the model thinks of it.

Must not know protocols, files or terminals: mailbox, carrier and records are given. Invariant:
whatever happens on the way, `clean` takes the message out of all folders and has it forgotten; and
what could only be learnt after that (the daemon is away, so words would wait) is not sent at all.
Failure: none of its own; errors of the family are findings.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from email.utils import formatdate
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from spamnb.core.handling import LEAST_MESSAGES
from spamnb.core.verdict import Verdict
from spamnb.errors import PeerError, SpamnbError, UserError
from spamnb.service.ledger import Heard, Ledger, Mark

Side = Literal["inbox", "junk"]
State = Literal["ok", "broken", "skipped"]
Result = TypeVar("Result")

SIDES: Final[tuple[Side, ...]] = ("inbox", "junk")
LABEL: Final[Mapping[Side, str]] = {"inbox": "ham", "junk": "spam"}
OTHER: Final[Mapping[Side, Side]] = {"inbox": "junk", "junk": "inbox"}
_PAUSE_S: Final = 0.1
_SETTLE_S: Final = 2.0
"""so long a word that was given and not heard may still come in, before all is forgotten"""

_TEXT: Final = """\
From: spamnb doctor <{rcpt}>
To: <{rcpt}>
Subject: spamnb doctor {token}
Message-ID: {ident}
Date: {date}
Auto-Submitted: auto-generated
MIME-Version: 1.0
Content-Type: text/plain; charset=us-ascii

spamnb doctor sent this message to see whether the filter learns. It moves it into
Junk and back, and deletes it within minutes. If it still lies here, delete it.
{token}
"""


class Found(NamedTuple):
    """The message, where it lies."""

    side: Side
    raw: bytes


class Mailbox(Protocol):
    """A person's mailbox."""

    @property
    def who(self) -> str:
        """Whose it is."""

    @property
    def about(self) -> str:
        """What it is, in a few words."""

    @property
    def channels(self) -> frozenset[str]:
        """Ways by which what is done here may be told."""

    def find(self, ident: str) -> Found | None:
        """The message with this Message-ID, in the inbox or in Junk."""

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move it; by which way."""

    def purge(self, ident: str) -> int:
        """Take it out of every folder; from how many."""

    def close(self) -> None:
        """Let go."""


@dataclass(frozen=True, slots=True)
class Means:
    """What the doctor works with; what is None was not given."""

    status: Callable[[], dict[str, Any] | None]
    """the daemon's facts; None if there is no daemon"""
    open_ledger: Callable[[], Ledger]
    open_mailbox: Callable[[], Mailbox] | None = None
    carry: Callable[[bytes, str], str] | None = None
    """hands a message to the mail system, for a recipient; what that said"""
    rcpt: str = ""
    wait_s: float = 60.0
    """for each thing that others have to do"""


class Finding(NamedTuple):
    """How a hop is."""

    hop: str
    state: State
    what: str
    todo: str = ""


@dataclass(slots=True)
class _Walk:
    """What is known so far."""

    means: Means
    ident: str = field(default_factory=lambda: f"<doctor.{secrets.token_hex(12)}@spamnb.invalid>")
    ledger: Ledger | None = None
    mailbox: Mailbox | None = None
    mark: Mark | None = None
    """the model before the message was sent; None if it was not"""
    sent: bool = False
    found: Found | None = None
    signature: str = ""
    before: Verdict | None = None
    moves: int = 0
    heard: list[Heard] = field(default_factory=list)

    @property
    def message_id(self) -> str:
        """As the journal writes it."""
        return self.ident[1:-1]

    def until(self, look: Callable[[], Result | None], most_s: float = 3600.0) -> Result | None:
        """Look until something is there; None if nothing came in time."""
        end = time.monotonic() + min(self.means.wait_s, most_s)
        while not (found := look()) and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        return found

    def news(self) -> list[Heard]:
        """What was said of the message since the last time that was looked."""
        assert self.ledger is not None
        assert self.mark is not None
        return self.ledger.heard(self.message_id, self.mark)[len(self.heard) :]


# --- the hops -----------------------------------------------------------------------------------


def _daemon(walk: _Walk) -> str:
    facts = walk.means.status()
    if facts is None:
        raise PeerError("no daemon serves this home")
    if facts["fault"]:
        raise PeerError(f"it cannot use the model: {facts['fault']}")
    if facts["bypass"]:
        raise PeerError("bypass is on: all mail passes unscanned", hint="spamnb bypass off")
    return f"it answers, with {len(facts['processes'])} processes"


def _model(walk: _Walk) -> str:
    walk.ledger = walk.means.open_ledger()
    learnt = walk.ledger.learnt()
    for label in LABEL.values():
        if not learnt.get(label):
            raise PeerError(f"no {label} was ever learnt")
    told = ", ".join(f"{learnt[label]} {label}" for label in LABEL.values())
    few = min(learnt[label] for label in LABEL.values()) < LEAST_MESSAGES
    return told + (f"; nothing is called junk below {LEAST_MESSAGES} of each" if few else "")


def _mailbox(walk: _Walk) -> str:
    assert walk.means.open_mailbox is not None
    walk.mailbox = walk.means.open_mailbox()
    return walk.mailbox.about


def _delivery(walk: _Walk) -> str:
    assert walk.means.carry is not None
    assert walk.ledger is not None
    text = _TEXT.format(
        rcpt=walk.means.rcpt, ident=walk.ident, token=secrets.token_hex(8), date=formatdate()
    )
    walk.mark = walk.ledger.mark()
    said = walk.means.carry(text.replace("\n", "\r\n").encode("ascii"), walk.means.rcpt)
    walk.sent = True
    return said


def _arrival(walk: _Walk) -> str:
    assert walk.mailbox is not None
    assert walk.ledger is not None
    assert walk.mark is not None
    mailbox = walk.mailbox
    walk.found = walk.until(lambda: mailbox.find(walk.ident))
    if walk.found is None:
        if walk.ledger.quarantined(walk.message_id, walk.mark):
            raise PeerError("it was judged junk, and is in quarantine", hint="see [handling]")
        raise PeerError(f"it did not come within {walk.means.wait_s:.0f} s")
    return f"it lies in {_FOLDER[walk.found.side]}"


def _headers(walk: _Walk) -> str:
    verdict, walk.signature = _header(walk, "X-Spamnb-Verdict"), _header(walk, "X-Spamnb-Signature")
    if verdict.startswith("unscanned"):
        reason = verdict.partition("reason=")[2]
        raise PeerError(f"it passed unscanned: {reason}", hint=_UNSCANNED.get(reason, ""))
    if not (verdict or walk.signature):
        raise PeerError("it has none of our headers: it went around spamnb")
    if not walk.signature:
        raise PeerError("it has no signature", hint="see the daemon's log: is the history full?")
    return verdict or "the signature alone: mail that comes this way is observed"


def _filing(walk: _Walk) -> str:
    assert walk.found is not None
    flag, side = _header(walk, "X-Spam-Flag") or "no word", walk.found.side
    if flag == "YES" and side == "inbox":
        raise PeerError("it is marked as junk, and lies in the inbox")
    if flag != "YES" and side == "junk":
        raise PeerError("it is not marked as junk, and lies in Junk", hint="who filed it there?")
    return f"X-Spam-Flag says {flag}, it lies in {_FOLDER[side]}"


def _verdict(walk: _Walk) -> str:
    assert walk.ledger is not None
    ledger = walk.ledger
    entry = walk.until(lambda: ledger.remembered(walk.signature))
    if entry is None:
        raise PeerError("the history of this home does not know the signature")
    return f"kept as {entry.label}, {entry.probability:.4f}"


def _move(walk: _Walk) -> str:
    assert walk.found is not None
    assert walk.ledger is not None
    walk.before = walk.ledger.verdict(walk.found.raw, walk.signature)
    return _moved(walk, walk.found.side, OTHER[walk.found.side])


def _learning(walk: _Walk) -> str:
    assert walk.found is not None
    return _taught(walk, LABEL[OTHER[walk.found.side]])


def _score(walk: _Walk) -> str:
    assert walk.found is not None
    assert walk.ledger is not None
    assert walk.before is not None
    now, label = walk.ledger.verdict(walk.found.raw, walk.signature), walk.heard[-1].label
    told = f"{walk.before.probability:.4f} -> {now.probability:.4f}"
    if now.label != label or now.log_odds == walk.before.log_odds:
        raise PeerError(f"it is still judged {now.label}: {told}")
    return told


def _move_back(walk: _Walk) -> str:
    assert walk.found is not None
    return _moved(walk, OTHER[walk.found.side], walk.found.side)


def _learning_again(walk: _Walk) -> str:
    assert walk.found is not None
    return _taught(walk, LABEL[walk.found.side])


def _moved(walk: _Walk, source: Side, target: Side) -> str:
    assert walk.mailbox is not None
    walk.moves += 1
    way = walk.mailbox.move(walk.ident, source, target)
    return f"from {_FOLDER[source]} to {_FOLDER[target]}, by {way}"


def _taught(walk: _Walk, label: str) -> str:
    """One more event of the message, as it should be."""
    assert walk.ledger is not None
    assert walk.mailbox is not None
    news = walk.until(walk.news)
    if not news:
        for entry in walk.ledger.waiting(walk.message_id):
            raise PeerError(f"it waits for review: {entry.reason}", hint="see docs/teaching.md")
        raise PeerError(f"nothing was learnt within {walk.means.wait_s:.0f} s")
    walk.heard += news
    event = news[-1]
    if event.label != label:
        raise PeerError(f"{event.label} was learnt, not {label}", hint="what else teaches here?")
    if event.channel not in walk.mailbox.channels:
        raise PeerError(f"it came by {event.channel}", hint="what else teaches here?")
    if not same_person(event.who, walk.mailbox.who):
        raise PeerError(f"it was learnt of {event.who}, not of {walk.mailbox.who}")
    return f"{label}, of {event.who} by {event.channel}, event {event.event}"


def same_person(one: str, other: str) -> bool:
    """Whether two names are of one person: an address begins with its login."""
    one, other = sorted((one.casefold(), other.casefold()), key=len)
    return one == other or ("@" not in one and other.partition("@")[0] == one)


def _header(walk: _Walk, name: str) -> str:
    assert walk.found is not None
    found = BytesHeaderParser().parsebytes(walk.found.raw)[name]
    return " ".join(str(found or "").split())


_FOLDER: Final[Mapping[Side, str]] = {"inbox": "the inbox", "junk": "Junk"}
_UNSCANNED: Final = {
    "bypass": "spamnb bypass off",
    "model": "see `spamnb status`: the model cannot be used",
}


def _anything(_: Means) -> str:
    return ""


def _a_mailbox(means: Means) -> str:
    return "" if means.open_mailbox else "neither --imap nor --maildir is given"


def _a_recipient(means: Means) -> str:
    return "" if means.carry and means.rcpt else "no --rcpt is given"


class Hop(NamedTuple):
    """One part of the way."""

    name: str
    run: Callable[[_Walk], str]
    todo: str
    needs: tuple[str, ...] = ()
    lacks: Callable[[Means], str] = _anything
    """what was not given, without which it cannot be seen"""


_TEACHING: Final = (
    "IMAP: docs/dovecot.md, Filing teaches (and teach.spool, serve.delegates); Maildir: is "
    "`spamnb watch` running for it? See also `spamnb status` and the daemon's log"
)

HOPS: Final = (
    Hop("daemon", _daemon, "start it with `spamnb serve`; see `spamnb status`"),
    Hop("model", _model, "spamnb train HAM SPAM"),
    Hop("mailbox", _mailbox, "see --imap, --user, --maildir and --junk", lacks=_a_mailbox),
    Hop("delivery", _delivery, "see --smtp, docs/postfix.md and the mail server's log",
        ("daemon", "model", "mailbox"), _a_recipient),
    Hop("arrival", _arrival, "does --rcpt belong to this mailbox? see the mail server's log, and "
        "docs/postfix.md, What hands mail back", ("delivery",)),
    Hop("headers", _headers, "see docs/postfix.md, Before the queue, After the queue",
        ("arrival",)),
    Hop("filing", _filing, "see docs/dovecot.md, Junk goes to Junk", ("headers",)),
    Hop("verdict", _verdict, "is this the home of the daemon that took the mail? see --home",
        ("headers",)),
    Hop("move", _move, "can this person move messages to and from Junk?", ("arrival",)),
    Hop("learning", _learning, _TEACHING, ("move",)),
    Hop("score", _score, "see `spamnb check`", ("learning",)),
    Hop("move back", _move_back, "can this person move messages to and from Junk?", ("learning",)),
    Hop("learning again", _learning_again, _TEACHING, ("move back",)),
)  # fmt: skip
CLEANING: Final = "cleaning up"


# --- the walk -----------------------------------------------------------------------------------


class Doctor:
    """One walk; `walk`, and then `clean`, whatever became of it."""

    def __init__(self, means: Means) -> None:
        self._walk = _Walk(means)
        self._states: dict[str, State] = {}

    @property
    def message_id(self) -> str:
        """What names the message."""
        return self._walk.message_id

    def walk(self) -> Iterator[Finding]:
        """Look at each hop in turn."""
        for hop in HOPS:
            finding = self._looked(hop)
            self._states[hop.name] = finding.state
            yield finding

    def _looked(self, hop: Hop) -> Finding:
        for need in hop.needs:
            if self._states[need] != "ok":
                return Finding(hop.name, "skipped", f"{need} is {self._states[need]}")
        lack = hop.lacks(self._walk.means)
        if lack:
            return Finding(hop.name, "skipped", lack)
        try:
            return Finding(hop.name, "ok", hop.run(self._walk))
        except SpamnbError as error:
            return Finding(hop.name, "broken", str(error), error.hint or hop.todo)

    def clean(self) -> Finding:
        """Leave nothing behind; to be called once, at the end."""
        walk = self._walk
        try:
            if walk.mark is None or walk.ledger is None:
                return Finding(CLEANING, "skipped", "nothing was sent")
            return self._cleaned(walk, walk.ledger, walk.mark)
        finally:
            for held in (walk.mailbox, walk.ledger):
                if held is not None:
                    held.close()

    def _cleaned(self, walk: _Walk, ledger: Ledger, mark: Mark) -> Finding:
        faults = _purged(walk, ledger, mark)
        with suppress(SpamnbError):
            if walk.moves > len(walk.heard):
                walk.until(walk.news, _SETTLE_S)
        faults += _taken_back(walk, ledger, mark)
        try:
            heard = ledger.heard(walk.message_id, mark)
            faults += filter(None, [ledger.difference(walk.message_id, mark)])
            # What was forgotten is an event too.
            late = walk.moves > sum(one.label is not None for one in heard)
        except SpamnbError as error:
            faults, late = [*faults, str(error)], False
        if faults:
            todo = f"delete the message, then: spamnb forget '{walk.message_id}'"
            return Finding(CLEANING, "broken", "; ".join(faults), todo)
        what = "the message is gone, and all that it taught"
        todo = f"should it be learnt later: spamnb forget '{walk.message_id}'" if late else ""
        return Finding(CLEANING, "ok", what, todo)


def _purged(walk: _Walk, ledger: Ledger, mark: Mark) -> list[str]:
    """Take the message out of the mailbox; what could not be done."""
    try:
        try:
            count = walk.mailbox.purge(walk.ident) if walk.mailbox else 0
        except SpamnbError:
            # The connection may have been what broke: once more, by a new one.
            assert walk.means.open_mailbox is not None
            walk.mailbox = walk.means.open_mailbox()
            count = walk.mailbox.purge(walk.ident)
        kept = count or walk.found or ledger.quarantined(walk.message_id, mark)
    except SpamnbError as error:
        return [f"the message was not deleted: {error}"]
    if walk.sent and not kept:
        return ["the message was sent and never came; it may still come"]
    return []


def _taken_back(walk: _Walk, ledger: Ledger, mark: Mark) -> list[str]:
    """Have all forgotten; what could not be done. A daemon that restarts is waited for."""
    faults: list[str] = []

    def done() -> bool:
        faults[:] = ledger.take_back(walk.message_id, mark)
        return not faults

    walk.until(done, _SETTLE_S)
    return faults


def checked_recipient(text: str) -> str:
    """An address that may stand in a command; UserError else."""
    local, at, domain = text.rpartition("@")
    good = text.isascii() and text.isprintable() and not set(text) & set(' <>",;:')
    if not (good and at and local and domain):
        raise UserError(f"{text!r} is no address", hint="user@example.org")
    return text
