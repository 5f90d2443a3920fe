"""Persons that share a model: what they teach is exact, and the shared part does not know them."""

from random import Random

import numpy as np
import pytest

from spamnb.lab.persons import NO_PERSON, Given, SharedAndPersonal
from spamnb.lab.runs import Options, read_samples

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


def new_model():
    return SharedAndPersonal(Options(), budget=True)


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
    assert len(model.model.persons()) == 3
    dice.shuffle(given)
    for person, sample in given:
        model.forget(person, sample, NOW)
    assert model.model.persons() == []
    assert shared_scores(model, samples) == before


def test_the_same_label_twice_is_once(samples):
    """A person that gives the same label again changes nothing."""
    model = new_model()
    model.teach(Given(1, samples[0], 1, NOW))
    once = [[model.score(person, each) for each in samples] for person in (NO_PERSON, 1)]
    model.teach(Given(1, samples[0], 1, NOW + 1))
    assert [[model.score(person, each) for each in samples] for person in (NO_PERSON, 1)] == once


def test_the_shared_model_does_not_depend_on_names(samples):
    """The same labels make the same shared model, whatever places the persons' names choose."""
    models = [new_model(), new_model()]
    for n, sample in enumerate(samples[:20]):
        for model, first in zip(models, (1, 100), strict=True):
            model.teach(Given(first + n % 7, sample, n % 2, NOW))
    assert shared_scores(models[0], samples) == shared_scores(models[1], samples)


def test_the_labels_of_one_person_have_a_budget_in_the_shared_model(samples):
    """Of two equal models, labels of a person within a day move the one without a budget more."""
    models = [SharedAndPersonal(Options(), budget=budget) for budget in (True, False)]
    moved = []
    for model in models:
        model.train([(sample, n % 2) for n, sample in enumerate(samples * 5)])
        before = shared_scores(model, samples)
        for n, sample in enumerate(samples[:20]):
            model.teach(Given(1, sample, 1 - n % 2, NOW))
        moved.append(np.abs(np.subtract(shared_scores(model, samples), before)).sum())
    assert moved[0] < moved[1]


def test_two_persons_get_what_each_wants(samples):
    """Two persons with opposite labels for the same messages both get their own, at once."""
    model = new_model()
    for sample in samples[:6]:
        for person, label in ((0, 0), (1, 1)):
            model.teach(Given(person, sample, label, NOW))
            z = model.score(person, sample)
            assert z[label] > z[1 - label]
    assert all(model.score(0, each)[0] > model.score(0, each)[1] for each in samples[:6])
