"""Choose the decision with the least expected cost, from the probabilities of the labels.

Must not know models or mail. Equal costs go to the milder decision. Fails with BugError for numbers
that are no probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import add, mul

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.core.model.costs import BINARY, DECISIONS, Costs, Decision, Role
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.errors import BugError


def decide(P: Sequence[float], costs: Costs, roles: tuple[Role, ...] = BINARY) -> Decision:
    """Decide on one message, from the probability of each label.

    The same as `decide_many`, in plain numbers: a tenth of the time for one message.
    """
    if len(P) != len(roles):
        raise BugError(f"{len(P)} probabilities for {len(roles)} labels")
    if not all(0 <= p <= 1 for p in P):
        raise BugError("a probability is not between 0 and 1")
    # From left to right, as in `least_expected`; `sum` rounds differently in Python 3.12.
    expected = [reduce(add, map(mul, P, line)) for line in _losses(costs, roles)]
    return DECISIONS[expected.index(min(expected))]


def at_least(decision: Decision, least: Decision) -> Decision:
    """The harsher one of two decisions."""
    return max(decision, least, key=DECISIONS.index)


def decide_many(
    probabilities: ArrayLike, costs: Costs, roles: tuple[Role, ...] = BINARY
) -> NDArray[np.intp]:
    """[M] index into DECISIONS for each message, from the probabilities [M, K]."""
    P = np.asarray(probabilities, np.float64)
    if P.ndim != 2 or P.shape[1] != len(roles):
        raise BugError(f"probabilities of shape {P.shape} for {len(roles)} labels")
    if not ((P >= 0) & (P <= 1)).all():
        raise BugError("a probability is not between 0 and 1")
    # Of equal costs the first is taken, which is the milder.
    return least_expected(P, np.array(_losses(costs, roles)))


@lru_cache(maxsize=64)
def _losses(costs: Costs, roles: tuple[Role, ...]) -> list[list[float]]:
    """[decision][label] the costs."""
    return [[line[BINARY.index(role)] for role in roles] for line in costs.table()]


def least_expected(P: Floats, losses: Floats) -> NDArray[np.intp]:
    """[M] the action with the least expected loss, from P [M, K] and losses [actions, K].

    Of equal losses the first action is taken.
    """
    # Label by label, not a matrix product: its rounding depends on the machine's BLAS, so ties
    # could be resolved either way.
    expected = P[:, :1] * losses[:, 0]
    for k in range(1, P.shape[1]):
        expected += P[:, k, None] * losses[:, k]
    return np.asarray(expected.argmin(axis=1))
