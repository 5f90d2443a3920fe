"""The account of a person: how much that person's labels would harm mail on which others agree.

Harm of a label: the mean growth of the log loss of the guard messages when the shared step of the
label is taken. Guard messages are messages with labels of the administrator, or of two or more
persons who agree. The harm of every label is added to the account of its person, whether the label
then counts for others or not. A label counts as long as its person's account is not above
TOLERANCE; otherwise it changes that person's corrections alone.

An account is a sum of integers, one for each event, so undoing an event restores it. Pure; must not
know stores or clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from spamnb.core.model.events import NO_LABEL, STEP_ONE, Ids, Ints, Recipe
from spamnb.core.model.scoring import RowView, doubt, probabilities, scores, step
from spamnb.core.model.training_rows import TrainingRows

TOLERANCE = round(0.01 * STEP_ONE)
"""Honest persons stay below it (docs/decisions/0045). 2^-20 nats."""
HALF_LIFE_DAYS = 30
"""An account halves in so many days."""
GUARDS = 128
"""Guard messages, half of each label."""
FEWEST_GUARDS = 40
"""With fewer of a label, nothing is measured and every label counts."""
GUARDS_PER_PERSON = 4
"""Guard messages from one person's labels."""


class GuardMessage(NamedTuple):
    """A message with a label on which others agree."""

    ids: tuple[Ids, ...]
    label: int
    person: str
    """the last person that gave the label; empty for the administrator"""


def choose_guards(newest_first: Iterable[GuardMessage], labels: int) -> tuple[GuardMessage, ...]:
    """The newest messages, an equal number of each label and few of each person.

    No message if one label has too few.
    """
    chosen: list[GuardMessage] = []
    by_label, by_person = Counter[int](), Counter[str]()
    for message in newest_first:
        if by_label[message.label] >= GUARDS // labels or (
            message.person and by_person[message.person] >= GUARDS_PER_PERSON
        ):
            continue
        chosen.append(message)
        by_label[message.label] += 1
        by_person[message.person] += 1
    enough = all(by_label[label] >= FEWEST_GUARDS for label in range(labels))
    return tuple(chosen) if enough else ()


class GuardRows(NamedTuple):
    """Guard messages as rows of their features."""

    ids: Ids
    """sorted, distinct"""
    view: RowView
    labels: Ints


def guard_rows(guards: tuple[GuardMessage, ...]) -> GuardRows:
    """The guard messages, ready to be scored."""
    parts = [part for guard in guards for part in guard.ids]
    ids, rows = np.unique(np.concatenate(parts), return_inverse=True)
    sizes = np.array([len(part) for part in parts])
    ends = sizes.reshape(len(guards), -1).sum(axis=1).cumsum()
    view = RowView(rows, np.concatenate(([0], ends)), sizes)
    return GuardRows(ids, view, np.array([guard.label for guard in guards]))


def harm(
    recipe: Recipe, rows: TrainingRows, guards: GuardRows, ids: tuple[Ids, ...], label: int
) -> int:
    """What the shared step of a label would add to the guard messages' mean log loss, 2^-20 nats.

    `rows` holds the features of the message and of the guard messages; it is changed as the step
    would change the model.
    """
    before = _mean_loss(recipe, rows, guards)
    message = rows.find(ids)
    seen = rows.predict(recipe, message)
    update = step(recipe, seen, message.sizes, label, doubt(seen, label))
    rows.update(message, update.steps)
    rows.add_to_totals(update)
    rows.count(message, NO_LABEL, label)
    rows.put(message)
    return round((_mean_loss(recipe, rows, guards) - before) * STEP_ONE)


def _mean_loss(recipe: Recipe, rows: TrainingRows, guards: GuardRows) -> float:
    cells = rows.records_of(rows.find((guards.ids,)))
    P = probabilities(scores(recipe, rows.totals, cells, guards.view))
    right = P[np.arange(len(P)), guards.labels]
    return float(-np.log(np.maximum(right, np.finfo(np.float64).tiny)).mean())


class Account(NamedTuple):
    """The harm of one person's labels."""

    harm: int = 0
    """2^-20 nats, at least -TOLERANCE"""
    day: int = 0
    """of its last change"""

    def plus(self, harm: int, day: int) -> Account:
        """The account after a label of this harm."""
        kept = self.harm * 0.5 ** (max(day - self.day, 0) / HALF_LIFE_DAYS)
        return Account(max(round(kept) + harm, -TOLERANCE), max(day, self.day))

    @property
    def counts(self) -> bool:
        """Whether the label that led to this account counts for others."""
        return self.harm <= TOLERANCE
