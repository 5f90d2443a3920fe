"""Train and score one model in memory: read messages into samples, train them, score them.

Uses the learner of the product. The feature key is derived from the seed, so the same messages in
the same order give the same scores, bit for bit. Any number of labels; mail or plain documents.
Must not know protocols, metrics or terminals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from spamnb.core.features.extract import Features
from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.costs import Costs
from spamnb.core.model.events import Ids, Ints, Recipe
from spamnb.core.model.scoring import Floats, RowView, probabilities, scores
from spamnb.errors import UserError
from spamnb.service.engine.extraction import MessageReader, example_of
from spamnb.service.engine.learner import Learner
from spamnb.service.engine.requests import Example, Learn, Source
from spamnb.service.engine.scoring import novelties
from spamnb.service.maintenance.prior import Prior, prior_load
from spamnb.store.contract import ReadView, WriteView
from spamnb.store.memory import MemoryStore

LABELS = ("ham", "spam")
UNSURE = (0.1, 0.9)
"""A user that corrects only mistakes is assumed to label also messages between these
probabilities."""
_BATCH = 256
"""messages per transaction where no message is scored in between"""

_ORIGIN = Source(user="evaluation", channel="evaluation")

Labelled = tuple[bytes, str]
TrainingChoice = Callable[[Floats], Sequence[int]]
"""(probabilities of the message just scored) -> indices of the messages to train now"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an evaluation."""

    protocol: str = "online"
    order: str = "given"
    """for the report only: the caller has put the messages in order"""
    seed: int = 1
    """seed of the feature key, and of the noise unless `noise_seed` is set"""
    feedback: str = "full"
    """full | errors | delayed | partial: which labels are trained by protocol online"""
    delay: int = 100
    """delayed: a label is trained so many messages later"""
    share: float = 0.1
    """partial: the share of messages that are ever trained"""
    noise: float = 0.0
    """share of labels that are trained wrong; metrics use the right ones"""
    noise_seed: int | None = None
    kind: str = "corrected"
    labels: tuple[str, ...] = LABELS
    documents: bool = False
    """the input is plain text, not mail"""
    tested: int = 0
    """cross: number of messages at the end that are scored by a model trained on the others"""
    local: LocalHosts | None = None
    costs: Costs | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    """model constants that replace those of the recipe"""
    prior: Prior | None = None
    """what the model knows before its first message"""
    resamples: int = 1000
    jobs: int = 1
    """processes for folds; the scores do not depend on it"""
    progress: Callable[[int, int], None] | None = None


class Sample(NamedTuple):
    """One message as features, ready to be scored and trained."""

    example: Example
    ids: Ids
    """feature ids of both groups, sorted"""
    view: RowView
    """indices into the rows of `ids`"""


class Samples(NamedTuple):
    """Messages in order, and the label index of each."""

    items: list[Sample]
    truth: Ints


def recipe_of(options: Options) -> Recipe:
    """Return the recipe of the model: the constants of its kind, with those of the options."""
    key = hashlib.blake2b(b"evaluation %d" % options.seed, digest_size=32).digest()
    made = Recipe(
        kind=options.kind,
        labels=options.labels,
        key=key,
        vocabulary=False,
        alpha=0.01 if options.kind == "corrected" else 1.0,
        documents=options.documents,
    )
    return replace(made, **dict(options.constants))  # type: ignore[arg-type]


def read_samples(messages: Iterable[Labelled], options: Options) -> Samples:
    """Extract the features of labelled messages in batches; the texts are not kept."""
    known = {label: k for k, label in enumerate(options.labels)}
    names: list[str] = []

    def raws() -> Iterator[bytes]:
        for raw, label in messages:
            names.append(label)
            yield raw

    items = list(_samples(raws(), options))
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise UserError(
            f"messages labelled {', '.join(unknown)} cannot be evaluated",
            hint=f"label them {' or '.join(options.labels)}",
        )
    return Samples(items, np.array([known[name] for name in names], np.int64))


def _samples(raws: Iterable[bytes], options: Options) -> Iterator[Sample]:
    recipe = recipe_of(options)
    reader = MessageReader(recipe.key, options.local, documents=recipe.documents)
    for feature_batch in reader.feature_batches(raws):
        for index, message in enumerate(feature_batch.messages):
            made = example_of(
                message, feature_batch.features, index, occurrences=recipe.occurrences
            )
            example = Example(made.digest, made.message_id, made.ids, made.times)
            yield _sample(example, feature_batch.features, index)


def _sample(example: Example, features: Features, index: int) -> Sample:
    by_group = features.of(index)
    rows = np.sort(by_group)
    sizes = np.array([len(part) for part in example.ids])
    view = RowView(rows.searchsorted(by_group), np.array([0, len(rows)]), sizes)
    return Sample(example, features.ids[rows], view)


class Trial:
    """One model that is trained and scored on samples."""

    def __init__(self, samples: Samples, train_labels: Ints, options: Options) -> None:
        self.recipe = recipe_of(options)
        self._samples = samples.items
        self._train_labels = train_labels.tolist()
        self._store = MemoryStore(self.recipe)
        self._learner = Learner(self.recipe, options.costs or Costs())
        if options.prior is not None:
            added = prior_load(self.recipe, options.prior, _ORIGIN)
            self._store.transact(lambda view: self._learner.run(view, [added], scored=False))

    def score_then_train(self, index: int, choose: TrainingChoice) -> Floats:
        return self._store.transact(lambda view: self._score_then_train(view, index, choose))

    def _score_then_train(self, view: WriteView, index: int, choose: TrainingChoice) -> Floats:
        z = self._score(view, self._samples[index])
        requests = [self._request(i, index + 1) for i in choose(probabilities(z))]
        if requests:
            self._learner.run(view, requests, scored=False)
        return z

    def train(self, indices: Sequence[int]) -> None:
        """Train the messages in order, in batches of one transaction each."""
        for start in range(0, len(indices), _BATCH):
            batch = indices[start : start + _BATCH]
            requests = [self._request(i, start + k + 1) for k, i in enumerate(batch)]
            with self._store.write() as view:
                self._learner.run(view, requests, scored=False)

    def score(self, indices: Sequence[int]) -> Floats:
        with self._store.read() as view:
            z = [self._score(view, self._samples[i]) for i in indices]
        return np.array(z).reshape(len(z), len(self.recipe.labels))

    def novelty(self, index: int) -> float:
        """Return by how much a message's junk threshold is higher than the site's, in nats."""
        sample = self._samples[index]
        with self._store.read() as view:
            records = view.gather(sample.ids)
            return novelties(self.recipe, view.totals(), records, sample.view)[0].nats

    def _score(self, view: ReadView, sample: Sample) -> Floats:
        records = view.gather(sample.ids)
        return np.asarray(scores(self.recipe, view.totals(), records, sample.view)[0])

    def _request(self, index: int, time_us: int) -> Learn:
        return Learn(self._samples[index].example, self._train_labels[index], _ORIGIN, time_us)
