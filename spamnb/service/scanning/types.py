"""What the mail path hands in to be judged, and what it is told to do then. Values only.

The front door knows nothing of models, rules or quarantine, and those know nothing of sockets:
this is all that passes between them. A `MessageScanner` answers by calling back, at once or later,
always exactly once, and never raises: a fault of ours is an outcome like any other.
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
    """What becomes of a message that cannot be judged as a whole, by the reason.

    Where a sender can bring the reason about at will, the message is deferred, or judged by a part
    of it. Where the reason lasts until the administrator acts, or would hit the same message at
    each attempt, deferral would lose honest mail, so the message passes.
    """

    oversize: Literal["unscanned", "head"] = "head"
    on_fault: Fallback = "deliver"
    busy: Fallback = "defer"
    overrun: Fallback = "defer"
    known_crasher: Literal["head", "deliver", "defer"] = "head"

    def of(self, reason: str) -> Fallback:
        """What becomes of a message that is not judged, for one of `stamp.Reason`."""
        asked = {"busy": self.busy, "overrun": self.overrun}.get(reason, self.on_fault)
        if reason == "known_crasher":
            return "defer" if self.known_crasher == "defer" else "deliver"
        return "deliver" if reason in {"bypass", "large"} else asked


class ScanRequest(NamedTuple):
    """A message in its envelope."""

    raw: bytes
    """CRLF line ends, dots not stuffed. If it is not whole: its first `scan_limit` bytes, or just
    its header section where such messages are not judged"""
    envelope: Envelope
    before_queue: bool = False
    """the sender waits for our reply, so a refusal is possible"""
    whole: bool = True
    log_id: str = ""
    """names the transaction in the log"""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What becomes of a message.

    relay: to the next hop, with our header lines. keep: it lies in our quarantine, file and folder
    synced; say 250. refuse: a permanent no (before the queue only). defer: a temporary no.
    """

    action: Action = "relay"
    block: bytes = b""
    """our header lines, CRLF, to stand before the first byte of the message"""
    tag: bytes = b""
    """to stand before the subject's text; empty leaves the subject alone"""
    reply: bytes = b""
    """text of the reply after its code, for all but relay; one line without CRLF"""
    withdraw: Callable[[], None] | None = None
    """takes what is kept away again; called where this outcome came too late to be followed"""
    facts: dict[str, object] = field(default_factory=dict)
    """for the one log line: verdict, probability, decision, handling, reason, scan_ms, incident"""


Done = Callable[[ScanResult], None]


class MessageScanner(Protocol):
    """Judges letters."""

    def scan(self, request: ScanRequest, done: Done) -> Callable[[], None] | None:
        """Judge; `done` is called exactly once, in the caller's thread.

        What is returned, if anything, takes the letter back: `done` is then not called any more.
        """


def unjudged(
    reason: str, fallbacks: Fallbacks, meters: Meters, *, observed: bool = False
) -> ScanResult:
    """The outcome of a message that was not judged, counted by its reason.

    An observed message is never deferred: its verdict would have changed nothing.
    """
    reason = reason if reason in REASONS else "fault"
    facts: dict[str, object] = {"verdict": "unscanned", "reason": reason}
    if fallbacks.of(reason) == "defer" and not observed:
        meters.count("unscanned_deferred")
        return ScanResult("defer", reply=BUSY if reason == "busy" else DEFERRED, facts=facts)
    meters.count("unscanned")
    meters.count(f"unscanned_{reason}")
    return ScanResult("relay", b"" if observed else unscanned_block(reason), facts=facts)
