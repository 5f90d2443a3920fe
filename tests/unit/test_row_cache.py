"""The row cache returns what the table holds, and rarely reads a row twice."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.store.rows import row_cache
from spamnb.store.rows.codec import row_type
from spamnb.store.rows.row_cache import RowCache

ROW = row_type(2)
SLOTS = 16


class World:
    """Rows that contain their version; records which ids are read."""

    def __init__(self, version=1):
        self.version = version
        self.looked = []

    def look(self, ids):
        self.looked += ids.tolist()
        rows = np.zeros(len(ids), ROW)
        rows["n"] = (ids + np.uint64(1))[:, None] * np.uint64(100) + np.uint64(self.version)
        return rows

    def ask(self, kept, *numbers):
        ids = np.array(sorted(set(numbers)), np.uint64)
        self.looked = []
        rows = kept.find(self.version, ids, self.look)
        found, self.looked = self.looked, []
        assert (rows == self.look(ids)).all()
        return found


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Room for sixteen rows."""
    monkeypatch.setattr(row_cache, "SLOTS", SLOTS)
    monkeypatch.setattr(row_cache, "MAX_REQUEST", 50)


def test_what_was_found_is_not_looked_for_again():
    world, kept = World(), RowCache(ROW)
    assert world.ask(kept, 0, 1, 5) == [0, 1, 5]
    assert world.ask(kept, 0, 1, 4, 9) == [4, 9]
    assert world.ask(kept, 0, 1, 4, 5, 9) == []


def test_another_version_is_looked_at_anew():
    world, kept = World(), RowCache(ROW)
    world.ask(kept, 1, 2)
    world.version = 2
    assert world.ask(kept, 1, 2) == [1, 2]
    assert world.ask(kept, 1, 2) == []


def test_two_versions_are_read_beside_each_other():
    """A long snapshot and newer ones each get the rows of their own version."""
    new, old, kept = World(7), World(3), RowCache(ROW)
    new.ask(kept, 1, 2)
    assert old.ask(kept, 1, 3) == [1, 3]
    assert new.ask(kept, 1, 2, 3) == [1, 3]


def test_what_was_found_while_the_store_moved_on_is_of_its_own_version():
    kept, old, new = RowCache(ROW), World(1), World(2)
    ids = np.array([3], np.uint64)

    def slowly(wanted):
        new.ask(kept, 3)
        return old.look(wanted)

    assert (kept.find(1, ids, slowly) == old.look(ids)).all()
    assert new.ask(kept, 3) == [3]


def test_the_last_one_in_a_slot_stays():
    world, kept = World(), RowCache(ROW)
    world.ask(kept, 3, 4)
    world.ask(kept, 3 + SLOTS, 3 + 2 * SLOTS)
    assert world.ask(kept, 3 + 2 * SLOTS, 4) == []
    assert world.ask(kept, 3) == [3]


def test_a_large_request_leaves_the_others_their_rows():
    world, kept = World(), RowCache(ROW)
    world.ask(kept, 1)
    assert len(world.ask(kept, *range(1, 60))) == 59
    assert world.ask(kept, 1) == []


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 60), max_size=40)), max_size=30)
)
def test_it_always_says_what_a_look_would_say(steps):
    kept, version = RowCache(ROW), 5
    for moved, numbers in steps:
        version += moved
        World(version).ask(kept, *numbers)
        World(version - 1).ask(kept, *numbers)


def test_threads_share_it():
    """Each thread sees the rows of its own snapshot."""
    kept = RowCache(ROW)

    def many(seed):
        dice = np.random.default_rng(seed)
        for step in range(300):
            World(1 + step // 10).ask(kept, *dice.integers(0, 60, 12).tolist())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
