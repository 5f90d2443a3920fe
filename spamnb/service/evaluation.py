"""Evaluation: how well would this filter have done on these messages, had it met them in order.

Three protocols. *online*, the one that mail lives by: each message is judged by what was learnt
before it, then taught. *holdout*: learn the first two thirds, judge the rest. *folds*: learn nine
tenths, judge the tenth, ten times over. The learner is the real one, over a store in memory; the
key of the features comes from the seed, so the same messages in the same order give the same
figures, bit for bit. Must not know terminals or settings; writes nothing.

Failure: UserError for messages that no protocol can judge (one class only, fewer than ten).
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spamnb.core.decision import Costs, decide_many, roles_of
from spamnb.core.event import Ids, Recipe
from spamnb.core.features import Features
from spamnb.core.measures import Bools, Outcomes, Report, report
from spamnb.core.message import House
from spamnb.core.model import Floats, View, probabilities, scores
from spamnb.errors import UserError
from spamnb.service.learner import Learner
from spamnb.service.lessons import Example, Origin, Teach
from spamnb.service.reading import MessageReader, example_of
from spamnb.store.contract import ReadView, WriteView
from spamnb.store.memory import MemoryStore

LABELS = ("ham", "spam")
FOLDS = 10
UNSURE = (0.1, 0.9)
"""Between these probabilities of spam a person who corrects mistakes only would answer as well."""
_TEACHING = 256
"""messages taught in one transaction where nobody looks in between"""
_SHOWN_EVERY = 64

_ORIGIN = Origin(who="evaluation", channel="evaluation")

Labelled = tuple[bytes, str]


@dataclass(frozen=True, slots=True)
class Options:
    """How to evaluate."""

    protocol: str = "online"
    order: str = "given"
    """only told in the report: the messages come in the order that they are to be met in"""
    seed: int = 1
    """of the key, and of the noise unless it has its own"""
    feedback: str = "full"
    noise: float = 0.0
    """share of labels that are taught wrong; the score is taken against the right ones"""
    noise_seed: int | None = None
    kind: str = "corrected"
    house: House | None = None
    costs: Costs | None = None
    resamples: int = 1000
    progress: Callable[[int, int], None] | None = None


class Judged(NamedTuple):
    """What was said of the messages that were judged, in their order."""

    truth: Bools
    log_odds: Floats
    probability: Floats
    decided: Bools
    """kept from the inbox: junk or reject"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measures, and what was said of each message."""

    report: Report
    judged: Judged
    options: Options
    seconds: float
    cpu_seconds: float

    def as_dict(self) -> dict[str, object]:
        """Build what `evaluate --json` writes."""
        plain = self.report.as_dict()
        options = self.options
        head: dict[str, object] = {
            "corpus": plain.pop("corpus"),
            "protocol": options.protocol,
            "order": options.order,
            "seed": options.seed,
            "feedback": options.feedback,
            "noise": options.noise,
            "kind": options.kind,
        }
        messages = len(self.judged.truth)
        return head | plain | {
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(messages / max(self.seconds, 1e-9), 1),
            "cpu_seconds": round(self.cpu_seconds, 3),
        }  # fmt: skip


def evaluate(messages: Sequence[Labelled], options: Options | None = None) -> Evaluation:
    """Judge messages, (raw, "ham" or "spam") in the order they are met in."""
    options = options or Options()
    started, cpu = time.perf_counter(), time.process_time()
    truth = _truth(messages)
    examples = list(_examples(messages, options))
    taught = _with_noise(truth, options)
    judged = _PROTOCOLS[options.protocol](examples, truth, taught, options)
    outcomes = Outcomes(judged.truth, judged.log_odds, judged.probability, judged.decided)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    found = report(outcomes, resamples=options.resamples, seed=1)
    return Evaluation(found, judged, options, seconds, cpu_seconds)


def shuffled(named: Iterable[tuple[str, Labelled]], seed: int) -> list[Labelled]:
    """By file name over both classes (ties by label), then shuffled: no path, no disk order."""
    rows = sorted(named, key=lambda row: (row[0], row[1][1]))
    random.Random(seed).shuffle(rows)  # noqa: S311 - an order that can be had again, no secret
    return [message for _, message in rows]


