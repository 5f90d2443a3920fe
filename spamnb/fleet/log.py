"""The log of a fleet: its interface, a log in memory, and the newest entries of a host.

`MemoryLog`, `ValkeyLog` and `PostgresLog` implement `FleetLog`; `tests/contract/test_fleet_log.py`
runs against all of them. Failure: LogAwayError if the keeper of the log does not answer, or refuses
to work. If an append raises it, its entry may be in the log or not.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

from spamnb.errors import FleetError
from spamnb.store.codec import ByteCursor, chunk, text, varint
from spamnb.store.files import make_folder, refused
from spamnb.store.values import next_chain

MOST_BYTES = 8 << 20
"""size of one entry's body: a thousand messages of a bulk training take 3 MB"""
FRESH_S = 15.0
"""For so many seconds, a beat proves that its host is alive, and a report of `settle` counts."""
DAY_S = 86_400.0
SNAPSHOT_S = 172_800
"""how long a log keeps a snapshot"""
ASKED_S = 60
"""how long questions and answers are kept"""
HOST_BYTES = 2
START = "0" * 40
"""the chain of a log without entries"""


class Head(NamedTuple):
    """The end of a log."""

    epoch: str
    seq: int
    chain: str
    settled: bool = True
    """False after a restart of the keeper"""
    level: int = 1
    """the version of entries that the hosts write: all of them can read it"""


class Beat(NamedTuple):
    """What a host reports about itself every few seconds."""

    host: str
    ident: str
    """random name of its home and machine"""
    seq: int
    """the last event that it has"""
    chain: str
    fingerprint: str
    """of the model's numbers at that event"""
    level: int
    """the newest version of entries that it reads"""
    version: str
    clock_us: int
    waiting: int = 0
    """corrections in its outbox"""
    epoch: str = ""
    """the history that `seq` counts in"""
    age_s: float = 0.0
    """by the clock of the log"""


class Asked(NamedTuple):
    """A question of another host."""

    ident: str
    """the random name of the question, without blanks; its answer has the same name"""
    body: bytes


class Draft(NamedTuple):
    """An entry that a host wants to append."""

    epoch: str
    host: str
    base: int
    """the last event of the log when the entry was computed"""
    last: int
    """the last event of the entry"""
    start: int
    """how many events the host had appended before"""
    upto: int
    """how many it has with this entry"""
    body: bytes


class LogEntry(NamedTuple):
    """An entry of the log."""

    host: str
    upto: int
    first: int
    last: int
    chain: str
    body: bytes


class Outcome(Enum):
    """What became of an append; the log is unchanged unless it is one of `IN_LOG`."""

    APPENDED = "appended"
    UNCOPIED = "uncopied"
    """appended, but no replica of the keeper has confirmed it in time"""
    EPOCH = "epoch"
    """the log has another epoch, or does not exist"""
    UNSETTLED = "unsettled"
    """the keeper was restarted, and the hosts have not reported yet"""
    LEASED = "leased"
    """another host holds the write lease"""
    BEHIND = "behind"
    """the log ends before the base: it has lost entries"""
    RECORDED = "recorded"
    """the log has these events of the host already"""
    STALE = "stale"
    """the log goes on after the base"""


IN_LOG = frozenset({Outcome.APPENDED, Outcome.UNCOPIED})


def outcome_of(draft: Draft, head: Head | None, writer: str, recorded: int) -> Outcome:
    """Return what becomes of an append.

    `writer` is the host that holds the write lease; `recorded` is how many events of the draft's
    host the log has.
    """
    if head is None or head.epoch != draft.epoch:
        return Outcome.EPOCH
    if not head.settled:
        return Outcome.UNSETTLED
    if writer not in ("", draft.host):
        return Outcome.LEASED
    if draft.base > head.seq:
        return Outcome.BEHIND
    if draft.start < recorded:
        return Outcome.RECORDED
    return Outcome.STALE if draft.base < head.seq else Outcome.APPENDED


