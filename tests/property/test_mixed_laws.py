"""Laws of MixedNB and of learnt tables against scikit-learn and against counting."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from support import scikit

from spamnb.bayes import BeliefNetwork, CategoricalNB, GaussianNB, MixedNB, PoissonNB

CODES = 3
CASES = st.lists(
    st.tuples(
        st.floats(-100, 100).map(lambda x: round(x, 3)),
        st.integers(0, CODES - 1),
        st.integers(0, CODES - 1),
        st.integers(0, 5),
        st.sampled_from(["news", "spam"]),
    ),
    min_size=2,
    max_size=12,
)
KINDS = (GaussianNB(var_smoothing=1e-3), *[CategoricalNB(min_categories=CODES)] * 2)


@given(cases=CASES)
def test_numbers_and_codes_are_those_of_scikit_learn(cases):
    """P(case, class) is GaussianNB's times CategoricalNB's, divided by the prior."""
    X, y = np.array([case[:3] for case in cases], float), [case[4] for case in cases]
    # With less variance, both are what rounding leaves of it there.
    assume(X[:, 0].var() > 1)
    numbers = scikit.GaussianNB(var_smoothing=1e-3).fit(X[:, :1], y)
    codes = scikit.CategoricalNB(min_categories=CODES).fit(X[:, 1:], y)
    mine = MixedNB(kinds=KINDS).fit(X, y)
    expected = numbers.predict_joint_log_proba(X[:, :1]) + codes.predict_joint_log_proba(X[:, 1:])
    found = mine.predict_joint_log_proba(X)
    np.testing.assert_allclose(found, expected - mine.class_log_prior_, rtol=1e-6, atol=1e-6)


@given(cases=CASES, gaps=st.lists(st.booleans(), min_size=36, max_size=36))
def test_each_column_is_its_classifier_on_the_cases_that_have_it(cases, gaps):
    """The log likelihood of a case is the sum over its columns; gaps are ignored in all of them."""
    kinds = (GaussianNB(), CategoricalNB(alpha=0.5), PoissonNB(alpha=2))
    rows = [[case[0], case[1], case[3]] for case in cases]
    rows = [
        [None if gaps[(3 * i + j) % 36] else value for j, value in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    y = [case[4] for case in cases]
    mine = MixedNB(kinds=kinds).fit(rows, y)
    expected = np.tile(mine.class_log_prior_, (len(rows), 1))
    for j, kind in enumerate(kinds):
        known = [i for i, row in enumerate(rows) if row[j] is not None]
        labels = [y[i] for i in known]
        # A class without any value has those of all classes: then the column is the same for all.
        if known and set(labels) == set(y):
            column = [[rows[i][j]] for i in known]
            of_column = type(kind)(
                **{
                    name: getattr(kind, name)
                    for name in kind.__dataclass_fields__
                    if name[0] != "_"
                }
            ).fit(column, labels)
            logs = of_column.predict_joint_log_proba(column)
            expected[known] += logs - of_column.class_log_prior_
        elif known:
            assume(False)
    np.testing.assert_allclose(mine.predict_joint_log_proba(rows), expected, rtol=1e-9, atol=1e-9)


@given(cases=CASES, alpha=st.sampled_from([0.0, 0.5, 1.0]))
def test_learnt_tables_are_counts(cases, alpha):
    """p(value | parent) is (n + alpha) / (N + alpha values), counted the plain way."""
    rows = [{"class": case[4], "code": case[1]} for case in cases]
    values = {"class": ("news", "spam"), "code": tuple(range(CODES))}
    network = BeliefNetwork.fit({"class": (), "code": ("class",)}, rows, alpha=alpha, values=values)
    for label, table in zip(values["class"], network.nodes["code"].table, strict=True):
        n = np.array([rows.count({"class": label, "code": code}) for code in range(CODES)])
        total = n.sum() + CODES * alpha
        expected = (n + alpha) / total if total else np.full(CODES, 1 / CODES)
        np.testing.assert_allclose(table, expected)
