"""Evaluate a fresh model on labelled ham and spam: metrics and the score of each message.

`multiclass` evaluates any number of labels. Must not know terminals or settings; writes nothing.

Failure: UserError for messages that no protocol can use (one class only, fewer than ten).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from spamnb.core.model.costs import DECISIONS, Costs, thresholds
from spamnb.core.model.decision import decide_many
from spamnb.core.model.events import Ints
from spamnb.core.model.evidence import reliability
from spamnb.core.model.scoring import Floats, probabilities
from spamnb.errors import UserError
from spamnb.lab.protocols import FOLDS, ScoredMessages, run
from spamnb.lab.sources import by_time, shuffled
from spamnb.lab.statistics import curves
from spamnb.lab.statistics.bayes_error import BayesErrorEstimate, estimate, sample
from spamnb.lab.statistics.loss_bound import HamLossBound, ham_loss_bound
from spamnb.lab.statistics.metrics import Bools, EvaluationMetrics, Outcomes, report
from spamnb.lab.trial import (
    Labelled,
    Options,
    Samples,
    read_samples,
)
from spamnb.service.training.worker_pool import cpu_seconds

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
            "learning_curve": [asdict(part) for part in curves.learning(truth, odds, P)],
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
