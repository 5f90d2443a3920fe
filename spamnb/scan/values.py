"""Requests of a scan and its results, and what the quarantine keeps. Values only.

Everything that passes between an endpoint and the scanner: the endpoint knows no models, rules,
fallbacks or quarantine, and the scanner knows no sockets. A `MessageScanner` calls back exactly
once, immediately or later, and never raises: an internal fault is a result as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from spamnb.errors import SettingsError, StoreDamagedError, UserError
from spamnb.mail.envelope import Envelope, LocalHosts
from spamnb.policy.actions import MailAction
from spamnb.policy.headers import Fields, ScanVerdict
from spamnb.telemetry import iso

if TYPE_CHECKING:
    from spamnb.policy.senders import SenderEvidence

BATCH_MESSAGES: Final = 16
"""messages that a process scans together, on one snapshot, and marks as in flight meanwhile; of
5 KB, each takes a sixth less than in a batch of 8"""

Action = Literal["relay", "keep", "refuse", "defer"]


Observed = Literal["local", "own_clients", "listener"]
"""The kind of setting because of which a message is scanned and not marked."""


def observed_by(kind: Observed, listener: str) -> str:
    """Return the setting that lets a message pass without a mark, as the settings file has it."""
    return {
        "local": 'scan.local = "observe"',
        "own_clients": "scan.own_clients",
        "listener": f"listener.{listener}.observe = true",
    }[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What holds for all messages."""

    tag: str = "[SPAM] "
    """put before the subject's text by the action `tag`"""
    redirect: str = "junk"
    """value of X-Spamnb-Redirect for the action `redirect`; the next hop decides what it means,
    such as Postfix's header_checks with REDIRECT"""
    own_clients: tuple[str, ...] = ()
    """networks with observed mail: the site's own outgoing mail must not carry a verdict"""
    local: Literal["observe", "enforce"] = "observe"
    """how to treat mail that XFORWARD calls LOCAL. For Postfix that is
    `local_header_rewrite_clients`: by default itself, so if other programs of that machine
    submit external mail (fetchmail), it must be `enforce`"""
    large_bytes: int = 65_536
    """messages above this go to a scan process: 64 KB of the slowest mail take 10 ms here"""

    def __post_init__(self) -> None:
        for name, text in (("tag", self.tag), ("redirect", self.redirect)):
            if not (text.isascii() and text.isprintable()):
                raise SettingsError(
                    f"the {name} {text!r} is not printable ASCII",
                    hint="give one line of printable ASCII characters",
                )


Notes = dict[str, str]
"""facts that the history stores with a verdict"""


class ScanRequest(NamedTuple):
    """A message with its envelope."""

    raw: bytes
    """CRLF line ends, dots not stuffed, without forged copies of the added headers. If not whole:
    its first bytes"""
    header_bytes: int
    """of `raw`, with the blank line; all of it if there is none"""
    envelope: Envelope
    before_queue: bool = False
    """whether the client waits for the reply, so that a rejection is possible"""
    whole: bool = True
    is_received: bool = True
    """whether an MTA of the site wrote the first Received field; False: all of `raw` may be the
    sender's, unless a border in it (`site_results`) was written under the queue id of the client"""


class Advice(NamedTuple):
    """What the scanner would do with a scanned message."""

    verdict: ScanVerdict
    mail_action: MailAction
    score: float
    """a message is junk from `headers.REQUIRED_SCORE` on"""
    reject_score: float
    """the score from which a message is rejected"""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The action for a message.

    relay: forward it with the fields in `add`. keep: it is in quarantine, file and folder
    synced; reply 250. refuse: reject it (before the queue only). defer: reject it temporarily.
    """

    action: Action = "relay"
    add: Fields = ()
    """to be put before the first byte of the message"""
    tag: bytes = b""
    """to be put before the subject's text; empty leaves the subject unchanged"""
    reply: bytes = b""
    """text of the reply after its code, for all actions but relay; one line without CRLF"""
    withdraw: Callable[[], None] | None = None
    """deletes the message from quarantine; called if this result came too late"""
    facts: dict[str, object] = field(default_factory=dict)
    """for the one log line: verdict, probability, decision, reason and more"""
    advice: Advice | None = None
    """the verdict, if it was asked for instead of its consequences, and there is one"""


