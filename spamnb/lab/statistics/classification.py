"""Metrics of a classifier with any number of labels: precision, recall, F1.

Pure functions of true and assigned labels; must not know models. Invariants: no metric depends on
the order of the messages; precision, recall and F1 are 0 where their denominator is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spamnb.core.model.events import Ints
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.lab.statistics.metrics import Bools


class LabelMetrics(NamedTuple):
    """Counts of one label, and the metrics from them."""

    documents: int
    """documents that have the label"""
    found: int
    """documents that were assigned the label"""
    right: int
    """documents that have the label and were assigned it"""

    @property
    def precision(self) -> float:
        """Of the documents assigned the label, the share that has it."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Of the documents that have the label, the share that was assigned it."""
        return self.right / self.documents if self.documents else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall: 2 right / (documents + found)."""
        both = self.documents + self.found
        return 2 * self.right / both if both else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return counts and metrics as a JSON object."""
        return self._asdict() | {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
        }


def quality(truth: Bools, assigned: Bools) -> LabelMetrics:
    """Count the documents of one label."""
    return LabelMetrics(int(truth.sum()), int(assigned.sum()), int((truth & assigned).sum()))


def pooled(parts: list[LabelMetrics]) -> LabelMetrics:
    """Sum the counts of all labels; F1 of the sum is the micro average."""
    return LabelMetrics(
        sum(part.documents for part in parts),
        sum(part.found for part in parts),
        sum(part.right for part in parts),
    )


def macro_f1(parts: list[LabelMetrics]) -> float:
    """Mean F1 over the labels that occur; rare and common labels count alike."""
    scores = [part.f1 for part in parts if part.documents]
    return float(np.mean(scores)) if scores else 0.0


def best_threshold(truth: Bools, odds: Floats, default: float) -> float:
    """Return the log-odds threshold of the best expected F1 of one label.

    Each document counts as the mean of its truth and its predicted probability. With the truth
    alone, the best cut overfits: with 300 documents macro F1 is 0.569 and micro F1 0.708, against
    0.583 and 0.770; from 3,000 documents on there is no difference (decision 0021). The
    threshold is the middle of the gap below the last document above it. Without any document of
    the label, the default is returned.
    """
    if not truth.any():
        return default
    order = np.argsort(-odds, kind="stable")
    ranked = odds[order]
    likely = (truth[order] + 1 / (1 + np.exp(-np.clip(ranked, -700, 700)))) / 2
    f1 = 2 * np.cumsum(likely) / (likely.sum() + np.arange(1, len(ranked) + 1))
    # Ties are assigned together, so a cut may lie only where the score changes.
    f1[:-1][ranked[:-1] == ranked[1:]] = -1
    last = int(np.argmax(f1))
    if last + 1 == len(ranked):
        return float(ranked[last])
    return float((ranked[last] + ranked[last + 1]) / 2)


def break_even(truth: Bools, score: Floats) -> float | None:
    """Return precision at the cut where it equals recall: among the n best of n documents.

    Documents that tie at the cut count with their mean.
    """
    count = int(truth.sum())
    if not count:
        return None
    border = np.sort(score)[-count]
    above, at = score > border, score == border
    right = truth[above].sum() + (count - above.sum()) * truth[at].mean()
    return float(right / count)


def confusion(truth: Ints, assigned: Ints, labels: int) -> Ints:
    """Return the confusion matrix: [true, assigned] counts."""
    return np.bincount(truth * labels + assigned, minlength=labels * labels).reshape(labels, labels)
