"""What the reader of a mailbox needs from its caller, and what it reports. Values only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from spamnb.service.feedback.types import Answer, Feedback
from spamnb.service.scanning.model_session import Found

Done = Literal["judged", "moved", "flagged", "not moved", "unscanned", "learnt", "refused"]


class ImapReport(NamedTuple):
    """What was done with one message."""

    account: str
    done: Done
    folder: str
    """where it was found, for people"""
    uid: int
    decision: str = ""
    probability: float | None = None
    answer: Answer | None = None
    """to the label, of a message that the user moved"""
    text: str = ""
    """the server's reason, or the reason of a refusal"""

    def facts(self) -> dict[str, object]:
        """Return it as values for a log or JSON, without what is empty."""
        found: dict[str, object] = {
            "account": self.account,
            "done": self.done,
            "folder": self.folder,
            "uid": self.uid,
            "decision": self.decision,
            "probability": None if self.probability is None else round(self.probability, 6),
            "event_number": self.answer.receipt.event if self.answer and self.answer.receipt else 0,
            "reason": self.text,
        }
        return {name: value for name, value in found.items() if value not in (None, "", 0)}


class ImapPorts(NamedTuple):
    """The model, and where reports go; called by one thread for each account."""

    judge: Callable[[list[bytes], str], list[Found]]
    """the verdicts on messages of a user; never raises"""
    label_of: Callable[[bytes, str], str | None]
    """the label that a message is trained with for a user"""
    teach: Callable[[Feedback], Answer]
    report: Callable[[ImapReport], None]
