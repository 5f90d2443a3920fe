"""What users see of a filter on a stream of mail, and what to expect of a training.

Messages come one after the other, on a simulated clock. Each is judged as the daemon judges it: by
the threshold that the mail of the site has set so far (`model.verdict`), and at most as unsure
until enough is learnt. Then the user learns of it: with `errors` users correct a share of the wrong
and unsure verdicts, with `full` a share of all messages is taught; labels come late. A message
without a label settles as it does in the daemon. bogofilter is judged by the same rules.

Must not know terminals or stores. Failure: UserError for a wrong share, or if bogofilter fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from spamnb.engine.filter import ONE_IN
from spamnb.errors import UserError
from spamnb.lab.runs import (
    FOLDS,
    Labelled,
    Options,
    Samples,
    Trial,
    parallel_map,
    read_samples,
)
from spamnb.lab.statistics import Bools, auc, calibration_error
from spamnb.model.costs import BINARY, Costs, Decision
from spamnb.model.events import Ints
from spamnb.model.smoothing import Floats
from spamnb.model.verdict import (
    BINS,
    NO_SCORES,
    SHIPPED,
    ScoreCounts,
    ScoredMessage,
    bin_of,
    count_scores,
    decide_stretched,
    site_threshold,
    stretched,
)
from spamnb.policy.actions import LEAST_MESSAGES, limit_while_untrained

HAM, SPAM = 0.45, 0.99
"""by default, a message is ham up to the first and spam from the second probability on"""
_UNTRAINED = 0.5


def is_installed() -> bool:
    """Return whether the program is in the path."""
    return shutil.which("bogofilter") is not None


class Bogofilter:
    """bogofilter with a new word list and its default settings, to compare with."""

    def __init__(self, folder: str) -> None:
        self._environment = dict(os.environ, HOME=folder)
        self._command = ["bogofilter", "-C", "-d", folder]
        self._trained = False

    def _run(self, option: str, raw: bytes) -> bytes:
        done = subprocess.run(  # noqa: S603 - the program that the user wants to compare with
            [*self._command, option],
            input=raw,
            capture_output=True,
            env=self._environment,
            check=False,
        )
        if done.returncode > 2:
            raise UserError(f"bogofilter: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def score(self, raw: bytes) -> float:
        """Return the probability of spam; 0.5 before the first training."""
        return float(self._run("-TT", raw).split()[-1]) if self._trained else _UNTRAINED

    def learn(self, raw: bytes, *, spam: bool) -> None:
        """Learn one message."""
        self._run("-s" if spam else "-n", raw)
        self._trained = True


Teaching = Literal["errors", "full"]
_FIRST = (100, 300)
_FIRST_HAM = 50
"""ham after a change of the mail that are counted"""
_RECOUNT = 10
"""messages after which the scores are counted again; the daemon counts every 30 seconds"""
_WARM = 1000
"""messages before those whose calibration is measured"""
_FILED: tuple[Decision, ...] = ("junk", "reject")


@dataclass(frozen=True, slots=True)
class Site:
    """The users and the mail of a simulated site."""

    teaching: Teaching = "errors"
    answered: float = 1.0
    """the share of mistakes that users correct, or of all messages that are taught"""
    late_s: float = 0.0
    """time from a message to its label"""
    apart_s: float = 900.0
    """time between two messages"""
    one_in: int = ONE_IN
    """the target of the site's threshold; 0: the shipped threshold"""
    least: int = LEAST_MESSAGES
    """messages of each label before mail is filed"""
    seed: int = 1
    """of the choice of mistakes that are corrected"""
    change: int = 0
    """the number of messages after which mail of another kind comes; 0: none comes"""


Strangers = Callable[[int, int], Sequence[ScoredMessage]]
"""(number, time) -> what an attacker's messages add to the scores after each message"""


class ScoredDecision(NamedTuple):
    """Score and decision of a message."""

    log_odds: float
    """before stretching"""
    threshold: float
    """of this message"""
    decision: Decision
    novelty: float = 0.0
    """how much of the threshold is due to the message being of a new kind"""


