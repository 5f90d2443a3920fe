"""`FleetStore`: a store whose events go through the log of a fleet.

It is the store of its host: reads are local, and see what this host has folded. A transaction that
makes events appends them to the log before it is committed, and only if it was computed at the head
of the log; otherwise it is abandoned, the new entries are folded, and it runs again. So the log is
what a single host would have written.

| the process ends | then |
|---|---|
| before the append | nothing has happened |
| after the append, before the commit | the log has the entry; the next fold brings it |

If the answer to an append is lost, the transaction is abandoned, and the fold tells whether the log
has the entry.

Failure: LogAwayError while the log does not answer, FleetError if host and log do not fit together.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event, Recipe
from spamnb.errors import FleetError, LogAwayError, RefusedError, StoreError
from spamnb.service.engine.words import MergedWords
from spamnb.service.fleet.fold import OpenEntry, fold, open_entries
from spamnb.store.contract import ReadView, Store, WriteView
from spamnb.store.fleet.body import encode_body
from spamnb.store.fleet.fleet_log import (
    MOST_BYTES,
    Draft,
    FleetLog,
    Head,
    LogEntry,
    Outcome,
)
from spamnb.store.fleet.position import FleetPosition, next_chain
from spamnb.store.fleet.seal import Place, Sealer

FOLDED_EVENTS = 2048
"""Events in one transaction of a fold: CPU time of an event 1.2 ms with 16, 0.4 with 2,048."""
FOLDED_BYTES = 4 * MOST_BYTES
FEW_EVENTS = 16
"""An append of more events takes the pen after its first refusal."""
FEW_REFUSALS = 3
"""After so many refusals every append takes the pen."""
PEN_MS = 5000
PAUSE_S = 0.004
"""longest pause after a refusal; the pauses are random, so that two hosts do not meet again"""
TELL_S = 30.0
"""how long a transaction is repeated while other hosts are faster"""

Result = TypeVar("Result")


class Member(NamedTuple):
    """One host of a fleet."""

    host: str
    log: FleetLog
    sealer: Sealer
    fold_s: float = 0.5
    """a follower folds as often as this at most: a fold of many entries takes less time for each"""


class _OutpacedError(Exception):
    """The log refused an append, and is unchanged."""

    def __init__(self, outcome: Outcome, events: int) -> None:
        super().__init__(outcome)
        self.wants_pen = outcome is Outcome.PEN or events > FEW_EVENTS


class _NotedChanges:
    """A write view that also keeps the events and words that are added to it."""

    def __init__(self, view: WriteView) -> None:
        self._view = view
        self.events: list[Event] = []
        self.words: list[Words] = []

    def append(self, *events: Event) -> None:
        self._view.append(*events)
        self.events += events

    def put_words(self, words: Words) -> None:
        self._view.put_words(words)
        self.words.append(words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


class _Attempt(Generic[Result]):
    """One attempt to run a function in a transaction and to append what it adds."""

    def __init__(self, member: Member, run: Callable[[WriteView], Result]) -> None:
        self._member = member
        self._run = run
        self.sent: Draft | None = None
        """what may be in the log"""
        self.chain = ""
        self.result: Result | None = None

    def body(self, view: WriteView) -> Result:
        if self.sent is not None:
            raise LogAwayError("the store failed when the log had the entry already")
        noted = _NotedChanges(view)
        self.result = result = self._run(cast("WriteView", noted))
        if noted.events:
            self._tell(view, noted)
        return result

    def _tell(self, view: WriteView, noted: _NotedChanges) -> None:
        position = position_of(view)
        draft = self._draft(position, noted)
        self.sent, self.chain = draft, next_chain(position.chain, draft.body)
        outcome = self._member.log.append(draft)
        if outcome is not Outcome.APPENDED:
            self.sent = None
            raise _OutpacedError(outcome, len(noted.events))
        view.put_position(position.after(draft.last, self.chain, draft.host, draft.upto))

    def _draft(self, position: FleetPosition, noted: _NotedChanges) -> Draft:
        host, events = self._member.host, noted.events
        start = position.of(host).events
        upto, last = start + len(events), position.seq + len(events)
        place = Place(position.epoch, host, position.seq + 1, last, upto)
        body = self._member.sealer.seal(encode_body(events, _merged(noted.words)), place)
        if len(body) > MOST_BYTES:
            raise RefusedError(
                f"{len(events)} events of {len(body)} bytes are more than an entry of the fleet's"
                f" log holds ({MOST_BYTES})",
                hint="train through the daemon, which learns a thousand messages at a time",
            )
        return Draft(position.epoch, host, position.seq, last, start, upto, body)


class FleetStore:
    """`Store` of one host of a fleet; threads may share it."""

    def __init__(self, store: Store, member: Member) -> None:
        self._store = store
        self._member = member
        self._following = threading.Lock()
        self.on_fold: Callable[[Sequence[Event]], None] = lambda _: None
        """is called with the events of other hosts, when they are in the store"""

    @property
    def recipe(self) -> Recipe:
        return self._store.recipe

    @property
    def limit_bytes(self) -> int:
        return self._store.limit_bytes

    def read(self) -> AbstractContextManager[ReadView]:
        return self._store.read()

    @contextmanager
    def write(self) -> Iterator[WriteView]:
        """Open a transaction that must not add events; `transact` can."""
        with self._store.write() as view:
            yield view

    def close(self) -> None:
        self._member.log.close()
        self._store.close()

    def position(self) -> FleetPosition:
        """Return how far this host has followed the log."""
        with self._store.read() as view:
            return position_of(view)

    # -- teaching -------------------------------------------------------------------------------

    def transact(self, run: Callable[[WriteView], Result]) -> Result:
        """Run a function in a transaction whose events the log has."""
        refusals, until = 0, time.monotonic() + TELL_S
        has_pen = False
        try:
            while True:
                self.follow()
                try:
                    return self._attempt(run)
                except _OutpacedError as refused:
                    refusals += 1
                    if refusals >= FEW_REFUSALS or refused.wants_pen:
                        has_pen = self._take_pen(until)
                    else:
                        _pause()
        finally:
            if has_pen:
                self._give_pen()

    def _take_pen(self, until: float) -> bool:
        """Wait for the pen; LogAwayError if it is not to be had."""
        while not self._member.log.take_pen(self._member.host, PEN_MS):
            if time.monotonic() > until:
                raise LogAwayError("other hosts write to the fleet's log", hint="try again")
            _pause()
        return True

    def _give_pen(self) -> None:
        # A pen that is not given back expires.
        with suppress(LogAwayError):
            self._member.log.give_pen(self._member.host)

    def _attempt(self, run: Callable[[WriteView], Result]) -> Result:
        attempt = _Attempt(self._member, run)
        try:
            return self._store.transact(attempt.body)
        except StoreError:
            sent = attempt.sent
            if sent is None:
                raise
            self.follow()
            said = self.position().of(sent.host)
            if said != (sent.upto, attempt.chain):
                raise
            return cast("Result", attempt.result)

    # -- following ------------------------------------------------------------------------------

    @property
    def fold_s(self) -> float:
        """Return the least time between two folds of a follower."""
        return self._member.fold_s

    def follow(self) -> int:
        """Fold the entries that this host lacks; return how many."""
        with self._following:
            position = self.position()
            head = self._head(position)
            if head.seq == position.seq:
                return 0
            done = 0
            for entries in _portions(self._member.log.entries(position.seq)):
                opened = open_entries(entries, position, self._member.sealer)
                position = opened[-1].after
                done += len(opened)
                self._fold(opened)
            if position.seq < head.seq:
                raise FleetError(
                    f"the log ends with event {head.seq}, and lacks those after event"
                    f" {position.seq}, where this host is",
                    hint="restore a backup of another host",
                )
            return done

    def _fold(self, opened: list[OpenEntry]) -> None:
        left = opened
        while left:
            left = left[self._store.transact(partial(fold, entries=left)) :]
        host = self._member.host
        self.on_fold([event for entry in opened if entry.host != host for event in entry.events])

    def wait(self, wait_s: float) -> bool:
        """Wait until the log has an entry that this host lacks; False if none came."""
        entries = self._member.log.entries(self.position().seq, wait_s)
        return next(entries, None) is not None

    def _head(self, position: FleetPosition) -> Head:
        """Return the end of the log; FleetError if it is not the log that this host followed."""
        head = self._member.log.head()
        if head is None:
            raise FleetError("the fleet has no log", hint="was its server replaced?")
        if head.epoch != position.epoch:
            raise FleetError(
                "the log belongs to another fleet, or was made anew",
                hint="restore a backup of a host that follows it",
            )
        is_other = head.seq == position.seq and head.chain != position.chain
        if head.seq < position.seq or is_other:
            raise FleetError(
                f"the log has lost entries: it ends with event {head.seq}, this host has event"
                f" {position.seq}",
                hint="see `Losing the log` in docs/fleet.md",
            )
        return head


def position_of(view: ReadView) -> FleetPosition:
    """Return the position of a store; FleetError if it follows no log."""
    position = view.position()
    if position is None:
        raise FleetError(
            "this model follows no log, but the settings have a fleet",
            hint="run `spamnb fleet init` on the first host, restore its backup on the others",
        )
    return position


def _merged(parts: list[Words]) -> Words:
    ids = [part.ids for part in parts]
    return MergedWords(parts).words(np.unique(np.concatenate(ids or [np.zeros(0, np.uint64)])))


def _pause() -> None:
    time.sleep(random.uniform(0, PAUSE_S))  # noqa: S311 - no secret


def _portions(entries: Iterable[LogEntry]) -> Iterator[list[LogEntry]]:
    """Group entries into those that are folded together."""
    some: list[LogEntry] = []
    events = size = 0
    for entry in entries:
        some.append(entry)
        events += entry.last - entry.first + 1
        size += len(entry.body)
        if events >= FOLDED_EVENTS or size >= FOLDED_BYTES:
            yield some
            some, events, size = [], 0, 0
    if some:
        yield some
