"""LMDB, with its quirks made invisible: one deep module.

What is healed here and never told: a map that is full (grown, the transaction run again), a map
that another process has grown (adopted), reader slots left by dead processes (cleared) or all taken
(waited for), an address space that refuses the wished map (a smaller one), two stores of one
process on one folder (they share an environment: POSIX locks belong to the process, so closing a
second one would drop the locks of the first). What cannot be healed is a fork: the child never
touches what it inherited, and is told so when it tries to use it.

Durable: sync on, writemap off; LMDB writes the pages, calls fdatasync, and writes the meta page
through O_DSYNC, before a write block ends. Folder 0700, files 0600.

The only module that imports lmdb; must not know what the tables hold. Invariants: at most one
environment of a file in a process; no lock of ours is held while a caller's reader runs.
Failure: errors of the StoreError family alone; an LMDB error is mapped in `_mapped`, once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
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
    StoreVersionError,
)
from spamnb.store.lmdb.sharing import (
    DATA_FILE,
    LOCK_FILE,
    EnvironmentConfig,
    EnvironmentRegistry,
    RetryDeadline,
    TransactionGate,
    no_room,
)
from spamnb.store.lmdb.table import LmdbTable
from spamnb.store.size_limit import PAGE_BYTES, limit_of

_LEAST_MAP = 1 << 20
_MAX_READERS = 510
_MOST_GROWTHS = 30
"""doublings in one call: enough from 1 MiB to beyond any disk"""

Result = TypeVar("Result")


class MapGrownError(StoreBusyError):
    """The map was full and has been made larger; nothing was changed. `transact` runs again."""


class _MapMovedError(Exception):
    """Another process has grown the map."""


class Environment:
    """One LMDB environment of this process: transactions that heal what can be healed."""

    def __init__(self, plan: EnvironmentConfig) -> None:
        self.plan = plan
        self._limit = self._limit_now()
        self._fresh_locks()
        self._env: Any = None
        self._inherited: Any = None
        """the parent's, kept from being freed: closing it would touch its lock table"""
        self._dbs: dict[str, Any] = {}
        self._open()

    def _fresh_locks(self) -> None:
        self._gate = TransactionGate()
        self._writer = threading.Lock()
        self._writing_thread = 0

    # --- opening ---

    def _open(self) -> None:
        plan = self.plan
        size = min(plan.map_size, self._limit or plan.map_size)
        waiting = RetryDeadline()
        while True:
            try:
                self._env = lmdb.open(
                    str(plan.path), map_size=size, readonly=plan.readonly, sync=plan.sync,
                    metasync=plan.sync, lock=plan.lock, mode=0o700, create=False, writemap=False,
                    max_readers=_MAX_READERS, max_dbs=len(plan.names),
                )  # fmt: skip
                break
            except lmdb.MemoryError as error:
                # RLIMIT_AS, or overcommit forbidden: take what the address space gives.
                size //= 2
                if size < _LEAST_MAP:
                    raise StoreError(f"{plan.path}: no address space for the map") from error
            except lmdb.InvalidParameterError as error:
                # Whoever replaced the data file was killed: the first to come alone makes the lock
                # file anew, and others may hold it in the same moment.
                if not _is_empty(plan.path / LOCK_FILE):
                    raise _mapped(error, plan.path) from error
                waiting.pause(f"{plan.path}: its lock file is empty, and held by others")
            except lmdb.Error as error:
                raise _mapped(error, plan.path) from error
        self._refuse_cut_off()
        self._env.reader_check()

    def _refuse_cut_off(self) -> None:
        """Reading a page beyond the file's end is a SIGBUS, not an error: look before.

        A file may rightly end before its last page (pages taken and given back in one transaction
        are never written), so a short one is walked before it is called damaged.
        """
        path = self.plan.path
        pages = self._env.info()["last_pgno"] + 1
        size = pages * int(self._env.stat()["psize"])
        if (path / DATA_FILE).stat().st_size < size and not sound(path):
            self._env.close()
            raise StoreDamagedError(f"{path}: the data file is cut off", hint="restore a backup")

    def open_tables(self, *, create: bool) -> None:
        """Find the databases, or make them."""
        waiting = RetryDeadline()
        if create:
            self._refuse_foreign()
        for name in self.plan.names:
            while name not in self._dbs:
                self._open_table(name, waiting, create=create)

    def _refuse_foreign(self) -> None:
        """Somebody else's database is not made into a model."""
        with self._env.begin() as txn:
            names = {bytes(key).decode("latin-1") for key, _ in txn.cursor()}
        if not names <= set(self.plan.names):
            raise StoreMissingError(f"{self.plan.path} holds an LMDB database that is no model")

    def _open_table(self, name: str, waiting: RetryDeadline, *, create: bool) -> None:
        try:
            # Without a transaction of ours: a handle opened in one that only reads dies with it.
            self._dbs[name] = self._env.open_db(name.encode(), create=create)
        except lmdb.NotFoundError as error:
            raise StoreMissingError(
                f"{self.plan.path} holds an LMDB database that is no model"
            ) from error
        except lmdb.MapResizedError:
            self._env.set_mapsize(0)
        except lmdb.MapFullError:
            self._grow()
        except lmdb.ReadersFullError:
            self._free_slot(waiting)
        except lmdb.Error as error:
            raise _mapped(error, self.plan.path) from error

    def after_fork(self) -> None:
        """In the child: let go of the inherited environment without touching it."""
        self._inherited, self._env, self._dbs = self._env, None, {}
        self._fresh_locks()

    def _ready(self) -> None:
        if self._env is not None:
            return
        if self._inherited is not None:
            # Opening it again here is refused by py-lmdb, which remembers the files as open; and
            # closing it first would clear the parent's slots in the lock table.
            raise BugError(
                f"{self.plan.path} was opened before a fork and is used after it",
                hint="open the store in the child alone, or start the child by spawn",
            )
        raise BugError("a store is used before it is closed, not after")

    def close(self) -> None:
        """Let go of the files, when this process's last transaction has ended."""
        if self._env is None:
            return
        with self._gate.closed():
            env, self._env = self._env, None
            env.close()

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._env is not None

    @property
    def page_bytes(self) -> int:
        """The engine's page."""
        self._ready()
        return int(self._env.stat()["psize"])

    @property
    def map_size(self) -> int:
        """Address space taken now."""
        self._ready()
        return int(self._env.info()["map_size"])

    # --- transactions ---

    @contextlib.contextmanager
    def read(self) -> Iterator[dict[str, LmdbTable]]:
        """A snapshot."""
        self._ready()
        waiting = RetryDeadline()
        while True:
            with self._gate.inside():
                txn = self._begin(waiting, write=False)
                if txn is not None:
                    try:
                        yield self._tables(txn)
                    except lmdb.Error as error:
                        raise _mapped(error, self.plan.path) from error
                    finally:
                        txn.abort()
                    return
            self._adopt()

    @contextlib.contextmanager
    def write(self) -> Iterator[dict[str, LmdbTable]]:
        """The writer's transaction."""
        self._ready()
        if self._writing_thread == threading.get_ident():
            raise BugError("a thread writes one transaction at a time")
        with self._writer:
            self._writing_thread = threading.get_ident()
            try:
                self._grow_ahead()
                yield from self._write()
            finally:
                self._writing_thread = 0

    def _write(self) -> Iterator[dict[str, LmdbTable]]:
        waiting = RetryDeadline()
        while True:
            with self._gate.inside():
                txn = self._begin(waiting, write=True)
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
                        raise _mapped(error, self.plan.path) from error
                    except BaseException:
                        txn.abort()
                        raise
                    return
            self._adopt()
        self._grow()
        raise MapGrownError(
            f"{self.plan.path}: the map was full and has been grown", hint="run it again"
        ) from cause

    def transact(self, run: Callable[[dict[str, LmdbTable]], Result]) -> Result:
        """Run a function in a write transaction, again if the map had to grow."""
        for _ in range(_MOST_GROWTHS):
            with contextlib.suppress(MapGrownError), self.write() as tables:
                return run(tables)
        raise StoreFullError(f"{self.plan.path}: the map grew {_MOST_GROWTHS} times in vain")

    def _begin(self, waiting: RetryDeadline, *, write: bool) -> Any:
        """A transaction; None if another process has grown the map."""
        while True:
            try:
                return self._env.begin(write=write, buffers=True)
            except lmdb.MapResizedError:
                return None
            except lmdb.ReadersFullError:
                self._free_slot(waiting)
            except lmdb.Error as error:
                raise _mapped(error, self.plan.path) from error

    def _free_slot(self, waiting: RetryDeadline) -> None:
        """Clear the slots of dead readers; if there are none, wait for the living."""
        if self._env.reader_check() == 0:
            waiting.pause(f"{self.plan.path}: all {_MAX_READERS} reader slots are taken")

    def _tables(self, txn: Any) -> dict[str, LmdbTable]:
        return {name: LmdbTable(txn, db) for name, db in self._dbs.items()}

    def _adopt(self) -> None:
        with self._gate.closed():
            self._env.set_mapsize(0)

    def _grow_ahead(self) -> None:
        """Grow before a transaction when less is free than it may need: a quarter of what is used.

        Saves running most transactions twice; one that needs more is run again.
        """
        info = self._env.info()
        used = (info["last_pgno"] + 1) * 4096
        if info["map_size"] - used < used // 4 and not self._at_limit(info["map_size"]):
            self._grow()

    @property
    def limit_bytes(self) -> int:
        """The largest size of the file as of now; 0 is no limit."""
        plan = self.plan
        limit = limit_of(plan.path, plan.limit_bytes) if plan.disk_share else plan.limit_bytes
        return limit - limit % PAGE_BYTES

    def _limit_now(self) -> int:
        # A reader of a file that has grown beyond the limit must see all of it.
        return 0 if self.plan.readonly else self.limit_bytes

    def _at_limit(self, size: int) -> bool:
        return bool(self._limit) and size >= self._limit

    def _grow(self) -> None:
        size = int(self._env.info()["map_size"])
        if self._at_limit(size):
            self._limit = self._limit_now()
        if self._at_limit(size):
            raise StoreFullError(
                f"{self.plan.path}: the limit of {self._limit} bytes is reached",
                hint="raise store.limit_bytes, expire features, or compact",
            )
        bigger = min(2 * size, self._limit or 2 * size)
        with self._gate.closed():
            try:
                self._env.set_mapsize(bigger)
            except lmdb.Error as error:
                raise _mapped(error, self.plan.path) from error

    def stat(self) -> dict[str, dict[str, int]]:
        """Pages of each database."""
        with self.read() as tables:
            return {name: table.stat() for name, table in tables.items()}

    def pages(self) -> int:
        """Pages of the file."""
        self._ready()
        return int(self._env.info()["last_pgno"]) + 1

    def live_pages(self) -> int:
        """Pages that hold something."""
        kinds = ("branch_pages", "leaf_pages", "overflow_pages")
        return sum(stat[kind] for stat in self.stat().values() for kind in kinds)

    def copy_to(self, handle: int) -> None:
        """A consistent copy without free pages, to an open file."""
        self._ready()
        while True:
            with self._gate.inside():
                try:
                    self._env.copyfd(handle, compact=True)
                except lmdb.MapResizedError:
                    pass
                except lmdb.Error as error:
                    raise _mapped(error, self.plan.path) from error
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
                raise _mapped(error, self.plan.path) from error


