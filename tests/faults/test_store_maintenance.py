"""Rewriting, copying and restoring whole models, and what may go wrong with each."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.stores import NOON_2026, RECIPE, apply, event_for, learn, mail, picture
from support.waiting import LIMIT_S

from spamnb.errors import (
    RefusedError,
    StoreAccessError,
    StoreBusyError,
    StoreDamagedError,
    StoreMissingError,
)
from spamnb.store import maintenance
from spamnb.store.maintenance import backup, check, compact, restore, trim
from spamnb.store.model_store import open_store

HERE = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}


def some_mail(number):
    names = np.random.default_rng(number).integers(0, 1 << 40, 60).tolist()
    return mail(number, *range(number % 50), *names)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A closed model of some thousand features, some of them in the checkpoint."""
    model = tmp_path_factory.mktemp("made") / "model"
    with contextlib.closing(open_store(model, create=RECIPE)) as store:
        for first in range(1, 400, 20):
            store.transact(lambda view, first=first: _teach(view, first))
        store.transact(lambda view: view.fold(NOON_2026 + 1, 100))
    return model


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the model for one test."""
    return shutil.copytree(made, tmp_path / "model")


def _teach(view, first):
    for number in range(first, first + 20):
        apply(view, event_for(view, some_mail(number), number % 2))


def shown(folder):
    """All contents of a model."""
    with contextlib.closing(open_store(folder, readonly=True)) as store, store.read() as view:
        assert check(view) == []
        return picture(view) | {"live": view.live(some_mail(1).digest)}


def live_bytes(folder):
    with contextlib.closing(open_store(folder, readonly=True)) as store:
        stats = store.environment.stat().values()
        pages = ("branch_pages", "leaf_pages", "overflow_pages")
        return 4096 * sum(s[name] for s in stats for name in pages), stats


class TestCompact:
    def test_the_same_model_in_fewer_pages(self, folder):
        """A rewritten model has the same contents in a smaller file, and can be trained further."""
        before = shown(folder)
        was, is_ = compact(folder)
        assert is_ == (folder / "data.mdb").stat().st_size < was
        assert shown(folder) == before
        live, _ = live_bytes(folder)
        assert is_ <= 2 * live
        with contextlib.closing(open_store(folder)) as store:
            assert learn(store, some_mail(1000), 1) == before["totals"][2] + 1
        shown(folder)
        assert {p.name for p in folder.iterdir()} == {"data.mdb", "lock.mdb"}

    def test_a_feature_costs_under_thirty_bytes(self, tmp_path):
        """A row takes at most 30 bytes: 26 of data, the rest index and the ends of pages."""
        ids = np.unique(np.random.default_rng(3).integers(0, 1 << 64, 60_000, dtype=np.uint64))
        with contextlib.closing(open_store(tmp_path / "model", create=RECIPE)) as store:
            for part in np.array_split(np.random.default_rng(4).permutation(ids), 60):
                with store.write() as view:
                    _put(view, np.sort(part))
            grown = store.environment.stat()["features"]
        compact(tmp_path / "model")
        with contextlib.closing(open_store(tmp_path / "model")) as store:
            dense = store.environment.stat()["features"]
        pages = [s["leaf_pages"] + s["branch_pages"] + s["overflow_pages"] for s in (grown, dense)]
        assert pages[0] * 4096 / len(ids) <= 30
        assert pages[1] * 4096 / len(ids) <= 30

    def test_a_model_in_use_is_left_alone(self, folder):
        """A model that is open in this or another process raises StoreBusyError, unchanged."""
        data = (folder / "data.mdb").read_bytes()
        with contextlib.closing(open_store(folder)), pytest.raises(StoreBusyError):
            compact(folder)
        script = f"""
