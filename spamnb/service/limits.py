"""Limits of feedback, review queue, spool and quarantine, as the settings hold them.

They are defined apart from the modules that enforce them because every command reads the settings:
importing those four modules would add about 10 ms each to its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from spamnb.core.mail.domains import address_of, domain_of

Unproven = Literal["review", "refuse", "learn"]


@dataclass(frozen=True, slots=True)
class TeachingRules:
    """Which feedback is accepted, and how much of it from each sender."""

    limit_bytes: int = 32 << 20
    """maximum size of a message"""
    user_per_day: int = 5000
    """Changes by one user. Moving one whole folder makes about a thousand; a runaway program is
    stopped before it damages the model."""
    user_bytes_per_day: int = 32 << 20
    """Bytes that one user's changes add to the model: about 70 for a new feature, 7 for a known
    one. In an empty model 1,000 ordinary messages take 9 MB, and 5,000 take 28 MB."""
    stranger_per_day: int = 20
    strangers_per_day: int = 200
    """All unknown senders together, because sender names are free to invent. Feedback that an
    unknown sender cannot prove is counted separately with the same limits, by source network."""
    sure: float = 0.999
    """a channel with low trust cannot contradict a verdict of this probability"""
    unproven: Unproven = "review"
    """what to do with a user's feedback on a message that is not known to be delivered to that
    user: it arrived before spamnb was installed, or is no longer in the history"""
    domains: tuple[str, ...] = ()
    """domains whose addresses are logins of this site; empty: all domains with local delivery"""
    served: frozenset[str] = frozenset()
    """domains with mailboxes at this site, derived from other settings; empty: not known"""
    delimiter: str = "+"
    """in a local part, the delimiter and what follows it do not change the mailbox; empty: none"""
    exact: frozenset[str] = frozenset()
    """addresses whose mailboxes have the delimiter in their names"""

    def mailbox(self, address: str) -> str:
        """The mailbox of an address or a login."""
        return address_of(address, self.delimiter, self.exact)

    def owner(self, user: str) -> str:
        """The mailbox of a user; an address of a domain of logins is that login."""
        mailbox = self.mailbox(user)
        local, _, domain = mailbox.rpartition("@")
        logins = {domain_of(f"@{name}") for name in self.domains}
        return local if local and domain in logins else mailbox


class ReviewLimits(NamedTuple):
    """Size of the review queue."""

    max_messages: int = 1000
    limit_bytes: int = 256 << 20
    keep_days: int = 30
    share: int = 8
    """one user may fill an eighth of the queue, so that no user blocks the others"""
    strangers: int = 2
    """unknown senders may fill half of the queue, one network of them an eighth of that half"""


class SpoolLimits(NamedTuple):
    """How much is read from a spool."""

    file_bytes: int = 32 << 20
    each_owner: int = 200
    """files of one owner in one pass, so that the files of other owners are read too"""
    owner_bytes: int = 8 << 20
    """... and their bytes: learning takes about half a second for each megabyte"""
    max_invalid: int = 100
    """invalid entries kept for the administrator to inspect; more are removed"""


class QuarantineLimits(NamedTuple):
    """Size of the quarantine, and how long messages stay in it."""

    keep_days: int = 30
    """as long as the history, so that a released message can still be learnt by its signature"""
    limit_bytes: int = 1 << 30
    """messages and metadata files together; when it is reached, messages are delivered with
    headers"""
