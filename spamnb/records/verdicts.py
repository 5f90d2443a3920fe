"""The history of verdicts, and searches in it.

Recent verdicts with their feature ids, so that a correction needs no message body. The history has
a folder of its own beside the model, because its guarantees differ: it gets thousands of entries an
hour, keeps them for weeks, and may lose those of the last second. `AppendFile` has the newest
entries, `History` all, `FrequentTables` what makes them small; `LookupIndex` finds them by terms,
`BootMarker` tells a power cut from a kill.

Must not know the model. Failure: StoreFullError, StoreAccessError, StoreBusyError;
StoreVersionError and StoreDamagedError for bytes that are not an entry.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple, Self, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import (
    BugError,
    SpamnbError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreVersionError,
)
from spamnb.model.events import Blocks, Ids
from spamnb.settings.values import HistoryLimits
from spamnb.store.codec import (
    TABLE_NAME_BYTES,
    Buffer,
    ByteCursor,
    FrequentIds,
    NamedTable,
    TableOf,
    chunk,
    decode_blocks,
    decode_ids,
    decode_ints,
    decode_small,
    encode_ids_raw,
    encode_ints,
    encode_small,
    no_table,
    text,
    varint,
)
from spamnb.store.files import make_folder, refused, sync_folder
from spamnb.store.journal import ChunkedValues, Pages, StoredTable, surely_older
from spamnb.store.model_store import (
    DATA_FILE,
    Environment,
    EnvironmentConfig,
    EnvironmentRegistry,
    LmdbTable,
    environments,
    inode_of,
    release,
    share,
    sound,
)

_MAGIC = b"\xffhi\xfe"
_HEAD = struct.Struct("<4sII")


class AppendFile:
    """The file of one folder. Use `open_append_file` to get it.

        record   magic, 4 bytes | u32 length | u32 CRC-32 of the data | data (see `HistoryEntry`)

    A record costs 5 us now, for one write(2), and 37 us later, in a transaction of hundreds of
    records. A transaction for each record would make scoring a single message 7 to 9 % slower.
    Records are appended under a lock (flock) that processes share; the process that moves them into
    the tables empties the file. A writer that is killed, and a power cut, can leave incomplete
    records: the reader looks for the next magic with a correct length and sum. Two bytes of the
    magic never occur in UTF-8, so a Message-ID cannot contain a record that is found when the
    record around it is incomplete.

    The lock belongs to the open file, which threads and a forked child would share. So threads use
    a lock of the process, and a child closes the file. A process opens a folder's file only once,
    like its LMDB environment, so both always belong to the same folder, even after another folder
    takes its path.

    Must not know the tables. A failed `add` leaves nothing in the file.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fresh"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._handle = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise refused(error, self.path) from error
        self._lock = threading.Lock()

    def _open_handle(self) -> int:
        if self._handle < 0:
            raise BugError(f"{self.path} is used after it was closed, or after a fork")
        return self._handle

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The open file; no other thread or process changes it within the block."""
        with self._lock:
            handle = self._open_handle()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield handle
            except OSError as error:
                raise refused(error, self.path) from error
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)

    def size(self) -> int:
        """How many bytes are in the file."""
        return os.fstat(self._open_handle()).st_size

    def add(self, values: Sequence[bytes]) -> None:
        """Append records: all of them, or none."""
        self.add_raw(b"".join(map(_record, values)))

    def add_raw(self, raw: bytes) -> None:
        """Append records in the form that `read` returns."""
        rest = memoryview(raw)
        with self._locked() as handle:
            try:
                while rest:
                    rest = rest[os.write(handle, rest) :]
            except OSError:
                os.ftruncate(handle, os.fstat(handle).st_size - len(raw) + len(rest))
                raise

    def read(self) -> bytes:
        """All bytes of the file."""
        with self._locked() as handle:
            return _whole(handle)

    @contextmanager
    def emptying(self, seen: bytes) -> Iterator[bytes]:
        """What was added since `seen` was read; the file is empty after the block, unless it fails.

        No process can add within the block, so the caller stores `seen` before it. The block gets
        the records that were added meanwhile, or all records if another process emptied the file.
        """
        with self._locked() as handle:
            raw = _whole(handle)
            yield raw.removeprefix(seen)
            os.ftruncate(handle, 0)

    def in_place(self) -> bool:
        """Whether the file is still at its path; another folder may have taken the path."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._open_handle()))

    def sync(self) -> None:
        try:
            os.fdatasync(self._open_handle())
        except OSError as error:
            raise refused(error, self.path) from error

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def after_fork(self) -> None:
        """In the child: close the file, so that the lock stays with the parent."""
        self.close()
        self._lock = threading.Lock()


def _record(data: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, len(data), crc32(data)) + data


