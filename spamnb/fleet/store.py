"""A store that follows the log of a fleet.

`fold` brings entries of the log into the store of this host, and `FleetStore` appends what this
host makes. Failure: LogAwayError while the log does not answer; FleetError if host and log do not
fit together, and for an entry that does not follow the store's last event, is not sealed for its
place, or cannot be read.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from spamnb.engine.values import MergedWords
from spamnb.errors import BugError, FleetError, LogAwayError, RefusedError, StoreError
from spamnb.fleet.entries import (
    NO_MARK,
    SCORES_VERSION,
    VERSION,
    Place,
    Sealer,
    decode_body,
    encode_body,
)
from spamnb.fleet.log import (
    IN_LOG,
    MOST_BYTES,
    Draft,
    FleetLog,
    Head,
    Link,
    LogEntry,
    Outcome,
    Tail,
)
from spamnb.model.events import NO_LABEL, Event, EventKind, Ids, Recipe, no_update
from spamnb.model.features import Words
from spamnb.settings.values import OUTBOX_BYTES
from spamnb.store.codec import encode_totals
from spamnb.store.journal import event_ids, ids_of
from spamnb.store.table_views import ReadView, Replay, Store, WriteView
from spamnb.store.values import FleetPosition, Recorded, RowSums, next_chain

UNFIT = BugError, FleetError, RefusedError, ArithmeticError, LookupError, TypeError, ValueError
"""errors of an entry, not of the disk"""
REJOIN = "stop the daemon, run `spamnb fleet rejoin` here, and start it"


class OpenEntry(NamedTuple):
    """An entry with its events and the position after it."""

    host: str
    events: tuple[Event, ...]
    words: Words
    before: int
    after: FleetPosition


def open_entries(
    entries: Sequence[LogEntry], position: FleetPosition, sealer: Sealer, newest: int = VERSION
) -> list[OpenEntry]:
    """Open the entries that follow a position, one after the other."""
    opened = []
    for entry in entries:
        one = _opened(entry, position, sealer, newest)
        opened.append(one)
        position = one.after
    return opened


def _opened(entry: LogEntry, position: FleetPosition, sealer: Sealer, newest: int) -> OpenEntry:
    if entry.first != position.seq + 1:
        raise FleetError(
            f"the log continues with event {entry.first}, but this host ends with event"
            f" {position.seq}",
            hint=f"the log keeps only the newest events: {REJOIN}",
        )
    if next_chain(position.chain, entry.body) != entry.chain:
        raise FleetError(
            f"event {entry.first} of the log follows another history than this host's",
            hint=REJOIN,
        )
    place = Place(position.epoch, entry.host, entry.first, entry.last, entry.upto)
    body = sealer.open(entry.body, place)
    try:
        events, words, mark = decode_body(entry.first, body, newest)
    except StoreError as error:
        raise FleetError(f"event {entry.first} of the log: {error}", hint=error.hint) from error
    if entry.first + len(events) != entry.last + 1:
        raise FleetError(f"the entry that ends with event {entry.last} has {len(events)} events")
    recorded = Recorded(entry.upto, entry.chain, mark.hex())
    after = position.after(entry.last, entry.host, recorded)
    return OpenEntry(entry.host, events, words, position.seq, after)


def follows(entry: LogEntry, position: FleetPosition) -> bool:
    """Return whether an entry continues the history up to a position."""
    is_next = entry.first == position.seq + 1
    return is_next and next_chain(position.chain, entry.body) == entry.chain


def unfit(entry: LogEntry, error: Exception) -> FleetError:
    """Return the error of an entry that cannot be applied."""
    about = f"the entry of host {entry.host} with event {entry.last} cannot be applied"
    hint = "upgrade this host; if no host can apply it: `spamnb fleet skip`"
    return FleetError(f"{about}: {error}", hint=getattr(error, "hint", "") or hint)


def permit_place(entry: LogEntry, position: FleetPosition) -> Place:
    """Return the place of the permit to skip an entry; the blank keeps it apart from any host."""
    return Place(position.epoch, "a skipped entry", entry.first, entry.last, entry.upto)


def skipped_entry(
    entry: LogEntry, position: FleetPosition, sealer: Sealer, permit: bytes, recipe: Recipe
) -> OpenEntry:
    """Return an entry without effect; its events are empty, with the time in the permit."""
    time_us = int(sealer.open(permit, permit_place(entry, position)))
    none = tuple(np.zeros(0, np.uint64) for _ in range(recipe.groups))
    nothing = no_update(recipe.groups, len(recipe.labels))
    empty = Event(
        0, EventKind.ERASED, time_us, "", "", b"", "", NO_LABEL, NO_LABEL, 0, none,
        nothing, nothing,
    )  # fmt: skip
    events = tuple(empty._replace(seq=seq) for seq in range(entry.first, entry.last + 1))
    after = position.after(entry.last, entry.host, Recorded(entry.upto, entry.chain))
    return OpenEntry(entry.host, events, MergedWords([]).words(none[0]), position.seq, after)


def fold(view: WriteView, entries: Sequence[OpenEntry]) -> int:
    """Fold entries in one transaction; return how many, which is fewer if the others must wait.

    Entries that the store has already are counted too: another process may have folded them.

    Several entries are folded in one transaction, with the result of one transaction for each: the
    rows are sums, and a feature has the text that it got when it was last new. Therefore a
    transaction ends before an entry that changes a feature that an earlier entry in it has removed.
    """
    position = view.position()
    here = position.seq if position else 0
    new = [entry for entry in entries if entry.before >= here]
    known = len(entries) - len(new)
    if not new:
        return known
    if position is None or new[0].before != here:
        raise FleetError(f"event {new[0].before + 1} of the log follows event {here}")
    replaying = Replay(view, [event for entry in new for event in entry.events])
    removed = np.zeros(0, np.uint64)
    done = 0
    for entry in new:
        if len(removed) and np.isin(removed, ids_of(entry.events)).any():
            break
        for event in entry.events:
            replaying.apply(event)
        removed = np.concatenate([removed, _removed(replaying, entry.events)])
        done += 1
    replaying.write(MergedWords([entry.words for entry in new[:done]]).words)
    view.put_position(new[done - 1].after)
    return known + done


def _removed(replaying: Replay, events: Sequence[Event]) -> Ids:
    """Return the features that these events have removed; a first learn removes none."""
    ids = [event_ids(event) for event in events if _may_remove(event)]
    return replaying.removed(np.unique(np.concatenate(ids))) if ids else np.zeros(0, np.uint64)


def _may_remove(event: Event) -> bool:
    return event.kind is not EventKind.LEARN or event.before == event.after


_NO_IDS = np.zeros(0, np.uint64)


class NotedChanges:
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

    def merged_words(self) -> Words:
        """Return the words that were added, each once."""
        ids = [part.ids for part in self.words]
        return MergedWords(self.words).words(np.unique(np.concatenate(ids or [_NO_IDS])))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


FOLDED_EVENTS = 2048
"""Events in one transaction of a fold: CPU time of an event 1.2 ms with 16, 0.4 with 2,048."""
FOLDED_BYTES = 4 * MOST_BYTES
FEW_EVENTS = 16
"""An append of more events takes the write lease after its first refusal, the next one before."""
FEW_REFUSALS = 3
"""After so many refusals every append takes the write lease."""
WRITE_LEASE_MS = 5000
PAUSE_S = 0.004
"""longest pause after a refusal; the pauses are random, so that two hosts do not collide again"""
TURN_S = 0.05
"""pause before a long transaction if other hosts write, too: hosts that wait for the lease get it.
During a training, 90 % of corrections wait at most 0.8 to 1.4 s with 0.02, and at most 0.4 to 0.6 s
with 0.05 or 0.1."""
SETTLE_S = 5.0
"""time that the hosts get to report after a restart of the server"""
REMEMBERED = 1000
"""number of fingerprints that are kept, to compare with those of slower hosts"""
TELL_S = 30.0
"""how long a transaction is repeated while other hosts are faster"""

Result = TypeVar("Result")


class Member(NamedTuple):
    """One host of a fleet."""

    host: str
    log: FleetLog
    sealer: Sealer
    fold_s: float = 0.5
    """least time between two folds of a follower: entries take less time if folded together"""
    tail: Tail | None = None
    """keeps the newest entries, in case the log loses them"""
    outbox_bytes: int = OUTBOX_BYTES
    """how much may wait while the log is away"""
    level: int = VERSION
    """the newest version of entries that this host reads and writes"""


class _OutpacedError(Exception):
    """The log refused an append, and is unchanged."""

    def __init__(self, outcome: Outcome, events: int) -> None:
        super().__init__(outcome)
        self.wants_lease = outcome is Outcome.LEASED or events > FEW_EVENTS


class InDoubtError(LogAwayError):
    """The log may have the entry of this transaction, or get it yet."""


class _Attempt(Generic[Result]):
    """One attempt to run a function in a transaction and to append what it adds."""

    def __init__(
        self,
        member: Member,
        run: Callable[[WriteView], Result],
        mark: bytes,
        level: int,
        *,
        is_current: bool,
    ) -> None:
        self._member = member
        self._run = run
        self._mark = mark
        self._version = level
        self._is_current = is_current
        """this host has just followed the log to its end"""
        self.sent: Draft | None = None
        """what may be in the log"""
        self.chain = ""
        self.is_copied = True
        self.result: Result | None = None

    @property
    def events(self) -> int:
        """Return how many events may be in the log."""
        return self.sent.last - self.sent.base if self.sent else 0

    def body(self, view: WriteView) -> Result:
        if self.sent is not None:
            raise LogAwayError("the store failed after the log had taken the entry")
        noted = NotedChanges(view)
        self.result = result = self._run(cast("WriteView", noted))
        if noted.events:
            self._tell(view, noted)
        elif not self._is_current:
            # Nothing to append: that is true only at the end of the log.
            raise _OutpacedError(Outcome.STALE, 0)
        return result

    def _tell(self, view: WriteView, noted: NotedChanges) -> None:
        position = position_of(view)
        draft = self._draft(position, noted)
        self.sent, self.chain = draft, next_chain(position.chain, draft.body)
        outcome = self._member.log.append(draft)
        if outcome not in IN_LOG:
            self.sent = None
            raise _OutpacedError(outcome, len(noted.events))
        self.is_copied = outcome is not Outcome.UNCOPIED
        entry = LogEntry(draft.host, draft.upto, draft.base + 1, draft.last, self.chain, draft.body)
        keep(self._member.tail, position.chain, [entry])
        recorded = Recorded(draft.upto, self.chain, self._mark.hex())
        view.put_position(position.after(draft.last, draft.host, recorded))

    def _draft(self, position: FleetPosition, noted: NotedChanges) -> Draft:
        host, events = self._member.host, noted.events
        start = position.of(host).events
        upto, last = start + len(events), position.seq + len(events)
        place = Place(position.epoch, host, position.seq + 1, last, upto)
        body = self._member.sealer.seal(
            encode_body(events, noted.merged_words(), self._mark, self._version), place
        )
        if len(body) > MOST_BYTES:
            raise RefusedError(
                f"{len(events)} events of {len(body)} bytes are more than an entry of the fleet's"
                f" log holds ({MOST_BYTES})",
                hint="train through the daemon, which learns a thousand messages at a time",
            )
        return Draft(position.epoch, host, position.seq, last, start, upto, body)


class FleetStore:
    """`Store` of one host of a fleet; threads may share it.

    It is the store of its host: reads are local, and see what this host has folded. A transaction
    that makes events appends them to the log before it is committed, and only if it was computed at
    the head of the log; otherwise it is abandoned, the new entries are folded, and it runs again.
    So the log is what a single host would have written.

    | the process ends | then | |---|---| | before the append | nothing has happened | | after the
    append, before the commit | the log has the entry; the next fold brings it |

    If the answer to an append is lost, the transaction is abandoned, and the fold tells whether the
    log has the entry.
    """

    def __init__(self, store: Store, member: Member) -> None:
        self._store = store
        self.member = member
        self._following = threading.Lock()
        self._noting = threading.Lock()
        self.fingerprints: dict[tuple[int, str], str] = {}
        """by seq and chain"""
        self._halt: FleetError | None = None
        self._level = 1
        """the version of entries that this host writes"""
        self._is_behind = True
        """the log may have entries that this host lacks"""
        self._was_long = False
        """the last transaction had many events, so the next one probably has, too"""
        self.is_copied = True
        """whether a replica of the server, if `fleet.durable` demands it, has the last append"""
        self._is_shared = False
        """other hosts have written since the last turn of this one"""
        self.on_fold: Callable[[Sequence[Event]], None] = lambda _: None
        """is called with the events of other hosts, when they are in the store"""

    @property
    def recipe(self) -> Recipe:
        return self._store.recipe

    @property
    def limit_bytes(self) -> int:
        return self._store.limit_bytes

    @property
    def host(self) -> str:
        """Return the name of this host."""
        return self.member.host

    @property
    def level(self) -> int:
        """Return the version of entries that this host writes."""
        return min(self._level, self.member.level)

    @property
    def scores_host(self) -> str:
        """Return the name of this host; empty if other hosts cannot read counts of scores."""
        return self.host if self.level >= SCORES_VERSION else ""

    def last_change(self) -> int:
        return self._store.last_change()

    def read(self) -> AbstractContextManager[ReadView]:
        return self._store.read()

    @contextmanager
    def write(self) -> Iterator[WriteView]:
        """Open a transaction that must not add events; `transact` can."""
        with self._store.write() as view:
            yield view

    def close(self) -> None:
        self.member.log.close()
        self._store.close()

    def position(self) -> FleetPosition:
        """Return how far this host has followed the log."""
        with self._store.read() as view:
            return position_of(view)

    def note(self, view: ReadView) -> str:
        """Return the fingerprint of a view; it is kept for its position."""
        position = position_of(view)
        found = fingerprint(view)
        with self._noting:
            self.fingerprints[position.seq, position.chain] = found
            for old in list(self.fingerprints)[:-REMEMBERED]:
                del self.fingerprints[old]
        return found

    # -- teaching -------------------------------------------------------------------------------

    def transact(self, run: Callable[[WriteView], Result], mark: bytes = NO_MARK) -> Result:
        """Run a function in a transaction whose events the log has, in an entry with this mark."""
        refusals, until = 0, time.monotonic() + TELL_S
        has_lease = False
        try:
            if self._was_long:
                has_lease = self._take_turn(until)
            while True:
                # A host that is probably at the end of the log need not ask before it appends.
                is_current = self._is_behind or self._halt is not None
                if is_current:
                    self.follow()
                self._is_behind = True
                try:
                    attempt = _Attempt(self.member, run, mark, self.level, is_current=is_current)
                    result = self._attempt(attempt)
                except _OutpacedError as refused:
                    refusals += 1
                    if refusals >= FEW_REFUSALS or refused.wants_lease:
                        has_lease = self._take_write_lease(until)
                    else:
                        _pause()
                else:
                    self._is_behind = False
                    if attempt.events:
                        self.is_copied = attempt.is_copied
                    self._was_long = attempt.events > FEW_EVENTS
                    return result
        finally:
            if has_lease:
                self._give_write_lease()

    def _take_turn(self, until: float) -> bool:
        """Take the write lease for a long transaction, which would often be refused without it.

        Hosts that wait for the lease already get it first.
        """
        if self._is_shared:
            time.sleep(TURN_S)
        self._is_shared, self._is_behind = False, True
        return self._take_write_lease(until)

    def _take_write_lease(self, until: float) -> bool:
        """Wait for the write lease; LogAwayError if other hosts hold it too long."""
        while not self.member.log.take_write_lease(self.member.host, WRITE_LEASE_MS):
            if time.monotonic() > until:
                raise LogAwayError("other hosts write to the fleet's log", hint="try again")
            _pause()
        return True

    def _give_write_lease(self) -> None:
        # A lease that is not given back expires.
        with suppress(LogAwayError):
            self.member.log.give_write_lease(self.member.host)

    def _attempt(self, attempt: _Attempt[Result]) -> Result:
        try:
            return self._store.transact(partial(self._noted, attempt.body))
        except StoreError as error:
            sent = attempt.sent
            if sent is None:
                raise
            with suppress(StoreError):
                self.follow()
            if self.position().of(sent.host).chain != attempt.chain:
                # The server may still get the append: from a connection that it has not read.
                raise InDoubtError(str(error), hint=error.hint) from error
            return cast("Result", attempt.result)

    def _noted(self, run: Callable[[WriteView], Result], view: WriteView) -> Result:
        """Run a function, and keep the fingerprint of what it has made."""
        result = run(view)
        self.note(view)
        return result

    # -- following ------------------------------------------------------------------------------

    @property
    def fold_s(self) -> float:
        """Return the least time between two folds of a follower."""
        return self.member.fold_s

    def halt(self, why: FleetError | None) -> None:
        """Stop folding and appending for this reason, or go on if it is None."""
        self._halt = why

    def follow(self) -> int:
        """Fold the entries that this host lacks; return how many."""
        with self._following:
            if self._halt is not None:
                raise FleetError(str(self._halt), hint=self._halt.hint)
            position = self.position()
            head = self._head(position)
            self._level = head.level
            if head.seq == position.seq and head.settled:
                return 0
            done = 0
            for entries in _portions(self.member.log.entries(position.seq)):
                position = self._take(entries, position)
                done += len(entries)
            if position.seq < head.seq:
                raise FleetError(
                    f"the log ends with event {head.seq}, but lacks the events that follow event"
                    f" {position.seq}, where this host is",
                    hint=REJOIN,
                )
            if not (head.settled or self.member.log.settle(self.host, position.seq, SETTLE_S)):
                raise LogAwayError(
                    "the server of the fleet's log was restarted",
                    hint="wait some seconds until the hosts have reported what they hold",
                )
            self._is_behind = False
            return done

    def _take(self, entries: Sequence[LogEntry], position: FleetPosition) -> FleetPosition:
        """Fold entries; FleetError that names the first one that cannot be applied."""
        try:
            opened = open_entries(entries, position, self.member.sealer, self.member.level)
            keep(self.member.tail, position.chain, entries)
            self._fold(opened)
        except UNFIT as error:
            position = self.position()
            left = [entry for entry in entries if entry.last > position.seq]
            if len(left) > 1:
                for entry in left:
                    position = self._take([entry], position)
                return position
            if not left or not follows(left[0], position):
                raise
            skipped = self._skipped(left[0], position)
            if skipped is None:
                raise unfit(left[0], error) from error
            keep(self.member.tail, position.chain, left)
            self._fold([skipped])
            return skipped.after
        return opened[-1].after

    def _skipped(self, entry: LogEntry, position: FleetPosition) -> OpenEntry | None:
        """Return an entry that an administrator has made empty; None if that is not so."""
        permit = self.member.log.skipped(entry.last)
        if permit is None:
            return None
        return skipped_entry(entry, position, self.member.sealer, permit, self.recipe)

    def _fold(self, opened: list[OpenEntry]) -> None:
        left = opened
        while left:
            done = partial(self._noted, partial(fold, entries=left))
            left = left[self._store.transact(done) :]
        host = self.member.host
        others = [event for entry in opened if entry.host != host for event in entry.events]
        self._is_shared |= bool(others)
        self.on_fold(others)

    def wait(self, wait_s: float) -> bool:
        """Wait until the log has an entry that this host lacks; False if none came."""
        entries = self.member.log.entries(self.position().seq, wait_s)
        if next(entries, None) is None:
            return False
        self._is_behind = True
        return True

    def _head(self, position: FleetPosition) -> Head:
        """Return the end of the log; FleetError if it is not the log that this host followed."""
        head = self.member.log.head()
        if head is not None and head.epoch == position.epoch and head.seq < position.seq:
            restore_log(self.member, head, position)
            head = self.member.log.head()
        if head is None:
            raise FleetError(
                "the fleet has no log: its server was replaced, or has lost everything",
                hint="run `spamnb fleet reseed` on the host that has the most events",
            )
        if head.epoch != position.epoch:
            raise FleetError(
                "the log belongs to another fleet, or was created again",
                hint="join it: `spamnb fleet join --force`",
            )
        is_other = head.seq == position.seq and head.chain != position.chain
        if head.seq < position.seq or is_other:
            raise FleetError(
                f"the log continued without entries of this host: it ends with event {head.seq},"
                f" this host has event {position.seq} of another history",
                hint=REJOIN,
            )
        return head


def keep(tail: Tail | None, before: str, entries: Sequence[LogEntry]) -> None:
    """Add entries, which follow this chain, to the tail; a failure of the disk is ignored."""
    if tail is not None:
        with suppress(StoreError):
            tail.put(list(map(Link, [before, *(entry.chain for entry in entries)], entries)))


def restore_log(member: Member, head: Head, position: FleetPosition) -> None:
    """Give the log back what it has lost, if it ends where a kept entry of this host begins."""
    links = member.tail.ending(position.seq, position.chain) if member.tail else []
    if head.seq not in {link.entry.first - 1 for link in links}:
        return
    for before, entry in links:
        if entry.first > head.seq and not member.log.restore(position.epoch, before, entry):
            return


def fingerprint(view: ReadView) -> str:
    """Return what is the same on all hosts that have the same numbers and texts."""
    # Stores differ in how much room they keep for the histogram.
    totals = replace(view.totals(), histogram=np.zeros((0, 0), np.int64))
    sums = view.sums() or RowSums()
    shared = sums._replace(dropped=0).encode()
    return blake2b(encode_totals(totals) + shared, digest_size=8).hexdigest()


def position_of(view: ReadView) -> FleetPosition:
    """Return the position of a store; FleetError if it follows no log."""
    position = view.position()
    if position is None:
        raise FleetError(
            "this model follows no log, but the settings have a fleet",
            hint="run `spamnb fleet init` on the first host, restore its backup on the others",
        )
    return position


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
