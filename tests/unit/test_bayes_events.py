"""The two event models against scikit-learn, against hand-made tables, and at their edges."""

import numpy as np
import pytest
from support import scikit

from spamnb.errors import BugError
from spamnb.model import bernoulli, multinomial
from spamnb.model.events import Totals, no_totals
from spamnb.model.smoothing import Assumptions, Batch, ClassPair, softmax

MODELS = [multinomial, bernoulli]


def totals_of(n, messages):
    """Make the totals that a model with these counts would have."""
    totals = no_totals(1, n.shape[1])
    totals.messages = np.asarray(messages, np.int64)
    totals.tokens = n.sum(axis=0, dtype=np.int64)
    totals.known = int(n.any(axis=1).sum())
    totals.histogram = bernoulli.histogram_of(n, n.shape[1])
    return totals


def explained(batch, shares, bias):
    """[M] the log-odds that the shares and the bias of each message add up to."""
    return bias + np.bincount(batch.owners(), weights=shares, minlength=len(batch))


def batch_of(X):
    """Make a batch of a matrix [M, F] of occurrences."""
    owners, rows = np.nonzero(X)
    offsets = np.searchsorted(owners, np.arange(len(X) + 1))
    return Batch(rows.astype(np.int64), offsets.astype(np.int64), X[owners, rows].astype(np.uint32))


def counts_of(X, y, K):
    """n[F, K] and N[K] of messages X with labels y."""
    n = np.stack([X[y == k].sum(axis=0) for k in range(K)], axis=1).astype(np.uint32)
    return n, np.bincount(y, minlength=K)


def random_mail(seed, K, occurrences):
    """Messages over a skewed vocabulary, each word seen at least once, and some to judge."""
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.3, 2.0, (K, 80))
    y = rng.integers(0, K, 120)
    X = rng.poisson(rates[y])
    X[0, X.sum(axis=0) == 0] = 1
    fresh = rng.poisson(rates[rng.integers(0, K, 40)] * 3)
    if not occurrences:
        X, fresh = np.minimum(X, 1), np.minimum(fresh, 1)
    return X, y, fresh


def oracle(model, alpha, learnt, K, prior=None):
    """scikit-learn's model of the same kind, fitted to the same messages."""
    X, y = learnt
    made = scikit.MultinomialNB if model is multinomial else scikit.BernoulliNB
    fitted = made(alpha=alpha, force_alpha=True, class_prior=prior)
    return fitted.partial_fit(X, y, classes=np.arange(K))


