"""Verdicts: scores, decisions, the site's threshold and novelty. Pure.

`decide` chooses the decision with the least expected cost. `site_threshold` sets the score from
which a site files junk (docs/decisions/0070), `novelty` raises it for kinds of mail that ham has
not met (docs/decisions/0076), and a `Verdict` is what all of this says of one message. Must not
know models or mail, nor where the numbers came from.
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import copysign, floor, isnan, log, log2
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.errors import BugError
from spamnb.model.costs import (
    DECISIONS,
    Costs,
    Decision,
    OwnCosts,
    Role,
    roles_of,
    thresholds,
)
from spamnb.model.events import Ids
from spamnb.model.scoring import Passage, softmax, spam_log_odds


def decide(log_odds: float, costs: Costs) -> Decision:
    """Decide on one message, from its log-odds of spam.

    This is the only place that compares a score with the thresholds: a score equal to a threshold
    gets the milder decision. Scores are compared as log-odds, because expected costs, computed from
    probabilities, are equal over a range of scores near a threshold, and different expressions of
    the same probability round to different sides of it. Fails with BugError for a score that is no
    number.
    """
    if isnan(log_odds):
        raise BugError("the score of a message is not a number")
    edges, decisions = _steps(costs)
    return DECISIONS[decisions[bisect_left(edges, log_odds)]]


def at_least(decision: Decision, least: Decision) -> Decision:
    """The harsher one of two decisions."""
    return max(decision, least, key=DECISIONS.index)


def decide_many(log_odds: ArrayLike, costs: Costs) -> NDArray[np.intp]:
    """[M] index into DECISIONS for each message, as `decide` decides on it."""
    scores = np.asarray(log_odds, np.float64)
    if np.isnan(scores).any():
        raise BugError("the score of a message is not a number")
    edges, decisions = _steps(costs)
    return np.array(decisions, np.intp)[np.searchsorted(edges, scores, side="left")]


@lru_cache(maxsize=64)
def _steps(costs: Costs) -> tuple[list[float], list[int]]:
    """The thresholds in order, and the decisions below, between and above them."""
    steps = thresholds(costs)
    return (
        [one.log_odds for one in steps[1:]],
        [DECISIONS.index(one.decision) for one in steps],
    )


SHIPPED: Final = next(one.log_odds for one in thresholds(Costs()) if one.decision == "junk")
"""the threshold of junk by the default costs, in nats: 5.2"""
FLOOR: Final = 2.3
"""The threshold is never below. With 2.0 and a tenth of the mistakes answered, 17 ham were filed
instead of 7 (docs/decisions/0070)."""
YOUNG: Final = 7.0
POWER: Final = 1.5
"""4.8 nats at one taught message of the rarest label, 3.2 at three, 2.6 at seven"""
SCALE: Final = 0.7
"""nats: the mean score of ham above even odds before it is known"""
WEIGHT: Final = 10
"""so many messages of such ham weigh as much as SCALE does"""
BEGIN: Final = 3.0
"""nats: where the tail begins"""
FEW_HAM: Final = 30
LEAST_HAM: Final = 5
"""With fewer ham in the counts, the threshold is the shipped one."""
AT_WORST: Final = 2.5
"""The tail is set for a share of AT_WORST / one_in: the young threshold and the weights make the
ham lost less than what the tail says."""
RAISE: Final = 0.25
"""nats: how much the labels of one user can raise the tail of the others"""
ENOUGH: Final = 5
"""so many ham labels of others limit a user"""

STEP: Final = 0.25
LOWEST: Final = -4.0
BINS: Final = 49
"""from LOWEST to 8 nats; the first and the last also have all below and above"""
WINDOW: Final = 2000
"""The newest messages that count. With 1,000 and a third of the mistakes answered, 11 ham of 4,240
were filed instead of 6: the few labelled ham near the threshold fell out of the window
(docs/decisions/0072)."""
SETTLED_US: Final = 24 * 3600 * 1_000_000
"""after so long a delivered or filed message is presumed to be in its right place"""
FREE: Final = 100
"""so many messages of one user or sender count in any case; more only up to the number of all
others, so neither has more than half of the weight"""


class ScoredMessage(NamedTuple):
    """What is known of a message that was judged."""

    time_us: int
    score: float
    """log-odds of spam before they were stretched"""
    filed: bool | None
    """whether the decision was junk or reject; None for unsure"""
    said: Role | None = None
    """the label that a person gave it after it was judged"""
    user: str = ""
    """the person"""
    sender: str = ""
    recipient: str = ""


class ScoreCounts(NamedTuple):
    """[BINS] how many messages have a score in each step."""

    ham: tuple[int, ...]
    """a person called ham"""
    spam: tuple[int, ...]
    kept: tuple[int, ...]
    """were delivered, and not moved in time: presumed ham"""
    filed: tuple[int, ...]
    """were filed as junk, and not moved in time: presumed spam"""

    def plus(self, other: ScoreCounts, sign: int = 1) -> ScoreCounts:
        """Return the sums; with the sign -1 the differences."""
        return ScoreCounts(*(
            tuple(a + sign * b for a, b in zip(mine, its, strict=True))
            for mine, its in zip(self, other, strict=True)
        ))  # fmt: skip

    def minus(self, other: ScoreCounts) -> ScoreCounts:
        """Return the differences."""
        return self.plus(other, -1)


_EVEN: Final = round(-LOWEST / STEP)
"""the first step above even odds"""
_USUAL_TARGET: Final = 1000
"""the target with which the influence of users is limited"""
NO_SCORES: Final = ScoreCounts(*((0,) * BINS,) * 4)


def bin_of(score: float) -> int:
    """Return the step of a score."""
    highest = LOWEST + (BINS - 1) * STEP
    return floor((min(max(score, LOWEST), highest) - LOWEST) / STEP)


def middle(index: int) -> float:
    """Return the score in the middle of a step."""
    return LOWEST + (index + 0.5) * STEP


def score_below(counts: Sequence[float], share: float) -> float:
    """Return the upper end of the step below which this share of the messages is."""
    sums = list(accumulate(counts))
    return LOWEST + (bisect_left(sums, share * sums[-1]) + 1) * STEP


def count_scores(messages: Iterable[ScoredMessage], now_us: int) -> ScoreCounts:
    """Count the newest messages; they come newest first."""
    newest = [one for _, one in zip(range(WINDOW), messages, strict=False)]
    said = _bounded([one for one in newest if one.said is not None], "user")
    silent = [
        one
        for one in newest
        if one.said is None and one.filed is not None and now_us - one.time_us >= SETTLED_US
    ]
    silent = _bounded(_bounded(silent, "sender"), "recipient")
    kept = _histogram(one for one in silent if not one.filed)
    return ScoreCounts(
        _limited([one for one in said if one.said == "ham"], kept),
        _histogram(one for one in said if one.said == "spam"),
        kept,
        _histogram(one for one in silent if one.filed),
    )


def _limited(said: Sequence[ScoredMessage], kept: Sequence[int]) -> tuple[int, ...]:
    """Count ham labels; each user raises the tail of the users before by at most RAISE.

    Users whose own ham gives the lowest tail come first, so accomplices who call spam ham come
    last, and several of them raise it by RAISE each.
    """
    by_user: dict[str, list[int]] = {}
    for one in said:
        by_user.setdefault(one.user, []).append(bin_of(one.score))

    def tail_with(steps: Iterable[int], counts: Sequence[int]) -> float:
        found = list(counts)
        for step in steps:
            found[step] += 1
        return _tail(found, AT_WORST / _USUAL_TARGET)

    counts, before = [0] * BINS, 0
    alone = {user: tail_with(steps, kept) for user, steps in by_user.items()}
    for user in sorted(alone, key=lambda name: (alone[name], name)):
        steps = sorted(by_user[user])
        everything = [a + b for a, b in zip(counts, kept, strict=True)]
        if before >= ENOUGH:
            most = tail_with((), everything) + RAISE
            while tail_with(steps, everything) > most:
                steps.pop()
        for step in steps:
            counts[step] += 1
        before += len(steps)
    return tuple(counts)


def _bounded(messages: Sequence[ScoredMessage], name: str) -> list[ScoredMessage]:
    """Leave out older messages of a user or sender that has more than half of them."""
    counts = Counter(value for one in messages if (value := getattr(one, name)))
    if not counts:
        return list(messages)
    most, count = counts.most_common(1)[0]
    left = max(FREE, len(messages) - count)
    if count <= left or count == len(messages):
        return list(messages)
    kept = []
    for one in messages:
        left -= getattr(one, name) == most
        if left >= 0 or getattr(one, name) != most:
            kept.append(one)
    return kept


def _histogram(messages: Iterable[ScoredMessage]) -> tuple[int, ...]:
    counts = Counter(bin_of(one.score) for one in messages)
    return tuple(counts[index] for index in range(BINS))


def site_threshold(
    counts: ScoreCounts, taught: int, one_in: int, trained: ScoreCounts = NO_SCORES
) -> float:
    """Return the junk threshold in nats; `taught` messages have the rarest label.

    Rounded to a hundredth of a nat.

    One threshold for all sites is wrong for nearly all: a model that is taught mistakes only is
    unsure of most spam, and on most sites no ham comes near the shipped threshold, but on a few
    some does. So the threshold is set where the site's own ham ends (docs/decisions/0070):

        tail     the score that a share of AT_WORST / one_in of the ham exceeds: the share of ham
                 above even odds, which falls exponentially with the mean excess of such ham;
                 blended with BEGIN by ham / (ham + FEW_HAM)
        young    FLOOR + YOUNG / (1 + the taught messages of the rarest label) ^ POWER: nearly all
                 ham above 2.5 nats came when fewer than six ham or six spam were taught
        threshold = the higher one

    It is never above the shipped threshold and never below FLOOR. Ham are messages that a person
    called ham, and those that were delivered and that no user moved in time (`kept`). An unsure
    message without an answer is unknown: counted as ham, these hold the threshold where it is, for
    most of them are spam.

    Scores are counted in steps of `STEP` nats; the counts are sums over events, as all numbers of
    the model are, so undoing, rewinding and the hosts of a fleet give the same threshold.
    """
    ham = counted_ham(counts, trained)
    count = sum(ham)
    if taught <= 0 or count < LEAST_HAM:
        return SHIPPED
    weight = count / (count + FEW_HAM)
    tail = weight * _tail(ham, AT_WORST / one_in) + (1 - weight) * BEGIN
    young = FLOOR + YOUNG / float((1 + taught) ** POWER)
    return min(SHIPPED, round(max(young, tail), 2))


def counted_ham(counts: ScoreCounts, trained: ScoreCounts = NO_SCORES) -> list[float]:
    """Return [BINS] how many ham count: of the verdicts, and older ones of the training.

    The scores that a training found by cross-validation fill what the verdicts leave of the window,
    so they lose their weight as the site gets verdicts.
    """
    left = max(WINDOW - sum(map(sum, counts)), 0)
    weight = min(1.0, left / max(sum(map(sum, trained)), 1))
    of_verdicts = zip(counts.ham, counts.kept, trained.ham, strict=True)
    return [said + kept + weight * older for said, kept, older in of_verdicts]


def _tail(ham: Sequence[float], share: float) -> float:
    """Return the score that this share of the ham exceeds.

    Below even odds nothing counts but the number: an attacker who sends harmless mail moves the
    tail by the logarithm of that number alone.
    """
    above = ham[_EVEN:]
    count = sum(above)
    excess = sum(there * STEP * (steps + 0.5) for steps, there in enumerate(above))
    scale = (excess + WEIGHT * SCALE) / (count + WEIGHT)
    return scale * max(log((count + 1) / (sum(ham) + 1) / share), 0.0)


def stretched(log_odds: float, threshold: float) -> float:
    """Return the log-odds of the verdict; the threshold becomes the shipped one.

    The odds of the verdict are stretched (`stretched`) so that the threshold of the site has the
    probability of the shipped one; those of ham are stretched alike, for a model that is unsure of
    spam is unsure of ham, too. All costs, also those of domains and persons, apply to these
    probabilities, so all thresholds of junk move alike. Rejecting also requires the odds before
    that.
    """
    size = abs(log_odds)
    if size <= threshold:
        return log_odds * (SHIPPED / threshold)
    return copysign(size + (SHIPPED - threshold), log_odds)


def plain(log_odds: float, threshold: float) -> float:
    """Return the log-odds before they were stretched."""
    size = abs(log_odds)
    if size <= SHIPPED:
        return log_odds * (threshold / SHIPPED)
    return copysign(size - (SHIPPED - threshold), log_odds)


def stretch_factor(log_odds: float, threshold: float) -> float:
    """Return the factor that stretches the scores of a message with these log-odds of spam."""
    if threshold == SHIPPED or log_odds == 0:
        return 1.0
    return stretched(log_odds, threshold) / log_odds


def decide_stretched(log_odds: float, threshold: float, costs: Costs) -> Decision:
    """Decide by stretched log-odds; a message is rejected only if it was before that."""
    decision = decide(log_odds, costs)
    if decision == "reject" and threshold < SHIPPED:
        return at_least(decide(plain(log_odds, threshold), costs), "junk")
    return decision


FEWEST: Final = 20
"""With fewer taught ham, everything is new."""
LOW: Final = 0.35
DOUBLING: Final = 0.05
HIGHEST: Final = 0.85
NATS: Final = 25.0
MOST: Final = 6.0


class Novelty(NamedTuple):
    """How new the kind of a message is."""

    nats: float
    """by which the junk threshold is higher"""
    share: float
    """of the message's transport features, those that some taught ham has"""


