"""Segments of feature rows, and the hash table of logged ones, against a dict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import StoreDamagedError
from spamnb.store import rows as logged_rows
from spamnb.store.codec import RowSet, row_type
from spamnb.store.rows import (
    Places,
    RowTable,
    Segments,
    bits_for,
    cuts,
    encode,
    key_of,
    merged,
)

ROW = row_type(2)
LAST = (1 << 64) - 1
HASHES = st.integers(0, LAST)
CROWDED = st.integers(0, 40) | st.integers(LAST - 40, LAST)
"""ids that are no hashes: all in one cell, among them the least and the greatest"""
SETS = st.dictionaries(HASHES | CROWDED, st.integers(0, 99), max_size=60)


class DictTable:
    """A table in memory, as far as segments use it."""

    def __init__(self):
        self.values = {}

    def get(self, key):
        return self.values.get(key)

    def put(self, key, value):
        self.values[key] = value

    def scan(self, *, down):
        return ((key, self.values[key]) for key in sorted(self.values, reverse=down))


def rows_of(counts):
    """Rows with these counts of ham by id; 0 is an empty row."""
    rows = np.zeros(len(counts), ROW)
    rows["n"][:, 0] = [counts[key] for key in sorted(counts)]
    return RowSet(np.array(sorted(counts), np.uint64), rows)


def counts_of(rows):
    return dict(zip(rows.ids.tolist(), rows.rows["n"][:, 0].tolist(), strict=True))


def found(table, counts):
    """What a look-up finds of these ids and their neighbours."""
    ids = sorted({min(key + step, LAST) for key in counts for step in (0, 1)} | {0, LAST})
    out = np.zeros(len(ids), ROW)
    Places(table).fill(np.array(ids, np.uint64), out, np.arange(len(ids)))
    return {key: n for key, n in zip(ids, out["n"][:, 0].tolist(), strict=True) if n}


@given(st.lists(st.tuples(SETS, st.integers(0, 3)), max_size=5))
def test_segments_hold_what_a_dict_holds(changes):
    """Through replaced, removed and split rows, in order and by id."""
    table, model = Segments(DictTable(), ROW), {}
    Segments.create(table.table)
    for counts, bits in changes:
        table.merge(rows_of(counts), table.numbers, bits)
        table = Segments(table.table, ROW)
        model = {key: n for key, n in (model | counts).items() if n}
        parts = list(table.all())
        assert [key for part in parts for key in counts_of(part)] == sorted(model)
        assert {k: n for part in parts for k, n in counts_of(part).items()} == model
        assert found(table, model | counts) == model
        assert Places(table).count == len(model)


@given(st.lists(SETS, max_size=5), HASHES, HASHES)
def test_a_row_table_holds_what_a_dict_holds(changes, first, last):
    """Also rows of one hash, and the rows between two ids."""
    table, model = RowTable(300, ROW), {}
    for counts in changes:
        assert table.put(rows_of(counts))
        model |= counts
        ids = rows_of(model | {0: 0, LAST: 0}).ids
        out = np.zeros(len(ids), ROW)
        others = table.fill(ids, out)
        assert set(ids[others].tolist()) == set(ids.tolist()) - set(model)
        want = [model.get(key, 0) for key in ids.tolist()]
        assert out["n"][:, 0].tolist() == want
        some = {key: n for key, n in model.items() if first <= key <= last}
        assert counts_of(table.between(first, last)) == some
        assert counts_of(table.between(0, LAST)) == model


def test_a_full_row_table_takes_no_more():
    """Rows beyond its room change nothing; rows that it has are replaced."""
    table = RowTable(3, ROW)
    assert table.put(rows_of({1: 1, 2: 2, 3: 3}))
    assert not table.put(rows_of({1: 9, 4: 4}))
    assert table.put(rows_of({1: 5}))
    assert counts_of(table.between(0, LAST)) == {1: 5, 2: 2, 3: 3}


@given(SETS, SETS, st.booleans())
def test_merged_rows_are_those_of_a_dict(old, fresh, removing):
    """The fresh row of an id in both; none that is marked as gone."""
    rows = rows_of(fresh)
    gone = rows.rows["n"][:, 0] == 0 if removing else None
    want = old | fresh
    if removing:
        want = {key: n for key, n in want.items() if key not in fresh or n}
    assert counts_of(merged(rows_of(old), rows, gone)) == dict(sorted(want.items()))


def test_only_segments_with_changes_are_written():
    """A change of one id writes one of eight segments."""
    table = Segments(DictTable(), ROW)
    Segments.create(table.table)
    table.merge(rows_of({number << 61: 1 for number in range(8)}), table.numbers, 3)
    before = dict(table.table.values)
    table.merge(rows_of({5 << 61: 2}), table.numbers)
    changed = [key for key, value in table.table.values.items() if value is not before[key]]
    assert changed == [key_of(5)]


def test_the_number_of_segments_is_limited():
    """Segments of 2,048 to 4,096 rows, until there are 256."""
    sizes = [1 << bits_for(rows) for rows in (0, 4095, 4096, 8192, 1 << 19, 1 << 30)]
    assert sizes == [1, 1, 2, 4, 256, 256]


@given(st.lists(HASHES | CROWDED, unique=True), st.integers(0, 8))
def test_cuts_divide_ids_by_their_top_bits(ids, bits):
    ids = np.array(sorted(ids), np.uint64)
    bounds = cuts(ids, bits)
    numbers = [int(key) >> 64 - bits for key in ids.tolist()]
    for number in range(1 << bits):
        assert numbers[bounds[number] : bounds[number + 1]] == [number] * numbers.count(number)


@pytest.mark.parametrize("change", [{"END": 0}, {"COUNT": 1}, {"COUNT": 1 << 31}])
def test_a_segment_that_contradicts_its_head_is_damage(change):
    """A wrong number of rows, or no greatest number behind the ids, raises StoreDamagedError."""
    table = Segments(DictTable(), ROW)
    value = bytearray(encode(rows_of({number << 50: 1 for number in range(2000)}), 0))
    if "END" in change:
        value[8 + 8 * 2000] = 0
    else:
        value[:4] = change["COUNT"].to_bytes(4, "little")
    table.table.put(key_of(0), bytes(value))
    with pytest.raises(StoreDamagedError):
        Places(table)
    with pytest.raises(StoreDamagedError):
        table.read(0)


def test_a_segment_has_pages_of_its_own():
    """LMDB may move a value of up to half a page, and pages have up to 64 KiB."""
    assert len(encode(RowSet.none(ROW), 0)) == logged_rows.LEAST_BYTES > (1 << 15)


def test_rows_of_many_labels():
    """Rows may be longer than an empty segment."""
    for labels in (256, 5000):
        dtype = row_type(labels)
        table = Segments(DictTable(), dtype)
        table.table.put(key_of(0), encode(RowSet.none(dtype), 0))
        assert Places(table).count == 0
        table.merge(RowSet(np.array([7], np.uint64), np.ones(1, dtype)), table.numbers)
        out = np.zeros(2, dtype)
        Places(table).fill(np.array([7, 8], np.uint64), out, np.arange(2))
        assert out["n"].sum(axis=1).tolist() == [labels, 0]