class Judge(Protocol):
    """A filter that is judged."""

    def judge(self, index: int, now_us: int) -> ScoredDecision:
        """Judge a message."""

    def teach(self, index: int, now_us: int) -> None:
        """Learn the label of a message that was judged before."""


@dataclass(frozen=True, slots=True)
class DecisionFigures:
    """What a filter did with a stream of mail."""

    filter: str
    ham: int
    spam: int
    spam_filed: int
    spam_delivered: int
    ham_filed: int
    ham_unsure: int
    corrections: int
    filed_of_first: dict[int, tuple[int, int]]
    """of the first messages: spam filed, and spam"""
    ham_filed_of_first: dict[int, int]
    ham_filed_after_change: int | None
    """of the first 50 ham after the change of the mail; None without a change"""
    auc_complement_percent: float | None
    calibration_error: float | None
    """of the messages after the first thousand; None if there are none"""
    threshold: float
    """the site's junk threshold at the end, in nats"""

    @property
    def filed_percent(self) -> float:
        """Return the share of the spam that was filed as junk."""
        return 100 * self.spam_filed / max(self.spam, 1)

    def as_dict(self) -> dict[str, object]:
        """Return the figures as values that JSON can represent."""
        return asdict(self) | {"filed_percent": self.filed_percent}


def decisions_of(
    messages: Iterable[Labelled], options: Options, site: Site, *, beside: bool
) -> list[DecisionFigures]:
    """Return the figures of spamnb, and with `beside` those of bogofilter, in the order given."""
    rows = list(messages)
    samples = read_samples(rows, options)
    found = [play(samples, options, site)]
    if beside:
        found.append(play_bogofilter([raw for raw, _ in rows], samples.truth, site))
    return found


def play(
    samples: Samples, options: Options, site: Site, strangers: Strangers | None = None
) -> DecisionFigures:
    """Return the figures of spamnb; with `strangers` while an attacker sends mail."""
    judge = _SpamnbJudge(samples, options, site, strangers)
    return _played("spamnb", judge, samples.truth, site, options.progress)


def play_bogofilter(raws: Sequence[bytes], truth: Ints, site: Site) -> DecisionFigures:
    """Return the figures of bogofilter, with its default settings."""
    with tempfile.TemporaryDirectory() as folder:
        judge = _BogofilterJudge(raws, truth, Bogofilter(folder))
        return _played("bogofilter", judge, truth, site)


def _played(
    name: str,
    judge: Judge,
    truth: Ints,
    site: Site,
    progress: Callable[[int, int], None] | None = None,
) -> DecisionFigures:
    count, spam = len(truth), (truth == 1).tolist()
    answers = (np.random.default_rng((site.seed, 99)).random(count) < site.answered).tolist()
    waiting: deque[tuple[int, int]] = deque()
    judged: list[ScoredDecision] = []
    corrections = 0
    apart_us, late_us = round(site.apart_s * 1e6), round(site.late_s * 1e6)
    for index in range(count):
        now = (index + 1) * apart_us
        while waiting and waiting[0][0] < now:
            due, earlier = waiting.popleft()
            judge.teach(earlier, due)
        one = judge.judge(index, now)
        judged.append(one)
        is_wrong = one.decision == "unsure" or (one.decision in _FILED) != spam[index]
        corrections += is_wrong and answers[index]
        if answers[index] and (is_wrong or site.teaching == "full"):
            waiting.append((now + late_us, index))
        if progress:
            progress(index + 1, count)
    return _figures(name, judged, np.array(spam, bool), (corrections, site.change))


