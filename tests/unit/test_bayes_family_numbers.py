"""Classifiers over numbers at their edges: exactness, singular covariances, bins, kernels."""

from fractions import Fraction

import numpy as np
import pytest

from spamnb.bayes import (
    BinnedNB,
    ComplementNB,
    GaussianDiscriminant,
    GaussianNB,
    KernelNB,
    MultinomialNB,
    cut,
)
from spamnb.errors import RefusedError, SpamnbError, UserError

SHAPES = ("full", "shared", "diagonal", "isotropic", "shared diagonal", "shared isotropic")


def plain_variance(numbers, ddof):
    """The variance in fractions, rounded once."""
    exact = [Fraction(number) for number in numbers]
    mean = sum(exact) / len(exact)
    return float(sum((number - mean) ** 2 for number in exact) / (len(exact) - ddof))


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e15])
@pytest.mark.parametrize(("variance", "ddof"), [("population", 0), ("sample", 1)])
def test_mean_and_variance_are_rounded_once(offset, variance, ddof):
    """Far from zero, where sums of squares cancel, the variance is still right to the last bit."""
    numbers = (np.random.default_rng(1).normal(size=50) + offset).tolist()
    model = GaussianDiscriminant(covariance="diagonal", variance=variance)
    model.fit([[number] for number in numbers], ["a"] * 50)
    assert model.covariance_[0, 0, 0] == plain_variance(numbers, ddof)
    assert model.theta_[0, 0] == float(sum(map(Fraction, numbers)) / 50)


def test_forgetting_the_unbearable():
    """Learning and forgetting a number of 1e140 restores every sum exactly."""
    model = GaussianNB().fit([[1e-3], [2e-3], [5.0], [6.0]], ["a", "a", "b", "b"])
    before = model.predict_joint_log_proba([[0.1]])
    model.learn([1e140], "a").forget([1e140], "a")
    np.testing.assert_array_equal(model.predict_joint_log_proba([[0.1]]), before)


@pytest.mark.parametrize("covariance", SHAPES)
def test_a_singular_covariance_has_a_density(covariance):
    """Equal columns, a column that never varies, and a class of one case: finite, and sensible."""
    rng = np.random.default_rng(2)
    one = rng.normal(size=(40, 1))
    X = np.hstack([one, one, np.full((40, 1), 7.0)])
    y = (one[:, 0] > 0).astype(int)
    model = GaussianDiscriminant(covariance=covariance).fit(X, y).learn([9, 9, 7], 2)
    scores = model.predict_joint_log_proba(X)
    assert np.isfinite(scores).all()
    assert (model.predict(X) == y).mean() > 0.8
    assert model.predict([[9, 9, 7]]) == [2]


