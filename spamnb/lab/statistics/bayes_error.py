"""Estimate the least possible error (Bayes error) on scored messages, from nearest neighbours.

Two estimates for a sample of messages. *By the scores*: the least error of any rule that sees only
the filter's score. Scores have one dimension, which a sample covers, so the bounds of Cover and
Hart hold up to sampling error, which is allowed for. *By the words*: the error of taking the label
of the message with the most similar words. Words have too many dimensions for any sample:
neighbours are far apart, so their error is too large, and a lower bound from it would be, too
(2.5 % on generated mail, where the filter's error is 0.65 %: decision 0024). The error by the words
is reported as a bound only where the neighbours err less than the filter. Otherwise no bound
tighter than the filter's error is known.

Pure functions; must not know models, mail or protocols. An unknown value is None.
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
"""Messages to sample: 0.2 s of CPU for their words, 0.1 s for their scores."""
_MIN_MESSAGES = 50
_MAX_LOG_ODDS = 50.0
"""Log-odds are clipped here, so that a few extreme scores have near neighbours."""
_MAX_SHARE = 0.1
"""Words in more than this share of the messages are ignored: costly, with little information."""
_DEVIATIONS = 1.645
"""standard deviations of a one-sided 95 % bound"""


@dataclass(frozen=True, slots=True)
class BayesErrorEstimate:
    """Error rates in percent on a sample of the scored messages."""

    messages: int
    error: float
    """of the filter: messages on the wrong side of 50 %"""
    at_most: float
    """upper bound of the least possible error: the smaller of both observed error rates"""
    scores_at_least: float
    """95 % lower bound of the error of any rule that sees only the scores"""
    nearest_by_words: float
    """error of taking the label of the message with the most similar words"""
    words_at_least: float | None
    """95 % lower bound of the error by words, for large samples; None: unknown, because the
    neighbours err no less than the filter"""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def estimate(truth: Bools, log_odds: Floats, ids: Sequence[Ids]) -> BayesErrorEstimate | None:
    """Return the bounds for messages with feature ids; None for too few ham or spam."""
    spam, count = int(truth.sum()), len(truth)
    if min(spam, count - spam) < _MIN_MESSAGES:
        return None
    clipped = np.clip(log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
    error = float(((log_odds > 0) != truth).mean())
    scores = bayes_error(clipped[:, None], truth).nearest
    words = float(disagreeing(ids, truth).mean())
    return BayesErrorEstimate(
        messages=count,
        error=100 * error,
        at_most=100 * min(error, words),
        scores_at_least=100 * _lower_bound(scores, count),
        nearest_by_words=100 * words,
        words_at_least=100 * _lower_bound(words, count) if words < error else None,
    )


def sample(count: int) -> Ints:
    """Return indices to sample, spread over the second half, scored after training the first."""
    half = count // 2
    return np.linspace(half, count - 1, min(SAMPLE, count - half)).astype(np.int64)


def _lower_bound(nearest: float, count: int) -> float:
    """95 % lower bound of the least error, from the error of the nearest neighbour.

    Mutual nearest neighbours disagree together, so the variance is doubled.
    """
    deviation = sqrt(2 * nearest * (1 - nearest) / count)
    return least_error(max(nearest - _DEVIATIONS * deviation, 0.0), 2)


def disagreeing(ids: Sequence[Ids], truth: Bools) -> Floats:
    """[M] share of each message's nearest neighbours by words that has the other label.

    Similarity is the cosine of inverse document frequencies: a word weighs log(M / messages).
    """
    M = len(ids)
    sizes = [len(words) for words in ids]
    owner = np.arange(M).repeat(sizes)
    _, word, holders = np.unique(np.concatenate(ids), return_inverse=True, return_counts=True)
    weight = np.log(M / holders) ** 2
    length = np.sqrt(np.maximum(np.bincount(owner, weight[word], M), 1e-300))
    informative = ((holders > 1) & (holders <= max(_MAX_SHARE * M, 2)))[word]
    owner, word = owner[informative], word[informative]
    # The messages that contain each word, grouped by word.
    by_word = np.argsort(word, kind="stable")
    owners, first = owner[by_word], np.searchsorted(word[by_word], np.arange(len(holders)))
    disagreement = np.empty(M)
    for i, words in enumerate(np.split(word, np.searchsorted(owner, np.arange(1, M)))):
        spread = holders[words]
        before = np.cumsum(spread) - spread
        at = np.arange(int(spread.sum())) + (first[words] - before).repeat(spread)
        similarity = np.bincount(owners[at], weight[words].repeat(spread), M) / length
        similarity[i] = -1.0
        near = similarity >= similarity.max() - 1e-12
        disagreement[i] = (truth[near] != truth[i]).mean()
    return disagreement
