"""Check a trained model on labelled mail that it did not learn: its newest messages.

Must not know terminals; changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spamnb.core.model.costs import DECISIONS
from spamnb.errors import UserError
from spamnb.lab.sources import read_each, sorted_mail, units_by_time
from spamnb.lab.statistics.loss_bound import HamLossBound, ham_loss_bound
from spamnb.lab.statistics.metrics import EvaluationMetrics, Outcomes, report
from spamnb.service.engine.filter import Filter

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
