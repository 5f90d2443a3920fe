"""The page of hot rows: which rows are added, which are removed, and damaged bytes."""

import numpy as np
import pytest
from support.stores import RECIPE, apply, bulk_event, ids_of

from spamnb.errors import StoreDamagedError
from spamnb.store.check import check
from spamnb.store.lmdb.store import open_store
from spamnb.store.rows import hot_rows


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A model with a page for ten rows."""
    monkeypatch.setattr(hot_rows, "MAX_HOT_ROWS", 10)
    model = open_store(tmp_path / "model", create=RECIPE)
    yield model
    model.close()


def bring(store, names, size):
    ids = ids_of(*names)
    counts = np.full((len(ids), 2), size)
    store.transact(lambda view: apply(view, bulk_event(view, ids, counts, counts)))


def lying(store):
    with store.read() as view:
        assert check(view) == []
        held = view._features._page
        return held.ids.tolist(), held.min_messages


def test_common_features_are_promoted_and_rare_ones_stay_in_their_buckets(store):
    """A feature of eight or more messages is promoted; a removed one leaves the page."""
    bring(store, range(5), 1)
    assert lying(store) == ([], 8)
    bring(store, range(3), 3)
    assert lying(store) == (ids_of(0, 1, 2).tolist(), 8)
    bring(store, [1], -4)
    assert lying(store) == (ids_of(0, 2).tolist(), 8)


def test_a_full_page_demotes_rarer_rows(store):
    """Rows with fewer messages than twice the bound go back to their buckets, unchanged."""
    bring(store, range(9), 4)
    bring(store, range(20, 23), 9)
    assert lying(store) == (ids_of(20, 21, 22).tolist(), 16)
    with store.read() as view:
        assert view.gather(ids_of(*range(9))).n.tolist() == [[4, 4]] * 9
        assert view.totals().known == 12


def test_an_incomplete_page_is_damage(store):
    """Inconsistent bytes raise StoreDamagedError."""
    bring(store, range(5), 9)
    with store.environment.write() as tables:
        whole = bytes(tables["meta"].get(hot_rows.HOT_ROWS_KEY))
        tables["meta"].put(hot_rows.HOT_ROWS_KEY, whole[:-1])
    with store.read() as view, pytest.raises(StoreDamagedError, match="hot rows"):
        view.gather(ids_of(1))
