"""Bounds on the least possible error, against distributions with a known Bayes error."""

import numpy as np
import pytest

from spamnb.lab.statistics import SAMPLE, disagreeing, estimate, sample


def words(rng, many, *, most=40):
    """The given number of random feature ids, distinct and sorted."""
    return np.sort(rng.choice(many, rng.integers(10, most), replace=False)).astype(np.uint64)


def topics(rng, count, *, wrong):
    """Two topics without a word in common; a share of the labels is wrong by chance."""
    topic = rng.random(count) < 0.5
    ids = [words(rng, 600) + np.uint64(1000 * is_spam) for is_spam in topic]
    return topic, topic ^ (rng.random(count) < wrong), ids


@pytest.mark.parametrize("seed", range(6))
def test_by_scores_the_bound_is_below_the_known_error(seed):
    """For calibrated scores the least error is E min(P, 1 - P); the bound is slightly below."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(0, 4, SAMPLE)
    P = 1 / (1 + np.exp(-odds))
    truth = rng.random(SAMPLE) < P
    known = 100 * float(np.minimum(P, 1 - P).mean())
    found = estimate(truth, odds, [words(rng, 10**6) for _ in truth])
    assert 0.4 * known < found.scores_at_least < known
    assert found.error == pytest.approx(known, abs=2.5)


def test_scores_that_are_wrong_are_no_reason_for_errors():
    """Inverted scores have an error of 100 %, and a least possible error of 0."""
    rng = np.random.default_rng(1)
    truth = rng.random(400) < 0.5
    found = estimate(truth, np.where(truth, -9.0, 9.0), [words(rng, 10**6) for _ in truth])
    assert (found.error, found.scores_at_least) == (100.0, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_by_words_the_bound_is_below_the_known_error(seed):
    """With one random wrong label in ten the least error is 10 %; neighbours err on 18 %."""
    rng = np.random.default_rng(seed)
    _, truth, ids = topics(rng, 1500, wrong=0.1)
    found = estimate(truth, rng.normal(size=1500), ids)
    assert found.error > 40
    assert found.nearest_by_words == pytest.approx(18, abs=4)
    assert found.at_most == found.nearest_by_words
    assert 5 < found.words_at_least < 10.5


def test_neighbours_with_less_information_give_no_bound():
    """With many weak clues the bound of nearest neighbours exceeds the error, so it is None."""
    rng = np.random.default_rng(3)
    truth = rng.random(1500) < 0.5
    lean = np.log(0.6 / 0.4)
    held = rng.random((1500, 400)) < np.where(truth[:, None], 0.06, 0.04) * np.ones(400)
    held[:, 200:] = rng.random((1500, 200)) < np.where(truth[:, None], 0.04, 0.06)
    absent = np.log(0.94 / 0.96)
    signs = np.where(np.arange(400) < 200, 1, -1)
    odds = np.where(held, lean, absent) @ signs
    found = estimate(truth, odds, [np.flatnonzero(row).astype(np.uint64) for row in held])
    assert found.error < 20 < found.nearest_by_words
    assert found.words_at_least is None
    assert found.at_most == found.error


def test_the_nearest_are_those_of_the_cosine():
    """`disagreeing` agrees with its definition over all words; ties count by their share."""
    rng = np.random.default_rng(5)
    ids = [words(rng, 80, most=14) for _ in range(60)]
    truth = rng.random(60) < 0.4
    held = np.zeros((60, 80))
    for row, some in zip(held, ids, strict=True):
        row[some.astype(int)] = 1
    holders = held.sum(axis=0)
    weight = np.log(60 / np.maximum(holders, 1))
    weighted = held * weight * ((holders > 1) & (holders <= 6))
    alike = weighted @ weighted.T / np.sqrt((held * weight**2).sum(axis=1))
    np.fill_diagonal(alike, -1)
    expected = [
        (truth[row >= row.max() - 1e-12] != own).mean()
        for row, own in zip(alike, truth, strict=True)
    ]
    assert disagreeing(ids, truth) == pytest.approx(expected)


def test_without_a_word_in_common_all_are_equally_near():
    """A message without common words disagrees as often as labels differ; an empty one too."""
    ids = [np.array([i], np.uint64) for i in range(3)] + [np.zeros(0, np.uint64)]
    truth = np.array([True, True, False, False])
    assert disagreeing(ids, truth) == pytest.approx([2 / 3] * 4)


def test_too_little_mail_gives_no_estimate():
    """With fewer than fifty ham or fifty spam there are no bounds."""
    rng = np.random.default_rng(1)
    truth = np.arange(200) < 49
    assert estimate(truth, rng.normal(size=200), [words(rng, 50) for _ in truth]) is None


@pytest.mark.parametrize("count", [1, 10, 4001, 90_000])
def test_the_sample_is_of_the_second_half(count):
    """A sample is spread over the second half, without repetition, at most SAMPLE messages."""
    chosen = sample(count)
    assert len(set(chosen.tolist())) == len(chosen) == min(SAMPLE, count - count // 2)
    assert chosen[0] == count // 2
    assert chosen[-1] in (count - 1, count // 2)