USUAL: Final = Novelty(0.0, 1.0)
"""of a message whose kind is not new, or of which this is unknown"""


def novelty(share: float, ham: int) -> Novelty:
    """Return the novelty of a message from its share, and from the number of taught ham.

    If spam was the only mail of a kind, all that is peculiar to the kind speaks for spam: html,
    hidden text, the header fields of bulk mail. After some thousand messages of technical lists the
    first ham of a shop has up to 9 nats. No weight of the model shows this, but its features do:
    taught ham has most of the transport features of usual mail, and about a third of those of such
    ham. So this share is compared with what is usual:

        usual   = LOW + DOUBLING log2(ham / FEWEST), at most HIGHEST; ham: taught messages of ham
        novelty = NATS max(0, usual - share), at most MOST, in nats, added to the junk threshold

    Of the spam of shuffled streams, few percent have a lower share, whether all messages or
    mistakes alone are taught (docs/decisions/0076). Each message that is taught makes its features
    known, so a kind is new only for some messages. The words of the text do not count: a sender
    could fill a text with words that no model knows. A sender can do the same with headers and
    hidden text, so novelty is bounded: a message with strong evidence is junk in any case.
    """
    if ham < FEWEST:
        return USUAL
    usual = min(HIGHEST, LOW + DOUBLING * log2(ham / FEWEST))
    return Novelty(min(MOST, NATS * max(0.0, usual - share)), share)


