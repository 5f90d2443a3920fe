"""The interface of a fleet's log, as a protocol with its rules.

A log is one ordered series of entries, shared by all hosts of a fleet. An entry holds the events
that one transaction of one host has made; the seq of an event is its place in the log.

* `append` adds an entry only if it was computed at the head: if the last event of the log is the
  one before the first of the entry. It is atomic, and durable when it returns.
* A host numbers its events from 1 on (`start` to `upto` of a draft). The log refuses numbers that
  it has, so an append that is repeated after a lost answer is never twice in the log.
* The pen is a courtesy: while a host holds it, the log refuses the others. An expired pen does no
  harm, because the comparison with the head is what keeps the order.
* The log keeps the newest entries; a host that lags further behind starts anew from a backup.

`MemoryLog` and `endpoints.fleet.ValkeyLog` implement it; `tests/contract/test_fleet_log.py` runs
against both.

Failure: LogAwayError if the keeper of the log does not answer, or refuses to work. An append that
raises it may be in the log or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple, Protocol

MOST_BYTES = 8 << 20
"""size of one entry's body: a thousand messages of a bulk training take 3 MB"""
START = "0" * 40
"""the chain of a log without entries"""


class Head(NamedTuple):
    """The end of a log."""

    epoch: str
    seq: int
    chain: str


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
    """What became of an append; the log is unchanged unless it is APPENDED."""

    APPENDED = "appended"
    EPOCH = "epoch"
    """the log has another epoch, or does not exist"""
    PEN = "pen"
    """another host holds the pen"""
    BEHIND = "behind"
    """the log ends before the base: it has lost entries"""
    SAID = "said"
    """the log has these events of the host already"""
    STALE = "stale"
    """the log goes on after the base"""


class FleetLog(Protocol):
    """The log of a fleet, as one host uses it; threads may share it."""

    def head(self) -> Head | None:
        """Return the end of the log; None if there is no log."""

    def make(self, head: Head) -> bool:
        """Make an empty log that goes on after this head; False if there is one already."""

    def append(self, draft: Draft) -> Outcome:
        """Append an entry, if the draft was computed at the head."""

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        """Yield the entries that end after event `after`, oldest first, up to the end of the log.

        If there are none yet, waits for the first one up to `wait_s`.
        """

    def take_pen(self, host: str, ms: int) -> bool:
        """Give the pen to a host for some milliseconds; False if another one holds it."""

    def give_pen(self, host: str) -> None:
        """Take the pen back, if this host holds it."""

    def put_snapshot(self, parts: Iterable[bytes]) -> None:
        """Replace the snapshot, when all parts are there; it is kept for some days."""

    def snapshot(self) -> Iterator[bytes]:
        """Yield the parts of the snapshot; none if there is none."""

    def close(self) -> None:
        """Close the connections; the log stays."""
