"""Worked examples from textbooks and lectures, computed with spamnb.bayes."""

from collections import Counter

import numpy as np
import pytest

from spamnb.bayes import (
    BernoulliNB,
    CategoricalNB,
    GaussianDiscriminant,
    GaussianNB,
    MultinomialNB,
    m_estimate,
    minimum_risk,
    zero_one,
)

TENNIS = """
Sunny Hot High Weak No; Sunny Hot High Strong No; Overcast Hot High Weak Yes;
Rain Mild High Weak Yes; Rain Cool Normal Weak Yes; Rain Cool Normal Strong No;
Overcast Cool Normal Strong Yes; Sunny Mild High Weak No; Sunny Cool Normal Weak Yes;
Rain Mild Normal Weak Yes; Sunny Mild Normal Strong Yes; Overcast Mild High Strong Yes;
Overcast Hot Normal Weak Yes; Rain Mild High Strong No
"""
TEMPERATURES = {
    "Yes": [25.2, 19.3, 18.5, 21.7, 20.1, 24.3, 22.8, 23.1, 19.8],
    "No": [27.3, 30.1, 17.4, 29.5, 15.1],
}
AGES = {"first": [23, 35, 40], "second": [31, 20, 38, 22]}
COMPUTERS = """
youth high no fair no; youth high no excellent no; middle high no fair yes;
senior medium no fair yes; senior low yes fair yes; senior low yes excellent no;
middle low yes excellent yes; youth medium no fair no; youth low yes fair yes;
senior medium yes fair yes; youth medium yes excellent yes; middle medium no excellent yes;
middle high yes fair yes; senior medium no excellent no
"""
BERNOULLI = ["01A", "11B", "00A", "11A", "10B", "00A", "11B", "00B", "01B", "10B"]


def table(text):
    """Rows of values and their classes."""
    rows = [row.split() for row in text.split(";")]
    return [row[:-1] for row in rows], [row[-1] for row in rows]


def singles(groups):
    """Numbers of one column, and the class of each."""
    X = [[number] for numbers in groups.values() for number in numbers]
    return X, [name for name, numbers in groups.items() for _ in numbers]


def test_play_tennis():
    """P(x, k) = P(k) prod_j n[x_j, k] / N[k]; unsmoothed.

    (sunny, cool, high, strong): 9/14 * 2/9 * 3/9 * 3/9 * 3/9 = 0.0053 for yes and
    5/14 * 3/5 * 1/5 * 4/5 * 3/5 = 0.0206 for no.
    """
    model = CategoricalNB(alpha=0).fit(*table(TENNIS))
    day = [["Sunny", "Cool", "High", "Strong"]]
    joint = dict(zip(model.classes_, np.exp(model.predict_joint_log_proba(day))[0], strict=True))
    assert round(joint["Yes"], 4) == 0.0053
    assert round(joint["No"], 4) == 0.0206
    assert model.predict(day) == ["No"]


def test_m_estimate_of_outlook_given_no():
    """It is (n + m p0) / (N + m), with N = 5, m = 1, p0 = 1/3: 1/18, 5/9, 7/18; they sum to 1."""
    model = CategoricalNB(m=1).fit(*table(TENNIS))
    pending = [model.p(0, value)[0] for value in ("Overcast", "Sunny", "Rain")]
    np.testing.assert_allclose(pending, [1 / 18, 5 / 9, 7 / 18], rtol=1e-12)
    np.testing.assert_allclose(m_estimate([0, 3, 2], 5, 1, 1 / 3), pending, rtol=1e-12)


def test_laplace_for_income():
    """It is (n + 1) / (N + 3) for counts 0, 990, 10: 1/1003, 991/1003, 11/1003."""
    model = CategoricalNB(alpha=1, min_categories=3, unseen="smooth")
    model.learn(["medium"], "buys", weight=990).learn(["high"], "buys", weight=10)
    income = [model.p(0, value)[0] for value in ("low", "medium", "high")]
    np.testing.assert_allclose(income, np.array([1, 991, 11]) / 1003, rtol=1e-12)
    np.testing.assert_allclose(m_estimate([0, 990, 10], 1000, 3, 1 / 3), income, rtol=1e-12)


def test_money_and_stetson():
    """One more above and below, (n + 1) / (N + 1), is m = 1, p = 1: 13/56 and 1/56.

    Laplace over two outcomes is m = 2, p = 1/2: 13/57 and 1/57.
    """
    np.testing.assert_allclose(m_estimate([12, 0], 55, 1, 1), [13 / 56, 1 / 56])
    np.testing.assert_allclose(m_estimate([12, 0], 55, 2, 1 / 2), [13 / 57, 1 / 57])


