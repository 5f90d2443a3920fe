"""Recent verdicts with their feature ids, so that a correction needs no message body.

A folder of its own beside the model, because it has other promises: thousands of entries an hour,
worth some weeks, and no harm if the last second is lost.

    fresh       what was added last                        records (see `history_fresh`)
    data.mdb, lock.mdb                                     the rest, in tables of LMDB:
      entries     seq u64 | part u16 (big-endian)          pieces of an entry (see `journal`)
      signatures  signature, 16 bytes                      seq
      mids        blake2b of the Message-ID, 16 bytes | seq   nothing
      digests     digest | seq                             nothing
      meta        "room" (see `journal.Pages`)
    boot        the boot in which the folder is open

`seq` is the time in microseconds, or one more than the last, so that age is an order of keys.

`add` writes to `fresh` alone: a transaction takes 47 us for one entry, 15 for each of hundreds.
Whoever reads settles the fresh ones first: puts them into the tables and empties the file. So there
is one way to read, and every process finds what any other has added. A thread settles and syncs a
second after an `add`, and `add` itself when much is fresh. Since an entry that is there already is
passed over, by its signature, what is settled twice, after a kill or by two at once, is there once.

    killed                    nothing that `add` took is lost
    power cut                 the last second is lost
    no room for `fresh`       `add` says so
    no room for the tables    what is fresh waits, not found, for room; when much does `add` says so
    the limit is reached      the oldest entries give way
    tables damaged            set aside, begun anew with what was fresh; `warning` says so
    set aside by another      found within a second of an `add`, and by who reads: gone on with

There is no sync before a commit returns, and without it a power cut can leave pages that contradict
each other; LMDB ends the process when it meets some of them. So the folder names the boot in which
it is open, until the last closes it: if that is not this boot, the file is walked byte by byte
first (`lmdb.verify`). What is damaged is renamed and begun anew; that is never an error, nor is an
entry that cannot be read.

Must not know the model. Failure: StoreFullError, StoreAccessError, StoreBusyError.
"""

from __future__ import annotations

import hashlib
import os
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
    SpamnbError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreVersionError,
)
from spamnb.store.apply_events import surely_older
from spamnb.store.history.append_file import records, release_fresh, renewed_fresh, share_fresh
from spamnb.store.history.boot_marker import BootMarker
from spamnb.store.history.entry import (
    EntryKeys,
    HistoryEntry,
    decode_entry,
    decode_names,
    encode_entry,
)
from spamnb.store.history.limits import HistoryLimits
from spamnb.store.journal import ChunkedValues, Pages
from spamnb.store.lmdb.environment import Environment, environments, release, share, sound
from spamnb.store.lmdb.sharing import DATA_FILE, EnvironmentConfig, make_folder, refused
from spamnb.store.lmdb.table import LmdbTable

