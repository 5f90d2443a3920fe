"""One map, one environment, one process at a time: growing, sharing, forking, waiting."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import numpy as np
import pytest
from support.stores import RECIPE, apply, bulk_event, ids_of, learn, mail

from spamnb.errors import BugError, StoreBusyError, StoreFullError
from spamnb.model.events import Records
from spamnb.store import model_store as lmdb_environment
from spamnb.store import model_store as surroundings
from spamnb.store.maintenance import backup, check
from spamnb.store.model_store import (
    Environment,
    MapGrownError,
    RetryDeadline,
    TransactionGate,
    open_store,
)

HERE = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}
MANY = ids_of(*range(100_000))


@pytest.fixture
def small(tmp_path):
    """A store with a map of 1 MiB, which is soon full."""
    with contextlib.closing(
        open_store(tmp_path / "model", create=RECIPE, map_size=1 << 20)
    ) as store:
        yield store


def gathered(store, name):
    """How many messages have a feature."""
    with store.read() as view:
        return view.gather(ids_of(name)).n.sum()


def put_many(view):
    """About three megabytes of texts."""
    ones = np.ones((len(MANY), 2), np.int32)
    view.scatter(MANY, Records(ones.astype(np.uint32), ones, np.ones(len(MANY), np.uint16)))


def test_the_map_grows_by_the_pages_of_the_file(small):
    """Where pages are larger, fewer of them fill the map, and the limit is whole pages."""
    environment = small.environment
    assert environment.page_bytes == environment.stat()["features"]["psize"]
    environment.page_bytes = (1 << 20) // environment.pages() + 1
    with environment.write():
        assert environment.map_size == 2 << 20
    assert environment.limit_bytes % environment.page_bytes == 0


def last_seq(store):
    with store.read() as view:
        return view.totals().last_seq


def elsewhere(folder, body):
    """Run some lines in another process, with its own `store`."""
    script = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}
from test_store_grow import *
store = open_store({str(folder)!r})
{body}
store.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=HERE, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.strip()


class TestGrowing:
    def test_a_transaction_that_fills_the_map_runs_again(self, small):
        """`transact` grows the map as often as necessary, and the result exists once."""
        runs = []

        def bring(view):
            runs.append(1)
            ones = np.ones((len(MANY), 2))
            apply(view, bulk_event(view, MANY, ones, ones, messages=(1, 1)))

        small.transact(bring)
        assert len(runs) > 2
        with small.read() as view:
            assert view.totals().known == len(MANY)
            assert view.totals().last_seq == 1

    def test_a_write_block_says_that_it_must_run_again(self, small):
        """A `write` block that had to grow the map raises a transient error."""
        before = small.environment.map_size
        with pytest.raises(MapGrownError) as raised, small.write() as view:
            put_many(view)
        assert raised.value.transient
        assert small.environment.map_size > before
        with small.read() as view:
            assert list(view.features()) == []

    def test_the_limit_is_never_passed(self, tmp_path):
        """At `limit_bytes` StoreFullError is raised, with a smaller file and an intact store."""
        limit = 1_500_000
        store = open_store(tmp_path / "model", create=RECIPE, map_size=1 << 20, limit_bytes=limit)
        with pytest.raises(StoreFullError, match="limit"):
            learn_for_ever(store)
        assert (tmp_path / "model" / "data.mdb").stat().st_size <= limit
        with store.read() as view:
            assert view.totals().last_seq > 20
            assert check(view) == []
        store.close()

    def test_growing_waits_for_ones_own_readers(self, small):
        """A snapshot in another thread stays consistent; the map grows after it is closed."""
        learn(small, mail(1, *range(40)), 1)
        inside, leave, seen = threading.Event(), threading.Event(), []

        def reader():
            with small.read() as view:
                inside.set()
                leave.wait()
                seen.append(view.totals().last_seq)

        thread = threading.Thread(target=reader)
        thread.start()
        inside.wait()
        threading.Timer(0.2, leave.set).start()
        small.transact(put_many)
        thread.join()
        assert seen == [1]

    def test_ones_own_snapshot_is_not_waited_for(self, small):
        """A thread with an open snapshot gets an error if its write must grow the map."""
        with small.read(), pytest.raises(StoreBusyError):
            small.transact(put_many)

    def test_a_snapshot_that_never_ends(self):
        """Waiting for a reader is bounded."""
        gate = TransactionGate()
        inside, leave = threading.Event(), threading.Event()

        def reader():
            with gate.inside():
                inside.set()
                leave.wait()

        thread = threading.Thread(target=reader)
        thread.start()
        inside.wait()
        with pytest.raises(StoreBusyError), gate.closed(wait_s=0.01):
            pass
        leave.set()
        thread.join()
        with gate.closed(wait_s=0.01):
            pass

    def test_growth_is_bounded(self, small, monkeypatch):
        """If growing the map never helps, an error is raised."""
        monkeypatch.setattr(Environment, "_grow", lambda _: None)

        def fill(_):
            raise lmdb.MapFullError("x")

        with pytest.raises(StoreFullError, match="still too small"):
            small.transact(fill)

    def test_rows_are_found_in_a_map_that_has_moved(self, small, tmp_path):
        """Addresses of the old map are not used when another process has grown it."""
        learn(small, mail(1, 1), 0)
        assert gathered(small, 1) == 1
        environment = small.environment
        before = environment.map_size
        elsewhere(tmp_path / "model", "store.transact(put_many)")
        assert gathered(small, 1) == 2
        assert environment.map_size > before

    @pytest.mark.parametrize("use", ["read", "write", "copy", "stat", "open", "create"])
    def test_another_process_grows_the_map(self, small, tmp_path, use):
        """Readers, writers, copies and new stores adopt a map that another process has grown."""
        learn(small, mail(1, 1), 0)
        elsewhere(tmp_path / "model", "store.transact(put_many)")
        environment = small.environment
        before = environment.map_size
        if use == "read":
            assert last_seq(small) == 1
        elif use == "write":
            assert learn(small, mail(2, 1), 0) == 2
        elif use == "copy":
            assert backup(tmp_path / "model", tmp_path / "copy.mdb") > before
        elif use == "stat":
            assert environment.stat()["features"]["overflow_pages"] * 4096 > before
        else:
            del environment._dbs["features"]
            environment.open_tables(create=use == "create")
            assert set(environment._dbs) == set(environment.config.names)
        assert environment.map_size > before


def learn_for_ever(store):
    for number in range(1, 1_000_000):
        learn(store, mail(number, *range(number * 50, number * 50 + 300)), 0)


def _is_told(store, folder=None):
    try:
        last_seq(store or open_store(folder))
    except BugError as error:
        return "fork" in str(error)
    return False


class TestSharing:
    def test_two_stores_of_one_process(self, tmp_path):
        """Two stores share an environment; closing one leaves the other intact."""
        one = open_store(tmp_path / "model", create=RECIPE)
        (tmp_path / "link").symlink_to(tmp_path / "model")
        two = open_store(tmp_path / "link")
        learn(one, mail(1, 1), 0)
        one.close()
        assert last_seq(two) == 1
        assert elsewhere(tmp_path / "model", "print(learn(store, mail(2, 2), 1))") == "2"
        assert last_seq(two) == 2
        two.close()
        two.close()
        with pytest.raises(BugError), two.read():
            pass

    def test_a_child_gets_an_error_if_it_uses_what_it_inherited(self, tmp_path):
        """After a fork the child gets a clear error, not the parent's map and locks."""
        store = open_store(tmp_path / "model", create=RECIPE)
        learn(store, mail(1, 1), 0)
        with store.read() as view:
            child = os.fork()
            if child == 0:
                os._exit(_is_told(store) + 2 * _is_told(None, tmp_path / "model"))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
            assert view.totals().last_seq == 1
        assert learn(store, mail(3, 3), 1) == 2
        store.close()

    def test_a_child_forked_in_the_midst_of_writing(self, tmp_path):
        """Locks held by another thread during a fork do not block the child."""
        store = open_store(tmp_path / "model", create=RECIPE)
        inside, leave = threading.Event(), threading.Event()

        def hold(view):
            inside.set()
            leave.wait()
            view.put_totals(view.totals())

        thread = threading.Thread(target=store.transact, args=(hold,))
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            other = open_store(tmp_path / "other", create=RECIPE)
            os._exit(_is_told(store) + 2 * learn(other, mail(1, 1), 0))
        leave.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        thread.join()
        store.close()

    def test_a_child_that_closes(self, tmp_path):
        """A child that only closes the inherited store has no effect on the parent."""
        store = open_store(tmp_path / "model", create=RECIPE)
        child = os.fork()
        if child == 0:
            store.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert learn(store, mail(1, 1), 0) == 1
        store.close()


