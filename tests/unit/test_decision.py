"""Decisions by least expected cost, and the thresholds that follow from the costs."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spamnb.core.model.costs import DECISIONS, Costs, roles_of, thresholds
from spamnb.core.model.decision import decide, decide_many
from spamnb.errors import BugError, SettingsError

ZERO_ONE = Costs(deliver=(0, 1), unsure=(1, 1), junk=(1, 0), reject=(1, 0))
COSTS = st.floats(0, 1000) | st.integers(0, 3).map(float)
TABLES = st.tuples(st.lists(COSTS, min_size=4, max_size=4), st.lists(COSTS, min_size=4, max_size=4))


def costs_of(drawn):
    """Make a cost table that fits the order of the decisions."""
    ham, spam = sorted(drawn[0]), sorted(drawn[1], reverse=True)
    return Costs(*zip(ham, spam, strict=True))


def pairs(spam):
    """Make [M, 2] of the probabilities of spam."""
    spam = np.asarray(spam, float)
    return np.stack([1 - spam, spam], axis=-1)


@given(st.floats(0, 1))
def test_zero_one_loss_takes_the_most_probable_label(p):
    """When every error costs one, the decision follows the larger probability, ties deliver."""
    assert decide([1 - p, p], ZERO_ONE) == ("junk" if p > 1 - p else "deliver")


@given(TABLES, st.floats(0, 1))
def test_no_other_decision_is_expected_to_cost_less(drawn, p):
    """The decision has the least expected cost, and no milder one has the same."""
    costs = costs_of(drawn)
    expected = [(1 - p) * ham + p * spam for ham, spam in costs.table()]
    chosen = DECISIONS.index(decide([1 - p, p], costs))
    assert expected[chosen] == pytest.approx(min(expected))
    assert all(milder > expected[chosen] for milder in expected[:chosen])


@given(TABLES)
def test_thresholds_agree_with_decisions_on_a_grid(drawn):
    """Between two thresholds the decision of the lower one is taken, everywhere."""
    costs = costs_of(drawn)
    grid = np.linspace(0, 1, 4001)[1:-1]
    edge = thresholds(costs)
    starts = np.array([threshold.probability for threshold in edge])
    assume(all(high - low > 1e-9 for low, high in pairwise(starts)))
    far = np.abs(grid[:, None] - starts).min(axis=1) > 1e-9
    named = np.array([DECISIONS.index(threshold.decision) for threshold in edge])
    expected = named[np.searchsorted(starts, grid, side="right") - 1]
    chosen = decide_many(pairs(grid), costs)
    table = np.array(costs.table())
    # Nearly equal lines may swap by rounding: there the cost must be the same, not the name.
    differing = far & (chosen != expected)
    paid = (pairs(grid) * table[chosen]).sum(axis=1)
    owed = (pairs(grid) * table[expected]).sum(axis=1)
    np.testing.assert_allclose(paid[differing], owed[differing], rtol=1e-9, atol=1e-12)


def test_default_thresholds():
    """Deliver to 0.5, unsure to 0.9945, junk to 0.99994: derived from the costs, in order."""
    edge = thresholds(Costs())
    assert [threshold.decision for threshold in edge] == list(DECISIONS)
    odds = [0, 1, (100 - 0.4) / (0.6 - 0.05), (1000 - 100) / 0.05]
    np.testing.assert_allclose([t.probability for t in edge], [o / (1 + o) for o in odds])
    np.testing.assert_allclose([t.log_odds for t in edge[1:]], np.log(odds[1:]))
    assert edge[0].log_odds == -np.inf


def test_hardly_different_costs_overflow_nothing():
    """The smallest difference of costs that a float represents gives a threshold, not an error."""
    edge = thresholds(Costs((0, 9), (5e-324, 1), (1, 5e-324), (2, 0)))
    assert [t.probability for t in edge] == pytest.approx([0, 0, 0.5, 1])
    assert np.isfinite([t.log_odds for t in edge[1:]]).all()


def test_the_default_decides_by_its_thresholds():
    """A hair to either side of a threshold the decision differs; on a tie it is the milder."""
    assert decide([0.5, 0.5], Costs()) == "deliver"
    for milder, threshold in pairwise(thresholds(Costs())):
        p = threshold.probability
        assert decide([1 - p + 1e-9, p - 1e-9], Costs()) == milder.decision
        assert decide([1 - p - 1e-9, p + 1e-9], Costs()) == threshold.decision


def test_losing_a_ham_costs_a_hundred_spams_read():
    """By default a message is not filed before spam is a hundred times as likely as ham."""
    costs = Costs()
    assert costs.junk[0] == 100 * costs.deliver[1]
    assert costs.reject[0] > costs.junk[0]
    assert decide([1 / 101, 100 / 101], costs) == "unsure"


def test_decisions_that_never_pay_have_no_threshold():
    """Under zero-one loss only deliver and junk are ever the cheapest."""
    assert [(t.decision, t.probability) for t in thresholds(ZERO_ONE)] == [
        ("deliver", 0.0),
        ("junk", 0.5),
    ]


def test_when_everything_is_free_all_is_delivered():
    """A table of zeros has no reason for anything but the mildest decision."""
    free = Costs((0, 0), (0, 0), (0, 0), (0, 0))
    assert [t.decision for t in thresholds(free)] == ["deliver"]
    assert decide([0.0, 1.0], free) == "deliver"


def test_every_label_plays_a_role():
    """Labels that are not spam-like cost as ham; spam-like ones add up."""
    labels = ("ham", "newsletter", "spam", "phishing")
    assert roles_of(labels) == ("ham", "ham", "spam", "ham")
    roles = roles_of(labels, spam_like=("spam", "phishing"))
    assert decide([0.001, 0.0, 0.5, 0.499], Costs(), roles) == "junk"
    assert decide([0.001, 0.5, 0.499, 0.0], Costs(), roles) == "deliver"


def test_decisions_on_a_batch_equal_single_decisions():
    """The vectorised decision is the same as each alone."""
    P = pairs(np.linspace(0, 1, 101))
    assert [DECISIONS[i] for i in decide_many(P, Costs())] == [decide(row, Costs()) for row in P]


@pytest.mark.parametrize(
    "table",
    [
        {"junk": (0.1, 0.05)},
        {"junk": (100.0, 0.7)},
        {"deliver": (-1.0, 1.0)},
        {"reject": (float("inf"), 0.0)},
        {"unsure": (float("nan"), 0.6)},
        {"unsure": (0.4,)},
    ],
)
def test_invalid_cost_tables_are_refused(table):
    """Costs are finite, not negative, and fit the order of the decisions; the hint says so."""
    with pytest.raises(SettingsError) as caught:
        Costs(**table)
    assert caught.value.hint


@pytest.mark.parametrize("wrong", [[0.5, float("nan")], [1.5, -0.5], [0.2, 0.3, 0.5], [[0.5, 0.5]]])
def test_what_are_no_probabilities_is_refused(wrong):
    """A nan would silently deliver or reject, so it raises BugError."""
    with pytest.raises(BugError):
        decide(wrong, Costs())
