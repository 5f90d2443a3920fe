"""What the mail path hands in to be judged, and what it is told to do then. Values only.

The front door knows nothing of models, rules or quarantine, and those know nothing of sockets:
this is all that passes between them. A `Scanner` answers by calling back, at once or later, always
exactly once, and never raises: a fault of ours is an outcome like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from spamnb.core.envelope import Envelope

Action = Literal["relay", "keep", "refuse", "defer"]


class Letter(NamedTuple):
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
class Outcome:
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


Done = Callable[[Outcome], None]


class Scanner(Protocol):
    """Judges letters."""

    def scan(self, letter: Letter, done: Done) -> None:
        """Judge; `done` is called exactly once, in the caller's thread."""
