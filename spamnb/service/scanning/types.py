"""Requests and results of scanning. Values only.

Everything that passes between an endpoint and the scanner: the endpoint knows no models, rules or
quarantine, and the scanner knows no sockets. A `MessageScanner` calls back exactly once,
immediately or later, and never raises: an internal fault is a result as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol

from spamnb.core.mail.envelope import Envelope
from spamnb.core.policy.verdict_headers import REASONS, unscanned_block
from spamnb.service.telemetry.metrics import Meters

Action = Literal["relay", "keep", "refuse", "defer"]
Fallback = Literal["deliver", "defer"]

DEFERRED: Final = b"4.3.0 Temporary failure, please try again later"
BUSY: Final = b"4.3.2 Too much mail at the moment, please try again later"


@dataclass(frozen=True, kw_only=True)
class Fallbacks:
    """The policy for messages that cannot be scanned as a whole, by the reason.

    Where a sender can cause the reason, the message is deferred, or scanned in part. Where the
    reason lasts until the administrator acts, or affects the same message at each attempt, deferral
    would lose legitimate mail, so the message is delivered.
    """

    oversize: Literal["unscanned", "head"] = "head"
    on_fault: Fallback = "deliver"
    busy: Fallback = "defer"
    overrun: Fallback = "defer"
    known_crasher: Literal["head", "deliver", "defer"] = "head"

    def of(self, reason: str) -> Fallback:
        """The policy for a message that was not scanned, for one of `REASONS`."""
        policy = {"busy": self.busy, "overrun": self.overrun}.get(reason, self.on_fault)
        if reason == "known_crasher":
            return "defer" if self.known_crasher == "defer" else "deliver"
        return "deliver" if reason in {"bypass", "large"} else policy


class ScanRequest(NamedTuple):
    """A message with its envelope."""

    raw: bytes
    """CRLF line ends, dots not stuffed. If not whole: its first `scan_limit` bytes, or its
    header section alone where such messages are not scanned"""
    envelope: Envelope
    before_queue: bool = False
    """whether the client waits for the reply, so that a rejection is possible"""
    whole: bool = True


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The action for a message.

    relay: forward it with the header lines in `block`. keep: it is in quarantine, file and folder
    synced; reply 250. refuse: reject it (before the queue only). defer: reject it temporarily.
    """

    action: Action = "relay"
    block: bytes = b""
    """the product's header lines, CRLF, to be put before the first byte of the message"""
    tag: bytes = b""
    """to be put before the subject's text; empty leaves the subject unchanged"""
    reply: bytes = b""
    """text of the reply after its code, for all actions but relay; one line without CRLF"""
    withdraw: Callable[[], None] | None = None
    """deletes the message from quarantine; called if this result came too late"""
    facts: dict[str, object] = field(default_factory=dict)
    """for the one log line: verdict, probability, decision, handling, reason, scan_ms, incident"""


Done = Callable[[ScanResult], None]


class MessageScanner(Protocol):
    """Scans messages."""

    def scan(self, request: ScanRequest, done: Done) -> Callable[[], None] | None:
        """Scan; `done` is called exactly once, in the caller's thread.

        The returned callable, if any, cancels the scan: `done` is then not called any more.
        """


def unscanned_result(
    reason: str, fallbacks: Fallbacks, meters: Meters, *, observed: bool = False
) -> ScanResult:
    """The result of a message that was not scanned, counted by its reason.

    An observed message is never deferred: its verdict would have had no effect.
    """
    reason = reason if reason in REASONS else "fault"
    facts: dict[str, object] = {"verdict": "unscanned", "reason": reason}
    if fallbacks.of(reason) == "defer" and not observed:
        meters.count("unscanned_deferred")
        return ScanResult("defer", reply=BUSY if reason == "busy" else DEFERRED, facts=facts)
    meters.count("unscanned")
    meters.count(f"unscanned_{reason}")
    return ScanResult("relay", b"" if observed else unscanned_block(reason), facts=facts)
