"""The interface of a fleet's log, as a protocol with its rules.

A log is one ordered series of entries, shared by all hosts of a fleet. An entry holds the events
that one transaction of one host has made; the seq of an event is its place in the log.

* `append` adds an entry only if it was computed at the head: if the last event of the log is the
  one before the first of the entry. It is atomic, and durable when it returns.
* A host numbers its events from 1 on (`start` to `upto` of a draft). The log refuses numbers that
  it already has, so an append that is repeated after a lost answer is in the log only once.
* While a host holds the write lease, the log refuses appends of the other hosts, so that each host
  gets its turn. An expired lease does no harm, because the comparison with the head keeps the
  order.
* A log whose keeper was restarted is unsettled: it may have lost entries, and refuses appends until
  the hosts have reported what they hold (`settle`). A host that has entries after the end of the
  log gives them back (`restore`).
* The log keeps the newest entries; a host that lags further behind starts anew from a backup.
* Hosts ask each other through the keeper of the log, so they need no ports of their own. The keeper
  drops questions and answers after a minute, and may lose them: the host asks again.

`MemoryLog`, `ValkeyLog` and `PostgresLog` of `endpoints.fleet` implement it;
`tests/contract/test_fleet_log.py` runs against all of them.

Failure: LogAwayError if the keeper of the log does not answer, or refuses to work. If an append
raises it, its entry may be in the log or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, Protocol

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
    """The log of a fleet, as one host uses it; threads may share it."""

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
