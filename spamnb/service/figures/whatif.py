"""What other costs would have decided on the newest messages of the history; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import exp
from typing import Any, Final

import numpy as np

from spamnb.core.model.costs import DECISIONS, Costs, junk_from, thresholds
from spamnb.core.policy.whatif import LineEffect, MailArrays, line_effects, what_if
from spamnb.errors import UserError
from spamnb.service.admin.listings import verdict_facts
from spamnb.service.engine.clock import iso
from spamnb.service.figures.judged_mail import JudgedMessage
from spamnb.service.telemetry.charts import Chart, ChartSeries

STEP: Final = 0.2
"""nats between two positions of the slider"""
STEPS: Final = 76
EDGES: Final = tuple(range(-15, 16))
"""of the log-odds in the spread, in nats"""


def whatif_facts(
    judged: Sequence[JudgedMessage],
    labels: tuple[str, ...],
    costs: tuple[Costs, Costs],
    one_in: int,
    limit: int,
) -> dict[str, Any]:
    """Return what the second costs change of the decisions by the first ones, newest first."""
    found = what_if(_arrays(judged, labels), *costs, one_in)
    return {
        "messages": len(judged),
        "since": iso(judged[-1].entry.time_us) if judged else None,
        "old_thresholds": _thresholds(costs[0]),
        "new_thresholds": _thresholds(costs[1]),
        **_effect_facts(found.effect),
        "reliability": [asdict(one) for one in found.reliability],
        "changed": [
            verdict_facts(judged[at].entry)
            | {"old": DECISIONS[found.old[at]], "new": DECISIONS[found.new[at]]}
            | {"said": judged[at].said}
            for at in found.changed[:limit]
        ],
    }


def slider_facts(
    judged: Sequence[JudgedMessage], labels: tuple[str, ...], costs: Costs, one_in: int
) -> dict[str, Any]:
    """Return what each position of a slider over the threshold of junk changes, and the spread.

    The first position is the threshold of unsure, below which that of junk never is.
    """
    mail = _arrays(judged, labels)
    unsure = next((one.log_odds for one in thresholds(costs) if one.decision == "unsure"), 0.0)
    lines = [unsure + STEP * number for number in range(STEPS)]
    effects = line_effects(mail, costs, [junk_from(costs, line) for line in lines], one_in)
    steps = [
        {"log_odds": line, "probability": 1 / (1 + exp(-line)), **_effect_facts(effect)}
        for line, effect in zip(lines, effects, strict=True)
    ]
    return {"steps": steps, "spread": _spread(mail).as_dict()}


def _effect_facts(effect: LineEffect) -> dict[str, Any]:
    counts = effect.counts
    return {
        "counts": [
            {"old": DECISIONS[old], "new": DECISIONS[new], "messages": int(counts[old, new])}
            for old, new in zip(*np.nonzero(counts), strict=True)
        ],
        "newly_junk": asdict(effect.newly_junk),
        "newly_delivered": asdict(effect.newly_delivered),
        "at_most": asdict(effect.at_most),
    }


def _spread(mail: MailArrays) -> Chart:
    """How the log-odds are spread: what people said is spam, is ham, and the rest."""
    at = np.searchsorted(EDGES, mail.log_odds, side="right")
    sides = (
        ("said_ham", mail.known & ~mail.spam),
        ("said_spam", mail.known & mail.spam),
        ("unknown", ~mail.known),
    )
    series = [
        ChartSeries(name, "bar", tuple(map(int, np.bincount(at[side], minlength=len(EDGES) + 1))))
        for name, side in sides
    ]
    places = (f"< {EDGES[0]}", *map(str, EDGES))
    return Chart("spread", "count", places, tuple(series))


def _arrays(judged: Sequence[JudgedMessage], labels: tuple[str, ...]) -> MailArrays:
    if "spam" not in labels:
        raise UserError("the model has no label spam", hint="costs apply to ham and spam")
    return MailArrays(
        log_odds=np.array([one.entry.log_odds for one in judged], np.float64),
        known=np.array([one.said is not None for one in judged], bool),
        spam=np.array([one.said == "spam" for one in judged], bool),
        before=np.array([one.before for one in judged], bool),
    )


def _thresholds(costs: Costs) -> dict[str, float]:
    return {one.decision: one.probability for one in thresholds(costs)}
