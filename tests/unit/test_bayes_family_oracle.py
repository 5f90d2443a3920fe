"""The classifiers equal scikit-learn's models of the same names to 1e-9 relative."""

import numpy as np
import pytest
from support import scikit as theirs

from spamnb import bayes as ours

NAMES = ("ComplementNB", "BernoulliNB", "MultinomialNB")


def counts(seed, K=3):
    """Counts that lean by class, their classes, weights, and counts to judge."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, 150)
    X = rng.poisson(rng.gamma(0.5, 2, (K, 12))[y])
    return X, y, rng.random(150) * 3 + 0.01, rng.poisson(2, (60, 12))


def measures(seed, K=3):
    """Numbers with correlated columns, their classes, and numbers to judge."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, 200)
    X = rng.normal(size=(200, 5)) @ (rng.normal(size=(5, 5)) + 2 * np.eye(5)) + 0.7 * y[:, None]
    return X + 20, y, rng.normal(size=(60, 5)) * 4 + 20


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 0.01])
@pytest.mark.parametrize("name", NAMES)
def test_counting_models(name, alpha, weighted):
    """Joint log likelihoods are equal, with and without weights."""
    X, y, weights, new = counts(1)
    given = weights if weighted else None
    mine = getattr(ours, name)(alpha=alpha).fit(X, y, sample_weight=given)
    other = getattr(theirs, name)(alpha=alpha).fit(X, y, sample_weight=given)
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(new), other.predict_joint_log_proba(new), rtol=1e-9
    )
    np.testing.assert_allclose(mine.predict_proba(new), other.predict_proba(new), atol=1e-12)
    np.testing.assert_array_equal(mine.predict(new), other.predict(new))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ComplementNB", {"norm": True}),
        ("MultinomialNB", {"fit_prior": False}),
        ("MultinomialNB", {"class_prior": [0.2, 0.3, 0.5]}),
        ("BernoulliNB", {"binarize": 2.0}),
        ("BernoulliNB", {"class_prior": [0.2, 0.3, 0.5], "binarize": 1.0}),
    ],
)
def test_parameters_mean_what_they_mean_there(name, parameters):
    """Parameters of the same name have the same effect as in scikit-learn."""
    X, y, _, new = counts(2)
    mine, other = (getattr(from_, name)(**parameters).fit(X, y) for from_ in (ours, theirs))
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(new), other.predict_joint_log_proba(new), rtol=1e-9
    )


def test_a_complement_of_one_class():
    """ComplementNB with a single class uses its prior, as scikit-learn does."""
    X, _, _, new = counts(3)
    y = np.zeros(len(X), int)
    mine, other = (m.ComplementNB().fit(X, y) for m in (ours, theirs))
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(new), other.predict_joint_log_proba(new), rtol=1e-9
    )


@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_categorical(alpha):
    """Codes from 0 up, all of which were seen, give the same likelihoods."""
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, 200)
    X = (rng.random((200, 4)) * (y[:, None] + 2)).astype(int)
    weights = rng.random(200) + 0.5
    mine = ours.CategoricalNB(alpha=alpha).fit(X, y, sample_weight=weights)
    other = theirs.CategoricalNB(alpha=alpha).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(X), other.predict_joint_log_proba(X), rtol=1e-9
    )


def test_more_categories_than_were_seen():
    """`min_categories` has the same effect as in scikit-learn."""
    rng = np.random.default_rng(5)
    X, y = rng.integers(0, 3, (50, 2)), rng.integers(0, 2, 50)
    mine = ours.CategoricalNB(min_categories=[5, 3], unseen="smooth").fit(X, y)
    other = theirs.CategoricalNB(min_categories=[5, 3]).fit(X, y)
    new = [[4, 0], [0, 2], [3, 1]]
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(new), other.predict_joint_log_proba(new), rtol=1e-9
    )


@pytest.mark.parametrize("priors", [None, [0.2, 0.3, 0.5]])
def test_gaussian(priors):
    """Joint log likelihoods are equal."""
    X, y, new = measures(6)
    mine = ours.GaussianNB(priors=priors).fit(X, y)
    other = theirs.GaussianNB(priors=priors).fit(X, y)
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(new), other.predict_joint_log_proba(new), rtol=1e-9
    )
    np.testing.assert_allclose(mine.theta_, other.theta_, rtol=1e-12)
    np.testing.assert_allclose(mine.var_, other.var_, rtol=1e-12)


