"""Whole models at once: rewriting one densely, a copy while it runs, and bringing a copy back.

`compact` writes a new file in order of the keys and puts it in the old one's place. Random growth
leaves pages two thirds full, and copy-on-write leaves a file of two to three times its live pages,
which LMDB never gives back. Rewriting in place, in one transaction, cannot help: the pages it frees
stay in the file (measured after training from empty: 2.6 times the live pages, where the new file
is 1.0). So it needs the model alone: no process may have it open, and a lock proves it. `trim`
copies the pages in use as they are, where that pays; each training ends with it.

`backup` is one consistent file; `restore` trusts no file: its pages are walked before the engine
sees them, then its contents are checked against each other.

Failure: StoreBusyError if the model is open somewhere, RefusedError before anything would be
overwritten, StoreDamagedError for a copy that is not whole. A kill at any moment leaves the old
file or the new one; what it leaves of a copy goes with the next.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from spamnb.core.model.events import Recipe
from spamnb.errors import RefusedError, StoreBusyError, StoreDamagedError, StoreMissingError
from spamnb.store.check import check
from spamnb.store.journal import ChunkedValues, Pages
from spamnb.store.lmdb.environment import Environment, environments, release, share, sound
from spamnb.store.lmdb.sharing import (
    DATA_FILE,
    LOCK_FILE,
    EnvironmentConfig,
    holds_data,
    make_folder,
    refused,
    sync_file,
    sync_folder,
)
from spamnb.store.lmdb.store import open_store, read_recipe
from spamnb.store.named_files import (
    LOCKED_BY_THEN_S,
    PART,
    as_caller,
    open_named,
    replacing,
)
from spamnb.store.rows.codec import row_type
from spamnb.store.rows.hash_buckets import SNUG_BYTES, BucketLayout, HashBuckets, Table, bulk_load
from spamnb.store.rows.vocabulary import WORD_BYTES, Vocabulary, shelve_words
from spamnb.store.table_views import LAYOUT_KEYS, ROOM_KEY, Tables

_PORTION = 1 << 25
"""bytes put in one transaction of a rewrite: bounds what LMDB holds in memory"""

LEAST_FREE = 1024
"""pages that are worth the two syncs of a new file, 5 ms"""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Pairs = Iterator[tuple[bytes, bytes]]


def compact(path: str | Path) -> tuple[int, int]:
    """Rewrite a model densely; the file's size before and after. Nobody may have it open."""
    folder = Path(path)
    data = folder / DATA_FILE
    if not holds_data(folder):
        raise StoreMissingError(f"there is no model in {folder}")
    with alone(folder), beside(folder) as work_folder:
        before = data.stat().st_size
        old = Environment(EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False))
        new = Environment(EnvironmentConfig(work_folder, Tables._fields, sync=False, lock=False))
        try:
            old.open_tables(create=False)
            new.open_tables(create=True)
            _rewrite(old, new, read_recipe(old))
            new.sync()
        finally:
            old.close()
            new.close()
        put_in_place(work_folder / DATA_FILE, data)
        return before, data.stat().st_size


