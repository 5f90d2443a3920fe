"""The one smoothing rule and the log-space tools."""

import numpy as np
import pytest

from spamnb.errors import BugError
from spamnb.model.smoothing import (
    Assumptions,
    log_m_estimate,
    log_prior,
    log_softmax,
    log_sum_exp,
    m_estimate,
    softmax,
)


def test_m_estimate_of_outlook_given_no():
    """With m = 1 and p = 1/3, counts 0, 3, 2 of 5 give 1/18, 5/9, 7/18, which sum to one."""
    estimates = m_estimate([0, 3, 2], 5, 1, 1 / 3)
    np.testing.assert_allclose(estimates, [1 / 18, 5 / 9, 7 / 18], rtol=1e-15)
    assert estimates.sum() == pytest.approx(1)


def test_laplace_is_an_m_estimate():
    """Adding one to each of three outcomes is m = 3, p = 1/3."""
    np.testing.assert_allclose(
        m_estimate([0, 990, 10], 1000, 3, 1 / 3), [1 / 1003, 991 / 1003, 11 / 1003], rtol=1e-15
    )


def test_add_one_above_and_below():
    """One more above and below is m = 1, p = 1; two-outcome Laplace is m = 2, p = 1/2."""
    np.testing.assert_allclose(m_estimate([12, 0], 55, 1, 1), [13 / 56, 1 / 56], rtol=1e-15)
    np.testing.assert_allclose(m_estimate([12, 0], 55, 2, 0.5), [13 / 57, 1 / 57], rtol=1e-15)


def test_log_of_nothing_is_impossible_and_not_nan():
    """0 of 5 without smoothing is -inf, and so is 0 of 0: a nan would spoil every sum."""
    assert np.isneginf(log_m_estimate([0, 0], [5, 0], 0, 0.5)).all()


def test_tiny_pseudo_counts_survive():
    """A pseudo-count far below the rounding of the counts still differs from impossible."""
    assert log_m_estimate(0, 1000, 2e-300, 0.5) == pytest.approx(np.log(1e-300) - np.log(1000))


def test_the_plain_product_underflows_and_the_sum_of_logs_does_not():
    """5,000 factors of 1e-5 multiply to 0, and their scores still differ between two labels."""
    factors = np.full(5000, 1e-5)
    assert factors.prod() == 0
    scores = np.array([np.log(factors).sum(), np.log(factors * 1.0001).sum()])
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(softmax(scores)[1], 1 / (1 + 1.0001**-5000), rtol=1e-9)


@pytest.mark.parametrize("top", [1e300, -1e300, 700.0, -5e5])
def test_log_sum_exp_neither_overflows_nor_underflows(top):
    """Two equal scores sum to the score plus log 2, wherever they lie."""
    assert log_sum_exp(np.array([top, top])) == pytest.approx(top + np.log(2))


def test_impossible_labels_take_no_share():
    """A score of -inf has posterior 0; if all are, every label is as likely as the next."""
    np.testing.assert_array_equal(softmax(np.array([0.0, -np.inf])), [1.0, 0.0])
    np.testing.assert_allclose(softmax(np.full((1, 3), -np.inf)), np.full((1, 3), 1 / 3))
    assert np.isneginf(log_sum_exp(np.array([-np.inf, -np.inf])))


def test_a_posterior_does_not_saturate_in_log_space():
    """At 800 nats the smaller posterior rounds to 0, its logarithm does not."""
    assert log_softmax(np.array([0.0, -800.0]))[1] == pytest.approx(-800)


def test_priors():
    """From counts, uniform, given, and uniform before the first message."""
    counts = np.array([3, 1], np.int64)
    np.testing.assert_allclose(np.exp(log_prior(Assumptions(), counts)), [0.75, 0.25])
    uniform = Assumptions(prior="uniform")
    np.testing.assert_allclose(np.exp(log_prior(uniform, counts)), [0.5, 0.5])
    given = Assumptions(prior=(0.1, 0.9))
    np.testing.assert_allclose(np.exp(log_prior(given, counts)), [0.1, 0.9])
    np.testing.assert_allclose(np.exp(log_prior(Assumptions(), counts * 0)), [0.5, 0.5])


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"alpha": float("inf")},
        {"prior": (0.5, 0.6)},
        {"prior": (-0.5, 1.5)},
        {"prior": ()},
    ],
)
def test_impossible_assumptions_are_refused(wrong):
    """A negative or infinite pseudo-count, or a prior that is no distribution, is a bug."""
    with pytest.raises(BugError):
        Assumptions(**wrong)


def test_a_prior_for_another_number_of_labels_is_refused():
    """Two given priors cannot serve three labels."""
    with pytest.raises(BugError, match="2 priors for 3 labels"):
        log_prior(Assumptions(prior=(0.5, 0.5)), np.ones(3, np.int64))