def _figures(
    name: str, judged: list[ScoredDecision], spam: Bools, counted: tuple[int, int]
) -> DecisionFigures:
    corrections, change = counted
    filed = np.array([one.decision in _FILED for one in judged], bool)
    unsure = np.array([one.decision == "unsure" for one in judged], bool)
    odds = np.array([one.log_odds for one in judged], np.float64)
    shown = np.array([stretched(one.log_odds, one.threshold) for one in judged], np.float64)
    P = 1 / (1 + np.exp(-np.clip(shown, -700, 700)))
    later = slice(_WARM, None)
    return DecisionFigures(
        filter=name,
        ham=int((~spam).sum()),
        spam=int(spam.sum()),
        spam_filed=int((filed & spam).sum()),
        spam_delivered=int((~filed & ~unsure & spam).sum()),
        ham_filed=int((filed & ~spam).sum()),
        ham_unsure=int((unsure & ~spam).sum()),
        corrections=corrections,
        filed_of_first={n: (int((filed & spam)[:n].sum()), int(spam[:n].sum())) for n in _FIRST},
        ham_filed_of_first={n: int((filed & ~spam)[:n].sum()) for n in _FIRST},
        ham_filed_after_change=int(filed[change:][~spam[change:]][:_FIRST_HAM].sum())
        if change
        else None,
        auc_complement_percent=100 * (1 - auc(spam, odds)) if 0 < spam.sum() < len(spam) else None,
        calibration_error=calibration_error(spam[later], P[later]) if len(P) > _WARM else None,
        threshold=judged[-1].threshold - judged[-1].novelty if judged else SHIPPED,
    )


class _SpamnbJudge:
    """spamnb with the threshold of the site."""

    def __init__(
        self, samples: Samples, options: Options, site: Site, strangers: Strangers | None
    ) -> None:
        self._trial = Trial(samples, samples.truth, options)
        self._strangers, self._places = strangers, list[int]()
        self._truth = samples.truth.tolist()
        self._costs, self._site = options.costs or Costs(), site
        self._seen: list[ScoredMessage] = []
        self._taught = [0, 0]
        self._counts: ScoreCounts | None = None

    def judge(self, index: int, now_us: int) -> ScoredDecision:
        z = self._trial.score([index])[0]
        log_odds = float(z[1] - z[0])
        novelty = self._trial.novelty(index)
        threshold = self._threshold(now_us) + novelty
        shown = stretched(log_odds, threshold)
        decision = decide_stretched(shown, threshold, self._costs)
        decision = limit_while_untrained(decision, min(self._taught), self._site.least)
        filed = None if decision == "unsure" else decision in _FILED
        self._places.append(len(self._seen))
        self._seen.append(ScoredMessage(now_us, log_odds, filed))
        if self._strangers:
            self._seen += self._strangers(index, now_us)
        return ScoredDecision(log_odds, threshold, decision, novelty)

    def teach(self, index: int, now_us: int) -> None:  # noqa: ARG002 - the protocol's signature
        self._trial.train([index])
        label = self._truth[index]
        self._taught[label] += 1
        place = self._places[index]
        self._seen[place] = self._seen[place]._replace(said=BINARY[label], user="users")

    def _threshold(self, now_us: int) -> float:
        if not self._site.one_in:
            return SHIPPED
        if self._counts is None or len(self._places) % _RECOUNT == 0:
            self._counts = count_scores(reversed(self._seen), now_us)
        return site_threshold(self._counts, min(self._taught), self._site.one_in)


class _BogofilterJudge:
    """bogofilter: unsure between its two thresholds."""

    def __init__(self, raws: Sequence[bytes], truth: Ints, program: Bogofilter) -> None:
        self._raws, self._truth, self._program = raws, truth.tolist(), program

    def judge(self, index: int, now_us: int) -> ScoredDecision:  # noqa: ARG002 - the protocol's signature
        p = self._program.score(self._raws[index])
        bounded = min(max(p, 1e-9), 1 - 1e-9)
        decision: Decision = "unsure"
        if p >= SPAM:
            decision = "junk"
        elif p <= HAM:
            decision = "deliver"
        return ScoredDecision(float(np.log(bounded / (1 - bounded))), SHIPPED, decision)

    def teach(self, index: int, now_us: int) -> None:  # noqa: ARG002 - the protocol's signature
        self._program.learn(self._raws[index], spam=self._truth[index] == 1)


MOST = 4000
"""messages that are judged; of more mail so many are drawn"""
FEWEST = 20
"""messages of each label; of fewer nothing can be said"""