from spamnb.store.model_store import open_store
store = open_store({str(folder)!r})
print("open", flush=True)
input()
"""
        pipe = subprocess.PIPE
        other = subprocess.Popen(
            [sys.executable, "-c", script], env=HERE, stdin=pipe, stdout=pipe, text=True
        )
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreBusyError):
            compact(folder)
        other.communicate("\n")
        assert (folder / "data.mdb").read_bytes() == data
        compact(folder)

    def test_a_model_that_is_replaced_is_not_opened(self, folder, monkeypatch):
        """Another thread that opens the model during a rewrite gets StoreBusyError."""
        errors = []

        def meanwhile(old, new, recipe):
            thread = threading.Thread(target=_try_to_open, args=(folder, errors))
            thread.start()
            thread.join()
            rewrite(old, new, recipe)

        rewrite = maintenance._rewrite
        monkeypatch.setattr(maintenance, "_rewrite", meanwhile)
        compact(folder)
        assert errors == [StoreBusyError]
        shown(folder)

    def test_a_rewrite_that_fails_leaves_the_model(self, folder, monkeypatch):
        """After any failure before the rename, the old file is unchanged and no files are left."""
        before = shown(folder)

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(maintenance, "sync_file", fail)
        with pytest.raises(Exception, match="No space"):
            compact(folder)
        assert shown(folder) == before
        assert {p.name for p in folder.iterdir()} == {"data.mdb", "lock.mdb"}

    @pytest.mark.parametrize("events", [7, 8])
    def test_a_kill_after_the_rename_while_another_waits(self, folder, events):
        """A process that waited for the rewrite reads the newest state, or gets an error."""
        with contextlib.closing(open_store(folder)) as store:
            for number in range(1000, 1000 + events):
                learn(store, some_mail(number), 1)
        command = [sys.executable, __file__, str(folder)]
        pipes = {"stdout": subprocess.PIPE, "text": True, "env": HERE}
        with subprocess.Popen([*command, "compact"], **pipes) as killed:
            assert killed.stdout.readline() == "renamed\n"
            with subprocess.Popen([*command, "open"], **pipes) as waiting:
                blocked = re.compile(rf"-> POSIX .* {waiting.pid} ")
                while not blocked.search(Path("/proc/locks").read_text()):
                    assert waiting.poll() is None, waiting.stdout.read()
                killed.kill()
                assert waiting.communicate(timeout=LIMIT_S)[0] == "[]\n"
                assert waiting.returncode == 0
        shown(folder)

    def test_no_model(self, tmp_path):
        """Without a model, compact, trim and backup raise an error."""
        with pytest.raises(StoreMissingError):
            compact(tmp_path)
        with pytest.raises(StoreMissingError):
            backup(tmp_path, tmp_path / "copy")


def test_leftovers_of_a_kill_are_removed_by_the_next_run(folder):
    """Only old, unlocked temporary folders of this user are removed."""
    old = time.time() - 3600
    left, used, young, other = (folder / name for name in (
        ".spamnb-new-left", ".spamnb-new-used", ".spamnb-new-young", ".new-other"
    ))  # fmt: skip
    for place in (left, used, young, other):
        place.mkdir()
        (place / "data.mdb").write_bytes(b"half a copy")
        if place != young:
            os.utime(place, (old, old))
    (folder / ".spamnb-new-link").symlink_to(other)
    handle = os.open(used, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    compact(folder)
    os.close(handle)
    assert not left.exists()
    assert all((place / "data.mdb").exists() for place in (used, young, other))
    compact(folder)
    assert not used.exists()
    shown(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works on what others own")
@pytest.mark.parametrize("work", [compact, trim])
def test_what_is_replaced_keeps_its_owner(folder, work, monkeypatch):
    """The rewritten file keeps its owner, so that the daemon's user can open it."""
    monkeypatch.setattr(maintenance, "LEAST_FREE", 0)
    with contextlib.closing(open_store(folder)) as store:
        store.transact(_empty)
    data = folder / "data.mdb"
    os.chown(data, 65534, 65533)
    before = data.stat().st_ino
    assert work(folder)
    after = data.stat()
    assert after.st_ino != before
    assert (after.st_uid, after.st_gid) == (65534, 65533)


def _empty(view):
    for ids, records in view.features():
        records.n[:], records.w[:] = 0, 0
        view.scatter(ids, records)


def _put(view, ids):
    records = view.gather(ids)
    records.n[:] += 1
    view.scatter(ids, records)


def _try_to_open(folder, errors):
    try:
        open_store(folder)
    except StoreBusyError as error:
        errors.append(type(error))


