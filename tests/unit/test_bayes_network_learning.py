"""Networks that learn their tables, with and without gaps, and the search for a structure."""

from itertools import combinations, product
from math import lgamma

import numpy as np
import pytest

from spamnb.bayes import (
    BeliefNetwork,
    CategoricalNB,
    LearntNetwork,
    Node,
    search_structure,
    structure_score,
)
from spamnb.errors import RefusedError, SpamnbError, UserError

CHAIN = {"a": (), "b": ("a",), "c": ("a", "b")}


def rows_of(seed, cases=80):
    """Cases of a chain of three variables."""
    rng = np.random.default_rng(seed)
    a = rng.random(cases) < 0.4
    b = rng.random(cases) < 0.2 + 0.5 * a
    c = np.where(rng.random(cases) < 0.8, 1 * a + b, rng.integers(0, 3, cases))
    return [[bool(x), bool(y), int(z)] for x, y, z in zip(a, b, c, strict=True)]


def gapped(rows, seed, share=0.2):
    """The same cases, with gaps at random."""
    rng = np.random.default_rng(seed)
    return [[None if rng.random() < share else value for value in row] for row in rows]


def log_likelihood(network, rows, names):
    """Log probability of the cases, gaps summed out."""
    return sum(
        network.log_probability(
            {name: v for name, v in zip(names, row, strict=True) if v is not None}
        )
        for row in rows
    )


@pytest.mark.parametrize("alpha", [0.0, 1.0, 0.3])
def test_tables_are_smoothed_counts(alpha):
    """(n + alpha) / (N + alpha values), counted the plain way; uniform without any count."""
    rows = [row for row in rows_of(1) if row[:2] != [False, True]]
    network = BeliefNetwork.fit(CHAIN, rows, alpha=alpha)
    assert network.n_iter_ == 1
    for i, a in enumerate((False, True)):
        for j, b in enumerate((False, True)):
            n = np.array([rows.count([a, b, c]) for c in (0, 1, 2)])
            table = network.nodes["c"].table[i][j]
            total = n.sum() + 3 * alpha
            np.testing.assert_allclose(table, (n + alpha) / total if total else [1 / 3] * 3)
            np.testing.assert_array_equal(network.counts_["c"][i][j], n)


def test_a_star_is_naive_bayes():
    """With the class as the only parent the tables are those of CategoricalNB."""
    rows = rows_of(2)
    network = BeliefNetwork.fit({"a": ("c",), "b": ("c",), "c": ()}, rows)
    naive = CategoricalNB().fit([row[:2] for row in rows], [row[2] for row in rows])
    for name, logs in zip("ab", naive.feature_log_prob_, strict=True):
        np.testing.assert_allclose(network.nodes[name].table, np.exp(logs))
    unsmoothed = BeliefNetwork.fit({"a": ("c",), "b": ("c",), "c": ()}, rows, alpha=0)
    plain = CategoricalNB(alpha=0).fit([row[:2] for row in rows], [row[2] for row in rows])
    found = unsmoothed.query("c", {"a": True, "b": True})
    np.testing.assert_allclose(list(found.values()), plain.predict_proba([[True, True]])[0])


def test_gaps_in_a_child_leave_its_other_cases():
    """Without smoothing a child's gaps are ignored, and its parent counts all cases."""
    rows = rows_of(3)
    holed = [[a, None if i % 3 == 0 else b] for i, (a, b, _) in enumerate(rows)]
    network = BeliefNetwork.fit({"a": (), "b": ("a",)}, holed, alpha=0)
    full = BeliefNetwork.fit(
        {"a": (), "b": ("a",)}, [row for row in holed if row[1] is not None], alpha=0
    )
    np.testing.assert_allclose(network.nodes["b"].table, full.nodes["b"].table, rtol=1e-6)
    every = BeliefNetwork.fit({"a": ()}, [row[:1] for row in rows], alpha=0)
    np.testing.assert_allclose(network.nodes["a"].table, every.nodes["a"].table)