Done = Callable[[ScanResult], None]
StopScan = Callable[[str], None]
"""Ends a scan without its verdict: with a reason (one of `REASONS`) the fallback for it is the
result; with an empty one there is no result. It does nothing if the scan has ended."""


class MessageScanner(Protocol):
    """Scans messages."""

    def border(self, request: ScanRequest) -> Fields:
        """Return the field that stands above a message from outside; none if there is no key."""

    def scan(self, request: ScanRequest, done: Done) -> StopScan | None:
        """Scan; `done` is called exactly once, in the caller's thread, unless it is stopped."""


class MessageAdviser(Protocol):
    """Scans messages for clients that carry out the verdict themselves."""

    def advise(self, request: ScanRequest, done: Done) -> StopScan | None:
        """Scan as `MessageScanner.scan` does; the result is always relay or defer."""


class SenderChecker(Protocol):
    """Checks who sent a message: SPF, DKIM, DMARC, ARC."""

    is_on: bool
    """whether it can check now"""
    adds_fields: bool
    """whether the message gets the results"""

    def start(
        self, request: ScanRequest, message: SenderEvidence, done: Callable[[str], None]
    ) -> Callable[[], None]:
        """Check; `done` gets the results later in the caller's thread, once.

        It gets none after the returned callable was called, and empty ones after a fault.
        """


class CheckedMail(NamedTuple):
    """A stored message after the check of its sender."""

    raw: bytes
    """with the results above it, if there are any"""
    results: str
    """for the note `auth`"""


StoredMailCheck = Callable[[Sequence[bytes], LocalHosts], list[CheckedMail]]
"""Checks who sent messages of a mailbox; waits for the results, and never raises."""


class Offload(Protocol):
    """Scans large messages in another process, with a deadline."""

    def submit(
        self,
        raw: bytes,
        notes: Notes,
        done: Callable[[dict[str, Any]], None],
        recipients: Sequence[str] = (),
    ) -> Callable[[], None] | None:
        """Scan with `scan_to_json`; `done` gets its result, once, in the caller's thread.

        A failure is {"reason": ...}, one of `REASONS`, with an "incident" if there is one. The
        returned callable cancels the scan; `done` is then not called.
        """


