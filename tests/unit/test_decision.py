"""Decisions by least expected cost, and the thresholds that follow from the costs."""

from itertools import pairwise
from math import exp, inf, log, nan, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import BugError, SettingsError
from spamnb.model.costs import DECISIONS, Costs, junk_from, roles_of, thresholds
from spamnb.model.scoring import spam_log_odds
from spamnb.model.verdict import decide, decide_many

ZERO_ONE = Costs(deliver=(0, 1), unsure=(1, 1), junk=(1, 0), reject=(1, 0))
COSTS = st.floats(0, 1000) | st.integers(0, 3).map(float)
TABLES = st.tuples(st.lists(COSTS, min_size=4, max_size=4), st.lists(COSTS, min_size=4, max_size=4))


def costs_of(drawn):
    """Make a cost table that fits the order of the decisions."""
    ham, spam = sorted(drawn[0]), sorted(drawn[1], reverse=True)
    return Costs(*zip(ham, spam, strict=True))


def log_odds(spam):
    """Make the log-odds of probabilities of spam."""
    spam = np.asarray(spam, float)
    with np.errstate(divide="ignore"):
        return np.log(spam) - np.log1p(-spam)


def paid(costs, decision, odds):
    """Return the expected cost of a decision, from log-odds."""
    ham, spam = costs.table()[decision]
    return ham / (1 + exp(odds)) + spam / (1 + exp(-odds))


@given(st.floats(-700, 700))
def test_zero_one_loss_takes_the_most_probable_label(odds):
    """When every error costs one, the decision follows the larger probability, ties deliver."""
    assert decide(odds, ZERO_ONE) == ("junk" if odds > 0 else "deliver")


@given(TABLES, st.floats(-700, 700))
def test_no_other_decision_is_expected_to_cost_less(drawn, odds):
    """The decision has the least expected cost."""
    costs = costs_of(drawn)
    each = [paid(costs, decision, odds) for decision in range(len(DECISIONS))]
    assert each[DECISIONS.index(decide(odds, costs))] == pytest.approx(min(each))


@given(TABLES, st.floats(-700, 700))
def test_a_score_on_a_threshold_gets_the_milder_decision(drawn, odds):
    """On a threshold the decision is the one below it, and the next higher score has that above."""
    for costs in (costs_of(drawn), junk_from(Costs(), odds)):
        edge = thresholds(costs)
        assert [one.log_odds for one in edge] == sorted(one.log_odds for one in edge)
        for line in {one.log_odds for one in edge[1:]}:
            below = [one.decision for one in edge if one.log_odds < line]
            above = [one.decision for one in edge if one.log_odds <= line]
            assert decide(line, costs) == below[-1]
            assert decide(nextafter(line, inf), costs) == above[-1]
            assert list(decide_many([line], costs)) == [DECISIONS.index(below[-1])]


@given(st.floats(0, 40))
def test_the_wanted_threshold_itself_is_not_junk(line):
    """Costs made for a threshold of junk leave a message on it out of the junk folder."""
    assert decide(line, junk_from(Costs(), line)) in ("deliver", "unsure")
    assert decide(line + 1e-9, junk_from(Costs(), line)) in ("junk", "reject")


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
    assert decide(0.0, Costs()) == "deliver"
    for milder, threshold in pairwise(thresholds(Costs())):
        assert decide(threshold.log_odds, Costs()) == milder.decision
        assert decide(nextafter(threshold.log_odds, inf), Costs()) == threshold.decision


def test_losing_a_ham_costs_a_hundred_spams_read():
    """By default a message is not filed before spam is a hundred times as likely as ham."""
    costs = Costs()
    assert costs.junk[0] == 100 * costs.deliver[1]
    assert costs.reject[0] > costs.junk[0]
    assert decide(log(100), costs) == "unsure"


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
    assert decide(inf, free) == "deliver"


def test_every_label_plays_a_role():
    """Labels that are not spam-like cost as ham; spam-like ones add up."""
    labels = ("ham", "newsletter", "spam", "phishing")
    assert roles_of(labels) == ("ham", "ham", "spam", "ham")
    roles = roles_of(labels, spam_like=("spam", "phishing"))
    z = [log(p) for p in (0.001, 0.009, 0.5, 0.49)]
    assert spam_log_odds(z, roles) == pytest.approx(log(99))
    assert spam_log_odds(z, roles_of(labels)) == pytest.approx(0.0)
    assert spam_log_odds([1.0, 3.5], roles_of(("ham", "spam"))) == 2.5
    assert spam_log_odds([1.0, 3.5], roles_of(("spam", "ham"))) == -2.5
    assert spam_log_odds([1.0, 3.5], roles_of(("work", "home"))) == -inf


def test_a_site_of_three_labels_that_has_taught_only_one():
    """Labels without a message add up to none, and do not turn the score into NaN."""
    roles = roles_of(("ham", "spam", "list"))
    assert spam_log_odds([-inf, -3.0, -inf], roles) == inf
    assert spam_log_odds([-3.0, -inf, -inf], roles) == -inf


@given(TABLES, st.lists(st.floats()))
def test_decisions_on_a_batch_equal_single_decisions(drawn, odds):
    """The vectorised decision is the same as each alone, infinite scores included."""
    odds, costs = [one for one in odds if one == one], costs_of(drawn)  # noqa: PLR0124 - no nan
    assert [DECISIONS[i] for i in decide_many(odds, costs)] == [decide(one, costs) for one in odds]


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


def test_what_is_no_number_is_refused():
    """A nan would silently deliver or reject, so it raises BugError."""
    for asked in (lambda: decide(nan, Costs()), lambda: decide_many([0.0, nan], Costs())):
        with pytest.raises(BugError):
            asked()
    with pytest.raises(BugError):
        spam_log_odds([0.2, 0.3, 0.5], roles_of(("ham", "spam")))