@pytest.mark.parametrize("seed", range(3))
def test_expected_counts_are_those_of_exact_inference(seed):
    """At the end each case counts for a value by its probability given what the case has."""
    rows = gapped(rows_of(seed), seed)
    network = BeliefNetwork.fit(CHAIN, rows)
    assert network.n_iter_ > 1
    expected = np.zeros((2, 3))
    for row in rows:
        evidence = {n: v for n, v in zip("abc", row, strict=True) if v is not None}
        whole = network.log_probability(evidence)
        for i, j in product(range(2), range(3)):
            asked = {"b": (False, True)[i], "c": j}
            if all(evidence.get(name, value) == value for name, value in asked.items()):
                expected[i, j] += np.exp(network.log_probability(evidence | asked) - whole)
    np.testing.assert_allclose(network.counts_["c"].sum(axis=0), expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_no_tables_near_are_more_probable(seed):
    """Without smoothing the likelihood has a maximum: changed tables have a lower one."""
    rows, rng = gapped(rows_of(seed), seed), np.random.default_rng(seed)
    network = BeliefNetwork.fit(CHAIN, rows, alpha=0)
    best = log_likelihood(network, rows, "abc")
    for size in (1e-1, 1e-2, 1e-3):
        nodes = []
        for node in network.nodes.values():
            table = np.asarray(node.table)
            other = rng.dirichlet(np.ones(table.shape[-1]), table.shape[:-1])
            nodes.append(
                Node(node.name, node.values, (1 - size) * table + size * other, node.parents)
            )
        assert log_likelihood(BeliefNetwork(nodes), rows, "abc") < best


def test_a_hidden_class_is_found():
    """From the exact distribution of a mixture, EM finds tables that give it again."""
    truth = BeliefNetwork(
        [
            Node("group", (0, 1), [0.3, 0.7]),
            *(
                Node(name, (0, 1), [[p, 1 - p], [1 - q, q]], ("group",))
                for name, p, q in (("x", 0.9, 0.8), ("y", 0.8, 0.9), ("z", 0.7, 0.85))
            ),
        ]
    )
    cases = [dict(zip("xyz", values, strict=True)) for values in product((0, 1), repeat=3)]
    shares = np.exp([truth.log_probability(case) for case in cases])
    structure = {"group": (), "x": ("group",), "y": ("group",), "z": ("group",)}
    network = BeliefNetwork.fit(
        structure, cases, sample_weight=1000 * shares, alpha=0, values={"group": (0, 1)}
    )
    found = np.exp([network.log_probability(case) for case in cases])
    np.testing.assert_allclose(found, shares, atol=1e-6)
    np.testing.assert_allclose(sorted(network.nodes["group"].table), [0.3, 0.7], atol=1e-3)


def test_seeds_start_elsewhere_and_repeat():
    """The same seed gives the same tables, whatever the order of the cases."""
    rows = [row[:2] for row in rows_of(5)]
    structure = {"a": ("h",), "b": ("h",), "h": ()}
    hidden = [[*row, None] for row in rows]
    tables = [
        LearntNetwork(structure, values={"h": "xy"}, seed=seed).partial_fit(order).nodes["a"].table
        for seed, order in ((1, hidden), (1, hidden[::-1]))
    ]
    np.testing.assert_array_equal(*tables)


def test_mappings_and_rows_are_the_same_cases():
    """A row has the order of the structure; what a mapping does not name is missing."""
    rows = gapped(rows_of(6), 6)
    named = [{n: v for n, v in zip("abc", row, strict=True) if v is not None} for row in rows]
    tables = [BeliefNetwork.fit(CHAIN, X).nodes["c"].table for X in (rows, named)]
    np.testing.assert_array_equal(*tables)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda n: n.partial_fit([]), "there are no cases"),
        (lambda n: n.learn([True, False]), "a case has 2, but the variables are a, b, c"),
        (lambda n: n.learn({"d": 1}), "a case has d, but the variables are a, b, c"),
        (lambda n: n.learn([True, True, 7]), "c has the value 7, which is not declared"),
        (lambda n: n.learn([True, [True], 1]), "b has a value that is no key"),
        (lambda n: n.learn([True, True, 1], weight=0), "weights must be positive"),
        (lambda n: n.merge(LearntNetwork({"a": ()})), "cannot be merged"),
        (lambda n: n.query("c", {"a": "no"}), "no such variable or value"),
        (lambda n: n.query("d"), "no variable d"),
    ],
)
def test_bad_cases_are_one_clear_error(change, error):
    """Each fault is named, and the network is unchanged."""
    network = LearntNetwork(CHAIN, values={"c": (0, 1, 2)}).partial_fit(rows_of(7))
    before = network.nodes["c"].table
    with pytest.raises(UserError, match=error):
        change(network)
    np.testing.assert_array_equal(network.nodes["c"].table, before)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: LearntNetwork({"a": ("b",), "b": ("a",)}), "has a cycle: [ab] -> [ab] -> [ab]"),
        (lambda: LearntNetwork({"a": ("b",)}), "a has the parent b, which is no variable"),
        (lambda: LearntNetwork({"a": "b"}), "must be a list of names"),
        (lambda: LearntNetwork({}), "no variable"),
        (lambda: LearntNetwork({"a": ()}, alpha=-1), "alpha must be finite"),
        (lambda: LearntNetwork({"a": ()}).query("a"), "nothing has been learnt yet"),
        (lambda: LearntNetwork({"a": ()}).learn([None]).query("a"), "no case has a value of a"),
        (
            lambda: (
                LearntNetwork({str(i): () for i in range(21)}, values={"0": (0, 1)})
                .partial_fit([[0] * 21, [1] * 21, [None] * 21])
                .query("0")
            ),
            "can be filled in 2097154 ways",
        ),
    ],
)
def test_networks_that_mean_nothing_are_refused(make, error):
    """A structure is a graph without cycles, and needs a value for each variable."""
    with pytest.raises(SpamnbError, match=error):
        make()


