"""`explain`, and the numbers of a model as attributes with the names of scikit-learn."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from support import scikit

from spamnb import bayes
from spamnb.bayes import (
    AveragedOneDependence,
    BernoulliNB,
    BinnedNB,
    CategoricalNB,
    ComplementNB,
    GaussianDiscriminant,
    GaussianNB,
    KernelNB,
    MixedNB,
    MultinomialNB,
    PoissonNB,
    TreeAugmentedNB,
)
from spamnb.errors import UserError

MODELS = [
    CategoricalNB(),
    CategoricalNB(alpha=0, unseen="smooth"),
    CategoricalNB(m=2, value_prior="marginal"),
    TreeAugmentedNB(),
    AveragedOneDependence(),
    MultinomialNB(),
    MultinomialNB(length_power=1),
    BernoulliNB(),
    BernoulliNB(binarize=None),
    PoissonNB(),
    GaussianNB(),
    GaussianDiscriminant(),
    BinnedNB(),
    KernelNB(),
    MixedNB(kinds=["gaussian", "categorical", "count"]),
]


def small_table(seed=1):
    """Counts of three columns that lean by class, and the classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 60)
    return rng.poisson(1 + np.outer(y, [2, 0, 1])), np.array(["ham", "spam"])[y]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_factors_multiply_to_the_joint_probability(model):
    """Prior times factors is P(case, class), and the posterior is what the model predicts."""
    X, y = small_table()
    if repr(model) == repr(BernoulliNB(binarize=None)):
        X = X / 10
    model.fit(X, y)
    for x in X[:8]:
        found = model.explain(x)
        assert found.classes == ("ham", "spam")
        np.testing.assert_allclose(found.product, model.predict_joint_log_proba([x])[0])
        np.testing.assert_allclose(found.posterior, model.predict_proba([x])[0])
        assert len(str(found).splitlines()) == len(found.factors) + 4


def test_the_text_of_a_product():
    """The text has the counts, the fractions, the product and the posterior."""
    days = [["sunny", "hot"], ["sunny", "mild"], ["rain", "mild"], ["rain", "hot"]]
    model = CategoricalNB(alpha=0).fit(days, ["no", "no", "yes", "no"])
    assert str(model.explain(["sunny", "mild"], names=["outlook", "temperature"])) == (
        "                               no            yes\n"
        "P(class)                       3/4 = 0.7500  1/4 = 0.2500\n"
        "P(outlook = sunny | class)     2/3 = 0.6667  0/1 = 0\n"
        "P(temperature = mild | class)  1/3 = 0.3333  1/1 = 1.0000\n"
        "product                        0.1667        0\n"
        "P(class | case)                1.0000        0"
    )
    smooth = CategoricalNB().fit(days, ["no", "no", "yes", "no"]).explain(["sunny", None])
    assert "P(x0 = sunny | class)  (2 + 1)/(3 + 2) = 0.6000  (0 + 1)/(1 + 2) = 0.3333" in str(
        smooth
    )
    assert "x1 = None: ignored" in str(smooth)


def test_a_table_for_rich():
    """A console of rich shows the same rows; text in brackets is no markup."""
    model = CategoricalNB().fit([["[red]"], ["blue"]], ["a", "b"])
    console = Console(width=100, record=True, file=StringIO())
    console.print(model.explain(["[red]"]))
    shown = console.export_text()
    for row in model.explain(["[red]"]).rows():
        for cell in row:
            assert cell in shown


def test_a_product_outside_the_range_of_floats():
    """A product of 5,000 factors of 1e-5 is shown, though it underflows."""
    model = MultinomialNB(alpha=0, fit_prior=False).fit([[1, 99_999], [2, 99_998]], ["a", "b"])
    lines = str(model.explain([5000, 0])).splitlines()
    assert "5.000e-25001" in lines[-2]
    assert lines[-1].split()[-1] == "1.0000"


def test_densities_and_bins_say_how():
    """Normal densities show their parameters, bins their limits, counts their rate."""
    X, y = [[1.0], [3.0], [5.0], [9.0]], ["a", "a", "b", "b"]
    assert "N(2; 2, 1)" in str(GaussianNB(var_smoothing=1e-300).fit(X, y).explain([2]))
    assert "P(-inf <= x0 < 5 | class)" in str(BinnedNB(n_bins=2).fit(X, y).explain([2]))
    assert "Poisson(2; 2)" in str(PoissonNB(alpha=0).fit(X, y).explain([2]))
    assert "P(x0 | class)^2" in str(MultinomialNB().fit(X, y).explain([2]))
    assert "P(x0 = 0 | class)" in str(BernoulliNB().fit(X, y).explain([0]))


def test_scores_that_are_no_product_are_not_explained():
    """ComplementNB has no probabilities."""
    with pytest.raises(UserError, match="no product"):
        ComplementNB().fit([[1, 0], [0, 1]], ["a", "b"]).explain([1, 0])


