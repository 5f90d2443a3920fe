"""Keys of hash buckets: short, distinct, and in the order of their ids."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spamnb.store.rows.hash_buckets import BucketLayout, distinct, keys_of

LEVELS = st.integers(0, 62)
IDS = st.lists(st.integers(0, (1 << 64) - 1), min_size=1)


@st.composite
def layouts(draw):
    level = draw(LEVELS)
    return BucketLayout(level, draw(st.integers(0, (1 << level) - 1)))


@given(layouts(), IDS)
def test_keys_stand_in_the_order_of_the_first_ids_and_lead_back_to_them(layout, ids):
    starts = distinct(np.sort(layout.starts(np.array(ids, np.uint64))))
    keys = keys_of(starts)
    assert all(one < other for one, other in pairwise(keys))
    assert [int.from_bytes(key.ljust(8, b"\0")) for key in keys] == starts.tolist()


@given(layouts())
def test_no_key_is_empty_or_beyond_the_words_that_wait(layout):
    """LMDB takes no empty key; the keys of pending words begin with eight bytes 255."""
    keys = keys_of(distinct(layout.starts(np.array([0, (1 << 64) - 1], np.uint64))))
    assert keys[0] == b"\0"
    assert keys[-1] < b"\xff" * 8


def test_keys_are_as_long_as_a_thousand_buckets_need():
    """With 1,024 buckets a key has one byte and a part of the second."""
    keys = keys_of(BucketLayout(10).starts(np.arange(1024, dtype=np.uint64) << np.uint64(54)))
    assert len(set(keys)) == 1024
    assert max(map(len, keys)) == 2
