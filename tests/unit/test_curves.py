"""Curves of an evaluation agree with its outcomes and end in the right points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.lab import statistics
from spamnb.lab.statistics import auc
from spamnb.model.scoring import reliability, wilson

MARKS = st.lists(st.tuples(st.booleans(), st.integers(-9, 9)), min_size=2, max_size=60).filter(
    lambda rows: len({row[0] for row in rows}) == 2
)


def columns(rows):
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows], float)


@given(MARKS)
def test_the_area_under_the_roc_is_the_auc(rows):
    """Thinned to its corners, the curve still encloses the area; it ends in both corners."""
    truth, score = columns(rows)
    found = statistics.roc(truth, score)
    assert (found.ham_lost[0], found.spam_missed[0]) == (0, 1)
    assert (found.ham_lost[-1], found.spam_missed[-1]) == (1, pytest.approx(0))
    caught = 1 - np.array(found.spam_missed)
    area = np.sum(np.diff(found.ham_lost) * (caught[1:] + caught[:-1]) / 2)
    assert area == pytest.approx(auc(truth, score))


def test_a_long_roc_is_thinned():
    """A curve has at most some hundred points, for any number of messages."""
    dice = np.random.default_rng(1)
    truth = dice.random(20_000) < 0.5
    found = statistics.roc(truth, dice.normal(truth * 1.0))
    assert len(found.ham_lost) <= statistics.POINTS


def test_reliability_counts_every_message_once():
    """The observed share lies in its interval; calibrated probabilities lie near the line."""
    dice = np.random.default_rng(2)
    P = dice.random(5000)
    truth = dice.random(5000) < P
    bins = reliability(truth, P)
    assert sum(part.messages for part in bins) == 5000
    assert all(part.low <= part.seen <= part.high for part in bins)
    assert sum(part.low <= part.said <= part.high for part in bins) >= 8


def test_wilson_by_hand():
    """None of ten: 0 to 0.278; all of ten mirrors it."""
    low, high = wilson(0, 10)
    assert (low, round(high, 3)) == (0, 0.278)
    assert wilson(10, 10)[0] == pytest.approx(1 - high)


def test_the_interval_holds_the_share():
    """For none and for all of any count the interval ends at the share, not beside it."""
    for of in range(1, 500):
        for right in (0, of // 2, of):
            low, high = wilson(right, of)
            assert 0 <= low <= right / of <= high <= 1


def test_learning_goes_to_the_last_message():
    """Stretches follow the order; one without both classes has no area, but errors."""
    truth = np.array([False] * 30 + [True, False] * 35)
    P = np.where(truth, 0.9, 0.1)
    found = statistics.learning(truth, P, P)
    assert found[-1].messages == 100
    assert found[0].auc_complement_percent is None
    assert found[-1].auc_complement_percent == 0
    assert all(part.error_percent == 0 for part in found)


def test_the_histogram_holds_every_message():
    """Values beyond the edges count in the outer bins."""
    dice = np.random.default_rng(3)
    truth, odds = dice.random(1000) < 0.3, dice.normal(0, 10, 1000)
    found = statistics.histogram(truth, odds)
    assert (sum(found.ham), sum(found.spam)) == (int((~truth).sum()), int(truth.sum()))
    assert len(found.edges) == len(found.ham) + 1
