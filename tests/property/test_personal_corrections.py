"""Personal corrections are exact, hold for their person, and leave the shared model alone."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamnb.engine.filter import new_recipe
from spamnb.errors import RefusedError
from spamnb.model.correction import matches_label
from spamnb.model.costs import Costs, roles_of
from spamnb.model.events import BIAS_ONE, STEP_ONE, Totals
from spamnb.model.persons import (
    PLACE_BITS,
    CorrectionReader,
    PersonalCorrections,
    filled_places,
    no_corrections,
    person_id,
    personal_message,
    personal_scores,
    personal_shares,
    personal_step,
    places_of,
)
from spamnb.model.scoring import maturity, predict
from spamnb.store.journal import first_totals

ALICE, BOB = (person_id(name, b"key") for name in ("alice", "bob"))
LABELS = (("ham", "spam"), ("ham", "spam", "list"))


def recipe_of(labels):
    return new_recipe("corrected", labels)


def drawn_ids(dice, count):
    return np.unique(np.array([dice.getrandbits(64) for _ in range(count)], np.uint64))


def drawn_model(dice, labels):
    """Totals of a model of any age."""
    recipe = recipe_of(labels)
    totals: Totals = first_totals(recipe)
    totals.messages[:] = [dice.choice((1, 30, 500)) for _ in labels]
    totals.bias[:] = [[dice.randrange(-BIAS_ONE, BIAS_ONE) for _ in labels] for _ in range(2)]
    return recipe, totals


def drawn_message(dice, model, person, personal):
    """Return a message of features that are unknown, rare, and of any label, and its rows."""
    recipe, totals = model
    ids = tuple(drawn_ids(dice, dice.choice((1, 3, 40, 300))) for _ in range(2))
    m, K = sum(map(len, ids)), len(recipe.labels)
    n = np.array([[dice.choice((0, 0, 1, 20)) for _ in range(m)] for _ in range(K)], float)
    w = np.array([[dice.randrange(-STEP_ONE, STEP_ONE) for _ in range(m)] for _ in range(K)], float)
    cells = np.concatenate((n, w))
    shared = predict(recipe, totals, cells, tuple(map(len, ids)))
    return personal_message(person, ids, (shared, maturity(totals)), personal), cells


def drawn_personal(dice, labels, person):
    """Return the corrections of a person with some labels."""
    personal = no_corrections(len(labels))
    for _ in range(dice.choice((1, 5))):
        places = places_of(person, drawn_ids(dice, 2000))
        step = [dice.randrange(-STEP_ONE, STEP_ONE) for _ in labels[1:]]
        personal = personal.plus(places, np.array([step] * len(places), np.int64).T)
    return personal


def test_places_do_not_change():
    """A feature's place is stored: the same person and id have it in every version."""
    ids = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert places_of(np.uint64(0), ids).tolist() == [0, 0x9E3779B97F4A7C15 >> 50, 8192, 6258]
    assert places_of(ALICE, ids).max() < 1 << PLACE_BITS
    assert person_id("alice", b"key") != person_id("alice", b"other")


steps = st.lists(
    st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(-5000, 5000)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=settings.default.max_examples * 2)
@given(steps, st.randoms(use_true_random=False))
def test_changes_taken_back_in_any_order_leave_no_trace(changes, dice):
    """After every change was taken back, a person's corrections are empty."""
    personal = no_corrections(3)
    made = [
        (np.array(places, np.uint16), np.array([[step] * len(places), [7] * len(places)], np.int64))
        for places, step in changes
    ]
    for places, values in made:
        personal = personal.plus(places, values)
    dice.shuffle(made)
    for places, values in made:
        personal = personal.plus(places, -values)
    assert not personal.values.any()


def test_features_of_one_place_share_its_value():
    """A change at a place that repeats is added once for each feature, and read by each."""
    places = np.array([7, 7, 3], np.uint16)
    personal = no_corrections(2).plus(places, np.array([[5, 5, 1]], np.int64))
    assert personal.at(places).tolist() == [[-10, -10, -1], [10, 10, 1]]
    assert personal.at(np.array([4], np.uint16)).tolist() == [[0], [0]]


def test_a_correction_out_of_range_is_refused():
    """A sum beyond 32 bits changes nothing."""
    most = PersonalCorrections(np.full((1, 1 << PLACE_BITS), 2**31 - 1, np.int32))
    with pytest.raises(RefusedError):
        most.plus(np.array([1], np.uint16), np.array([[1]], np.int64))


@pytest.mark.parametrize("labels", LABELS, ids=len)
def test_a_person_without_corrections_has_the_shared_scores(labels):
    """Without corrections, scores are those of the shared model, bit for bit."""
    dice = Random(1)
    for _ in range(10):
        model = drawn_model(dice, labels)
        message, _ = drawn_message(dice, model, ALICE, no_corrections(len(labels)))
        assert message.predict() == message.shared


@pytest.mark.parametrize("labels", LABELS, ids=len)
def test_scores_of_many_persons_are_those_of_each(labels):
    """Persons scored at once get the scores of a person alone, bit for bit."""
    dice = Random(4)
    for _ in range(10):
        model = drawn_model(dice, labels)
        message, _ = drawn_message(dice, model, ALICE, drawn_personal(dice, labels, ALICE))
        several = [drawn_personal(dice, labels, ALICE) for _ in range(5)]
        several.append(no_corrections(len(labels)))
        reader = CorrectionReader(len(labels))
        lines = [reader.at(filled_places(one), message.places) for one in several]
        scores = personal_scores(message.shared, message.mature, np.stack(lines), message.sizes)
        each = [message._replace(personal=one).predict().z for one in several]
        assert scores.tolist() == each


def drawn_costs(dice):
    """Costs with a junk threshold between even odds and 20 nats."""
    junk = 10 ** dice.uniform(0, 9)
    return Costs(junk=(junk, dice.uniform(0, 0.5)), reject=(junk * dice.uniform(1, 100), 0.0))


@pytest.mark.parametrize("labels", LABELS, ids=len)
@pytest.mark.parametrize("rounds", [60, pytest.param(500, marks=pytest.mark.full)])
def test_a_label_holds_for_the_person_that_gave_it(labels, rounds):
    """After the personal step, label and decision by the person's costs fit, for any model."""
    dice, roles = Random(2), roles_of(labels)
    for _ in range(rounds):
        costs = drawn_costs(dice)
        model = drawn_model(dice, labels)
        personal = drawn_personal(dice, labels, ALICE)
        message, _ = drawn_message(dice, model, ALICE, personal)
        label = dice.randrange(len(labels))
        step = personal_step(model[0], costs, message, label)
        taught = message.with_step(step)
        assert matches_label(taught.predict().z, label, costs, roles)
        assert np.array_equal(taught.with_step(step, -1).personal.values, personal.values)


@pytest.mark.parametrize("labels", LABELS, ids=len)
def test_clues_make_the_log_odds_of_the_person(labels):
    """Shared and personal shares and the bias are the person's log-odds, to twelve digits."""
    dice = Random(3)
    for _ in range(20):
        model = drawn_model(dice, labels)
        message, cells = drawn_message(dice, model, BOB, drawn_personal(dice, labels, BOB))
        z = message.predict().z
        for s, h in ((1, 0), (0, len(labels) - 1)):
            shares = personal_shares(*model, cells, message, (s, h))
            added = shares.shared.sum() + shares.personal.sum() + shares.bias
            assert added == pytest.approx(z[s] - z[h], rel=1e-12, abs=1e-12)
            assert shares.personal.any() == message.personal.at(message.places).any()
