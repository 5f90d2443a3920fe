"""Which decisions other costs would have given for messages that were judged already. Pure.

Three numbers say how many messages would be on the wrong side. They are of different kinds, so they
are never added: those that people labelled (known), those that the probabilities predict
(expected), and the share of ham that the evidence cannot exclude (at most).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.costs import DECISIONS, Costs
from spamnb.core.model.decision import decide_many
from spamnb.core.model.evidence import (
    ReliabilityBin,
    ham_needed,
    most_lost,
    reliability,
)
from spamnb.core.model.likelihood.smoothing import Floats

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