def by_time(named: Iterable[tuple[str, Labelled]]) -> list[Labelled]:
    """By the time of arrival, or else the Date; those without either stand by name at the start."""
    keyed = [(_arrival(message[0]), name, message) for name, message in named]
    return [message for _, _, message in sorted(keyed, key=lambda row: (*row[:2], row[2][1]))]


def _truth(messages: Sequence[Labelled]) -> Bools:
    foreign = {label for _, label in messages} - set(LABELS)
    if foreign:
        raise UserError(
            f"messages labelled {', '.join(sorted(foreign))} cannot be evaluated",
            hint="label them ham or spam",
        )
    truth = np.array([label == "spam" for _, label in messages], np.bool_)
    if len(truth) < FOLDS or truth.all() or not truth.any():
        raise UserError(
            f"{int((~truth).sum())} ham and {int(truth.sum())} spam are too few to evaluate",
            hint=f"give at least {FOLDS} messages, some of either class",
        )
    return truth


def _recipe(options: Options) -> Recipe:
    key = hashlib.blake2b(b"evaluation %d" % options.seed, digest_size=32).digest()
    alpha = 0.01 if options.kind == "corrected" else 1.0
    return Recipe(kind=options.kind, labels=LABELS, key=key, vocabulary=False, alpha=alpha)


class _Sample(NamedTuple):
    """One message, ready to be judged and taught."""

    example: Example
    ids: Ids
    """of both groups, sorted"""
    view: View
    """over the rows of `ids`"""


def _examples(messages: Sequence[Labelled], options: Options) -> Iterator[_Sample]:
    """Read the messages, a portion at a time; only their ids are kept."""
    recipe = _recipe(options)
    reader = MessageReader(recipe.key, options.house)
    for portion in reader.portions(raw for raw, _ in messages):
        for index, message in enumerate(portion.messages):
            made = example_of(message, portion.features, index, occurrences=recipe.occurrences)
            example = Example(made.digest, made.message_id, made.ids, made.times)
            yield _sample(example, portion.features, index)


def _sample(example: Example, features: Features, index: int) -> _Sample:
    rows = np.sort(features.of(index))
    size = len(rows)
    view = View(np.arange(size), np.array([0, size]), features.group[rows])
    return _Sample(example, features.ids[rows], view)


def _with_noise(truth: Bools, options: Options) -> Bools:
    """Choose the labels as they will be taught."""
    seed = options.seed if options.noise_seed is None else options.noise_seed
    wrong = np.random.default_rng(seed).random(len(truth)) < options.noise
    return truth ^ wrong


class _Trial:
    """One model that is taught and asked."""

    def __init__(self, options: Options) -> None:
        self.recipe = _recipe(options)
        self._options = options
        costs = options.costs or Costs()
        self._store = MemoryStore(self.recipe)
        self._learner = Learner(self.recipe, costs)
        self._costs, self._roles = costs, roles_of(LABELS)

    def meet(self, sample: _Sample, label: int, time_us: int) -> tuple[float, float]:
        """Judge, then teach: (log-odds, probability of spam) as they were before."""
        z = self._store.transact(lambda view: self._met(view, sample, label, time_us))
        return float(z[1] - z[0]), float(probabilities(z)[1])

    def _met(self, view: WriteView, sample: _Sample, label: int, time_us: int) -> Floats:
        z = self._judge(view, sample)
        if self._is_told(probabilities(z), label):
            self._learner.run(view, [self._lesson(sample, label, time_us)], scored=False)
        return z

    def teach(self, samples: Sequence[_Sample], labels: Sequence[int]) -> None:
        """Teach in order, many in a transaction."""
        for start in range(0, len(samples), _TEACHING):
            some = range(start, min(start + _TEACHING, len(samples)))
            lessons = [self._lesson(samples[i], labels[i], i + 1) for i in some]
            with self._store.write() as view:
                self._learner.run(view, lessons, scored=False)

    def judge(self, samples: Sequence[_Sample]) -> Floats:
        """[M, 2] z of each message."""
        with self._store.read() as view:
            return np.array([self._judge(view, sample) for sample in samples])

    def _judge(self, view: ReadView, sample: _Sample) -> Floats:
        records = view.gather(sample.ids)
        return np.asarray(scores(self.recipe, view.totals(), records, sample.view)[0])

    def _is_told(self, P: Floats, label: int) -> bool:
        if self._options.feedback == "full":
            return True
        low, high = UNSURE
        return bool(low < P[1] < high or (P[1] > 0.5) != (label == 1))

    def _lesson(self, sample: _Sample, label: int, time_us: int) -> Teach:
        return Teach(sample.example, label, _ORIGIN, time_us)

    def judged(self, truth: Bools, odds: Floats, P: Floats) -> Judged:
        """With the decisions that these probabilities lead to."""
        decisions = decide_many(np.stack([1 - P, P], axis=1), self._costs, self._roles)
        return Judged(truth, odds, P, decisions >= 2)


