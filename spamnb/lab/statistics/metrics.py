"""Metrics of a spam filter: ranking, decisions, calibration.

Pure functions of the truth (is it spam?) and of scores, probabilities and decisions; must not know
models or mail. The metrics follow the TREC spam track: 1-AUC in percent, ham lost, spam missed,
and their logistic average. Invariants: no metric depends on the order of the messages or of ties;
a metric that is undefined for the data is None, never nan. Resampling uses the caller's seed.
Failure: BugError for arrays that do not match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.core.model.events import Ints
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.errors import BugError

Bools = NDArray[np.bool_]
Interval = tuple[float, float]

HAM_LOST_POINTS = ("0.1", "1")
"""Percentages of ham lost at which the spam missed is reported."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Truth, score and decision of each message."""

    truth: Bools
    """is it spam?"""
    score: Floats
    """higher is spammier; only the order matters"""
    probability: Floats | None = None
    """of spam"""
    decided: Bools | None = None
    """not delivered to the inbox: junk or reject"""

    def __post_init__(self) -> None:
        for column in (self.score, self.probability, self.decided):
            if column is not None and column.shape != self.truth.shape:
                raise BugError(f"{column.shape} values for {self.truth.shape} messages")
        if np.isnan(self.score).any():
            raise BugError("a score is not a number")
        if (
            self.probability is not None
            and not ((self.probability >= 0) & (self.probability <= 1)).all()
        ):
            raise BugError("a probability is not between 0 and 1")


class Corpus(NamedTuple):
    """Numbers of ham and spam scored."""

    ham: int
    spam: int


class EvaluationMetrics(NamedTuple):
    """All metrics of one evaluation; None where a metric is undefined."""

    corpus: Corpus
    auc_complement_percent: float | None
    auc_complement_interval_percent: Interval | None
    ham_lost_percent: float | None
    spam_missed_percent: float | None
    lam_percent: float | None
    spam_missed_percent_at_ham_lost: dict[str, float | None]
    calibration_error: float | None
    brier: float | None
    log_loss: float | None

    def as_dict(self) -> dict[str, object]:
        """Return the metrics as a JSON object, part of `evaluate --json`."""
        plain = self._asdict() | {"corpus": self.corpus._asdict()}
        if self.auc_complement_interval_percent is not None:
            plain["auc_complement_interval_percent"] = list(self.auc_complement_interval_percent)
        return plain


def report(outcomes: Outcomes, *, resamples: int = 1000, seed: int = 1) -> EvaluationMetrics:
    """Compute every metric that the outcomes define."""
    truth, score = outcomes.truth, outcomes.score
    spam = int(truth.sum())
    corpus = Corpus(len(truth) - spam, spam)
    both = corpus.ham > 0 and corpus.spam > 0
    lost, missed, lam = _errors(truth, outcomes.decided)
    P = outcomes.probability if len(truth) else None
    return EvaluationMetrics(
        corpus=corpus,
        auc_complement_percent=100 * (1 - auc(truth, score)) if both else None,
        auc_complement_interval_percent=interval(truth, score, resamples, seed) if both else None,
        ham_lost_percent=lost,
        spam_missed_percent=missed,
        lam_percent=lam,
        spam_missed_percent_at_ham_lost={
            point: missed_at(truth, score, float(point)) if both else None
            for point in HAM_LOST_POINTS
        },
        calibration_error=None if P is None else calibration_error(truth, P),
        brier=None if P is None else brier(truth, P),
        log_loss=None if P is None else log_loss(truth, P),
    )


def auc(truth: Bools, score: Floats) -> float:
    """Return the probability that a spam scores above a ham; ties count half."""
    ham, spam, groups = _ranked(truth, score)
    return _area(np.bincount(ham, minlength=groups), np.bincount(spam, minlength=groups))


def interval(truth: Bools, score: Floats, resamples: int, seed: int) -> Interval:
    """95 % bootstrap interval of 1-AUC in percent; ham and spam are resampled separately."""
    ham, spam, groups = _ranked(truth, score)

    def complement(h: Ints, s: Ints) -> float:
        area = _area(np.bincount(ham[h], minlength=groups), np.bincount(spam[s], minlength=groups))
        return 100 * (1 - area)

    return _resampled(complement, (len(ham), len(spam)), resamples, seed)


def paired(
    truth: Bools, a: Floats, b: Floats, *, resamples: int = 1000, seed: int = 1
) -> tuple[float, Interval]:
    """Return 1-AUC of score a minus that of score b in percent, and its 95 % interval.

    Both scores are resampled together, so variance from the messages cancels out: the interval is
    far narrower than those of a and b.
    """
    ranks_a, ranks_b = _ranked(truth, a), _ranked(truth, b)

    def difference(h: Ints, s: Ints) -> float:
        area_a, area_b = (
            _area(np.bincount(ham[h], minlength=groups), np.bincount(spam[s], minlength=groups))
            for ham, spam, groups in (ranks_a, ranks_b)
        )
        return 100 * (area_b - area_a)

    sizes = len(ranks_a[0]), len(ranks_a[1])
    whole = difference(np.arange(sizes[0]), np.arange(sizes[1]))
    return whole, _resampled(difference, sizes, resamples, seed)