NEW_KIND: Final = "new-kind"
"""the reason of a verdict"""
_FILED: Final = ("junk", "reject")


def reason_of(decision: Decision, log_odds: float, threshold: float, costs: Costs) -> str:
    """Return NEW_KIND if a message would be filed at the site's threshold, else nothing.

    The log-odds are those before stretching.
    """
    if decision in _FILED:
        return ""
    usual = decide_stretched(stretched(log_odds, threshold), threshold, costs)
    return NEW_KIND if usual in _FILED else ""


def novelty_text(found: Novelty, threshold: float) -> str:
    """Return a sentence on the novelty of a message; the threshold includes it."""
    return (
        f"a kind of mail that this filter has not met: ham has {found.share:.0%} of the features "
        f"of its transport; junk from {threshold:.2f} nats on instead of "
        f"{threshold - found.nats:.2f}"
    )


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
    passage: Passage | None = None
    """the strongest passage, if it adds to the score"""


Explain = Callable[[int | None], Clues]
"""Computes as many clues as requested, all of them for None."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The model's result for one message. A person's label always takes precedence over it.

    A verdict is a value. Its clues are computed on request, from the rows that the score came from;
    they need no store and no message.
    """

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

    @property
    def passage(self) -> Passage | None:
        """The strongest passage of the text, if it adds to the score."""
        return self._explain(0).passage if self._explain else None

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
