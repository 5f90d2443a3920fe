"""State and verdicts that the processes share, in memory that each child inherits.

`SharedState` has the state, heartbeat and counters of every process of the daemon; `FeedWriter` and
`FeedReader` pass the newest verdicts to readers that may be slow or absent.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from math import isnan, nan
from typing import Any, Final, Self

from spamnb.errors import BugError
from spamnb.net.server import CELLS, SECRET_BYTES, ConnectionCounts
from spamnb.operations.request import Switch
from spamnb.operations.unscanned import COUNTED
from spamnb.scan.values import BATCH_MESSAGES
from spamnb.telemetry import WIDTH, Log, Meters, summed

DIGEST_BYTES = 16
RING = 2 * BATCH_MESSAGES
"""digests of known crashers kept per slot"""

_MAGIC = 0x73706D6E62303031
_SLOTS, _STARTED, _WIDTH, _BYPASS, _LIVE, _ALARM, _SECRET = range(1, 8)
_SWITCHES: Final[dict[Switch, int]] = {"bypass": _BYPASS, "live": _LIVE}
_LATELY = _SECRET + SECRET_BYTES // 8
_HEAD = _LATELY + len(COUNTED)
_COUNTS = 2 * CELLS
"""words in a row of `ConnectionCounts`"""
_ROLE_WORDS = 4
_CELLS = 8 + _ROLE_WORDS
_STATE, _PID, _BEAT, _STARTS, _IN_FLIGHT, _RING_AT, _OPEN, _SINCE = range(8)


class ProcessState(IntEnum):
    """State of a process."""

    EMPTY = 0
    STARTING = 1
    READY = 2
    LEAVING = 3
    DEAD = 4


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """Snapshot of one slot."""

    slot: int
    role: str
    state: ProcessState
    pid: int
    starts: int
    """number of processes started in this slot"""
    beat_age_s: float
    """time since its last heartbeat"""
    up_s: float
    """time since its start"""
    open_sessions: int


def monotonic_us() -> int:
    """Return microseconds of the monotonic clock, which all processes share."""
    return time.monotonic_ns() // 1000


class SharedState:
    """The shared memory, mapped into this process.

    A memfd that each child inherits. Every process has a slot: role, state, last heartbeat, a row
    of `Meters`, the digests of the messages that it is scanning, a small ring of digests of known
    crashers, and a row of `ConnectionCounts`. So counters survive `kill -9`, and reading them needs
    no message between processes. Must not know sockets, mail or settings.

    Invariants: each number is one aligned 64-bit word, so it is read atomically; a slot is written
    by its process, and by the supervisor while that process does not run.
    """

    def __init__(self, fd: int, roles: Sequence[str] | None = None) -> None:
        self.fd = fd
        if roles is not None:
            os.ftruncate(fd, _bytes_for(len(roles)))
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._words = memoryview(self._map).cast("Q")
        if roles is not None:
            self._words[: _WIDTH + 1] = memoryview(
                b"".join(
                    number.to_bytes(8, "little")
                    for number in (_MAGIC, len(roles), monotonic_us(), WIDTH)
                )
            ).cast("Q")
        if self._words[0] != _MAGIC or self._words[_WIDTH] != WIDTH:
            raise BugError("the shared state was created by another version")
        self.slots = self._words[_SLOTS]
        self._in_flight = (_HEAD + self.slots * _CELLS) * 8
        self._crashers = self._in_flight + self.slots * BATCH_MESSAGES * DIGEST_BYTES
        self._rows = (self._crashers + self.slots * RING * DIGEST_BYTES) // 8
        self._counts = self._rows + self.slots * WIDTH
        for slot, role in enumerate(roles or ()):
            at = self._cell(slot, 8) * 8
            self._map[at : at + _ROLE_WORDS * 8] = role.encode().ljust(_ROLE_WORDS * 8, b"\0")

    @classmethod
    def create(cls, roles: Sequence[str]) -> Self:
        """Create the shared memory with a slot per role."""
        made = cls(os.memfd_create("spamnb-state", os.MFD_CLOEXEC), roles)
        made._map[_SECRET * 8 : _SECRET * 8 + SECRET_BYTES] = os.urandom(SECRET_BYTES)
        return made

    def close(self) -> None:
        """Unmap the memory; other processes and rows in use keep it."""
        with suppress(BufferError):
            self._words.release()
            self._map.close()
        os.close(self.fd)

    # -- slots ------------------------------------------------------------------------------------

    def _cell(self, slot: int, which: int) -> int:
        return _HEAD + slot * _CELLS + which

    def role(self, slot: int) -> str:
        at = self._cell(slot, 8) * 8
        return self._map[at : at + _ROLE_WORDS * 8].rstrip(b"\0").decode()

    def status(self, slot: int) -> ProcessStatus:
        first, now = self._cell(slot, 0), monotonic_us()
        cells = self._words[first : first + 8].tolist()
        return ProcessStatus(
            slot=slot,
            role=self.role(slot),
            state=ProcessState(cells[_STATE]),
            pid=cells[_PID],
            starts=cells[_STARTS],
            beat_age_s=max(0, now - cells[_BEAT]) / 1e6,
            up_s=max(0, now - cells[_SINCE]) / 1e6,
            open_sessions=cells[_OPEN],
        )

    def statuses(self) -> list[ProcessStatus]:
        return [self.status(slot) for slot in range(self.slots)]

    def begin(self, slot: int) -> None:
        """Record the start of a process; the counters of the slot continue."""
        first, now = self._cell(slot, 0), monotonic_us()
        self._words[first + _PID] = 0
        self._words[first + _BEAT] = self._words[first + _SINCE] = now
        self._words[first + _STARTS] += 1
        self._words[first + _IN_FLIGHT] = self._words[first + _OPEN] = 0
        self.forget_connections(slot)
        self._words[first + _STATE] = ProcessState.STARTING

    def set_pid(self, slot: int, pid: int) -> None:
        self._words[self._cell(slot, _PID)] = pid

    def set_state(self, slot: int, state: ProcessState) -> None:
        self._words[self._cell(slot, _STATE)] = state

    def beat(self, slot: int) -> None:
        self._words[self._cell(slot, _BEAT)] = monotonic_us()

    def set_open(self, slot: int, sessions: int) -> None:
        self._words[self._cell(slot, _OPEN)] = sessions

    # -- connections by client --------------------------------------------------------------------

    def counts(self, slot: int) -> ConnectionCounts:
        """Return counts of connections: written to this slot, read from all workers."""
        rows = [self._count_row(one) for one in range(self.slots) if self.role(one) == "worker"]
        secret = self._map[_SECRET * 8 : _SECRET * 8 + SECRET_BYTES]
        return ConnectionCounts(self._count_row(slot), rows, secret)

    def forget_connections(self, slot: int) -> None:
        """Clear the connection counts of a slot after its process has ended."""
        first = (self._counts + slot * _COUNTS) * 8
        self._map[first : first + _COUNTS * 8] = bytes(_COUNTS * 8)

    def _count_row(self, slot: int) -> memoryview:
        first = self._counts + slot * _COUNTS
        return self._words[first : first + _COUNTS]

    # -- numbers ----------------------------------------------------------------------------------

    def row(self, slot: int) -> memoryview:
        """Return the memory of a slot's `Meters`."""
        first = self._rows + slot * WIDTH
        return self._words[first : first + WIDTH]

    def meters(self, slot: int) -> Meters:
        return Meters(self.row(slot))

    def total(self) -> Meters:
        """Return the sum of all meters."""
        return summed([self.row(slot) for slot in range(self.slots)])

    @property
    def started_us(self) -> int:
        """The start of the daemon by the monotonic clock."""
        return self._words[_STARTED]

    @property
    def up_s(self) -> float:
        """Seconds since the start of the daemon."""
        return (monotonic_us() - self._words[_STARTED]) / 1e6

    # -- flags ------------------------------------------------------------------------------------

    def is_on(self, switch: Switch) -> bool:
        """Whether a switch of the administrator is on."""
        return bool(self._words[_SWITCHES[switch]])

    def turn(self, switch: Switch, *, on: bool) -> None:
        """Set the copy of a switch that all processes read."""
        self._words[_SWITCHES[switch]] = int(on)

    @property
    def alarm(self) -> bool:
        """True if too much mail was delivered unscanned, as found by the supervisor."""
        return bool(self._words[_ALARM])

    @property
    def lately(self) -> list[int]:
        """Counts of the last minutes, written by the supervisor: see `telemetry.unscanned`."""
        return self._words[_LATELY:_HEAD].tolist()

    def set_lately(self, found: Sequence[int], *, alarm: bool) -> None:
        for place, number in enumerate(found):
            self._words[_LATELY + place] = number
        self._words[_ALARM] = int(alarm)

    # -- messages being scanned, and known crashers -----------------------------------------------

    def mark(self, slot: int, digest: bytes) -> None:
        """Record that this slot starts to scan a message."""
        at = self._cell(slot, _IN_FLIGHT)
        count = self._words[at]
        if count < BATCH_MESSAGES:
            self._put(self._in_flight + (slot * BATCH_MESSAGES + count) * DIGEST_BYTES, digest)
            self._words[at] = count + 1

    def release(self, slot: int) -> None:
        """Record that this slot scans no message any more."""
        self._words[self._cell(slot, _IN_FLIGHT)] = 0

    def in_flight(self, slot: int) -> list[bytes]:
        """Return the digests of the messages that a process is scanning."""
        first = self._in_flight + slot * BATCH_MESSAGES * DIGEST_BYTES
        starts = range(first, first + self._words[self._cell(slot, _IN_FLIGHT)] * DIGEST_BYTES, 16)
        return [self._map[start : start + DIGEST_BYTES] for start in starts]

    def add_known_crasher(self, slot: int, digest: bytes) -> None:
        """Remember a message that crashed a process of this slot, or exceeded its time limit."""
        at = self._cell(slot, _RING_AT)
        place = self._words[at] % RING
        self._put(self._crashers + (slot * RING + place) * DIGEST_BYTES, digest)
        self._words[at] += 1

    def mark_crashers(self, slot: int) -> list[bytes]:
        """Remember the messages that a dead process was scanning as known crashers."""
        found = self.in_flight(slot)
        for digest in found:
            self.add_known_crasher(slot, digest)
        self.release(slot)
        return found

    def is_known_crasher(self, digest: bytes) -> bool:
        """Return True if a process crashed on this message."""
        end = self._crashers + self.slots * RING * DIGEST_BYTES
        # Also matches across two entries, with a probability of 2^-120.
        return self._map.find(digest[:DIGEST_BYTES], self._crashers, end) >= 0

    def _put(self, at: int, digest: bytes) -> None:
        self._map[at : at + DIGEST_BYTES] = digest[:DIGEST_BYTES].ljust(DIGEST_BYTES, b"\1")


