"""Multinomial naive Bayes: a message is drawn feature by feature from its label's features.

    log p(f|k) = log(n[f,k] + a) - log(T[k] + a V)
    score_k    = log prior_k + sum over known f in x of x_f log p(f|k)

The m-estimate with m = a V and p = 1 / V. Pure; knows counts and rows only. Invariant: equal to
scikit-learn's MultinomialNB on the same counts. Features that no message holds take no part.
Fails with BugError for shares without smoothing: infinite shares do not add up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import BugError
from spamnb.model.events import Totals
from spamnb.model.smoothing import (
    Assumptions,
    Batch,
    ClassPair,
    Floats,
    known,
    log_m_estimate,
    log_prior,
    sums,
)


def joint_log_likelihood(
    batch: Batch, n: NDArray[np.uint32], totals: Totals, assumptions: Assumptions
) -> Floats:
    """[M, K] log P(message, label)."""
    prior = log_prior(assumptions, totals.messages)
    scores: Floats = prior + sums(batch, _log_p(n, totals, assumptions))
    return scores


def shares(
    batch: Batch, n: NDArray[np.uint32], totals: Totals, assumptions: Assumptions, sides: ClassPair
) -> tuple[Floats, Floats]:
    """Split the log-odds of s against h into each entry's part [E] and the prior's [M]."""
    if assumptions.alpha == 0:
        raise BugError("without smoothing a feature's share can be infinite: shares need alpha > 0")
    entries = sides.differences(_log_p(n, totals, assumptions), batch.owners(), batch.rows)
    if batch.times is not None:
        entries = entries * batch.times
    return entries, sides.bias(log_prior(assumptions, totals.messages), len(batch))


def _log_p(n: NDArray[np.uint32], totals: Totals, assumptions: Assumptions) -> Floats:
    """[F, K] log p(f|k), 0 in the rows of unknown features."""
    V = max(totals.known, 1)
    logs = log_m_estimate(n, totals.tokens, assumptions.alpha * V, 1 / V)
    return np.where(known(n)[:, None], logs, 0.0)
