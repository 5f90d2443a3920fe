"""Operations on a whole model: `compact`, `trim`, `backup`, `restore`.

`compact` writes a new file in key order and replaces the old one. Random growth leaves pages two
thirds full, and copy-on-write leaves a file of two to three times its live pages, which LMDB never
shrinks. Rewriting in place, in one transaction, does not help: the freed pages stay in the file
(measured after training from empty: 2.6 times the live pages; the new file has 1.0). No process may
have the model open meanwhile; a lock ensures it. `trim` copies the used pages unchanged if that
saves enough; each training ends with `trim`.

`backup` writes one consistent file. `restore` verifies the structure of a file's pages before LMDB
opens it, and then its contents.

Failure: StoreBusyError if the model is open, RefusedError instead of overwriting a file,
StoreDamagedError for an incomplete or inconsistent copy. A kill at any moment leaves the old file
or the new one; the next run removes the temporary files that it left.
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
from spamnb.store.files import make_folder, refused, sync_file, sync_folder
from spamnb.store.journal import ChunkedValues, Pages
from spamnb.store.lmdb.environment import Environment, environments, release, share, sound
from spamnb.store.lmdb.sharing import DATA_FILE, LOCK_FILE, EnvironmentConfig, holds_data
from spamnb.store.lmdb.store import open_store, read_recipe
from spamnb.store.paths import (
    LOCKED_BY_THEN_S,
    PART,
    as_caller,
    open_named,
    replacing,
)
from spamnb.store.rows.logged_rows import LOG_KEY, LogState
from spamnb.store.rows.table import Table
from spamnb.store.table_views import ROOM_KEY, TableReadView, Tables

_PORTION = 1 << 25
"""bytes written in one transaction of a rewrite: limits LMDB's memory"""

LEAST_FREE = 1024
"""minimum number of free pages for `trim`: fewer are not worth two syncs of 5 ms"""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Pairs = Iterator[tuple[bytes, bytes]]


def compact(path: str | Path) -> tuple[int, int]:
    """Rewrite a model without gaps; return the file's size before and after.

    Raises StoreBusyError if any process has the model open.
    """
    folder = Path(path)
    data = folder / DATA_FILE
    if not holds_data(folder):
        raise StoreMissingError(f"there is no model in {folder}", hint="train one first")
    with exclusive(folder), temporary_folder(folder) as work_folder:
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
    """Remove free pages if there are more than half as many as used ones; return whether it did.

    Training a model again leaves as many free pages as it had pages. LMDB rewrites the list of free
    pages with every message that is learnt later: in a file with three fifths of free pages, 60
    pages in addition to the 200 that change. Raises StoreBusyError if the model is open.
    """
    folder = Path(path)
    with exclusive(folder):
        old = Environment(EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False))
        with closing(old):
            old.open_tables(create=False)
            live = old.live_pages()
            if old.pages() <= live + max(live // 2, LEAST_FREE):
                return False
            _replace_by_used(old)
        return True


def shrink(folder: Path) -> None:
    """Copy the used pages of a model that no process has open, unchanged."""
    plan = EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False)
    with closing(Environment(plan)) as old:
        _replace_by_used(old)


def _replace_by_used(old: Environment) -> None:
    folder = old.config.path
    with temporary_folder(folder) as work_folder:
        _write_private(work_folder / DATA_FILE, old.copy_to)
        put_in_place(work_folder / DATA_FILE, folder / DATA_FILE)


def _rewrite(old: Environment, new: Environment, recipe: Recipe) -> None:
    with old.read() as tables:
        from_ = Tables(**tables)
        fill(new, "features", TableReadView(from_, recipe).segments())
        for name in ("words", "base", "digests", "mids", "kept", "meta"):
            fill(new, name, ((key, bytes(value)) for key, value in tables[name].scan()))
        pages = Pages(new.page_bytes, 0)
        fill(new, "journal", _recut(from_.journal, pages))
        log = LogState.decode(from_.meta.get(LOG_KEY))
    with new.write() as tables:
        tables["meta"].put(ROOM_KEY, pages.room.to_bytes(4, "little"))
        tables["meta"].put(LOG_KEY, log._replace(first=log.last).encode())