class InFlightGuard:
    """`CrashRegister` of one process, for a scanner without access to shared state."""

    __slots__ = ("_shared", "_slot")

    def __init__(self, shared: SharedState, slot: int) -> None:
        self._shared = shared
        self._slot = slot

    def is_known_crasher(self, digest: bytes) -> bool:
        return self._shared.is_known_crasher(digest)

    def mark(self, digest: bytes) -> None:
        self._shared.mark(self._slot, digest)

    def release(self) -> None:
        self._shared.release(self._slot)


def _bytes_for(slots: int) -> int:
    words = _HEAD + slots * (_CELLS + WIDTH + _COUNTS)
    return words * 8 + slots * (BATCH_MESSAGES + RING) * DIGEST_BYTES


RECORDS = 4096
RECORD_BYTES = 256
_NUMBER = struct.Struct("<Q")
_FIELDS = struct.Struct("<QddfIH27s10s12s18s32s32s40s16s")
_TEXTS = ("signature", "decision", "mail_action", "action", "reason", "listener", "upstream_id",
          "verdict")  # fmt: skip
_RING_BYTES = _NUMBER.size + RECORDS * RECORD_BYTES
_END = RECORD_BYTES - _NUMBER.size
assert _FIELDS.size <= _END


def create_feed(rings: int) -> int:
    """Create the shared memory; return its descriptor."""
    fd = os.memfd_create("spamnb-verdicts", os.MFD_CLOEXEC)
    os.ftruncate(fd, rings * _RING_BYTES)
    return fd


