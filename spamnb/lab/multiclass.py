"""Evaluate models with any number of labels: precision, recall and F1 of each label.

`evaluate_labels` uses one model, for documents with one label each; labels are assigned both by
the highest probability and by a threshold per label. `evaluate_against_rest` uses a `LabelMatrix`,
for documents with several labels or none. Thresholds maximise F1 on training documents and
never on the documents that they are applied to: by folds within the training part (holdout,
cross), on the other folds (folds), or on the documents before (online). Must not know terminals.

Failure: UserError for collections that cannot be evaluated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.events import Ints, Recipe
from spamnb.core.model.scoring import Floats, one_against_rest
from spamnb.errors import UserError
from spamnb.lab.label_matrix import LabelledRows, LabelMatrix, label_table, read_rows
from spamnb.lab.protocols import FOLDS, ScoredMessages, run, run_models, with_noise
from spamnb.lab.sources import read_each, shuffled
from spamnb.lab.statistics.classification import (
    LabelMetrics,
    best_threshold,
    break_even,
    confusion,
    macro_f1,
    pooled,
    quality,
)
from spamnb.lab.statistics.metrics import Bools
from spamnb.lab.trial import Labelled, Options, Samples, read_samples
from spamnb.service.training.sources import units

REST = "(rest)"
_ONLINE_PARTS = 10
"""online: the thresholds are chosen again before each of so many parts"""


FEWEST = 20
"""minimum number of documents of a label for evaluation against the rest"""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """Metrics of one label."""

    label: str
    most_probable: LabelMetrics
    by_threshold: LabelMetrics
    threshold: float
    """least log-odds against the other labels to assign this one; online, the last one chosen"""
    break_even: float | None

    def as_dict(self) -> dict[str, object]:
        """Return one entry of `labels` in `evaluate --json`."""
        return {
            "label": self.label,
            "most_probable": self.most_probable.as_dict(),
            "by_threshold": self.by_threshold.as_dict(),
            "threshold": self.threshold,
            "break_even": self.break_even,
        }


@dataclass(frozen=True, slots=True)
class LabelEvaluation:
    """Result of a multiclass evaluation: the metrics of all labels."""

    results: tuple[LabelResult, ...]
    documents: int
    """number of documents scored"""
    options: Options
    seconds: float
    cpu_seconds: float
    confusion: tuple[tuple[int, ...], ...] | None = None
    """[true][most probable] counts; None where documents may have several labels"""

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object of `evaluate --json` for labels other than ham and spam."""
        means = {
            way: {"macro_f1": macro_f1(parts), "micro_f1": pooled(parts).f1}
            for way, parts in self.ways().items()
        }
        table = self.confusion
        return {
            "documents": self.documents,
            "protocol": self.options.protocol,
            "order": self.options.order,
            "seed": self.options.seed,
            "kind": self.options.kind,
            "accuracy": sum(table[k][k] for k in range(len(table))) / self.documents
            if table and self.documents
            else None,
            **means,
            "labels": [result.as_dict() for result in self.results],
            "confusion": table,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
        }

    def ways(self) -> dict[str, list[LabelMetrics]]:
        """Return the metrics of all labels for each method of assigning them."""
        return {
            "most_probable": [result.most_probable for result in self.results],
            "by_threshold": [result.by_threshold for result in self.results],
        }


class _LabelOutcomes(NamedTuple):
    """Truth, scores and assignments of one label."""

    truth: Bools
    odds: Floats
    assigned: Bools
    threshold: float


def evaluate_collection(
    documents: Sequence[tuple[bytes, tuple[str, ...]]], options: Options, *, against_rest: bool
) -> LabelEvaluation:
    """Evaluate one model of all labels; on request or for several labels, each against the rest."""
    given = [label for _, labels in documents for label in labels]
    single = all(len(labels) == 1 for _, labels in documents)
    names = tuple(sorted(set(given)))
    if single and not against_rest:
        one_each = ((raw, labels[0]) for raw, labels in documents)
        return evaluate_labels(one_each, replace(options, labels=names))
    common = tuple(name for name in names if given.count(name) >= FEWEST)
    if not common:
        raise UserError(f"no label has {FEWEST} documents", hint="give more documents")
    return evaluate_against_rest(documents, replace(options, labels=common))


def evaluate_labels(messages: Iterable[Labelled], options: Options) -> LabelEvaluation:
    """Evaluate one model on messages with one label each, in the order given."""
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    samples = read_samples(messages, options)
    _refuse_few(samples.truth, options.labels)
    # First, because it forks processes; `run` reports progress, and the display is a thread.
    training_scores = _score_training_part(samples, options)
    scored = run(samples, options)
    truth, odds = samples.truth[scored.which], one_against_rest(scored.z)
    chosen = scored.z.argmax(axis=1)
    results = []
    for k, label in enumerate(options.labels):
        training = training_scores and (
            training_scores.z[:, k],
            samples.truth[training_scores.which] == k,
        )
        outcomes = _apply_threshold(truth == k, odds[:, k], options, training)
        results.append(_result(label, outcomes, quality(truth == k, chosen == k)))
    table = confusion(truth, chosen, len(options.labels))
    return LabelEvaluation(
        tuple(results),
        len(truth),
        options,
        time.perf_counter() - started,
        sum(os.times()[:4]) - cpu,
        tuple(tuple(row) for row in table.tolist()),
    )


