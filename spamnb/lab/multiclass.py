"""Evaluation with any number of labels: how well is each of them found, also the rare ones.

Two ways. *one model* for documents that have one label each: the most probable label is given, and
beside it each label by a threshold of its own. *one against rest*, for documents with several
labels or none: a model for each label. Thresholds are chosen for the best F1 on what was learnt
from and never on what is judged: by folds within it (holdout, cross), on the other folds (folds),
or on what came before (online). Must not know terminals.

Failure: UserError for collections that cannot be judged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from spamnb.core.model.events import Ints
from spamnb.core.model.scoring import Floats, one_against_rest
from spamnb.errors import UserError
from spamnb.lab.protocols import FOLDS, ScoredMessages, run, spread
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

REST = "(rest)"
_STRETCHES = 10
"""online: the thresholds are chosen anew so often"""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """How well one label was found."""

    label: str
    most_probable: LabelMetrics
    by_threshold: LabelMetrics
    threshold: float
    """log-odds of the label against the rest from which it is given; online the last one chosen"""
    break_even: float | None

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return {
            "label": self.label,
            "most_probable": self.most_probable.as_dict(),
            "by_threshold": self.by_threshold.as_dict(),
            "threshold": self.threshold,
            "break_even": self.break_even,
        }


@dataclass(frozen=True, slots=True)
class LabelEvaluation:
    """All labels."""

    results: tuple[LabelResult, ...]
    documents: int
    """that were judged"""
    options: Options
    seconds: float
    cpu_seconds: float
    confusion: tuple[tuple[int, ...], ...] | None = None
    """[true][most probable]; only where each document has one label"""

    def as_dict(self) -> dict[str, object]:
        """Build what `evaluate --json` writes for labels of one's own."""
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
        """The qualities of all labels, by each way of giving labels."""
        return {
            "most_probable": [result.most_probable for result in self.results],
            "by_threshold": [result.by_threshold for result in self.results],
        }


class _Found(NamedTuple):
    """What was said of one label."""

    truth: Bools
    odds: Floats
    given: Bools
    threshold: float


def evaluate_labels(messages: Iterable[Labelled], options: Options) -> LabelEvaluation:
    """Judge messages that have one label each, in the order they are met in, by one model."""
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    samples = read_samples(messages, options)
    _refuse_few(samples.truth, options.labels)
    # First, for it starts processes, and the other tells how far it is: a display is a thread.
    inner = _inner(samples, options)
    said = run(samples, options)
    truth, odds = samples.truth[said.which], one_against_rest(said.z)
    chosen = said.z.argmax(axis=1)
    results = []
    for k, label in enumerate(options.labels):
        learnt = None if inner is None else (inner.z[:, k], samples.truth[inner.which] == k)
        found = _found(truth == k, odds[:, k], options, learnt)
        results.append(_result(label, found, quality(truth == k, chosen == k)))
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
    """Judge documents with any labels, by a model of its own for each label of the options."""
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    labels, binary = options.labels, replace(options, labels=(REST, "label"))
    read = read_samples(((raw, REST) for raw, _ in documents), binary)
    held = [set(names) for _, names in documents]

    def judged(label: str) -> LabelResult:
        truth = np.array([label in names for names in held], np.int64)
        return _against_rest(label, Samples(read.items, truth), replace(binary, progress=None))

    results = []
    for result in spread(judged, labels, options.jobs):
        results.append(result)
        if options.progress:
            options.progress(len(results), len(labels))
    count = options.tested or len(documents)
    seconds, cpu_seconds = time.perf_counter() - started, sum(os.times()[:4]) - cpu
    return LabelEvaluation(tuple(results), count, options, seconds, cpu_seconds)


def _against_rest(label: str, samples: Samples, options: Options) -> LabelResult:
    options = replace(options, jobs=1)
    _refuse_few(samples.truth, ("other documents", label))
    said, inner = run(samples, options), _inner(samples, options)
    truth, odds = samples.truth[said.which] == 1, said.z[:, 1] - said.z[:, 0]
    learnt = None if inner is None else (inner.z[:, 1], samples.truth[inner.which] == 1)
    return _result(label, _found(truth, odds, options, learnt), quality(truth, odds > 0))


def _result(label: str, found: _Found, most_probable: LabelMetrics) -> LabelResult:
    return LabelResult(
        label,
        most_probable,
        quality(found.truth, found.given),
        found.threshold,
        break_even(found.truth, found.odds),
    )


def thresholds_of(messages: Iterable[Labelled], options: Options) -> dict[str, float]:
    """The threshold of each label, in log-odds against the rest, by folds over all messages."""
    samples = read_samples(messages, options)
    _refuse_few(samples.truth, options.labels)
    odds = one_against_rest(run(samples, replace(options, protocol="folds")).z)
    return {
        label: best_threshold(samples.truth == k, odds[:, k], 0.0)
        for k, label in enumerate(options.labels)
    }


def _inner(samples: Samples, options: Options) -> ScoredMessages | None:
    """Folds within what is learnt, where that comes first; z is against the rest."""
    count = len(samples.items)
    first = {"holdout": 2 * count // 3, "cross": count - options.tested}.get(options.protocol)
    if first is None:
        return None
    part = Samples(samples.items[:first], samples.truth[:first])
    said = run(part, replace(options, protocol="folds", noise=0.0, progress=None))
    return ScoredMessages(said.which, one_against_rest(said.z))


def _found(
    truth: Bools, odds: Floats, options: Options, learnt: tuple[Floats, Bools] | None
) -> _Found:
    """Give the label by thresholds that know nothing of the document they are used on."""
    if learnt is not None:
        threshold = best_threshold(learnt[1], learnt[0], 0.0)
        return _Found(truth, odds, odds >= threshold, threshold)
    given, threshold = np.zeros(len(truth), bool), 0.0
    for mine, others in _parts(len(truth), options.protocol):
        threshold = best_threshold(truth[others], odds[others], 0.0)
        given[mine] = odds[mine] >= threshold
    return _Found(truth, odds, given, threshold)


def _parts(count: int, protocol: str) -> list[tuple[Ints, Ints]]:
    """(what is judged, what its threshold is chosen on)."""
    every = np.arange(count)
    if protocol == "folds":
        return [(every[f::FOLDS], every[every % FOLDS != f]) for f in range(FOLDS)]
    return [(part, every[: part[0]]) for part in np.array_split(every, min(_STRETCHES, count))]


def _refuse_few(truth: Ints, labels: Sequence[str]) -> None:
    held = np.bincount(truth, minlength=len(labels))
    if len(truth) < FOLDS or (held == 0).any():
        told = ", ".join(f"{n} {label}" for n, label in zip(held, labels, strict=True))
        raise UserError(
            f"{told}: too few to evaluate",
            hint=f"give at least {FOLDS} documents, some of each label",
        )
