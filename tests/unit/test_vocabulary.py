"""Pending words are found immediately, joined into fewer values, and moved to the buckets."""

import numpy as np
import pytest
from support.stores import RECIPE, ids_of, word

from spamnb.store import vocabulary
from spamnb.store.maintenance import compact
from spamnb.store.model_store import open_store
from spamnb.store.values import packed

JOINED, MOST = 4, 30


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A model that joins four values, and keeps at most thirty words pending."""
    monkeypatch.setattr(vocabulary, "PENDING_JOINED", JOINED)
    monkeypatch.setattr(vocabulary, "MAX_PENDING_WORDS", MOST)
    model = open_store(tmp_path / "model", create=RECIPE)
    yield model
    model.close()


def put(store, ids):
    with store.write() as view:
        view.put_words(packed(word(i) for i in ids.tolist()))


def lying(store):
    """The number of words in each pending value."""
    with store.environment.read() as tables:
        return [
            len(vocabulary._read([value]).heads) for _, value in tables["words"].scan(b"\xff" * 8)
        ]


def found(store, ids):
    with store.read() as view:
        assert [one.id for one in view.all_words()] == np.sort(ids).tolist()
        return view.words(np.sort(ids))


def test_pending_words_are_joined_and_moved_to_their_buckets(store):
    """Every word is found after every change, pending or not, and few values are pending."""
    ids = np.random.default_rng(1).permutation(ids_of(*range(240)))
    waiting = []
    for end in range(3, len(ids) + 1, 3):
        put(store, np.sort(ids[end - 3 : end]))
        waiting.append(lying(store))
        assert found(store, ids[:end]) == [word(i) for i in np.sort(ids[:end]).tolist()]
    assert waiting[:5] == [[3], [3, 3], [3, 3, 3], [12], [12, 3]]
    assert waiting[10:13] == [[12, 12, 3, 3, 3], [], [3]], "thirty-six are too many"
    assert max(map(len, waiting)) == 5


def test_large_lessons_do_not_make_the_pile_large(store, monkeypatch):
    """The bound counts words, not messages: a sender chooses how many words a message has."""
    monkeypatch.setattr(vocabulary, "MAX_PENDING_BATCH", 50)
    ids = ids_of(*range(1000))
    for start in range(0, 1000, 50):
        put(store, ids[start : start + 50])
        assert sum(lying(store)) < MOST + JOINED * 50
    assert found(store, ids) == [word(i) for i in ids.tolist()]


def test_what_waits_survives_a_rewrite_and_leaves_with_its_feature(store, tmp_path):
    ids = ids_of(*range(21))
    for start in range(0, 21, 3):
        put(store, ids[start : start + 3])
    assert lying(store) == [12, 3, 3, 3]
    store.close()
    compact(tmp_path / "model")
    again = open_store(tmp_path / "model")
    assert found(again, ids) == [word(i) for i in ids.tolist()]
    with again.write() as view:
        view._vocabulary.remove(ids[5:9])
    left = np.delete(ids, slice(5, 9))
    assert found(again, left) == [word(i) for i in left.tolist()]
    again.close()
