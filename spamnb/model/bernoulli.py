"""Bernoulli naive Bayes: each known feature counts, whether the message contains it or not.

    p       = (n[f,k] + a) / (N[k] + 2a)
    score_k = log prior_k + sum over f in x of log p + sum over known f not in x of log(1 - p)

The last sum runs over the whole vocabulary, and depends on f only through the number n[f,k]. So it
is taken over a histogram of these numbers, H[k][c] = known features with n[f,k] == c, less the
features that the message holds. The result is exact, and its cost grows with the number of distinct
counts alone.

Pure; knows counts and rows only. Invariants: equal to scikit-learn's BernoulliNB on the same
counts; H has no empty columns at its end, so equal counts have equal histograms. Fails with
BugError when counts and histogram contradict each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamnb.errors import BugError
from spamnb.model.events import Ints, Totals
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
    """[M, K] log P(message, label). Ignores `times` of the batch: only presence counts."""
    present, absent = _log_odds_parts(n, totals, assumptions)
    here = Batch(batch.rows, batch.offsets)
    # Only without smoothing: if every message of a label contains a feature, its absence has
    # probability 0. These are counted beside the sums, because -inf minus -inf would be nan.
    needed, held = np.isneginf(absent), sums(here, np.isneginf(absent).astype(np.float64))
    nothing, all_needed = _empty_message(totals, assumptions)
    scores: Floats = nothing + sums(here, present - np.where(needed, 0.0, absent))
    scores[all_needed - held > 0] = -np.inf
    return scores


def shares(
    batch: Batch, n: NDArray[np.uint32], totals: Totals, assumptions: Assumptions, sides: ClassPair
) -> tuple[Floats, Floats]:
    """Split the log-odds into each entry's part [E] and all absences with the prior [M].

    Absent features are never entries: the bias is the log-odds of a message that holds nothing.
    """
    if assumptions.alpha == 0:
        raise BugError("without smoothing a feature's share can be infinite: shares need alpha > 0")
    present, absent = _log_odds_parts(n, totals, assumptions)
    entries = sides.differences(present - absent, batch.owners(), batch.rows)
    return entries, sides.bias(_empty_message(totals, assumptions)[0], len(batch))


def histogram_of(n: NDArray[np.uint32], K: int) -> Ints:
    """H from all records, for a model of another kind: it costs a scan of the store."""
    counted = n[known(n)].astype(np.int64)
    columns = int(counted.max(initial=-1)) + 1
    if columns == 0:
        return np.zeros((0, 0), np.int64)
    return np.stack([np.bincount(counted[:, k], minlength=columns) for k in range(K)])


def histogram_moved(H: Ints, old_n: NDArray[np.uint32], new_n: NDArray[np.uint32]) -> Ints:
    """A new H after these features' rows [F, K] changed from old to new.

    A feature learnt for the first time enters at H[k][0] for every k and moves on from there; the
    last forget removes it. Counting the known rows before and after does both.
    """
    K = old_n.shape[1]
    gone, come = histogram_of(old_n, K), histogram_of(new_n, K)
    columns = max(H.shape[1], gone.shape[1], come.shape[1])
    moved = _widened(H, K, columns) - _widened(gone, K, columns) + _widened(come, K, columns)
    if (moved < 0).any():
        raise BugError("the histogram does not hold the rows to remove from it")
    used = np.flatnonzero(moved.any(axis=0))
    return moved[:, : used[-1] + 1].copy() if len(used) else np.zeros((0, 0), np.int64)


def _widened(H: Ints, K: int, columns: int) -> Ints:
    wide = np.zeros((K, columns), np.int64)
    if H.size:
        wide[:, : H.shape[1]] = H
    return wide


def _log_absent(count: ArrayLike, messages: ArrayLike, alpha: float) -> Floats:
    """log(1 - p) as an m-estimate of the messages without the feature.

    log1p(-p) loses it to rounding when p is nearly 1: with a = 1e-20 it would be -inf.
    """
    missing = np.asarray(messages, np.int64) - np.asarray(count, np.int64)
    return log_m_estimate(missing, messages, 2 * alpha, 0.5)


def _log_odds_parts(
    n: NDArray[np.uint32], totals: Totals, assumptions: Assumptions
) -> tuple[Floats, Floats]:
    """[F, K] log p and log(1 - p), both 0 in the rows of unknown features."""
    N = totals.messages
    if (n > N).any():
        raise BugError("more messages of a label contain a feature than there are")
    seen = known(n)[:, None]
    present = log_m_estimate(n, N, 2 * assumptions.alpha, 0.5)
    return np.where(seen, present, 0.0), np.where(seen, _log_absent(n, N, assumptions.alpha), 0.0)


def _empty_message(totals: Totals, assumptions: Assumptions) -> tuple[Floats, Ints]:
    """[K] the score of a message without features, impossible absences left out, and their number.

    Takes one logarithm for each distinct count: 1,500 of them after 38,000 messages.
    """
    N, H = totals.messages, totals.histogram
    prior = log_prior(assumptions, N)
    if not H.size:
        return prior, np.zeros(len(N), np.int64)
    c = np.flatnonzero(H.any(axis=0))
    H = H[:, c]
    if (H * (c > N[:, None])).any():
        raise BugError("the histogram counts more messages of a label than there are")
    logs = _log_absent(np.minimum(c, N[:, None]), N[:, None], assumptions.alpha)
    impossible = np.isneginf(logs)
    return prior + (H * np.where(impossible, 0.0, logs)).sum(axis=1), (H * impossible).sum(axis=1)