def test_scales_do_not_matter():
    """Millionths beside millions: changing the unit of a column changes no posterior."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 100)
    X = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 3)) + y[:, None]
    for covariance in ("full", "shared", "diagonal"):
        plain = GaussianDiscriminant(covariance=covariance).fit(X, y).predict_proba(X)
        units = [1e-9, 1.0, 1e9]
        scaled = GaussianDiscriminant(covariance=covariance).fit(X * units, y)
        np.testing.assert_allclose(scaled.predict_proba(X * units), plain, atol=1e-9)


def test_full_covariance_by_hand():
    """It is log N(x; m, S) = -log((2 pi)^2 |S|) / 2 - (x - m) S^-1 (x - m) / 2."""
    X = [[0, 0], [2, 2], [2, 0], [4, 2]]
    model = GaussianDiscriminant().fit(X, ["a"] * 4)
    np.testing.assert_array_equal(model.theta_[0], [2, 1])
    np.testing.assert_array_equal(model.covariance_[0], [[2, 1], [1, 1]])
    # |S| = 1 and S^-1 = [[1, -1], [-1, 2]], so at (3, 1) the distance is 1.
    found = model.predict_joint_log_proba([[3, 1]])
    np.testing.assert_allclose(found, [[-np.log(2 * np.pi) - 0.5]])


def test_isotropic_classes_are_found_by_distance():
    """With one shared variance and equal priors the nearest mean wins."""
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, 90)
    X = rng.normal(size=(90, 2)) + 3 * np.array([[0, 0], [1, 0], [0, 1]])[y]
    model = GaussianDiscriminant(covariance="shared isotropic", priors=[1 / 3] * 3).fit(X, y)
    new = rng.normal(size=(200, 2)) * 3
    distances = np.linalg.norm(new[:, None] - model.theta_, axis=2)
    np.testing.assert_array_equal(model.predict(new), distances.argmin(axis=1))


def test_a_variance_of_one_case():
    """The sample variance of one case is the floor, without a warning."""
    model = GaussianNB(variance="sample").fit([[1.0], [3.0], [9.0]], ["a", "a", "b"])
    assert model.var_[1, 0] == pytest.approx(model.var_smoothing * np.var([1, 3, 9]))
    assert model.predict([[9.0], [1.5]]).tolist() == ["b", "a"]


def test_a_constant_column_has_no_effect():
    """Equal in all cases of all classes: every class gets the same from it."""
    model = GaussianNB(priors=[0.5, 0.5]).fit([[3.0], [3.0], [3.0]], ["a", "a", "b"])
    np.testing.assert_array_equal(model.predict_proba([[3.0], [1e9]]), np.full((2, 2), 0.5))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e151])
def test_what_is_no_usable_number_is_refused(bad):
    """Not a number, infinite, or with a square out of range."""
    for model in (GaussianNB(), KernelNB(), BinnedNB()):
        with pytest.raises(UserError, match="missing, or below"):
            model.fit([[bad]], ["a"])
    with pytest.raises(UserError, match="below 0"):
        MultinomialNB().fit([[-1.0]], ["a"])


def test_counts_that_leave_the_range_are_refused():
    """A count above 2^30 is refused, without overflow, and the model is unchanged."""
    model = MultinomialNB().fit([[1e9, 0]], ["a"])
    before = model.predict_joint_log_proba([[1, 1]])
    for _ in range(2):
        with pytest.raises(RefusedError, match="64 bits"):
            model.learn([1e9, 0], "a")
        np.testing.assert_array_equal(model.predict_joint_log_proba([[1, 1]]), before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ComplementNB(alpha=0),
        lambda: GaussianDiscriminant(covariance="round"),
        lambda: GaussianDiscriminant(shrinkage=1.1),
        lambda: GaussianDiscriminant(reg_param=-0.1),
        lambda: GaussianDiscriminant(tol=0.0),
        lambda: BinnedNB(n_bins=0),
        lambda: BinnedNB(strategy="clever"),
        lambda: BinnedNB(alpha=-1.0),
        lambda: KernelNB(bandwidth=0.0),
        lambda: KernelNB(bandwidth=np.nan),
    ],
)
def test_parameters_that_mean_nothing_are_refused(make):
    """Invalid parameters are refused when the model is created."""
    with pytest.raises(SpamnbError):
        make()


def test_cuts():
    """Bins of equal width or share; fewer if numbers are equal, no cut for a single number."""
    np.testing.assert_allclose(cut(np.array([0.0, 8.0]), np.ones(2), 4), [2, 4, 6])
    full = cut(np.arange(8.0), np.ones(8), 4, "quantile")
    np.testing.assert_array_equal(full, [1.5, 3.5, 5.5])
    few = cut(np.array([1.0, 2.0]), np.array([9.0, 1.0]), 4, "quantile")
    np.testing.assert_array_equal(few, [1.5])
    for numbers in ([], [3.0]):
        assert not len(cut(np.array(numbers), np.ones(len(numbers)), 4))
        assert not len(cut(np.array(numbers), np.ones(len(numbers)), 4, "quantile"))


def test_bins_follow_what_is_learnt():
    """Bins follow the cases learnt now: forgetting an outlier restores them."""
    model = BinnedNB(n_bins=2).fit([[0.0], [4.0]], ["a", "b"])
    np.testing.assert_array_equal(model.edges_[0], [2.0])
    model.learn([100.0], "b")
    np.testing.assert_array_equal(model.edges_[0], [50.0])
    model.forget([100.0], "b")
    np.testing.assert_array_equal(model.edges_[0], [2.0])


def test_kernels_see_what_one_bell_does_not():
    """Kernels and bins separate classes with alternating peaks; a Gaussian cannot."""
    rng = np.random.default_rng(5)
    y = np.arange(600) % 6
    X = rng.normal(2.0 * y, 0.4)[:, None]
    y = np.array(["even", "odd"])[y % 2]
    right = {
        name: (model.fit(X, y).predict(X) == y).mean()
        for name, model in (
            ("flexible", KernelNB()),
            ("silverman", KernelNB(bandwidth="silverman")),
            ("bins", BinnedNB(n_bins=20)),
            ("bell", GaussianNB()),
        )
    }
    assert min(right["flexible"], right["silverman"], right["bins"]) > 0.9
    assert right["bell"] < 0.7


def test_equal_numbers_have_a_bandwidth():
    """With a spread of 0, silverman falls back to the flexible bandwidth."""
    model = KernelNB(bandwidth="silverman").fit([[1.0]] * 4 + [[5.0]] * 4, ["a"] * 4 + ["b"] * 4)
    assert model.predict([[2.0], [4.0]]).tolist() == ["a", "b"]


def test_kernels_in_blocks_are_kernels(monkeypatch):
    """The densities do not depend on the block size."""
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(50, 2)), rng.integers(0, 2, 50)
    whole = KernelNB().fit(X, y).predict_joint_log_proba(X)
    monkeypatch.setattr("spamnb.bayes.gaussian.BLOCK", 7)
    np.testing.assert_array_equal(KernelNB().fit(X, y).predict_joint_log_proba(X), whole)
