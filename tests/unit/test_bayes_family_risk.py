"""Bayes' rule, decisions of least risk, ROC curves, and the least possible error."""

from math import erf, sqrt

import numpy as np
import pytest
from support import scikit

from spamnb.bayes import (
    bayes_error,
    bayes_rule,
    conditional_risk,
    error_probability,
    exact_bayes_error,
    minimum_risk,
    risk_threshold,
    roc_curve,
    zero_one,
)
from spamnb.errors import UserError
from spamnb.model.costs import Costs
from spamnb.model.verdict import decide_many


def normal_tail(distance):
    """Chance that a standard normal number lies beyond."""
    return (1 - erf(distance / sqrt(2))) / 2


def two_bells(distance, cases, seed):
    """Two classes, equally frequent, normal in the plane, their means so far apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, cases)
    X = rng.normal(size=(cases, 2))
    X[:, 0] += distance * y
    return X, y


@pytest.mark.parametrize("distance", [1.0, 2.0, 3.0])
def test_the_bound_holds_the_known_error(distance):
    """Normal classes with means d apart have a Bayes error of Phi(-d / 2), within the bounds."""
    known = normal_tail(distance / 2)
    found = [bayes_error(*two_bells(distance, 3000, seed)) for seed in range(3)]
    for bound in found:
        slack = 3 * bound.deviation
        assert bound.lower - slack <= known <= bound.upper + slack
    # The neighbour's error itself is asymptotically E[2 P (1 - P)], which can be integrated.
    x = np.linspace(-10, 10 + distance, 200_001)
    p0, p1 = np.exp(-(x**2) / 2), np.exp(-((x - distance) ** 2) / 2)
    expected = float((2 * p0 * p1 / (p0 + p1)).sum() / (p0 + p1).sum())
    nearest = np.mean([bound.nearest for bound in found])
    assert nearest == pytest.approx(expected, abs=3 * found[0].deviation / sqrt(3) + 0.002)


def test_classes_that_cannot_be_separated():
    """For three random classes neighbours err on 2/3, and the lower bound is above 1/2."""
    rng = np.random.default_rng(1)
    found = bayes_error(rng.normal(size=(3000, 2)), rng.integers(0, 3, 3000))
    assert found.nearest == pytest.approx(2 / 3, abs=0.03)
    assert found.lower > 0.5
    assert found.lower <= found.upper


def test_classes_apart_have_no_error():
    """For classes far apart nothing disagrees, whatever the block size."""
    X, y = two_bells(50.0, 500, 2)
    found = bayes_error(X, y)
    assert (found.lower, found.upper, found.deviation, found.cases) == (0, 0, 0, 500)


def test_equal_cases_count_by_their_shares(monkeypatch):
    """Of ten equal cases with three of another class, ties count by their share."""
    y = [0] * 7 + [1] * 3
    expected = (7 * 3 / 9 + 3 * 7 / 9) / 10
    for block in (1 << 22, 25):
        monkeypatch.setattr("spamnb.bayes.risk.BLOCK", block)
        assert bayes_error([[1e6 / 3]] * 10, y).nearest == pytest.approx(expected)


def test_too_little_for_an_estimate():
    """One class, one case, or a class too few is refused."""
    for X, y in (([[1.0], [2.0]], [0, 0]), ([[1.0]], [0]), ([[1.0], [2.0]], [0, 1, 1])):
        with pytest.raises(UserError):
            bayes_error(X, y)


def test_least_risk_is_the_filters_decision():
    """The filter's cost table, as losses, gives the filter's decisions."""
    spam = np.concatenate([np.linspace(0, 1, 2002)[1:-1], [0.5]])
    P = np.stack([1 - spam, spam], axis=1)
    odds = np.log(spam) - np.log1p(-spam)
    np.testing.assert_array_equal(minimum_risk(P, Costs().table()), decide_many(odds, Costs()))


def test_losses_must_fit():
    """Losses need one column for each class."""
    with pytest.raises(UserError, match="2 classes, losses of 3"):
        minimum_risk([[0.5, 0.5]], zero_one(3))


def test_expected_error():
    """The expected error is the mean of one minus the largest probability."""
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.ones(3), 20_000)
    truth = (P.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    wrong = (minimum_risk(P, zero_one(3)) != truth).mean()
    assert error_probability(P) == pytest.approx(wrong, abs=0.01)


def normal(mean, deviation=1.0):
    """The density of a normal number."""
    return lambda x: np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))


def test_bayes_rule_by_its_two_forms():
    """With P(evidence) given, or summed over the classes, the posterior is the same."""
    prior, likelihood = np.array([0.2, 0.3, 0.5]), np.array([0.9, 0.5, 0.1])
    whole = bayes_rule(prior, likelihood)
    np.testing.assert_allclose(whole, prior * likelihood / (0.18 + 0.15 + 0.05))
    np.testing.assert_allclose(bayes_rule(prior, likelihood, 0.38), whole)
    assert bayes_rule(0.2, 0.9, 0.38) == pytest.approx(whole[0])
    assert isinstance(bayes_rule(0.2, 0.9, 0.38), float)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0.1, 0.07), "one probability for each class"),
        (([0.5, 0.6], [1, 1]), "sum to 1"),
        (([-0.5, 1.5], [1, 1]), "at least 0"),
        (([0.5, 0.5], [1]), "1 likelihoods for 2 classes"),
        (([0.5, 0.5], [1, -1]), "below 0"),
        (([0.5, 0.5], [0, 0]), "impossible"),
        ((0.5, 0.9, 0.1), "is no probability"),
        ((0.5, 0.9, 0), "is no probability"),
        ((0.5, float("nan"), 0.5), "is no probability"),
    ],
)
def test_bayes_rule_needs_probabilities(arguments, error):
    """Numbers that cannot be probabilities of the same evidence are refused."""
    with pytest.raises(UserError, match=error):
        bayes_rule(*arguments)


def test_conditional_risk_is_what_minimum_risk_compares():
    """R(a|x) = sum_k loss[a, k] P(k|x), and the action has the smallest."""
    rng = np.random.default_rng(4)
    P, losses = rng.dirichlet(np.ones(3), 200), rng.random((4, 3))
    risks = conditional_risk(P, losses)
    np.testing.assert_allclose(risks, P @ losses.T)
    np.testing.assert_array_equal(minimum_risk(P, losses), risks.argmin(axis=1))


def test_a_doubtful_case_is_rejected():
    """With the loss r of a rejection, Chow's rule rejects if no class has 1 - r."""
    P = np.random.default_rng(5).dirichlet(np.ones(3), 500)
    actions = minimum_risk(P, zero_one(3, reject=0.3))
    np.testing.assert_array_equal(actions == 3, P.max(axis=1) < 0.7)
    np.testing.assert_array_equal(actions[actions < 3], P.argmax(axis=1)[actions < 3])
    assert not (minimum_risk(P, zero_one(3, reject=1)) == 3).any()
    with pytest.raises(UserError, match="from 0 to 1"):
        zero_one(2, reject=1.5)