def test_more_is_not_forgotten_than_was_learnt():
    """A case that was not learnt is refused, and nothing has changed."""
    network = LearntNetwork({"a": ()}).learn(["x"]).learn(["y"])
    with pytest.raises(RefusedError, match="more would be forgotten"):
        network.forget(["z"])
    assert network.query("a") == {"x": 0.5, "y": 0.5}


def every_structure(names):
    """All graphs without cycles over some variables."""
    choices = [
        [some for many in range(len(names)) for some in combinations(set(names) - {name}, many)]
        for name in names
    ]
    for parents in product(*choices):
        structure = dict(zip(names, parents, strict=True))
        try:
            LearntNetwork(structure)
        except UserError:
            continue
        yield structure


@pytest.mark.parametrize("score", ["bic", "k2", "bdeu"])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_no_structure_has_a_higher_score(width, score):
    """The search finds the maximum over all graphs (543 over four variables)."""
    rng = np.random.default_rng(width)
    X = rng.integers(0, 2, (60, width))
    X[:, -1] = np.where(rng.random(60) < 0.7, X[:, 0] ^ X[:, -2], X[:, -1])
    names = [f"x{j}" for j in range(width)]
    scores = [structure_score(X, structure, score) for structure in every_structure(names)]
    assert len(scores) == {2: 3, 3: 25, 4: 543}[width]
    best = structure_score(X, search_structure(X, score), score)
    assert best == pytest.approx(max(scores), rel=1e-9)


