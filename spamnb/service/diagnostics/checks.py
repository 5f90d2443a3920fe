"""The hops of the doctor's walk, as a table: what each does, what it needs, what to do if it fails.

    daemon > model > mailbox > delivery > arrival > headers > filing > verdict
           > move > learning > score > move back > learning again

A hop gives a sentence, or an error that says what is wrong. A message that was judged junk goes
the same way round from Junk, so both labels are taught whatever the model thinks of it. What could
only be learnt later (the daemon is away, so words would wait) is not sent at all.

Must not know protocols, files or terminals. Failure: errors of the family; a hint of theirs stands
before the table's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from email.utils import formatdate
from typing import Final, NamedTuple, TypeVar

from spamnb.core.model.verdict import Verdict
from spamnb.core.policy.actions import LEAST_MESSAGES
from spamnb.errors import PeerError
from spamnb.service.diagnostics.ports import LABEL, OTHER, DoctorPorts, FoundMessage, Mailbox, Side
from spamnb.service.diagnostics.records import JournalEntry, ModelRecords, Snapshot

Result = TypeVar("Result")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""between two looks: a mail server has other things to do"""

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


@dataclass(slots=True)
class CheckRun:
    """What is known so far."""

    means: DoctorPorts
    ident: str = field(default_factory=lambda: f"<doctor.{secrets.token_hex(12)}@spamnb.invalid>")
    records: ModelRecords | None = None
    mailbox: Mailbox | None = None
    mark: Snapshot | None = None
    """the model before the message was sent; None if it was not"""
    sent: bool = False
    found: FoundMessage | None = None
    signature: str = ""
    before: Verdict | None = None
    moves: int = 0
    heard: list[JournalEntry] = field(default_factory=list)

    @property
    def message_id(self) -> str:
        """As the journal writes it."""
        return self.ident[1:-1]

    def until(self, look: Callable[[], Result | None], most_s: float = 3600.0) -> Result | None:
        """Look until something is there; None if nothing came in time."""
        end, pause_s = time.monotonic() + min(self.means.wait_s, most_s), _FIRST_PAUSE_S
        while not (found := look()) and time.monotonic() < end:
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return found

    def news(self) -> list[JournalEntry]:
        """What was said of the message since the last time that was looked."""
        assert self.records is not None
        assert self.mark is not None
        return self.records.heard(self.message_id, self.mark)[len(self.heard) :]


# --- the hops -----------------------------------------------------------------------------------


def _daemon(walk: CheckRun) -> str:
    facts = walk.means.status()
    if facts is None:
        raise PeerError("no daemon serves this home")
    if facts["fault"]:
        raise PeerError(f"it cannot use the model: {facts['fault']}")
    if facts["bypass"]:
        raise PeerError("bypass is on: all mail passes unscanned", hint="spamnb bypass off")
    return f"it answers, with {len(facts['processes'])} processes"


def _model(walk: CheckRun) -> str:
    walk.records = walk.means.open_ledger()
    learnt = walk.records.learnt()
    for label in LABEL.values():
        if not learnt.get(label):
            raise PeerError(f"no {label} was ever learnt")
    told = ", ".join(f"{learnt[label]} {label}" for label in LABEL.values())
    few = min(learnt[label] for label in LABEL.values()) < LEAST_MESSAGES
    return told + (f"; nothing is called junk below {LEAST_MESSAGES} of each" if few else "")


def _mailbox(walk: CheckRun) -> str:
    assert walk.means.open_mailbox is not None
    walk.mailbox = walk.means.open_mailbox()
    return walk.mailbox.about


def _delivery(walk: CheckRun) -> str:
    assert walk.means.carry is not None
    assert walk.records is not None
    text = _TEXT.format(
        rcpt=walk.means.rcpt, ident=walk.ident, token=secrets.token_hex(8), date=formatdate()
    )
    walk.mark = walk.records.mark()
    said = walk.means.carry(text.replace("\n", "\r\n").encode("ascii"), walk.means.rcpt)
    walk.sent = True
    return said


def _arrival(walk: CheckRun) -> str:
    assert walk.mailbox is not None
    assert walk.records is not None
    assert walk.mark is not None
    mailbox = walk.mailbox
    walk.found = walk.until(lambda: mailbox.find(walk.ident))
    if walk.found is None:
        if walk.records.quarantined(walk.message_id, walk.mark):
            raise PeerError("it was judged junk, and is in quarantine", hint="see [actions]")
        raise PeerError(f"it did not come within {walk.means.wait_s:.0f} s")
    return f"it lies in {_FOLDER[walk.found.side]}"


_UNSIGNED = (
    "is its recipient's domain in local.domains? else see the daemon's log: is the history full?"
)


def _headers(walk: CheckRun) -> str:
    verdict, walk.signature = _header(walk, "X-Spamnb-Verdict"), _header(walk, "X-Spamnb-Signature")
    if verdict.startswith("unscanned"):
        reason = verdict.partition("reason=")[2]
        raise PeerError(f"it passed unscanned: {reason}", hint=_UNSCANNED.get(reason, ""))
    if not (verdict or walk.signature):
        raise PeerError("it has none of our headers: it went around spamnb")
    if not walk.signature:
        raise PeerError("it has no signature", hint=_UNSIGNED)
    return verdict or "the signature alone: mail that comes this way is observed"