class FeedWriter:
    """Writes the ring of one worker.

    The newest verdicts of all workers are in a second memfd, for readers that may be slow or
    absent. Each worker and the console inherit it; there is none without a console. Each worker has
    a ring of `RECORDS` records of `RECORD_BYTES` and writes one for each message that it logs. A
    worker never waits: a reader that is too slow is told how many records it has missed.

        ring     number of the newest record, 8 bytes | records
        record   number | fields | the same number

    Invariant: the second number is zero while a record is written, and is checked after a record
    was copied, so a torn record is never returned. A ring is written by one process.
    """

    __slots__ = ("_first", "_map", "_number")

    def __init__(self, fd: int, ring: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._first = ring * _RING_BYTES
        # The earlier process of this slot has written the records so far.
        self._number = _NUMBER.unpack_from(self._map, self._first)[0]

    def log_of(self, listener: str, log: Log) -> Log:
        """Return a log that also writes the messages of a listener to the ring."""
        name, write = listener.encode(), self._write

        def logged(record: dict[str, object]) -> None:
            log(record)
            if record["event"] == "message":
                write(name, record)

        return logged

    def _write(self, listener: bytes, record: dict[str, Any]) -> None:
        self._number = number = self._number + 1
        at = self._first + _NUMBER.size + number % RECORDS * RECORD_BYTES
        get = record.get
        _NUMBER.pack_into(self._map, at + _END, 0)
        _FIELDS.pack_into(
            self._map, at, number, time.time(), get("probability", nan), get("scan_ms", 0.0),
            min(get("size", 0), 0xFFFF_FFFF), get("code", 0), get("signature", "").encode(),
            get("decision", "").encode(), get("mail_action", "").encode(),
            get("action", "").encode(), get("reason", "").encode("utf-8", "replace"), listener,
            get("upstream_id", "").encode("utf-8", "replace"), get("verdict", "").encode(),
        )  # fmt: skip
        _NUMBER.pack_into(self._map, at + _END, number)
        _NUMBER.pack_into(self._map, self._first, number)


class FeedReader:
    """Reads the records of all rings from now on, and on request those written earlier."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
        self._rings = range(0, len(self._map), _RING_BYTES)
        self._next = {ring: self._newest(ring) + 1 for ring in self._rings}

    @classmethod
    def open(cls, fd: int) -> Self | None:
        """Return a reader; None without a feed."""
        return cls(fd) if fd >= 0 else None

    def _newest(self, ring: int) -> int:
        return int(_NUMBER.unpack_from(self._map, ring)[0])

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Return the new records in the order of their times, and how many were missed."""
        spans = {ring: (self._next[ring], self._newest(ring) + 1) for ring in self._rings}
        found = self._within(spans)
        self._next = {ring: end for ring, (_, end) in spans.items()}
        return found, sum(end - first for first, end in spans.values()) - len(found)

    def earlier(self) -> list[dict[str, Any]]:
        """Return the records that were there before this reader, in the order of their times."""
        return self._within({ring: (1, self._next[ring]) for ring in self._rings})

    def _within(self, spans: dict[int, tuple[int, int]]) -> list[dict[str, Any]]:
        records = [
            self._record(ring, number)
            for ring, (first, end) in spans.items()
            for number in range(max(first, end - RECORDS), end)
        ]
        found = [record for record in records if record is not None]
        return sorted(found, key=lambda record: float(record["time"]))

    def _record(self, ring: int, number: int) -> dict[str, Any] | None:
        """Return a record; None if it is overwritten."""
        at = ring + _NUMBER.size + number % RECORDS * RECORD_BYTES
        data = self._map[at : at + _END]
        if _NUMBER.unpack_from(self._map, at + _END)[0] != number:
            return None
        _, when, probability, scan_ms, size, code, *texts = _FIELDS.unpack_from(data)
        named = {
            name: raw.rstrip(b"\0").decode("utf-8", "replace")
            for name, raw in zip(_TEXTS, texts, strict=True)
        }
        return {
            "time": when,
            "probability": None if isnan(probability) else probability,
            "scan_ms": round(scan_ms, 3),
            "size": size,
            "code": code,
            **named,
        }
