"""Laws of the event models that hold for any mail in any order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.naive_bayes import BernoulliNB, MultinomialNB

from spamnb.model import bernoulli, multinomial
from spamnb.model.events import no_totals
from spamnb.model.smoothing import Assumptions, Batch, ClassPair, softmax

F = 12


class Ledger:
    """Counts kept by learning and unlearning one message after the other."""

    def __init__(self, K):
        self.n = np.zeros((F, K), np.uint32)
        self.totals = no_totals(1, K)

    def move(self, ids, label, by):
        rows = np.array(sorted(ids), np.int64)
        old = self.n[rows].copy()
        self.n[rows, label] = self.n[rows, label].astype(np.int64) + by
        totals, new = self.totals, self.n[rows]
        totals.messages[label] += by
        totals.tokens[label] += by * len(rows)
        totals.known += int(new.any(axis=1).sum()) - int(old.any(axis=1).sum())
        totals.histogram = bernoulli.histogram_moved(totals.histogram, old, new)

    def score(self, model, batch, alpha):
        return model.joint_log_likelihood(batch, self.n, self.totals, Assumptions(alpha))


def mail(K):
    """Messages of some words and a label, and for each whether it is unlearnt in the end."""
    words = st.sets(st.integers(0, F - 1))
    return st.lists(st.tuples(words, st.integers(0, K - 1), st.booleans()), min_size=1, max_size=25)


def explained(batch, shares, bias):
    """[M] the log-odds that the shares and the bias of each message add up to."""
    return bias + np.bincount(batch.owners(), weights=shares, minlength=len(batch))


def batch_of(messages):
    """Make a batch of the words of these messages."""
    rows = [np.array(sorted(words), np.int64) for words, *_ in messages]
    return Batch(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


@given(st.sampled_from([2, 4]).flatmap(lambda K: st.tuples(st.just(K), mail(K), st.randoms())))
def test_learning_and_unlearning_in_any_order_equals_scikit_learn(drawn):
    """What was learnt and not unlearnt decides, and nothing else: as if fitted from scratch."""
    K, messages, rng = drawn
    records = Ledger(K)
    for words, label, _ in rng.sample(messages, len(messages)):
        records.move(words, label, 1)
    for words, label, dropped in rng.sample(messages, len(messages)):
        if dropped:
            records.move(words, label, -1)
    kept = [(words, label) for words, label, dropped in messages if not dropped]
    used = sorted(set().union(*(words for words, _ in kept)))
    if not used:
        return
    X = np.array([[f in words for f in used] for words, _ in kept], int)
    y = np.array([label for _, label in kept])
    fresh = np.array([[f in words for f in used] for words, *_ in messages], int)
    for model, oracle in ((multinomial, MultinomialNB), (bernoulli, BernoulliNB)):
        fitted = oracle(alpha=0.3, class_prior=np.full(K, 1 / K))
        theirs = fitted.partial_fit(X, y, classes=np.arange(K)).predict_joint_log_proba(fresh)
        ours = model.joint_log_likelihood(
            batch_of(messages), records.n, records.totals, Assumptions(0.3, "uniform")
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@given(mail(3), mail(3))
def test_learn_then_unlearn_restores_every_number(before, extra):
    """After others came and went, counts, totals and scores are the same bits as before."""
    records, untouched = Ledger(3), Ledger(3)
    for words, label, _ in before:
        records.move(words, label, 1)
        untouched.move(words, label, 1)
    for by in (1, -1):
        for words, label, _ in extra:
            records.move(words, label, by)
    np.testing.assert_array_equal(records.n, untouched.n)
    np.testing.assert_array_equal(records.totals.histogram, untouched.totals.histogram)
    assert records.totals.histogram.shape == untouched.totals.histogram.shape
    assert records.totals.known == untouched.totals.known
    for model in (multinomial, bernoulli):
        np.testing.assert_array_equal(
            records.score(model, batch_of(extra), 0.1), untouched.score(model, batch_of(extra), 0.1)
        )


@given(mail(2))
def test_the_kept_histogram_is_the_scanned_one(messages):
    """Moving the histogram row by row gives what a scan of all the records gives."""
    records = Ledger(2)
    for words, label, _ in messages:
        records.move(words, label, 1)
        scanned = bernoulli.histogram_of(records.n, 2)
        np.testing.assert_array_equal(records.totals.histogram, scanned)
        assert (scanned.sum(axis=1) == records.totals.known).all()


@given(mail(3), st.floats(1e-6, 10))
def test_the_histogram_gives_the_sum_over_the_vocabulary(messages, alpha):
    """The short cut for absent features equals the plain sum over each known one."""
    records = Ledger(3)
    for words, label, _ in messages:
        records.move(words, label, 1)
    known = records.n.any(axis=1)
    N = records.totals.messages
    p = (records.n[known] + alpha) / (N + 2 * alpha)
    scores = records.score(bernoulli, batch_of(messages), alpha)
    with np.errstate(divide="ignore"):
        prior = np.log(N / N.sum())
    for score, (words, *_) in zip(scores, messages, strict=True):
        held = np.isin(np.flatnonzero(known), list(words))[:, None]
        plain = prior + np.where(held, np.log(p), np.log1p(-p)).sum(axis=0)
        np.testing.assert_allclose(score, plain, rtol=1e-9, atol=1e-9)


@given(mail(2), st.floats(1e-6, 10))
def test_clues_explain_the_log_odds_and_posteriors_sum_to_one(messages, alpha):
    """Shares and bias add up to the difference of scores; nothing is clipped on the way."""
    records = Ledger(2)
    for words, label, _ in messages:
        records.move(words, label, 1)
    batch, assumed = batch_of(messages), Assumptions(alpha, "uniform")
    for model in (multinomial, bernoulli):
        scores = model.joint_log_likelihood(batch, records.n, records.totals, assumed)
        entries, bias = model.shares(batch, records.n, records.totals, assumed, ClassPair(1, 0))
        np.testing.assert_allclose(
            explained(batch, entries, bias), scores[:, 1] - scores[:, 0], atol=1e-9
        )
        np.testing.assert_allclose(softmax(scores).sum(axis=1), 1)