class TestBackup:
    def test_a_copy_of_a_model_in_use(self, folder, tmp_path):
        """A backup is one private file with a consistent state, written while the model learns."""
        before = shown(folder)
        with contextlib.closing(open_store(folder)) as store:
            size = backup(folder, tmp_path / "copy.mdb")
            learn(store, some_mail(1000), 1)
        copy = tmp_path / "copy.mdb"
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert size == copy.stat().st_size
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
        restore(copy, tmp_path / "again")
        assert shown(tmp_path / "again") == before
        assert shown(folder) != before

    def test_an_older_copy_is_replaced_immediately(self, folder, tmp_path):
        """A second backup of the same name replaces the first."""
        for _ in range(2):
            backup(folder, tmp_path / "copy.mdb")
        restore(tmp_path / "copy.mdb", tmp_path / "again")

    def test_a_place_that_cannot_be_written(self, folder):
        """A target in a missing folder raises an error, and no file is left."""
        with pytest.raises((StoreAccessError, Exception), match="No such file"):
            backup(folder, folder / "nowhere" / "copy.mdb")


class TestRestore:
    def test_from_another_models_folder(self, folder, tmp_path):
        """A model's folder is accepted in place of a backup file."""
        restore(folder, tmp_path / "again")
        assert shown(tmp_path / "again") == shown(folder)

    def test_nothing_is_overwritten_unasked(self, folder, tmp_path):
        """An existing model is replaced only with `overwrite`."""
        backup(folder, tmp_path / "copy.mdb")
        before = shown(folder)
        with contextlib.closing(open_store(folder)) as store:
            learn(store, some_mail(1000), 1)
        with pytest.raises(RefusedError):
            restore(tmp_path / "copy.mdb", folder)
        assert shown(folder) != before
        restore(tmp_path / "copy.mdb", folder, overwrite=True)
        assert shown(folder) == before
        with contextlib.closing(open_store(folder)) as store:
            learn(store, some_mail(1001), 1)
        shown(folder)

    def test_a_model_that_appears_meanwhile(self, folder, tmp_path, monkeypatch):
        """The later of two restores to one folder is refused."""
        backup(folder, tmp_path / "copy.mdb")
        monkeypatch.setattr(
            maintenance, "prove", lambda *_: (tmp_path / "new" / "data.mdb").write_bytes(b"x")
        )
        with pytest.raises(RefusedError):
            restore(tmp_path / "copy.mdb", tmp_path / "new")

    def test_what_is_no_backup(self, folder, tmp_path):
        """A missing, empty, truncated or foreign file is refused."""
        copy = tmp_path / "copy.mdb"
        backup(folder, copy)
        whole = copy.read_bytes()
        with pytest.raises(StoreMissingError):
            restore(tmp_path / "nothing", tmp_path / "again")
        for bytes_ in (b"", b"garbage" * 5000, whole[: len(whole) // 2], whole[:9000]):
            copy.write_bytes(bytes_)
            with pytest.raises(StoreDamagedError):
                restore(copy, tmp_path / "again")
        assert not (tmp_path / "again" / "data.mdb").exists()

    def test_a_backup_that_contradicts_itself(self, folder, tmp_path):
        """A copy with sums that differ from its journal is refused."""
        with contextlib.closing(open_store(folder)) as store, store.write() as view:
            totals = view.totals()
            totals.messages += 1
            view.put_totals(totals)
        backup(folder, tmp_path / "copy.mdb")
        with pytest.raises(StoreDamagedError, match="messages"):
            restore(tmp_path / "copy.mdb", tmp_path / "again")


def _rewritten_but_not_done(folder):
    """A rewrite that stops forever after its rename."""

    def put(copy, target):
        put_in_place(copy, target)
        print("renamed", flush=True)
        threading.Event().wait()

    put_in_place, maintenance.put_in_place = maintenance.put_in_place, put
    compact(folder)


def _opened_and_taught(folder):
    with contextlib.closing(open_store(folder)) as store:
        learn(store, some_mail(2000), 1)
        with store.read() as view:
            print(check(view), flush=True)


if __name__ == "__main__":
    {"compact": _rewritten_but_not_done, "open": _opened_and_taught}[sys.argv[2]](Path(sys.argv[1]))
