"""The personal part of a label: what it adds to the corrections of the person that gave it.

A label of a person belongs to message and person (`label_key`): two persons may give one message
different labels, and each of them can undo only their own.
"""

from __future__ import annotations

import numpy as np

from spamnb.core.model.costs import Costs
from spamnb.core.model.events import Ids, Recipe, Update
from spamnb.core.model.scoring import maturity
from spamnb.core.model.training_rows import TrainingRows
from spamnb.core.persons.learning import PersonalMessage, personal_message, personal_step
from spamnb.core.persons.rows import PersonalRows
from spamnb.errors import BugError
from spamnb.service.engine.planner import PlannedEvent
from spamnb.store.contract import ReadView


def message_for_person(
    recipe: Recipe, plan: PlannedEvent, training_rows: TrainingRows
) -> PersonalMessage:
    """Return the message as it is for the person of the plan, with the present numbers."""
    persons = training_rows.persons
    if persons is None:
        raise BugError("an event of a person needs the corrections of persons")
    rows = training_rows.message_rows(plan.rows, plan.sizes)
    shared = training_rows.predict(recipe, rows), maturity(training_rows.totals)
    return personal_message(plan.person, plan.example.ids, shared, persons.of(plan.person))


def scores_for_person(
    recipe: Recipe, view: ReadView, ids: tuple[Ids, ...], person: int
) -> list[float]:
    """Return the scores of a message for a person, by the model of a store."""
    every = np.unique(np.concatenate(ids))
    training_rows = TrainingRows(view.totals(), every, view.gather(every))
    shared = training_rows.predict(recipe, training_rows.find(ids))
    personal = PersonalRows(len(recipe.labels), view.personal).of(person)
    message = personal_message(person, ids, (shared, maturity(training_rows.totals)), personal)
    return message.predict().z


def with_personal_step(
    recipe: Recipe, costs: Costs, plan: PlannedEvent, training_rows: TrainingRows, update: Update
) -> Update:
    """Add the personal step to the update of a label, and to the person's corrections."""
    message = message_for_person(recipe, plan, training_rows)
    steps = personal_step(recipe, costs, message, plan.after)
    assert training_rows.persons is not None, "message_for_person has read them"
    training_rows.persons.put(plan.person, message.with_step(steps).personal)
    return update._replace(personal=steps)
