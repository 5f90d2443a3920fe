"""MixedNB: equal to its columns' classifiers; missing values, kinds, and bad input."""

from math import exp, factorial

import numpy as np
import pytest
from support import scikit

from spamnb import bayes
from spamnb.bayes import (
    BernoulliNB,
    BinnedNB,
    CategoricalNB,
    GaussianNB,
    KernelNB,
    MixedNB,
    PoissonNB,
)
from spamnb.errors import UserError

AGES = [23, 35, 40, 31, 20, 38, 22]
CREDITS = ["fair", "good", "fair", "fair", "good", "good", None]
BUYS = ["no", "no", "no", "yes", "yes", "yes", "yes"]


def mixed_table(seed, cases=300):
    """Numbers, codes, counts and bits that lean by class, and the classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, cases)
    return np.column_stack(
        [
            rng.normal(size=cases) + y,
            5 * rng.normal(size=cases) - y,
            (rng.random(cases) * (y + 2)).astype(int),
            rng.integers(0, 4, cases),
            rng.poisson(1 + y),
            rng.random(cases) < 0.2 + 0.2 * y,
        ]
    ), y


def test_numbers_and_codes_are_the_two_models_of_scikit_learn():
    """The log odds are the sum of GaussianNB's and CategoricalNB's, less the prior once."""
    X, y = mixed_table(1)
    weights = np.random.default_rng(2).integers(1, 4, len(y))
    mine = MixedNB(kinds=[GaussianNB(var_smoothing=1e-300)] * 2 + ["categorical"] * 2)
    mine.fit(X[:, :4], y, sample_weight=weights)
    numbers = scikit.GaussianNB(var_smoothing=0).fit(X[:, :2], y, sample_weight=weights)
    codes = scikit.CategoricalNB().fit(X[:, 2:4], y, sample_weight=weights)
    expected = numbers.predict_joint_log_proba(X[:, :2]) + codes.predict_joint_log_proba(X[:, 2:4])
    found = mine.predict_joint_log_proba(X[:, :4])
    np.testing.assert_allclose(found, expected - mine.class_log_prior_, rtol=1e-9)
    np.testing.assert_array_equal(mine.predict(X[:, :4]), found.argmax(axis=1))


@pytest.mark.parametrize(
    ("kind", "model", "column"),
    [
        ("gaussian", GaussianNB(), 0),
        ("binned", BinnedNB(alpha=0.5), 1),
        ("kernel", KernelNB(), 1),
        ("categorical", CategoricalNB(alpha=0.5), 2),
        ("count", PoissonNB(alpha=0.5), 4),
        ("binary", BernoulliNB(alpha=0.5), 5),
    ],
)
def test_a_table_of_one_column_is_its_classifier(kind, model, column):
    """Each kind gives the scores of the classifier of that name."""
    X, y = mixed_table(3)
    one = X[:, column : column + 1]
    scores = model.fit(one, y).predict_joint_log_proba(one)
    mine = MixedNB(kinds=[kind], alpha=0.5).fit(one, y)
    np.testing.assert_allclose(mine.predict_joint_log_proba(one), scores, rtol=1e-12)
    mixed = MixedNB(kinds=[*["gaussian"] * column, kind], alpha=0.5).fit(X[:, : column + 1], y)
    of_column = mixed.column(column)
    np.testing.assert_allclose(of_column.predict_joint_log_proba(one), scores, rtol=1e-12)


def test_poisson_by_hand():
    """It is P(k) prod_j r^x exp(-r) / x! with r = (sum x + alpha) / (N + alpha)."""
    X, y = [[0, 2], [1, 3], [4, 0]], ["a", "a", "b"]
    model = PoissonNB(alpha=1).fit(X, y)
    rates = np.array([[(1 + 1) / 3, (5 + 1) / 3], [(4 + 1) / 2, (0 + 1) / 2]])
    np.testing.assert_allclose(np.exp(model.feature_log_prob_), rates)
    np.testing.assert_array_equal(model.feature_count_, [[1, 5], [4, 0]])
    joint = [
        prior * np.prod([r**x * exp(-r) / factorial(x) for r, x in zip(of, (3, 1), strict=True)])
        for prior, of in zip((2 / 3, 1 / 3), rates, strict=True)
    ]
    np.testing.assert_allclose(np.exp(model.predict_joint_log_proba([[3, 1]]))[0], joint)


def test_an_impossible_count_has_probability_zero():
    """Without smoothing a class that never had a count above 0 gives 0 to one, 1 to none."""
    model = PoissonNB(alpha=0).fit([[0], [0], [3]], ["a", "a", "b"])
    np.testing.assert_array_equal(model.predict_proba([[2]]), [[0, 1]])
    np.testing.assert_allclose(np.exp(model.predict_joint_log_proba([[0]]))[0, 0], 2 / 3)


def test_missing_values_are_ignored_in_learning_and_prediction():
    """A case counts for its class and for the columns that it has."""
    model = MixedNB(alpha=0).fit({"age": AGES, "credit": CREDITS}, BUYS)
    np.testing.assert_array_equal(model.class_count_, [3, 4])
    np.testing.assert_array_equal(model.column("credit").category_count_[0], [[2, 1], [1, 2]])
    only_age = GaussianNB().fit([[age] for age in AGES], BUYS).predict_proba([[30]])
    for x in ([30, None], [30, float("nan")], {"age": 30}):
        np.testing.assert_allclose(model.predict_proba([x]), only_age)
    np.testing.assert_allclose(model.predict_proba([[None, None]]), [[3 / 7, 4 / 7]])
    np.testing.assert_allclose(model.predict_proba([[np.nan, "fair"]]), [[0.6, 0.4]])
    gone = model.learn([None, "good"], "no").forget([None, "good"], "no")
    np.testing.assert_allclose(gone.predict_proba([[30, None]]), only_age)


def test_a_class_without_a_value_in_a_column_uses_those_of_all():
    """The column then says nothing between classes that have none and the whole."""
    model = MixedNB(kinds=["gaussian", "categorical"])
    model.fit([[1.0, "a"], [3.0, "b"], [None, None]], ["x", "x", "y"])
    np.testing.assert_allclose(model.predict_proba([[2.0, "a"], [9.0, "b"]]), [[2 / 3, 1 / 3]] * 2)


def test_kinds_follow_the_values():
    """Numbers are gaussian, booleans binary, the rest categorical; given kinds come first."""
    rows = [[1, True, "x", 2.5, (1, 2)], [None, False, 3, 1, "y"]]
    model = MixedNB().fit(rows, ["a", "b"])
    assert model.kinds_ == ("gaussian", "binary", "categorical", "gaussian", "categorical")
    assert MixedNB(kinds={0: "count"}).fit(rows, ["a", "b"]).kinds_[0] == "count"
    columns = {"n": np.arange(2), "b": np.array([True, False]), "s": np.array(["x", "y"])}
    assert MixedNB().fit(columns, [1, 2]).kinds_ == ("gaussian", "binary", "categorical")


def test_models_with_names_are_merged_by_their_names():
    """Names are kept; other names or other kinds are refused."""
    halves = {"age": AGES[:4], "credit": CREDITS[:4]}, {"age": AGES[4:], "credit": CREDITS[4:]}
    first, second = MixedNB().fit(halves[0], BUYS[:4]), MixedNB().fit(halves[1], BUYS[4:])
    whole = MixedNB().fit({"age": AGES, "credit": CREDITS}, BUYS)
    x = {"age": 33, "credit": "good"}
    np.testing.assert_array_equal(first.merge(second).predict_proba([x]), whole.predict_proba([x]))
    with pytest.raises(UserError, match="but the model has"):
        whole.merge(MixedNB().fit({"years": AGES, "credit": CREDITS}, BUYS))
    with pytest.raises(UserError, match="but the model has"):
        whole.merge(MixedNB().fit({"age": CREDITS, "credit": AGES}, BUYS))


def test_weights_are_exact_in_every_kind():
    """Weight 3 is learning thrice; forgetting all three leaves the model without the case."""
    X, y = mixed_table(5, 60)
    kinds = ["gaussian", "kernel", "categorical", "binned", "count", "binary"]
    model = MixedNB(kinds=kinds).fit(X, y)
    before = model.predict_joint_log_proba(X)
    for _ in range(3):
        model.learn(X[0] + 1, 1)
    np.testing.assert_array_equal(
        model.predict_joint_log_proba(X),
        MixedNB(kinds=kinds).fit(X, y).learn(X[0] + 1, 1, weight=3).predict_joint_log_proba(X),
    )
    np.testing.assert_array_equal(
        model.forget(X[0] + 1, 1, weight=3).predict_joint_log_proba(X), before
    )


@pytest.mark.parametrize(
    ("X", "y", "error"),
    [
        ([["old", "fair"]], ["no"], "column x0: 'old' is no number"),
        ([[np.inf, "fair"]], ["no"], "column x0: a number is missing, or below"),
        ([[1e151, "fair"]], ["no"], "column x0: a number is missing, or below"),
        ([[[30], "fair"]], ["no"], "column x0: a value is no number"),
        ([[30, ["fair"]]], ["no"], "column 0 has a value that is no key: unhashable type: 'list'"),
        ([], [], "there are no cases"),
        ([[30, "fair"], [31]], ["no", "no"], "row 1 has 1 values, but row 0 has 2"),
        ([[30, "fair"]], [None], "a label is missing"),
        ([[30, "fair"]] * 2, [1, "no"], "classes cannot be sorted"),
        ([[30, "fair"]], [], "0 labels for 1 cases"),
        ([[30, "fair", 1]], ["no"], "2 kinds for 3 columns|3 columns, but the model has 2"),
        (["30"], ["no"], "table with 2 dimensions"),
        (np.zeros((1, 2, 2)), ["no"], "table with 2 dimensions, not 3"),
        ([{"age": 30}], ["no"], "1 columns, but the model has 2|2 kinds for 1 columns"),
        ({"age": [30, 31], "credit": ["fair"]}, ["no"], "columns have different lengths: 1, 2"),
    ],
)
def test_bad_input_is_one_clear_error(X, y, error):
    """Each fault is named with its column, and the model is unchanged."""
    model = MixedNB(kinds=["gaussian", "categorical"]).fit([[30, "fair"], [50, "good"]], ["a", "b"])
    before = model.predict_proba([[30, "fair"]])
    for change in (model.fit, model.partial_fit):
        with pytest.raises(UserError, match=error):
            change(X, y)
    np.testing.assert_array_equal(model.predict_proba([[30, "fair"]]), before)


def test_one_class_and_unseen_values():
    """One class is certain; an unseen value is ignored, as in CategoricalNB."""
    one = MixedNB().fit([[30, "fair"]], ["no"])
    np.testing.assert_array_equal(one.predict_proba([[90, "odd"]]), [[1]])
    model = MixedNB().fit([[30, "fair"], [50, "good"], [55, "good"]], ["a", "b", "b"])
    np.testing.assert_array_equal(
        model.predict_proba([[40, "odd"]]), model.predict_proba([[40, None]])
    )


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: MixedNB(kinds=["round"]), "unknown kind of column 'round'"),
        (lambda: MixedNB(kinds=[bayes.MultinomialNB()]), "unknown kind of column MultinomialNB"),
        (lambda: MixedNB(kinds={"age": "count"}).fit([[1]], [1]), "no column 'age'"),
        (lambda: MixedNB(kinds={3: "count"}).fit([[1]], [1]), "no column 3"),
        (lambda: MixedNB().fit([[None, 1]], [1]), "column x0 has no value yet"),
        (lambda: MixedNB().fit([[1]], [1]).column("age"), "no column 'age'"),
        (lambda: MixedNB().fit([{"a": 1}], [1]).predict([{"b": 1}]), "no column b, only a"),
        (lambda: MixedNB().fit([[1]], [1]).explain([1], names=["a", "b"]), "2 names for 1"),
    ],
)
def test_kinds_that_mean_nothing_are_refused(make, error):
    """Kinds must exist, and fit the columns."""
    with pytest.raises(UserError, match=error):
        make()
