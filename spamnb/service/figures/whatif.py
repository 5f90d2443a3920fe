"""What other costs would have decided on the newest messages of the history; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import inf, log
from typing import Any

import numpy as np

from spamnb.core.model.costs import DECISIONS, Costs, thresholds
from spamnb.core.policy.whatif import MailArrays, what_if
from spamnb.errors import UserError
from spamnb.service.admin.listings import verdict_facts
from spamnb.service.engine.clock import iso
from spamnb.service.figures.judged_mail import JudgedMessage


def whatif_facts(
    judged: Sequence[JudgedMessage],
    labels: tuple[str, ...],
    costs: tuple[Costs, Costs],
    one_in: int,
    limit: int,
) -> dict[str, Any]:
    """Return what the second costs change of the decisions by the first ones, newest first."""
    if "spam" not in labels:
        raise UserError("the model has no label spam", hint="costs apply to ham and spam")
    found = what_if(_arrays(judged, labels), *costs, one_in)
    pairs = [(old, new) for old in range(len(DECISIONS)) for new in range(len(DECISIONS))]
    return {
        "messages": len(judged),
        "since": iso(judged[-1].entry.time_us) if judged else None,
        "old_thresholds": _thresholds(costs[0]),
        "new_thresholds": _thresholds(costs[1]),
        "counts": [
            {"old": DECISIONS[old], "new": DECISIONS[new], "messages": int(found.counts[old, new])}
            for old, new in pairs
            if found.counts[old, new]
        ],
        "newly_junk": asdict(found.newly_junk),
        "newly_delivered": asdict(found.newly_delivered),
        "at_most": asdict(found.at_most),
        "reliability": [asdict(one) for one in found.reliability],
        "changed": [
            verdict_facts(judged[at].entry)
            | {"old": DECISIONS[found.old[at]], "new": DECISIONS[found.new[at]]}
            | {"said": judged[at].said}
            for at in found.changed[:limit]
        ],
    }


def _arrays(judged: Sequence[JudgedMessage], labels: tuple[str, ...]) -> MailArrays:
    binary = set(labels) == {"ham", "spam"}
    return MailArrays(
        log_odds=np.array(
            [one.entry.log_odds if binary else _log_odds(one.entry.probability) for one in judged],
            np.float64,
        ),
        known=np.array([one.said is not None for one in judged], bool),
        spam=np.array([one.said == "spam" for one in judged], bool),
        before=np.array([one.before for one in judged], bool),
    )


def _log_odds(probability: float) -> float:
    if probability in (0.0, 1.0):
        return inf if probability else -inf
    return log(probability / (1 - probability))


def _thresholds(costs: Costs) -> dict[str, float]:
    return {one.decision: one.probability for one in thresholds(costs)}
