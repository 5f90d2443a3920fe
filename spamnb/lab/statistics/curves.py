"""Compute the data of the plots: ROC, reliability, learning curve and histogram.

Pure functions of truth and scores; must not know plotting. Invariants: a curve has at most some
hundred points, whatever the number of messages; a ROC ends in both corners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.lab.statistics.metrics import Bools, auc

POINTS = 400
BLOCKS = 20


@dataclass(frozen=True, slots=True)
class Roc:
    """For each threshold from the highest down: ham lost and spam missed, as shares."""

    ham_lost: tuple[float, ...]
    spam_missed: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """Errors within one segment of the messages in order."""

    messages: int
    """number of messages up to the end of the segment"""
    error_percent: float
    """on the wrong side of a probability of 0.5, within the segment"""
    auc_complement_percent: float | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of ham and spam by log-odds; the outer bins include the tails."""

    edges: tuple[float, ...]
    ham: tuple[int, ...]
    spam: tuple[int, ...]


def roc(truth: Bools, score: Floats) -> Roc:
    """Return the ROC without inner points of straight runs, thinned to POINTS."""
    order = np.argsort(-score, kind="stable")
    ranked = score[order]
    last = np.append(ranked[1:] != ranked[:-1], True)
    lost = np.concatenate(([0], np.cumsum(~truth[order])[last])) / max(int((~truth).sum()), 1)
    missed = 1 - np.concatenate(([0], np.cumsum(truth[order])[last])) / max(int(truth.sum()), 1)
    # A straight run needs its two ends only.
    bend = np.ones(len(lost), bool)
    up, along = np.diff(missed) == 0, np.diff(lost) == 0
    bend[1:-1] = ~((up[:-1] & up[1:]) | (along[:-1] & along[1:]))
    lost, missed = lost[bend], missed[bend]
    if len(lost) > POINTS:
        chosen = np.unique(np.linspace(0, len(lost) - 1, POINTS).round().astype(int))
        lost, missed = lost[chosen], missed[chosen]
    return Roc(tuple(lost.tolist()), tuple(missed.tolist()))


def learning(truth: Bools, score: Floats, probability: Floats) -> tuple[StreamSegment, ...]:
    """Return error and 1-AUC of each of BLOCKS segments, in the order of scoring."""
    count = len(truth)
    segments = []
    for part in np.array_split(np.arange(count), min(BLOCKS, count)):
        labels = truth[part]
        wrong = (probability[part] > 0.5) != labels
        both = bool(labels.any() and not labels.all())
        area = 100 * (1 - auc(labels, score[part])) if both else None
        segments.append(StreamSegment(int(part[-1]) + 1, 100 * float(wrong.mean()), area))
    return tuple(segments)


def histogram(truth: Bools, log_odds: Floats, bins: int = 60) -> Histogram:
    """Count ham and spam over the log-odds, from the 0.5th to the 99.5th percentile."""
    low, high = np.percentile(log_odds, [0.5, 99.5])
    edges = np.linspace(low, max(high, low + 1e-9), bins + 1)
    inside = np.clip(log_odds, edges[0], edges[-1])
    ham, _ = np.histogram(inside[~truth], edges)
    spam, _ = np.histogram(inside[truth], edges)
    return Histogram(tuple(edges.tolist()), tuple(ham.tolist()), tuple(spam.tolist()))
