"""Evaluate a fresh model, check a trained one, compare two evaluations, and search model constants.

Must not know terminals or settings; writes nothing. `labels` evaluates any number of labels.
Failure: UserError for messages that no protocol can use (one class only, fewer than ten) and for
files that cannot be compared.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spamnb.engine.bulk import Pool, cpu_seconds
from spamnb.engine.filter import Filter
from spamnb.errors import UserError
from spamnb.lab import statistics
from spamnb.lab.runs import (
    FOLDS,
    Labelled,
    Options,
    Samples,
    ScoredMessages,
    by_time,
    read_each,
    read_samples,
    recipe_of,
    run,
    shuffled,
    sorted_mail,
    units_by_time,
)
from spamnb.lab.statistics import (
    BayesErrorEstimate,
    Bools,
    EvaluationMetrics,
    HamLossBound,
    Interval,
    Outcomes,
    auc,
    estimate,
    ham_loss_bound,
    paired,
    paired_mean,
    report,
    sample,
)
from spamnb.model.costs import DECISIONS, Costs, thresholds
from spamnb.model.events import Ints, Recipe
from spamnb.model.scoring import probabilities, reliability
from spamnb.model.smoothing import Floats
from spamnb.model.verdict import decide_many


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric of A minus that of B; below 0, A is better."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float

    @property
    def better(self) -> str:
        """The better run, A or B; neither if the interval contains 0."""
        return "A" if self.high < 0 else "B" if self.low > 0 else "neither"

    def as_dict(self) -> dict[str, object]:
        """Return one entry of `differences` in `evaluate --compare --json`."""
        return asdict(self) | {"better": self.better}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences, over the messages that both runs scored."""

    messages: int
    only_a: int
    only_b: int
    differences: tuple[Difference, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object of `evaluate --compare --json`."""
        counts = {"messages": self.messages, "only_a": self.only_a, "only_b": self.only_b}
        return counts | {"differences": [found.as_dict() for found in self.differences]}


class _Scores(NamedTuple):
    keys: list[tuple[str, int]]
    truth: Bools
    odds: Floats
    P: Floats

    def take(self, rows: list[int]) -> _Scores:
        keys = [self.keys[row] for row in rows]
        return _Scores(keys, self.truth[rows], self.odds[rows], self.P[rows])


def compare(a: Path, b: Path, *, resamples: int = 1000, seed: int = 1) -> Comparison:
    """Compare two files of `evaluate --json FILE --scores`: paired differences with 95 % intervals.

    Messages are paired by digest (the n-th copy with the n-th), whatever their order; resampling
    pairs removes the variance that both runs share.
    """
    first, second = _read(a), _read(b)
    row_of = {key: row for row, key in enumerate(second.keys)}
    pairs = [(row, row_of[key]) for row, key in enumerate(first.keys) if key in row_of]
    scores_a = first.take([row for row, _ in pairs])
    scores_b = second.take([row for _, row in pairs])
    if not pairs or scores_a.truth.all() or not scores_a.truth.any():
        raise UserError(
            f"{a} and {b} have only {len(pairs)} messages in common",
            hint="evaluate both on the same mail, with ham and spam in it",
        )
    if (scores_a.truth != scores_b.truth).any():
        raise UserError(
            f"{a} and {b} do not agree on which messages are spam",
            hint="evaluate both on the same mail with the same labels",
        )
    resampling = {"resamples": resamples, "seed": seed}
    found = [
        _area(
            scores_a, scores_b, *paired(scores_a.truth, scores_a.odds, scores_b.odds, **resampling)
        )
    ]
    for name, losses in _LOSSES.items():
        losses_a, losses_b = losses(scores_a), losses(scores_b)
        mean, (low, high) = paired_mean(losses_a, losses_b, **resampling)
        found.append(
            Difference(name, float(losses_a.mean()), float(losses_b.mean()), mean, low, high)
        )
    sizes = len(pairs), len(first.keys) - len(pairs), len(second.keys) - len(pairs)
    return Comparison(*sizes, tuple(found))


def _area(
    scores_a: _Scores, scores_b: _Scores, difference: float, interval: Interval
) -> Difference:
    a, b = (100 * (1 - auc(scores.truth, scores.odds)) for scores in (scores_a, scores_b))
    return Difference("auc_complement_percent", a, b, difference, *interval)


def _errors(scores: _Scores) -> Floats:
    return np.asarray(100.0 * ((scores.P > 0.5) != scores.truth))


def _brier(scores: _Scores) -> Floats:
    return np.asarray((scores.P - scores.truth) ** 2)


def _log_loss(scores: _Scores) -> Floats:
    """Log loss of each message; a certain error counts as 36 nats, as in `metrics.log_loss`."""
    p_true = np.where(scores.truth, scores.P, 1 - scores.P)
    return np.asarray(-np.log(np.maximum(p_true, np.finfo(np.float64).eps)))


_LOSSES = {"error_percent": _errors, "brier": _brier, "log_loss": _log_loss}


def _read(path: Path) -> _Scores:
    try:
        plain: dict[str, Any] = json.loads(path.read_text())
        rows = plain["messages"]
        seen: Counter[str] = Counter()
        keys = []
        for row in rows:
            keys.append((row["id"], seen[row["id"]]))
            seen[row["id"]] += 1
        columns = ([row[name] for row in rows] for name in ("spam", "log_odds", "probability"))
        spam, odds, P = columns
        return _Scores(keys, np.array(spam, bool), np.array(odds, float), np.array(P, float))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} contains no scores of messages", hint="write it with `--json FILE --scores`"
        ) from error


__all__ = ["Evaluation", "Options", "by_time", "evaluate", "shuffled"]

ONE_IN = 1000
"""Default target of the ham loss bound: at most one in so many ham is lost."""

_MAX_LOG_ODDS = 1e300


class MessageResults(NamedTuple):
    """Label, score and decision of each message that was scored, in order."""

    truth: Bools
    log_odds: Floats
    probability: Floats
    decided: Bools
    """not delivered to the inbox: junk or reject"""
    decision: Ints
    """index into DECISIONS"""
    ids: tuple[str, ...]
    """message digests; `compare` pairs two evaluations by them"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of `evaluate`: the metrics and the score of each message."""

    report: EvaluationMetrics
    results: MessageResults
    options: Options
    seconds: float
    cpu_seconds: float
    bayes_error: BayesErrorEstimate | None = None
    """bounds on the least possible error; None for too few messages"""

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object of `evaluate --json`."""
        figures = self.report.as_dict()
        options = self.options
        head: dict[str, object] = {
            "corpus": figures.pop("corpus"),
            "protocol": options.protocol,
            "order": options.order,
            "seed": options.seed,
            "feedback": options.feedback,
            "noise": options.noise,
            "kind": options.kind,
            "prior": options.prior.features if options.prior else 0,
        }
        messages = len(self.results.truth)
        return head | figures | self.details() | {
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(messages / max(self.seconds, 1e-9), 1),
            "cpu_seconds": round(self.cpu_seconds, 3),
        }  # fmt: skip

    def details(self) -> dict[str, object]:
        """Return errors, decisions, their cost, and the data of the plots."""
        truth, odds, P = self.results.truth, self.results.log_odds, self.results.probability
        costs = self.options.costs or Costs()
        return {
            "error_percent": 100 * float(((P > 0.5) != truth).mean()),
            "error_expected_percent": 100 * float(np.minimum(P, 1 - P).mean()),
            "bayes_error_bound_percent": self.bayes_error.as_dict() if self.bayes_error else None,
            "decisions": self._decisions(),
            "cost": _cost(truth, P, self.results.decision, costs),
            "thresholds": {t.decision: t.probability for t in thresholds(costs)},
            "reliability": [asdict(part) for part in reliability(truth, P)],
            "learning_curve": [asdict(part) for part in statistics.learning(truth, odds, P)],
        }

    def _decisions(self) -> dict[str, dict[str, int]]:
        truth, decision = self.results.truth, self.results.decision
        return {
            name: {"ham": int(((decision == d) & ~truth).sum()),
                   "spam": int(((decision == d) & truth).sum())}
            for d, name in enumerate(DECISIONS)
        }  # fmt: skip

    def loss_bound(self, one_in: int = ONE_IN) -> HamLossBound:
        """Return the junk threshold that loses at most one in `one_in` ham, with its evidence."""
        return ham_loss_bound(self.results.truth, self.results.log_odds, one_in)

    def scores(self) -> list[dict[str, object]]:
        """Return the score of each message, as `--scores` writes it and `compare` reads it."""
        results = self.results
        # JSON has no infinity; the classical models give it before they know both classes.
        odds = np.clip(results.log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
        columns = (results.truth.tolist(), odds.tolist(), results.probability.tolist())
        names = ("id", "spam", "log_odds", "probability")
        return [
            dict(zip(names, row, strict=True)) for row in zip(results.ids, *columns, strict=True)
        ]


def evaluate(messages: Iterable[Labelled], options: Options | None = None) -> Evaluation:
    """Train and score a fresh model on (raw, "ham" or "spam") pairs, in the order given."""
    options = options or Options()
    started, cpu = time.perf_counter(), cpu_seconds()
    samples = read_samples(messages, options)
    _refuse_few(samples.truth == 1)
    scored = run(samples, options)
    results = message_results(samples, scored, options)
    estimate = _estimate_bayes_error(samples, scored, results)
    seconds, used = time.perf_counter() - started, cpu_seconds() - cpu
    outcomes = Outcomes(results.truth, results.log_odds, results.probability, results.decided)
    metrics = report(outcomes, resamples=options.resamples, seed=1)
    return Evaluation(metrics, results, options, seconds, used, estimate)


def _estimate_bayes_error(
    samples: Samples, scored: ScoredMessages, results: MessageResults
) -> BayesErrorEstimate | None:
    chosen = sample(len(results.truth))
    ids = [samples.items[i].ids for i in scored.which[chosen].tolist()]
    return estimate(results.truth[chosen], results.log_odds[chosen], ids)


def message_results(samples: Samples, scored: ScoredMessages, options: Options) -> MessageResults:
    """Return the scores with the decisions that they lead to."""
    P = probabilities(scored.z)
    ids = tuple(samples.items[i].example.digest.hex() for i in scored.which.tolist())
    odds = scored.z[:, 1] - scored.z[:, 0]
    decision = decide_many(odds, options.costs or Costs())
    return MessageResults(
        samples.truth[scored.which] == 1, odds, P[:, 1], decision >= 2, decision, ids
    )


def _refuse_few(spam: Bools) -> None:
    if len(spam) < FOLDS or spam.all() or not spam.any():
        raise UserError(
            f"{int((~spam).sum())} ham and {int(spam.sum())} spam are too few to evaluate",
            hint=f"give at least {FOLDS} messages, with ham and spam among them",
        )


def _cost(truth: Bools, P: Floats, decision: Ints, costs: Costs) -> dict[str, float]:
    """Mean cost of a message: actual, expected by the probabilities, and without a filter."""
    table = np.array(costs.table())
    ham, spam = table[decision].T
    return {
        "mean": float(np.where(truth, spam, ham).mean()),
        "expected": float((P * spam + (1 - P) * ham).mean()),
        "unfiltered": float(table[0][truth.astype(int)].mean()),
    }


NEWEST = 500
"""messages that are scored"""
_JUNK = DECISIONS.index("junk")


def check_model(
    model: Filter, sources: Sequence[str], one_in: int, warn: Callable[[str], None]
) -> tuple[EvaluationMetrics, HamLossBound]:
    """Score the newest messages of a folder of ham and one of spam; return metrics and bound."""
    ham, spam = sources
    found = units_by_time(sorted_mail(ham, "ham") + sorted_mail(spam, "spam"))[-NEWEST:]
    rows = list(read_each(found, warn))
    verdicts = list(model.score_many(raw for raw, _ in rows))
    if len({label for _, label in rows}) < 2:
        raise UserError(
            "the newest mail does not contain both ham and spam",
            hint="give newer mail of both labels",
        )
    truth = np.array([label == "spam" for _, label in rows])
    odds = np.array([verdict.spam_log_odds for verdict in verdicts])
    P = np.array([verdict.probability for verdict in verdicts])
    decided = np.array([DECISIONS.index(verdict.decision) >= _JUNK for verdict in verdicts])
    outcomes = Outcomes(truth, odds, P, decided)
    return report(outcomes), ham_loss_bound(truth, odds, one_in)


Constants = dict[str, float]

STEPS: dict[str, tuple[float, float]] = {
    "eta": (2.0, 0.25),
    "r": (3.0, 0.01),
    "alpha": (3.0, 0.0001),
    "kappa": (1.12, 0.5),
    "rate_temper": (3.0, 0.001),
    "rate_bias": (4.0, 0.0001),
}
"""Constant -> (factor of one step, smallest value); the most effective constants first."""
OF_KIND = {"corrected": tuple(STEPS), "multinomial": ("alpha",), "bernoulli": ("alpha",)}
MIN_GAIN = 0.002
"""A step is accepted if it saves this share of the log loss; smaller gains are noise."""
MIN_MESSAGES = 60
_WARM_UP = 10
"""1 / the share of messages at the start that do not count, because there every model guesses"""
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric with the current and the chosen constants, on the held-back messages."""

    before: float
    after: float
    difference: float
    """after - before; below 0 is better"""
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of a search: the chosen constants and their test on the held-back messages."""

    old: Constants
    chosen: Constants
    """only those that differ from `old`"""
    tries: int
    searched: int
    held_back: int
    search_loss: tuple[float, float]
    """mean log loss on the searched messages with the old and with the chosen constants"""
    log_loss: Gain
    auc_complement_percent: Gain
    loss_bound: HamLossBound
    """junk threshold with the chosen constants, or with the old ones if not confirmed"""
    seconds: float
    cpu_seconds: float

    @property
    def confirmed(self) -> bool:
        """Whether log loss is lower at 95 % confidence, with no significant loss of 1-AUC."""
        return bool(self.chosen and self.log_loss.high < 0 and self.auc_complement_percent.low <= 0)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object of `tune --json`."""
        return asdict(self) | {"confirmed": self.confirmed}


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of the search."""

    one_in: int = 1000
    tries: int = _TRIES
    progress: Callable[[int, int], None] | None = None


def tune(
    messages: Iterable[Labelled],
    options: Options | None = None,
    search: SearchOptions | None = None,
) -> Tuning:
    """Search constants that suit the messages better, and test them on messages held back.

    Messages come in order of arrival. The search uses the first two thirds: it runs each set of
    constants online over them and compares the mean log loss (in nats, without the first tenth),
    moving one constant at a time in the direction that lowers it. Then the chosen and the current
    constants are run over all messages and compared on the last third, message by message. The gain
    counts only if its 95 % interval confirms it.

    The search compares log loss and not 1-AUC, because log loss uses every message and not only the
    few that overlap: differences show on hundreds of messages instead of tens of thousands.
    Failure: UserError for too few messages.

    Not searched: feature groups, which would require extracting all mail again (decision 0001
    settled them); and costs, which change no score (`HamLossBound` gives the junk threshold).
    """
    options = replace(options or Options(), protocol="online", progress=None)
    search = search or SearchOptions()
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    samples = read_samples(messages, options)
    first = 2 * len(samples.items) // 3
    _refuse_few_to_tune(samples.truth == 1, first)

    def score_task(task: tuple[Constants, int]) -> Floats:
        constants, count = task
        part = Samples(samples.items[:count], samples.truth[:count])
        z = run(part, replace(options, constants=constants)).z
        return np.asarray(z[:, 1] - z[:, 0])

    truth, old = samples.truth == 1, _current_constants(recipe_of(options))
    with Pool(lambda: score_task, max(options.jobs, 1)) as pool:
        climb = _HillClimb(
            truth[:first], old, search, lambda sets: pool.map((s, first) for s in sets)
        )
        climb.run()
        odds = list(pool.map((one, len(truth)) for one in (old, climb.best)))
    held_back = slice(first, None)
    before, after = (part[held_back] for part in odds)
    tuning = Tuning(
        old=old,
        chosen={name: value for name, value in climb.best.items() if value != old[name]},
        tries=climb.tries,
        searched=first,
        held_back=len(truth) - first,
        search_loss=(climb.first_loss, climb.loss),
        log_loss=_mean_gain(truth[held_back], before, after),
        auc_complement_percent=_area_gain(truth[held_back], before, after),
        loss_bound=ham_loss_bound(truth[held_back], after, search.one_in),
        seconds=time.perf_counter() - started,
        cpu_seconds=sum(os.times()[:4]) - cpu,
    )
    if tuning.confirmed:
        return tuning
    return replace(tuning, loss_bound=ham_loss_bound(truth[held_back], before, search.one_in))


def _current_constants(recipe: Recipe) -> Constants:
    return {name: float(getattr(recipe, name)) for name in OF_KIND[recipe.kind]}


def _refuse_few_to_tune(spam: Bools, first: int) -> None:
    for name, part in (("first two thirds", spam[:first]), ("last third", spam[first:])):
        ham_count, spam_count = int((~part).sum()), int(part.sum())
        if min(ham_count, spam_count) < MIN_MESSAGES // 3:
            raise UserError(
                f"the {name} of the messages have {ham_count} ham and {spam_count} spam: "
                "too few to tune",
                hint=f"give at least {MIN_MESSAGES} of each; add --order shuffle if ham and spam "
                "come from different times",
            )


class _HillClimb:
    """Coordinate search for the constants of least log loss, from the current ones."""

    def __init__(
        self,
        truth: Bools,
        start: Constants,
        search: SearchOptions,
        score: Callable[[list[Constants]], Iterable[Floats]],
    ) -> None:
        self._truth = truth
        self._score = score
        self._search = search
        self._seen: dict[tuple[float, ...], float] = {}
        self.tries = 0
        self.best = start
        self.loss = self.first_loss = self._losses([start])[0]

    def run(self) -> None:
        """Cycle through the constants until none helps or the tries are used up."""
        moved = True
        while moved and self.tries < self._search.tries:
            moved = False
            for name in self.best:
                moved |= self._search_constant(name)
        self._report_progress(done=True)

    def _search_constant(self, name: str) -> bool:
        """Try both directions, then continue in the better one while it helps."""
        if self.tries >= self._search.tries:
            return False
        up, down = (self._stepped(name, direction) for direction in (1, -1))
        if not self._accept_best([up, down]):
            return False
        direction = 1 if self.best == up else -1
        while self.tries < self._search.tries and self._accept_best(
            [self._stepped(name, direction)]
        ):
            pass
        return True

    def _stepped(self, name: str, direction: int) -> Constants:
        factor, least = STEPS[name]
        value = max(self.best[name] * factor**direction, least)
        return self.best | {name: float(f"{value:.4g}")}

    def _accept_best(self, candidates: list[Constants]) -> bool:
        """Accept the best candidate if it gains at least MIN_GAIN."""
        losses = self._losses(candidates)
        at = int(np.argmin(losses))
        if losses[at] >= self.loss * (1 - MIN_GAIN):
            return False
        self.best, self.loss = candidates[at], losses[at]
        return True

    def _losses(self, candidates: list[Constants]) -> list[float]:
        new = [one for one in candidates if tuple(one.values()) not in self._seen]
        for one, odds in zip(new, self._score(new), strict=True):
            warm_up = len(self._truth) // _WARM_UP
            loss = float(_log_losses(self._truth, odds)[warm_up:].mean())
            self._seen[tuple(one.values())] = loss
            self.tries += 1
            self._report_progress()
        return [self._seen[tuple(one.values())] for one in candidates]

    def _report_progress(self, *, done: bool = False) -> None:
        if self._search.progress:
            most = max(self._search.tries, self.tries)
            self._search.progress(most if done else self.tries, most)


def _log_losses(truth: Bools, odds: Floats) -> Floats:
    """Log loss of each message in nats, at most 36 as in `metrics.log_loss`."""
    return np.asarray(np.minimum(np.logaddexp(0, np.where(truth, -odds, odds)), 36.0))


def _mean_gain(truth: Bools, before: Floats, after: Floats) -> Gain:
    old, new = _log_losses(truth, before), _log_losses(truth, after)
    return _gain(float(old.mean()), float(new.mean()), *paired_mean(new, old))


def _area_gain(truth: Bools, before: Floats, after: Floats) -> Gain:
    old, new = (100 * (1 - auc(truth, odds)) for odds in (before, after))
    return _gain(old, new, *paired(truth, after, before))


def _gain(before: float, after: float, difference: float, interval: Interval) -> Gain:
    return Gain(before, after, difference, *interval)