def evaluate_against_rest(
    documents: Sequence[tuple[bytes, tuple[str, ...]]], options: Options
) -> LabelEvaluation:
    """Evaluate all labels of the options, each against the rest, on documents with any number."""
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    if options.kind != "corrected":
        raise UserError(
            f"--against-rest does not work with the kind {options.kind}", hint="leave out --kind"
        )
    truth = label_table([names for _, names in documents], options.labels)
    for label, present in zip(options.labels, truth.T, strict=True):
        _refuse_few(present, ("other documents", label))
    read = read_rows((raw for raw, _ in documents), options)
    training_scores = _training_part_against_rest(read, truth, options)
    scored = _run_against_rest(read, truth, options)
    truth = truth[scored.which] == 1
    results = []
    for k, label in enumerate(options.labels):
        odds, training = scored.z[:, k], None
        if training_scores is not None:
            training = training_scores.z[:, k], training_scores.truth[:, k]
        outcomes = _apply_threshold(truth[:, k], odds, options, training)
        results.append(_result(label, outcomes, quality(truth[:, k], odds > 0)))
    seconds, cpu_seconds = time.perf_counter() - started, sum(os.times()[:4]) - cpu
    return LabelEvaluation(tuple(results), len(truth), options, seconds, cpu_seconds)


class _TrainingScores(NamedTuple):
    """Scores [M, K] of training documents by folds, and their labels."""

    z: Floats
    truth: NDArray[np.bool_]


def _run_against_rest(read: LabelledRows, truth: Ints, options: Options) -> ScoredMessages:
    train_labels = with_noise(truth, options)
    return run_models(lambda: LabelMatrix(read, train_labels), train_labels, options)


def _training_part_against_rest(
    read: LabelledRows, truth: Ints, options: Options
) -> _TrainingScores | None:
    """Score the training part by folds within it; None for protocols without such a part."""
    first = _training_part(len(truth), options)
    if first is None:
        return None
    folds = replace(options, protocol="folds", noise=0.0, progress=None)
    scored = _run_against_rest(read, truth[:first], folds)
    return _TrainingScores(scored.z, truth[:first] == 1)


def _result(label: str, outcomes: _LabelOutcomes, most_probable: LabelMetrics) -> LabelResult:
    return LabelResult(
        label,
        most_probable,
        quality(outcomes.truth, outcomes.assigned),
        outcomes.threshold,
        break_even(outcomes.truth, outcomes.odds),
    )


def thresholds_of(messages: Iterable[Labelled], options: Options) -> dict[str, float]:
    """Return the threshold of each label, in log-odds against the rest, by cross-validation."""
    samples = read_samples(messages, options)
    _refuse_few(samples.truth, options.labels)
    odds = one_against_rest(run(samples, replace(options, protocol="folds")).z)
    return {
        label: best_threshold(samples.truth == k, odds[:, k], 0.0)
        for k, label in enumerate(options.labels)
    }


def choose_thresholds(
    sources: Sequence[tuple[str, str]],
    recipe: Recipe,
    local: LocalHosts,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> dict[str, float]:
    """Choose the thresholds of a model with this recipe on (label, path) sources."""
    options = Options(
        kind=recipe.kind,
        labels=tuple(dict.fromkeys(label for label, _ in sources)),
        documents=recipe.documents,
        local=local,
        constants={name: getattr(recipe, name) for name in ("alpha", "kappa", "r", "eta")},
        jobs=jobs,
        progress=progress,
    )
    named = [
        (unit.name.rpartition("/")[2], (unit, label))
        for label, path in sources
        for unit in units(path, documents=recipe.documents)
    ]
    read = read_each(shuffled(named, 1), lambda _: None, documents=recipe.documents)
    return thresholds_of(read, options)


def _score_training_part(samples: Samples, options: Options) -> ScoredMessages | None:
    """Scores of the training part by folds within it, as log-odds against the rest.

    None for protocols without a separate training part.
    """
    first = _training_part(len(samples.items), options)
    if first is None:
        return None
    part = Samples(samples.items[:first], samples.truth[:first])
    scored = run(part, replace(options, protocol="folds", noise=0.0, progress=None))
    return ScoredMessages(scored.which, one_against_rest(scored.z))


def _training_part(count: int, options: Options) -> int | None:
    """How many documents, the first ones, are for training; None if there is no such part."""
    return {"holdout": 2 * count // 3, "cross": count - options.tested}.get(options.protocol)


def _apply_threshold(
    truth: Bools, odds: Floats, options: Options, training: tuple[Floats, Bools] | None
) -> _LabelOutcomes:
    """Assign a label by thresholds chosen without the documents that they are applied to."""
    if training is not None:
        threshold = best_threshold(training[1], training[0], 0.0)
        return _LabelOutcomes(truth, odds, odds >= threshold, threshold)
    assigned, threshold = np.zeros(len(truth), bool), 0.0
    for rows, others in _parts(len(truth), options.protocol):
        threshold = best_threshold(truth[others], odds[others], 0.0)
        assigned[rows] = odds[rows] >= threshold
    return _LabelOutcomes(truth, odds, assigned, threshold)


def _parts(count: int, protocol: str) -> list[tuple[Ints, Ints]]:
    """Pairs (documents to assign, documents to choose their threshold on)."""
    every = np.arange(count)
    if protocol == "folds":
        return [(every[f::FOLDS], every[every % FOLDS != f]) for f in range(FOLDS)]
    return [(part, every[: part[0]]) for part in np.array_split(every, min(_ONLINE_PARTS, count))]


def _refuse_few(truth: Ints, labels: Sequence[str]) -> None:
    counts = np.bincount(truth, minlength=len(labels))
    if len(truth) < FOLDS or (counts == 0).any():
        text = ", ".join(f"{n} {label}" for n, label in zip(counts, labels, strict=True))
        raise UserError(
            f"{text}: too few to evaluate",
            hint=f"give at least {FOLDS} documents, some of each label",
        )
