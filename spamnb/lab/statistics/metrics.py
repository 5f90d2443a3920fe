"""How good the scores of a filter are: ranking, decisions, calibration.

Holds pure functions of what was true (is it spam?) and what was said (a score that rises with
spam, a probability of spam, a decision); must not know models or mail. Measures follow the TREC
spam track: 1-AUC in percent, ham lost, spam missed, and their logistic average. Invariants: nothing
depends on the order of the messages, ties share; a measure that the data cannot tell is None, never
nan. Resampling is by a seed that the caller gives. Fails with BugError for arrays that do not
match.
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
"""Percent of ham lost at which the spam missed is told."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What was true of each message, and what was said of it."""

    truth: Bools
    """is it spam?"""
    score: Floats
    """higher is spammier; only the order matters"""
    probability: Floats | None = None
    """of spam"""
    decided: Bools | None = None
    """was it kept from the inbox?"""

    def __post_init__(self) -> None:
        for said in (self.score, self.probability, self.decided):
            if said is not None and said.shape != self.truth.shape:
                raise BugError(f"{said.shape} said of {self.truth.shape} messages")
        if np.isnan(self.score).any():
            raise BugError("a score is not a number")
        if (
            self.probability is not None
            and not ((self.probability >= 0) & (self.probability <= 1)).all()
        ):
            raise BugError("a probability is not between 0 and 1")


class Corpus(NamedTuple):
    """How many messages of each sort were judged."""

    ham: int
    spam: int


class EvaluationMetrics(NamedTuple):
    """All measures of one evaluation; None where there is nothing to measure."""

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
        """Build the part of `evaluate --json` that is measured here; None becomes null."""
        plain = self._asdict() | {"corpus": self.corpus._asdict()}
        if self.auc_complement_interval_percent is not None:
            plain["auc_complement_interval_percent"] = list(self.auc_complement_interval_percent)
        return plain


def report(outcomes: Outcomes, *, resamples: int = 1000, seed: int = 1) -> EvaluationMetrics:
    """Take every measure that the outcomes allow."""
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
    """Measure the chance that a spam scores above a ham, ties counting half."""
    ham, spam, groups = _grades(truth, score)
    return _area(np.bincount(ham, minlength=groups), np.bincount(spam, minlength=groups))


def interval(truth: Bools, score: Floats, resamples: int, seed: int) -> Interval:
    """95 % interval of 1-AUC in percent, from resampling ham and spam each on its own."""
    ham, spam, groups = _grades(truth, score)

    def complement(h: Ints, s: Ints) -> float:
        area = _area(np.bincount(ham[h], minlength=groups), np.bincount(spam[s], minlength=groups))
        return 100 * (1 - area)

    return _resampled(complement, (len(ham), len(spam)), resamples, seed)


def paired(
    truth: Bools, ours: Floats, theirs: Floats, *, resamples: int = 1000, seed: int = 1
) -> tuple[float, Interval]:
    """1-AUC of ours minus that of theirs in percent, and its interval over the same messages.

    Resampling both together takes out how hard the messages are: far narrower than two intervals.
    """
    a, b = _grades(truth, ours), _grades(truth, theirs)

    def difference(h: Ints, s: Ints) -> float:
        ours_now, theirs_now = (
            _area(np.bincount(ham[h], minlength=groups), np.bincount(spam[s], minlength=groups))
            for ham, spam, groups in (a, b)
        )
        return 100 * (theirs_now - ours_now)

    sizes = len(a[0]), len(a[1])
    whole = difference(np.arange(sizes[0]), np.arange(sizes[1]))
    return whole, _resampled(difference, sizes, resamples, seed)


def paired_mean(
    ours: Floats, theirs: Floats, *, resamples: int = 1000, seed: int = 1
) -> tuple[float, Interval]:
    """Mean loss of ours less that of theirs over the same messages, and its 95 % interval."""
    difference = ours - theirs
    count = len(difference)
    if not count:
        raise BugError("a mean needs messages")
    rng = np.random.default_rng(seed)
    drawn = [float(difference[rng.integers(0, count, count)].mean()) for _ in range(resamples)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(difference.mean()), (float(low), float(high))


def lam_percent(lost: int, ham: int, missed: int, spam: int) -> float:
    """Logistic average of both error rates in percent; half a message stands in an empty cell."""

    def logit(errors: int, of: int) -> float:
        inside = min(max(errors, 0.5), of - 0.5)
        return float(np.log(inside) - np.log(of - inside))

    return 100 / (1 + float(np.exp(-(logit(lost, ham) + logit(missed, spam)) / 2)))


def missed_at(truth: Bools, score: Floats, ham_lost_percent: float) -> float:
    """Spam missed in percent, at the best threshold that loses no more than that much ham.

    Whatever ties with the first ham that must be kept is kept with it.
    """
    ham, spam = np.sort(score[~truth]), score[truth]
    # 0.1 % of 3,000 must be 3, whatever the product of two binary fractions says.
    allowed = int(len(ham) * ham_lost_percent / 100 + 1e-9)
    if allowed >= len(ham):
        return 0.0
    return 100 * float((spam <= ham[-1 - allowed]).mean())


def calibration_error(truth: Bools, probability: Floats, bins: int = 15) -> float:
    """Average the gap between said and seen over bins of equal mass.

    Messages with the same probability count with their mean truth, for a bin's border may run
    between them and which of them falls where is chance.
    """
    order = np.argsort(probability, kind="stable")
    P = probability[order]
    _, group, size = np.unique(P, return_inverse=True, return_counts=True)
    seen = (np.bincount(group, weights=truth[order]) / size)[group]
    gaps = [
        abs(float((part - said).sum()))
        for part, said in zip(np.array_split(seen, bins), np.array_split(P, bins), strict=True)
    ]
    return sum(gaps) / len(P)


def brier(truth: Bools, probability: Floats) -> float:
    """Mean squared distance of the probability from what came true."""
    return float(np.mean((probability - truth) ** 2))


def log_loss(truth: Bools, probability: Floats) -> float:
    """Mean surprise in nats. A certain error counts as the rounding of 1: 36 nats, not infinity."""
    said = np.where(truth, probability, 1 - probability)
    return float(-np.log(np.maximum(said, np.finfo(np.float64).eps)).mean())


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


def _grades(truth: Bools, score: Floats) -> tuple[Ints, Ints, int]:
    """Distinct scores become grades from 0 up: of the ham, of the spam, and how many there are.

    Sorting once makes each resampling a count: 1,000 of them take 0.2 s on 38,000 messages.
    """
    if truth.all() or not truth.any():
        raise BugError("an area under the curve needs ham and spam")
    distinct, grade = np.unique(score, return_inverse=True)
    grade = grade.astype(np.int64)
    return grade[~truth], grade[truth], len(distinct)


def _area(ham: ArrayLike, spam: ArrayLike) -> float:
    """Area under the curve from the number of ham and of spam at each grade; exact in integers."""
    h, s = np.asarray(ham, np.int64), np.asarray(spam, np.int64)
    beaten_twice = 2 * h.cumsum() - h
    return float((s * beaten_twice).sum()) / (2.0 * float(h.sum()) * float(s.sum()))


def _resampled(
    measure: Callable[[Ints, Ints], float], sizes: tuple[int, int], resamples: int, seed: int
) -> Interval:
    rng = np.random.default_rng(seed)
    ham, spam = sizes
    drawn = [
        measure(rng.integers(0, ham, ham), rng.integers(0, spam, spam)) for _ in range(resamples)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)