def host_mark(host: str) -> bytes:
    """Return the first bytes of all signatures that a host gives.

    They say which host has the verdict in its history. Two hosts may have the same mark: then both
    are asked.
    """
    return blake2b(host.encode(), digest_size=HOST_BYTES, person=b"spamnb host").digest()


class FleetLog(Protocol):
    """The log of a fleet, as one host uses it; threads may share it.

    A log is one ordered series of entries, shared by all hosts of a fleet. An entry holds the
    events that one transaction of one host has made; the seq of an event is its place in the log.

    * `append` adds an entry only if it was computed at the head: if the last event of the log is
      the one before the first of the entry. It is atomic, and durable when it returns.
    * A host numbers its events from 1 on (`start` to `upto` of a draft). The log refuses numbers
      that it already has, so an append that is repeated after a lost answer is in the log only
      once.
    * While a host holds the write lease, the log refuses appends of the other hosts, so that each
      host gets its turn. An expired lease does no harm, because the comparison with the head keeps
      the order.
    * A log whose keeper was restarted is unsettled: it may have lost entries, and refuses appends
      until the hosts have reported what they hold (`settle`). A host that has entries after the end
      of the log gives them back (`restore`).
    * The log keeps the newest entries; a host that lags further behind starts anew from a backup.
    * Hosts ask each other through the keeper of the log, so they need no ports of their own. The
      keeper drops questions and answers after a minute, and may lose them: the host asks again.
    """

    def head(self) -> Head | None:
        """Return the end of the log; None if there is no log."""

    def make(self, head: Head) -> bool:
        """Make an empty log that goes on after this head; False if there is one already.

        If the head is not settled, the log has to be settled as after a restart.
        """

    def append(self, draft: Draft) -> Outcome:
        """Append an entry, if the draft was computed at the head."""

    def settle(self, host: str, seq: int, wait_s: float) -> bool:
        """Report which event is the last that a host has; return whether the log is settled.

        The log is settled if it has all events that the hosts have reported, and either all hosts
        with a beat within the last day have reported, or `wait_s` have passed since the first
        report. A report counts for some seconds, so a host that has ended does not block the
        others.
        """

    def restore(self, epoch: str, before: str, entry: LogEntry) -> bool:
        """Append an entry that the log has lost; False if it does not continue the log.

        `before` is the chain before the entry.
        """

    def renew(self, epoch: str, seq: int, renewed: str) -> bool:
        """Give the log another epoch, if it has this one and ends with this event.

        Hosts of the old epoch neither append nor follow then.
        """

    def put_level(self, level: int) -> None:
        """Set the version of entries that the hosts write, if there is a log."""

    def clear(self) -> None:
        """Remove the log and its state before it is made anew; snapshot and beats stay."""

    def beat(self, beat: Beat) -> int:
        """Record that a host is alive; return the keeper's time in microseconds.

        FleetError if another host, with another `ident`, has just sent a beat under this name.
        Drops the entries that are in the snapshot and that all hosts with a beat within the last
        day have followed.
        """

    def skip(self, last: int, permit: bytes) -> None:
        """Keep the permit to pass over the entry that ends with event `last`."""

    def skipped(self, last: int) -> bytes | None:
        """Return the permit of `skip` for this entry; None if there is none."""

    def beats(self) -> list[Beat]:
        """Return the newest beat of each host, with its age."""

    def recorded(self, host: str) -> int:
        """Return how many events of a host the log has had."""

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        """Yield the entries that end after event `after`, oldest first, up to the end of the log.

        If there are none yet, waits for the first one up to `wait_s`.
        """

    def take_write_lease(self, host: str, ms: int) -> bool:
        """Give a host the write lease for some milliseconds; False if another one holds it."""

    def give_write_lease(self, host: str) -> None:
        """End the write lease, if this host holds it."""

    def put_snapshot(self, parts: Iterable[bytes], seq: int = 0) -> None:
        """Replace the snapshot as soon as all parts are stored; it is kept for some days.

        `seq` is its last event.
        """

    def snapshot_age_s(self) -> float:
        """Return the age of the snapshot; infinite without one."""

    def lease(self, what: str, host: str, hold_s: float) -> bool:
        """Let one host do something for the fleet; False if another host does it."""

    def snapshot(self) -> Iterator[bytes]:
        """Yield the parts of the snapshot; none if there is none."""

    def ask(self, hosts: Collection[str], question: Asked, wait_s: float) -> dict[str, bytes]:
        """Ask these hosts; return the answers that come in this time, by host."""

    def next_question(self, host: str, wait_s: float) -> Asked | None:
        """Take the oldest question to a host; waits for one up to `wait_s`."""

    def answer(self, host: str, answer: Asked) -> None:
        """Give the answer of a host to the question of this name."""

    def close(self) -> None:
        """Close the connections; the log stays."""


