"""Evaluation protocols: the order in which messages are scored and trained.

*online*, as in mail: each message is scored with the model so far, then trained as the feedback
option allows. *holdout*: train the first two thirds, score the rest. *folds*: train nine tenths,
score the other tenth, ten times, on as many processes as given. *cross*: train one collection,
score another. Every protocol returns z of the messages that it scored. Must not know metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from spamnb.core.model.events import Ints
from spamnb.core.model.scoring import Floats
from spamnb.lab.trial import UNSURE, Options, Samples, TrainingChoice, Trial
from spamnb.service.training.worker_pool import Pool

Task = TypeVar("Task")
Result = TypeVar("Result")

FOLDS = 10
_PROGRESS_EVERY = 64


class ScoredMessages(NamedTuple):
    """Scores of the messages that were scored."""

    which: Ints
    """[M] indices of the messages, ascending"""
    z: Floats
    """[M, K] scores by label"""


class Model(Protocol):
    """A model that is trained and scored on messages by their indices."""

    def train(self, indices: Sequence[int]) -> None:
        """Train the messages in order."""

    def score(self, indices: Sequence[int]) -> Floats:
        """Return z [M, K] of the messages."""

    def score_then_train(self, index: int, choose: TrainingChoice) -> Floats:
        """Score a message, then train what `choose` returns; return its z."""


Maker = Callable[[], Model]
"""returns a new model without training"""


def run(samples: Samples, options: Options) -> ScoredMessages:
    """Train and score the samples by the protocol of the options."""
    train_labels = with_noise(samples.truth, options)
    return run_models(lambda: Trial(samples, train_labels, options), train_labels, options)


def run_models(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    """Train and score new models by the protocol; labels are [M], or [M, K] of 0 and 1."""
    return PROTOCOLS[options.protocol](make, train_labels, options)


def with_noise(truth: Ints, options: Options) -> Ints:
    """Return the labels to train; a share of `options.noise` is replaced by another label.

    Of a message with a row of labels [K], all are inverted.
    """
    seed = options.seed if options.noise_seed is None else options.noise_seed
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(truth)) < options.noise
    if truth.ndim > 1:
        return np.where(wrong[:, None], 1 - truth, truth)
    K = len(options.labels)
    other = rng.integers(1, K, len(truth)) if K > 2 else 1
    return np.where(wrong, (truth + other) % K, truth)


def _online(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    count = len(train_labels)
    model, choice_at = make(), _FEEDBACK[options.feedback](train_labels, options)
    z = np.zeros((count, len(options.labels)))
    for index in range(count):
        z[index] = model.score_then_train(index, choice_at(index))
        _report_progress(options, index + 1, count)
    return ScoredMessages(np.arange(count), z)


def _full(_train_labels: Ints, _options: Options) -> Callable[[int], TrainingChoice]:
    return lambda index: lambda _: (index,)


def _errors(train_labels: Ints, _options: Options) -> Callable[[int], TrainingChoice]:
    """Train only messages with a wrong label or a probability below 90 %."""
    sure = UNSURE[1]

    def choice_at(index: int) -> TrainingChoice:
        label = train_labels[index]
        if label.ndim:
            return lambda P: (index,) if np.where(label, P, 1 - P).min() < sure else ()
        return lambda P: (index,) if P[label] < sure else ()

    return choice_at


def _delayed(_train_labels: Ints, options: Options) -> Callable[[int], TrainingChoice]:
    """Train every message, `options.delay` messages later."""
    delay = options.delay
    return lambda index: lambda _: (index - delay,) if index >= delay else ()


def _partial(train_labels: Ints, options: Options) -> Callable[[int], TrainingChoice]:
    """Train a random share of the messages, whatever their score."""
    labelled = np.random.default_rng((options.seed, 1)).random(len(train_labels)) < options.share
    return lambda index: lambda _: (index,) if labelled[index] else ()


_FEEDBACK: dict[str, Callable[[Ints, Options], Callable[[int], TrainingChoice]]] = {
    "full": _full,
    "errors": _errors,
    "delayed": _delayed,
    "partial": _partial,
}


def _holdout(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    return _split(make, train_labels, options, 2 * len(train_labels) // 3)


def _cross(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    return _split(make, train_labels, options, len(train_labels) - options.tested)


def _split(make: Maker, train_labels: Ints, options: Options, first: int) -> ScoredMessages:
    model = make()
    tested = range(first, len(train_labels))
    model.train(range(first))
    z = model.score(tested)
    _report_progress(options, len(train_labels), len(train_labels))
    return ScoredMessages(np.array(tested, np.int64), z)


def _folds(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    """Each fold has its own model, so the scores do not depend on the number of processes."""
    count = len(train_labels)

    def score_fold(fold: int) -> Floats:
        model = make()
        model.train([index for index in range(count) if index % FOLDS != fold])
        return model.score(range(fold, count, FOLDS))

    z = np.zeros((count, len(options.labels)))
    for fold, part in enumerate(parallel_map(score_fold, range(FOLDS), options.jobs)):
        z[fold::FOLDS] = part
        _report_progress(options, (fold + 1) * count // FOLDS, count)
    return ScoredMessages(np.arange(count), z)


def parallel_map(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Iterator[Result]:
    """Map over forked processes, results in the order of the tasks; `work` is not pickled."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with Pool(lambda: work, min(jobs, len(tasks))) as pool:
        yield from pool.map(tasks)


PROTOCOLS: dict[str, Callable[[Maker, Ints, Options], ScoredMessages]] = {
    "online": _online,
    "holdout": _holdout,
    "folds": _folds,
    "cross": _cross,
}


def _report_progress(options: Options, done: int, total: int) -> None:
    if options.progress and (done % _PROGRESS_EVERY == 0 or done == total):
        options.progress(done, total)
