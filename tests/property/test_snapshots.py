"""Snapshots of any age show the rows of their own time, with addresses from any other snapshot."""

from __future__ import annotations

import random
import threading
from contextlib import closing, suppress

import numpy as np
import pytest
from support.stores import NOON_2026, RECIPE, apply, bulk_event, event_for, ids_of, mail, sound

from spamnb.store import rows
from spamnb.store import rows as segments
from spamnb.store.model_store import open_store
from spamnb.store.rows import RowCache
from spamnb.store.table_views import Caches, ReadView, Tables

EVERYTHING = ids_of(*range(800))


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A model with a log of 128 rows and segments of some hundred."""
    monkeypatch.setattr(rows, "LEAST_BITS", 7)
    monkeypatch.setattr(rows, "MOST_BITS", 7)
    monkeypatch.setattr(segments, "ROW_BITS", 5)
    with closing(open_store(tmp_path / "model", create=RECIPE)) as model:
        yield model


class Snapshot:
    """An open snapshot, and its rows as read in order, without addresses.

    `Environment.read` is not used: one thread must close its blocks in the reverse order.
    """

    def __init__(self, store):
        self.transaction = store.environment._env.begin(buffers=True)
        self.tables = Tables(**store.environment._tables(self.transaction))
        self.rows = {number: [0, 0] for number in EVERYTHING.tolist()}
        for ids, records in self.view(RowCache()).features():
            self.rows |= zip(ids.tolist(), records.n.tolist(), strict=True)

    def view(self, cache):
        return ReadView(self.tables, RECIPE, Caches(rows=cache))

    def check(self, cache):
        """Look all rows up with what another process or thread keeps."""
        assert self.view(cache).gather(EVERYTHING).n.tolist() == [*self.rows.values()]


def some_mail(number, rng):
    return mail(number, *rng.sample(range(800), 12))


def learn_one(view, number, rng):
    apply(view, event_for(view, some_mail(number, rng), number % 2))


def learn_many(view, number, rng):
    ids = ids_of(*rng.sample(range(800), 300))
    ones = np.ones((300, 2))
    apply(view, bulk_event(view, ids, ones, ones))


def fail_when_written(view, number, rng):
    """Change all segments, and abandon the transaction."""
    learn_many(view, number, rng)
    view.finish()
    raise ZeroDivisionError


def fold(view, number, rng):
    view.fold(NOON_2026 + 1, 3)


WRITES = (learn_one, learn_one, learn_one, learn_many, fail_when_written, fold)


@pytest.mark.parametrize("seed", range(5))
def test_addresses_follow_each_snapshot(store, seed):
    """Whatever snapshots were read before: older, newer, of transactions that wrote or failed."""
    rng = random.Random(seed)
    caches = [RowCache() for _ in range(3)]
    snapshots = [Snapshot(store)]
    for number in range(1, 100):
        store.environment.mapped["caches"] = Caches(rows=rng.choice(caches))
        with suppress(ZeroDivisionError):
            change = rng.choice(WRITES)
            store.transact(lambda view, change=change, at=number: change(view, at, rng))
        if rng.random() < 0.6:
            snapshots.append(Snapshot(store))
        while len(snapshots) > rng.randint(1, 5):
            snapshots.pop(rng.randrange(len(snapshots))).transaction.abort()
        for _ in range(3):
            rng.choice(snapshots).check(rng.choice(caches))
    for snapshot in snapshots:
        snapshot.transaction.abort()
    assert sound(store)


def read_two_ages(store, ended, errors):
    """Read two snapshots of different age by turns until the writer has ended."""
    try:
        while not ended.is_set():
            with store.read() as old:
                old.gather(EVERYTHING)
                with store.read() as new:
                    for view in (old, new, old, new):
                        tokens = view.gather(EVERYTHING).n.sum(axis=0, dtype=np.int64)
                        assert np.array_equal(tokens, view.totals().tokens)
    except BaseException as error:  # noqa: BLE001 - the test raises it
        errors.append(error)


def test_threads_share_what_is_kept(store):
    """Three threads with snapshots of different age, beside one that learns: no lost row."""
    ended, errors, rng = threading.Event(), [], random.Random(1)
    readers = [
        threading.Thread(target=read_two_ages, args=(store, ended, errors)) for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 80):
            change = learn_many if number % 10 == 0 else learn_one
            store.transact(lambda view, change=change, at=number: change(view, at, rng))
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert errors == []
    assert sound(store)


class Disturbed(RowCache):
    """What is kept, where another thread reads an older snapshot before each use."""

    older: ReadView | None = None

    def _follow(self, view):
        if self.older is not None:
            super()._follow(self.older._features)
        super()._follow(view)


def test_a_writer_among_readers_of_older_snapshots(store):
    """A transaction that must read the log again does so without what it has logged itself."""
    rng = random.Random(2)
    store.transact(lambda view: learn_many(view, 0, rng))
    older = Snapshot(store)
    cache = Disturbed()
    store.environment.mapped["caches"] = Caches(rows=cache)
    cache.older = older.view(RowCache())
    for number in range(1, 60):
        store.transact(lambda view, at=number: learn_one(view, at, rng))
        older.check(cache)
    older.transaction.abort()
    cache.older = None
    assert sound(store)


def test_the_checkpoint_is_read_from_pages_that_are_not_written_yet(store, monkeypatch):
    """Several batches of events are folded in one transaction, each into the rows of the last."""
    rng = random.Random(3)
    for number in range(1, 40):
        store.transact(lambda view, at=number: learn_one(view, at, rng))
    monkeypatch.setattr("spamnb.store.table_views._FOLD_BATCH", 2)
    assert store.transact(lambda view: view.fold(NOON_2026 + 1, 30)) == 30
    assert sound(store)


@pytest.mark.parametrize("closed", [False, True])
def test_a_view_is_refused_after_its_transaction(store, closed):
    """Its pages may be used again, or no longer be mapped."""
    store.transact(lambda view: learn_one(view, 1, random.Random(4)))
    with store.read() as view:
        view.gather(EVERYTHING)
    if closed:
        store.close()
    with pytest.raises(Exception, match="closed"):
        view.gather(EVERYTHING)
