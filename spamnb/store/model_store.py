"""The model in LMDB: an environment of one folder, and the store in it.

The only module that imports lmdb. Changes are durable when a write block ends. `Environment`
handles LMDB's special conditions, `ModelStore` opens the views of `table_views` over its tables.
Invariants: those of `contract`; at most one environment for each file in a process; no lock of this
module is held while a caller reads. Failure: StoreErrors only (`_mapped`); BugError for misuse.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import lmdb

from spamnb.errors import (
    BugError,
    StoreAccessError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreReplacedError,
    StoreVersionError,
)
from spamnb.model.events import Recipe
from spamnb.store.codec import Buffer, decode_recipe
from spamnb.store.files import make_folder, refused, sync_folder
from spamnb.store.table_views import (
    FORMAT,
    FORMAT_KEY,
    RECIPE_KEY,
    Caches,
    ReadView,
    Tables,
    WriteView,
    create_model,
)

WAIT_S = 30.0
"""how long to wait for this process's readers or a reader slot: longer than any snapshot is used"""
PAUSE_S = 0.01
_LARGE_WRITE = 1 << 20
"""four times what LMDB writes in one call"""

Shared = TypeVar("Shared")


DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
MAP_SIZE = 1 << 40
"""reserved address space, not disk space: the file grows as it is written"""


class EnvironmentConfig(NamedTuple):
    """Parameters for opening an environment."""

    path: Path
    names: tuple[str, ...]
    readonly: bool = False
    map_size: int = MAP_SIZE
    limit_bytes: int = 0
    disk_share: bool = False
    """if `limit_bytes` is 0, derive a limit from the free disk space, and update it as that
    changes"""
    sync: bool = True
    lock: bool = True
    """False only inside `maintenance.exclusive`"""


class TransactionGate:
    """Counts open transactions, and can wait until there are none."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._closing = 0
        self._mine = threading.local()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Run one transaction.

        A thread with an open transaction may open another one while the gate closes; otherwise it
        would wait for itself.
        """
        depth = getattr(self._mine, "depth", 0)
        with self._change:
            while self._closing and not depth:
                self._change.wait()
            self._inside += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            with self._change:
                self._inside -= 1
                if self._closing:
                    self._change.notify_all()

    @contextlib.contextmanager
    def closed(self, wait_s: float = WAIT_S) -> Iterator[None]:
        """Run a block while this process has no open transaction."""
        if getattr(self._mine, "depth", 0):
            raise StoreBusyError(
                "the map must grow, but this thread has an older snapshot open",
                hint="close the snapshot before writing",
            )
        with self._change:
            self._closing += 1
            try:
                if not self._change.wait_for(lambda: self._inside == 0, wait_s):
                    raise StoreBusyError(
                        f"another thread kept a snapshot open for more than {wait_s:.0f} s",
                        hint="try again",
                    )
                yield
            finally:
                self._closing -= 1
                self._change.notify_all()


class EnvironmentRegistry(Generic[Shared]):
    """One shared object for each folder of this process, closed when its last user releases it.

    LMDB requires it: its POSIX locks belong to the process, so opening a file twice and closing it
    once drops the locks of both.
    """

    def __init__(
        self, close: Callable[[Shared], None], after_fork: Callable[[Shared], None]
    ) -> None:
        self._close = close
        self._after_fork = after_fork
        self._lock = threading.Lock()
        self._objects: dict[str, Shared] = {}
        self._users: dict[Shared, int] = {}
        self._barred: set[str] = set()
        os.register_at_fork(after_in_child=self._forked)

    def take(self, path: Path, make: Callable[[], Shared]) -> Shared:
        """Return the object of a folder, made by `make` if there is none."""
        where = os.path.realpath(path)
        with self._lock:
            if where in self._barred:
                raise StoreBusyError(
                    f"this process is replacing the model in {path}", hint="try again"
                )
            if where not in self._objects:
                self._objects[where] = make()
            shared = self._objects[where]
            self._users[shared] = self._users.get(shared, 0) + 1
            return shared

    def give_back(self, shared: Shared) -> None:
        """Release an object taken before; the last release closes it."""
        with self._lock:
            left = self._users.pop(shared, 0) - 1
            if left > 0:
                self._users[shared] = left
            elif left == 0:
                self._drop(shared)
                self._close(shared)

    def evict(self, shared: Shared) -> None:
        """Forget the object of a folder that was moved; the next `take` makes a new one."""
        with self._lock:
            self._drop(shared)

    def _drop(self, shared: Shared) -> None:
        self._objects = {where: held for where, held in self._objects.items() if held is not shared}

    @contextlib.contextmanager
    def exclusive(self, path: Path) -> Iterator[None]:
        """Run a block while this process has no object of the folder and can take none."""
        where = os.path.realpath(path)
        with self._lock:
            if where in self._objects or where in self._barred:
                raise StoreBusyError(
                    f"the model in {path} is open in this process", hint="close it first"
                )
            self._barred.add(where)
        try:
            yield
        finally:
            self._barred.discard(where)

    def _forked(self) -> None:
        # The thread that held the lock does not exist in the child.
        self._lock = threading.Lock()
        for shared in self._users:
            self._after_fork(shared)


