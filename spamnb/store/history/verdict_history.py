"""Recent verdicts with their feature ids, so that a correction needs no message body.

The history has a folder of its own beside the model, because its guarantees differ: it gets
thousands of entries an hour, keeps them for weeks, and may lose those of the last second.

    fresh       recently added entries                     records (see `append_file`)
    data.mdb, lock.mdb                                     the other entries, in LMDB tables:
      entries     seq u64 | part u16 (big-endian)          pieces of an entry (see `journal`)
      signatures  signature, 16 bytes                      seq
      mids        blake2b of the Message-ID, 16 bytes | seq   nothing
      digests     digest | seq                             nothing
      meta        "room" (see `journal.Pages`)
    boot        the boot in which the folder is open

`seq` is the time in microseconds, or one more than the last, so keys are in the order of age.

`add` only appends to `fresh`: a transaction for one entry takes longer (see `append_file`). A
reader first moves these pending entries into the tables and empties the file, so there is one way
to read, and every process finds what any other has added. A thread moves and syncs them a second
after an `add`; `add` itself moves them when many are pending. An entry with a signature that is in
the tables is skipped, so an entry that is moved twice, after a kill or by two processes, is stored
once.

    process killed            no entry that `add` accepted is lost
    power cut                 the entries of the last second are lost
    no room for `fresh`       `add` fails
    no room for the tables    entries stay pending and are not found; when many are, `add` fails
    the limit is reached      the oldest entries are deleted
    tables damaged            set aside; a new history starts with the pending entries; `warning`
    set aside by another      noticed within a second of an `add`, and by readers; then opened anew

LMDB does not sync before a commit returns here, so a power cut can leave inconsistent pages, and
LMDB ends the process when it reads some of them. So the folder records the boot in which it is
open, until the last process closes it. If it records another boot when it is opened, the file is
first checked byte by byte (`lmdb.verify`). A damaged history is renamed and replaced by a new one;
neither this nor an unreadable entry is an error.

Must not know the model. Failure: StoreFullError, StoreAccessError, StoreBusyError.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

from spamnb.errors import (
    BugError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreVersionError,
)
from spamnb.store.apply_events import surely_older
from spamnb.store.files import make_folder, refused
from spamnb.store.history.append_file import (
    open_append_file,
    records,
    release_append_file,
    reopen_append_file,
)
from spamnb.store.history.boot_marker import BootMarker
from spamnb.store.history.entry import (
    EntryKeys,
    HistoryEntry,
    decode_entry,
    decode_facts,
    decode_keys,
    encode_entry,
)
from spamnb.store.history.flusher import Flusher
from spamnb.store.history.limits import HistoryLimits
from spamnb.store.journal import ChunkedValues, Pages
from spamnb.store.lmdb.environment import Environment, environments, release, share, sound
from spamnb.store.lmdb.sharing import DATA_FILE, EnvironmentConfig
from spamnb.store.lmdb.table import LmdbTable

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

Tables = dict[str, LmdbTable]
Result = TypeVar("Result")


class History:
    """The verdicts of the last days. Made by `open`."""

    def __init__(self, folder: Path, limits: HistoryLimits) -> None:
        self._folder = folder
        self._limits = limits
        self.warning = ""
        """what was set aside, and why; empty if nothing was"""
        # Small enough that the tables, with all pending entries, stay far below the map size.
        self._max_pending = min(_MAX_PENDING, limits.limit_bytes // 8)
        self._max_entry = limits.limit_bytes // 2
        self._closed = False
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
        encoded = list(map(encode_entry, entries))
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
        self._with_recovery(lambda: self._environment.sync())  # noqa: PLW0108 - it is replaced

    def expire(self, now_us: int) -> int:
        """Delete entries beyond the age limit and the size limit, oldest first; return how many."""
        self._move_to_read()
        gone = self._with_recovery(lambda: self._delete_before(now_us) + self._shrink())
        if gone:
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
        return self._environment.live_pages() * self._environment.page_bytes

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
                return list(_entries(tables, seqs))

        self._move_to_read()
        return self._with_recovery(run)

    def newest(self) -> Iterator[HistoryEntry]:
        """All entries, newest first, lazily; no snapshot is held between two of them."""
        self._move_to_read()
        below: int | None = None
        while below != 0:
            entries, below = self._with_recovery(partial(self._read_some, below))
            yield from entries

    def _read_some(self, below: int | None) -> tuple[list[HistoryEntry], int]:
        """Some entries before a seq, and the seq where to continue; 0 at the end."""
        found: list[HistoryEntry] = []
        last = 0
        with self._environment.read() as tables:
            chunks = ChunkedValues(tables["entries"])
            for seq, data in islice(chunks.down(0, below), _READ_AT_ONCE):
                last = seq
                with suppress(StoreDamagedError, StoreVersionError):
                    found.append(decode_entry(data))
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


def _entries(tables: Tables, seqs: Iterable[int]) -> Iterator[HistoryEntry]:
    chunks = ChunkedValues(tables["entries"])
    for seq in seqs:
        for _, data in chunks.up(seq, seq + 1):
            with suppress(StoreDamagedError, StoreVersionError):
                yield decode_entry(data)


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
