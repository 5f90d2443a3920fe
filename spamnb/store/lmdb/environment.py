"""`Environment`: an LMDB environment that handles LMDB's special conditions itself.

Handled without an error: a full map (grown, and the transaction run again); a map that another
process has grown (adopted); reader slots left by dead processes (cleared) or all in use (waited
for); too little address space for the map (a smaller map); two stores of one process in one folder
(they share an environment, because POSIX locks belong to the process and closing a second one would
drop the locks of the first). Use after a fork is not possible: the child never touches the
inherited environment, and using it raises a BugError.

Durability: sync on, writemap off; LMDB writes the pages, calls fdatasync, and writes the meta page
through O_DSYNC, before a write block ends. Folder mode 0700, files 0600.

The only module that imports lmdb; must not know the contents of the tables. Invariants: at most
one environment for each file in a process; no lock of this module is held while a caller reads.
Failure: StoreErrors only; `_mapped` maps every LMDB error.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

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
from spamnb.store.lmdb.sharing import (
    DATA_FILE,
    LOCK_FILE,
    EnvironmentConfig,
    EnvironmentRegistry,
    RetryDeadline,
    TransactionGate,
    inode_of,
    is_empty,
    no_room,
)
from spamnb.store.lmdb.table import LmdbTable
from spamnb.store.size_limit import limit_of

_LEAST_MAP = 1 << 20
_MAX_READERS = 510
_MOST_GROWTHS = 30
"""maximum doublings in one call: enough from 1 MiB to more than any disk"""

Result = TypeVar("Result")


class MapGrownError(StoreBusyError):
    """The map was full and has been grown; nothing was changed. `transact` runs again."""


class Environment:
    """One LMDB environment of this process, shared by its threads."""

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
