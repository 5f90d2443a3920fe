"""What another threshold would have decided on the newest messages of the history. Writes nothing.

Three numbers say how many messages would be on the wrong side. They are of different kinds, so they
are never added: those that people labelled (known), those that the probabilities predict
(expected), and the share of ham that the evidence cannot exclude (at most).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import UserError
from spamnb.model.costs import DECISIONS, Costs, junk_from, thresholds
from spamnb.model.scoring import ReliabilityBin, ham_needed, most_lost, reliability
from spamnb.model.smoothing import Floats
from spamnb.model.verdict import decide_many
from spamnb.operations.figures import Chart, ChartSeries, JudgedMessage
from spamnb.operations.listings import verdict_facts
from spamnb.telemetry import iso

Bools = NDArray[np.bool_]

_JUNK = DECISIONS.index("junk")


@dataclass(frozen=True, slots=True)
class MailArrays:
    """Messages as arrays, in one order."""

    log_odds: Floats
    """of spam, when the message was judged"""
    known: Bools
    """whether a person gave it a label"""
    spam: Bools
    """whether that label is spam"""
    before: Bools
    """whether it was judged before that label was learnt"""


@dataclass(frozen=True, slots=True)
class MovedMail:
    """Messages that go to the other side: into the junk folder, or out of it."""

    messages: int
    known: int
    """those of them with a label by a person"""
    known_wrong: int
    """those of the known messages that do not belong there by their label"""
    expected_wrong: float
    """sum of the probabilities that a message does not belong there"""


@dataclass(frozen=True, slots=True)
class HamAtMost:
    """How much ham the new costs file as junk at most, by ham judged before it was learnt."""

    ham: int
    filed: int
    ham_needed: int
    share: float | None
    """95 % bound; None: too few ham"""


@dataclass(frozen=True, slots=True)
class LineEffect:
    """What other costs would change."""

    counts: NDArray[np.intp]
    """[old decision, new decision] messages"""
    newly_junk: MovedMail
    newly_delivered: MovedMail
    at_most: HamAtMost


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What would change, and for which messages."""

    effect: LineEffect
    changed: NDArray[np.intp]
    """indices of the messages with another decision"""
    old: NDArray[np.intp]
    new: NDArray[np.intp]
    reliability: tuple[ReliabilityBin, ...]
    """of the probabilities, on known mail that was judged before it was learnt"""


def what_if(mail: MailArrays, old_costs: Costs, new_costs: Costs, one_in: int) -> WhatIf:
    """Return what other costs change; `one_in` says how much evidence a bound takes."""
    (effect,) = line_effects(mail, old_costs, [new_costs], one_in)
    _, spam = _ham_and_spam(mail.log_odds)
    old, new = (decide_many(mail.log_odds, one) for one in (old_costs, new_costs))
    judged = mail.known & mail.before
    return WhatIf(
        effect=effect,
        changed=np.flatnonzero(old != new),
        old=old,
        new=new,
        reliability=reliability(mail.spam[judged], spam[judged]),
    )


def line_effects(
    mail: MailArrays, old_costs: Costs, lines: Iterable[Costs], one_in: int
) -> list[LineEffect]:
    """Return what each of many costs changes."""
    ham, spam = _ham_and_spam(mail.log_odds)
    old, judged_ham = decide_many(mail.log_odds, old_costs), mail.known & mail.before & ~mail.spam
    kinds, was_junk, effects = len(DECISIONS), old >= _JUNK, []
    for costs in lines:
        new = decide_many(mail.log_odds, costs)
        filed = new >= _JUNK
        counts = np.bincount(old * kinds + new, minlength=kinds * kinds).reshape(kinds, kinds)
        effects.append(
            LineEffect(
                counts,
                newly_junk=_moved(mail, filed & ~was_junk, ~mail.spam, ham),
                newly_delivered=_moved(mail, ~filed & was_junk, mail.spam, spam),
                at_most=_at_most(filed[judged_ham], one_in),
            )
        )
    return effects


def _ham_and_spam(log_odds: Floats) -> tuple[Floats, Floats]:
    """Both probabilities, each exact where it is small."""
    odds = np.clip(log_odds, -700, 700)
    return 1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))


def _moved(mail: MailArrays, moved: Bools, wrong: Bools, probability: Floats) -> MovedMail:
    known = moved & mail.known
    return MovedMail(
        messages=int(moved.sum()),
        known=int(known.sum()),
        known_wrong=int((known & wrong).sum()),
        expected_wrong=float(probability[moved].sum()),
    )


def _at_most(filed: Bools, one_in: int) -> HamAtMost:
    ham, lost, needed = len(filed), int(filed.sum()), ham_needed(one_in)
    return HamAtMost(ham, lost, needed, most_lost(lost, ham) if ham >= needed else None)


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
