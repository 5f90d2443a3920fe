"""One-dependence models against exact inference in their belief networks."""

import numpy as np
import pytest

from spamnb.bayes import (
    AveragedOneDependence,
    BeliefNetwork,
    CategoricalNB,
    Node,
    TreeAugmentedNB,
    m_estimate,
)
from spamnb.errors import UserError

COLORS = ("green", "red")
SIZES = (1, 2, 3)
SHAPES = ("round", "square")
COLUMNS = (COLORS, SIZES, SHAPES)


def flowers(seed, cases=120):
    """Cases of three columns of which the second depends on the first, and their classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, cases)
    color = (rng.random(cases) < 0.3 + 0.4 * y).astype(int)
    size = np.where(rng.random(cases) < 0.7, color + y, rng.integers(0, 3, cases))
    shape = (rng.random(cases) < 0.2 + 0.6 * (size == 1)).astype(int)
    X = [[COLORS[c], SIZES[s], SHAPES[h]] for c, s, h in zip(color, size, shape, strict=True)]
    return X, np.array(["a", "b"])[y].tolist()


def node(X, y, column, parent, alpha=1.0):
    """The node of a column given the class and a parent column, counted the plain way."""
    values = COLUMNS[column]
    over = [()] if parent is None else [(value,) for value in COLUMNS[parent]]
    tables = []
    for label in ("a", "b"):
        for values_given in over:
            of = [
                x
                for x, its in zip(X, y, strict=True)
                if its == label and (parent is None or x[parent] == values_given[0])
            ]
            n = [sum(x[column] == value for x in of) for value in values]
            tables.append(m_estimate(n, len(of), alpha * len(values), 1 / len(values)))
    shape = (2, len(values)) if parent is None else (2, len(over), len(values))
    names = ("class",) if parent is None else ("class", f"x{parent}")
    return Node(f"x{column}", values, np.array(tables).reshape(shape), names)


def network(X, y, parents):
    """The class, and each column under it and under its parent."""
    prior = [y.count("a") / len(y), y.count("b") / len(y)]
    nodes, left = [Node("class", ("a", "b"), prior)], dict(enumerate(parents))
    while left:
        ready = [j for j, parent in left.items() if parent not in left]
        nodes += [node(X, y, j, left.pop(j)) for j in ready]
    return BeliefNetwork(nodes)


def every_case():
    """Every combination of values."""
    return [[c, s, h] for c in COLORS for s in SIZES for h in SHAPES]


def asked(made, case, method):
    """P(class | case) and log P(case, class), by the network."""
    evidence = {f"x{j}": value for j, value in enumerate(case)}
    P = made.query("class", evidence, method)
    joint = [made.log_probability(evidence | {"class": label}, method) for label in ("a", "b")]
    return [P["a"], P["b"]], joint


@pytest.mark.parametrize("method", ["enumerate", "eliminate"])
@pytest.mark.parametrize("seed", range(3))
def test_naive_bayes_is_a_network_of_leaves(seed, method):
    """In a network without edges between columns, exact inference equals naive Bayes."""
    X, y = flowers(seed)
    made, model = network(X, y, (None, None, None)), CategoricalNB().fit(X, y)
    for case in every_case():
        P, joint = asked(made, case, method)
        np.testing.assert_allclose(model.predict_proba([case])[0], P, rtol=1e-9)
        np.testing.assert_allclose(model.predict_joint_log_proba([case])[0], joint, rtol=1e-9)


@pytest.mark.parametrize("method", ["enumerate", "eliminate"])
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_is_its_network(seed, method):
    """The tree-augmented model gives what exact inference in its tree gives."""
    X, y = flowers(seed)
    model = TreeAugmentedNB().fit(X, y)
    made = network(X, y, model.parents_)
    for case in every_case():
        P, joint = asked(made, case, method)
        np.testing.assert_allclose(model.predict_proba([case])[0], P, rtol=1e-9)
        np.testing.assert_allclose(model.predict_joint_log_proba([case])[0], joint, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_averaging_is_the_mean_of_its_networks(seed):
    """P(case, class) of AODE is the mean over one network for each column as the parent."""
    X, y = flowers(seed)
    model = AveragedOneDependence().fit(X, y)
    stars = [
        network(X, y, tuple(None if j == center else center for j in range(3)))
        for center in range(3)
    ]
    for case in every_case():
        joints = [np.exp(asked(star, case, "eliminate")[1]) for star in stars]
        np.testing.assert_allclose(
            np.exp(model.predict_joint_log_proba([case])[0]), np.mean(joints, axis=0), rtol=1e-9
        )


def test_the_tree_is_the_one_of_greatest_information():
    """Of all trees over four columns, the chosen tree has the most information."""
    rng = np.random.default_rng(5)
    base = rng.integers(0, 3, (300, 4))
    base[:, 2] = np.where(rng.random(300) < 0.8, base[:, 0], base[:, 2])
    base[:, 3] = np.where(rng.random(300) < 0.6, base[:, 2], base[:, 3])
    y = rng.integers(0, 2, 300)
    model = TreeAugmentedNB().fit(base, y)

    def information(i, j):
        total = 0.0
        for k in (0, 1):
            of = base[y == k]
            joint = np.zeros((3, 3))
            np.add.at(joint, (of[:, i], of[:, j]), 1)
            p = joint / len(of)
            apart = p.sum(axis=1, keepdims=True) * p.sum(axis=0)
            total += len(of) * (p[p > 0] * np.log(p[p > 0] / apart[p > 0])).sum()
        return total

    def height(parents):
        return sum(information(j, p) for j, p in enumerate(parents) if p is not None)

    others = [
        (None, a, b, c)
        for a in (0, 2, 3)
        for b in (0, 1, 3)
        for c in (0, 1, 2)
        if not ({a, b} == {1, 2} or (a == 2 and b == 1) or (a == 3 and c == 1))
        and not (b == 3 and c == 2)
        and (a, b, c) not in {(2, 3, 1), (3, 1, 2)}
    ]
    assert model.parents_[0] is None
    assert height(model.parents_) == pytest.approx(max(map(height, others)))


def test_columns_that_tell_equally_much_do_not_wait_for_rounding():
    """Between equally informative parents, forgotten cases do not influence the choice."""
    rows = [(["green", "red", "red"], 1.0), (["red", "green", "red"], 0.3)]
    cases = [(["red"] * 3, "spam", 7.0), *((x, "news", weight) for x, weight in rows)]
    cases.append((["green", "red", "green"], "news", 1.0))
    gone = ["green", "green", "red"], "news", 1.0
    straight, walked = TreeAugmentedNB(), TreeAugmentedNB()
    for case in cases:
        straight.learn(*case)
    for case in (*cases[::-1], gone):
        walked.learn(*case)
    walked.forget(*gone)
    assert walked.parents_ == straight.parents_ == (None, 0, 0)


def test_dependence_is_seen_where_naive_bayes_is_blind():
    """Exclusive or: one-dependence models learn it, naive Bayes cannot."""
    X = [[a, b] for a in (0, 1) for b in (0, 1)] * 20
    y = [a ^ b for a, b in X]
    assert CategoricalNB().fit(X, y).predict_proba([[0, 1]])[0, 1] == pytest.approx(0.5)
    for model in (TreeAugmentedNB(), AveragedOneDependence()):
        assert model.fit(X, y).predict_proba([[0, 1]])[0, 1] > 0.95


def test_what_is_missing_takes_no_part():
    """A column with a missing or unseen value is ignored."""
    X, y = flowers(6)
    narrow = [x[:2] for x in X]
    for made in (AveragedOneDependence, CategoricalNB):
        wide, less = made().fit(X, y), made().fit(narrow, y)
        for last in (None, "oval"):
            np.testing.assert_allclose(
                wide.predict_proba([["red", 2, last]]), less.predict_proba([["red", 2]]), rtol=1e-9
            )
    tree = TreeAugmentedNB().fit(X, y)
    assert tree.parents_ == (None, 0, 1)
    naive = CategoricalNB().fit(X, y)
    np.testing.assert_allclose(
        tree.predict_proba([["red", None, "round"]]),
        naive.predict_proba([["red", None, "round"]]),
        rtol=1e-9,
    )


def test_missing_values_can_be_learnt():
    """A missing value counts neither in the counts nor in the totals of its column."""
    model = CategoricalNB(alpha=0).fit([["red", 1], ["red", None], ["green", 2]], ["a", "a", "a"])
    np.testing.assert_allclose(model.p(0, "red"), [2 / 3])
    np.testing.assert_allclose(model.p(1, 1), [1 / 2])
    for gapped in (TreeAugmentedNB(), AveragedOneDependence()):
        gapped.fit([["red", 1], [None, 1], ["green", None]], ["a", "b", "b"])
        assert np.isfinite(gapped.predict_joint_log_proba([["red", 1]])).all()


def test_rare_values_are_no_parents():
    """With `min_count` above all counts, AODE equals naive Bayes."""
    X, y = flowers(7)
    np.testing.assert_allclose(
        AveragedOneDependence(min_count=1e9).fit(X, y).predict_proba(X),
        CategoricalNB().fit(X, y).predict_proba(X),
        rtol=1e-9,
    )


def test_supposing_the_marginal_share():
    """It is (n + m q) / (N + m), q the value's share of all cases: with m huge, classes agree."""
    X, y = [["red"], ["red"], ["green"], ["red"]], ["a", "a", "b", "b"]
    shared = CategoricalNB(m=4, value_prior="marginal").fit(X, y)
    np.testing.assert_allclose(shared.p(0, "red"), [(2 + 4 * 3 / 4) / 6, (1 + 4 * 3 / 4) / 6])
    np.testing.assert_allclose(shared.p(0, "blue"), [2 / 6, 2 / 6])
    smooth = CategoricalNB(m=4, unseen="smooth").fit(X, y)
    np.testing.assert_allclose(smooth.p(0, "blue"), [2 / 6, 2 / 6])


