"""A receipt: what a training changed, and the handle that takes it back."""

from __future__ import annotations

from typing import NamedTuple

from spamnb.errors import SpamnbError


class Receipt(NamedTuple):
    """Every training gives one, also the one that changed nothing."""

    changed: bool
    event: int
    """the event's number in the journal, the handle for undo; the standing one's if unchanged"""
    digest: str
    message_id: str
    before: str | None
    """the label the message had"""
    after: str | None
    """the label it has now; None after a forget"""
    probability_before: float | None = None
    probability_after: float | None = None
    reason: str = ""
    """why nothing changed"""
    error: SpamnbError | None = None
    """why it was refused; only in batches, a single call raises it"""

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return {
            "changed": self.changed,
            "event": self.event,
            "digest": self.digest,
            "message_id": self.message_id,
            "before": self.before,
            "after": self.after,
            "probability_before": self.probability_before,
            "probability_after": self.probability_after,
            "reason": self.reason or (str(self.error) if self.error else ""),
        }
