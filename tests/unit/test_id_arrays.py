"""The order of ids, and where a line changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.model import events
from spamnb.model.events import changes, order_of


def stable(ids):
    return ids.argsort(kind="stable").tolist()


@pytest.mark.parametrize("count", [0, 1, events._FEW - 1, events._FEW, 50_000])
def test_hashes_are_ordered_and_equal_ones_stay_as_they_came(count):
    ids = np.random.default_rng(count).integers(0, 1 << 64, max(count // 5, 1), np.uint64)
    ids = ids[np.arange(count) * 7 % len(ids)]
    assert order_of(ids).tolist() == stable(ids)


@pytest.mark.parametrize("shift", [0, 16, 48])
def test_ids_that_differ_only_in_some_bits_are_ordered_too(shift):
    """Ids with equal upper bits are sorted too."""
    numbers = np.random.default_rng(1).integers(0, 1 << 16, 20_000).astype(np.uint64)
    ids = numbers << np.uint64(shift)
    assert order_of(ids).tolist() == stable(ids)


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_any_few(numbers):
    ids = np.array(numbers, np.uint64)
    assert order_of(ids).tolist() == stable(ids)


@given(st.lists(st.integers(0, 3)))
def test_a_value_is_new_where_another_stood_before(line):
    expected = [i == 0 or line[i] != line[i - 1] for i in range(len(line))]
    assert changes(np.array(line, np.int8)).tolist() == expected