class TestReaders:
    def test_slots_of_the_dead_are_cleared(self, tmp_path, monkeypatch):
        """The slot of a process that died while reading is cleared."""
        monkeypatch.setattr(lmdb_environment, "_MAX_READERS", 2)
        store = open_store(tmp_path / "model", create=RECIPE)
        body = "import os\nwith store.read(), store.read():\n    os._exit(0)"
        elsewhere(tmp_path / "model", body)
        with store.read(), store.read() as view:
            assert view.totals().last_seq == 0
        store.close()

    def test_slots_of_the_living_are_waited_for(self, tmp_path, monkeypatch):
        """If all slots are in use, a reader waits for a limited time."""
        monkeypatch.setattr(lmdb_environment, "_MAX_READERS", 1)
        store = open_store(tmp_path / "model", create=RECIPE)
        inside, leave = threading.Event(), threading.Event()

        def reader():
            with store.read():
                inside.set()
                leave.wait()

        thread = threading.Thread(target=reader)
        thread.start()
        inside.wait()
        monkeypatch.setattr(surroundings, "WAIT_S", 0.02)
        monkeypatch.setattr(RetryDeadline.__init__, "__defaults__", (0.02,))
        with pytest.raises(StoreBusyError), store.read():
            pass
        monkeypatch.setattr(RetryDeadline.__init__, "__defaults__", (30.0,))
        threading.Timer(0.1, leave.set).start()
        with store.read() as view:
            assert view.totals().last_seq == 0
        thread.join()
        store.close()