class RetryDeadline:
    """A time limit for polling a condition without notification (another process's reader)."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._until = time.monotonic() + wait_s

    def pause(self, what: str) -> None:
        """Sleep for a short time; StoreBusyError with the text `what` after the time limit."""
        if time.monotonic() > self._until:
            raise StoreBusyError(what, hint="try again")
        time.sleep(PAUSE_S)


def no_room(folder: Path) -> bool:
    """Return whether free disk space or RLIMIT_FSIZE is too small for a large write."""
    disk = os.statvfs(folder)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    used = (folder / DATA_FILE).stat().st_size
    beyond = limit != resource.RLIM_INFINITY and used + _LARGE_WRITE > limit
    return beyond or disk.f_bavail * disk.f_frsize < _LARGE_WRITE


def holds_data(folder: Path) -> bool:
    """Return whether a folder contains a data file."""
    try:
        if folder.exists() and not folder.is_dir():
            raise StoreMissingError(
                f"{folder} is a file", hint="a model is a folder: check the path"
            )
        return (folder / DATA_FILE).stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(error, folder) from error


def inode_of(folder: Path) -> int:
    """Return the inode of a folder's data file; 0 if there is none."""
    with contextlib.suppress(OSError):
        return (folder / DATA_FILE).stat().st_ino
    return 0


def is_empty(path: Path) -> bool:
    """Return whether a file has no bytes."""
    with contextlib.suppress(OSError):
        return path.stat().st_size == 0
    return False


class LmdbTable:
    """A `rows.table.Table` over one database in one transaction."""

    __slots__ = ("_db", "_txn")

    def __init__(self, txn: Any, db: Any) -> None:
        self._txn = txn
        self._db = db

    def transaction(self) -> int:
        return int(self._txn.id())

    def get(self, key: bytes) -> Buffer | None:
        value: Buffer | None = self._txn.get(key, None, self._db)
        return value

    def get_many(self, keys: list[bytes]) -> list[Buffer]:
        """Return the values, empty for missing keys.

        300 keys take 130-170 us; `getmulti` of LMDB takes 200-235 us.
        """
        return list(map(self._txn.get, keys, repeat(b""), repeat(self._db)))

    def put(self, key: bytes, value: Buffer, *, append: bool = False) -> None:
        if not self._txn.put(key, value, True, True, append, self._db):
            raise BugError(f"the appended key {key!r} is not greater than all others")

    def delete(self, key: bytes) -> None:
        self._txn.delete(key, b"", self._db)

    def scan(self, start: bytes = b"", *, down: bool = False) -> Iterator[tuple[bytes, Buffer]]:
        """Yield keys and values in key order from `start`; `down`: in reverse order."""
        cursor = self._txn.cursor(self._db)
        if down:
            found = cursor.set_range(start) if start else cursor.last()
            if not found:
                found = cursor.last()
            elif start and bytes(cursor.key()) > start:
                found = cursor.prev()
            pairs = cursor.iterprev() if found else ()
        else:
            found = cursor.set_range(start) if start else cursor.first()
            pairs = cursor.iternext() if found else ()
        for key, value in pairs:
            yield bytes(key), value

    def stat(self) -> dict[str, int]:
        """Return LMDB's page and entry counts."""
        return dict(self._txn.stat(self._db))