def _recut(journal: Table, pages: Pages) -> Pairs:
    """Yield the journal's values, split again for a new file's pages."""
    return (
        pair for seq, data in ChunkedValues(journal).up(0, None) for pair in pages.chunks(seq, data)
    )


def fill(new: Environment, name: str, pairs: Pairs) -> None:
    """Write pairs in key order, some megabytes in a transaction."""
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
    """Copy a model, which may be in use, to one file; return its size. Replaces an existing file.

    The file is written with the rights of the caller (`paths`).
    """
    target = Path(target)
    with as_caller():
        if target.exists() and not target.is_file():
            raise RefusedError(
                f"{target} is not a regular file", hint="name a file that may be replaced"
            )
    if not holds_data(Path(path)):
        raise StoreMissingError(f"there is no model in {path}", hint="check --home")
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
    """Create a model from a backup, or from another model's folder, after verifying it."""
    source, folder = Path(source), Path(path)
    with as_caller():
        file = source / DATA_FILE if source.is_dir() else source
        if not file.exists():
            raise StoreMissingError(f"there is no backup at {source}", hint="check the path")
    data = folder / DATA_FILE
    if data.exists() and not overwrite:
        raise RefusedError(
            f"there is a model in {folder} already", hint="choose another folder, or overwrite it"
        )
    make_folder(folder)
    with exclusive(folder), temporary_folder(folder) as work_folder:
        copy = work_folder / DATA_FILE
        _write_private(copy, lambda handle: _copy(file, handle))
        if copy.stat().st_size == 0 or not sound(copy):
            raise StoreDamagedError(
                f"{source} is not a complete backup", hint="use another backup file"
            )
        prove(work_folder, source)
        if data.exists() and not overwrite:
            raise RefusedError(
                f"another process made a model in {folder}", hint="choose another folder"
            )
        put_in_place(copy, data)


def prove(work_folder: Path, source: Path) -> None:
    """Open a copy and check its contents; StoreDamagedError if they are inconsistent."""
    store = open_store(work_folder, readonly=True)
    try:
        with store.read() as view:
            faults = check(view)
    finally:
        store.close()
    if faults:
        raise StoreDamagedError(
            f"{source} is inconsistent: {faults[0]}", hint="restore an older backup"
        )


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Run a block while no process has the environment at this path open, this one included.

    Each process that has it open holds a shared lock on the first byte of LMDB's lock file, so an
    exclusive lock shows that no process has it open; a process that opens it now waits. The block
    may replace the data file. At its end the lock file is created again, because its transaction
    counter would be wrong for another file, before the waiting processes continue. Until then the
    lock file is empty: if this process is killed, the waiting processes must not use the old
    counter, by which they would read an older state and overwrite the newest.
    """
    with environments.exclusive(path), ExitStack() as stack:
        try:
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            os.ftruncate(lock, 0)
        except BlockingIOError as error:
            raise StoreBusyError(
                f"the model in {path} is open in another process", hint="stop that process first"
            ) from error
        except OSError as error:
            raise refused(error, path) from error
        yield
        Environment(EnvironmentConfig(path, ())).close()


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Create a private temporary folder in `parent`, so that its files can be renamed into place.

    It is removed at the end, and locked while it is in use: the next call removes the unlocked
    folders of killed processes.
    """
    with ExitStack() as stack:
        try:
            _sweep(parent)
            made = Path(tempfile.mkdtemp(prefix=PART, dir=parent))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            handle = os.open(made, _FOLDER)
            stack.callback(os.close, handle)
            # Some network file systems cannot lock folders; then nothing is removed there either.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield made
        except OSError as error:
            raise refused(error, parent) from error


def _sweep(parent: Path) -> None:
    """Remove the temporary folders of killed processes."""
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
    """Rename a file to its final name, durably.

    The new file gets the old one's owner, because root may work on a model that a daemon serves as
    another user.
    """
    if os.geteuid() == 0:
        with suppress(FileNotFoundError):
            old = target.stat()
            os.chown(copy, old.st_uid, old.st_gid)
    sync_file(copy)
    copy.rename(target)
    sync_folder(target.parent)
