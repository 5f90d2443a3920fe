"""The models that can serve several persons, each with the learner of the product.

    one model             all persons label one model, and a correction takes effect for all
    one model, steps      the same, but each label takes one step only
    a model each          each person has a model of their own labels
    personal corrections  one shared model, and corrections of each person; what a person's labels
                          change in the shared corrections in a day is limited, as in the product
    without budget        the same without this limit

Must not know figures or worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

from spamnb.core.model.costs import Costs
from spamnb.core.model.events import Ints, Update
from spamnb.core.model.scoring import Prediction, maturity, predict
from spamnb.core.model.training_rows import TrainingRows
from spamnb.core.persons.corrections import PersonalCorrections, no_corrections, person_id
from spamnb.core.persons.learning import (
    PersonalMessage,
    personal_message,
    personal_step,
)
from spamnb.lab.trial import Options, Sample, recipe_of
from spamnb.service.engine.learner import Learner
from spamnb.service.engine.planner import PlannedEvent
from spamnb.service.engine.requests import Example, Forget, Learn, Source
from spamnb.store.memory import MemoryStore

_ADMIN = Source("admin")


class Given(NamedTuple):
    """One label that a person gives."""

    person: int
    sample: Sample
    label: int
    time_us: int


class PersonsModel(Protocol):
    """A model for several persons."""

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator, for all persons."""

    def score(self, person: int, sample: Sample) -> list[float]:
        """Return z [K] of a message for a person."""

    def teach(self, given: Given) -> None:
        """Learn a person's label."""


class _SharedLearner(Learner):
    """The learner for labels that take effect elsewhere: they have a budget, and do not insist."""

    def _enforce_label(self, plan: PlannedEvent, rows: TrainingRows, update: Update) -> Update:  # noqa: ARG002
        return update


class TaughtModel:
    """A store in memory and its learner."""

    def __init__(self, options: Options, learner: type[Learner] = Learner) -> None:
        self.recipe = recipe_of(options)
        self.costs = options.costs or Costs()
        self._learner = learner(self.recipe, self.costs)
        self._store = MemoryStore(self.recipe)

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator."""
        self._run([Learn(sample.example, label, _ADMIN, 1) for sample, label in labelled])

    def learn(self, given: Given, example: Example, *, immediate: bool) -> None:
        """Learn a label of a person."""
        source = Source(f"person {given.person}", immediate=immediate)
        self._run([Learn(example, given.label, source, given.time_us)])

    def forget(self, digest: bytes, time_us: int) -> None:
        """Take the label of a message back."""
        self._run([Forget(digest, _ADMIN, time_us)])

    def _run(self, requests: Sequence[Learn | Forget]) -> None:
        with self._store.write() as view:
            self._learner.run(view, requests, scored=False)

    def predict(self, sample: Sample) -> tuple[Prediction, float]:
        """Return the result for a message, and the maturity of the model."""
        with self._store.read() as view:
            records, totals = view.gather(sample.ids), view.totals()
        cells = np.concatenate((records.n.T, records.w.T), dtype=np.float64)
        cells = cells.take(sample.view.rows, axis=1)
        sizes = tuple(len(part) for part in sample.example.ids)
        return predict(self.recipe, totals, cells, sizes), maturity(totals)


class OneModel:
    """All persons teach one model; the last label of a message counts."""

    def __init__(self, options: Options, *, immediate: bool) -> None:
        self._model = TaughtModel(options)
        self._immediate = immediate

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator."""
        self._model.train(labelled)

    def score(self, person: int, sample: Sample) -> list[float]:  # noqa: ARG002 - protocol
        """Return the scores, which are those of all persons."""
        prediction, _ = self._model.predict(sample)
        return prediction.z

    def teach(self, given: Given) -> None:
        """Learn a label."""
        self._model.learn(given, given.sample.example, immediate=self._immediate)


class OneModelEach:
    """Each person has a model of their own labels and the administrator's."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._trained: Sequence[tuple[Sample, int]] = ()
        self._models: dict[int, OneModel] = {}

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator, in every model."""
        self._trained = labelled

    def score(self, person: int, sample: Sample) -> list[float]:
        """Return the scores of the person's model."""
        return self._of(person).score(person, sample)

    def teach(self, given: Given) -> None:
        """Learn a label in the person's model."""
        self._of(given.person).teach(given)

    def _of(self, person: int) -> OneModel:
        if person not in self._models:
            self._models[person] = model = OneModel(self._options, immediate=True)
            model.train(self._trained)
        return self._models[person]


class _Taught(NamedTuple):
    """What a label of one person changed."""

    label: int
    steps: Ints
    digest: bytes
    """of the shared part"""


class SharedAndPersonal:
    """One shared model, and corrections of each person."""

    def __init__(self, options: Options, *, budget: bool) -> None:
        self._model = TaughtModel(options, _SharedLearner)
        self._budget = budget
        self._none = no_corrections(len(self._model.recipe.labels))
        self.personal: dict[int, PersonalCorrections] = {}
        self._taught: dict[tuple[int, bytes], _Taught] = {}

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator in the shared model."""
        self._model.train(labelled)

    def score(self, person: int, sample: Sample) -> list[float]:
        """Return the scores for the person."""
        return self._message(person, sample).predict().z

    def teach(self, given: Given) -> None:
        """Learn a label in the shared model and for the person."""
        before = self._taught.get((given.person, given.sample.example.digest))
        if before is not None and before.label == given.label:
            return
        self.forget(given.person, given.sample, given.time_us)
        digest = self._learn_shared(given)
        message = self._message(given.person, given.sample)
        steps = personal_step(self._model.recipe, self._model.costs, message, given.label)
        self.personal[given.person] = message.with_step(steps).personal
        taught = _Taught(given.label, steps, digest)
        self._taught[given.person, given.sample.example.digest] = taught

    def forget(self, person: int, sample: Sample, time_us: int) -> None:
        """Take back what the person's label of a message changed."""
        taught = self._taught.pop((person, sample.example.digest), None)
        if taught is None:
            return
        self._model.forget(taught.digest, time_us)
        message = self._message(person, sample)
        self.personal[person] = message.with_step(taught.steps, -1).personal

    def _message(self, person: int, sample: Sample) -> PersonalMessage:
        id_ = person_id(str(person), self._model.recipe.key)
        personal = self.personal.get(person, self._none)
        return personal_message(id_, sample.example.ids, self._model.predict(sample), personal)

    def _learn_shared(self, given: Given) -> bytes:
        """Learn a label once for each person that gives it; return the digest of the pair."""
        example = given.sample.example
        text = example.digest + given.person.to_bytes(8)
        pair = example._replace(digest=blake2b(text, digest_size=len(example.digest)).digest())
        self._model.learn(given, pair, immediate=self._budget)
        return pair.digest


MODELS: dict[str, Callable[[Options], PersonsModel]] = {
    "one model": partial(OneModel, immediate=True),
    "one model, steps": partial(OneModel, immediate=False),
    "a model each": OneModelEach,
    "personal corrections": partial(SharedAndPersonal, budget=True),
    "without budget": partial(SharedAndPersonal, budget=False),
}
"""by the name in reports"""
