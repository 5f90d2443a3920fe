"""The junk threshold of a site, from the scores of its own mail before it was learnt. Pure.

One threshold for all sites is wrong for nearly all: a model that is taught mistakes only is unsure
of most spam, and on most sites no ham comes near the shipped threshold, but on a few some does. So
the threshold is set where the site's own ham ends (docs/decisions/0070):

    tail     the score that a share of AT_WORST / one_in of the ham exceeds: the share of ham above
             even odds, which falls exponentially with the mean excess of such ham; blended with
             BEGIN by ham / (ham + FEW_HAM)
    young    FLOOR + YOUNG / (1 + the taught messages of the rarest label) ^ POWER: nearly all ham
             above 2.5 nats came when fewer than six ham or six spam were taught
    threshold = the higher one

It is never above the shipped threshold and never below FLOOR. Ham are messages that a person called
ham, and those that were delivered and that nobody moved in time (`kept`). An unsure message without
an answer is unknown: counted as ham, these hold the threshold where it is, for most of them are
spam.

Scores are counted in steps of `STEP` nats; the counts are sums over events, as all numbers of the
model are, so undoing, rewinding and the hosts of a fleet give the same threshold.

The odds of the verdict are stretched (`stretched`) so that the threshold of the site has the
probability of the shipped one; those of ham are stretched alike, for a model that is unsure of spam
is unsure of ham, too. All costs, also those of domains and persons, apply to these
probabilities, so all thresholds of junk move alike. Rejecting also requires the odds before that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import copysign, floor, log
from typing import Final, NamedTuple

from spamnb.core.model.costs import Costs, Decision, Role, thresholds
from spamnb.core.model.decision import at_least, decide

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
    """Return the log-odds of the verdict; the threshold becomes the shipped one."""
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
