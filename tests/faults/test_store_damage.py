"""Damaged segments of rows: an error or other rows, never a read of other memory.

Reads outside a segment end the process here: unreadable pages are before and behind it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import random
from functools import partial

import numpy as np
import pytest
from support.forks import fork_child, output_of
from support.stores import RECIPE, apply, bulk_event, ids_of, learn, mail

from spamnb.errors import SpamnbError, StoreDamagedError
from spamnb.store.codec import RowSet, row_type
from spamnb.store.maintenance import restore
from spamnb.store.model_store import open_store
from spamnb.store.rows import Places, Segments, encode, key_of

PAGE = mmap.PAGESIZE
ROOM = 64 * PAGE
ROW = row_type(2)
PROT_NONE = 0
STEPS = np.arange(2, dtype=np.uint64)
"""the ids that are looked up: those of rows, and the next ones"""


class GuardedTable:
    """One segment in memory of its own, at its start or its end."""

    def __init__(self):
        self.memory = mmap.mmap(-1, ROOM + 2 * PAGE)
        self.view = memoryview(self.memory)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for guard in (start, start + PAGE + ROOM):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), PAGE, PROT_NONE) == 0
        self.value = self.view[PAGE:PAGE]

    def keep(self, value, *, at_end):
        start = PAGE + (ROOM - len(value)) // 8 * 8 if at_end else PAGE
        self.value = self.view[start : start + len(value)]
        self.value[:] = value

    def get(self, _):
        return self.value

    def scan(self, **_):
        yield key_of(0), b""


def some_rows(count, rng):
    """Rows of random ids, and, if there are many, of the least and the greatest."""
    ids = {rng.getrandbits(64) for _ in range(count)} | ({0, 2**64 - 1} if count > 1 else set())
    return RowSet(np.array(sorted(ids), np.uint64), np.ones(len(ids), ROW))


def overwrite(value, rng):
    """Overwrite a number of the head, the index or anything, or a piece of the value."""
    start = rng.choice([0, 4, 8 * rng.randrange(len(value) // 8), rng.randrange(len(value))])
    size = rng.choice([1, 4, 8, 512, 4096])
    byte = rng.choice([0, 255, rng.randrange(256)])
    some = bytes((byte,)) * size if rng.random() < 0.5 else rng.randbytes(size)
    value[start : start + size] = some[: len(value) - start]


def cut(value, rng):
    return value[: rng.choice([rng.randrange(9), rng.randrange(len(value))])]


def read_damaged(rounds, seed, write_line):
    """Look up rows of segments that were damaged before, and again after, they were opened."""
    rng, table, refused = random.Random(seed), GuardedTable(), 0
    originals = [some_rows(count, rng) for count in (0, 1, 300, 3000)]
    values = [encode(rows, 0) for rows in originals]
    ids = np.unique(np.concatenate([rows.ids + step for rows in originals for step in STEPS]))
    out = np.zeros(len(ids), ROW)
    for number in range(rounds):
        value = bytearray(rng.choice(values))
        overwrite(value, rng)
        table.keep(cut(value, rng) if rng.random() < 0.1 else value, at_end=number % 2)
        try:
            places = Places(Segments(table, ROW))
            places.fill(ids, out, np.arange(len(ids)))
            for _ in range(3):
                overwrite(table.value, rng)
                places.fill(ids, out, np.arange(len(ids)))
            Segments(table, ROW).read(0)
        except StoreDamagedError:
            refused += 1
    write_line(refused)


def test_no_read_outside_a_damaged_segment():
    """Whatever its bytes are, and if they change after its address was taken."""
    ((refused,),) = output_of(*fork_child(partial(read_damaged, 1000, 1)))
    assert 0 < int(refused) < 1000


def test_segments_in_the_place_of_others():
    """A look-up reports values that lie under each other's keys."""
    table = GuardedTable()
    for low in (True, False):
        ids = np.array([1, 2] if low else [2**63, 2**64 - 1], np.uint64)
        table.keep(encode(RowSet(ids, np.ones(2, ROW)), 1), at_end=False)
        segments = Segments(table, ROW)
        segments.bits = 1
        assert segments.value(not low)[1] == 2
        with pytest.raises(StoreDamagedError, match="another id range"):
            segments.value(low)