def _filing(walk: CheckRun) -> str:
    assert walk.found is not None
    flag, side = _header(walk, "X-Spam-Flag") or "no word", walk.found.side
    if flag == "YES" and side == "inbox":
        raise PeerError("it is marked as junk, and lies in the inbox")
    if flag != "YES" and side == "junk":
        raise PeerError("it is not marked as junk, and lies in Junk", hint="who filed it there?")
    return f"X-Spam-Flag says {flag}, it lies in {_FOLDER[side]}"


def _verdict(walk: CheckRun) -> str:
    assert walk.records is not None
    records = walk.records
    entry = walk.until(lambda: records.remembered(walk.signature))
    if entry is None:
        raise PeerError("the history of this home does not know the signature")
    return f"kept as {entry.decision}, label {entry.label}, {entry.probability:.4f}"


def _move(walk: CheckRun) -> str:
    assert walk.found is not None
    assert walk.records is not None
    walk.before = walk.records.verdict(walk.found.raw, walk.signature)
    return _moved(walk, walk.found.side, OTHER[walk.found.side])


def _learning(walk: CheckRun) -> str:
    assert walk.found is not None
    return _taught(walk, LABEL[OTHER[walk.found.side]])


def _score(walk: CheckRun) -> str:
    assert walk.found is not None
    assert walk.records is not None
    assert walk.before is not None
    now, label = walk.records.verdict(walk.found.raw, walk.signature), walk.heard[-1].label
    told = f"{walk.before.probability:.4f} -> {now.probability:.4f}"
    if now.label != label or now.log_odds == walk.before.log_odds:
        raise PeerError(f"it is still judged {now.label}: {told}")
    return told


def _move_back(walk: CheckRun) -> str:
    assert walk.found is not None
    return _moved(walk, OTHER[walk.found.side], walk.found.side)


def _learning_again(walk: CheckRun) -> str:
    assert walk.found is not None
    return _taught(walk, LABEL[walk.found.side])


def _moved(walk: CheckRun, source: Side, target: Side) -> str:
    assert walk.mailbox is not None
    walk.moves += 1
    way = walk.mailbox.move(walk.ident, source, target)
    return f"from {_FOLDER[source]} to {_FOLDER[target]}, by {way}"


def _taught(walk: CheckRun, label: str) -> str:
    """One more event of the message, as it should be."""
    assert walk.records is not None
    assert walk.mailbox is not None
    news = walk.until(walk.news)
    if not news:
        for entry in walk.records.waiting(walk.message_id):
            raise PeerError(f"it waits for review: {entry.reason}", hint="see docs/teaching.md")
        what = f"nothing was learnt within {walk.means.wait_s:.0f} s"
        raise PeerError(what, hint=walk.mailbox.advice)
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


def _header(walk: CheckRun, name: str) -> str:
    assert walk.found is not None
    found = BytesHeaderParser().parsebytes(walk.found.raw)[name]
    return " ".join(str(found or "").split())


_FOLDER: Final[Mapping[Side, str]] = {"inbox": "the inbox", "junk": "Junk"}
_UNSCANNED: Final = {
    "bypass": "spamnb bypass off",
    "model": "see `spamnb status`: the model cannot be used",
}


def _anything(_: DoctorPorts) -> str:
    return ""


def _a_mailbox(means: DoctorPorts) -> str:
    return "" if means.open_mailbox else "neither --imap nor --maildir is given"


def _a_recipient(means: DoctorPorts) -> str:
    return "" if means.carry and means.rcpt else "no --rcpt is given"


class Check(NamedTuple):
    """One part of the way."""

    name: str
    run: Callable[[CheckRun], str]
    todo: str
    needs: tuple[str, ...] = ()
    lacks: Callable[[DoctorPorts], str] = _anything
    """what was not given, without which it cannot be seen"""


_TEACHING: Final = "see docs/teaching.md, `spamnb status` and the daemon's log"

HOPS: Final = (
    Check("daemon", _daemon, "start it with `spamnb serve`; see `spamnb status`"),
    Check("model", _model, "spamnb train HAM SPAM"),
    Check("mailbox", _mailbox, "see --imap, --user, --maildir and --junk", lacks=_a_mailbox),
    Check("delivery", _delivery, "see --smtp, docs/postfix.md and the mail server's log",
        ("daemon", "model", "mailbox"), _a_recipient),
    Check("arrival", _arrival, "does --rcpt belong to this mailbox? see the mail server's log, and "
        "docs/postfix.md, The return listener", ("delivery",)),
    Check("headers", _headers, "see docs/postfix.md, Before the queue, After the queue",
        ("arrival",)),
    Check("filing", _filing, "see docs/dovecot.md, File spam into Junk", ("headers",)),
    Check("verdict", _verdict, "is this the home of the daemon that took the mail? see --home",
        ("headers",)),
    Check("move", _move, "can this person move messages to and from Junk?", ("arrival",)),
    Check("learning", _learning, _TEACHING, ("move",)),
    Check("score", _score, "see `spamnb check`", ("learning",)),
    Check("move back", _move_back, "can this person move messages to and from Junk?",
        ("learning",)),
    Check("learning again", _learning_again, _TEACHING, ("move back",)),
)  # fmt: skip
