"""The stores that must keep the contract alike."""

from __future__ import annotations

import pytest
from support.stores import RECIPE

from spamnb.store.lmdb.store import open_store
from spamnb.store.memory import MemoryStore


@pytest.fixture(params=["memory", "lmdb", "lmdb-small-map"])
def make_store(request, tmp_path):
    """A function that makes a store; the third kind must grow its map all the time."""
    made = []

    def make(recipe=RECIPE):
        if request.param == "memory":
            return MemoryStore(recipe)
        size = {"lmdb": 1 << 40, "lmdb-small-map": 1 << 20}[request.param]
        folder = tmp_path / f"model{len(made)}"
        made.append(open_store(folder, create=recipe, map_size=size))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store):
    return make_store()
