"""Opening, sharing and growing a store where something is wrong: each fault has its own error."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import RECIPE, ids_of, learn, mail

from spamnb.errors import (
    StoreAccessError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreVersionError,
)
from spamnb.store import model_store as lmdb_environment
from spamnb.store.codec import row_type
from spamnb.store.files import refused
from spamnb.store.maintenance import check, compact
from spamnb.store.model_store import Environment, EnvironmentConfig, no_room, open_store, sound
from spamnb.store.rows import Segments, encode, key_of
from spamnb.store.table_views import FORMAT_KEY, LAYOUT_KEY, RECIPE_KEY, Tables

HERE = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}


@pytest.fixture
def folder(tmp_path):
    """A closed model with two messages."""
    with contextlib.closing(open_store(tmp_path / "model", create=RECIPE)) as store:
        learn(store, mail(1, *range(50)), 0)
        learn(store, mail(2, *range(30, 90)), 1)
    return tmp_path / "model"


def spoil(folder, name, key, value):
    """Replace an entry behind the store's back."""
    environment = Environment(EnvironmentConfig(folder, Tables._fields))
    environment.open_tables(create=False)
    with environment.write() as tables:
        if value is None:
            tables[name].delete(key)
        else:
            tables[name].put(key, value)
    environment.close()


def _rows_of(folder):
    """The rows of a model with one segment."""
    compact(folder)  # so that they are in the segment, not in the log
    with contextlib.closing(open_store(folder)) as store, store.environment.read() as tables:
        rows = Segments(tables["features"], row_type(2)).read(0)
        return rows.take(np.arange(len(rows.ids)))


@pytest.fixture(scope="module")
def several_rows(tmp_path_factory):
    """A model, the ids of its features and some others, and the value of its segment."""
    folder = tmp_path_factory.mktemp("several") / "model"
    with contextlib.closing(open_store(folder, create=RECIPE)) as store:
        learn(store, mail(1, *range(1000)), 0)
    rows = _rows_of(folder)
    ids = np.unique(np.concatenate([rows.ids, rows.ids + np.uint64(1), rows.ids[:1] * 0]))
    return folder, ids, encode(rows, 0)


def _complaint(folder, number, changed):
    """What `check` says about a copy of a model with these segments."""
    copy = folder.with_name(f"copy {number}")
    shutil.copytree(folder, copy)
    for key, value in changed.items():
        spoil(copy, "features", key_of(key), value)
    with contextlib.closing(open_store(copy)) as store, store.read() as view:
        return " ".join(check(view))