class MemoryLog:
    """A log that exists as long as its process; threads may share it."""

    def __init__(self, keep_events: int = 200_000) -> None:
        self._keep_events = keep_events
        self._changed = threading.Condition()
        self._head: Head | None = None
        self._entries: list[LogEntry] = []
        self._recorded: dict[str, int] = {}
        self._snapshot: list[bytes] = []
        self._snapshot_seq = 0
        self._snapshot_at = -math.inf
        self._beats: dict[str, tuple[float, Beat]] = {}
        self._reports: dict[str, tuple[float, int]] = {}
        self._unsettled_since = 0.0
        self._permits: dict[int, bytes] = {}
        self._leases: dict[str, float] = {}
        self._writer, self._writer_until = "", 0.0
        self._questions: defaultdict[str, list[Asked]] = defaultdict(list)
        self._answers: dict[str, dict[str, bytes]] = {}

    def head(self) -> Head | None:
        return self._head

    def make(self, head: Head) -> bool:
        with self._changed:
            if self._head is not None:
                return False
            self._head, self._entries, self._writer = head, [], ""
            self._reports, self._unsettled_since = {}, time.monotonic()
            return True

    def append(self, draft: Draft) -> Outcome:
        with self._changed:
            outcome = self._outcome(draft)
            if outcome is Outcome.APPENDED and self._head is not None:
                chain = next_chain(self._head.chain, draft.body)
                entry = LogEntry(
                    draft.host, draft.upto, draft.base + 1, draft.last, chain, draft.body
                )
                self._add(self._head, entry)
                del self._entries[: self._place(draft.last - self._keep_events)]
            return outcome

    def _add(self, head: Head, entry: LogEntry) -> None:
        self._head = head._replace(seq=entry.last, chain=entry.chain)
        self._recorded[entry.host] = max(entry.upto, self._recorded.get(entry.host, 0))
        self._entries.append(entry)
        self._changed.notify_all()

    def restart(self, lost: int = 0) -> None:
        """Act like a server that was restarted and has lost the newest entries."""
        with self._changed:
            head, kept = self._head, len(self._entries) - lost
            gone = self._entries[kept:]
            del self._entries[kept:]
            if head is None:
                return
            self._recorded |= dict.fromkeys((entry.host for entry in gone), 0)
            self._recorded |= {entry.host: entry.upto for entry in self._entries}
            if gone:
                chain = self._entries[-1].chain if self._entries else START
                head = head._replace(seq=gone[0].first - 1, chain=chain)
            self._head, self._reports = head._replace(settled=False), {}
            self._unsettled_since = time.monotonic()

    def settle(self, host: str, seq: int, wait_s: float) -> bool:
        with self._changed:
            head, now = self._head, time.monotonic()
            if head is None or head.settled:
                return head is not None
            self._reports[host] = now, seq
            fresh = {name: at for name, (made, at) in self._reports.items() if now - made < FRESH_S}
            all_of = self._beats.keys() <= fresh.keys()
            is_over = all_of or now - self._unsettled_since >= wait_s
            if max(fresh.values()) <= head.seq and is_over:
                self._head = head._replace(settled=True)
            return self._head is not None and self._head.settled

    def restore(self, epoch: str, before: str, entry: LogEntry) -> bool:
        with self._changed:
            head = self._head
            if head is None or (epoch, before, entry.first) != (
                head.epoch,
                head.chain,
                head.seq + 1,
            ):
                return False
            self._add(head, entry)
            return True

    def renew(self, epoch: str, seq: int, renewed: str) -> bool:
        with self._changed:
            if self._head is None or self._head[:2] != (epoch, seq):
                return False
            self._head = self._head._replace(epoch=renewed)
            return True

    def put_level(self, level: int) -> None:
        with self._changed:
            self._head = self._head and self._head._replace(level=level)

    def clear(self) -> None:
        with self._changed:
            self._head, self._entries, self._recorded, self._writer = None, [], {}, ""

    def beat(self, beat: Beat) -> int:
        with self._changed:
            now = time.monotonic()
            at, old = self._beats.get(beat.host, (now, beat))
            if old.ident != beat.ident and now - at < FRESH_S:
                raise FleetError(f"another host of the fleet has the name {beat.host}")
            self._beats[beat.host] = now, beat
            lowest = min([self._snapshot_seq, *(one.seq for _, one in self._beats.values())])
            del self._entries[: self._place(lowest)]
            return time.time_ns() // 1000

    def beats(self) -> list[Beat]:
        with self._changed:
            now = time.monotonic()
            return [one._replace(age_s=now - at) for at, one in self._beats.values()]

    def skip(self, last: int, permit: bytes) -> None:
        self._permits[last] = permit

    def skipped(self, last: int) -> bytes | None:
        return self._permits.get(last)

    def recorded(self, host: str) -> int:
        return self._recorded.get(host, 0)

    def _outcome(self, draft: Draft) -> Outcome:
        writer = self._writer if time.monotonic() < self._writer_until else ""
        return outcome_of(draft, self._head, writer, self._recorded.get(draft.host, 0))

    def _place(self, after: int) -> int:
        return bisect_right(self._entries, after, key=lambda entry: entry.last)

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        with self._changed:
            self._changed.wait_for(lambda: self._head and self._head.seq > after, wait_s)
            found = self._entries[self._place(after) :]
        yield from found

    def take_write_lease(self, host: str, ms: int) -> bool:
        with self._changed:
            now = time.monotonic()
            if self._writer not in ("", host) and now < self._writer_until:
                return False
            self._writer, self._writer_until = host, now + ms / 1000
            return True

    def give_write_lease(self, host: str) -> None:
        with self._changed:
            if self._writer == host:
                self._writer = ""

    def put_snapshot(self, parts: Iterable[bytes], seq: int = 0) -> None:
        self._snapshot, self._snapshot_seq = list(parts), seq
        self._snapshot_at = time.monotonic()

    def snapshot_age_s(self) -> float:
        return time.monotonic() - self._snapshot_at

    def lease(self, what: str, host: str, hold_s: float) -> bool:  # noqa: ARG002 - no host is asked
        with self._changed:
            now = time.monotonic()
            is_free = self._leases.get(what, 0.0) <= now
            self._leases[what] = now + hold_s if is_free else self._leases[what]
            return is_free

    def snapshot(self) -> Iterator[bytes]:
        yield from self._snapshot

    def ask(self, hosts: Collection[str], question: Asked, wait_s: float) -> dict[str, bytes]:
        with self._changed:
            answers: dict[str, bytes] = {}
            self._answers[question.ident] = answers
            for host in hosts:
                self._questions[host].append(question)
            self._changed.notify_all()
            self._changed.wait_for(lambda: answers.keys() >= set(hosts), wait_s)
            return self._answers.pop(question.ident)

    def next_question(self, host: str, wait_s: float) -> Asked | None:
        with self._changed:
            questions = self._questions[host]
            self._changed.wait_for(lambda: questions, wait_s)
            return questions.pop(0) if questions else None

    def answer(self, host: str, answer: Asked) -> None:
        with self._changed:
            if answer.ident in self._answers:
                self._answers[answer.ident][host] = answer.body
                self._changed.notify_all()

    def close(self) -> None:
        """Do nothing; there are no connections."""


