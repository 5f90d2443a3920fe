"""The beats of a host, and the copy of a host's model with which other hosts join the fleet.

The copy is the file of a backup in parts, each sealed for its place, on the server of the log. The
first element is the random name of the copy and the number of its parts. A copy has the position in
the log, so the new host follows from there.

Failure: FleetError if there is no copy, if it is not sealed with the key of the fleet, or if
another host has this one's name; LogAwayError.
"""

from __future__ import annotations

import math
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

from spamnb.errors import FleetError, LogAwayError, RefusedError
from spamnb.fleet.entries import Place
from spamnb.fleet.log import DAY_S, FRESH_S, Beat, Head
from spamnb.fleet.store import REJOIN, FleetStore, Member, position_of
from spamnb.store.maintenance import backup, restore
from spamnb.telemetry import Log, now_us, silent

PART_BYTES = 1 << 20
MOST_PARTS = 512
"""A copy takes at most this much of the server's memory; copy a larger model as a file."""


def put_snapshot(home: Path, member: Member, seq: int) -> int:
    """Copy the model of a home, which may be in use, to the server; return the size in bytes.

    `seq` is the number of an event that the copy contains.
    """
    with tempfile.TemporaryDirectory(dir=home) as folder:
        copy = Path(folder) / "copy"
        size = backup(home, copy)
        count = -(-size // PART_BYTES)
        if count > MOST_PARTS:
            raise RefusedError(
                f"the model has {size} bytes, more than a snapshot may have",
                hint="use `spamnb backup` here and `spamnb restore` on the other host",
            )
        with copy.open("rb") as file:
            name = secrets.token_hex(8)
            member.log.put_snapshot(_sealed(file, name, count, member), seq)
    return size


def _sealed(file: BinaryIO, name: str, count: int, member: Member) -> Iterator[bytes]:
    yield f"{name} {count}".encode()
    for index in range(count):
        yield member.sealer.seal(file.read(PART_BYTES), _place(name, index, count))


def take_snapshot(home: Path, member: Member, *, overwrite: bool = False) -> None:
    """Make the model of a home from the copy on the server, after verifying it."""
    parts = member.log.snapshot()
    name, _, count = next(parts, b"").decode("ascii", "replace").partition(" ")
    if not count.isdecimal():
        raise FleetError(
            "the server has no snapshot of the fleet",
            hint="run `spamnb fleet snapshot` on a host of the fleet",
        )
    with tempfile.TemporaryDirectory(dir=home) as folder:
        copy, written = Path(folder) / "copy", 0
        with copy.open("xb") as file:
            for part in parts:
                file.write(member.sealer.open(part, _place(name, written, int(count))))
                written += 1
        if written != int(count):
            raise FleetError("the snapshot is incomplete, or was replaced", hint="try again")
        restore(copy, home, overwrite=overwrite)
    if member.tail is not None:
        # The tail may belong to another history, which may have been erased.
        member.tail.clear()


def _place(name: str, index: int, count: int) -> Place:
    """Return the place of a part; the blank keeps it apart from the name of any host."""
    return Place(name, "a snapshot", index, count, 0)


BEAT_S = 5.0
_VERSION: str = sys.modules["spamnb"].__version__
SNAPSHOT_LEASE_S = 600.0
CLOCK_WARN_S = 60.0
CLOCK_STOP_S = 3600.0
_SET_CLOCK = "set the clock: corrections are dated by the clock"
SCAN_SHARE = 0.005
"""share of a core for scans of all rows: a store of 100,000 features is scanned at every beat"""


class Pulse:
    """A host reports its state to the others, compares itself with them, and copies the model.

    Every few seconds a host records a beat with its position and a fingerprint of all numbers and
    texts. The beats reveal two hosts with one name, clocks that differ, and hosts whose numbers
    differ although they hold the same events: then each host stops that differs from half of the
    living hosts or more; mail goes on there. A host also compares its rows with their sum, by a
    scan. Once a day one host copies its model to the server, so that others can join and the log
    can be cut.
    """

    def __init__(self, home: Path, store: FleetStore, log: Log = silent) -> None:
        self.store = store
        self._home, self._member, self._log = home, store.member, log
        self._ident = ident_of(home)
        self._due = -math.inf
        self._scan_due = -math.inf
        self._is_told: set[str] = set()
        self._equal: dict[str, bool] = {}
        """whether another host had the sums of this host at an event that both have had"""
        self._faults: dict[str, FleetError | None] = {}
        """why this host must neither fold nor append"""
        self._seen: tuple[float, list[BeatingHost]] = (0.0, [])

    def hosts(self) -> list[BeatingHost]:
        """Return the hosts as they were at the last beat, with their age now."""
        at, hosts = self._seen
        gone_s = time.monotonic() - at
        return [one._replace(age_s=round(one.age_s + gone_s, 1)) for one in hosts]

    def beat(self, waiting: int = 0) -> None:
        """Beat and look after the others, if it is time; `waiting` is how many corrections wait."""
        if time.monotonic() < self._due:
            return
        with self.store.read() as view:
            position, sums = position_of(view), self.store.note(view)
        about = self._member.level, _VERSION, now_us()
        host = self._member.host
        beat = Beat(host, self._ident, position.seq, position.chain, sums, *about, waiting)
        beat = beat._replace(epoch=position.epoch)
        try:
            keeper_us = self._member.log.beat(beat)
        except FleetError as error:
            self._judge("name", str(error), error.hint)
            raise
        self._judge("name", "")
        self._due = time.monotonic() + BEAT_S
        self._compare_clocks((beat.clock_us - keeper_us) / 1e6)
        self._scan()
        beats, head = self._member.log.beats(), self._member.log.head()
        self._seen = time.monotonic(), _beating(beats, head)
        self._compare(beats)
        fits = head is not None and head.epoch == position.epoch and head.seq >= position.seq
        if fits and not any(self._faults.values()):
            self._copy(position.seq)

    def _compare_clocks(self, ahead_s: float) -> None:
        error = f"the clock of this host differs by {ahead_s:.0f} s from that of the fleet's log"
        self._judge("clock", error if abs(ahead_s) >= CLOCK_STOP_S else "", _SET_CLOCK)
        if abs(ahead_s) >= CLOCK_WARN_S:
            self._tell("clock", error, _SET_CLOCK)
        else:
            self._is_told.discard("clock")

    def _judge(self, what: str, fault: str, hint: str = REJOIN) -> None:
        """Stop the host for a fault, or let it go on if this fault and all others are over."""
        self._faults[what] = FleetError(fault, hint=hint) if fault else None
        self.store.halt(next(filter(None, self._faults.values()), None))

    def _tell(self, what: str, error: str, hint: str) -> None:
        """Log something once."""
        if what not in self._is_told:
            event = "the fleet needs attention"
            self._log({"event": event, "level": "warning", "error": error, "hint": hint})
        self._is_told.add(what)

    def _compare(self, beats: Sequence[Beat]) -> None:
        """Stop this host if half of the living hosts or more had other sums at the same event."""
        others = [one for one in beats if one.age_s <= FRESH_S and one.host != self._member.host]
        for one in others:
            own = self.store.fingerprints.get((one.seq, one.chain))
            if own is not None:
                self._equal[one.host] = own == one.fingerprint
        differing = [one.host for one in others if not self._equal.get(one.host, True)]
        if differing and 2 * len(differing) >= len(others) + 1:
            self._judge("sums", f"this host's sums differ from those of {', '.join(differing)}")

    def _scan(self) -> None:
        """Stop this host if its rows are not those that it has written: a disk may change them."""
        if time.monotonic() < self._scan_due:
            return
        began = time.thread_time()
        with self.store.read() as view:
            sums = view.sums()
            if sums is not None and sums.rows != view.scanned_rows():
                self._judge("rows", "the rows of this host's model were changed on its disk")
        self._scan_due = time.monotonic() + (time.thread_time() - began) / SCAN_SHARE

    def _copy(self, seq: int) -> None:
        """Copy the model to the server, if the last copy is a day old and no other host does it."""
        log = self._member.log
        if log.snapshot_age_s() < DAY_S or not log.lease(
            "snapshot", self._member.host, SNAPSHOT_LEASE_S
        ):
            return
        try:
            size = put_snapshot(self._home, self._member, seq)
            self._log({"event": "model copied to the fleet's server", "bytes": size})
        except RefusedError as error:
            self._tell("copy", str(error), error.hint)


class BeatingHost(NamedTuple):
    """A host as the others see it."""

    host: str
    seq: int
    age_s: float
    level: int
    version: str
    fingerprint: str
    """of its numbers at event `seq`; equal on all hosts with this event"""
    waiting: int
    """corrections that wait there"""
    lag_events: int | None
    """how many events of the log it lacked at its last beat; None for another history"""
    epoch: str
    """the history that `seq` counts in"""

    @property
    def lives(self) -> bool:
        """Return whether it has beaten just now."""
        return self.age_s <= FRESH_S


def hosts_of(member: Member) -> list[BeatingHost]:
    """Return the hosts that have ever beaten; none if the log is away."""
    try:
        return _beating(member.log.beats(), member.log.head())
    except LogAwayError:
        return []


def _beating(beats: Sequence[Beat], head: Head | None) -> list[BeatingHost]:
    return [
        BeatingHost(
            one.host, one.seq, round(one.age_s, 1), one.level, one.version, one.fingerprint,
            one.waiting, _lag(one, head), one.epoch,
        )
        for one in sorted(beats)
    ]  # fmt: skip


def _lag(beat: Beat, head: Head | None) -> int | None:
    if head is not None and head.epoch != beat.epoch:
        return None
    return max(head.seq - beat.seq, 0) if head else 0


def ident_of(home: Path) -> str:
    """Return a name of this home on this machine since its start; a copy has another one."""
    found = home.stat()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    except OSError:
        boot = ""
    about = f"{found.st_dev} {found.st_ino} {boot}".encode()
    return blake2b(about, digest_size=8).hexdigest()