def test_k2_is_the_probability_of_the_cases_one_after_the_other():
    """Each case is predicted from those before, with one pseudo-case a value."""
    rows = rows_of(8, 40)
    declared = {"a": (False, True), "b": (False, True), "c": (0, 1, 2)}
    network, total = LearntNetwork(CHAIN, values=declared), 0.0
    for i, row in enumerate(rows):
        case = dict(zip("abc", row, strict=True))
        total += network.log_probability(case) if i else -np.log(2 * 2 * 3)
        network.learn(row)
    frame = {name: [row[j] for row in rows] for j, name in enumerate("abc")}
    assert structure_score(frame, CHAIN, "k2") == pytest.approx(total)


@pytest.mark.parametrize("score", ["bic", "bdeu"])
def test_equivalent_structures_have_equal_scores(score):
    """An arrow between two variables has the same score either way; the earlier is the parent."""
    X = [[0, 0], [0, 0], [0, 1], [1, 1], [1, 1], [1, 1]] * 5
    there = structure_score(X, {"x0": (), "x1": ("x0",)}, score)
    assert there == pytest.approx(structure_score(X, {"x0": ("x1",), "x1": ()}, score))
    assert search_structure(X, score) == {"x0": (), "x1": ("x0",)}


def test_bdeu_by_hand():
    """Two values seen 3 and 1 times: G(1)/G(5) * G(3.5)/G(.5) * G(1.5)/G(.5)."""
    by_hand = lgamma(1) - lgamma(5) + lgamma(3.5) + lgamma(1.5) - 2 * lgamma(0.5)
    assert structure_score([[0], [0], [0], [1]], {"x0": ()}, "bdeu") == pytest.approx(by_hand)


def test_the_arrows_of_a_network_are_found():
    """Two causes of one effect: from 2,000 cases the arrows are those that made them."""
    rng = np.random.default_rng(9)
    smokes, family = rng.random((2, 2000)) < [[0.4], [0.3]]
    cancer = rng.random(2000) < 0.1 + 0.5 * smokes + 0.3 * family
    xray = rng.random(2000) < 0.1 + 0.8 * cancer
    frame = {"smokes": smokes, "family": family, "cancer": cancer, "xray": xray}
    assert search_structure(frame) == {
        "smokes": (),
        "family": (),
        "cancer": ("smokes", "family"),
        "xray": ("cancer",),
    }
    learnt = BeliefNetwork.fit(search_structure(frame), frame)
    assert learnt.query("cancer", {"xray": True})[True] > 0.7
    assert search_structure(frame, max_parents=0) == dict.fromkeys(frame, ())


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: search_structure([[1, None]]), "column 1 has a missing value"),
        (lambda: search_structure([[1] * 13]), "13 variables: the search is for 1 to 12"),
        (lambda: search_structure([[1, 2]], "aic"), "unknown score 'aic'"),
        (lambda: search_structure([[1, 2]], names=["a"]), "1 names for 2 columns"),
        (lambda: search_structure([]), "there are no cases"),
        (lambda: search_structure([[[1], 2]]), "column 0 has a value that is no key"),
        (lambda: structure_score([[1, 2]], {"x0": ()}), "the structure has x0, the cases x0, x1"),
    ],
)
def test_a_search_that_means_nothing_is_refused(make, error):
    """The search needs complete cases of few variables."""
    with pytest.raises(UserError, match=error):
        make()


def test_a_variable_that_the_cases_do_not_determine_is_no_error():
    """The algorithm ends after its last step, and says that the tables still moved."""
    structure = {"wet": ("rain", "season"), "rain": ("season",), "season": ()}
    values = {"season": ("winter", "summer"), "rain": (0, 1), "wet": (0, 1)}
    network = LearntNetwork(structure, values=values)
    network.learn({"rain": 0, "wet": 0}, 4.0)
    assert not network.converged_
    assert network.counts_["season"].sum() == pytest.approx(4)
    network.learn({"season": "winter", "rain": 0, "wet": 0}, 4.0)
    assert network.converged_
