"""The harm of a label is what it adds to the mean loss of the guard messages."""

from random import Random

import numpy as np
import pytest
from test_personal_corrections import LABELS, drawn_ids, drawn_model

from spamnb.core.model.events import STEP_ONE, Records
from spamnb.core.model.scoring import correction_weights, predict, softmax
from spamnb.core.persons.account import GuardMessage, Guards, SharedRows, after_label


def rows_of(ids, where, cells):
    return cells[:, [where[int(id_)] for part in ids for id_ in part]]


def with_weights_of(messages, totals, cells):
    """Return the rows with corrections that count as if the totals had these messages."""
    n, w = np.split(cells, 2)
    weights = correction_weights(messages, n) / correction_weights(totals.messages, n)
    return np.concatenate((n, w * weights))


def mean_loss(recipe, totals, guards, where, cells):
    """Score every guard message anew."""
    losses = []
    for guard in guards:
        sizes = tuple(len(part) for part in guard.ids)
        joint = predict(recipe, totals, rows_of(guard.ids, where, cells), sizes).joint
        losses.append(-np.log(softmax(joint)[guard.label]))
    return float(np.mean(losses))


def drawn_groups(dice, vocabulary):
    """Return the features of a message, by group, each from one half of the vocabulary."""
    halves = np.split(vocabulary, [len(vocabulary) // 2])
    return tuple(
        np.array(sorted(dice.sample(half.tolist(), dice.choice((0, 5, 40)))), np.uint64)
        for half in halves
    )


@pytest.mark.parametrize("labels", LABELS, ids=len)
def test_harm_is_the_growth_of_the_loss(labels):
    """The harm found from a label's own features is that of scoring all guard messages again."""
    dice = Random(4)
    for _ in range(10):
        recipe, totals = drawn_model(dice, labels)
        vocabulary, K = drawn_ids(dice, 150), len(labels)
        where = {int(id_): row for row, id_ in enumerate(vocabulary)}
        n = np.array([[dice.choice((0, 0, 1, 9)) for _ in vocabulary] for _ in labels], float)
        w = np.array([[dice.randrange(STEP_ONE) for _ in vocabulary] for _ in labels], float)
        cells = np.concatenate((n, w))

        listed = tuple(
            GuardMessage(drawn_groups(dice, vocabulary), dice.randrange(K), "") for _ in range(20)
        )
        guards = Guards(recipe, listed)
        read = rows_of((guards.ids,), where, cells)
        guards.read(
            Records(read[:K].T, read[K:].T, np.zeros(len(guards.ids), np.uint16)), totals.messages
        )
        ids, label = drawn_groups(dice, vocabulary), dice.randrange(K)
        before = SharedRows(totals, rows_of(ids, where, cells))
        after = after_label(recipe, before, tuple(map(len, ids)), label)
        changed = cells.copy()
        changed[:, [where[int(id_)] for part in ids for id_ in part]] = after.cells
        changed = with_weights_of(totals.messages, after.totals, changed)
        grown = mean_loss(recipe, after.totals, listed, where, changed) - mean_loss(
            recipe, totals, listed, where, cells
        )
        found = guards.harm(np.concatenate(ids), before, after)
        assert found == pytest.approx(grown * STEP_ONE, abs=1)