@pytest.mark.parametrize("losses", [[[0, 1], [9, 0]], [[0, 5], [1, 0]], [[-1, 3], [2, -2]]])
def test_the_threshold_of_a_loss_is_where_the_action_changes(losses):
    """Below it the first action has the least risk, above it the second."""
    edge = risk_threshold(losses)
    below, above = edge - 1e-9, edge + 1e-9
    assert minimum_risk([[1 - below, below], [1 - above, above]], losses).tolist() == [0, 1]


def test_a_loss_that_rewards_errors_has_no_threshold():
    """An error that costs less than the correct decision, or three classes, is refused."""
    with pytest.raises(UserError, match="must not cost less"):
        risk_threshold([[1, 0], [0, 1]])
    with pytest.raises(UserError, match="two actions and two classes"):
        risk_threshold(zero_one(3))


def test_the_roc_curve_is_that_of_scikit_learn():
    """Rates, thresholds and area are equal, also with equal scores."""
    rng = np.random.default_rng(6)
    truth = rng.random(300) < 0.3
    for scores in (rng.normal(size=300) + truth, rng.integers(0, 5, 300) + truth):
        mine = roc_curve(truth, scores)
        theirs = scikit.roc_curve(truth, scores, drop_intermediate=False)
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other)
        assert mine.auc == pytest.approx(scikit.roc_auc_score(truth, scores))


def test_a_loss_picks_its_point_of_the_curve():
    """The risk at each threshold is the mean loss of the decisions there."""
    rng = np.random.default_rng(7)
    truth = rng.random(400) < 0.25
    scores = rng.normal(size=400) + 1.5 * truth
    curve, losses = roc_curve(truth, scores), np.array([[0.0, 4.0], [1.0, 0.5]])
    risks = curve.risks(losses, [1 - truth.mean(), truth.mean()])
    plain = [
        losses[(scores >= edge).astype(int), truth.astype(int)].mean() for edge in curve.thresholds
    ]
    np.testing.assert_allclose(risks, plain)


@pytest.mark.parametrize(
    ("y", "scores", "error"),
    [
        ([True, True], [1, 2], "cases of both classes"),
        ([], [], "cases of both classes"),
        ([True], [1, 2], "one score"),
        ([True, False], [1, np.nan], "one score"),
        (["spam", "ham"], [1, 2], "True or False"),
    ],
)
def test_a_curve_needs_both_classes(y, scores, error):
    """One class, none, missing scores and names of classes are refused."""
    with pytest.raises(UserError, match=error):
        roc_curve(y, scores)


@pytest.mark.parametrize("distance", [0.0, 1.0, 3.0])
def test_the_error_of_known_densities(distance):
    """Normal classes with means d apart have a Bayes error of Phi(-d / 2)."""
    found = exact_bayes_error([0.5, 0.5], [normal(0), normal(distance)], (-9, 9 + distance))
    assert found == pytest.approx(normal_tail(distance / 2), abs=1e-8)


def test_the_error_of_unequal_priors_and_variances():
    """The borders solve P0 p0(x) = P1 p1(x); the error is what lies on the wrong sides."""
    found = exact_bayes_error([0.7, 0.3], [normal(0), normal(0, 3.0)], (-30, 30))
    # 0.7 exp(-x^2/2) = 0.1 exp(-x^2/18) at x^2 = 18 / 8 * log 7.
    edge = sqrt(18 / 8 * np.log(7))
    assert found == pytest.approx(
        0.7 * 2 * normal_tail(edge) + 0.3 * (1 - 2 * normal_tail(edge / 3)), abs=1e-8
    )
    one = exact_bayes_error([1.0], [normal(0)], (-9, 9))
    assert one == pytest.approx(0, abs=1e-8)


def test_densities_must_lie_in_the_interval():
    """An interval that cuts a density off, or a function that is none, is refused."""
    for wrong, interval in ((normal(0), (-1, 1)), (np.zeros_like, (-9, 9)), (np.sin, (-9, 9))):
        with pytest.raises(UserError, match="areas"):
            exact_bayes_error([1.0], [wrong], interval)
    with pytest.raises(UserError, match="one probability for each class"):
        exact_bayes_error([0.5, 0.5], [normal(0)], (-9, 9))