def test_gaussian_with_weights():
    """Weights count cases; there the variance's floor does not see them, so it is tiny here."""
    X, y, new = measures(7)
    weights = np.random.default_rng(7).random(len(X)) + 0.1
    mine = ours.GaussianNB(var_smoothing=1e-14).fit(X, y, sample_weight=weights)
    other = theirs.GaussianNB(var_smoothing=1e-14).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(new), other.predict_joint_log_proba(new), rtol=1e-9
    )


def test_the_linear_discriminant():
    """A shared covariance is LDA: equal posteriors, and means and covariance to 1e-12."""
    X, y, new = measures(8)
    mine = ours.GaussianDiscriminant(covariance="shared").fit(X, y)
    other = theirs.LinearDiscriminantAnalysis(solver="lsqr").fit(X, y)
    np.testing.assert_allclose(mine.predict_proba(new), other.predict_proba(new), atol=1e-9)
    np.testing.assert_allclose(mine.covariance_[1], other.covariance_, rtol=1e-9, atol=1e-12)
    joint, decision = mine.predict_joint_log_proba(new), other.decision_function(new)
    np.testing.assert_allclose(
        joint - joint[:, :1], decision - decision[:, :1], rtol=1e-9, atol=1e-9
    )


def test_the_shrunken_linear_discriminant():
    """`shrinkage` moves towards the mean variance, as in scikit-learn."""
    X, y, new = measures(9)
    mine = ours.GaussianDiscriminant(covariance="shared", shrinkage=0.3).fit(X, y)
    other = theirs.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(X, y)
    np.testing.assert_allclose(mine.predict_proba(new), other.predict_proba(new), atol=1e-9)


@pytest.mark.parametrize("reg_param", [0.0, 0.2, 1.0])
def test_the_quadratic_discriminant(reg_param):
    """A covariance for each class is QDA: equal scores, up to what all classes share."""
    X, y, new = measures(10)
    other = theirs.QuadraticDiscriminantAnalysis(reg_param=reg_param).fit(X, y)
    # It divided by n - 1 in versions that had no choice of solver.
    variance = "population" if hasattr(other, "solver") else "sample"
    mine = ours.GaussianDiscriminant(variance=variance, reg_param=reg_param).fit(X, y)
    joint, decision = mine.predict_joint_log_proba(new), other.decision_function(new)
    np.testing.assert_allclose(
        joint - joint[:, :1], decision - decision[:, :1], rtol=1e-9, atol=1e-9
    )


def test_a_diagonal_discriminant_is_naive():
    """Diagonal covariances make the discriminant Gaussian naive Bayes."""
    X, y, new = measures(11)
    for variance in ("population", "sample"):
        naive = ours.GaussianNB(var_smoothing=1e-300, variance=variance).fit(X, y)
        diagonal = ours.GaussianDiscriminant(covariance="diagonal", variance=variance).fit(X, y)
        np.testing.assert_allclose(
            diagonal.predict_joint_log_proba(new), naive.predict_joint_log_proba(new), rtol=1e-9
        )


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_bins_are_categories(strategy):
    """Binning, then counting, is what scikit-learn's two steps give for the same cuts."""
    X, y, new = measures(12)
    mine = ours.BinnedNB(n_bins=5, strategy=strategy).fit(X, y)
    edges = mine.edges_
    codes, new_codes = (
        np.stack([np.searchsorted(e, Z[:, j], side="right") for j, e in enumerate(edges)], axis=1)
        for Z in (X, new)
    )
    other = theirs.CategoricalNB(min_categories=5).fit(codes, y)
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(new), other.predict_joint_log_proba(new_codes), rtol=1e-9
    )
    if strategy == "uniform":
        cuts = theirs.KBinsDiscretizer(5, strategy="uniform").fit(X).bin_edges_
        np.testing.assert_allclose(np.stack(edges), [cut[1:-1] for cut in cuts], rtol=1e-12)
    else:
        assert all(set(np.bincount(column)) == {40} for column in codes.T)


def test_kernels_are_kernels():
    """The flexible model's densities are those of a kernel estimate with h = 1 / sqrt(n)."""
    X, y, new = measures(13)
    mine = ours.KernelNB(priors=[1 / 3] * 3).fit(X, y).predict_joint_log_proba(new)
    for k in range(3):
        of = X[y == k]
        density = theirs.KernelDensity(bandwidth=len(of) ** -0.5)
        logs = sum(density.fit(of[:, [j]]).score_samples(new[:, [j]]) for j in range(X.shape[1]))
        np.testing.assert_allclose(mine[:, k], np.log(1 / 3) + logs, rtol=1e-9)
