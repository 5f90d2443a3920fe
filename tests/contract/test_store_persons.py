"""Corrections of persons in a store: the sum of their events, in each state; for both stores."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from support.stores import (
    DAY_US,
    HAM,
    NOON_2026,
    SPAM,
    apply,
    event_for,
    learn,
    mail,
    picture,
    sound,
    update,
)

from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.model.events import NO_LABEL, label_key
from spamnb.model.persons import PLACE_BITS, PersonalCorrections, no_corrections
from spamnb.store.maintenance import check
from spamnb.store.person_tables import decode_personal, encode_personal

ANN, BOB = 7, (1 << 64) - 1


def personal_update(size):
    return update(size, personal=np.array([[size], [-3 * size]], np.int64))


def test_a_person_has_the_sum_of_their_events(store):
    """After labels of two persons are taken back in any order, nothing is left of them."""
    dice = Random(1)
    mails = {number: mail(number, *range(number, number + 50)) for number in range(8)}
    for number, message in mails.items():
        person = (ANN, BOB)[number % 2]
        learn(store, message, SPAM, delta=personal_update(100 + number), person=person)
    with store.read() as view:
        assert [person for person, _ in view.persons()] == [ANN, BOB]
        assert view.personal(ANN).values.any()
        assert view.personal(8) is None
    assert sound(store)
    for number in dice.sample(sorted(mails), len(mails)):
        learn(store, mails[number], NO_LABEL, person=(ANN, BOB)[number % 2])
    with store.read() as view:
        assert list(view.persons()) == []
        assert list(view.features()) == []
    assert sound(store)


def test_the_checkpoint_takes_the_corrections_of_persons(store):
    """Folded events leave the live corrections as they are, and make those of the checkpoint."""
    for number in range(6):
        at = NOON_2026 + number * DAY_US
        message = mail(number, *range(number, number + 40))
        learn(store, message, HAM, time_us=at, delta=personal_update(50), person=ANN)
    with store.read() as view:
        before = picture(view)
        assert before["base_persons"] == []
    with store.write() as view:
        assert view.fold(NOON_2026 + 99 * DAY_US, 99) == 6
    with store.read() as view:
        after = picture(view)
    assert after["persons"] == after["base_persons"] == before["persons"]
    assert sound(store)


def test_an_abandoned_transaction_leaves_persons_alone(store):
    """An exception in a write block undoes the corrections of persons, too."""

    def run(view):
        event = event_for(view, mail(1, 5, 6), SPAM, delta=personal_update(9), person=ANN)
        apply(view, event)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(run)
    with store.read() as view:
        assert view.personal(ANN) is None


def test_check_names_a_person_whose_corrections_are_wrong(store):
    """Corrections that no event made are found."""
    with store.write() as view:
        view.put_personal(ANN, no_corrections(2).plus(np.array([3], np.uint16), np.array([[1]])))
    with store.read() as view:
        assert check(view) == [
            "the corrections of person 0000000000000007 are not what the journal says"
        ]


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("filled", [0, 1, 300, 1 << PLACE_BITS])
def test_corrections_survive_encoding(labels, filled):
    """Few and all places, of two and three labels; the shorter form is written."""
    rng = np.random.default_rng(filled)
    values = np.zeros((labels - 1, 1 << PLACE_BITS), np.int32)
    at = rng.permutation(1 << PLACE_BITS)[:filled]
    values[:, at] = rng.integers(-(1 << 31) + 1, 1 << 31, (labels - 1, filled))
    data = encode_personal(PersonalCorrections(values))
    assert np.array_equal(decode_personal(data, labels).spread().values, values)
    assert len(data) <= 1 + values.size * 4
    if filled <= 300:
        assert len(data) == 3 + filled * (2 + 4 * (labels - 1))


def test_damaged_corrections_are_an_error():
    """Cut bytes, places out of order or range are damage; an unknown form is of a newer version."""
    personal = no_corrections(2).plus(np.array([3, 9], np.uint16), np.array([[1, 2]]))
    data = encode_personal(personal)
    swapped = data[:3] + data[5:7] + data[3:5] + data[7:]
    too_far = data[:5] + b"\xff\xff" + data[7:]
    for damaged in (data[:-1], data + b"x", data[:2], swapped, too_far, b"\1" + data):
        with pytest.raises(StoreDamagedError):
            decode_personal(damaged, 2)
    for unknown in (b"", b"\2" + data[1:]):
        with pytest.raises(StoreVersionError):
            decode_personal(unknown, 2)


def test_dropped_persons_leave_the_store(store):
    """Persons without events lose live and folded corrections, and the states of their labels."""
    messages = [mail(number, *range(number, number + 40)) for number in range(4)]
    for number, message in enumerate(messages):
        at, person = NOON_2026 + number * DAY_US, (ANN, BOB)[number % 2]
        learn(store, message, SPAM, delta=personal_update(7), person=person, time_us=at)
    store.transact(lambda view: view.fold(NOON_2026 + 9 * DAY_US, 9))
    store.transact(lambda view: view.drop_persons({ANN}))
    with store.read() as view:
        for persons in view.persons(), view.base_persons():
            assert [person for person, _ in persons] == [BOB]
        states = [view.live(label_key(one.digest, p)) for one in messages for p in (ANN, BOB)]
        assert [state is not None for state in states].count(True) == 2
    assert sound(store)