VERSION: Final = 1
UsersRelease = Literal["all", "junk", "no"]
"""What users may release to themselves: all, what was not to be rejected, or nothing."""
_SETS: Final = ("done", "dropped", "sending")


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """A message in quarantine. Envelope lines are decoded as latin-1, which preserves all bytes."""

    id: str
    time_us: int
    size_bytes: int
    sender: str
    recipients: tuple[str, ...]
    mail_line: str
    rcpt_lines: tuple[str, ...]
    xforward_lines: tuple[str, ...] = ()
    upstream: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    done: frozenset[int] = frozenset()
    """indexes of recipients that the next hop accepted"""
    dropped: frozenset[int] = frozenset()
    """indexes of recipients for whom the message is deleted"""
    sending: frozenset[int] = frozenset()
    """indexes of recipients to whom a release was begun and has not ended: they may have it"""
    replies: dict[str, str] = field(default_factory=dict)
    """index of a recipient -> the next hop's reply that did not accept it"""

    @property
    def state(self) -> str:
        """`releasing` if some recipients may have it, else `kept`."""
        return "releasing" if self.sending else "kept"

    @property
    def open(self) -> tuple[int, ...]:
        """Indexes of recipients that wait for it."""
        gone = self.done | self.dropped
        return tuple(at for at in range(len(self.rcpt_lines)) if at not in gone)

    @property
    def names(self) -> tuple[str, ...]:
        """The recipients' addresses, by index; the whole line of one without an address."""
        names = self.recipients + self.rcpt_lines[len(self.recipients) :]
        return names[: len(self.rcpt_lines)]

    def numbers_of(self, addresses: Iterable[str], among: Collection[int]) -> frozenset[int]:
        """Those of some indexes whose recipients have these addresses.

        Failure: UserError for an address that none of them has.
        """
        wanted = frozenset(addresses)
        found = frozenset(at for at in among if self.names[at] in wanted)
        unknown = sorted(wanted - {self.names[at] for at in found})
        if unknown:
            raise UserError(f"{unknown[0]!r} is not a recipient of this message")
        return found

    def ended(self, to: Iterable[int], replies: Mapping[int, ReleaseReply]) -> QuarantinedMessage:
        """The record after a release to some recipients ended with these replies of the next hop.

        Without the final reply a recipient may have the message.
        """
        took = {at for at, reply in replies.items() if 200 <= reply.code < 300}
        maybe = {at for at, reply in replies.items() if reply.code == 0}
        new = {str(at): str(reply) for at, reply in replies.items() if at not in took}
        old = {at: text for at, text in self.replies.items() if int(at) not in took}
        return replace(
            self,
            done=self.done | took,
            sending=self.sending.difference(to) | maybe,
            replies=old | new,
        )

    def may_release(self, allowed: UsersRelease) -> bool:
        """Whether users may release it to themselves."""
        return allowed == "all" or (allowed == "junk" and self.facts.get("decision") != "reject")

    def results(self) -> list[tuple[str, str]]:
        """Each recipient, and what became of the message for them."""
        fixed = dict.fromkeys(self.dropped, "deleted") | dict.fromkeys(self.done, "delivered")
        return [
            (name, fixed.get(at) or self.replies.get(str(at), "kept"))
            for at, name in enumerate(self.names)
        ]

    def as_dict(self, own: Collection[int] | None = None) -> dict[str, Any]:
        """The message's entry as values that JSON can represent; of some recipients, or of all."""
        shown = range(len(self.names)) if own is None else own
        sending = not self.sending.isdisjoint(shown)
        return {
            "id": self.id,
            "time": iso(self.time_us),
            "bytes": self.size_bytes,
            "sender": self.sender,
            "recipients": [name for at, name in enumerate(self.recipients) if at in shown],
            "waiting": [name for at, name in enumerate(self.recipients)
                        if at in shown and at in self.open],
            "upstream": self.upstream,
            "state": "releasing" if sending else "kept",
            "replies": {at: text for at, text in self.replies.items() if int(at) in shown},
            "facts": self.facts,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReleasedMessage:
    """A message to send, with its original envelope lines."""

    raw: bytes
    mail_line: bytes
    rcpt_lines: tuple[bytes, ...]
    xforward_lines: tuple[bytes, ...] = ()
    upstream: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseReply:
    """The next hop's reply for one recipient; code 0: no reply after the final dot."""

    code: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip() if self.code else "no reply"


Send = Callable[[ReleasedMessage], Sequence[ReleaseReply]]
"""A reply for each recipient, in order. PeerError: certainly not delivered."""


def encoded(entry: QuarantinedMessage) -> bytes:
    """The sidecar as JSON, which escapes non-ASCII, so any byte of an envelope is preserved."""
    found = {"version": VERSION, **asdict(entry), "state": entry.state}
    sets = {name: sorted(found.pop(name)) for name in _SETS}
    # Empty sets are left out: earlier versions can read only a record without the newer ones.
    found |= {name: numbers for name, numbers in sets.items() if numbers or name == "done"}
    return json.dumps(found, default=str, indent=1).encode() + b"\n"


def decoded(text: bytes, identity: str) -> QuarantinedMessage:
    """The record in a sidecar."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found.pop("version") != VERSION:
            raise StoreDamagedError(f"the message {identity} was kept by another version")
        releasing = found.pop("state", "") == "releasing"
        for name in ("recipients", "rcpt_lines", "xforward_lines"):
            found[name] = tuple(found[name])
        found |= {name: frozenset(found.get(name, ())) for name in _SETS}
        entry = QuarantinedMessage(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreDamagedError(f"the sidecar of {identity} cannot be read") from error
    if releasing and not entry.sending:  # earlier versions did not say to whom the release is
        return replace(entry, sending=frozenset(entry.open))
    return entry
