"""Metrics against scikit-learn, against counting by hand, and for edge cases."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import scikit

from spamnb.errors import BugError
from spamnb.lab import statistics as measures
from spamnb.lab.statistics import Outcomes


def judged(seed, size=400, better=1.0):
    """Make scores that tend to be right, with many ties."""
    rng = np.random.default_rng(seed)
    truth = rng.random(size) < 0.3
    score = np.round(rng.normal(truth * 2.0 * better, 1.0), 1)
    return truth, score


def both_sorts(marks):
    """Return whether there is ham and spam."""
    return 0 < sum(spam for spam, _ in marks) < len(marks)


MARKS = st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=2).filter(both_sorts)


@given(MARKS)
def test_auc_counts_pairs(marks):
    """AUC is the share of pairs in which the spam scores higher, a tie being half a pair."""
    truth, score = np.array([m[0] for m in marks]), np.array([m[1] for m in marks], float)
    pairs = score[truth][:, None] - score[~truth][None]
    assert measures.auc(truth, score) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean())


def test_scores_of_any_size_keep_their_rank():
    """Only the order matters: infinite and huge scores rank like others."""
    truth = np.array([False, True, False, True])
    assert measures.auc(truth, np.array([-np.inf, 1e300, 1e-300, np.inf])) == 1


def test_equal_to_scikit_learn():
    """AUC, Brier score and log loss equal those of scikit-learn."""
    truth, score = judged(1)
    P = 1 / (1 + np.exp(-score))
    P[:2], truth[:2] = [0.0, 1.0], [True, False]
    auc = scikit.roc_auc_score(truth, score)
    assert measures.auc(truth, score) == pytest.approx(auc, rel=1e-12)
    assert measures.brier(truth, P) == pytest.approx(scikit.brier_score_loss(truth, P), rel=1e-12)
    assert measures.log_loss(truth, P) == pytest.approx(scikit.log_loss(truth, P), rel=1e-9)


def test_the_interval_holds_the_value_and_repeats_with_its_seed():
    """The same seed gives the same interval, another seed a near one, more data a narrower one."""
    truth, score = judged(2)
    low, high = measures.interval(truth, score, 300, 7)
    assert low < 100 * (1 - measures.auc(truth, score)) < high
    assert (low, high) == measures.interval(truth, score, 300, 7)
    other = measures.interval(truth, score, 300, 8)
    assert other != (low, high)
    np.testing.assert_allclose(other, (low, high), atol=(high - low) / 4)
    more = measures.interval(*judged(2, 4000), 300, 7)
    assert more[1] - more[0] < (high - low) / 2


def test_the_interval_is_that_of_plain_resampling():
    """Resampling by rank counts equals resampling the scores and comparing pairs."""
    truth, score = judged(3, 60)
    ham, spam = score[~truth], score[truth]
    rng = np.random.default_rng(5)
    plain = []
    for _ in range(50):
        h, s = ham[rng.integers(0, len(ham), len(ham))], spam[rng.integers(0, len(spam), len(spam))]
        pairs = s[:, None] - h[None]
        plain.append(100 * (1 - ((pairs > 0) + (pairs == 0) / 2).mean()))
    expected = np.percentile(plain, [2.5, 97.5])
    np.testing.assert_allclose(measures.interval(truth, score, 50, 5), expected, atol=1e-9)


def test_paired_differences_are_narrower_than_two_intervals():
    """A paired test detects a slightly worse filter although the two intervals overlap."""
    truth, score = judged(4, 1500)
    worse = score - 0.1 * truth
    difference, (low, high) = measures.paired(truth, score, worse, resamples=200)
    gap = 100 * (measures.auc(truth, worse) - measures.auc(truth, score))
    assert difference == pytest.approx(gap)
    assert low < difference < high < 0
    ours, theirs = (measures.interval(truth, s, 200, 1) for s in (score, worse))
    assert ours[1] > theirs[0]


def test_a_filter_differs_from_itself_by_nothing():
    """The paired difference of equal scores is 0, and so are both ends."""
    truth, score = judged(5)
    assert measures.paired(truth, score, score, resamples=20) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("lost", "missed", "expected"),
    [
        (1, 10, 100 / (1 + np.sqrt(99 * 9))),
        (0, 0, 100 / (1 + np.sqrt(199 * 199))),
        (100, 100, 100 - 100 / (1 + np.sqrt(199 * 199))),
        (50, 50, 50.0),
    ],
)
def test_lam_averages_logits(lost, missed, expected):
    """LAM is the logistic of the mean logit, with half a message in a cell that is empty."""
    assert measures.lam_percent(lost, 100, missed, 100) == pytest.approx(expected)


def test_spam_missed_at_a_limit_of_ham_lost():
    """1 % of 100 ham lets one ham pass the threshold; spam that ties with the next is missed."""
    ham, spam = np.arange(100.0), np.array([98.0, 98.5, 99.0, 99.5])
    truth = np.arange(104) >= 100
    score = np.concatenate([ham, spam])
    assert measures.missed_at(truth, score, 1) == 25
    assert measures.missed_at(truth, score, 0.1) == 75
    assert measures.missed_at(truth, score, 100) == 0


@given(st.integers(1, 40))
def test_the_limit_of_ham_lost_is_exact(thousands):
    """0.1 % of 1,000 n ham is n, in spite of floating point rounding."""
    truth = np.zeros(1000 * thousands + 1, bool)
    truth[-1] = True
    score = np.arange(len(truth), dtype=float)
    score[-1] = len(truth) - 2 - thousands
    assert measures.missed_at(truth, score, 0.1) == 100
    score[-1] += 0.5
    assert measures.missed_at(truth, score, 0.1) == 0


def test_calibration_by_hand():
    """Two bins that say 0.2 and 0.9 and see 0 and 1 are off by 0.2 and 0.1: 0.15 on average."""
    truth, P = np.array([False, False, True, True]), np.array([0.2, 0.2, 0.9, 0.9])
    assert measures.calibration_error(truth, P, bins=2) == pytest.approx(0.15)
    assert measures.calibration_error(np.array([True]), np.array([0.3])) == pytest.approx(0.7)


def test_calibrated_probabilities_have_little_error():
    """When the truth is drawn from the probabilities the error is small; inverted it is large."""
    rng = np.random.default_rng(0)
    P = rng.random(20_000)
    truth = rng.random(20_000) < P
    assert measures.calibration_error(truth, P) < 0.02
    assert measures.calibration_error(truth, 1 - P) > 0.4


@given(MARKS, st.randoms())
def test_the_order_of_messages_does_not_matter(marks, rng):
    """Every measure except the resampled ones is the same for the same messages shuffled."""

    def measured(rows):
        truth, grade = np.array([m[0] for m in rows]), np.array([m[1] for m in rows], float)
        P = 1 / (1 + np.exp(-grade))
        found = measures.report(Outcomes(truth, grade, P, P > 0.7), resamples=2).as_dict()
        del found["auc_complement_interval_percent"]
        return found

    shuffled = rng.sample(marks, len(marks))
    flat, again = (json.loads(json.dumps(measured(rows))) for rows in (marks, shuffled))
    missed = flat.pop("spam_missed_percent_at_ham_lost")
    assert missed == again.pop("spam_missed_percent_at_ham_lost")
    assert flat.pop("corpus") == again.pop("corpus")
    assert flat == pytest.approx(again)


def test_a_report_has_the_promised_keys():
    """The keys of `evaluate --json` that are measured here, and their plain values."""
    truth, score = judged(6)
    P = 1 / (1 + np.exp(-score))
    found = json.loads(json.dumps(measures.report(Outcomes(truth, score, P, P > 0.9)).as_dict()))
    assert set(found) == {
        "corpus",
        "auc_complement_percent",
        "auc_complement_interval_percent",
        "ham_lost_percent",
        "spam_missed_percent",
        "lam_percent",
        "spam_missed_percent_at_ham_lost",
        "calibration_error",
        "brier",
        "log_loss",
    }
    assert found["corpus"] == {"ham": int((~truth).sum()), "spam": int(truth.sum())}
    assert set(found["spam_missed_percent_at_ham_lost"]) == {"0.1", "1"}
    assert found["ham_lost_percent"] == pytest.approx(100 * (P[~truth] > 0.9).mean())
    assert found["spam_missed_percent"] == pytest.approx(100 * (P[truth] <= 0.9).mean())
    assert len(found["auc_complement_interval_percent"]) == 2


@pytest.mark.parametrize("truth", [[], [True, True], [False]])
def test_what_cannot_be_measured_is_none(truth):
    """Without ham or without spam there is no ranking to measure: null in JSON, never nan."""
    truth = np.array(truth, bool)
    flat = np.full(len(truth), 0.5)
    found = measures.report(Outcomes(truth, flat, flat, flat > 0)).as_dict()
    assert found["auc_complement_percent"] is None
    assert found["auc_complement_interval_percent"] is None
    assert found["lam_percent"] is None
    assert found["spam_missed_percent_at_ham_lost"] == {"0.1": None, "1": None}
    assert (found["brier"] is None) == (len(truth) == 0)
    json.dumps(found, allow_nan=False)


def test_scores_alone_give_the_ranking_alone():
    """Without probabilities and decisions the rest is None."""
    found = measures.report(Outcomes(*judged(7)), resamples=10)
    assert found.auc_complement_percent is not None
    assert (found.brier, found.log_loss, found.calibration_error) == (None, None, None)
    assert (found.ham_lost_percent, found.spam_missed_percent, found.lam_percent) == (None,) * 3


@pytest.mark.parametrize(
    ("score", "probability"),
    [([1.0], None), ([1.0, np.nan], None), ([1.0, 2.0], [0.5, 1.5]), ([1.0, 2.0], [0.5, np.nan])],
)
def test_outcomes_that_do_not_match_are_refused(score, probability):
    """One score for each message, every one a number, and probabilities between 0 and 1."""
    P = None if probability is None else np.array(probability)
    with pytest.raises(BugError):
        Outcomes(np.array([True, False]), np.array(score), P)


def test_one_sort_alone_has_no_area():
    """Asking for the area under no curve is a bug of the caller."""
    with pytest.raises(BugError):
        measures.auc(np.array([True]), np.array([1.0]))
