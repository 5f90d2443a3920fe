"""The board: one page of shared memory on which every process of the daemon writes how it is.

A memfd, handed to each child. Every process has a slot: who sits there, whether it is ready, when
it last gave a sign of life, its row of `meters`, the digests of the messages it has in hand, and a
small ring of digests that killed a scan. Each has a row of `ConnectionCounts`, too, of the
connections that it has open by client. So a number survives `kill -9` of the process that counted
it, and reading the numbers takes no message between processes. Must not know sockets, mail or
settings.

Invariants: each number is one aligned 64-bit word, so it is read whole; each slot is written by its
process, and by the supervisor while that process is not there; the flags by whoever may turn them.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from spamnb.endpoints.net.connection_counts import CELLS, SECRET_BYTES, ConnectionCounts
from spamnb.errors import BugError
from spamnb.service.telemetry.metrics import WIDTH, Meters, summed
from spamnb.service.telemetry.unscanned import COUNTED

DIGEST_BYTES = 16
HANDS = 8
"""messages that one process may have in hand at once: they are judged together"""
RING = 16
"""poisonous digests kept for each slot"""

_MAGIC = 0x73706D6E62303031
_SLOTS, _STARTED, _BYPASS, _WIDTH, _ALARM, _SECRET = 1, 2, 3, 4, 5, 6
_LATELY = _SECRET + SECRET_BYTES // 8
_HEAD = _LATELY + len(COUNTED)
_COUNTS = 2 * CELLS
"""words in a row of `ConnectionCounts`"""
_ROLE_WORDS = 4
_CELLS = 8 + _ROLE_WORDS
_STATE, _PID, _BEAT, _STARTS, _IN_HAND, _RING_AT, _OPEN, _SINCE = range(8)


class ProcessState(IntEnum):
    """How a process is, as far as it could say."""

    EMPTY = 0
    STARTING = 1
    READY = 2
    LEAVING = 3
    DEAD = 4


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One slot, as it was just now."""

    slot: int
    role: str
    state: ProcessState
    pid: int
    starts: int
    """how often a process began here"""
    beat_age_s: float
    """since its last sign of life"""
    up_s: float
    """since it began"""
    open_sessions: int


def monotonic_us() -> int:
    """Microseconds of the clock that all processes of this machine share."""
    return time.monotonic_ns() // 1000


