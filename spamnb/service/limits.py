"""How much may be taught, kept and left: values that the settings hold as they are.

They stand apart from what keeps to them, since every command reads the settings: the four modules
with their imports would take each some 10 ms more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Unproven = Literal["review", "refuse", "learn"]


@dataclass(frozen=True, slots=True)
class TeachingRules:
    """How much is taken from whom."""

    limit_bytes: int = 32 << 20
    """the largest message that is taken"""
    user_per_day: int = 5000
    """Changes by one person. One move of a whole folder is a thousand; a program that has gone
    wild is stopped before it has moved the model for good."""
    user_bytes_per_day: int = 32 << 20
    """Bytes that one person's changes add to the model: some 70 for a new feature, 7 for a known
    one. In an empty model a thousand ordinary messages take 9 MB, and 5,000 take 28."""
    stranger_per_day: int = 20
    strangers_per_day: int = 200
    """All strangers together: their names cost nothing. What strangers cannot prove is counted
    apart, by the same numbers, and each by the network that it came from."""
    sure: float = 0.999
    """so sure a verdict is not contradicted by a channel that is careful"""
    unproven: Unproven = "review"
    """a user's message that is not known to be theirs: it came before us, or is too old"""
    domains: tuple[str, ...] = ()
    """domains whose addresses are our logins; empty: all that mail is delivered for"""
    served: frozenset[str] = frozenset()
    """domains whose mailboxes are at this site, as far as other settings tell; empty: not known"""
    delimiter: str = "+"
    """what follows it in a local part names the same mailbox; empty: nothing does"""


class ReviewLimits(NamedTuple):
    """How much may wait for an admin's word."""

    most: int = 1000
    limit_bytes: int = 256 << 20
    keep_days: int = 30
    share: int = 8
    """one person may fill an eighth of it, so that nobody shuts the others out"""
    strangers: int = 2
    """strangers may fill half of it, one network of them an eighth of that half"""


class SpoolLimits(NamedTuple):
    """How much is taken from a spool."""

    file_bytes: int = 32 << 20
    each_owner: int = 200
    """files of one owner in one look, so that others get their turn"""
    aside: int = 100
    """entries kept for somebody to look at; more are removed"""


class QuarantineLimits(NamedTuple):
    """How much is kept in quarantine, and how long."""

    keep_days: int = 30
    """as long as the history, so that a release can still teach by its signature"""
    limit_bytes: int = 1 << 30
    """of messages and sidecars together; when it is reached, messages are delivered with headers"""
