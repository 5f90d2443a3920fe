"""Feedback and its result: the values that every channel exchanges with `FeedbackService`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from spamnb.engine.receipt import Receipt
from spamnb.policy.rulings import Word

Trust = Literal["admin", "user", "stranger"]
State = Literal["learnt", "listed", "unchanged", "waiting", "review", "refused"]


@dataclass(frozen=True, slots=True)
class Feedback:
    """A label for one message, with its source."""

    label: str
    """empty: remove the message's training"""
    raw: bytes = b""
    """the message itself, or ..."""
    refs: tuple[str, ...] = ()
    """... its references: signature, digest or message id; the first known one counts"""
    user: str = ""
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
    person: str = ""
    """an admin's label for one person: that person's address or login"""


class ListTarget(NamedTuple):
    """Who asks, and whose list is meant."""

    user: str = ""
    trust: Trust = "user"
    person: str = ""
    """an administrator names the person by address or login"""
    domain: str = ""
    """an administrator names a domain of recipients"""


@dataclass(frozen=True, slots=True)
class SenderChange:
    """One change of a list."""

    target: ListTarget
    word: Word | None
    """None removes the sender"""
    sender: str = ""
    """an address or a domain, or ..."""
    raw: bytes = b""
    """... a message, of which the author is meant, or ..."""
    refs: tuple[str, ...] = ()
    """... its references: signature, digest or Message-ID of the history"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a feedback."""

    state: State
    receipt: Receipt | None = None
    reason: str = ""
    review: str = ""
    """the entry's name in the review queue, if it is queued"""
    facts: dict[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        receipt = self.receipt.as_dict() if self.receipt else None
        return {
            "state": self.state,
            "reason": self.reason,
            "review": self.review,
            "receipt": receipt,
            "facts": self.facts,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Return the answer of `as_dict`; KeyError, TypeError or ValueError for other values."""
        receipt = found.get("receipt")
        return cls(
            found["state"],
            Receipt.from_dict(receipt) if receipt else None,
            str(found.get("reason", "")),
            str(found.get("review", "")),
            dict(found.get("facts") or {}),
        )