def _online(samples: list[_Sample], truth: Bools, taught: Bools, options: Options) -> Judged:
    trial = _Trial(options)
    said = np.zeros((len(samples), 2))
    for index, sample in enumerate(samples):
        said[index] = trial.meet(sample, int(taught[index]), index + 1)
        _show(options, index + 1, len(samples))
    return trial.judged(truth, said[:, 0], said[:, 1])


def _holdout(samples: list[_Sample], truth: Bools, taught: Bools, options: Options) -> Judged:
    first = 2 * len(samples) // 3
    learn, ask = list(range(first)), list(range(first, len(samples)))
    said = _learnt_and_asked(samples, taught, learn, ask, options)
    _show(options, len(samples), len(samples))
    return _Trial(options).judged(truth[first:], said[:, 0], said[:, 1])


def _folds(samples: list[_Sample], truth: Bools, taught: Bools, options: Options) -> Judged:
    said = np.zeros((len(samples), 2))
    for fold in range(FOLDS):
        ask = list(range(fold, len(samples), FOLDS))
        learn = [index for index in range(len(samples)) if index % FOLDS != fold]
        said[ask] = _learnt_and_asked(samples, taught, learn, ask, options)
        _show(options, (fold + 1) * len(samples) // FOLDS, len(samples))
    return _Trial(options).judged(truth, said[:, 0], said[:, 1])


def _learnt_and_asked(
    samples: list[_Sample],
    taught: Bools,
    learn: list[int],
    ask: list[int],
    options: Options,
) -> Floats:
    """[M, 2] log-odds and probability of the messages that were asked."""
    trial = _Trial(options)
    trial.teach([samples[i] for i in learn], [int(taught[i]) for i in learn])
    z = trial.judge([samples[i] for i in ask])
    return np.stack([z[:, 1] - z[:, 0], probabilities(z)[:, 1]], axis=1)


_PROTOCOLS: dict[str, Callable[[list[_Sample], Bools, Bools, Options], Judged]] = {
    "online": _online,
    "holdout": _holdout,
    "folds": _folds,
}


def _show(options: Options, done: int, total: int) -> None:
    if options.progress and (done % _SHOWN_EVERY == 0 or done == total):
        options.progress(done, total)


def _arrival(raw: bytes) -> float:
    """Seconds since 1970 by the newest Received, else by Date; 0 if neither can be read."""
    from email.utils import mktime_tz, parsedate_tz  # noqa: PLC0415 - only for this order

    head = raw[:65_536].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    fields = head.replace(b"\n ", b" ").replace(b"\n\t", b" ").split(b"\n")
    for name in (b"received:", b"date:"):
        for line in fields:
            if line[: len(name)].lower() == name:
                said = line[len(name) :].rpartition(b";")[2].decode("ascii", "replace")
                parsed = parsedate_tz(said)
                if parsed and 1970 <= parsed[0] < 10_000:
                    try:
                        return float(mktime_tz(parsed))
                    except (ValueError, OverflowError):
                        continue
    return 0.0
