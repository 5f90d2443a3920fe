"""Requests, results and options of scanning, and the interfaces that it needs. Values only.

Everything that passes between an endpoint and the scanner: the endpoint knows no models, rules,
fallbacks or quarantine, and the scanner knows no sockets. A `MessageScanner` calls back exactly
once, immediately or later, and never raises: an internal fault is a result as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from spamnb.core.mail.envelope import Envelope
from spamnb.core.policy.actions import MailAction
from spamnb.core.policy.verdict_headers import Fields, ScanVerdict
from spamnb.errors import SettingsError

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
    """a message is junk from `verdict_headers.REQUIRED_SCORE` on"""
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