SHARE = 4
LEFT_FREE = 20
LEAST_SHARE = 8


def limit_of(folder: Path, limit_bytes: int) -> int:
    """Return `limit_bytes`, or if it is 0 the default limit for the model in this folder."""
    if limit_bytes:
        return limit_bytes
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0
    try:
        used = (folder / DATA_FILE).stat().st_size
    except OSError:
        used = 0
    return share_of(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize, used)


def share_of(total: int, free: int, used: int) -> int:
    """Return the default limit from the file system's size and free space and the model's size.

    The limit is a quarter of the file system, but a twentieth of the file system must stay free,
    because the mail server needs space for its queue. If the disk is nearly full, or the model
    already takes more than a quarter, the model may still grow by an eighth of the free space, so
    that learning continues. Failure: none; a file system that does not report its size gives 0, no
    limit.
    """
    if not total:
        return 0
    fair = min(total // SHARE, used + free - total // LEFT_FREE)
    return max(fair, used + free // LEAST_SHARE)


def room_for_copy(folder: Path) -> int:
    """Return how many bytes a copy of the model in this folder may take."""
    disk = os.statvfs(folder)
    return (disk.f_bavail - disk.f_blocks // LEFT_FREE) * disk.f_frsize


_LEAST_MAP = 1 << 20
_MAX_READERS = 510
_MOST_GROWTHS = 30
"""maximum doublings in one call: enough from 1 MiB to more than any disk"""

Result = TypeVar("Result")


class MapGrownError(StoreBusyError):
    """The map was full and has been grown; nothing was changed. `transact` runs again."""


class Environment:
    """One LMDB environment of this process, shared by its threads.

    Handled without an error: a full map (grown, and the transaction run again); a map that another
    process has grown (adopted); reader slots left by dead processes (cleared) or all in use (waited
    for); too little address space for the map (a smaller map); two stores of one process in one
    folder (they share an environment, because POSIX locks belong to the process and closing a
    second one would drop the locks of the first). Use after a fork is not possible: the child never
    touches the inherited environment, and using it raises a BugError.

    Durability: sync on, writemap off; LMDB writes the pages, calls fdatasync, and writes the meta
    page through O_DSYNC, before a write block ends. Folder mode 0700, files 0600.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self.config = config
        self.page_bytes = 1
        """LMDB's page size, once the file is open"""
        self._limit = self._limit_now()
        self._new_locks()
        self._env: Any = None
        self._inherited: Any = None
        """the parent's environment, kept referenced: closing it would change its lock table"""
        self._dbs: dict[str, Any] = {}
        self.mapped: dict[str, Any] = {}
        """values that callers derived from addresses in the map; emptied when the map is
        moved or closed"""
        self._open()

    def _new_locks(self) -> None:
        self._gate = TransactionGate()
        self._writer = threading.Lock()
        self._writing_thread = 0

    # --- opening ---

    def _open(self) -> None:
        config = self.config
        size = min(config.map_size, self._limit or config.map_size)
        deadline = RetryDeadline()
        while True:
            self._inode = inode_of(config.path)
            try:
                self._env = lmdb.open(
                    str(config.path), map_size=size, readonly=config.readonly, sync=config.sync,
                    metasync=config.sync, lock=config.lock, mode=0o700, create=False,
                    writemap=False, max_readers=_MAX_READERS, max_dbs=len(config.names),
                )  # fmt: skip
                if not self._was_replaced():
                    break
                self._env.close()
            except lmdb.MapResizedError:
                # Another process has grown the file since LMDB read its size: read it again.
                continue
            except lmdb.MemoryError as error:
                # RLIMIT_AS, or overcommit is disabled: try a smaller map.
                size //= 2
                if size < _LEAST_MAP:
                    raise StoreError(
                        f"{config.path}: no address space for the map", hint="raise ulimit -v"
                    ) from error
            except lmdb.InvalidParameterError as error:
                # A process was killed while it replaced the data file. The first process that gets
                # the lock creates the lock file again; others may have it open at that moment.
                if not is_empty(config.path / LOCK_FILE):
                    raise _mapped(error, config.path) from error
                deadline.pause(
                    f"{config.path}: the lock file is empty and in use by other processes"
                )
            except lmdb.Error as error:
                raise _mapped(error, config.path) from error
        self.page_bytes = int(self._env.stat()["psize"])
        self._limit = self._limit_now()
        self._refuse_truncated()
        self._env.reader_check()

    def _refuse_truncated(self) -> None:
        """Check that the file is complete, because reading beyond its end raises SIGBUS.

        A valid file may end before its last page (pages allocated and freed in one transaction are
        never written), so the pages of a short file are verified.
        """
        path = self.config.path
        pages = self._env.info()["last_pgno"] + 1
        size = pages * self.page_bytes
        if (path / DATA_FILE).stat().st_size < size and not sound(path):
            self._env.close()
            raise StoreDamagedError(f"{path}: the data file is truncated", hint="restore a backup")

    def open_tables(self, *, create: bool) -> None:
        """Open the databases; `create` makes missing ones."""
        deadline = RetryDeadline()
        if create:
            self._refuse_foreign(deadline)
        for name in self.config.names:
            while name not in self._dbs:
                self._open_table(name, deadline, create=create)

    def _refuse_foreign(self, deadline: RetryDeadline) -> None:
        """Do not create tables in an LMDB database of another program."""
        while (txn := self._begin(deadline, write=False)) is None:
            self._set_map_size(0)
        with txn:
            names = {bytes(key).decode("latin-1") for key, _ in txn.cursor()}
        if not names <= set(self.config.names):
            raise self._foreign()

    def _foreign(self) -> StoreMissingError:
        return StoreMissingError(
            f"the LMDB database in {self.config.path} is not a spamnb model", hint="check the path"
        )

    def _open_table(self, name: str, deadline: RetryDeadline, *, create: bool) -> None:
        try:
            # Outside a transaction: a handle opened in a read transaction ends with it.
            self._dbs[name] = self._env.open_db(name.encode(), create=create)
        except lmdb.NotFoundError as error:
            raise self._foreign() from error
        except lmdb.MapResizedError:
            self._set_map_size(0)
        except lmdb.MapFullError:
            self._grow()
        except lmdb.ReadersFullError:
            self._free_slot(deadline)
        except lmdb.Error as error:
            raise _mapped(error, self.config.path) from error

    def _was_replaced(self) -> bool:
        """Return whether the path now has another file, whose writes the lock file counts."""
        return inode_of(self.config.path) not in (0, self._inode)

    def after_fork(self) -> None:
        """Drop the inherited environment in a forked child, without closing it."""
        self._inherited, self._env, self._dbs = self._env, None, {}
        self._new_locks()

    def _ready(self) -> None:
        if self._env is not None:
            return
        if self._inherited is not None:
            # py-lmdb refuses to open it again, because it registers the files as open; closing it
            # first would clear the parent's slots in the lock table.
            raise BugError(
                f"{self.config.path} was opened before a fork and is used in the child",
                hint="open the store in the child only, or start the child by spawn",
            )
        raise BugError(f"the store {self.config.path} is closed")

    def close(self) -> None:
        """Close the files after this process's last transaction has ended."""
        if self._env is None:
            return
        with self._gate.closed():
            env, self._env = self._env, None
            self.mapped.clear()
            env.close()

    @property
    def is_open(self) -> bool:
        """Return whether the environment is open."""
        return self._env is not None

    @property
    def map_size(self) -> int:
        """Return the current size of the map."""
        self._ready()
        return int(self._env.info()["map_size"])

    # --- transactions ---

    def read(self) -> AbstractContextManager[dict[str, LmdbTable]]:
        """Open a snapshot."""
        return self._abandoned(write=False)

    @contextlib.contextmanager
    def held(self) -> Iterator[dict[str, LmdbTable]]:
        """Hold the write transaction, so that no process writes meanwhile; write nothing."""
        with self._writer, self._abandoned(write=True) as tables:
            yield tables

    @contextlib.contextmanager
    def _abandoned(self, *, write: bool) -> Iterator[dict[str, LmdbTable]]:
        self._ready()
        deadline = RetryDeadline()
        while True:
            with self._gate.inside():
                txn = self._begin(deadline, write=write)
                if txn is not None:
                    try:
                        yield self._tables(txn)
                    except lmdb.Error as error:
                        raise _mapped(error, self.config.path) from error
                    finally:
                        txn.abort()
                    return
            self._adopt()

    @contextlib.contextmanager
    def write(self) -> Iterator[dict[str, LmdbTable]]:
        """Open the write transaction."""
        self._ready()
        if self._writing_thread == threading.get_ident():
            raise BugError("this thread already has a write transaction open")
        with self._writer:
            self._writing_thread = threading.get_ident()
            try:
                self._grow_ahead()
                yield from self._write()
            finally:
                self._writing_thread = 0

    def _write(self) -> Iterator[dict[str, LmdbTable]]:
        deadline = RetryDeadline()
        while True:
            with self._gate.inside():
                txn = self._begin(deadline, write=True)
                if txn is not None:
                    try:
                        yield self._tables(txn)
                        txn.commit()
                    except lmdb.MapFullError as error:
                        cause = error
                        txn.abort()
                        break
                    except lmdb.Error as error:
                        txn.abort()
                        raise _mapped(error, self.config.path) from error
                    except BaseException:
                        txn.abort()
                        raise
                    return
            self._adopt()
        self._grow()
        raise MapGrownError(
            f"{self.config.path}: the map was full and has been grown", hint="try again"
        ) from cause

    def transact(self, run: Callable[[dict[str, LmdbTable]], Result]) -> Result:
        """Run a function in a write transaction, again if the map had to grow."""
        for _ in range(_MOST_GROWTHS):
            with contextlib.suppress(MapGrownError), self.write() as tables:
                return run(tables)
        raise StoreFullError(
            f"{self.config.path}: the map is still too small after {_MOST_GROWTHS} doublings"
        )

    def _begin(self, deadline: RetryDeadline, *, write: bool) -> Any:
        """Begin a transaction; None if another process has grown the map."""
        while True:
            try:
                txn = self._env.begin(write=write, buffers=True)
                break
            except lmdb.MapResizedError:
                return None
            except lmdb.ReadersFullError:
                self._free_slot(deadline)
            except lmdb.Error as error:
                raise _mapped(error, self.config.path) from error
        if write and self._was_replaced():
            txn.abort()
            raise StoreReplacedError(f"{self.config.path}: it was replaced", hint="open it again")
        return txn

    def _free_slot(self, deadline: RetryDeadline) -> None:
        """Clear the slots of dead readers; if there are none, wait."""
        if self._env.reader_check() == 0:
            deadline.pause(f"{self.config.path}: all {_MAX_READERS} reader slots are in use")

    def _tables(self, txn: Any) -> dict[str, LmdbTable]:
        return {name: LmdbTable(txn, db) for name, db in self._dbs.items()}

    def _adopt(self) -> None:
        with self._gate.closed():
            self._set_map_size(0)

    def _set_map_size(self, size: int) -> None:
        """Change the size of the map, which may move it; 0 takes the size of another process."""
        self.mapped.clear()
        self._env.set_mapsize(size)

    def _grow_ahead(self) -> None:
        """Grow the map before a transaction if less than a quarter of the used space is free.

        So most transactions need not run twice; a transaction that needs more room runs again.
        """
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self.page_bytes
        if info["map_size"] - used < used // 4 and not self._at_limit(info["map_size"]):
            self._grow()

    @property
    def limit_bytes(self) -> int:
        """Return the current maximum size of the file; 0 is no limit."""
        config = self.config
        limit = (
            limit_of(config.path, config.limit_bytes) if config.disk_share else config.limit_bytes
        )
        return limit - limit % self.page_bytes

    def _limit_now(self) -> int:
        # A reader must see all of a file that has grown beyond the limit.
        return 0 if self.config.readonly else self.limit_bytes

    def _at_limit(self, size: int) -> bool:
        return bool(self._limit) and size >= self._limit

    def _grow(self) -> None:
        size = int(self._env.info()["map_size"])
        if self._at_limit(size):
            self._limit = self._limit_now()
        if self._at_limit(size):
            raise StoreFullError(
                f"{self.config.path}: the size limit of {self._limit} bytes is reached",
                hint="raise store.limit_bytes, expire features, or compact",
            )
        bigger = min(2 * size, self._limit or 2 * size)
        with self._gate.closed():
            try:
                self._set_map_size(bigger)
            except lmdb.Error as error:
                raise _mapped(error, self.config.path) from error

    def stat(self) -> dict[str, dict[str, int]]:
        """Return the page counts of each database."""
        with self.read() as tables:
            return {name: table.stat() for name, table in tables.items()}

    def pages(self) -> int:
        """Return the number of pages of the file."""
        self._ready()
        return int(self._env.info()["last_pgno"]) + 1

    def last_change(self) -> int:
        """Return the number of the last committed transaction; takes 1 us; a snapshot takes 5."""
        self._ready()
        return int(self._env.info()["last_txnid"])

    def live_pages(self) -> int:
        """Return the number of pages in use."""
        kinds = ("branch_pages", "leaf_pages", "overflow_pages")
        return sum(stat[kind] for stat in self.stat().values() for kind in kinds)

    def copy_to(self, handle: int) -> None:
        """Write a consistent copy without free pages to an open file."""
        self._ready()
        while True:
            with self._gate.inside():
                try:
                    self._env.copyfd(handle, compact=True)
                except lmdb.MapResizedError:
                    pass
                except lmdb.Error as error:
                    raise _mapped(error, self.config.path) from error
                else:
                    return
            self._adopt()

    def sync(self) -> None:
        """Flush an environment that was opened with sync off."""
        self._ready()
        with self._gate.inside():
            try:
                self._env.sync(True)
            except lmdb.Error as error:
                raise _mapped(error, self.config.path) from error


def sound(path: Path) -> bool:
    """Return whether the pages of a data file, or of the one in a folder, are well formed.

    For damaged or untrusted files, because LMDB does not verify pages and can crash the process on
    bad ones. True if there is no file; False if this LMDB has no `verify` (before 3.0).
    """
    data = path / DATA_FILE if path.is_dir() else path
    if not data.exists() or data.stat().st_size == 0:
        return True
    try:
        from lmdb.verify import VerifyError, verify  # noqa: PLC0415 - rare, and not in LMDB 2.3
    except ImportError:
        return False
    try:
        problems: list[str] = verify(str(data), False)  # type: ignore[no-untyped-call]
    except (VerifyError, OSError):
        return False
    return not problems


_FULL = ("No space left", "File too large", "Disk quota exceeded")
_REFUSED = ("Permission denied", "Read-only file system", "Operation not permitted")


def _mapped(error: lmdb.Error, path: Path) -> StoreError:
    """Return the StoreError for an LMDB error."""
    text = f"{path}: {str(error).removeprefix(f'{path}: ')}"
    # LMDB reports an incomplete write as an I/O error; usually the disk is full.
    full = any(words in text for words in _FULL) or ("Input/output" in text and no_room(path))
    if isinstance(error, lmdb.DiskError) or full:
        return StoreFullError(text, hint="free disk space")
    if isinstance(error, lmdb.ReadonlyError) or any(words in text for words in _REFUSED):
        return StoreAccessError(text, hint="check the owner and the permissions of the folder")
    if isinstance(error, lmdb.VersionMismatchError):
        return StoreVersionError(text, hint="use the version of LMDB that wrote the file")
    if isinstance(error, lmdb.LockError | lmdb.ReadersFullError):
        return StoreBusyError(text, hint="try again")
    if "No such file" in text:
        return StoreMissingError(text, hint="check the path")
    damaged = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError)
    if isinstance(error, damaged):
        return StoreDamagedError(text, hint="restore a backup")
    return StoreError(text)


environments: EnvironmentRegistry[Environment] = EnvironmentRegistry(
    Environment.close, Environment.after_fork
)


def share(config: EnvironmentConfig, *, create: bool) -> Environment:
    """Return this process's environment of a folder, opened if necessary; `release` it later."""

    def make() -> Environment:
        environment = Environment(config)
        try:
            environment.open_tables(create=create)
        except BaseException:
            environment.close()
            raise
        return environment

    environment = environments.take(config.path, make)
    if environment.config.readonly and not config.readonly:
        environments.give_back(environment)
        raise StoreBusyError(
            f"the model in {config.path} is open read-only in this process", hint="close it first"
        )
    return environment


def release(environment: Environment) -> None:
    """Release an environment of `share`; the last release closes it."""
    environments.give_back(environment)


def share_or_renew(folder: Path, names: tuple[str, ...]) -> Environment:
    """Open the environment in a folder; an empty one if there is none, or if it is damaged."""
    make_folder(folder)
    plan = EnvironmentConfig(folder, names)
    try:
        return _share(plan)
    except (StoreDamagedError, StoreVersionError):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise refused(error, folder) from error
        make_folder(folder)
        return _share(plan)


def _share(plan: EnvironmentConfig) -> Environment:
    try:
        return share(plan, create=False)
    except StoreMissingError:
        return share(plan, create=True)


class ModelStore:
    """The store of one model folder: opened by `open_store`, or by `temporary_store`.

    It holds one model: its recipe, its totals, the records of its features, their texts (if the
    recipe has a vocabulary), the corrections of persons, the lists of senders, the journal of
    events, and two indexes into the journal.

    `read` never blocks on a writer and sees no unfinished transaction; the caller must not keep the
    snapshot open across a yield of control. `write` waits for the writer lock. All changes become
    visible together when the block ends, and are on disk then; an exception inside the block leaves
    the store unchanged. A thread opens one write block at a time, and keeps no snapshot open while
    it writes.

    Failure: StoreErrors, BugError (the caller broke a rule of the views) and RefusedError (a sum
    leaves its range in `fold`). If the store has to grow in a `write` block, it raises a
    StoreBusyError (transient: nothing was changed, and the store has grown).
    """

    def __init__(self, environment: Environment, recipe: Recipe, *, readonly: bool) -> None:
        self._environment: Environment | None = environment
        self._recipe = recipe
        self._readonly = readonly
        self._page_bytes = environment.page_bytes

    @property
    def recipe(self) -> Recipe:
        """Return the model's recipe."""
        return self._recipe

    @property
    def environment(self) -> Environment:
        """Return the environment, for backups and measurements."""
        if self._environment is None:
            raise BugError("the store is closed")
        return self._environment

    @property
    def scores_host(self) -> str:
        """Return the name under which its host counts scores: all hosts without a log have one."""
        return "this host"

    def last_change(self) -> int:
        """Return a number that differs after each change."""
        return self.environment.last_change()

    @contextlib.contextmanager
    def read(self) -> Iterator[ReadView]:
        """Open a snapshot."""
        with self.environment.read() as tables:
            yield ReadView(Tables(**tables), self._recipe, self._caches())

    @contextlib.contextmanager
    def write(self) -> Iterator[WriteView]:
        """Open the write transaction."""
        self._writable()
        with self.environment.write() as tables:
            view = self._write_view(tables)
            yield view
            view.finish()

    def transact(self, run: Callable[[WriteView], Result]) -> Result:
        """Run a function in a write transaction, again if the store had to grow meanwhile.

        So it has no side effects other than changes to the view.
        """
        self._writable()

        def body(tables: dict[str, LmdbTable]) -> Result:
            view = self._write_view(tables)
            result = run(view)
            view.finish()
            return result

        return self.environment.transact(body)

    def _write_view(self, tables: dict[str, LmdbTable]) -> WriteView:
        return WriteView(Tables(**tables), self._recipe, self._caches(), self._page_bytes)

    def _caches(self) -> Caches:
        mapped = self.environment.mapped
        caches: Caches = mapped.get("caches") or mapped.setdefault("caches", Caches())
        return caches

    def _writable(self) -> None:
        if self._readonly:
            raise StoreAccessError(
                f"the model in {self.environment.config.path} is open read-only",
                hint="open it without readonly to change it",
            )

    @property
    def limit_bytes(self) -> int:
        """Return the maximum size of the file."""
        return self.environment.limit_bytes

    def close(self) -> None:
        """Close the store; a second call does nothing."""
        environment, self._environment = self._environment, None
        if environment is not None:
            release(environment)


def open_store(
    path: str | Path,
    *,
    create: Recipe | None = None,
    readonly: bool = False,
    map_size: int = MAP_SIZE,
    limit_bytes: int = 0,
) -> ModelStore:
    """Open the model in a folder; create one with the recipe `create` if there is none.

    An existing model keeps its own recipe. `limit_bytes` 0 derives a limit from the disk
    (`limit_of`).
    """
    folder = Path(path)
    exists = holds_data(folder)
    if not exists and create is None:
        raise StoreMissingError(f"there is no model in {folder}", hint="train one first")
    if not exists:
        make_folder(folder)
    config = EnvironmentConfig(
        folder, Tables._fields, readonly, map_size, limit_bytes, disk_share=True
    )
    environment, incomplete = _shared(config, exists=exists, create=create is not None)
    try:
        if incomplete and create is not None:
            environment.transact(lambda tables: _create_once(tables, create))
            sync_folder(folder)
        recipe = read_recipe(environment)
        return ModelStore(environment, recipe, readonly=readonly)
    except BaseException:
        release(environment)
        raise


def temporary_store(recipe: Recipe) -> ModelStore:
    """Create a store in a temporary folder, which goes with it; nothing is flushed to the disk."""
    folder = Path(tempfile.mkdtemp(prefix="spamnb-"))
    environment = share(EnvironmentConfig(folder, Tables._fields, sync=False), create=True)
    environment.transact(lambda tables: create_model(Tables(**tables), recipe))
    store = ModelStore(environment, recipe, readonly=False)
    weakref.finalize(store, _remove, environment, folder, os.getpid())
    return store


def _remove(environment: Environment, folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a child has a copy of the store, and not its folder
        release(environment)
        shutil.rmtree(folder, ignore_errors=True)


def _shared(config: EnvironmentConfig, *, exists: bool, create: bool) -> tuple[Environment, bool]:
    """Return the environment, and whether its model may be missing or incomplete.

    A process killed while it creates a model leaves a file without tables, or tables without a
    recipe; the next process that may create one completes it.
    """
    if exists:
        try:
            environment = share(config, create=False)
        except StoreMissingError:
            if not create:
                raise
        else:
            return environment, create and not has_recipe(environment)
    return share(config, create=True), True


def has_recipe(environment: Environment) -> bool:
    """Return whether the model was created completely."""
    with environment.read() as tables:
        return tables["meta"].get(RECIPE_KEY) is not None


def _create_once(tables: dict[str, LmdbTable], recipe: Recipe) -> None:
    """Create a model, unless another process has created it meanwhile."""
    if tables["meta"].get(RECIPE_KEY) is None:
        create_model(Tables(**tables), recipe)


def read_recipe(environment: Environment) -> Recipe:
    """Return the model's recipe; StoreVersionError if another version wrote the model."""
    path = environment.config.path
    with environment.read() as tables:
        written = tables["meta"].get(FORMAT_KEY)
        if written is None:
            raise StoreMissingError(
                f"the LMDB database in {path} is not a spamnb model", hint="check --home"
            )
        version = int.from_bytes(written, "little")
        if version != FORMAT:
            raise StoreVersionError(
                f"the model in {path} has format {version}, this program reads {FORMAT}",
                hint="train a new model in another folder; the journal of this one is lost, and "
                "all training with mail that no longer exists",
            )
        recipe = tables["meta"].get(RECIPE_KEY)
        if recipe is None:
            raise StoreDamagedError(f"the model in {path} has no recipe", hint="restore a backup")
        return decode_recipe(recipe)