def test_a_random_network_both_ways():
    """Elimination gives what the definition gives, for every variable and any evidence."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        nodes, sizes = [], {}
        for i in range(6):
            name = f"n{i}"
            among = list(sizes)
            parents = tuple(rng.permutation(among)[: rng.integers(0, min(3, i) + 1)].tolist())
            sizes[name] = int(rng.integers(1, 4))
            shape = [sizes[parent] for parent in parents]
            table = rng.dirichlet(np.ones(sizes[name]), shape)
            nodes.append(Node(name, tuple(range(sizes[name])), table, parents))
        made = BeliefNetwork(nodes)
        evidence = {name: 0 for name in sizes if rng.random() < 0.4}
        for name in sizes:
            slow, fast = (made.query(name, evidence, m) for m in ("enumerate", "eliminate"))
            np.testing.assert_allclose(list(slow.values()), list(fast.values()), atol=1e-12)
        logs = [made.log_probability(evidence, m) for m in ("enumerate", "eliminate")]
        assert logs[0] == pytest.approx(logs[1], abs=1e-9)


def test_a_thousand_facts_do_not_underflow():
    """Log P(evidence) of 1,000 facts of 1e-5 each is finite, though P underflows."""
    nodes = [Node("class", ("a", "b"), [0.5, 0.5])]
    nodes += [
        Node(f"x{i}", (0, 1), [[1e-5, 1 - 1e-5], [1.001e-5, 1 - 1.001e-5]], ("class",))
        for i in range(1000)
    ]
    evidence = {f"x{i}": 0 for i in range(1000)}
    made = BeliefNetwork(nodes)
    for method in ("enumerate", "eliminate"):
        P = made.query("class", evidence, method)
        assert P["b"] / P["a"] == pytest.approx(1.001**1000, rel=1e-9)
        assert made.log_probability({**evidence, "class": "a"}, method) == pytest.approx(
            np.log(0.5) + 1000 * np.log(1e-5)
        )


@pytest.mark.parametrize(
    ("nodes", "error"),
    [
        ([Node("a", (0, 1), [0.5, 0.6])], "sum to 1"),
        ([Node("a", (0, 1), [-0.5, 1.5])], "sum to 1"),
        ([Node("a", (0, 1), [0.5, 0.3, 0.2])], "shape"),
        ([Node("a", (0, 1), [[0.5, 0.5]], ("b",))], "before a parent"),
        ([Node("a", (0,), [1.0]), Node("a", (0,), [1.0])], "defined twice"),
    ],
)
def test_a_network_is_a_distribution(nodes, error):
    """An invalid node is refused with its name."""
    with pytest.raises(UserError, match=f"a: .*{error}"):
        BeliefNetwork(nodes)


def test_impossible_questions_are_refused():
    """Unknown variables and values, and evidence of probability 0, are refused."""
    made = BeliefNetwork([Node("a", (0, 1), [0.0, 1.0]), Node("b", (0,), [[1.0], [1.0]], ("a",))])
    with pytest.raises(UserError, match="no variable c"):
        made.query("c")
    for evidence in ({"c": 0}, {"a": 2}):
        with pytest.raises(UserError, match="no such variable or value"):
            made.query("b", evidence)
    for method in ("enumerate", "eliminate"):
        with pytest.raises(UserError, match="impossible"):
            made.query("b", {"a": 0}, method)
        assert made.query("a", {"a": 1}, method) == {0: 0.0, 1: 1.0}
