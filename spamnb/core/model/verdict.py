"""The verdict on a message: label, probability, decision, and the clues that add up to it.

A verdict is a value. Its clues are computed on request, from the rows that the score came from;
they need no store and no message. Must not know where the numbers came from.
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spamnb.core.model.costs import Decision, OwnCosts, roles_of
from spamnb.core.model.decision import spam_log_odds
from spamnb.core.model.events import Ids
from spamnb.core.model.novelty import USUAL, Novelty
from spamnb.core.model.scoring import softmax
from spamnb.core.model.site_threshold import SHIPPED

SIGNATURE_BYTES = 16
"""128 unguessable bits; in a fleet 112, after two bytes that name the host"""
SIGNATURE = re.compile(r"s[a-z2-7]{26}")
"""a signature as text"""


class Clue(NamedTuple):
    """One feature and its share of the log-odds in nats; above 0 it supports the first side."""

    location: str
    token: str
    nats: float
    prior: bool = False
    """its weight is that of a prior: no learnt message has the feature"""


class Clues(NamedTuple):
    """Clues of a message, strongest first, and the log-odds without any feature."""

    clues: tuple[Clue, ...]
    bias: float
    known: int
    """the number of all clues, including those that are not listed"""


Explain = Callable[[int | None], Clues]
"""Computes as many clues as requested, all of them for None."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The model's result for one message. A person's label always takes precedence over it."""

    label: str
    probability: float
    """of spam where there is such a label, else of `label`"""
    log_odds: float
    """z[spam] - z[ham]; for other labels the winner's minus the runner-up's. Never clipped."""
    decision: Decision
    evidence: float
    """messages of the rarest label, times the share of this message's features that are known"""
    labels: tuple[str, ...]
    z: tuple[float, ...]
    digest: bytes = b""
    message_id: str = ""
    signature: str = ""
    """identifies the history entry, if the verdict was recorded"""
    reason: str = ""
    """"partly-read" if something that a mail program may show was not read; the decision is then
    `unsure` at least. "new-kind" if only its novelty keeps the message from being filed."""
    own_costs: OwnCosts | None = None
    """the costs that the decision follows from, if they are not those of the model"""
    known: float = 0.0
    """share of this message's features that are known"""
    threshold: float = SHIPPED
    """the junk threshold in nats for which the scores were stretched: the site's, and `novelty`"""
    novelty: Novelty = USUAL
    """by how much the threshold is higher than the site's: the kind of the message is new"""
    ids: tuple[Ids, ...] = field(default=(), repr=False, compare=False)
    _explain: Explain | None = field(default=None, repr=False, compare=False)

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of every label."""
        return dict(zip(self.labels, softmax(list(self.z)), strict=True))

    @property
    def spam_log_odds(self) -> float:
        """Log-odds of spam against all other labels together; decisions follow from it.

        The same as `log_odds` for ham and spam; -inf where no label is spam.
        """
        return spam_log_odds(self.z, roles_of(self.labels))

    def signed(self, signature: str) -> Verdict:
        """The verdict with its signature in the history; `replace` takes twice as long."""
        return Verdict(
            self.label, self.probability, self.log_odds, self.decision, self.evidence, self.labels,
            self.z, self.digest, self.message_id, signature, self.reason, self.own_costs,
            self.known, self.threshold, self.novelty, self.ids, self._explain,
        )  # fmt: skip

    @property
    def bias(self) -> float:
        """The log-odds of a message without features; clues plus bias make `log_odds`."""
        return self._explain(0).bias if self._explain else 0.0

    @property
    def clue_count(self) -> int:
        """How many clues there are."""
        return self._explain(0).known if self._explain else 0

    def clues(self, count: int | None = None) -> list[Clue]:
        """The strongest clues, all of them for None."""
        return list(self._explain(count).clues) if self._explain else []


def signature_text(signature: bytes) -> str:
    """A signature as the header shows it: "s" and base32 in lower case."""
    return "s" + b32encode(signature).decode().rstrip("=").lower()


def signature_bytes(text: str) -> bytes:
    """The signature from the header's value."""
    return b32decode(text[1:].upper() + "======")


def sides(labels: tuple[str, ...], z: Sequence[float]) -> tuple[int, int]:
    """The labels that the log-odds support and oppose: spam and ham, or winner and runner-up."""
    if set(labels) == {"ham", "spam"}:
        return labels.index("spam"), labels.index("ham")
    first, second, *_ = sorted(range(len(z)), key=lambda k: -z[k])
    return first, second
