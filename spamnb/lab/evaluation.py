"""Evaluation: how well would this filter have done on these messages, had it met them in order.

The door: messages and options in, measures and what was said of each message out. Ham against spam
here; any number of labels in `evaluation_labels`. Must not know terminals or settings; writes
nothing.

Failure: UserError for messages that no protocol can judge (one class only, fewer than ten).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from spamnb.core.model.costs import BINARY, DECISIONS, Costs, thresholds
from spamnb.core.model.decision import decide_many
from spamnb.core.model.events import Ints
from spamnb.core.model.scoring import Floats, probabilities
from spamnb.errors import UserError
from spamnb.lab.protocols import FOLDS, ScoredMessages, run
from spamnb.lab.sources import by_time, shuffled
from spamnb.lab.statistics import curves
from spamnb.lab.statistics.bayes_error import BayesErrorEstimate, possible, sample
from spamnb.lab.statistics.loss_bound import HamLossBound, assured
from spamnb.lab.statistics.metrics import Bools, EvaluationMetrics, Outcomes, report
from spamnb.lab.trial import (
    LABELS,
    UNSURE,
    Labelled,
    Options,
    Samples,
    read_samples,
)

__all__ = [
    "LABELS", "UNSURE", "Evaluation", "Judged", "Labelled", "Options", "by_time", "evaluate",
    "judged_by", "shuffled",
]  # fmt: skip

ONE_IN = 1000
"""Of how many good messages one may be lost, if nobody says: the first point of the ROC's table."""


_MOST_ODDS = 1e300


class Judged(NamedTuple):
    """What was said of the messages that were judged, in their order."""

    truth: Bools
    log_odds: Floats
    probability: Floats
    decided: Bools
    """kept from the inbox: junk or reject"""
    decision: Ints
    """index into DECISIONS"""
    ids: tuple[str, ...]
    """digests, to pair two evaluations of the same messages"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measures, and what was said of each message."""

    report: EvaluationMetrics
    judged: Judged
    options: Options
    seconds: float
    cpu_seconds: float
    possible: BayesErrorEstimate | None = None
    """how far this is from what is possible; None if there is too little mail to tell"""

    def as_dict(self) -> dict[str, object]:
        """Build what `evaluate --json` writes."""
        plain = self.report.as_dict()
        options = self.options
        head: dict[str, object] = {
            "corpus": plain.pop("corpus"),
            "protocol": options.protocol,
            "order": options.order,
            "seed": options.seed,
            "feedback": options.feedback,
            "noise": options.noise,
            "kind": options.kind,
        }
        messages = len(self.judged.truth)
        return head | plain | self.details() | {
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(messages / max(self.seconds, 1e-9), 1),
            "cpu_seconds": round(self.cpu_seconds, 3),
        }  # fmt: skip

    def details(self) -> dict[str, object]:
        """Decisions and their cost, chances of error, the curves behind the pictures."""
        truth, odds, P = self.judged.truth, self.judged.log_odds, self.judged.probability
        costs = self.options.costs or Costs()
        return {
            "error_percent": 100 * float(((P > 0.5) != truth).mean()),
            "error_expected_percent": 100 * float(np.minimum(P, 1 - P).mean()),
            "bayes_error_bound_percent": self.possible.as_dict() if self.possible else None,
            "decisions": self._decisions(),
            "cost": _cost(truth, P, self.judged.decision, costs),
            "thresholds": {t.decision: t.probability for t in thresholds(costs)},
            "reliability": [asdict(part) for part in curves.reliability(truth, P)],
            "learning_curve": [asdict(part) for part in curves.learning(truth, odds, P)],
        }

    def _decisions(self) -> dict[str, dict[str, int]]:
        truth, decision = self.judged.truth, self.judged.decision
        return {
            name: {"ham": int(((decision == d) & ~truth).sum()),
                   "spam": int(((decision == d) & truth).sum())}
            for d, name in enumerate(DECISIONS)
        }  # fmt: skip

    def assurance(self, one_in: int = ONE_IN) -> HamLossBound:
        """What these messages can promise about ham that is lost."""
        return assured(self.judged.truth, self.judged.log_odds, one_in)

    def scores(self) -> list[dict[str, object]]:
        """What was said of each message: what two evaluations are compared by."""
        judged = self.judged
        # JSON has no infinity, which the classical models say before they know both classes.
        odds = np.clip(judged.log_odds, -_MOST_ODDS, _MOST_ODDS)
        columns = (judged.truth.tolist(), odds.tolist(), judged.probability.tolist())
        names = ("id", "spam", "log_odds", "probability")
        return [
            dict(zip(names, row, strict=True)) for row in zip(judged.ids, *columns, strict=True)
        ]


def evaluate(messages: Iterable[Labelled], options: Options | None = None) -> Evaluation:
    """Judge messages, (raw, "ham" or "spam") in the order they are met in."""
    options = options or Options()
    started, cpu = time.perf_counter(), _cpu_seconds()
    samples = read_samples(messages, options)
    _refuse_few(samples.truth == 1)
    said = run(samples, options)
    judged = judged_by(samples, said, options)
    far = _possible(samples, said, judged)
    seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - cpu
    outcomes = Outcomes(judged.truth, judged.log_odds, judged.probability, judged.decided)
    found = report(outcomes, resamples=options.resamples, seed=1)
    return Evaluation(found, judged, options, seconds, cpu_seconds, far)


def _possible(samples: Samples, said: ScoredMessages, judged: Judged) -> BayesErrorEstimate | None:
    chosen = sample(len(judged.truth))
    ids = [samples.items[i].ids for i in said.which[chosen].tolist()]
    return possible(judged.truth[chosen], judged.log_odds[chosen], ids)


def judged_by(samples: Samples, said: ScoredMessages, options: Options) -> Judged:
    """What the decisions are that these scores lead to."""
    P = probabilities(said.z)
    decision = decide_many(P, options.costs or Costs(), BINARY)
    ids = tuple(samples.items[i].example.digest.hex() for i in said.which.tolist())
    odds = said.z[:, 1] - said.z[:, 0]
    return Judged(samples.truth[said.which] == 1, odds, P[:, 1], decision >= 2, decision, ids)


def _refuse_few(spam: Bools) -> None:
    if len(spam) < FOLDS or spam.all() or not spam.any():
        raise UserError(
            f"{int((~spam).sum())} ham and {int(spam.sum())} spam are too few to evaluate",
            hint=f"give at least {FOLDS} messages, some of either class",
        )


def _cost(truth: Bools, P: Floats, decision: Ints, costs: Costs) -> dict[str, float]:
    """A message's mean cost: as it came out, as it was expected, and without any filter."""
    table = np.array(costs.table())
    ham, spam = table[decision].T
    return {
        "mean": float(np.where(truth, spam, ham).mean()),
        "expected": float((P * spam + (1 - P) * ham).mean()),
        "unfiltered": float(table[0][truth.astype(int)].mean()),
    }


def _cpu_seconds() -> float:
    """Ours and that of the processes that have ended."""
    return sum(os.times()[:4])