def test_a_value_between_words():
    """LMDB aligns values that have pages of their own; others are damage."""
    table = GuardedTable()
    value = encode(RowSet.none(ROW), 0)
    table.keep(b"1234" + value, at_end=False)
    table.value = table.value[4:]
    with pytest.raises(StoreDamagedError, match="pages of its own"):
        Places(Segments(table, ROW))


def model_with(folder, names):
    """A model in which one event adds these features; return how many messages have each of 9."""
    with contextlib.closing(open_store(folder, create=RECIPE)) as store:
        ones = np.ones((len(names), 2))
        store.transact(lambda view: apply(view, bulk_event(view, ids_of(*names), ones, ones)))
        return counts(store)


def counts(store):
    with store.read() as view:
        return view.gather(ids_of(*range(9))).n[:, 0].tolist()


def test_a_model_that_was_replaced_by_one_of_the_same_age(tmp_path):
    """The rows of a restored model are its own, also if as many rows were logged in the other."""
    first = model_with(tmp_path / "a", range(5))
    second = model_with(tmp_path / "b", range(4, 9))
    with contextlib.closing(open_store(tmp_path / "a")) as store:
        assert counts(store) == first
        with pytest.raises(SpamnbError, match="open in this process"):
            restore(tmp_path / "b", tmp_path / "a", overwrite=True)
        assert counts(store) == first
    restore(tmp_path / "b", tmp_path / "a", overwrite=True)
    with contextlib.closing(open_store(tmp_path / "a")) as store:
        assert counts(store) == second != first


def test_a_file_that_is_renamed_over_an_open_one(tmp_path):
    """A model that is open stays what it was when another program replaces its file."""
    first = model_with(tmp_path / "a", range(5))
    second = model_with(tmp_path / "b", range(4, 9))
    with contextlib.closing(open_store(tmp_path / "a")) as store:
        assert counts(store) == first
        (tmp_path / "b" / "data.mdb").rename(tmp_path / "a" / "data.mdb")
        assert counts(store) == first
    with contextlib.closing(open_store(tmp_path / "a")) as store:
        assert counts(store) == second


def spoil_pages(data, rng):
    """Zero or overwrite a few pages or bytes behind the meta pages."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(2 * PAGE, len(data))
        if rng.random() < 0.5:
            start -= start % PAGE
            data[start : start + PAGE] = bytes(PAGE) if rng.random() < 0.5 else rng.randbytes(PAGE)
        else:
            data[start] ^= rng.randrange(1, 256)


def read_spoilt(folder, sound, rounds, seed, write_line):
    """Look all features up in files of which some pages are damaged; name what is read."""
    faulthandler.disable()
    rng = random.Random(seed)
    for _ in range(rounds):
        data = bytearray(sound)
        spoil_pages(data, rng)
        (folder / "data.mdb").write_bytes(data)
        write_line("LMDB")
        with (
            contextlib.suppress(SpamnbError),
            contextlib.closing(open_store(folder)) as store,
            store.read() as view,
        ):
            view._features.find(ids_of())  # takes all addresses
            write_line("rows")
            view.gather(ids_of(*range(3000)))
            write_line("LMDB")


def test_damaged_pages_are_reported_or_hold_other_rows(tmp_path):
    """LMDB may end a process that reads them; looking rows up by their address does not."""
    folder = tmp_path / "model"
    with contextlib.closing(open_store(folder, create=RECIPE)) as store:
        ids, ones = ids_of(*range(5000)), np.ones((5000, 2))
        store.transact(lambda view: apply(view, bulk_event(view, ids, ones, ones)))
        learn(store, mail(1, *range(50)), 0)
    sound = (folder / "data.mdb").read_bytes()
    for seed in range(10):
        lines = output_of(*fork_child(partial(read_spoilt, folder, sound, 20, seed)))
        assert lines[-1] == ["LMDB"]
