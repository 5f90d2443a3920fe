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
from typing import NamedTuple, Protocol

from spamnb.core.model.costs import Costs
from spamnb.core.persons.corrections import person_id
from spamnb.lab.persons.world import NO_PERSON
from spamnb.lab.trial import Options, Sample, recipe_of
from spamnb.service.engine.learner import Learner
from spamnb.service.engine.persons import scores_for_person
from spamnb.service.engine.requests import Forget, Learn, Source
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


class TaughtModel:
    """A store in memory and its learner."""

    def __init__(self, options: Options) -> None:
        self.recipe = recipe_of(options)
        self._learner = Learner(self.recipe, options.costs or Costs())
        self._store = MemoryStore(self.recipe)

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator."""
        self.run([Learn(sample.example, label, _ADMIN, 1) for sample, label in labelled])

    def run(self, requests: Sequence[Learn | Forget]) -> None:
        """Carry out requests."""
        with self._store.write() as view:
            self._learner.run(view, requests, scored=False)

    def score(self, sample: Sample, person: int = 0) -> list[float]:
        """Return the scores of a message for a person; 0 has no corrections."""
        with self._store.read() as view:
            return scores_for_person(self.recipe, view, sample.example.ids, person)

    def persons(self) -> list[int]:
        """Return the persons with corrections."""
        with self._store.read() as view:
            return [person for person, _ in view.persons()]


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
        return self._model.score(sample)

    def teach(self, given: Given) -> None:
        """Learn a label."""
        source = Source(f"person {given.person}", immediate=self._immediate)
        self._model.run([Learn(given.sample.example, given.label, source, given.time_us)])


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


class SharedAndPersonal:
    """One shared model, and corrections of each person."""

    def __init__(self, options: Options, *, budget: bool) -> None:
        self.model = TaughtModel(options)
        self._budget = budget

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator in the shared model."""
        self.model.train(labelled)

    def score(self, person: int, sample: Sample) -> list[float]:
        """Return the scores for the person."""
        return self.model.score(sample, 0 if person == NO_PERSON else self._id(person))

    def teach(self, given: Given) -> None:
        """Learn a label in the shared model and for the person."""
        example, person = given.sample.example, self._id(given.person)
        source = Source(f"person {given.person}", immediate=self._budget, person=person)
        self.model.run([Learn(example, given.label, source, given.time_us)])

    def forget(self, person: int, sample: Sample, time_us: int) -> None:
        """Undo what the person's label of a message changed."""
        source = _ADMIN._replace(person=self._id(person))
        self.model.run([Forget(sample.example.digest, source, time_us)])

    def _id(self, person: int) -> int:
        return person_id(str(person), self.model.recipe.key)


MODELS: dict[str, Callable[[Options], PersonsModel]] = {
    "one model": partial(OneModel, immediate=True),
    "one model, steps": partial(OneModel, immediate=False),
    "a model each": OneModelEach,
    "personal corrections": partial(SharedAndPersonal, budget=True),
    "without budget": partial(SharedAndPersonal, budget=False),
}
"""by the name in reports"""
