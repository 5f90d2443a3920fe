"""Keys of word buckets: short, distinct, and in the order of their ids; and their splits."""

from functools import partial
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.stores import RECIPE, word

from spamnb.model.events import Records
from spamnb.store import vocabulary
from spamnb.store.model_store import open_store
from spamnb.store.values import packed
from spamnb.store.vocabulary import BucketLayout, distinct, keys_of

IDS = st.lists(st.integers(0, (1 << 64) - 1), min_size=1)
LAYOUTS = st.integers(0, 62).map(BucketLayout)


@given(LAYOUTS, IDS)
def test_keys_stand_in_the_order_of_the_first_ids_and_lead_back_to_them(layout, ids):
    starts = distinct(np.sort(layout.starts(np.array(ids, np.uint64))))
    keys = keys_of(starts)
    assert all(one < other for one, other in pairwise(keys))
    assert [int.from_bytes(key.ljust(8, b"\0")) for key in keys] == starts.tolist()


@given(LAYOUTS)
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


def test_words_stay_when_buckets_are_split(tmp_path, monkeypatch):
    """Buckets have 20 to 40 words on average, and all words are found after each split."""
    monkeypatch.setattr(vocabulary, "SLAB_BUCKETS", 3)
    ids = np.random.default_rng(1).integers(0, 1 << 64, 5000, dtype=np.uint64)
    store = open_store(tmp_path / "model", create=RECIPE)
    for part in np.array_split(ids, 3):
        store.transact(partial(_put, ids=np.sort(part)))
    with store.read() as view:
        assert [one.id for one in view.all_words()] == np.sort(ids).tolist()
        assert view.words(np.sort(ids)) == [word(i) for i in np.sort(ids).tolist()]
        assert view._vocabulary.layout == (7, 5000)
    store.close()


def _put(view, ids):
    ones = np.ones((len(ids), 2), np.uint32)
    view.scatter(ids, Records(ones, ones.astype(np.int32), np.ones(len(ids), np.uint16)))
    view.put_words(packed(word(i) for i in ids.tolist()))
