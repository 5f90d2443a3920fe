"""The account of a person: how much that person's labels have harmed mail on which others agree.

Harm of a label: the mean growth of the log loss of the guard messages when the shared model learns
the label. Guard messages are messages with labels of the administrator, or of two or more
persons who agree. A label always counts as evidence: it moves the counts of the shared model. It
also moves the shared corrections, as long as the account of its person with the harm of the label
stays within TOLERANCE; the harm is then added to the account. So the account is the harm really
done, which TOLERANCE bounds. The counts of a label do a hundredth of the harm of its step.

An account is a sum of integers, one for each event, so undoing an event restores it. Pure; must not
know stores or clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import BIAS_ONE, STEP_ONE, Ids, Recipe, Records, Totals
from spamnb.core.model.id_arrays import locate
from spamnb.core.model.scoring import (
    KNOWN,
    SHARE,
    Floats,
    correction_weights,
    doubt,
    group_temperatures,
    predict,
    step,
)

TOLERANCE = round(0.002 * STEP_ONE)
"""Labels of persons who agree do a hundredth of it in sum; with 0.01, attacks do more harm, and
persons who disagree are served less well (docs/decisions/0045). 2^-20 nats."""
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


class SharedRows(NamedTuple):
    """What a label changes in the shared model: the totals, and the rows of its message."""

    totals: Totals
    cells: Floats
    """[2K, m] n and w by group"""


def after_label(
    recipe: Recipe, before: SharedRows, sizes: tuple[int, ...], label: int, weight: float = 1.0
) -> SharedRows:
    """The shared model after the counts of a label and its doubted step of this weight."""
    totals, K = before.totals.copy(), len(recipe.labels)
    seen = predict(recipe, totals, before.cells, sizes)
    update = step(recipe, seen, sizes, label, weight * doubt(seen, label))
    cells = before.cells.copy()
    cells[label] += 1
    cells[K:] += update.steps.T.repeat(sizes, axis=1)
    totals.messages[label] += 1
    totals.bias += update.bias
    totals.temperatures += update.temperatures
    return SharedRows(totals, cells)


class Guards:
    """Guard messages with the sums of their features.

    A label changes the sums only by its own features, so its harm takes 0.6 ms. The sums follow
    the labels that are learnt: with sums of 64 labels before, opposite labels of two persons would
    both seem harmful, because the loss is convex.
    """

    def __init__(self, recipe: Recipe, messages: tuple[GuardMessage, ...]) -> None:
        self._recipe = recipe
        parts = [part for message in messages for part in message.ids]
        self._sizes = np.array([len(part) for part in parts])
        self._labels = np.array([message.label for message in messages])
        self.ids, features = np.unique(np.concatenate(parts), return_inverse=True)
        """sorted, distinct"""
        order = features.argsort(kind="stable")
        self._part = np.arange(len(parts)).repeat(self._sizes)[order]
        """[E] the message and group of each entry, feature after feature"""
        self._entries = np.bincount(features, minlength=len(self.ids))
        self._starts = np.cumsum(self._entries) - self._entries
        self._sums = np.zeros((2 * len(recipe.labels) + 2, len(parts)))

    def read(self, records: Records, messages: NDArray[np.int64]) -> None:
        """Compute the sums from the rows of `ids`."""
        cells = np.concatenate((records.n.T, records.w.T), dtype=np.float64)
        values = self._values(cells, messages)
        self._sums = self._summed(values, np.arange(len(self.ids)))

    def harm(self, ids: Ids, before: SharedRows, after: SharedRows) -> int:
        """How much a change of these features raises the mean log loss, in 2^-20 nats."""
        sums = self._moved(ids, before, after)
        grown = self._loss(sums, after.totals) - self._loss(self._sums, before.totals)
        return round(grown * STEP_ONE)

    def learn(self, ids: Ids, before: SharedRows, after: SharedRows) -> None:
        """Follow a change of these features."""
        self._sums = self._moved(ids, before, after)

    def _moved(self, ids: Ids, before: SharedRows, after: SharedRows) -> Floats:
        """The sums after a change of these features."""
        at, here = locate(self.ids, ids)
        messages = before.totals.messages
        changes = self._values(after.cells[:, here], messages)
        changes -= self._values(before.cells[:, here], messages)
        return np.asarray(self._sums + self._summed(changes, at[here]))

    def _values(self, cells: Floats, messages: NDArray[np.int64]) -> Floats:
        """[2K + 2, m] damped evidence without the totals, corrections, known, damping.

        A label counts one message more, which moves the weight of every feature's corrections a
        little. Here they keep those of the messages before the label.
        """
        K, recipe = len(self._recipe.labels), self._recipe
        holders = cells[:K].sum(axis=0)
        damping = holders / (holders + recipe.r) if recipe.r else (holders > 0).astype(float)
        evidence = np.log(cells[:K] + recipe.alpha) * damping
        corrections = cells[K:] * correction_weights(messages, cells[:K])
        return np.concatenate((evidence, corrections, (holders > 0, damping)), dtype=np.float64)

    def _summed(self, values: Floats, features: NDArray[np.intp]) -> Floats:
        """[2K + 2, parts] sums of the values of some features over each message and group."""
        counts = self._entries[features]
        first = np.cumsum(counts) - counts
        entries = (self._starts[features] - first).repeat(counts) + np.arange(int(counts.sum()))
        parts, spread = self._part[entries], values.repeat(counts, axis=1)
        return np.array([
            np.bincount(parts, weights=line, minlength=len(self._sizes)) for line in spread
        ])  # fmt: skip

    def _loss(self, sums: Floats, totals: Totals) -> float:
        """The mean log loss of the joint scores."""
        recipe, K = self._recipe, len(self._recipe.labels)
        spans = np.maximum(np.minimum(self._sizes, KNOWN * sums[2 * K]), 1)
        logs = np.log(totals.messages + 2 * recipe.alpha)
        evidence = (sums[:K] - logs[:, None] * sums[-1]) / spans**recipe.kappa
        corrections = sums[K : 2 * K] / np.sqrt(spans) / STEP_ONE
        shape = K, len(self._labels), recipe.groups
        tau = np.array(group_temperatures(totals))
        z = tau * evidence.reshape(shape) + corrections.reshape(shape)
        joint = SHARE * (z + totals.bias.T[:, None, :] / BIAS_ONE).sum(axis=2)
        right = joint[self._labels, np.arange(len(self._labels))]
        return float((np.logaddexp.reduce(joint) - right).mean())


class Account(NamedTuple):
    """The harm that one person's labels have done."""

    harm: int = 0
    """2^-20 nats, between -TOLERANCE and TOLERANCE"""
    day: int = 0
    """of its last change"""

    def plus(self, harm: int, day: int) -> Account | None:
        """The account after a label of this harm; None if the label may move no corrections."""
        kept = self.harm * 0.5 ** (max(day - self.day, 0) / HALF_LIFE_DAYS)
        after = max(round(kept) + harm, -TOLERANCE)
        return Account(after, max(day, self.day)) if after <= TOLERANCE else None
