"""`Receipt`: what a training changed, and the event number that undoes it.

A receipt of a training that changed nothing has no event number, because the event that set the
label may be another person's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from spamnb.errors import SpamnbError


class Receipt(NamedTuple):
    """The result of one training request, whether it changed the model or not."""

    changed: bool
    event: int
    """number of the new event in the journal, for `undo`; 0 if nothing changed"""
    digest: str
    message_id: str
    before: str | None
    """the label the message had"""
    after: str | None
    """the label it has now; None after a forget"""
    probability_before: float | None = None
    probability_after: float | None = None
    reason: str = ""
    """why nothing changed, or what the change lacks"""
    error: SpamnbError | None = None
    """why the request was refused; only from batches, because a single call raises it"""
    stored_bytes: int = 0
    """bytes that the change added to the model and its journal; only with probabilities"""
    limited: bool = False
    """whether so much of the daily budget was spent that the shared step was a small one"""
    already: int = 0
    """if nothing changed: the event that set the message's label; not for `undo`"""
    waiting: int = 0
    """number of the correction that waits for the log of the fleet; nothing has changed yet"""
    in_force: str | None = None
    """the label that decides the verdict on this message; None if there is none, for the label of a
    person, and while the correction waits"""
    why: str = ""
    """why that label is in force"""

    def as_dict(self) -> dict[str, object]:
        """Return the receipt as values that JSON can represent."""
        return {
            "changed": self.changed,
            "event": self.event or None,
            "digest": self.digest,
            "message_id": self.message_id,
            "before": self.before,
            "after": self.after,
            "probability_before": self.probability_before,
            "probability_after": self.probability_after,
            "reason": self.reason or (str(self.error) if self.error else ""),
            "already": self.already or None,
            "waiting": self.waiting or None,
            "in_force": self.in_force,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the receipt from which `as_dict` made these values."""
        numbers = {name: values.get(name) or 0 for name in ("event", "already", "waiting")}
        return cls(**{**values, **numbers})
