"""Protocols: who is judged after what was taught.

*online*, the one that mail lives by: each message is judged by what was learnt before it, then
taught, as the feedback allows. *holdout*: learn the first two thirds, judge the rest. *folds*:
learn nine tenths, judge the tenth, ten times over, on as many processes as are given. *cross*:
learn one collection, judge another. Every protocol gives z for the messages that it judged; must
not know what is measured of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from spamnb.core.model.events import Ints
from spamnb.core.model.scoring import Floats
from spamnb.lab.trial import UNSURE, Due, Options, Samples, Trial
from spamnb.service.training.worker_pool import Pool

Task = TypeVar("Task")
Result = TypeVar("Result")

FOLDS = 10
_SHOWN_EVERY = 64


class ScoredMessages(NamedTuple):
    """What was said of the messages that were judged."""

    which: Ints
    """numbers of the messages, rising"""
    z: Floats
    """[M, K]"""


def run(samples: Samples, options: Options) -> ScoredMessages:
    """Judge by the protocol of the options."""
    taught = with_noise(samples.truth, options)
    return PROTOCOLS[options.protocol](samples, taught, options)


def with_noise(truth: Ints, options: Options) -> Ints:
    """Choose the labels as they will be taught; a wrong one is any other label."""
    seed = options.seed if options.noise_seed is None else options.noise_seed
    dice = np.random.default_rng(seed)
    wrong = dice.random(len(truth)) < options.noise
    K = len(options.labels)
    other = dice.integers(1, K, len(truth)) if K > 2 else 1
    return np.where(wrong, (truth + other) % K, truth)


def _online(samples: Samples, taught: Ints, options: Options) -> ScoredMessages:
    count = len(samples.items)
    trial, due_of = Trial(samples, taught, options), _FEEDBACK[options.feedback](taught, options)
    z = np.zeros((count, len(options.labels)))
    for index in range(count):
        z[index] = trial.meet(index, due_of(index))
        _show(options, index + 1, count)
    return ScoredMessages(np.arange(count), z)


def _full(_taught: Ints, _options: Options) -> Callable[[int], Due]:
    return lambda index: lambda _: (index,)


def _errors(taught: Ints, _options: Options) -> Callable[[int], Due]:
    """Only what was wrong, or said with less than 90 %."""
    sure = UNSURE[1]

    def due_of(index: int) -> Due:
        label = int(taught[index])
        return lambda P: (index,) if P.max() < sure or int(P.argmax()) != label else ()

    return due_of


def _delayed(_taught: Ints, options: Options) -> Callable[[int], Due]:
    """Every label, so many messages late: people read their mail in the evening."""
    late = options.delay
    return lambda index: lambda _: (index - late,) if index >= late else ()


def _partial(taught: Ints, options: Options) -> Callable[[int], Due]:
    """Labels of a share of the messages, whatever was said of them."""
    told = np.random.default_rng((options.seed, 1)).random(len(taught)) < options.share
    return lambda index: lambda _: (index,) if told[index] else ()


_FEEDBACK: dict[str, Callable[[Ints, Options], Callable[[int], Due]]] = {
    "full": _full,
    "errors": _errors,
    "delayed": _delayed,
    "partial": _partial,
}
FEEDBACK = tuple(_FEEDBACK)


def _holdout(samples: Samples, taught: Ints, options: Options) -> ScoredMessages:
    return _split(samples, taught, options, 2 * len(samples.items) // 3)


def _cross(samples: Samples, taught: Ints, options: Options) -> ScoredMessages:
    return _split(samples, taught, options, len(samples.items) - options.tested)


def _split(samples: Samples, taught: Ints, options: Options, first: int) -> ScoredMessages:
    trial = Trial(samples, taught, options)
    asked = range(first, len(samples.items))
    trial.teach(range(first))
    z = trial.judge(asked)
    _show(options, len(samples.items), len(samples.items))
    return ScoredMessages(np.array(asked, np.int64), z)


def _folds(samples: Samples, taught: Ints, options: Options) -> ScoredMessages:
    """Each fold is a model of its own, so any number of processes gives the same figures."""
    count = len(samples.items)

    def judged(fold: int) -> Floats:
        trial = Trial(samples, taught, options)
        trial.teach([index for index in range(count) if index % FOLDS != fold])
        return trial.judge(range(fold, count, FOLDS))

    z = np.zeros((count, len(options.labels)))
    for fold, part in enumerate(spread(judged, range(FOLDS), options.jobs)):
        z[fold::FOLDS] = part
        _show(options, (fold + 1) * count // FOLDS, count)
    return ScoredMessages(np.arange(count), z)


def spread(work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Work on so many processes, results in the order of the tasks; forked, so nothing travels."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with Pool(lambda: work, min(jobs, len(tasks))) as pool:
        yield from pool.map(tasks)


PROTOCOLS: dict[str, Callable[[Samples, Ints, Options], ScoredMessages]] = {
    "online": _online,
    "holdout": _holdout,
    "folds": _folds,
    "cross": _cross,
}


def _show(options: Options, done: int, total: int) -> None:
    if options.progress and (done % _SHOWN_EVERY == 0 or done == total):
        options.progress(done, total)