@pytest.mark.parametrize("name", ["MultinomialNB", "BernoulliNB", "ComplementNB"])
def test_the_attributes_of_counts_are_those_of_scikit_learn(name):
    """feature_count_, feature_log_prob_, class_count_ and class_log_prior_ are equal."""
    X, y = small_table(2)
    mine, other = (getattr(of, name)().fit(X, y) for of in (bayes, scikit))
    for attribute in ("feature_count_", "feature_log_prob_", "class_count_", "class_log_prior_"):
        np.testing.assert_allclose(getattr(mine, attribute), getattr(other, attribute), rtol=1e-12)
    assert mine.n_features_in_ == other.n_features_in_


def test_the_attributes_of_categories_are_those_of_scikit_learn():
    """category_count_ and feature_log_prob_ are equal, column by column."""
    X, y = small_table(3)
    mine, other = CategoricalNB().fit(X, y), scikit.CategoricalNB().fit(X, y)
    assert len(mine.category_count_) == len(other.category_count_) == 3
    for attribute in ("category_count_", "feature_log_prob_"):
        for one, another, values in zip(
            getattr(mine, attribute), getattr(other, attribute), mine.categories_, strict=True
        ):
            # Its codes go up to the largest; those that no case has are no categories here.
            if len(values) == another.shape[1]:
                np.testing.assert_allclose(one, another, rtol=1e-12)
    assert [len(values) for values in mine.categories_] == [
        one.shape[1] for one in mine.category_count_
    ]
    np.testing.assert_allclose(mine.class_log_prior_, other.class_log_prior_)


def test_the_attributes_of_gaussians_are_those_of_scikit_learn():
    """class_prior_, theta_ and var_ are equal."""
    X, y = small_table(4)
    mine, other = GaussianNB().fit(X, y), scikit.GaussianNB().fit(X, y)
    for attribute in ("class_prior_", "class_count_", "theta_", "var_"):
        np.testing.assert_allclose(getattr(mine, attribute), getattr(other, attribute), rtol=1e-9)


def test_attributes_need_cases():
    """A model that has learnt nothing has no numbers."""
    for read in (
        lambda: CategoricalNB().categories_,
        lambda: MultinomialNB().feature_log_prob_,
        lambda: GaussianNB().theta_,
        lambda: MixedNB().kinds_,
        lambda: GaussianNB().n_features_in_,
        lambda: GaussianNB().explain([1]),
    ):
        with pytest.raises(UserError, match="nothing has been learnt"):
            read()


def test_tuples_are_values():
    """Any hashable is a value: also a tuple, in each classifier over categories, and as a class."""
    X = [[("a", 1), 2], [("b", 1), (2, 3)], [("a", 1), (2, 3)]]
    y = [("x", 1), ("y", 2), ("x", 1)]
    for model in (CategoricalNB(), TreeAugmentedNB(), AveragedOneDependence(), MixedNB()):
        assert model.fit(X, y).predict([[("a", 1), (2, 3)]])[0] == ("x", 1)
    model = CategoricalNB(alpha=0).fit(X, y)
    np.testing.assert_allclose(model.p(0, ("a", 1)), [1, 0])
    assert model.learn([("c",), 2], ("y", 2)).categories_[0] == [("a", 1), ("b", 1), ("c",)]
    assert model.forget([("c",), 2], ("y", 2)).categories_[0] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("unseen", ["ignore", "smooth"])
def test_the_probability_of_an_unseen_value_is_one_of_the_pseudo_cases(unseen):
    """It is m p / (N + m) whatever predictions do with it, 0 without pseudo-cases; never 1."""
    X, y = [["red"], ["red"], ["blue"]], ["a", "a", "b"]
    np.testing.assert_allclose(CategoricalNB(unseen=unseen).fit(X, y).p(0, "odd"), [1 / 4, 1 / 3])
    np.testing.assert_array_equal(CategoricalNB(alpha=0, unseen=unseen).fit(X, y).p(0, "odd"), 0)
    wide = CategoricalNB(min_categories=3, unseen=unseen).fit(X, y)
    np.testing.assert_allclose(wide.p(0, "red") + wide.p(0, "blue") + wide.p(0, "odd"), 1)
    for column, value in ((0, None), (0, float("nan")), (1, "red")):
        with pytest.raises(UserError, match=r"missing value|no column 1"):
            wide.p(column, value)


def test_the_order_of_learning_does_not_order_the_categories():
    """Values are sorted; those of different types by the names of their types."""
    model = CategoricalNB().fit([["b"], ["a"], ["c"]], [1, 1, 2])
    assert model.categories_ == [["a", "b", "c"]]
    assert model.learn([1], 1).categories_ == [[1, "a", "b", "c"]]


@pytest.mark.parametrize(
    ("X", "error"),
    [
        ([["1.5"]], "contains the text '1.5'"),
        ([[None]], "a number is missing"),
        ([[1.0], [1.0, 2.0]], "rows of numbers of equal length"),
        ([[np.nan]], "a number is missing"),
        ([[np.inf]], "a number is missing"),
        ([], "there are no cases"),
    ],
)
def test_a_table_of_numbers_has_numbers(X, error):
    """Text, gaps, infinity and rows of unequal length are refused by every model of numbers."""
    for model in (GaussianNB(), MultinomialNB(), BernoulliNB(), BinnedNB(), KernelNB()):
        with pytest.raises(UserError, match=error):
            model.fit(X, ["a"] * len(X))