FOLDER = "tail"
"""in the home"""
FILE_BYTES = 32 << 20
"""of each of the two files: some 10,000 corrections"""
_HEAD = struct.Struct("<II")


class Link(NamedTuple):
    """An entry and the chain before it."""

    before: str
    entry: LogEntry


class Tail:
    """The tail of a home; one process writes it.

        tail/new, tail/old    records: u32 length | u32 CRC-32 | texts before, host, chain
                              varints upto, first, last | chunk body

    An entry is written before the transaction that folds it is committed, without a sync: the entry
    is needed only if the server loses it, and then any host that has it can return it. `new`
    becomes `old` when it is full. A file is read up to the first incomplete record, which the next
    write removes.

    Failure: StoreFullError and StoreAccessError where the file system refuses.
    """

    def __init__(self, home: Path, file_bytes: int = FILE_BYTES) -> None:
        self._folder = home / FOLDER
        self._file_bytes = file_bytes
        self._is_whole = False
        """the file ends with a complete record"""

    def put(self, links: Iterable[Link]) -> None:
        """Keep these entries; those that are there already do no harm."""
        data = b"".join(map(_record, links))
        path = self._folder / "new"
        try:
            if not self._is_whole:
                make_folder(self._folder)
                self._begin(path)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                self._is_whole = os.write(handle, data) == len(data)
                size = os.fstat(handle).st_size
            finally:
                os.close(handle)
            if size > self._file_bytes:
                path.rename(self._folder / "old")
        except OSError as error:
            raise refused(error, path) from error

    def _begin(self, path: Path) -> None:
        """Remove what an interrupted write has left at the end of the file."""
        if path.exists():
            whole = sum(len(_record(link)) for link in _links(path))
            os.truncate(path, whole)

    def clear(self) -> None:
        """Forget all entries."""
        for name in ("old", "new"):
            (self._folder / name).unlink(missing_ok=True)

    def ending(self, seq: int, chain: str) -> list[Link]:
        """Return the kept entries of the history that ends with this event, oldest first."""
        kept = {
            (link.entry.last, link.entry.chain): link
            for name in ("old", "new")
            for link in _links(self._folder / name)
        }
        found: list[Link] = []
        while (link := kept.get((seq, chain))) is not None:
            found.append(link)
            seq, chain = link.entry.first - 1, link.before
        return found[::-1]


def _record(link: Link) -> bytes:
    entry = link.entry
    data = b"".join((
        *(text(one) for one in (link.before, entry.host, entry.chain)),
        *(varint(number) for number in (entry.upto, entry.first, entry.last)),
        chunk(entry.body),
    ))  # fmt: skip
    return _HEAD.pack(len(data), crc32(data)) + data


def _links(path: Path) -> Iterator[Link]:
    """Yield the entries of a file up to the first incomplete one."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused(error, path) from error
    at = 0
    while at + _HEAD.size <= len(raw):
        length, crc = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        data = raw[at : at + length]
        if len(data) != length or crc32(data) != crc:
            return
        at += length
        yield _link(data)


def _link(data: bytes) -> Link:
    reader = ByteCursor(data)
    before, host, chain = reader.text(), reader.text(), reader.text()
    upto, first, last = reader.varint(), reader.varint(), reader.varint()
    return Link(before, LogEntry(host, upto, first, last, chain, bytes(reader.chunk())))
