"""One message with the verdicts of both filters. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from spamnb.core.mail.filter_marks import OtherVerdict
from spamnb.core.model.costs import Decision

Truth = Literal["ham", "spam"]

VERDICT_OF: Final[Mapping[Decision, OtherVerdict]] = {
    "deliver": "ham", "unsure": "unsure", "junk": "spam", "reject": "spam",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedVerdict:
    """One message."""

    ident: str
    """unique: the hexadecimal digest"""
    name: str
    """a path or the Message-ID, by which a user finds the message"""
    decision: Decision
    """of this filter"""
    probability: float
    other: OtherVerdict
    truth: Truth | None = None
    """the label that a user gave; None if no user gave one"""
    tests: tuple[str, ...] = ()
    """of the other filter"""
    domains: tuple[str, ...] = ()
    """of the recipients"""
    facts: tuple[tuple[str, str], ...] = ()
    """names and values by which a user recognises the message"""
    own_ms: float | None = None
    other_ms: float | None = None

    @property
    def own(self) -> OtherVerdict:
        """The verdict of this filter in the words of the other one."""
        return VERDICT_OF[self.decision]

    @property
    def own_files(self) -> bool:
        """Whether this filter files the message as junk."""
        return self.own == "spam"

    @property
    def other_files(self) -> bool:
        """Whether the other filter files the message as junk."""
        return self.other == "spam"

    @property
    def moves(self) -> bool:
        """Whether this filter would put the message into another folder."""
        return self.own_files != self.other_files
