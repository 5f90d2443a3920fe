"""One model on trial: read messages into samples, ask it, teach it, over a store in memory.

The learner is the real one; the key of the features comes from the seed, so the same messages in
the same order give the same figures, bit for bit. Any number of labels; mail, or documents that
are no mail. Must not know protocols, measures or terminals.
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
from spamnb.store.contract import ReadView, WriteView
from spamnb.store.memory import MemoryStore

LABELS = ("ham", "spam")
UNSURE = (0.1, 0.9)
"""Between these probabilities of spam a person who corrects mistakes only would answer as well."""
_TEACHING = 256
"""messages taught in one transaction where nobody looks in between"""

_ORIGIN = Source(who="evaluation", channel="evaluation")

Labelled = tuple[bytes, str]
Due = Callable[[Floats], Sequence[int]]
"""from the probabilities that a message was given, the numbers of those to teach now"""


@dataclass(frozen=True, slots=True)
class Options:
    """How to evaluate."""

    protocol: str = "online"
    order: str = "given"
    """only told in the report: the messages come in the order that they are to be met in"""
    seed: int = 1
    """of the key, and of the noise unless it has its own"""
    feedback: str = "full"
    """full | errors | delayed | partial: which labels are taught online"""
    delay: int = 100
    """delayed: a label comes so many messages late"""
    share: float = 0.1
    """partial: the share of messages whose label is ever told"""
    noise: float = 0.0
    """share of labels that are taught wrong; the score is taken against the right ones"""
    noise_seed: int | None = None
    kind: str = "corrected"
    labels: tuple[str, ...] = LABELS
    documents: bool = False
    """plain text that is no mail"""
    tested: int = 0
    """cross: so many of the messages, the last ones, are judged by what the others taught"""
    local: LocalHosts | None = None
    costs: Costs | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    """of the model, where they differ from the recipe's"""
    resamples: int = 1000
    jobs: int = 1
    """processes for folds; the figures do not depend on it"""
    progress: Callable[[int, int], None] | None = None


class Sample(NamedTuple):
    """One message, ready to be judged and taught."""

    example: Example
    ids: Ids
    """of both groups, sorted"""
    view: RowView
    """over the rows of `ids`"""


class Samples(NamedTuple):
    """Messages in the order they are met in, and the label of each."""

    items: list[Sample]
    truth: Ints


def recipe_of(options: Options) -> Recipe:
    """The recipe of a model on trial: the kind's own constants but for those that are given."""
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
    """Read the messages, a portion at a time; only their ids are kept."""
    known = {label: k for k, label in enumerate(options.labels)}
    names: list[str] = []

    def raws() -> Iterator[bytes]:
        for raw, label in messages:
            names.append(label)
            yield raw

    items = list(_samples(raws(), options))
    foreign = sorted(set(names) - known.keys())
    if foreign:
        raise UserError(
            f"messages labelled {', '.join(foreign)} cannot be evaluated",
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
    """One model that is taught and asked."""

    def __init__(self, samples: Samples, taught: Ints, options: Options) -> None:
        self.recipe = recipe_of(options)
        self._samples = samples.items
        self._taught = taught.tolist()
        self._store = MemoryStore(self.recipe)
        self._learner = Learner(self.recipe, options.costs or Costs())

    def meet(self, index: int, due: Due) -> Floats:
        """Judge a message, then teach what is due: its z as it was before."""
        return self._store.transact(lambda view: self._met(view, index, due))

    def _met(self, view: WriteView, index: int, due: Due) -> Floats:
        z = self._judge(view, self._samples[index])
        requests = [self._lesson(i, index + 1) for i in due(probabilities(z))]
        if requests:
            self._learner.run(view, requests, scored=False)
        return z

    def teach(self, indices: Sequence[int]) -> None:
        """Teach in order, many in a transaction."""
        for start in range(0, len(indices), _TEACHING):
            some = indices[start : start + _TEACHING]
            requests = [self._lesson(i, start + k + 1) for k, i in enumerate(some)]
            with self._store.write() as view:
                self._learner.run(view, requests, scored=False)

    def judge(self, indices: Sequence[int]) -> Floats:
        """[M, K] z of each message."""
        with self._store.read() as view:
            z = [self._judge(view, self._samples[i]) for i in indices]
        return np.array(z).reshape(len(z), len(self.recipe.labels))

    def _judge(self, view: ReadView, sample: Sample) -> Floats:
        records = view.gather(sample.ids)
        return np.asarray(scores(self.recipe, view.totals(), records, sample.view)[0])

    def _lesson(self, index: int, time_us: int) -> Learn:
        return Learn(self._samples[index].example, self._taught[index], _ORIGIN, time_us)