def paired_mean(
    a: Floats, b: Floats, *, resamples: int = 1000, seed: int = 1
) -> tuple[float, Interval]:
    """Return the mean of losses a - b over the same messages, and its 95 % interval."""
    difference = a - b
    count = len(difference)
    if not count:
        raise BugError("a mean needs messages")
    return float(difference.mean()), _resampled(
        lambda chosen: float(difference[chosen].mean()), (count,), resamples, seed
    )


def lam_percent(lost: int, ham: int, missed: int, spam: int) -> float:
    """Logistic average of both error rates in percent; 0 errors count as half an error."""

    def logit(errors: int, of: int) -> float:
        inside = min(max(errors, 0.5), of - 0.5)
        return float(np.log(inside) - np.log(of - inside))

    return 100 / (1 + float(np.exp(-(logit(lost, ham) + logit(missed, spam)) / 2)))


def missed_at(truth: Bools, score: Floats, ham_lost_percent: float) -> float:
    """Spam missed in percent, at the best threshold that loses at most that share of ham.

    Spam that ties with the highest ham below the threshold counts as missed.
    """
    ham, spam = np.sort(score[~truth]), score[truth]
    # 0.1 % of 3,000 must be 3 in spite of floating point rounding.
    allowed = int(len(ham) * ham_lost_percent / 100 + 1e-9)
    if allowed >= len(ham):
        return 0.0
    return 100 * float((spam <= ham[-1 - allowed]).mean())


def calibration_error(truth: Bools, probability: Floats, bins: int = 15) -> float:
    """Mean gap between predicted and observed share of spam, over bins of equal size.

    Messages with the same probability count with their mean truth, so the result does not depend
    on which of them fall on which side of a bin border.
    """
    order = np.argsort(probability, kind="stable")
    P = probability[order]
    _, group, size = np.unique(P, return_inverse=True, return_counts=True)
    observed = (np.bincount(group, weights=truth[order]) / size)[group]
    gaps = [
        abs(float((part - predicted).sum()))
        for part, predicted in zip(
            np.array_split(observed, bins), np.array_split(P, bins), strict=True
        )
    ]
    return sum(gaps) / len(P)


def brier(truth: Bools, probability: Floats) -> float:
    """Mean squared distance between probability and truth."""
    return float(np.mean((probability - truth) ** 2))


def log_loss(truth: Bools, probability: Floats) -> float:
    """Mean log loss in nats; a certain error counts as -log(epsilon) = 36 nats, not infinity."""
    p_true = np.where(truth, probability, 1 - probability)
    return float(-np.log(np.maximum(p_true, np.finfo(np.float64).eps)).mean())


def _errors(truth: Bools, decided: Bools | None) -> tuple[float | None, float | None, float | None]:
    if decided is None:
        return None, None, None
    spam = int(truth.sum())
    ham = len(truth) - spam
    lost, missed = int((decided & ~truth).sum()), int((~decided & truth).sum())
    return (
        100 * lost / ham if ham else None,
        100 * missed / spam if spam else None,
        lam_percent(lost, ham, missed, spam) if ham and spam else None,
    )


def _ranked(truth: Bools, score: Floats) -> tuple[Ints, Ints, int]:
    """Dense ranks of the ham and of the spam scores, and the number of distinct scores.

    Sorting once makes each resampling a count: 1,000 of them take 0.2 s on 38,000 messages.
    """
    if truth.all() or not truth.any():
        raise BugError("an area under the curve needs ham and spam")
    distinct, grade = np.unique(score, return_inverse=True)
    grade = grade.astype(np.int64)
    return grade[~truth], grade[truth], len(distinct)


def _area(ham: ArrayLike, spam: ArrayLike) -> float:
    """Area under the curve from the counts of ham and spam at each rank, in exact integers."""
    h, s = np.asarray(ham, np.int64), np.asarray(spam, np.int64)
    beaten_twice = 2 * h.cumsum() - h
    return float((s * beaten_twice).sum()) / (2.0 * float(h.sum()) * float(s.sum()))


def _resampled(
    measure: Callable[..., float], sizes: tuple[int, ...], resamples: int, seed: int
) -> Interval:
    """95 % bootstrap interval; `measure` gets the indexes chosen from each group of messages."""
    rng = np.random.default_rng(seed)
    resampled = [
        measure(*(rng.integers(0, size, size) for size in sizes)) for _ in range(resamples)
    ]
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(low), float(high)
