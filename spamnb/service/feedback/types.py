"""Feedback and its result: the values that every channel exchanges with `FeedbackService`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from spamnb.service.engine.receipt import Receipt

Trust = Literal["admin", "user", "stranger"]
State = Literal["learnt", "unchanged", "review", "refused"]


@dataclass(frozen=True, slots=True)
class Feedback:
    """A label for one message, with its source."""

    label: str
    """empty: remove the message's training"""
    raw: bytes = b""
    """the message itself, or ..."""
    refs: tuple[str, ...] = ()
    """... its references: signature, digest or message id; the first known one counts"""
    who: str = ""
    """the user's name; for users the address or login that messages are delivered to"""
    channel: str = "api"
    trust: Trust = "user"
    """admin: any message. user: messages delivered to them. stranger: queued for review"""
    vouched: bool = False
    """a trusted program saw the message in the user's mailbox, so it need not be in the history"""
    domain: str = ""
    """the domain of the feedback address, if the report came by mail"""
    client: str = ""
    """the network that the report came from, if known"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a feedback."""

    state: State
    receipt: Receipt | None = None
    reason: str = ""
    review: str = ""
    """the entry's name in the review queue, if it is queued"""
    facts: dict[str, object] = field(default_factory=dict)
