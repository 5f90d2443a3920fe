"""Persons that share a model: what they teach is exact, and the shared part does not know them."""

from random import Random

import numpy as np
import pytest

from spamnb.core.persons.account import GUARDS, TOLERANCE, Account, GuardMessage, choose_guards
from spamnb.lab.persons.models import Given, SharedAndPersonal
from spamnb.lab.persons.world import NO_PERSON
from spamnb.lab.trial import Options, read_samples

DAY_US = 86_400_000_000
NOW = 20_000 * DAY_US
WORDS = ["apple", "pear", "plum", "fig", "lemon", "lime", "quince", "cherry", "melon", "grape"]


def mails(count):
    dice = Random(count)
    return [
        (f"From: a{n % 3}@x.test\n\n{' '.join(dice.choices(WORDS, k=8))} {n}\n".encode(), "ham")
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def samples():
    return read_samples(mails(30), Options()).items


def new_model(*, accounts=False):
    return SharedAndPersonal(Options(), accounts=accounts)


def shared_scores(model, samples):
    return [model.score(NO_PERSON, sample) for sample in samples]


def test_labels_taken_back_leave_no_trace(samples):
    """After any labels and moves of three persons, forgetting all of them restores every score."""
    dice, model = Random(5), new_model()
    model.train([(sample, n % 2) for n, sample in enumerate(samples[:10])])
    before = shared_scores(model, samples)
    given = [(dice.randrange(3), dice.choice(samples)) for _ in range(40)]
    for person, sample in given:
        model.teach(Given(person, sample, dice.randrange(2), NOW))
    assert any(personal.values.any() for personal in model.personal.values())
    dice.shuffle(given)
    for person, sample in given:
        model.forget(person, sample, NOW)
    assert not any(personal.values.any() for personal in model.personal.values())
    assert shared_scores(model, samples) == before


def test_the_same_label_twice_is_once(samples):
    """A person that gives the same label again changes nothing."""
    model = new_model()
    assert model.teach(Given(1, samples[0], 1, NOW))
    once = model.personal[1], shared_scores(model, samples)
    assert not model.teach(Given(1, samples[0], 1, NOW + 1))
    assert np.array_equal(model.personal[1].values, once[0].values)
    assert shared_scores(model, samples) == once[1]


def test_the_shared_model_does_not_depend_on_the_person(samples):
    """The same labels in the same order make the same shared model, whichever persons give them."""
    models = [new_model(), new_model()]
    for n, sample in enumerate(samples[:20]):
        for model, persons in zip(models, (1, 7), strict=True):
            model.teach(Given(n % persons, sample, n % 2, NOW))
    assert shared_scores(models[0], samples) == shared_scores(models[1], samples)


def test_two_persons_get_what_each_wants(samples):
    """Two persons with opposite labels for the same messages both get their own, at once."""
    model = new_model()
    for sample in samples[:6]:
        for person, label in ((0, 0), (1, 1)):
            model.teach(Given(person, sample, label, NOW))
            z = model.score(person, sample)
            assert z[label] > z[1 - label]
    assert all(model.score(0, each)[0] > model.score(0, each)[1] for each in samples[:6])


def test_labels_that_harm_others_move_no_shared_corrections(samples):
    """After false labels of guard messages, a further one counts as evidence, without a step."""
    model, many = new_model(accounts=True), read_samples(mails(160), Options()).items
    model.train([(sample, n % 2) for n, sample in enumerate(many[:120])])
    in_full = [model.teach(Given(1, many[n], 1 - n % 2, NOW)) for n in range(40)]
    assert any(in_full)
    assert not all(in_full)
    assert model.accounts[1].harm <= TOLERANCE
    steps = new_model()
    steps.train([(samples[0], 0)])
    for weight in (0.0, 1.0):
        before = steps.shared.read(samples[1])
        given = Given(1, samples[1], 1, NOW)
        steps.shared.learn(given, samples[1].example, immediate=False, weight=weight)
        after = steps.shared.read(samples[1])
        assert after.totals.messages[1] == before.totals.messages[1] + 1
        assert (after.cells[2:] != before.cells[2:]).any() == bool(weight)
        steps.shared.forget(samples[1].example.digest, NOW)


def test_an_account_is_bounded_and_halves_in_a_month():
    """Good labels earn no credit beyond the tolerance, and old harm fades."""
    good = Account().plus(-10 * TOLERANCE, 5)
    assert good == Account(-TOLERANCE, 5)
    assert good.plus(2 * TOLERANCE, 5) == Account(TOLERANCE, 5)
    assert good.plus(2 * TOLERANCE + 1, 5) is None
    assert Account(TOLERANCE, 5).plus(1, 5) is None
    assert Account(TOLERANCE - 1, 5).plus(0, 35).harm == TOLERANCE // 2


def test_guard_messages_are_the_newest_of_each_label_and_few_of_one_person():
    """One person cannot choose the guard messages, and both labels weigh the same."""
    ids = (np.zeros(0, np.uint64),)
    of_one = [GuardMessage(ids, 0, "ann")] * 50
    others = [GuardMessage(ids, n % 2, "") for n in range(300)]
    chosen = choose_guards([*of_one, *others], 2)
    assert len(chosen) == GUARDS
    assert sum(each.person == "ann" for each in chosen) == 4
    assert sum(each.label for each in chosen) == GUARDS // 2
    assert choose_guards(others[:70], 2) == ()
