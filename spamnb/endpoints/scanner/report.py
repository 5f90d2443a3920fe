"""A scan's result in the words that all protocols share. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from spamnb.core.model.verdict import Clue
from spamnb.core.policy.actions import MailAction
from spamnb.core.policy.verdict_headers import REQUIRED_SCORE
from spamnb.service.scanning.types import ScanResult

_ACTIONS: Final[dict[MailAction, str]] = {
    "reject": "reject",
    "tag": "rewrite subject",
    "quarantine": "add header",
}
"""rspamd's name of an action; for other actions the decision gives the name"""
_UNSAFE = re.compile(r"[^ -~]|[;,()<>]")
_CLUE_CHARACTERS: Final = 80


class ScanReport(NamedTuple):
    """One message's result."""

    spam: bool
    score: float
    reject_score: float
    symbol: str
    action: str
    """in rspamd's words"""
    summary: str
    clues: tuple[str, ...]
    skipped: bool
    """whether there is no verdict, or none for this client"""

    @property
    def spam_line(self) -> str:
        """The verdict in SpamAssassin's words."""
        return f"{self.spam} ; {self.score:.1f} / {REQUIRED_SCORE:.1f}"

    @property
    def text(self) -> str:
        """The report for people."""
        lines = [self.summary, "", f"{self.score:5.1f} {self.symbol}"]
        return "\n".join([*lines, *(f"      {clue}" for clue in self.clues)]) + "\n"

    def symbols(self) -> dict[str, tuple[float, str]]:
        """Name -> score and description; the verdict has the whole score."""
        found = {self.symbol: (self.score, self.summary)}
        for number, clue in enumerate(self.clues, 1):
            found[f"SPAMNB_CLUE_{number}"] = (0.0, clue)
        return found


def report_of(result: ScanResult) -> ScanReport:
    """Return the report of a result that is not deferred."""
    if result.advice is None:
        reason = str(result.facts.get("reason", ""))
        observed = bool(result.facts.get("observed"))
        symbol = "SPAMNB_OBSERVED" if observed else "SPAMNB_UNSCANNED"
        why = "observed only" if observed else f"unscanned, reason {reason}"
        return ScanReport(False, 0.0, 999.0, symbol, "no action", f"spamnb: {why}", (), True)
    verdict, mail_action, score, reject_score = result.advice
    spam = verdict.decision in ("junk", "reject")
    harsh = "add header" if spam else "no action"
    reason = f", reason {verdict.reason}" if verdict.reason else ""
    summary = (
        f"spamnb: {verdict.decision}, label {verdict.label}, probability "
        f"{verdict.probability:.4f}, score {score:.1f} of {REQUIRED_SCORE:.1f}{reason}"
    )
    symbol = f"SPAMNB_{verdict.decision.upper()}"
    action = _ACTIONS.get(mail_action, harsh)
    clues = tuple(map(_clue_text, verdict.clues))
    return ScanReport(spam, score, reject_score, symbol, action, summary, clues, False)


def _clue_text(clue: Clue) -> str:
    token = _UNSAFE.sub("_", f"{clue.location}: {clue.token}")[:_CLUE_CHARACTERS]
    return f"{token} {clue.nats:+.2f}"