def _whole(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def records(raw: bytes) -> Iterator[bytes]:
    """The data of each whole record; incomplete ones are skipped."""
    at = raw.find(_MAGIC)
    while 0 <= at <= len(raw) - _HEAD.size:
        _, length, crc = _HEAD.unpack_from(raw, at)
        start = at + _HEAD.size
        data = raw[start : start + length]
        whole = len(data) == length and crc32(data) == crc
        if whole:
            yield data
        at = raw.find(_MAGIC, start + length if whole else at + 1)


_files: EnvironmentRegistry[AppendFile] = EnvironmentRegistry(
    AppendFile.close, AppendFile.after_fork
)


def open_append_file(folder: Path) -> AppendFile:
    """The process's file of this folder, opened if need be; `release_append_file` gives it back."""
    return _files.take(folder, lambda: AppendFile(folder))


def release_append_file(append_file: AppendFile) -> None:
    """Give a file back; the last user closes it."""
    _files.give_back(append_file)


def reopen_append_file(append_file: AppendFile, folder: Path) -> AppendFile:
    """The file that is in the folder now; users of the old one still give that back."""
    _files.evict(append_file)
    return open_append_file(folder)


class BootMarker:
    """The file with the boot in which a folder is open; the last process to close it empties it.

    The history is not synced with each entry, so after a power cut its pages may be of any age and
    must be checked. The process that opens the history writes the boot's id to a file beside it,
    and the last process to close it empties the file: the id of another boot means that no process
    closed it. Must not know entries. Failure: StoreError where the file cannot be written.
    """

    def __init__(self) -> None:
        self._handle = -1
        self._pid = 0

    def begin(self, folder: Path) -> bool:
        """Write this boot's id. True if the file has another id: that boot ended by a power cut."""
        self.end(wipe=False)
        path = folder / "boot"
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._pid = os.getpid()
            fcntl.flock(self._handle, fcntl.LOCK_SH)
            last = os.pread(self._handle, 64, 0).decode("ascii", "replace")
            os.pwrite(self._handle, _boot_id().encode(), 0)
            os.fsync(self._handle)
            sync_folder(folder)
        except OSError as error:
            raise refused(error, path) from error
        return last not in ("", _boot_id())

    def end(self, *, wipe: bool = True) -> None:
        """Close the file; empty it first if no other process has it open, but not in a child."""
        if self._handle < 0:
            return
        with suppress(OSError):
            if wipe and self._pid == os.getpid():
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(self._handle, 0)
        os.close(self._handle)
        self._handle = -1


def _boot_id() -> str:
    """The id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


_WITHOUT_TABLE, _WITH_TABLE = 1, 2
"""the versions of an entry"""
_ENTRY_HEAD = struct.Struct("<BBqdd16s")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One verdict, as it was given."""

    time_us: int
    signature: bytes
    """16 unguessable bytes, given by the caller"""
    digest: bytes
    message_id: str
    label: str
    probability: float
    log_odds: float
    decision: str
    ids: tuple[Ids, ...]
    times: NDArray[np.uint32] | None = None
    """only in models that count occurrences"""
    notes: dict[str, str] = field(default_factory=dict)
    """recipient, queue id and other facts"""
    blocks: Blocks | None = None
    """None for a text of a single block"""


_TIMES, _BLOCKS = 1, 2


_JSON = json.JSONEncoder(separators=(",", ":")).encode


def encode_entry(entry: HistoryEntry, frequent: NamedTable | None = None) -> bytes:
    """u8 version | u8 times 1, blocks 2 | i64 time_us | f64 probability | f64 log_odds | signature.

    Then chunk digest | text message_id, label, decision | chunk notes (JSON, or empty), and

        without a table   varint G | G * ids, all bytes raw | [ints times] | [u8 block of each id]
        with a table      its name, 4 bytes | ids by the table | [ints times] | [small blocks]

    An entry without a table can be read everywhere. 448 ids with their blocks take 4,000 bytes
    without a table and 1,400 with one.
    """
    notes = _JSON(entry.notes).encode() if entry.notes else b""
    parts = [
        _ENTRY_HEAD.pack(
            _WITHOUT_TABLE if frequent is None else _WITH_TABLE,
            (entry.times is not None) * _TIMES | (entry.blocks is not None) * _BLOCKS,
            entry.time_us,
            entry.probability,
            entry.log_odds,
            entry.signature,
        ),
        chunk(entry.digest),
        text(entry.message_id),
        text(entry.label),
        text(entry.decision),
        chunk(notes),
    ]
    if frequent is None:
        parts += (varint(len(entry.ids)), *map(encode_ids_raw, entry.ids))
    else:
        parts += (frequent.name, frequent.table.encode(entry.ids))
    if entry.times is not None:
        parts.append(encode_ints(entry.times))
    if entry.blocks is not None:
        parts.append(entry.blocks.tobytes() if frequent is None else encode_small(entry.blocks))
    return b"".join(parts)


class EntryKeys(NamedTuple):
    """When an entry was made, and the keys by which it is found; the rest is not read."""

    time_us: int
    signature: bytes
    digest: bytes
    message_id: str


def decode_keys(data: Buffer) -> EntryKeys:
    """The keys of the entry in these bytes."""
    return _decode_head(ByteCursor(data)).keys


class _EntryHead(NamedTuple):
    keys: EntryKeys
    probability: float
    log_odds: float
    flags: int
    has_table: bool


def _decode_head(reader: ByteCursor) -> _EntryHead:
    version, flags, time_us, probability, log_odds, signature = _ENTRY_HEAD.unpack(
        reader.take(_ENTRY_HEAD.size)
    )
    if version not in (_WITHOUT_TABLE, _WITH_TABLE):
        raise StoreVersionError(f"a history entry of version {version}")
    keys = EntryKeys(time_us, signature, reader.chunk(), reader.text())
    return _EntryHead(keys, probability, log_odds, flags, version == _WITH_TABLE)


def decode_entry(data: Buffer, table_of: TableOf = no_table) -> HistoryEntry:
    """The entry in these bytes."""
    reader = ByteCursor(data)
    entry, head = _decode_facts(reader)
    if head.has_table:
        ids = table_of(bytes(reader.take(TABLE_NAME_BYTES))).decode(reader)
    else:
        ids = tuple(decode_ids(reader) for _ in range(reader.varint()))
    count = sum(map(len, ids))
    times = decode_ints(reader, count).astype(np.uint32) if head.flags & _TIMES else None
    blocks = None
    if head.flags & _BLOCKS:
        blocks = decode_small(reader, count) if head.has_table else decode_blocks(reader, ids)
    return replace(entry, ids=ids, times=times, blocks=blocks)


def decode_facts(data: Buffer) -> HistoryEntry:
    """The entry in these bytes without its ids, which take most of the time."""
    return _decode_facts(ByteCursor(data))[0]


def _decode_facts(reader: ByteCursor) -> tuple[HistoryEntry, _EntryHead]:
    """The entry without ids, and its head."""
    head = _decode_head(reader)
    label, decision, notes = reader.text(), reader.text(), reader.chunk()
    try:
        facts: dict[str, str] = json.loads(notes) if notes else {}
    except ValueError as error:
        raise StoreDamagedError("notes of a history entry cannot be read") from error
    entry = HistoryEntry(
        *head.keys, label, head.probability, head.log_odds, decision, ids=(), notes=facts
    )
    return entry, head


_FLUSH_S = 1.0


class Flusher:
    """A thread that calls a function at most a second after each wake."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._due = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def wake(self) -> None:
        """Request a flush."""
        if self._pid != os.getpid():
            # The first call, or the first in a child process, which has no threads.
            self._due, self._stop, self._pid = threading.Event(), threading.Event(), os.getpid()
            self._thread = threading.Thread(target=self._loop, name="history-flush", daemon=True)
            self._thread.start()
        if not self._due.is_set():
            self._due.set()

    def _loop(self) -> None:
        # Checked each time: `stop` may be called between the end of the wait and `clear`, which
        # would hide it.
        while not self._stop.is_set():
            self._due.wait()
            if self._stop.wait(_FLUSH_S):
                return
            self._due.clear()
            # The next `add` reports the failure; this thread must go on until then.
            with suppress(SpamnbError):
                self._run()

    def stop(self) -> None:
        """End the thread and wait for it."""
        if self._thread is not None and self._pid == os.getpid():
            self._stop.set()
            self._due.set()
            self._thread.join()


NAMES = ("entries", "signatures", "mids", "digests", "meta")
_SEQ = struct.Struct(">Q")
_MAX_FOUND = 64
_DAY_US = 86_400_000_000
_EXPIRE_BATCH = 500
"""entries deleted in one transaction: some 10 ms, so that other writers wait only briefly"""
_MAX_PENDING = 4 << 20
"""some 1,700 entries, moved in 40 ms; also the most for one transaction"""
_READ_AT_ONCE = 64
_ROOM = b"room"
_FREQUENT_OF = 8_000
"""the entries of which a table is made, the newest: .3 s"""
_FREQUENT_FROM = 1_000
_FREQUENT_GROWTH = 16
_FREQUENT_DAYS = 30
"""A table is made of the first 1,000 entries, then when there are 16 times as many, and when it is
30 days old. The table of 1,000 messages has 76 % of the ids of later ones, that of 2,000 77 %."""
_FREQUENT_SHARE = 64
"""A table takes 512 KB; a history whose limit is less than 64 of them has none."""

Tables = dict[str, LmdbTable]
Result = TypeVar("Result")


class FrequentTables:
    """The tables of frequent ids of a history that this process has read or made.

    Entries name the table by which they are encoded, so several can be in use. A name is a hash of
    the table, because pending entries can come to a new history in which other tables are made.
    """

    def __init__(self) -> None:
        self._ids: dict[bytes, FrequentIds] = {}
        self._known: dict[bytes, StoredTable] = {}

    @property
    def newest(self) -> NamedTable | None:
        """The table for new entries."""
        known = list(self._known.values())
        return max(known, key=lambda one: one.seq).named if known else None

    @property
    def size(self) -> int:
        """The bytes of all tables."""
        return FrequentIds.SIZE * len(self._known)

    def is_due(self, count: int, seq: int) -> bool:
        """Whether a new table is worth its cost: see `_FREQUENT_FROM`."""
        if not self._known:
            return count >= _FREQUENT_FROM
        last = max(self._known.values(), key=lambda one: one.seq)
        is_old = seq > last.seq + _FREQUENT_DAYS * _DAY_US
        return is_old or count >= _FREQUENT_GROWTH * last.values

    def find(self, tables: Tables) -> None:
        """Read those that other processes have made."""
        for one in StoredTable.all(tables["meta"], self._ids):
            self._known[one.named.name] = one

    def reader(self, tables: Tables) -> TableOf:
        """Gives the table of a name, in one snapshot."""

        def table_of(name: bytes) -> FrequentIds:
            if name not in self._known:
                self.find(tables)
            return self._known[name].named.table if name in self._known else no_table(name)

        return table_of

    def put_known(self, tables: Tables) -> None:
        """Store the tables that this process knows in another history."""
        for one in self._known.values():
            one.put(tables["meta"])

    def forget(self, tables: Tables) -> None:
        """Delete the tables that only deleted entries need."""
        self.find(tables)
        oldest = next((seq for seq, _ in ChunkedValues(tables["entries"]).up(0, None)), 0)
        by_age = sorted(self._known.items(), key=lambda item: item[1].seq)
        for (name, _), (_, later) in pairwise(by_age):
            # A process can use an old table until its next flush.
            if later.seq + _DAY_US < oldest:
                StoredTable.remove(tables["meta"], name)
                del self._known[name], self._ids[name]


class History:
    """The verdicts of the last days. Made by `open`.

        fresh       recently added entries                     records (see `AppendFile`)
        data.mdb, lock.mdb                                     the other entries, in LMDB tables:
          entries     seq u64 | part u16 (big-endian)          pieces of an entry (see `journal`)
          signatures  signature, 16 bytes                      seq
          mids        blake2b of the Message-ID, 16 bytes | seq   nothing
          digests     digest | seq                             nothing
          meta        "room" (see `journal.Pages`); "frequent" | name, 4 bytes: u64 seq | u64 count
                      | a table of frequent ids, made at that seq from the newest of so many entries
        boot        the boot in which the folder is open

    `seq` is the time in microseconds, or one more than the last, so keys are in the order of age.

    `add` only appends to `fresh`: a transaction for one entry takes longer (see `AppendFile`). A
    reader first moves these pending entries into the tables and empties the file, so there is one
    way to read, and every process finds what any other has added. A thread moves and syncs them a
    second after an `add`; `add` itself moves them when many are pending. An entry with a signature
    that is in the tables is skipped, so an entry that is moved twice, after a kill or by two
    processes, is stored once.

        process killed            no entry that `add` accepted is lost
        power cut                 the entries of the last second are lost
        no room for `fresh`       `add` fails
        no room for the tables    entries stay pending and are not found; when many are, `add` fails
        the limit is reached      the oldest entries are deleted
        tables damaged            set aside; a new history starts with pending entries; `warning`
        set aside by another      noticed a second after an `add`, and by readers; opened anew

    LMDB does not sync before a commit returns here, so a power cut can leave inconsistent pages,
    and LMDB ends the process when it reads some of them. So the folder records the boot in which it
    is open, until the last process closes it. If it records another boot when it is opened, the
    file is first checked byte by byte (`lmdb.verify`). A damaged history is renamed and replaced by
    a new one; neither this nor an unreadable entry is an error.
    """

    def __init__(self, folder: Path, limits: HistoryLimits) -> None:
        self._folder = folder
        self._limits = limits
        self.warning = ""
        """what was set aside, and why; empty if nothing was"""
        # Small enough that the tables, with all pending entries, stay far below the map size.
        self._max_pending = min(_MAX_PENDING, limits.limit_bytes // 8)
        self._max_entry = limits.limit_bytes // 2
        self._closed = False
        self._frequent = FrequentTables()
        self._flusher = Flusher(self.flush)
        self._boot = BootMarker()
        self._replacing = threading.Lock()
        """held while the folder is replaced, so that no thread adds to the old one"""
        make_folder(folder)
        self._append_file = open_append_file(folder)
        try:
            self._environment = self._begin()
        except BaseException:
            release_append_file(self._append_file)
            raise
        self._move_to_read()

    @classmethod
    def open(cls, path: str | Path, limits: HistoryLimits | None = None) -> Self:
        """The history in a folder; a new one if there is none, or if it is damaged."""
        return cls(Path(path), limits or HistoryLimits())

    # --- opening, and starting again ---

    def _begin(self) -> Environment:
        if self._boot.begin(self._folder) and not sound(self._folder):
            self._set_aside("a power cut has left it unsound")
        try:
            return self._share()
        except (StoreDamagedError, StoreMissingError, StoreVersionError) as error:
            self._set_aside(str(error))
            return self._share()

    def _share(self) -> Environment:
        # A transaction copies the pages that it changes, at most all of them, and cannot use the
        # pages that the last one freed. So the map must be much larger than the limit, or than a
        # file that was made under a higher limit.
        data, limit = self._folder / DATA_FILE, self._limits.limit_bytes
        size = data.stat().st_size if data.exists() else 0
        plan = EnvironmentConfig(
            self._folder, NAMES, limit_bytes=3 * limit + max(limit, size), sync=False
        )
        if size:
            with suppress(StoreMissingError):
                return share(plan, create=False)
        # The file is new, or another process is creating it or was killed while creating it.
        return share(plan, create=True)

    def _set_aside(self, why: str) -> None:
        """Start a new history with the pending entries, or use that of a process that was faster.

        Every process that has the folder open has this file open, and its lock makes them wait.
        """
        old = self._append_file
        with old.emptying(b"") as left:
            if old.in_place():
                self._rename(why)
            make_folder(self._folder)
            self._boot.begin(self._folder)
            self._append_file = reopen_append_file(old, self._folder)
            with suppress(StoreFullError):
                self._append_file.add_raw(left)
        release_append_file(old)

    def _rename(self, why: str) -> None:
        aside = self._folder.with_name(self._folder.name + ".damaged")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            self._folder.rename(aside)
        except OSError as error:
            raise refused(error, self._folder) from error
        self.warning = f"the history was set aside as {aside}: {why}"

    def _reopen_if_moved(self) -> None:
        """Open the folder that is at the path now, if it is no longer the one that is open."""
        with self._replacing:
            if not self._append_file.in_place():
                self._start_again("it was taken away")
            elif not self._environment.is_open:
                # There was no room for the tables when the new folder was created.
                self._environment = self._share()

    def _start_again(self, why: str) -> None:
        environments.evict(self._environment)
        release(self._environment)
        self._set_aside(why)
        self._environment = self._share()
        if self._frequent.newest is not None:
            # Pending entries may need the tables of the old folder.
            self._environment.transact(self._frequent.put_known)

    def _with_recovery(self, run: Callable[[], Result]) -> Result:
        """Run; if the file is damaged, start a new history and run again on the empty one."""
        environment = self._environment
        try:
            return run()
        except (StoreDamagedError, BugError) as error:
            with self._replacing:
                # Another thread may have found the damage too, and started a new history already;
                # a thread that was running meanwhile finds its environment closed.
                if self._environment is environment:
                    if isinstance(error, BugError):
                        raise
                    self._start_again(str(error))
        return run()

    # --- writing ---

    def add(self, entries: Iterable[HistoryEntry]) -> None:
        """Add entries, all or none: once this returns, no kill loses them."""
        frequent = self._frequent.newest
        encoded = [encode_entry(entry, frequent) for entry in entries]
        if not encoded:
            return
        longest = max(map(len, encoded))
        if longest > self._max_entry:
            raise StoreFullError(
                f"{self._folder}: an entry of {longest} bytes", hint="raise history.limit_bytes"
            )
        if self._pending_bytes() > self._max_pending:
            self._move_pending()
        with self._replacing:
            self._append_file.add(encoded)
        self._flusher.wake()

    def _pending_bytes(self) -> int:
        """How many bytes are pending."""
        with self._replacing:
            return self._append_file.size()

    def _move_pending(self) -> None:
        """Move pending entries into the tables."""
        if self._pending_bytes():
            self._with_recovery(self._move_all)

    def _move_to_read(self) -> None:
        """The same before reading; if there is no room for them, the tables can still be read."""
        self._reopen_if_moved()
        if self._pending_bytes():
            with suppress(StoreError):
                self._move_pending()
                self._flusher.wake()

    def _move_all(self) -> None:
        append_file = self._append_file
        seen = append_file.read()
        self._store_records(seen)
        with append_file.emptying(seen) as rest:
            self._store_records(rest)

    def _store_records(self, raw: bytes) -> None:
        """Store records in the tables, many in one transaction."""
        batch: list[tuple[EntryKeys, bytes]] = []
        size = 0
        for data in records(raw):
            if len(data) > self._max_entry:  # added when the limit was higher
                continue
            with suppress(StoreDamagedError, StoreVersionError):
                batch.append((decode_keys(data), data))
                size += len(data)
            if size > self._max_pending:
                self._store_batch(batch)
                batch, size = [], 0
        if batch:
            self._store_batch(batch)

    def _store_batch(self, batch: list[tuple[EntryKeys, bytes]]) -> None:
        self._shrink()
        self._environment.transact(lambda t: self._put(t, batch))

    def _put(self, tables: Tables, batch: list[tuple[EntryKeys, bytes]]) -> None:
        chunks = ChunkedValues(tables["entries"])
        room = tables["meta"].get(_ROOM)
        pages = Pages(
            self._environment.page_bytes, 0 if room is None else int.from_bytes(room, "little")
        )
        seq = chunks.last_seq()
        for keys, data in batch:
            if tables["signatures"].get(keys.signature) is not None:
                continue
            seq = max(seq + 1, keys.time_us)
            raw = _SEQ.pack(seq)
            chunks.append(seq, [data], pages)
            tables["signatures"].put(keys.signature, raw)
            if keys.digest:
                tables["digests"].put(keys.digest + raw, b"")
            if keys.message_id:
                tables["mids"].put(_hash(keys.message_id) + raw, b"")
        tables["meta"].put(_ROOM, pages.room.to_bytes(4, "little"))

    def flush(self) -> None:
        """Move pending entries into the tables and sync them to the disk."""
        if self._pending_bytes():
            self._reopen_if_moved()
        try:
            self._move_pending()
        except StoreError:
            with self._replacing:
                self._append_file.sync()
            raise
        self._with_recovery(self._renew_frequent)
        self._with_recovery(lambda: self._environment.sync())  # noqa: PLW0108 - it is replaced

    def _renew_frequent(self) -> None:
        """Make a table of frequent ids if it is time for one, and find those of other processes."""
        count = self._count()
        with self._environment.read() as tables:
            self._frequent.find(tables)
            last = ChunkedValues(tables["entries"]).last_seq()
        has_room = self._limits.limit_bytes >= _FREQUENT_SHARE * FrequentIds.SIZE
        if has_room and self._frequent.is_due(count, last):
            ids = [one for entry in self._newest_of(_FREQUENT_OF) for one in entry.ids]
            if not ids:
                return  # no entry can be read
            made = StoredTable(last, count, NamedTable.of(np.concatenate(ids)))

            def put_if_due(tables: Tables) -> None:
                self._frequent.find(tables)  # another process may have been faster
                if self._frequent.is_due(count, last):
                    made.put(tables["meta"])

            self._environment.transact(put_if_due)
            with self._environment.read() as tables:
                self._frequent.find(tables)

    def _newest_of(self, most: int) -> Iterator[HistoryEntry]:
        below: int | None = None
        while below != 0 and most > 0:
            entries, below = self._read_some(below, with_ids=True)
            most -= len(entries)
            yield from entries

    def expire(self, now_us: int) -> int:
        """Delete entries beyond the age limit and the size limit, oldest first; return how many."""
        self._move_to_read()
        gone = self._with_recovery(lambda: self._delete_before(now_us) + self._shrink())
        if gone:
            self._environment.transact(self._frequent.forget)
            self._flusher.wake()
        return gone

    def _delete_before(self, now_us: int) -> int:
        gone = 0
        span = (now_us - self._limits.keep_days * _DAY_US, now_us)
        while done := self._delete_oldest(span, _EXPIRE_BATCH):
            gone += done
        return gone

    def _shrink(self) -> int:
        """Delete the oldest entries beyond the size limit; return how many."""
        gone = 0
        while self._bytes() > self._limits.limit_bytes:
            done = self._delete_oldest(None, min(_EXPIRE_BATCH, 1 + self._count() // 16))
            if done == 0:
                break
            gone += done
        return gone

    def _bytes(self) -> int:
        """What the entries take. Tables of frequent ids are not counted: all may need them."""
        with self._environment.read() as tables:
            self._frequent.find(tables)
        used = self._environment.live_pages() * self._environment.page_bytes
        return max(used - self._frequent.size, 0)

    def _delete_oldest(self, kept: tuple[int, int] | None, most: int) -> int:
        return self._environment.transact(lambda t: _delete_oldest(t, kept, most))

    # --- reading ---

    def find(
        self, *, signature: bytes = b"", message_id: str = "", digest: bytes = b""
    ) -> list[HistoryEntry]:
        """Entries by one of the three keys, newest first, at most 64."""

        def run() -> list[HistoryEntry]:
            with self._environment.read() as tables:
                if signature:
                    raw = tables["signatures"].get(signature)
                    seqs = [] if raw is None else [_SEQ.unpack(raw)[0]]
                elif message_id:
                    seqs = _seqs(tables["mids"], _hash(message_id))
                else:
                    seqs = _seqs(tables["digests"], digest) if digest else []
                return list(_entries(tables, seqs, self._frequent))

        self._move_to_read()
        return self._with_recovery(run)

    def newest(self, *, with_ids: bool = True) -> Iterator[HistoryEntry]:
        """All entries, newest first, lazily; no snapshot is held between two of them."""
        self._move_to_read()
        below: int | None = None
        while below != 0:
            entries, below = self._with_recovery(partial(self._read_some, below, with_ids=with_ids))
            yield from entries

    def _read_some(self, below: int | None, *, with_ids: bool) -> tuple[list[HistoryEntry], int]:
        """Some entries before a seq, and the seq where to continue; 0 at the end."""
        found: list[HistoryEntry] = []
        last = 0
        with self._environment.read() as tables:
            table_of = self._frequent.reader(tables)
            chunks = ChunkedValues(tables["entries"])
            for seq, data in islice(chunks.down(0, below), _READ_AT_ONCE):
                last = seq
                with suppress(StoreDamagedError, StoreVersionError):
                    found.append(decode_entry(data, table_of) if with_ids else decode_facts(data))
        return found, last

    def count(self) -> int:
        """How many entries there are, without reading them."""
        self._move_to_read()
        return self._with_recovery(self._count)

    def _count(self) -> int:
        return self._environment.stat()["signatures"]["entries"]

    def span_days(self) -> float:
        """Days between the oldest and the newest entry."""
        first, last = self.seq_span()
        return (last - first) / _DAY_US

    def seq_span(self) -> tuple[int, int]:
        """The seqs of the oldest and the newest entry; zeros if there is none."""

        def run() -> tuple[int, int]:
            with self._environment.read() as tables:
                chunks = ChunkedValues(tables["entries"])
                return next((seq for seq, _ in chunks.up(0, None)), 0), chunks.last_seq()

        self._move_to_read()
        return self._with_recovery(run)

    def facts_after(self, seq: int, most: int) -> list[tuple[int, HistoryEntry | None]]:
        """The seqs after this one, oldest first, with their entries without ids.

        None stands for an entry that cannot be read.
        """

        def run() -> list[tuple[int, HistoryEntry | None]]:
            with self._environment.read() as tables:
                found = islice(ChunkedValues(tables["entries"]).up(seq + 1, None), most)
                return [(at, _facts(data)) for at, data in found]

        self._move_to_read()
        return self._with_recovery(run)

    def facts_at(self, seqs: Iterable[int]) -> list[HistoryEntry]:
        """The entries with these seqs, in that order, without ids; deleted ones are left out."""

        def run() -> list[HistoryEntry]:
            with self._environment.read() as tables:
                chunks = ChunkedValues(tables["entries"])
                found = [_facts(data) for seq in seqs for _, data in chunks.up(seq, seq + 1)]
                return [entry for entry in found if entry is not None]

        return self._with_recovery(run)

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._flusher.stop()
        # Nothing is lost on failure: the entries stay pending until the folder is opened again.
        # A forked child that inherited the history has nothing to flush.
        with suppress(StoreError, BugError):
            self.flush()
        release(self._environment)
        release_append_file(self._append_file)
        self._boot.end()


def _delete_oldest(tables: Tables, kept: tuple[int, int] | None, most: int) -> int:
    """Delete the oldest entries (only those before the span of time `kept`, if it is given)."""
    chunks = ChunkedValues(tables["entries"])
    batch = [(seq, _entry_keys(data)) for seq, data in islice(chunks.up(0, None), most)]
    if kept is not None:
        times = [keys.time_us if keys else seq for seq, keys in batch]
        del batch[surely_older(times, *kept) :]
    for seq, keys in batch:
        chunks.remove(seq)
        if keys:
            raw = _SEQ.pack(seq)
            tables["digests"].delete(keys.digest + raw)
            tables["mids"].delete(_hash(keys.message_id) + raw)
            tables["signatures"].delete(keys.signature)
    return len(batch)


def _entry_keys(data: bytes) -> EntryKeys | None:
    """The keys of an entry; None if it cannot be read."""
    with suppress(StoreDamagedError, StoreVersionError):
        return decode_keys(data)
    return None


def _facts(data: bytes) -> HistoryEntry | None:
    """An entry without ids; None if it cannot be read."""
    with suppress(StoreDamagedError, StoreVersionError):
        return decode_facts(data)
    return None


def _entries(
    tables: Tables, seqs: Iterable[int], frequent: FrequentTables
) -> Iterator[HistoryEntry]:
    chunks, table_of = ChunkedValues(tables["entries"]), frequent.reader(tables)
    for seq in seqs:
        for _, data in chunks.up(seq, seq + 1):
            with suppress(StoreDamagedError, StoreVersionError):
                yield decode_entry(data, table_of)


def _seqs(table: LmdbTable, head: bytes) -> list[int]:
    """Seqs behind a prefix of keys, the newest first."""
    found: list[int] = []
    for key, _ in table.scan(head + b"\xff" * 8, down=True):
        if key[:-8] != head or len(found) == _MAX_FOUND:
            break
        found.append(_SEQ.unpack(key[-8:])[0])
    return found


def _hash(message_id: str) -> bytes:
    raw = message_id.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=16).digest()


_AT_ONCE = 1000

Change = Callable[[HistoryEntry], HistoryEntry | None]


def rewrite(folder: Path, limits: HistoryLimits, change: Change) -> int:
    """Write each entry as `change` returns it, or not at all for None; return how many changed.

    The new history is written beside the old one and renamed into its place. No process may have
    the history open. A kill leaves the old history or the new one; after a kill between the two
    renames, the next call completes them.
    """
    fresh, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    if fresh.is_dir() and not folder.is_dir():
        fresh.rename(folder)  # after a kill between the two renames
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    if not folder.is_dir():
        return 0
    History.open(folder, limits).close()  # moves what is pending into the tables
    changed = 0

    def kept() -> Iterator[HistoryEntry]:
        nonlocal changed
        for entry in _oldest_first(folder):
            found = change(entry)
            changed += found is not entry
            if found is not None:
                yield found

    with closing(History.open(fresh, limits)) as history:
        rest = kept()
        while some := list(islice(rest, _AT_ONCE)):
            history.add(some)
    if changed:
        folder.rename(old)
        fresh.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(old)
    else:
        shutil.rmtree(fresh)
    return changed


def _oldest_first(folder: Path) -> Iterator[HistoryEntry]:
    environment = share(EnvironmentConfig(folder, NAMES, readonly=True), create=False)
    try:
        with environment.read() as tables:
            table_of = FrequentTables().reader(tables)
            for _, data in ChunkedValues(tables["entries"]).up(0, None):
                with suppress(StoreDamagedError, StoreVersionError):
                    yield decode_entry(data, table_of)
    finally:
        release(environment)


_NAMES = ("terms", "entries", "meta")

_HASH_BYTES = 8
_MOST_STEPS = 2_000
"""look-ups in one page: some 7 ms"""
_FORGET_BATCH = 500


class SeqPage(NamedTuple):
    """A part of the result of a search."""

    seqs: list[int]
    """newest first"""
    below: int
    """where the search goes on; 0 at the end"""


class LookupIndex:
    """The index in one folder. Made by `open`; for one process.

        terms     hash of a term, 8 bytes | seq u64 (big-endian)   nothing
        entries   seq                                              the hashes of the entry's terms
        meta      "mark", "key", "position"

    The folder can always be built again from the history. It is deleted and started anew when it is
    damaged, after a power cut, and when its terms were made in another way (`mark`). Terms are
    hashed with a random key. Must not know what a term means. Failure: StoreError.
    """

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder = folder
        self._mark = mark.encode()
        self._lost: Environment | None = None
        """of a deleted folder: closed later, since a search may still use it"""
        self._begin()

    def _begin(self) -> None:
        self._boot = BootMarker()
        make_folder(self._folder)
        if self._boot.begin(self._folder):
            self._delete()
        try:
            self._environment = self._share()
        except (StoreDamagedError, StoreMissingError, StoreVersionError):
            self._delete()
            self._environment = self._share()
        if self._read(lambda tables: bytes(tables["meta"].get(b"mark") or b"")) != self._mark:
            self.clear()
        self._key = self._read(lambda tables: bytes(tables["meta"].get(b"key") or b""))

    def renew_if_deleted(self) -> None:
        """Start anew if the folder was deleted while it was open."""
        lost, self._lost = self._lost, None
        if lost is not None:
            release(lost)
        if inode_of(self._folder) == 0:
            self._lost = self._environment
            environments.evict(self._environment)
            self._begin()

    @classmethod
    def open(cls, folder: Path, mark: str) -> Self:
        """The index in a folder; an empty one if its terms were not made in the way of `mark`."""
        return cls(folder, mark)

    def _share(self) -> Environment:
        plan = EnvironmentConfig(self._folder, _NAMES, sync=False)
        with suppress(StoreMissingError):
            return share(plan, create=False)
        return share(plan, create=True)

    def _delete(self) -> None:
        """Delete the folder's files; nothing is open in it yet."""
        try:
            shutil.rmtree(self._folder)
        except OSError as error:
            raise refused(error, self._folder) from error
        make_folder(self._folder)
        self._boot.begin(self._folder)

    def clear(self) -> None:
        """Forget all entries, and start with a new key."""
        while self.forget_before(1 << 64):
            pass

        def run(tables: Tables) -> None:
            tables["meta"].put(b"mark", self._mark)
            tables["meta"].put(b"key", secrets.token_bytes(32))
            tables["meta"].put(b"position", _SEQ.pack(0))

        self._environment.transact(run)
        self._key = self._read(lambda tables: bytes(tables["meta"].get(b"key") or b""))

    def close(self) -> None:
        """Write to the disk and close."""
        with suppress(StoreError):
            self._environment.sync()
        for environment in (self._lost, self._environment):
            if environment is not None:
                release(environment)
        self._boot.end()

    def _read(self, run: Callable[[Tables], Result]) -> Result:
        with self._environment.read() as tables:
            return run(tables)

    # --- writing ---

    @property
    def position(self) -> int:
        """The seq up to which the history is indexed."""
        return self._read(
            lambda tables: int(_SEQ.unpack(tables["meta"].get(b"position") or b"")[0])
        )

    def add(self, entries: Sequence[tuple[int, Iterable[str]]]) -> None:
        """Add entries with their terms, in ascending order of their seqs."""
        hashed = [(_SEQ.pack(seq), sorted(set(map(self._hash, terms)))) for seq, terms in entries]
        keys = sorted(term + seq for seq, terms in hashed for term in terms)

        def run(tables: Tables) -> None:
            for key in keys:
                tables["terms"].put(key, b"")
            for seq, terms in hashed:
                tables["entries"].put(seq, b"".join(terms))
            tables["meta"].put(b"position", hashed[-1][0])

        if hashed:
            self._environment.transact(run)

    def forget_before(self, seq: int) -> int:
        """Delete some entries from before a seq; return how many."""

        def run(tables: Tables) -> int:
            oldest = list(islice(tables["entries"].scan(), _FORGET_BATCH))
            gone = [(key, bytes(terms)) for key, terms in oldest if _SEQ.unpack(key)[0] < seq]
            for key, terms in gone:
                for at in range(0, len(terms), _HASH_BYTES):
                    tables["terms"].delete(terms[at : at + _HASH_BYTES] + key)
                tables["entries"].delete(key)
            return len(gone)

        oldest = self._read(lambda tables: next(tables["entries"].scan(), (b"",))[0])
        if not oldest or _SEQ.unpack(oldest)[0] >= seq:
            return 0
        return self._environment.transact(run)

    # --- reading ---

    def page(self, terms: Iterable[str], below: int, since: int, most: int) -> SeqPage:
        """Entries with all these terms, since <= seq < below, at most so many.

        Each list of seqs in turn gives its greatest seq that is not above the candidate, so the
        rarest term determines the work. A page may be short: see `below`.
        """
        heads = [self._hash(term) for term in terms]
        at, steps = below - 1, 0
        found: list[int] = []
        with self._environment.read() as tables:
            lists = [_SeqList(tables["terms"], head) for head in heads]
            lists = lists or [_SeqList(tables["entries"], b"")]
            while len(found) < most and steps < _MOST_STEPS:
                low = at
                for one in lists:
                    low = one.at_most(low)
                    steps += 1
                    if low < max(since, 1):
                        return SeqPage(found, 0)
                if low == at:
                    found.append(at)
                    at -= 1
                else:
                    at = low
        return SeqPage(found, at + 1)

    def count(self) -> int:
        """How many entries there are."""
        return self._environment.stat()["entries"]["entries"]

    def _hash(self, term: str) -> bytes:
        raw = term.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(raw, digest_size=_HASH_BYTES, key=self._key).digest()


class _SeqList(NamedTuple):
    """The seqs behind one head of keys."""

    table: LmdbTable
    head: bytes

    def at_most(self, seq: int) -> int:
        """The greatest seq up to this one; -1 if there is none."""
        for key, _ in self.table.scan(self.head + _SEQ.pack(seq), down=True):
            if key[:-8] == self.head:
                return int(_SEQ.unpack(key[-8:])[0])
            break
        return -1