def sound(path: Path) -> bool:
    """Whether a data file, or the one in a folder, is well formed; the engine is not asked.

    For files that may be torn or a stranger's: LMDB trusts its pages and can end the process when
    it meets bad ones. True where there is no file yet; False where this LMDB cannot tell (before
    3.0).
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


def _is_empty(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size == 0
    return False


def _mapped(error: lmdb.Error, path: Path) -> StoreError:
    """Our error for one of LMDB's."""
    said = f"{path}: {str(error).removeprefix(f'{path}: ')}"
    # LMDB calls a write that was cut short an I/O error: mostly the disk filled up in its midst.
    full = any(word in said for word in _FULL) or ("Input/output" in said and no_room(path))
    if isinstance(error, lmdb.DiskError) or full:
        return StoreFullError(said, hint="make room on the disk")
    if isinstance(error, lmdb.ReadonlyError) or any(word in said for word in _REFUSED):
        return StoreAccessError(said, hint="check the owner and the permissions of the folder")
    if isinstance(error, lmdb.VersionMismatchError):
        return StoreVersionError(said, hint="the file was written by another version of LMDB")
    if isinstance(error, lmdb.LockError | lmdb.ReadersFullError):
        return StoreBusyError(said)
    if "No such file" in said:
        return StoreMissingError(said)
    broken = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError)
    if isinstance(error, broken):
        return StoreDamagedError(said, hint="restore a backup")
    return StoreError(said)


environments: EnvironmentRegistry[Environment] = EnvironmentRegistry(
    Environment.close, Environment.after_fork
)


def share(plan: EnvironmentConfig, *, create: bool) -> Environment:
    """The process's environment at this path, opened if need be; `release` gives it back."""

    def make() -> Environment:
        environment = Environment(plan)
        try:
            environment.open_tables(create=create)
        except BaseException:
            environment.close()
            raise
        return environment

    environment = environments.take(plan.path, make)
    if environment.plan.readonly and not plan.readonly:
        environments.give_back(environment)
        raise StoreBusyError(f"{plan.path} is open read-only in this process")
    return environment


def release(environment: Environment) -> None:
    """Give an environment back; the last one closes it."""
    environments.give_back(environment)