def trim(path: str | Path) -> bool:
    """Give back the pages that hold nothing, if they are half as many as the others; whether so.

    Training a model once more leaves as many free pages as it had, and LMDB writes the list of
    those anew with every message that is learnt later: 60 pages beside the 200 that change, in a
    file of which three fifths were free. Nobody may have the model open.
    """
    folder = Path(path)
    with alone(folder):
        old = Environment(EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False))
        with closing(old):
            old.open_tables(create=False)
            live = old.live_pages()
            if old.pages() <= live + max(live // 2, LEAST_FREE):
                return False
            with beside(folder) as work_folder:
                _write_private(work_folder / DATA_FILE, old.copy_to)
                put_in_place(work_folder / DATA_FILE, folder / DATA_FILE)
        return True


def _rewrite(old: Environment, new: Environment, recipe: Recipe) -> None:
    with old.read() as tables:
        from_ = Tables(**tables)
        row = row_type(len(recipe.labels))
        layouts = {
            name: BucketLayout.decode(from_.meta.get(key) or b"")
            for name, key in LAYOUT_KEYS.items()
        }
        size = {"features": row.itemsize, "base": row.itemsize, "words": WORD_BYTES}
        snug = {
            name: BucketLayout().grown(layout.rows, max(1, SNUG_BYTES // size[name]))
            for name, layout in layouts.items()
        }
        for name in ("features", "base"):
            buckets = HashBuckets(getattr(from_, name), layouts[name], row)
            fill(new, name, bulk_load(buckets.blocks(), snug[name]))
        fill(new, "words", shelve_words(Vocabulary(from_.words, layouts["words"]), snug["words"]))
        for name in ("digests", "mids", "kept", "meta"):
            fill(new, name, ((key, bytes(value)) for key, value in tables[name].scan()))
        pages = Pages(new.page_bytes, 0)
        fill(new, "journal", _recut(from_.journal, pages))
    with new.write() as tables:
        tables["meta"].put(ROOM_KEY, pages.room.to_bytes(4, "little"))
        for name, layout in snug.items():
            tables["meta"].put(LAYOUT_KEYS[name], layout.encode())


def _recut(journal: Table, pages: Pages) -> Pairs:
    """The journal's pieces as a new file's pages want them."""
    return (
        pair for seq, data in ChunkedValues(journal).up(0, None) for pair in pages.chunks(seq, data)
    )


def fill(new: Environment, name: str, pairs: Pairs) -> None:
    """Put pairs in order, some megabytes in a transaction."""
    first = next(pairs, None)
    while first is not None:
        with new.write() as tables:
            size = 0
            for key, value in itertools.chain([first], pairs):
                tables[name].put(key, value, append=True)
                size += len(value)
                if size > _PORTION:
                    break
        first = next(pairs, None)


def backup(path: str | Path, target: str | Path) -> int:
    """Copy a model, which may be in use, to one file; its size. Replaces a file that is there.

    The file is the caller's (`named_files`).
    """
    target = Path(target)
    with as_caller():
        if target.exists() and not target.is_file():
            raise RefusedError(
                f"{target} is no plain file", hint="name a file that may be replaced"
            )
    if not holds_data(Path(path)):
        raise StoreMissingError(f"there is no model in {path}")
    environment = share(EnvironmentConfig(Path(path), Tables._fields, readonly=True), create=False)
    try:
        with replacing(target) as handle:
            environment.copy_to(handle)
            return os.fstat(handle).st_size
    except OSError as error:
        raise refused(error, target) from error
    finally:
        release(environment)


def restore(source: str | Path, path: str | Path, *, overwrite: bool = False) -> None:
    """Make a model of a backup (or of another model's folder), once it is proven whole."""
    source, folder = Path(source), Path(path)
    with as_caller():
        file = source / DATA_FILE if source.is_dir() else source
        if not file.exists():
            raise StoreMissingError(f"there is no backup at {source}")
    data = folder / DATA_FILE
    if data.exists() and not overwrite:
        raise RefusedError(f"there is a model in {folder} already", hint="overwrite it on purpose")
    make_folder(folder)
    with alone(folder), beside(folder) as work_folder:
        copy = work_folder / DATA_FILE
        _write_private(copy, lambda handle: _copy(file, handle))
        if copy.stat().st_size == 0 or not sound(copy):
            raise StoreDamagedError(f"{source} is no whole backup")
        prove(work_folder, source)
        if data.exists() and not overwrite:
            raise RefusedError(f"a model has appeared in {folder}")
        put_in_place(copy, data)


def prove(work_folder: Path, source: Path) -> None:
    """Open a copy and look for contradictions."""
    store = open_store(work_folder, readonly=True)
    try:
        with store.read() as view:
            faults = check(view)
    finally:
        store.close()
    if faults:
        raise StoreDamagedError(f"{source} contradicts itself: {faults[0]}")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """A block in which no process has the environment at this path open, this one included.

    Each process that has it open holds a shared lock on the first byte of LMDB's lock file, so an
    exclusive one says that there is none; whoever opens it now waits for us. The block may replace
    the data file: at its end the lock file is made anew for it (its counter of transactions would
    be wrong for another file), before those who wait go on. It is empty until then: if we are
    killed, those who wait must not believe the old counter, by which they would read an older state
    and write over the newest.
    """
    with environments.nobody(path), ExitStack() as stack:
        try:
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            os.ftruncate(lock, 0)
        except BlockingIOError as error:
            raise StoreBusyError(f"{path} is open in another process", hint="stop it") from error
        except OSError as error:
            raise refused(error, path) from error
        yield
        Environment(EnvironmentConfig(path, ())).close()


@contextmanager
def beside(parent: Path) -> Iterator[Path]:
    """A private folder beside what is to be replaced, for a rename; gone at the end.

    It is locked while it is in use: what a kill has left goes when the next one is made.
    """
    with ExitStack() as stack:
        try:
            _sweep(parent)
            made = Path(tempfile.mkdtemp(prefix=PART, dir=parent))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            handle = os.open(made, _FOLDER)
            stack.callback(os.close, handle)
            # Some network file systems lock no folders, and then nothing is swept there either.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield made
        except OSError as error:
            raise refused(error, parent) from error


def _sweep(parent: Path) -> None:
    """Remove our own workshops that nobody works in."""
    for left in parent.glob(PART + "*"):
        with suppress(OSError), ExitStack() as stack:
            handle = os.open(left, _FOLDER)
            stack.callback(os.close, handle)
            about = os.fstat(handle)
            if about.st_uid == os.geteuid() and time.time() - about.st_mtime > LOCKED_BY_THEN_S:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)


def _write_private(path: Path, write: Callable[[int], None]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write(handle)
    finally:
        os.close(handle)


def _copy(file: Path, handle: int) -> None:
    with os.fdopen(open_named(file), "rb") as origin, open(handle, "wb", closefd=False) as copy:
        shutil.copyfileobj(origin, copy, 1 << 20)


def put_in_place(copy: Path, target: Path) -> None:
    """Rename, with content and entry on the disk before and after.

    What is replaced keeps its owner: root may work on a model that a daemon serves as another user.
    """
    if os.geteuid() == 0:
        with suppress(FileNotFoundError):
            old = target.stat()
            os.chown(copy, old.st_uid, old.st_gid)
    sync_file(copy)
    copy.rename(target)
    sync_folder(target.parent)
