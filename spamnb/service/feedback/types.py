"""The one way in for everybody who teaches: what they say, and whose word it is. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from spamnb.service.engine.receipt import Receipt

Channel = Literal["cli", "address", "imap", "maildir", "arf", "trap", "api"]
Trust = Literal["admin", "user", "stranger"]
State = Literal["learnt", "unchanged", "review", "refused"]


@dataclass(frozen=True, slots=True)
class Feedback:
    """One word on one message."""

    label: str
    """empty: forget what was learnt of it"""
    raw: bytes = b""
    """the message itself, or ..."""
    refs: tuple[str, ...] = ()
    """... what names it: signature, digest or message id; the first that is known counts"""
    who: str = ""
    """the person; for users the address or login that messages are delivered to"""
    channel: str = "api"
    trust: Trust = "user"
    """admin: of every message. user: of messages delivered to them. stranger: waits for review"""
    vouched: bool = False
    """somebody we trust saw the message in that person's mailbox: it need not be known to us"""
    domain: str = ""
    """the domain of the address that took the report, if it came by mail"""
    client: str = ""
    """the network that the report came from, if that is known"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a feedback."""

    state: State
    receipt: Receipt | None = None
    reason: str = ""
    review: str = ""
    """names the entry in the review list, if it waits there"""
    facts: dict[str, object] = field(default_factory=dict)