_NAMES = ("entries", "signatures", "mids", "digests", "meta")
_SEQ = struct.Struct(">Q")
_MOST_FOUND = 64
_DAY_US = 86_400_000_000
_EXPIRE_BATCH = 500
"""entries forgotten in one transaction: some 10 ms, so that nobody waits for long"""
_MOST_FRESH = 4 << 20
"""some 1,700 entries, settled in 40 ms; also put in one transaction at most"""
_READ_AT_ONCE = 64
_FLUSH_S = 1.0
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
        # So little that with it the tables stay far below what the map may be.
        self._most_fresh = min(_MOST_FRESH, limits.limit_bytes // 8)
        self._longest = limits.limit_bytes // 2
        self._closed = False
        self._flusher = _Flusher(self.flush)
        self._boot = BootMarker()
        self._healing = threading.Lock()
        """held while the folder is replaced, so that nobody adds to the one that goes"""
        make_folder(folder)
        self._fresh = share_fresh(folder)
        try:
            self._environment = self._begin()
        except BaseException:
            release_fresh(self._fresh)
            raise
        self._settle_to_read()

    @classmethod
    def open(cls, path: str | Path, limits: HistoryLimits | None = None) -> Self:
        """The history in a folder; a new one if there is none, or if it is damaged."""
        return cls(Path(path), limits or HistoryLimits())

    # --- opening, and beginning anew ---

    def _begin(self) -> Environment:
        if self._boot.begin(self._folder) and not sound(self._folder):
            self._set_aside("a power cut has left it unsound")
        try:
            return self._share()
        except (StoreDamagedError, StoreMissingError, StoreVersionError) as error:
            self._set_aside(str(error))
            return self._share()

    def _share(self) -> Environment:
        # A transaction copies what it changes, all of it at most, and what the last one freed is
        # not free for it yet; so far beyond the limit, or the file if that was made under a higher.
        data, limit = self._folder / DATA_FILE, self._limits.limit_bytes
        size = data.stat().st_size if data.exists() else 0
        plan = EnvironmentConfig(
            self._folder, _NAMES, limit_bytes=3 * limit + max(limit, size), sync=False
        )
        if size:
            with suppress(StoreMissingError):
                return share(plan, create=False)
        # New; or another process is just making it, or was killed in the midst.
        return share(plan, create=True)

    def _set_aside(self, why: str) -> None:
        """Begin anew with what is fresh; or, if another process was faster, go on with its folder.

        Whoever has the folder open has this file open, whose lock makes all others wait.
        """
        old = self._fresh
        with old.emptying(b"") as left:
            if old.in_place():
                self._rename(why)
            make_folder(self._folder)
            self._boot.begin(self._folder)
            self._fresh = renewed_fresh(old, self._folder)
            with suppress(StoreFullError):
                self._fresh.add_raw(left)
        release_fresh(old)

    def _rename(self, why: str) -> None:
        aside = self._folder.with_name(self._folder.name + ".damaged")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            self._folder.rename(aside)
        except OSError as error:
            raise refused(error, self._folder) from error
        self.warning = f"the history was set aside as {aside}: {why}"

    def _follow(self) -> None:
        """Go on with the folder that is at its place, if that is no longer the one that is open."""
        with self._healing:
            if not self._fresh.in_place():
                self._renew("it was taken away")
            elif not self._environment.is_open:
                # There was no room for it when the folder was begun anew.
                self._environment = self._share()

    def _renew(self, why: str) -> None:
        environments.evict(self._environment)
        release(self._environment)
        self._set_aside(why)
        self._environment = self._share()

    def _guarded(self, run: Callable[[], Result]) -> Result:
        """Run; if the file proves damaged, begin anew and run again on the empty history."""
        environment = self._environment
        try:
            return run()
        except (StoreDamagedError, BugError) as error:
            with self._healing:
                # Another thread may have met it too, and have begun anew already; who was at work
                # meanwhile meets what it has closed.
                if self._environment is environment:
                    if isinstance(error, BugError):
                        raise
                    self._renew(str(error))
        return run()

    # --- writing ---

    def add(self, entries: Iterable[HistoryEntry]) -> None:
        """Keep entries, all or none: when this returns, no kill loses them."""
        fresh = list(map(encode_entry, entries))
        if not fresh:
            return
        longest = max(map(len, fresh))
        if longest > self._longest:
            raise StoreFullError(
                f"{self._folder}: an entry of {longest} bytes", hint="raise history.limit_bytes"
            )
        if self._waiting() > self._most_fresh:
            self._settle()
        with self._healing:
            self._fresh.add(fresh)
        self._flusher.wake()

    def _waiting(self) -> int:
        """Bytes that are fresh."""
        with self._healing:
            return self._fresh.size()

    def _settle(self) -> None:
        """Put what is fresh into the tables."""
        if self._waiting():
            self._guarded(self._settle_all)

    def _settle_to_read(self) -> None:
        """The same before reading; without room for it, what is in the tables can be read."""
        self._follow()
        if self._waiting():
            with suppress(StoreError):
                self._settle()
                self._flusher.wake()

    def _settle_all(self) -> None:
        fresh = self._fresh
        seen = fresh.read()
        self._keep(seen)
        with fresh.emptying(seen) as rest:
            self._keep(rest)

    def _keep(self, raw: bytes) -> None:
        """Put records into the tables, many in one transaction."""
        batch: list[tuple[EntryKeys, bytes]] = []
        size = 0
        for data in records(raw):
            if len(data) > self._longest:  # taken when the limit was higher
                continue
            with suppress(StoreDamagedError, StoreVersionError):
                batch.append((decode_names(data), data))
                size += len(data)
            if size > self._most_fresh:
                self._keep_batch(batch)
                batch, size = [], 0
        if batch:
            self._keep_batch(batch)

    def _keep_batch(self, batch: list[tuple[EntryKeys, bytes]]) -> None:
        self._shrink()
        self._environment.transact(lambda t: self._put(t, batch))

    def _put(self, tables: Tables, batch: list[tuple[EntryKeys, bytes]]) -> None:
        chunks = ChunkedValues(tables["entries"])
        room = tables["meta"].get(_ROOM)
        pages = Pages(
            self._environment.page_bytes, 0 if room is None else int.from_bytes(room, "little")
        )
        seq = chunks.last_seq()
        for named, data in batch:
            if tables["signatures"].get(named.signature) is not None:
                continue
            seq = max(seq + 1, named.time_us)
            raw = _SEQ.pack(seq)
            chunks.append(seq, [data], pages)
            tables["signatures"].put(named.signature, raw)
            if named.digest:
                tables["digests"].put(named.digest + raw, b"")
            if named.message_id:
                tables["mids"].put(_hash(named.message_id) + raw, b"")
        tables["meta"].put(_ROOM, pages.room.to_bytes(4, "little"))

    def flush(self) -> None:
        """Put on the disk what was added."""
        if self._waiting():
            self._follow()
        try:
            self._settle()
        except StoreError:
            with self._healing:
                self._fresh.sync()
            raise
        self._guarded(self._sync)

    def _sync(self) -> None:
        self._environment.sync()

    def expire(self, now_us: int) -> int:
        """Forget what is too old, and the oldest while there is too much; how many."""
        self._settle_to_read()
        gone = self._guarded(lambda: self._forget_before(now_us) + self._shrink())
        if gone:
            self._flusher.wake()
        return gone

    def _forget_before(self, now_us: int) -> int:
        gone = 0
        span = (now_us - self._limits.keep_days * _DAY_US, now_us)
        while done := self._forget(span, _EXPIRE_BATCH):
            gone += done
        return gone

    def _shrink(self) -> int:
        """Forget the oldest while there is too much, before the map is full; how many."""
        gone = 0
        while self._bytes() > self._limits.limit_bytes:
            done = self._forget(None, min(_EXPIRE_BATCH, 1 + self._count() // 16))
            if done == 0:
                break
            gone += done
        return gone

    def _bytes(self) -> int:
        return self._environment.live_pages() * self._environment.page_bytes

    def _forget(self, kept: tuple[int, int] | None, most: int) -> int:
        return self._environment.transact(lambda t: _forget(t, kept, most))

    # --- reading ---

    def find(
        self, *, signature: bytes = b"", message_id: str = "", digest: bytes = b""
    ) -> list[HistoryEntry]:
        """Entries by one of the three, newest first, at most 64."""

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

        self._settle_to_read()
        return self._guarded(run)

    def recent(self, count: int) -> list[HistoryEntry]:
        """The newest entries, newest first."""
        return list(islice(self.newest(), count))

    def newest(self) -> Iterator[HistoryEntry]:
        """All entries, newest first, lazily: no snapshot is held while the caller has the turn."""
        self._settle_to_read()
        below: int | None = None
        while below != 0:
            entries, below = self._guarded(partial(self._some, below))
            yield from entries

    def _some(self, below: int | None) -> tuple[list[HistoryEntry], int]:
        """The next entries before a seq, and where to go on; 0 at the end."""
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
        """How many entries there are; reads none of them."""
        self._settle_to_read()
        return self._guarded(self._count)

    def _count(self) -> int:
        return self._environment.stat()["signatures"]["entries"]

    def span_days(self) -> float:
        """Days between the oldest and the newest entry."""

        def run() -> float:
            with self._environment.read() as tables:
                first = next((seq for seq, _ in ChunkedValues(tables["entries"]).up(0, None)), 0)
                return (ChunkedValues(tables["entries"]).last_seq() - first) / _DAY_US

        self._settle_to_read()
        return self._guarded(run)

    def close(self) -> None:
        """Flush and let go; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._flusher.stop()
        # Nothing is lost by what goes wrong here: it stays fresh till the next opens the folder.
        # A child that has inherited it has nothing of its own to flush.
        with suppress(StoreError, BugError):
            self.flush()
        release(self._environment)
        release_fresh(self._fresh)
        self._boot.end()


class _Flusher:
    """A thread that calls a function at most a second after each wake."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._due = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def wake(self) -> None:
        """There is something to flush."""
        if self._pid != os.getpid():
            # The first time, or in a child process, where threads do not live on.
            self._due, self._stop, self._pid = threading.Event(), threading.Event(), os.getpid()
            self._thread = threading.Thread(target=self._loop, name="history-flush", daemon=True)
            self._thread.start()
        if not self._due.is_set():
            self._due.set()

    def _loop(self) -> None:
        # Asked each time: `stop` may come between the wait's end and `clear`, which hides it.
        while not self._stop.is_set():
            self._due.wait()
            if self._stop.wait(_FLUSH_S):
                return
            self._due.clear()
            # What goes wrong here is told by the next `add`; this thread must live on till then.
            with suppress(SpamnbError):
                self._run()

    def stop(self) -> None:
        """End the thread and wait for it."""
        if self._thread is not None and self._pid == os.getpid():
            self._stop.set()
            self._due.set()
            self._thread.join()


def _forget(tables: Tables, kept: tuple[int, int] | None, most: int) -> int:
    """Forget the oldest entries (from before a span of time)."""
    chunks = ChunkedValues(tables["entries"])
    batch = [(seq, _names(data)) for seq, data in islice(chunks.up(0, None), most)]
    if kept is not None:
        times = [named.time_us if named else seq for seq, named in batch]
        del batch[surely_older(times, *kept) :]
    for seq, named in batch:
        chunks.remove(seq)
        if named:
            raw = _SEQ.pack(seq)
            tables["digests"].delete(named.digest + raw)
            tables["mids"].delete(_hash(named.message_id) + raw)
            tables["signatures"].delete(named.signature)
    return len(batch)


def _names(data: bytes) -> EntryKeys | None:
    """What an entry is called; None if it cannot be read."""
    with suppress(StoreDamagedError, StoreVersionError):
        return decode_names(data)
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
        if key[:-8] != head or len(found) == _MOST_FOUND:
            break
        found.append(_SEQ.unpack(key[-8:])[0])
    return found


def _hash(message_id: str) -> bytes:
    raw = message_id.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=16).digest()
