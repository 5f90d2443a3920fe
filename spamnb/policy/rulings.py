"""What a list decides about a message, whatever its verdict is. Pure.

The first row that names the sender decides:

    test message   the doctor's, by its secret (`headers`)            junk
    allow list     the administrator's file, for all recipients       deliver
    block list     the administrator's file, for all recipients       reject
    person         the list of the recipient      wanted: deliver     unwanted: junk, or worse
    domain         the list of its domain         wanted: deliver     unwanted: junk, or worse
    site           the list for all recipients    wanted: deliver     unwanted: junk, or worse
    -              the verdict of the model

The last three of the lists are `senders.SenderList`. A list that wants the sender decides only if
the sender is authentic; otherwise the entry is ignored, so a forged sender gains nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple, get_args

from spamnb.model.costs import DECISIONS, Decision
from spamnb.policy.headers import ScanVerdict, verdict_for

Word = Literal["wanted", "unwanted"]
"""of a sender in a list of senders"""
Side = Literal["test", "allow", "block", "wanted", "unwanted"]

WORDS: Final[tuple[Word, ...]] = get_args(Word)

_DECIDED: Final[Mapping[Side, Decision]] = {
    "test": "junk",
    "allow": "deliver",
    "block": "reject",
    "wanted": "deliver",
    "unwanted": "junk",
}
"""decision of each list; the action map turns it into an action"""


class Ruling(NamedTuple):
    """The decision of a list."""

    side: Side
    kind: str
    """what the entry of a file names, or the owner of a list of senders"""
    entry: str
    """the entry that decided, for the log"""

    @property
    def reason(self) -> str:
        """The reason for the header, without the entry, which is not public."""
        return f"{self.side}-{self.kind}"

    def decide(self, decision: Decision) -> Decision:
        """The decision that replaces the one by the verdict."""
        ruled = _DECIDED[self.side]
        return ruled if ruled == "deliver" else max(decision, ruled, key=DECISIONS.index)


class Rulings(NamedTuple):
    """The decisions of lists about a message, for each recipient."""

    for_all: Ruling | None = None
    """for all recipients that are not in `own`"""
    own: Mapping[str, Ruling] = {}
    """by recipient"""

    def reason(self, recipients: Collection[str]) -> str:
        """The reason that holds for each of these recipients; empty if there is none."""
        found = {self.of(one) for one in recipients} or {self.for_all}
        reasons = {one.reason if one else "" for one in found}
        return reasons.pop() if len(reasons) == 1 else ""

    @property
    def entry(self) -> str:
        """The entries that decided, for the log."""
        found = {one.entry for one in (self.for_all, *self.own.values()) if one}
        return " ".join(sorted(found)[:8])

    def of(self, recipient: str) -> Ruling | None:
        """The decision for one recipient."""
        return self.own.get(recipient, self.for_all)

    def applied(self, found: ScanVerdict) -> ScanVerdict:
        """The verdicts with the decisions of the lists."""
        if self.for_all is None and not self.own:
            return found
        names = {**found.personal, **self.own}
        personal = {name: _ruled(found.of(name), self.of(name)) for name in names}
        return _ruled(found, self.for_all)._replace(personal=personal)


def _ruled(verdict: ScanVerdict, ruling: Ruling | None) -> ScanVerdict:
    if ruling is None:
        return verdict
    decision = ruling.decide(verdict.decision)
    return verdict._replace(decision=decision, reason=ruling.reason, personal={})


def shown_verdict(found: ScanVerdict, recipients: tuple[str, ...]) -> ScanVerdict:
    """The one verdict that a message with these recipients shows.

    The header must not tell one recipient which senders another recipient wants, so a verdict for
    several has a reason only if each of them has the same one.
    """
    shown = verdict_for(found, found.personal, recipients)
    if shown is found or len({found.of(one).reason for one in recipients}) == 1:
        return shown
    return shown._replace(reason="")
