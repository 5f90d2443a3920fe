"""Laws of every classifier of the family: sums do not depend on the order of learning."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb import bayes
from spamnb.errors import RefusedError, UserError

WIDTH = 3
LABELS = ("news", "spam", "work")
COUNTED = [
    bayes.MultinomialNB(),
    bayes.MultinomialNB(binarize=0, length_power=1),
    bayes.ComplementNB(),
    bayes.BernoulliNB(),
    bayes.PoissonNB(),
]
MEASURED = [
    bayes.GaussianNB(),
    bayes.GaussianNB(variance="sample"),
    bayes.GaussianDiscriminant(),
    bayes.GaussianDiscriminant(covariance="shared", variance="sample"),
    bayes.GaussianDiscriminant(covariance="isotropic"),
    bayes.BinnedNB(n_bins=3, strategy="quantile"),
    bayes.KernelNB(),
]
NAMED = [
    bayes.CategoricalNB(),
    bayes.CategoricalNB(m=1, value_prior="marginal", unseen="smooth"),
    bayes.AveragedOneDependence(),
    bayes.TreeAugmentedNB(),
]
MIXED = [
    bayes.MixedNB(kinds=("gaussian", "categorical", "count")),
    bayes.MixedNB(kinds=("kernel", bayes.CategoricalNB(m=1, value_prior="marginal"), "binary")),
    bayes.MixedNB(kinds=("binned", "categorical", bayes.PoissonNB(alpha=0.1)), alpha=0.5),
]
# Whole numbers are few, so that cases repeat; the others stretch over every size that squares can.
NUMBERS = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-1e6, 1e6),
    st.sampled_from([5e-324, 1e-200, -1e140, 0.1, 1 / 3]),
)
VALUES = st.sampled_from(["red", "green", 7, None])


COUNTS = st.integers(0, 4).map(float)


def cases_of(model):
    """What one case of a model can be."""
    if repr(model) in map(repr, MIXED):
        x = st.tuples(st.none() | NUMBERS, VALUES, st.none() | COUNTS).map(list)
    else:
        named, counted = (repr(model) in map(repr, some) for some in (NAMED, COUNTED))
        entry = COUNTS if counted else VALUES if named else NUMBERS
        x = st.lists(entry, min_size=WIDTH, max_size=WIDTH)
    return st.tuples(
        x, st.sampled_from(LABELS), st.sampled_from([1.0, 2.0, 0.5, 0.3]), st.booleans()
    )


def fresh(model):
    """Make an untrained one with the same parameters."""
    return type(model)(**{f: getattr(model, f) for f in model.__dataclass_fields__ if f[0] != "_"})


def learnt(model, cases):
    """Make one that has learnt these cases in one call."""
    new = fresh(model)
    if cases:
        X, y, weights, _ = zip(*cases, strict=True)
        new.partial_fit(list(X), list(y), sample_weight=list(weights))
    return new


def assert_same(a, b):
    """Every number that is kept is the same."""
    assert a._sums.keys() == b._sums.keys()
    for label, held in a._sums.items():
        assert_same_sums(held, b._sums[label])
    assert a._layout == b._layout


def assert_same_sums(mine, other):
    """Arrays, numbers and the sums of columns are the same."""
    if isinstance(mine, tuple):
        for one, another in zip(mine, other, strict=True):
            assert_same_sums(one, another)
    elif hasattr(mine, "__slots__"):
        for name in type(mine).__slots__:
            assert_same_sums(getattr(mine, name), getattr(other, name))
    else:
        assert np.array_equal(mine, other) if isinstance(mine, np.ndarray) else mine == other


pytestmark = pytest.mark.parametrize("model", [*COUNTED, *MEASURED, *NAMED, *MIXED], ids=repr)


@given(data=st.data())
def test_forgetting_restores_every_number(model, data):
    """What was learnt and forgotten in any order leaves what was learnt and not forgotten."""
    cases = data.draw(st.lists(cases_of(model), min_size=1, max_size=12))
    walked = fresh(model)
    for x, y, weight, _ in data.draw(st.permutations(cases)):
        walked.learn(x, y, weight)
    for x, y, weight, dropped in data.draw(st.permutations(cases)):
        if dropped:
            walked.forget(x, y, weight)
    kept = [case for case in cases if not case[3]]
    straight = learnt(model, kept)
    assert_same(walked, straight)
    if kept:
        X = [case[0] for case in cases]
        np.testing.assert_allclose(
            walked.predict_proba(X), straight.predict_proba(X), rtol=0, atol=1e-9
        )


@given(data=st.data())
def test_merging_is_learning_together(model, data):
    """Two models merged, either way round, are one that learnt all."""
    first, second = (data.draw(st.lists(cases_of(model), max_size=8)) for _ in range(2))
    together = learnt(model, first + second)
    assert_same(learnt(model, first).merge(learnt(model, second)), together)
    assert_same(learnt(model, second).merge(learnt(model, first)), together)


@given(data=st.data())
def test_posteriors_are_distributions(model, data):
    """Probabilities are between 0 and 1 and sum to 1, also for what was never seen: no nan."""
    cases = data.draw(st.lists(cases_of(model), min_size=1, max_size=12))
    new = data.draw(st.lists(cases_of(model), min_size=1, max_size=4))
    P = learnt(model, cases).predict_proba([case[0] for case in new])
    assert ((P >= 0) & (P <= 1)).all()
    np.testing.assert_allclose(P.sum(axis=1), 1)


@given(data=st.data())
def test_a_weight_of_two_is_learning_twice(model, data):
    """Whole weights repeat a case."""
    x, y, _, _ = data.draw(cases_of(model))
    assert_same(fresh(model).learn(x, y, 2), fresh(model).learn(x, y).learn(x, y))


@given(data=st.data())
def test_what_was_never_learnt_is_not_forgotten(model, data):
    """Forgetting more than was learnt is refused, and nothing has changed."""
    cases = data.draw(st.lists(cases_of(model), min_size=1, max_size=5))
    x, y, _, _ = data.draw(cases_of(model))
    walked = learnt(model, cases)
    with pytest.raises(RefusedError, match="more would be forgotten"):
        walked.forget(x, y, weight=100)
    assert_same(walked, learnt(model, cases))


def test_classes_can_be_declared(model):
    """A declared class takes part before its first case; a prior from counts makes it 0."""
    x = ["red"] * WIDTH if repr(model) in map(repr, NAMED) else [1.0] * WIDTH
    walked = fresh(model).partial_fit([x], ["spam"], classes=LABELS)
    np.testing.assert_array_equal(walked.classes_, LABELS)
    np.testing.assert_array_equal(walked.class_count_, [0, 1, 0])
    P = walked.predict_proba([x])
    assert P.shape == (1, 3)
    if not isinstance(model, bayes.ComplementNB):
        np.testing.assert_array_equal(P, [[0, 1, 0]])


@pytest.mark.parametrize(
    ("X", "y", "weights", "error"),
    [
        ([[1.0] * WIDTH], ["spam", "ham"], None, "2 labels for 1 cases"),
        ([[1.0] * (WIDTH + 1)], ["spam"], None, "4 columns, but the model has 3"),
        ([1.0], ["spam"], None, "table with 2 dimensions"),
        ([[1.0] * WIDTH], ["spam"], [0.0], "weights must be positive"),
        ([[1.0] * WIDTH], ["spam"], [np.nan], "weights must be positive"),
        ([[1.0] * WIDTH], ["spam"], [1.0, 1.0], "weights must be positive"),
    ],
)
def test_input_that_means_nothing_is_refused(model, X, y, weights, error):
    """Invalid input is refused with its reason, and the model is unchanged."""
    walked = fresh(model).learn([1.0] * WIDTH, "ham")
    for change in (walked.partial_fit, walked.partial_forget, walked.fit):
        if change == walked.fit and "columns" in error:
            continue
        with pytest.raises(UserError, match=error):
            change(X, y, sample_weight=weights)
    assert_same(walked, fresh(model).learn([1.0] * WIDTH, "ham"))


def test_an_empty_model_refuses_predictions(model):
    """A model without cases refuses to predict."""
    walked = fresh(model).learn([1.0] * WIDTH, "ham").forget([1.0] * WIDTH, "ham")
    for empty in (fresh(model), walked):
        with pytest.raises(UserError, match="nothing has been learnt"):
            empty.predict([[1.0] * WIDTH])
    width = WIDTH if repr(model) in map(repr, MIXED) else 1
    assert walked.learn([1.0] * width, "ham").classes_.tolist() == ["ham"]


def test_a_model_can_be_kept_and_copied(model):
    """A pickled or copied model, also after predictions, is equal and independent."""
    walked = fresh(model).learn([1.0] * WIDTH, "ham").learn([2.0] * WIDTH, "spam")
    before = walked.predict_proba([[1.0] * WIDTH])
    for other in (pickle.loads(pickle.dumps(walked)), copy.deepcopy(walked)):
        assert_same(walked, other)
        np.testing.assert_array_equal(other.predict_proba([[1.0] * WIDTH]), before)
        other.learn([1.0] * WIDTH, "spam", weight=9)
        assert_same(walked, fresh(model).learn([1.0] * WIDTH, "ham").learn([2.0] * WIDTH, "spam"))


def test_only_like_and_like_are_merged(model):
    """Another kind, or other parameters, is refused."""
    other = bayes.GaussianNB(var_smoothing=0.5)
    with pytest.raises(UserError, match="cannot be merged"):
        fresh(model).merge(other)
