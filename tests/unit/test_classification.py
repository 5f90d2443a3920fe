"""Metrics of any number of labels equal those by hand and those of scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.lab import statistics
from spamnb.lab.statistics import LabelMetrics, quality
from spamnb.model.scoring import one_against_rest

ROWS = st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=2, max_size=40)


def test_precision_recall_and_f1_by_hand():
    """Of 4 with the label 3 were found, among 6: 1/2, 3/4, and their harmonic mean 3/5."""
    found = LabelMetrics(documents=4, found=6, right=3)
    assert (found.precision, found.recall, found.f1) == (0.5, 0.75, pytest.approx(0.6))
    assert found.as_dict()["f1"] == pytest.approx(0.6)


def test_what_never_was_is_zero():
    """Without documents and without assignments all metrics are 0, not nan."""
    nothing = LabelMetrics(0, 0, 0)
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)
    assert statistics.macro_f1([nothing]) == 0


def test_averages_are_those_of_scikit_learn():
    """Macro F1 is the mean over labels, micro F1 that of all decisions together."""
    from sklearn.metrics import f1_score

    dice = np.random.default_rng(1)
    truth, found = dice.integers(0, 4, 200), dice.integers(0, 4, 200)
    parts = [quality(truth == k, found == k) for k in range(4)]
    assert statistics.macro_f1(parts) == pytest.approx(f1_score(truth, found, average="macro"))
    assert statistics.pooled(parts).f1 == pytest.approx(f1_score(truth, found, average="micro"))
    table = statistics.confusion(truth, found, 4)
    assert table.sum() == 200
    assert [table[k, k] for k in range(4)] == [part.right for part in parts]


def test_clear_documents_are_cut_between():
    """Where truth and scores agree, the threshold lies between the two sides."""
    truth = np.array([True, False, True, False])
    assert statistics.best_threshold(truth, np.array([5.0, -4, 3, -6]), 0.0) == pytest.approx(-0.5)


@given(ROWS)
def test_no_other_threshold_is_better(rows):
    """The threshold maximises the expected F1 of the mean of truth and probability."""
    truth = np.array([row[0] for row in rows])
    score = np.array([row[1] for row in rows], float)
    chosen = statistics.best_threshold(truth, score, 0.0)
    if not truth.any():
        assert chosen == 0.0
        return
    likely = (truth + 1 / (1 + np.exp(-score))) / 2

    def expected(cut):
        taken = score >= cut
        return 2 * likely[taken].sum() / (likely.sum() + taken.sum())

    assert expected(chosen) == pytest.approx(max(map(expected, score)))


def test_break_even_is_where_precision_is_recall():
    """Break-even takes as many documents as have the label; ties count with their mean."""
    truth = np.array([True, True, False, True, False])
    assert statistics.break_even(truth, np.array([5.0, 4, 3, 2, 1])) == pytest.approx(2 / 3)
    assert statistics.break_even(truth, np.array([5.0, 3, 3, 3, 1])) == pytest.approx(
        (1 + 4 / 3) / 3
    )
    assert statistics.break_even(~truth & truth, np.zeros(5)) is None


@given(st.lists(st.floats(-800, 800), min_size=2, max_size=6))
def test_odds_against_the_rest_are_those_of_the_softmax(z):
    """They are log P / (1 - P), exact also where P rounds to 1."""
    odds = one_against_rest(np.array([z]))[0]
    assert np.isfinite(odds).all()
    for k, mine in enumerate(z):
        others = [value for j, value in enumerate(z) if j != k]
        assert odds[k] == pytest.approx(mine - np.logaddexp.reduce(others), abs=1e-9)
