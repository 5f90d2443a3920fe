"""A receipt: what a training changed, and the handle that takes it back.

A receipt of a training that changed nothing has no handle: the event that already holds the label
may be another person's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from spamnb.errors import SpamnbError


class Receipt(NamedTuple):
    """Every training gives one, also the one that changed nothing."""

    changed: bool
    event: int
    """the event's number in the journal, the handle for undo; 0 if nothing changed"""
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
    already: int = 0
    """if nothing changed, the event that holds for the message; it is no handle"""

    def as_dict(self) -> dict[str, object]:
        """For programs."""
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
        }

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """The receipt that `as_dict` tells of."""
        numbers = {name: told.get(name) or 0 for name in ("event", "already")}
        return cls(**{**told, **numbers})