@dataclass(frozen=True, slots=True)
class Expectation:
    """How much of the mail would have been filed as junk, and the scores that say so."""

    ham: int
    spam: int
    ham_filed: int
    spam_filed: int
    threshold: float
    """the junk threshold of the trained model, in nats"""
    counts: ScoreCounts

    def as_dict(self) -> dict[str, object]:
        """Return what `train --json` shows."""
        plain = asdict(self)
        del plain["counts"]
        return plain

    def __str__(self) -> str:
        """Return the sentence that `train` shows."""
        ham = f"{self.ham_filed:,}" if self.ham_filed else "none"
        return (
            f"of your {self.spam:,} spam {self.spam_filed:,} would have been filed as junk, of "
            f"{self.ham:,} ham {ham} (cross-validation; junk from {self.threshold:.2f} nats on)"
        )


def expect(messages: Iterable[Labelled], options: Options, one_in: int) -> Expectation | None:
    """Return what to expect of a model of these messages; None if a label has too few of them.

    The scores of messages that their model did not learn are the first ones that set the threshold
    of the site, before there are verdicts. How many messages would have been filed is counted with
    the threshold of the other folds, so no message decides on itself.

    `one_in`: the target of the threshold of the site; 0: the threshold is the shipped one.
    """
    samples = _distinct(read_samples(messages, options))
    spam = samples.truth == 1
    if not min(spam.sum(), (~spam).sum()) >= FEWEST:
        return None
    odds, novelty = _scored_by_others(samples, options)
    taught = int(min(spam.sum(), (~spam).sum()))
    costs, folds = options.costs or Costs(), np.arange(len(odds)) % FOLDS
    filed = np.zeros(len(odds), bool)
    for fold in range(FOLDS):
        others = folds != fold
        threshold = _threshold(_counts(odds[others], spam[others]), taught, one_in)
        for index in np.flatnonzero(~others).tolist():
            bar = threshold + float(novelty[index])
            filed[index] = (
                decide_stretched(stretched(float(odds[index]), bar), bar, costs) in _FILED
            )
    counts = _counts(odds, spam)
    return Expectation(
        ham=int((~spam).sum()),
        spam=int(spam.sum()),
        ham_filed=int((filed & ~spam).sum()),
        spam_filed=int((filed & spam).sum()),
        threshold=_threshold(counts, taught, one_in),
        counts=counts,
    )


def _scored_by_others(samples: Samples, options: Options) -> tuple[Floats, Floats]:
    """Return the log-odds and the novelty of each message, by a model of the other folds."""
    count = len(samples.truth)

    def score_fold(fold: int) -> tuple[Floats, Floats]:
        trial, own = Trial(samples, samples.truth, options), range(fold, count, FOLDS)
        trial.train([index for index in range(count) if index % FOLDS != fold])
        z = trial.score(own)
        return z[:, 1] - z[:, 0], np.array([trial.novelty(index) for index in own])

    odds, novelty = np.zeros(count), np.zeros(count)
    for fold, part in enumerate(parallel_map(score_fold, range(FOLDS), options.jobs)):
        odds[fold::FOLDS], novelty[fold::FOLDS] = part
        if options.progress:
            options.progress((fold + 1) * count // FOLDS, count)
    return odds, novelty


def _distinct(samples: Samples) -> Samples:
    """Return each message once: a copy in another fold would be scored by a model that knows it."""
    first: dict[bytes, int] = {}
    for index, sample in enumerate(samples.items):
        first.setdefault(sample.example.digest, index)
    kept = list(first.values())
    return Samples([samples.items[index] for index in kept], samples.truth[kept])


def _threshold(counts: ScoreCounts, taught: int, one_in: int) -> float:
    return site_threshold(NO_SCORES, taught, one_in, counts) if one_in else SHIPPED


def _counts(odds: Floats, spam: Bools) -> ScoreCounts:
    steps = np.array([bin_of(score) for score in odds.tolist()], np.int64)
    ham, junk = (np.bincount(steps[side], minlength=BINS).tolist() for side in (~spam, spam))
    return NO_SCORES._replace(ham=tuple(ham), spam=tuple(junk))