class TestOpening:
    def test_no_model(self, tmp_path):
        """A missing folder, an empty folder and a file raise StoreMissingError."""
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("x")
        for name in ("nothing", "empty", "file"):
            with pytest.raises(StoreMissingError):
                open_store(tmp_path / name)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file"]

    def test_folder_and_files_are_private(self, folder):
        """Folders have mode 0700 and files 0600, with any umask."""
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}

    def test_creating_opens_what_is_there(self, folder):
        """An existing model keeps its recipe if it is opened with another one."""
        from dataclasses import replace

        with contextlib.closing(open_store(folder, create=replace(RECIPE, eta=1.0))) as store:
            assert store.recipe == RECIPE
            with store.read() as view:
                assert view.totals().last_seq == 2

    def test_bytes_that_are_no_database(self, folder):
        """A data file with other bytes is damaged, not missing: it may have been the model."""
        (folder / "data.mdb").write_bytes(b"no database" * 1000)
        with pytest.raises(StoreDamagedError):
            open_store(folder)

    def test_another_programs_database(self, tmp_path):
        """An LMDB file of another program is not a model, and no model is created in it."""
        with lmdb.open(str(tmp_path / "other")) as other, other.begin(write=True) as txn:
            txn.put(b"a", b"b")
        for recipe in (None, RECIPE):
            with pytest.raises(StoreMissingError):
                open_store(tmp_path / "other", create=recipe)

    def test_another_version(self, folder):
        """A model of another format is refused; the error says what to do and what is lost."""
        spoil(folder, "meta", FORMAT_KEY, b"\x63\x00")
        with pytest.raises(StoreVersionError, match="99") as refused:
            open_store(folder)
        assert "train a new model" in refused.value.hint
        assert "lost" in refused.value.hint

    def test_entries_that_are_lost(self, folder):
        """Without a format it is not a model; without recipe, layout or sums it is damaged."""
        for key in (b"totals", LAYOUT_KEY, RECIPE_KEY):
            copy = folder.with_name(f"copy-{key.decode()}")
            shutil.copytree(folder, copy)
            spoil(copy, "meta", key, None)
            with pytest.raises(StoreDamagedError):
                _read_all(copy)
        spoil(folder, "meta", FORMAT_KEY, None)
        with pytest.raises(StoreMissingError):
            open_store(folder)

    @pytest.mark.parametrize("layout", [b"short", b"\x3f" + bytes(16), b"\x01\x02" + bytes(15)])
    def test_a_layout_that_cannot_be(self, folder, layout):
        """Buckets with an impossible layout are damaged."""
        spoil(folder, "meta", LAYOUT_KEY, layout)
        with pytest.raises(StoreDamagedError):
            _read_all(folder)

    def test_buckets_that_are_truncated(self, folder):
        """A bucket of words that lost bytes is damaged."""
        spoil(folder, "words", b"\0", b"\x09\x00\x00\x00abc")
        with pytest.raises(StoreDamagedError):
            _read_words(folder)
        head = (1).to_bytes(4, "little") + bytes(8) + b"\x01\x05"
        spoil(folder, "words", b"\0", head + b"four")
        with pytest.raises(StoreDamagedError):
            _read_words(folder)

    def test_an_event_that_lost_a_piece(self, folder):
        """Pieces of an event are numbered without a gap."""
        spoil(folder, "journal", (1).to_bytes(8, "big") + b"\x00\x00", None)
        spoil(folder, "journal", (1).to_bytes(8, "big") + b"\x00\x01", b"rest")
        with pytest.raises(StoreDamagedError):
            _read_all(folder)

    @pytest.mark.parametrize("keep", [1, 2, 5, 9])
    def test_a_file_that_is_cut_off(self, folder, keep):
        """A truncated data file is damaged; reading it would crash the process."""
        data = folder / "data.mdb"
        os.truncate(data, data.stat().st_size * keep // 10)
        with pytest.raises(StoreDamagedError):
            open_store(folder)

    def test_a_file_that_ends_early_but_whole(self, folder):
        """A file longer or shorter than its last page is valid if its pages are."""
        assert sound(folder)
        with (folder / "data.mdb").open("ab") as data:
            data.write(bytes(4096))
        with contextlib.closing(open_store(folder)) as store, store.read() as view:
            assert check(view) == []

    def test_without_the_walker_a_doubtful_file_is_unsound(self, folder, monkeypatch):
        """Without `lmdb.verify`, a file is not accepted."""
        monkeypatch.setitem(sys.modules, "lmdb.verify", None)
        assert not sound(folder)
        assert sound(folder / "nothing")

    def test_readers_only(self, folder):
        """A read-only store reads and refuses to write, also beside a writer of this process."""
        with contextlib.closing(open_store(folder, readonly=True)) as store:
            with store.read() as view:
                assert view.totals().last_seq == 2
            for change in (store.write, lambda: store.transact(lambda _: None)):
                with pytest.raises(StoreAccessError), contextlib.ExitStack() as stack:
                    stack.enter_context(change())
            with pytest.raises(StoreBusyError):
                open_store(folder)
        with (
            contextlib.closing(open_store(folder)) as writer,
            contextlib.closing(open_store(folder, readonly=True)) as reader,
        ):
            learn(writer, mail(3, 1), 0)
            with reader.read() as view:
                assert view.totals().last_seq == 3

    def test_a_folder_that_may_not_be_written(self, folder):
        """Missing permissions raise StoreAccessError with a hint."""
        script = _open_script(folder, first="if os.geteuid() == 0: os.setuid(65534)")
        folder.parent.chmod(0o755)
        for parent in folder.parents:
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        (folder / "data.mdb").chmod(0o400)
        folder.chmod(0o500 if os.geteuid() else 0o700)
        done = subprocess.run(
            [sys.executable, "-c", script], env=HERE, capture_output=True, text=True, check=False
        )
        folder.chmod(0o700)
        assert done.stdout.strip() == "StoreAccessError", done

    def test_a_small_address_space(self, tmp_path):
        """If the map is refused, a smaller one is used."""
        first = "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))"
        script = _open_script(tmp_path / "model", create=True, first=first)
        done = subprocess.run(
            [sys.executable, "-c", script], env=HERE, capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == "opened", done

    def test_no_address_space_at_all(self, folder, monkeypatch):
        """If the smallest map is refused, the error says so."""

        def refuse(*_, **__):
            raise lmdb.MemoryError("Cannot allocate memory")

        monkeypatch.setattr(lmdb, "open", refuse)
        with pytest.raises(StoreError, match="address space"):
            open_store(folder)


def _read_all(folder):
    with contextlib.closing(open_store(folder)) as store, store.read() as view:
        view.gather(ids_of(1))
        view.words(ids_of(1))
        view.totals()
        list(view.events())


def _read_words(folder):
    with contextlib.closing(open_store(folder)) as store, store.read() as view:
        view.words(np.zeros(1, np.uint64))


def _open_script(folder, *, create=False, first=""):
    made = "Recipe()" if create else "None"
    return f"""
import os, resource
from spamnb.model.events import Recipe
from spamnb.errors import SpamnbError
from spamnb.store.model_store import open_store
{first}
try:
    open_store({str(folder)!r}, create={made})
    print("opened")
except SpamnbError as error:
    print(type(error).__name__)
"""


class TestContradictions:
    @pytest.mark.parametrize(
        ("name", "value", "complaint"),
        [
            ("digests", b"\x00" * 11, "is not its last event"),
            ("kept", None, "the live events of label"),
            ("mids", None, "is not found by its message id"),
            ("journal", None, "follows event"),
        ],
    )
    def test_an_index_that_lost_its_way(self, folder, name, value, complaint):
        """Each index is compared with the journal."""
        environment = Environment(EnvironmentConfig(folder, Tables._fields))
        environment.open_tables(create=False)
        with environment.read() as tables:
            key = next(key for key, _ in tables[name].scan())
        environment.close()
        spoil(folder, name, key, value)
        with contextlib.closing(open_store(folder)) as store, store.read() as view:
            assert complaint in " ".join(check(view))

    def test_rows_that_a_lookup_would_not_find(self, folder):
        """Rows out of order, in another segment's range or empty are reported."""
        rows = _rows_of(folder)
        upper = rows.part(slice(len(rows.ids) // 2, None))
        nothing = rows.rows.copy()
        nothing[:1] = 0
        for number, (changed, complaint) in enumerate(
            (
                ({0: encode(upper, 1), 1: encode(upper, 1)}, "another id range"),
                ({0: encode(rows._replace(ids=rows.ids[::-1]), 0)}, "not in order"),
                ({0: encode(rows._replace(rows=nothing), 0)}, "neither counts nor corrections"),
            )
        ):
            assert complaint in _complaint(folder, number, changed)

    @pytest.mark.parametrize("step", [None, 0, 8, 100, 4000, 32_999])
    def test_a_segment_of_another_length(self, folder, step):
        """A segment that is missing or has another length than its rows need is damaged."""
        value = encode(_rows_of(folder), 0)
        spoil(folder, "features", key_of(0), None if step is None else value[:step])
        if step is None:
            spoil(folder, "features", b"\0", value)
        with contextlib.closing(open_store(folder)) as store, store.read() as view:
            with pytest.raises(StoreDamagedError):
                view.gather(np.zeros(1, np.uint64))
            assert "reading stopped" in " ".join(check(view))

    @pytest.mark.parametrize("numbers", [(0, 2), (1,), (0, 1, 3)])
    def test_segments_that_are_missing(self, folder, numbers):
        """All 2^b segments must be there."""
        value = encode(_rows_of(folder), 0)
        changed = dict.fromkeys(numbers, value) | ({0: None} if 0 not in numbers else {})
        assert "segment" in _complaint(folder, 0, changed)

    @given(start=st.integers(0, 40_000), size=st.integers(1, 5000), byte=st.integers(0, 255))
    def test_overwritten_bytes_of_a_segment(self, several_rows, start, size, byte):
        """Look-ups in a damaged segment end, with rows that may be wrong or StoreDamagedError."""
        folder, ids, value = several_rows
        start = min(start, len(value) - 1)
        bad = value[:start] + bytes((byte,)) * min(size, len(value) - start)
        spoil(folder, "features", key_of(0), bad + value[len(bad) :])
        with contextlib.closing(open_store(folder)) as store, store.read() as view:
            with contextlib.suppress(StoreDamagedError):
                assert len(view.gather(ids).n) == len(ids)
            check(view)

    def test_a_word_in_a_wrong_bucket(self, folder):
        """A word in a wrong bucket is reported."""
        with contextlib.closing(open_store(folder)) as store:
            learn(store, mail(3, *range(2000)), 0)  # so many go straight to their buckets
        environment = Environment(EnvironmentConfig(folder, Tables._fields))
        environment.open_tables(create=False)
        with environment.read() as tables:
            buckets = [(key, bytes(value)) for key, value in tables["words"].scan()]
        environment.close()
        for (key, _), (_, value) in zip(buckets, buckets[::-1], strict=True):
            spoil(folder, "words", key, value)
        with contextlib.closing(open_store(folder)) as store, store.read() as view:
            assert "another id range" in " ".join(check(view))


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "ours"),
        [
            (lmdb.DiskError("No space left on device"), StoreFullError),
            (lmdb.Error("mdb_put: File too large"), StoreFullError),
            (lmdb.Error("mdb_put: Disk quota exceeded"), StoreFullError),
            (lmdb.ReadonlyError("Permission denied"), StoreAccessError),
            (lmdb.Error("x: Read-only file system"), StoreAccessError),
            (lmdb.VersionMismatchError("x"), StoreVersionError),
            (lmdb.LockError("x"), StoreBusyError),
            (lmdb.Error("x: No such file or directory"), StoreMissingError),
            (lmdb.CorruptedError("x"), StoreDamagedError),
            (lmdb.PanicError("x"), StoreDamagedError),
            (lmdb.Error("Input/output error"), StoreError),
            (lmdb.Error("something else"), StoreError),
        ],
    )
    def test_each_error_of_lmdb_has_a_class(self, folder, error, ours):
        """Each LMDB error is mapped to the matching class, and the message has the path."""
        mapped = lmdb_environment._mapped(error, folder)
        assert type(mapped) is ours
        assert str(folder) in str(mapped)

    @pytest.mark.parametrize(
        ("number", "ours"), [(28, StoreFullError), (30, StoreAccessError), (5, StoreError)]
    )
    def test_each_error_of_the_file_system_has_a_class(self, folder, number, ours):
        """Errors of the file system are mapped by errno."""
        assert type(refused(OSError(number, os.strerror(number)), folder)) is ours

    def test_an_error_inside_a_block_is_mapped(self, folder):
        """An LMDB error inside a read or write block is mapped."""
        store = open_store(folder)
        for block in (store.read, store.write):
            with pytest.raises(StoreDamagedError), block():
                raise lmdb.CorruptedError("page 7")
        assert learn(store, mail(3, 1), 0) == 3
        store.close()

    def test_room_is_measured(self, folder):
        """`no_room` detects a near RLIMIT_FSIZE."""
        assert not no_room(folder)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
            assert no_room(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