class SharedState:
    """The whole page, mapped into this process."""

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
                    for number in (_MAGIC, len(roles), monotonic_us(), 0, WIDTH)
                )
            ).cast("Q")
        if self._words[0] != _MAGIC or self._words[_WIDTH] != WIDTH:
            raise BugError("the board was made by another version")
        self.slots = self._words[_SLOTS]
        self._hands = (_HEAD + self.slots * _CELLS) * 8
        self._crashers = self._hands + self.slots * HANDS * DIGEST_BYTES
        self._rows = (self._crashers + self.slots * RING * DIGEST_BYTES) // 8
        self._counts = self._rows + self.slots * WIDTH
        for slot, role in enumerate(roles or ()):
            at = self._cell(slot, 8) * 8
            self._map[at : at + _ROLE_WORDS * 8] = role.encode().ljust(_ROLE_WORDS * 8, b"\0")

    @classmethod
    def create(cls, roles: Sequence[str]) -> Self:
        """A new page with a slot for each of these."""
        made = cls(os.memfd_create("spamnb-board", os.MFD_CLOEXEC), roles)
        made._map[_SECRET * 8 : _SECRET * 8 + SECRET_BYTES] = os.urandom(SECRET_BYTES)
        return made

    def close(self) -> None:
        """Let go of the page; the others keep it, and so does whoever holds a row."""
        with suppress(BufferError):
            self._words.release()
            self._map.close()
        os.close(self.fd)

    # -- slots ------------------------------------------------------------------------------------

    def _cell(self, slot: int, which: int) -> int:
        return _HEAD + slot * _CELLS + which

    def role(self, slot: int) -> str:
        """Who sits in a slot."""
        at = self._cell(slot, 8) * 8
        return self._map[at : at + _ROLE_WORDS * 8].rstrip(b"\0").decode()

    def seat(self, slot: int) -> ProcessStatus:
        """How a slot is now."""
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

    def seats(self) -> list[ProcessStatus]:
        """All slots."""
        return [self.seat(slot) for slot in range(self.slots)]

    def begin(self, slot: int) -> None:
        """Note that a process starts here; its row goes on where the last one's ended."""
        first, now = self._cell(slot, 0), monotonic_us()
        self._words[first + _PID] = 0
        self._words[first + _BEAT] = self._words[first + _SINCE] = now
        self._words[first + _STARTS] += 1
        self._words[first + _IN_HAND] = self._words[first + _OPEN] = 0
        self.forget_connections(slot)
        self._words[first + _STATE] = ProcessState.STARTING

    def set_pid(self, slot: int, pid: int) -> None:
        """Say which process it is."""
        self._words[self._cell(slot, _PID)] = pid

    def set_state(self, slot: int, state: ProcessState) -> None:
        """Say how this process is."""
        self._words[self._cell(slot, _STATE)] = state

    def beat(self, slot: int) -> None:
        """Give a sign of life."""
        self._words[self._cell(slot, _BEAT)] = monotonic_us()

    def set_open(self, slot: int, sessions: int) -> None:
        """Say how many sessions are open."""
        self._words[self._cell(slot, _OPEN)] = sessions

    # -- connections by client --------------------------------------------------------------------

    def counts(self, slot: int) -> ConnectionCounts:
        """Count connections into a slot's row, and see those of all workers."""
        rows = [self._count_row(one) for one in range(self.slots) if self.role(one) == "worker"]
        secret = self._map[_SECRET * 8 : _SECRET * 8 + SECRET_BYTES]
        return ConnectionCounts(self._count_row(slot), rows, secret)

    def forget_connections(self, slot: int) -> None:
        """The process of a slot is gone, and its connections with it."""
        first = (self._counts + slot * _COUNTS) * 8
        self._map[first : first + _COUNTS * 8] = bytes(_COUNTS * 8)

    def _count_row(self, slot: int) -> memoryview:
        first = self._counts + slot * _COUNTS
        return self._words[first : first + _COUNTS]

    # -- numbers ----------------------------------------------------------------------------------

    def row(self, slot: int) -> memoryview:
        """The row of numbers of a slot, to be given to `Meters`."""
        first = self._rows + slot * WIDTH
        return self._words[first : first + WIDTH]

    def meters(self, slot: int) -> Meters:
        """Count into a slot's row."""
        return Meters(self.row(slot))

    def total(self) -> Meters:
        """All rows, summed."""
        return summed([self.row(slot) for slot in range(self.slots)])

    @property
    def up_s(self) -> float:
        """Seconds since the daemon began."""
        return (monotonic_us() - self._words[_STARTED]) / 1e6

    # -- flags ------------------------------------------------------------------------------------

    @property
    def bypass(self) -> bool:
        """Whether all mail passes unscanned."""
        return bool(self._words[_BYPASS])

    @bypass.setter
    def bypass(self, value: bool) -> None:
        self._words[_BYPASS] = int(value)

    @property
    def alarm(self) -> bool:
        """Whether too much mail passes unscanned, as the supervisor judges it."""
        return bool(self._words[_ALARM])

    @property
    def lately(self) -> list[int]:
        """What the supervisor counted in the last minutes: see `service.lately`."""
        return self._words[_LATELY:_HEAD].tolist()

    def set_lately(self, found: Sequence[int], *, alarm: bool) -> None:
        """Tell what was counted in the last minutes."""
        for place, number in enumerate(found):
            self._words[_LATELY + place] = number
        self._words[_ALARM] = int(alarm)

    # -- what is in hand, and what is poisonous ---------------------------------------------------

    def hold(self, slot: int, digest: bytes) -> None:
        """Note that a message is about to be judged here."""
        at = self._cell(slot, _IN_HAND)
        count = self._words[at]
        if count < HANDS:
            self._put(self._hands + (slot * HANDS + count) * DIGEST_BYTES, digest)
            self._words[at] = count + 1

    def release(self, slot: int) -> None:
        """Note that nothing is in hand any more."""
        self._words[self._cell(slot, _IN_HAND)] = 0

    def in_hand(self, slot: int) -> list[bytes]:
        """The digests of what a process had in hand when it was last heard of."""
        first = self._hands + slot * HANDS * DIGEST_BYTES
        starts = range(first, first + self._words[self._cell(slot, _IN_HAND)] * DIGEST_BYTES, 16)
        return [self._map[start : start + DIGEST_BYTES] for start in starts]

    def known_crasher(self, slot: int, digest: bytes) -> None:
        """Remember a message that killed a process of this slot, or overran its time."""
        at = self._cell(slot, _RING_AT)
        place = self._words[at] % RING
        self._put(self._crashers + (slot * RING + place) * DIGEST_BYTES, digest)
        self._words[at] += 1

    def crashers_in_flight(self, slot: int) -> list[bytes]:
        """Whoever sat here died: what it had in hand is poisonous from now on."""
        found = self.in_hand(slot)
        for digest in found:
            self.known_crasher(slot, digest)
        self.release(slot)
        return found

    def is_known_crasher(self, digest: bytes) -> bool:
        """Whether some process died of this message."""
        end = self._crashers + self.slots * RING * DIGEST_BYTES
        # Found anywhere, also between two: that two neighbours join to a third by chance is 2^-120.
        return self._map.find(digest[:DIGEST_BYTES], self._crashers, end) >= 0

    def _put(self, at: int, digest: bytes) -> None:
        self._map[at : at + DIGEST_BYTES] = digest[:DIGEST_BYTES].ljust(DIGEST_BYTES, b"\1")


class InFlightGuard:
    """What one process holds, for a scanner that must not know boards."""

    __slots__ = ("_board", "_slot")

    def __init__(self, shared: SharedState, slot: int) -> None:
        self._board = shared
        self._slot = slot

    def is_known_crasher(self, digest: bytes) -> bool:
        """Whether some process died of this message."""
        return self._board.is_known_crasher(digest)

    def hold(self, digest: bytes) -> None:
        """Note that a message is about to be judged."""
        self._board.hold(self._slot, digest)

    def release(self) -> None:
        """Note that it was judged."""
        self._board.release(self._slot)


def _bytes_for(slots: int) -> int:
    words = _HEAD + slots * (_CELLS + WIDTH + _COUNTS)
    return words * 8 + slots * (HANDS + RING) * DIGEST_BYTES
