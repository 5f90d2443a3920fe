"""Laws of learnt networks: the tables depend on the cases alone, bit for bit, with gaps too."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.bayes import LearntNetwork
from spamnb.errors import RefusedError

STRUCTURE = {"wet": ("rain", "season"), "rain": ("season",), "season": ()}
VALUES = {"season": ("winter", "summer"), "rain": (0, 1), "wet": (0, 1)}
CASES = st.tuples(
    st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in VALUES.items()}),
    st.sampled_from([1.0, 2.0, 0.5, 0.3]),
    st.booleans(),
)


def network_of(cases):
    """A network that has learnt these cases in one call."""
    network = LearntNetwork(STRUCTURE, values=VALUES)
    if cases:
        network.partial_fit([case for case, _, _ in cases], [weight for _, weight, _ in cases])
    return network


def assert_same(a, b):
    """Counts and tables are the same to the last bit."""
    assert a._cases == b._cases
    if not a._cases.empty:
        for name, node in a.nodes.items():
            np.testing.assert_array_equal(node.table, b.nodes[name].table)


@given(data=st.data())
def test_forgetting_restores_every_table(data):
    """What was learnt and forgotten in any order leaves what was learnt and not forgotten."""
    cases = data.draw(st.lists(CASES, min_size=1, max_size=8))
    walked = LearntNetwork(STRUCTURE, values=VALUES)
    for case, weight, _ in data.draw(st.permutations(cases)):
        walked.learn(case, weight)
    for case, weight, dropped in data.draw(st.permutations(cases)):
        if dropped:
            walked.forget(case, weight)
    assert_same(walked, network_of([case for case in cases if not case[2]]))


@given(first=st.lists(CASES, max_size=6), second=st.lists(CASES, max_size=6))
def test_merging_is_learning_together(first, second):
    """Two networks merged, either way round, are one that learnt all."""
    together = network_of(first + second)
    assert_same(network_of(first).merge(network_of(second)), together)
    assert_same(network_of(second).merge(network_of(first)), together)


@given(cases=st.lists(CASES, min_size=1, max_size=6), other=CASES)
def test_what_was_never_learnt_is_not_forgotten(cases, other):
    """Forgetting more than was learnt is refused, and nothing has changed."""
    network = network_of(cases)
    with pytest.raises(RefusedError, match="more would be forgotten"):
        network.forget(other[0], weight=100)
    assert_same(network, network_of(cases))


@given(cases=st.lists(CASES, min_size=1, max_size=6))
def test_a_network_can_be_kept(cases):
    """A pickled network has the same tables, and is independent."""
    network = network_of(cases)
    copied = pickle.loads(pickle.dumps(network))
    assert_same(network, copied)
    copied.learn({"wet": 1}, weight=9)
    assert_same(network, network_of(cases))
