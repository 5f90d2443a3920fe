"""Decisions of least risk, and the bound on the least possible error."""

from math import erf, sqrt

import numpy as np
import pytest

from spamnb.bayes import bayes_error, error_probability, minimum_risk, zero_one
from spamnb.core.model.costs import Costs
from spamnb.core.model.decision import decide_many
from spamnb.errors import UserError


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
