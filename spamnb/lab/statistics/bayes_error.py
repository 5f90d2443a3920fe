"""How far a filter is from what is possible: bounds on the least error, from nearest neighbours.

Two questions, for a sample of messages that were judged. *By the scores*: what does the best rule
err that sees nothing of a message but our score? There is one dimension, which a sample fills, so
the bounds of Cover and Hart hold but for chance, which is allowed for. *By the words*: what does
whoever errs who takes the label of the message with the most alike words? Words have too many
dimensions for any sample: their neighbours are far, the error is too large, and so would be a lower
bound made of it (2.5 % on made-up mail, where 0.65 % is what we err: experiment 0024). It is told
as a bound only where neighbours judge better than we do. Else no bound is known that is tighter
than our own error, and that is what is said.

Pure; must not know models, mail or protocols. What cannot be told is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt

import numpy as np

from spamnb.bayes.risk import bayes_error, least_error
from spamnb.core.model.events import Ids, Ints
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.lab.statistics.metrics import Bools

SAMPLE = 2000
"""0.2 s of CPU for the words of so many messages, 0.1 s for their scores."""
_FEWEST = 50
_FAR = 50.0
"""Log-odds beyond are equally sure: without this, a few that lie alone would have no neighbours."""
_COMMON = 0.1
"""Words of more than this share of the messages tell little of who is near, and cost the most."""
_SURE = 1.645
"""deviations: one-sided, 95 %"""


@dataclass(frozen=True, slots=True)
class BayesErrorEstimate:
    """Shares of errors, in percent, on a sample of what was judged."""

    messages: int
    error: float
    """our own: on the wrong side of 50 %"""
    at_most: float
    """the least error that is possible is no larger: somebody reached it"""
    scores_at_least: float
    """whoever sees only our scores errs so often at least (95 % sure)"""
    nearest_by_words: float
    """taking the label of the message with the most alike words"""
    words_at_least: float | None
    """the least error by the words (95 % sure, as far as the sample is large); None: no bound is
    known, for neighbours judge worse than we do"""

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


def possible(truth: Bools, log_odds: Floats, ids: Sequence[Ids]) -> BayesErrorEstimate | None:
    """Bounds for these messages, with the features of each; None for too few of either sort."""
    spam, count = int(truth.sum()), len(truth)
    if min(spam, count - spam) < _FEWEST:
        return None
    said = np.clip(log_odds, -_FAR, _FAR)
    error = float(((log_odds > 0) != truth).mean())
    scores = bayes_error(said[:, None], truth).nearest
    words = float(disagreeing(ids, truth).mean())
    return BayesErrorEstimate(
        messages=count,
        error=100 * error,
        at_most=100 * min(error, words),
        scores_at_least=100 * _surely(scores, count),
        nearest_by_words=100 * words,
        words_at_least=100 * _surely(words, count) if words < error else None,
    )


def sample(count: int) -> Ints:
    """Numbers of the messages to look at: spread over the second half, which knew the first."""
    half = count // 2
    return np.linspace(half, count - 1, min(SAMPLE, count - half)).astype(np.int64)


def _surely(nearest: float, count: int) -> float:
    """The lower bound, from as few neighbours that disagree as chance may have made of them.

    Two that are each other's nearest disagree both, so there is half as much to count.
    """
    deviation = sqrt(2 * nearest * (1 - nearest) / count)
    return least_error(max(nearest - _SURE * deviation, 0.0), 2)


def disagreeing(ids: Sequence[Ids], truth: Bools) -> Floats:
    """[M] which share of the messages most alike in words has the other label.

    Alike is the cosine of rarity: a word weighs the logarithm of how few messages hold it.
    """
    M = len(ids)
    sizes = [len(held) for held in ids]
    owner = np.arange(M).repeat(sizes)
    _, word, holders = np.unique(np.concatenate(ids), return_inverse=True, return_counts=True)
    weight = np.log(M / holders) ** 2
    length = np.sqrt(np.maximum(np.bincount(owner, weight[word], M), 1e-300))
    told = ((holders > 1) & (holders <= max(_COMMON * M, 2)))[word]
    owner, word = owner[told], word[told]
    # For each word who holds it, one after the other.
    by_word = np.argsort(word, kind="stable")
    who, first = owner[by_word], np.searchsorted(word[by_word], np.arange(len(holders)))
    found = np.empty(M)
    for i, held in enumerate(np.split(word, np.searchsorted(owner, np.arange(1, M)))):
        spread = holders[held]
        before = np.cumsum(spread) - spread
        at = np.arange(int(spread.sum())) + (first[held] - before).repeat(spread)
        alike = np.bincount(who[at], weight[held].repeat(spread), M) / length
        alike[i] = -1.0
        near = alike >= alike.max() - 1e-12
        found[i] = (truth[near] != truth[i]).mean()
    return found
