"""Choose the decision with the least expected cost, from the log-odds of spam.

Must not know models or mail. This is the only place that compares a score with the thresholds: a
score equal to a threshold gets the milder decision. Scores are compared as log-odds, because
expected costs, computed from probabilities, are equal over a range of scores near a threshold, and
different expressions of the same probability round to different sides of it. Fails with BugError
for a score that is no number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf, isnan, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.core.model.costs import BINARY, DECISIONS, Costs, Decision, Role, thresholds
from spamnb.errors import BugError


def spam_log_odds(z: Sequence[float], roles: tuple[Role, ...] = BINARY) -> float:
    """Return the log-odds of all spam-like labels against all others; infinite without either."""
    if len(z) != len(roles):
        raise BugError(f"{len(z)} scores for {len(roles)} labels")
    if roles == BINARY:
        return z[1] - z[0]
    spam, ham = (_together([v for v, of in zip(z, roles, strict=True) if of == role])
                 for role in ("spam", "ham"))  # fmt: skip
    return spam - ham


def _together(scores: list[float]) -> float:
    """Return the score of several labels as one."""
    if len(scores) < 2:
        return scores[0] if scores else -inf
    most = max(scores)
    return most + log(sum(exp(score - most) for score in scores))


def decide(log_odds: float, costs: Costs) -> Decision:
    """Decide on one message, from its log-odds of spam."""
    if isnan(log_odds):
        raise BugError("the score of a message is not a number")
    edges, decisions = _steps(costs)
    return DECISIONS[decisions[bisect_left(edges, log_odds)]]


def at_least(decision: Decision, least: Decision) -> Decision:
    """The harsher one of two decisions."""
    return max(decision, least, key=DECISIONS.index)


def decide_many(log_odds: ArrayLike, costs: Costs) -> NDArray[np.intp]:
    """[M] index into DECISIONS for each message, as `decide` decides on it."""
    scores = np.asarray(log_odds, np.float64)
    if np.isnan(scores).any():
        raise BugError("the score of a message is not a number")
    edges, decisions = _steps(costs)
    return np.array(decisions, np.intp)[np.searchsorted(edges, scores, side="left")]


@lru_cache(maxsize=64)
def _steps(costs: Costs) -> tuple[list[float], list[int]]:
    """The thresholds in order, and the decisions below, between and above them."""
    steps = thresholds(costs)
    return (
        [one.log_odds for one in steps[1:]],
        [DECISIONS.index(one.decision) for one in steps],
    )