# At 1e-9 the reference itself is off by 1e-8: it takes log(1 - exp(log p)) where p is nearly 1.
@pytest.mark.parametrize("alpha", [1.0, 0.01, 1e-4])
@pytest.mark.parametrize("K", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_equal_to_scikit_learn(model, K, alpha):
    """The same counts and alpha give the same joint log likelihood, to 1e-9 relative."""
    X, y, fresh = random_mail(K, K, occurrences=model is multinomial)
    n, messages = counts_of(X, y, K)
    ours = model.joint_log_likelihood(
        batch_of(fresh), n, totals_of(n, messages), Assumptions(alpha)
    )
    theirs = oracle(model, alpha, (X, y), K).predict_joint_log_proba(fresh)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_given_and_uniform_priors_equal_scikit_learn(model):
    """A given or uniform prior changes every score as in scikit-learn."""
    X, y, fresh = random_mail(5, 2, occurrences=False)
    n, messages = counts_of(X, y, 2)
    for prior, theirs in (((0.2, 0.8), [0.2, 0.8]), ("uniform", [0.5, 0.5])):
        ours = model.joint_log_likelihood(
            batch_of(fresh), n, totals_of(n, messages), Assumptions(0.5, prior)
        )
        reference = oracle(model, 0.5, (X, y), 2, theirs).predict_joint_log_proba(fresh)
        np.testing.assert_allclose(ours, reference, rtol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_label_without_messages_equals_scikit_learn(model):
    """Its prior from counts is 0, so its score is -inf; with a uniform prior it is judged."""
    X, y, fresh = random_mail(6, 2, occurrences=False)
    n, messages = counts_of(X, y, 3)
    totals = totals_of(n, messages)
    ours = model.joint_log_likelihood(batch_of(fresh), n, totals, Assumptions(1.0))
    assert np.isneginf(ours[:, 2]).all()
    flat = model.joint_log_likelihood(batch_of(fresh), n, totals, Assumptions(1.0, "uniform"))
    reference = oracle(model, 1.0, (X, y), 3, [1 / 3] * 3).predict_joint_log_proba(fresh)
    np.testing.assert_allclose(flat, reference, rtol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_model_finds_every_label_equally_likely(model):
    """Before the first message there is no nan, no warning, and no preference."""
    n = np.zeros((3, 2), np.uint32)
    batch = Batch(np.array([0, 2]), np.array([0, 2, 2]))
    scores = model.joint_log_likelihood(batch, n, no_totals(1, 2), Assumptions(1.0))
    np.testing.assert_allclose(softmax(scores), np.full((2, 2), 0.5))


@pytest.mark.parametrize("model", MODELS)
def test_unknown_features_take_no_part(model):
    """Features that no message had do not change a score."""
    n = np.array([[3, 1], [0, 0], [1, 4]], np.uint32)
    totals = totals_of(n, [5, 6])
    batch = Batch(np.array([0, 2, 0, 1, 2]), np.array([0, 2, 5]))
    plain, with_unknown = model.joint_log_likelihood(batch, n, totals, Assumptions(0.3))
    np.testing.assert_array_equal(plain, with_unknown)
    entries, _ = model.shares(batch, n, totals, Assumptions(0.3), ClassPair(1, 0))
    assert entries[3] == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_message_scores_the_same_in_any_batch(model):
    """A message has the same score alone and in any batch, bit for bit."""
    X, y, fresh = random_mail(7, 2, occurrences=False)
    n, messages = counts_of(X, y, 2)
    fresh[3] = 0
    totals = totals_of(n, messages)
    together = model.joint_log_likelihood(batch_of(fresh), n, totals, Assumptions(0.1))
    alone = [
        model.joint_log_likelihood(batch_of(row[None]), n, totals, Assumptions(0.1))[0]
        for row in fresh
    ]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("model", MODELS)
def test_shares_and_bias_add_up_to_the_log_odds(model):
    """Shares and bias sum to the log odds of any pair of labels, also of one pair per message."""
    X, y, fresh = random_mail(8, 4, occurrences=model is multinomial)
    n, messages = counts_of(X, y, 4)
    totals, batch = totals_of(n, messages), batch_of(fresh)
    scores = model.joint_log_likelihood(batch, n, totals, Assumptions(0.1))
    order = np.argsort(scores, axis=1)
    every = np.arange(len(fresh))
    for sides in (ClassPair(1, 0), ClassPair(order[:, -1], order[:, -2])):
        entries, bias = model.shares(batch, n, totals, Assumptions(0.1), sides)
        log_odds = scores[every, sides.s] - scores[every, sides.h]
        np.testing.assert_allclose(explained(batch, entries, bias), log_odds, rtol=0, atol=1e-9)


def test_occurrences_weigh_in_the_multinomial_only():
    """Three occurrences count three times in the multinomial model and once for presence."""
    n = np.array([[3, 1], [1, 4]], np.uint32)
    totals = totals_of(n, [5, 6])
    once = Batch(np.array([0, 1]), np.array([0, 2]), np.array([1, 0], np.uint32))
    thrice = Batch(np.array([0, 1]), np.array([0, 2]), np.array([3, 0], np.uint32))
    given = Assumptions(0.5, "uniform")
    one, three = (multinomial.joint_log_likelihood(b, n, totals, given)[0] for b in (once, thrice))
    np.testing.assert_allclose(three - np.log(0.5), 3 * (one - np.log(0.5)))
    one, three = (bernoulli.joint_log_likelihood(b, n, totals, given) for b in (once, thrice))
    np.testing.assert_array_equal(one, three)


def test_a_table_by_hand_without_smoothing():
    """Ten rows of two features: P(B | 1,1) = 0.8 and P(A | 0,1) = 0.6, exactly."""
    rows = ["01A", "11B", "00A", "11A", "10B", "00A", "11B", "00B", "01B", "10B"]
    X = np.array([[int(row[0]), int(row[1])] for row in rows])
    y = np.array(["AB".index(row[2]) for row in rows])
    n, messages = counts_of(X, y, 2)
    scores = bernoulli.joint_log_likelihood(
        batch_of(np.array([[1, 1], [0, 1]])), n, totals_of(n, messages), Assumptions(0.0)
    )
    np.testing.assert_allclose(softmax(scores)[[0, 1], [1, 0]], [0.8, 0.6], rtol=1e-14)


def test_without_smoothing_what_never_was_is_impossible():
    """A feature that all or none of a label's messages hold decides alone, and gives no nan."""
    n = np.array([[2, 1], [0, 3]], np.uint32)
    batch = Batch(np.array([0, 0, 1]), np.array([0, 1, 3, 3]))
    totals = totals_of(n, [2, 4])
    scores = bernoulli.joint_log_likelihood(batch, n, totals, Assumptions(0.0))
    np.testing.assert_array_equal(np.isneginf(scores), [[0, 0], [1, 0], [1, 0]])
    np.testing.assert_allclose(scores[0], [np.log(2 / 6), np.log(4 / 6 * 1 / 4 * 1 / 4)])
    scores = multinomial.joint_log_likelihood(batch, n, totals, Assumptions(0.0))
    np.testing.assert_array_equal(np.isneginf(scores), [[0, 0], [1, 0], [0, 0]])


@pytest.mark.parametrize("model", MODELS)
def test_shares_need_smoothing(model):
    """Infinite shares do not add up to anything, so they are refused."""
    n = np.array([[2, 0]], np.uint32)
    batch = Batch(np.array([0]), np.array([0, 1]))
    with pytest.raises(BugError, match="alpha > 0"):
        model.shares(batch, n, totals_of(n, [2, 2]), Assumptions(0.0), ClassPair(1, 0))


def test_tiny_alpha_keeps_a_feature_that_every_message_holds():
    """With a = 1e-20 and n = N the logarithm of its absence is finite: log(a / N)."""
    n = np.array([[5, 1]], np.uint32)
    empty = Batch(np.array([], np.int64), np.array([0, 0]))
    scores = bernoulli.joint_log_likelihood(empty, n, totals_of(n, [5, 5]), Assumptions(1e-20))
    assert scores[0, 0] == pytest.approx(np.log(0.5) + np.log(1e-20 / 5))


@pytest.mark.parametrize("model", MODELS)
def test_long_messages_stay_finite_and_ranked(model):
    """5,000 features of one label move the score by thousands of nats, not to a ceiling."""
    n = np.tile(np.array([[1, 300]], np.uint32), (5000, 1))
    totals = totals_of(n, [100_000, 100_000])
    batch = Batch(np.concatenate([np.arange(5000), np.arange(4999)]), np.array([0, 5000, 9999]))
    entries, bias = model.shares(batch, n, totals, Assumptions(0.01, "uniform"), ClassPair(1, 0))
    longer, shorter = explained(batch, entries, bias)
    assert np.isfinite([longer, shorter]).all()
    assert longer - shorter == pytest.approx(entries[0], rel=1e-6)


def test_counts_above_the_number_of_messages_are_refused():
    """Counts above the number of messages are refused by the Bernoulli model."""
    n = np.array([[3, 0]], np.uint32)
    batch = Batch(np.array([0]), np.array([0, 1]))
    with pytest.raises(BugError, match="more messages"):
        bernoulli.joint_log_likelihood(batch, n, totals_of(n, [2, 2]), Assumptions())
    with pytest.raises(BugError, match="more messages"):
        bernoulli.joint_log_likelihood(batch, n * 0, totals_of(n, [2, 2]), Assumptions())


@pytest.mark.parametrize(
    ("offsets", "times"),
    [
        ([], None),
        ([1, 2], None),
        ([0, 1], None),
        ([0, 3, 2], None),
        ([0, 2], np.ones(1, np.uint32)),
    ],
)
def test_a_batch_must_cover_its_rows(offsets, times):
    """Offsets rise from 0 to the number of rows, and occurrences come one a row."""
    with pytest.raises(BugError):
        Batch(np.array([0, 1]), np.array(offsets, np.int64), times)


def test_totals_are_left_alone():
    """Scoring changes no number of the model that it reads."""
    n = np.array([[2, 0], [1, 1]], np.uint32)
    totals, batch = totals_of(n, [2, 2]), Batch(np.array([0, 1]), np.array([0, 2]))
    before = totals.copy()
    for model in MODELS:
        model.joint_log_likelihood(batch, n, totals, Assumptions())
        model.shares(batch, n, totals, Assumptions(), ClassPair(0, 1))
    for name in Totals.__slots__:
        np.testing.assert_array_equal(getattr(totals, name), getattr(before, name))


def test_a_histogram_that_lacks_the_old_rows_is_refused():
    """Subtracting rows that were never added is a bug, not a negative count."""
    with pytest.raises(BugError, match="histogram"):
        bernoulli.histogram_moved(
            np.array([[1, 0], [0, 1]]), np.array([[1, 0]], np.uint32), np.array([[2, 0]], np.uint32)
        )
