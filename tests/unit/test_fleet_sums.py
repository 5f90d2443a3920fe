"""The sums by which hosts are compared: only hosts of a fleet have them."""

import random
from dataclasses import replace

import numpy as np
import pytest
from support.fleet import joined
from support.fleet_storm import letter

from spamnb.engine.filter import Filter, new_recipe
from spamnb.errors import StoreDamagedError
from spamnb.fleet.log import MemoryLog
from spamnb.model.events import Records
from spamnb.model.features import Words
from spamnb.store import maintenance as audit
from spamnb.store.model_store import open_store
from spamnb.store.table_views import POSITION_KEY, SUMS_KEY
from spamnb.store.values import FleetPosition, RowSums
from spamnb.store.weights import Weights

RECIPE = replace(new_recipe(), key=bytes(range(32)))
WEIGHTS = Weights(RECIPE.key, 2)
FEW = np.array([3, 1 << 40, (1 << 64) - 1], np.uint64)


def taught(store, model):
    """Teach a model some messages, and take some of it back."""
    for number in range(12):
        model.correct(letter(f"m{number % 9}", number % 2), ("ham", "spam")[number % 2])
    model.forget(letter("m3", 1))
    with store.environment.read() as tables:
        return {
            (name, bytes(key)): bytes(value)
            for name, table in tables.items()
            for key, value in table.scan()
        }


def test_a_fleet_adds_two_entries_to_a_store_and_changes_no_other(tmp_path, monkeypatch):
    """A store without a fleet has neither position nor sums, and computes none."""
    clock = iter(range(10**6))
    monkeypatch.setattr("spamnb.engine.filter.now_us", lambda: 10**15 + next(clock))
    shared = open_store(tmp_path / "shared", create=RECIPE)
    expected = taught(shared, joined(shared, MemoryLog(), "a"))
    for name in ("rows", "texts", "person"):
        monkeypatch.setattr(Weights, name, None)
    clock = iter(range(10**6))
    alone = open_store(tmp_path / "alone", create=RECIPE)
    found = taught(alone, Filter(alone))
    assert expected.keys() - found.keys() == {("meta", POSITION_KEY), ("meta", SUMS_KEY)}
    assert found == {key: expected[key] for key in found}


def test_a_store_without_sums_gets_them_with_its_next_event(tmp_path):
    """A host that an earlier version has made computes them once; leaving removes them."""
    store = open_store(tmp_path, create=RECIPE)
    model = joined(store, MemoryLog(), "a")
    taught(store, model)
    with store.environment.write() as tables:
        tables["meta"].delete(SUMS_KEY)
    with store.read() as view:
        assert view.sums() is None
    model.correct(letter("y", 1), "spam")
    with store.read() as view:
        assert view.sums().rows
        assert audit.check_sums(view) == []
    with store.write() as view:
        view.put_position(None)
    with store.read() as view:
        assert view.sums() is None
    with store.write() as view:
        view.put_position(FleetPosition("new", 0, "", {}))
    with store.read() as view:
        assert audit.check_sums(view) == []


def test_each_number_and_each_byte_of_a_text_changes_the_sum():
    """Neither a value nor the feature that has it can be exchanged unseen."""
    draw = random.Random(1)
    n = np.array([[1, 2], [3, 4], [5, 6]], np.uint32)
    w = np.array([[-1, 1], [7, -7], [0, 2**31 - 1]], np.int32)
    rows = Records(n, w, np.array([1, 2, 3], np.uint16))
    seen = {WEIGHTS.rows(FEW, rows) % 2**64}
    for column in rows:
        for place in np.ndindex(column.shape):
            old = column[place]
            column[place] = old ^ (1 << draw.randrange(15))
            seen.add(WEIGHTS.rows(FEW, rows) % 2**64)
            column[place] = old
    other = Records(n[[1, 0, 2]], w[[1, 0, 2]], rows.day[[1, 0, 2]])
    seen.add(WEIGHTS.rows(FEW, other) % 2**64)
    assert len(seen) == 1 + 15 + 1
    sizes, places = np.array([2, 0, 3], np.uint8), np.array([1, 2, 4], np.uint8)
    texts = {b"abcde", b"bacde", b"acbde", b"abced", b"abcdf"}
    sums = {int(WEIGHTS.texts(Words(FEW, places, sizes, text)).sum()) for text in texts}
    sums.add(int(WEIGHTS.texts(Words(FEW, places[::-1], sizes, b"abcde")).sum()))
    sums.add(int(WEIGHTS.texts(Words(FEW, sizes, sizes, b"abcde")).sum()))
    assert len(sums) == 7


def test_damaged_sums_are_refused():
    """Sums of another length are not read as numbers."""
    assert RowSums.decode(RowSums(1, 2, 3, 4).encode()) == RowSums(1, 2, 3, 4)
    with pytest.raises(StoreDamagedError):
        RowSums.decode(b"short")