@pytest.mark.parametrize(
    ("variance", "yes", "no"), [("sample", 2.35, 7.09), ("population", 2.22, 6.34)]
)
def test_temperature_given_play(variance, yes, no):
    """Mean = sum x / n; variance = sum (x - mean)^2 / (n - 1) of a sample, / n of a population.

    21.64 and 2.35 (2.22) for yes, 23.88 and 7.09 (6.34) for no.
    """
    model = GaussianNB(variance=variance).fit(*singles(TEMPERATURES))
    np.testing.assert_allclose(model.theta_.ravel().round(2), [23.88, 21.64])
    np.testing.assert_allclose(np.sqrt(model.var_).ravel().round(2), [no, yes])


def test_age_thirty():
    """The density exp(-(x - mean)^2 / (2 s^2)) / sqrt(2 pi s^2) at x = 30.

    (mean, s^2) = (32.67, 76.33): 0.0436; (27.75, 69.58): 0.0461.
    """
    model = GaussianNB(variance="sample", priors=[0.5, 0.5]).fit(*singles(AGES))
    np.testing.assert_allclose(model.theta_.ravel().round(2), [32.67, 27.75])
    np.testing.assert_allclose(model.var_.ravel().round(2), [76.33, 69.58])
    density = 2 * np.exp(model.predict_joint_log_proba([[30]]))[0]
    np.testing.assert_allclose(density.round(4), [0.0436, 0.0461])


def test_buys_computer():
    """P(x, k) = P(k) prod_j n[x_j, k] / N[k] for (youth, medium, student, fair).

    9/14 * 2/9 * 4/9 * 6/9 * 6/9 = 0.028 for yes, 5/14 * 3/5 * 2/5 * 1/5 * 2/5 = 0.007 for no.
    """
    model = CategoricalNB(alpha=0).fit(*table(COMPUTERS))
    user = [["youth", "medium", "yes", "fair"]]
    np.testing.assert_allclose(
        np.exp(model.predict_joint_log_proba(user))[0].round(3), [0.007, 0.028]
    )
    assert model.predict(user) == ["yes"]


def test_bernoulli_table():
    """P(k, x) = P(k) prod_j p_jk^x_j (1 - p_jk)^(1 - x_j), unsmoothed, from ten rows.

    A: 4/10 with p = 1/4, 1/2; B: 6/10 with p = 2/3, 1/2. P(B | 1, 1) = (1/5) / (1/5 + 1/20) = 0.8;
    P(A | 0, 1) = (3/20) / (3/20 + 1/10) = 0.6.
    """
    rows = [[int(row[0]), int(row[1])] for row in BERNOULLI]
    model = BernoulliNB(alpha=0).fit(rows, [row[2] for row in BERNOULLI])
    P = model.predict_proba([[1, 1], [0, 1]])
    np.testing.assert_allclose([P[0, 1], P[1, 0]], [0.8, 0.6], rtol=1e-14)


def test_five_thousand_factors():
    """By log prod p = sum log p 5,000 factors of 1e-5 are -57,564 nats, and the product is 0."""
    model = MultinomialNB(alpha=0, fit_prior=False)
    model.fit([[1, 99_999], [1.0001, 99_998.9999]], ["less", "more"])
    case = [[5000, 0]]
    assert np.prod(np.full(5000, 1e-5)) == 0
    np.testing.assert_allclose(
        model.predict_joint_log_proba(case)[0, 0], np.log(0.5) + 5000 * np.log(1e-5)
    )
    odds = model.predict_proba(case)[0]
    np.testing.assert_allclose(odds[1] / odds[0], 1.0001**5000, rtol=1e-6)


def test_zero_one_loss():
    """argmin_a sum_k [a != k] P(k) = argmin_a (1 - P(a)) = argmax_a P(a)."""
    rng = np.random.default_rng(3)
    for K in (2, 3, 7):
        P = rng.dirichlet(np.ones(K), 500)
        np.testing.assert_array_equal(minimum_risk(P, zero_one(K)), P.argmax(axis=1))


def test_shared_covariance_is_logistic():
    """P(1 | x) = 1 / (1 + exp(-(w x + b))) with w = S^-1 (m1 - m0).

    b = (m0 S^-1 m0 - m1 S^-1 m1) / 2 + log(P(1) / P(0)): the squares of x cancel.
    """
    rng = np.random.default_rng(4)
    y = rng.integers(0, 2, 300)
    X = rng.multivariate_normal([0, 0, 0], [[2, 1, 0], [1, 3, 0.5], [0, 0.5, 1]], 300)
    X += y[:, None] * [1, -1, 0.5]
    model = GaussianDiscriminant(covariance="shared").fit(X, y)
    (m0, m1), S = model.theta_, model.covariance_[0]
    w = np.linalg.solve(S, m1 - m0)
    b = (m0 @ np.linalg.solve(S, m0) - m1 @ np.linalg.solve(S, m1)) / 2
    b += np.log(Counter(y.tolist())[1] / Counter(y.tolist())[0])
    new = rng.normal(size=(50, 3)) * 3
    np.testing.assert_allclose(
        model.predict_proba(new)[:, 1], 1 / (1 + np.exp(-(new @ w + b))), rtol=1e-9
    )
