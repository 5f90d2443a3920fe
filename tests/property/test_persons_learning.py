"""Labels of persons in the product's learner and store: exact, reversible, and rebuilt alike."""

from random import Random

import numpy as np
import pytest
from support.memory_store import MemoryStore
from support.stores import picture, sound

from spamnb.engine.filter import new_recipe
from spamnb.engine.learner import Learner, scores_for_person
from spamnb.engine.values import Example, Forget, Learn, Source, Undo
from spamnb.errors import RefusedError
from spamnb.maintenance.rewind import relearn
from spamnb.model.costs import Costs
from spamnb.store.maintenance import Change, rebuild, replay
from spamnb.store.model_store import open_store

RECIPE = new_recipe("corrected", ("ham", "spam"))
PERSONS = 11, 22, 33
DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US


def drawn_examples(dice, count):
    halves = [[dice.getrandbits(64) for _ in range(100)] for _ in range(2)]
    return [
        Example(
            dice.randbytes(16),
            f"{number}@example.org",
            tuple(np.array(sorted(dice.sample(half, 20)), np.uint64) for half in halves),
        )
        for number in range(count)
    ]


def label_of(example, person, label, day):
    source = Source(f"person {person}", immediate=True, person=person)
    return Learn(example, label, source, START_US + day * DAY_US, again=True)


def run(store, *requests):
    learner = Learner(store.recipe, Costs())
    return store.transact(lambda view: learner.run(view, requests))


@pytest.fixture(params=["memory", "lmdb"])
def store(request, tmp_path):
    made = MemoryStore(RECIPE) if request.param == "memory" else open_store(tmp_path, create=RECIPE)
    yield made
    made.close()


def teach_at_random(store, dice, examples, count):
    for day in range(count):
        request = label_of(dice.choice(examples), dice.choice(PERSONS), dice.randrange(2), day)
        (receipt,) = run(store, request)
        assert receipt.error is None
        with store.read() as view:
            z = scores_for_person(RECIPE, view, request.example, request.source.person)
        assert max(z) == z[request.label]


def test_undo_takes_back_both_parts(store):
    """After labels and moves of three persons are undone, nothing of them is left."""
    dice = Random(1)
    teach_at_random(store, dice, drawn_examples(dice, 6), 30)
    with store.read() as view:
        assert {person for person, _ in view.persons()} == set(PERSONS)
        last = view.totals().last_seq
    assert sound(store)
    for seq in range(last, 0, -1):
        (receipt,) = run(store, Undo(seq, Source(), START_US + 99 * DAY_US))
        assert receipt.error is None
    with store.read() as view:
        assert list(view.persons()) == []
        assert list(view.features()) == []
        totals = view.totals()
        sums = totals.messages, totals.tokens, totals.bias, totals.temperatures, totals.histogram
        assert not any(one.any() for one in sums)
        assert totals.known == 0
    assert sound(store)


@pytest.mark.parametrize("seed", range(5))
def test_a_label_moves_others_by_one_plain_step_at_most(seed):
    """Law 9 for persons: the label holds for its person; others see a plain step, or less of it."""

    def lead(store, example, person):
        with store.read() as view:
            z = scores_for_person(RECIPE, view, example, person)
        return z[1] - z[0]

    dice = Random(seed)
    examples = drawn_examples(dice, 6)
    stores = [MemoryStore(RECIPE) for _ in range(2)]
    for one in stores:
        teach_at_random(one, Random(seed), examples, 12)
    example, label = drawn_examples(dice, 1)[0], dice.randrange(2)
    mine = label_of(example, 11, label, 20)
    plain = Learn(example, label, Source("plain"), mine.time_us)
    before = [lead(stores[0], example, person) for person in (11, 22, 99)]
    for one, request in zip(stores, (mine, plain), strict=True):
        assert run(one, request)[0].error is None
    assert (lead(stores[0], example, 11) > 0) == (label == 1)
    for person, was in zip((22, 99), before[1:], strict=True):
        moved, step = (lead(one, example, person) - was for one in stores)
        assert abs(moved) <= abs(step) + 1e-9
        assert moved * step > 0


def test_forget_takes_back_one_person_alone(store):
    """A person forgets a label; the labels of the others stay as they are."""
    dice = Random(2)
    (example,) = drawn_examples(dice, 1)
    for person, label in zip(PERSONS, (0, 1, 1), strict=True):
        run(store, label_of(example, person, label, 0))
    with store.read() as view:
        kept = [view.personal(person).values.copy() for person in PERSONS[1:]]
    (receipt,) = run(store, Forget(example.digest, Source("x", person=11), START_US))
    assert receipt.changed
    with store.read() as view:
        assert view.personal(11) is None
        for before, person in zip(kept, PERSONS[1:], strict=True):
            assert np.array_equal(view.personal(person).values, before)
    assert sound(store)


def test_a_model_is_rebuilt_with_its_persons(tmp_path):
    """A rebuild from checkpoint and journal gives the same persons; the checkpoint has some."""
    dice, store = Random(3), open_store(tmp_path, create=RECIPE)
    teach_at_random(store, dice, drawn_examples(dice, 6), 30)
    store.transact(lambda view: view.fold(START_US + 10 * DAY_US, 99))
    with store.read() as view:
        before = picture(view)
    store.close()
    rebuild(tmp_path, Change(lambda old, new: replay(old.events(), old, new)))
    store = open_store(tmp_path)
    with store.read() as view:
        after = picture(view)
    assert before["base_persons"]
    assert after == before
    assert sound(store)
    store.close()


def test_relearning_without_a_person_leaves_the_others(tmp_path):
    """The same trainings give the same persons; those of a user who is left out are gone."""
    store = open_store(tmp_path, create=RECIPE)
    teach_at_random(store, Random(6), drawn_examples(Random(6), 6), 20)
    with store.read() as view:
        before = picture(view)
    store.close()
    for left_out, kept in (("", PERSONS), ("person 22", (11, 33))):
        relearn(tmp_path, lambda event, user=left_out: event.user == user, Costs())
        store = open_store(tmp_path)
        assert sound(store)
        with store.read() as view:
            assert {person for person, _ in view.persons()} == set(kept)
            if not left_out:
                assert picture(view)["persons"] == before["persons"]
        store.close()


def test_a_label_given_again_is_repeated_only_where_it_does_not_hold(store):
    """The same label changes nothing while it holds for the person, whatever the others say."""
    dice = Random(4)
    (example,) = drawn_examples(dice, 1)
    run(store, label_of(example, 11, 1, 0))
    run(store, label_of(example, 22, 0, 1), label_of(example, 33, 0, 1))
    (receipt,) = run(store, label_of(example, 11, 1, 2))
    with store.read() as view:
        z = scores_for_person(RECIPE, view, example, 11)
    assert z[1] > z[0]
    assert receipt.error is None
    (again,) = run(store, label_of(example, 11, 1, 3))
    assert not again.changed


def test_only_corrected_models_have_persons():
    """A label of a person is refused by a model that learns no corrections."""
    dice, store = Random(5), MemoryStore(new_recipe("multinomial", ("ham", "spam")))
    (receipt,) = run(store, label_of(drawn_examples(dice, 1)[0], 11, 1, 0))
    assert isinstance(receipt.error, RefusedError)
