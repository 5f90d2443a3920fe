"""Begin a fleet, leave it, compare a host with the log, and make a lost log or a lost host anew.

A change of the whole model on one host (a rewind, a relearning, an erasure) is no event that the
other hosts could fold: it begins a new history (`renewing`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from spamnb.errors import FleetError, LogAwayError, RefusedError, SpamnbError
from spamnb.fleet.entries import MARK_BYTES, Place, decode_body
from spamnb.fleet.log import DAY_S, START, FleetLog, Head, LogEntry
from spamnb.fleet.outbox import Outbox, WaitingCorrection
from spamnb.fleet.pulse import BeatingHost, hosts_of, put_snapshot, take_snapshot
from spamnb.fleet.store import SETTLE_S, FleetStore, Member, follows, permit_place, position_of
from spamnb.model.events import NO_LABEL, Event, EventKind, no_update
from spamnb.store.model_store import open_store
from spamnb.store.table_views import Store, WriteView
from spamnb.store.values import FleetPosition
from spamnb.telemetry import now_us


def raise_level(member: Member) -> int:
    """Let all hosts write entries of the newest version that this one knows; return it.

    RefusedError while a host of the last day cannot read it.
    """
    head = member.log.head()
    if head is None or head.level >= member.level:
        return head.level if head else member.level
    for one in hosts_of(member):
        if one.level < member.level and one.age_s <= DAY_S:
            raise RefusedError(
                f"{one.host} reads entries of level {one.level}, this host writes {member.level}",
                hint=f"upgrade {one.host}; a host that is gone counts for a day",
            )
    member.log.put_level(member.level)
    return member.level


class Standing(NamedTuple):
    """The last event of a host, and that of the log."""

    epoch: str
    seq: int
    """last event of this host"""
    log_seq: int | None
    """last event of the log; None if it does not answer"""
    fault: str

    @property
    def lag_events(self) -> int | None:
        """Return how many events this host lacks."""
        return None if self.log_seq is None else max(self.log_seq - self.seq, 0)


def begin(store: Store, member: Member) -> FleetPosition:
    """Make the log, which goes on from this host's model; return the position of the host.

    The position is stored first: if this is interrupted, the next call makes the log.
    """
    position = store.transact(first_position)
    if position.chain != START and member.log.head() is None:
        raise FleetError(
            "this host is in a fleet, whose log is lost", hint="see `spamnb fleet reseed`"
        )
    head = Head(position.epoch, position.seq, position.chain, level=member.level)
    if not member.log.make(head):
        found = member.log.head()
        if found is None or found.epoch != position.epoch:
            if position.chain == START:
                leave(store)
            raise FleetError(
                "there is a fleet of this name already",
                hint="to join it, run `spamnb fleet join`; for another fleet, set fleet.name",
            )
    return position


def first_position(view: WriteView) -> FleetPosition:
    """Give a model that follows no log the first position of a history; return its position."""
    position = view.position()
    if position is None:
        last_seq = view.totals().last_seq
        position = FleetPosition(secrets.token_hex(8), last_seq, START, {})
        view.put_position(position)
    return position


def leave(store: Store) -> None:
    """Make a host independent of the log; its model stays as it is."""

    def run(view: WriteView) -> None:
        view.put_position(None)

    store.transact(run)


def standing(store: Store, log: FleetLog) -> Standing:
    """Return where this host and the log are."""
    with store.read() as view:
        position = position_of(view)
    try:
        head = log.head()
    except LogAwayError as error:
        return Standing(position.epoch, position.seq, None, str(error))
    fault = _fault(log, head, position)
    return Standing(position.epoch, position.seq, head.seq if head else None, fault)


def _fault(log: FleetLog, head: Head | None, position: FleetPosition) -> str:
    """Return why a host cannot go on with the log; empty if it can."""
    if head is None:
        return "the log is lost: run `spamnb fleet reseed` on the host with the most events"
    if head.epoch != position.epoch:
        return "the log was created again, or belongs to another fleet: `spamnb fleet join --force`"
    if head.seq > position.seq:
        entry = next(iter(log.entries(position.seq)), None)
        if entry is None or entry.first != position.seq + 1:
            return "the log has dropped events that this host lacks: `spamnb fleet rejoin`"
    elif (head.seq, head.chain) != (position.seq, position.chain):
        return "the log lacks events of this host: if that lasts, `spamnb fleet rejoin`"
    return ""


class Reseeded(NamedTuple):
    """A log that was made anew."""

    seq: int
    first: int
    """the first event that the log has; a host that lacks earlier ones joins anew"""
    silent: tuple[str, ...]
    """hosts that have taught this fleet, and do not answer: they may have had more events"""


def reseed(store: Store, member: Member, *, force: bool = False) -> Reseeded:
    """Make the log anew at the position of this host; `force` replaces a log that does not fit.

    The log begins where the kept entries of the host begin, and they are appended: the other hosts
    find the entries that they lack, if they lack no more than these.

    With `force` a model without a position, whose change was interrupted, begins a new history.
    RefusedError if another host has more events, or if the log is not lost.
    """
    with store.read() as view:
        position = view.position() if force else position_of(view)
    if position is None:
        position = store.transact(first_position)
    links = member.tail.ending(position.seq, position.chain) if member.tail else []
    hosts = hosts_of(member)
    if not force:
        _refuse_older(position, [one for one in hosts if one.host != member.host])
    old = member.log.head()
    _refuse_loss(old, position, force=force)
    if old is not None:
        member.log.clear()
    level = old.level if old else 1
    first = links[0].entry.first if links else position.seq + 1
    before_first = links[0].before if links else position.chain
    # Unsettled, so that no host appends before all entries are there.
    head = Head(position.epoch, first - 1, before_first, settled=False, level=level)
    if not member.log.make(head):
        raise FleetError("another host has created the log", hint="run `spamnb fleet status`")
    for before, entry in links:
        # Another host may give back the same entries.
        if not member.log.restore(position.epoch, before, entry):
            now = member.log.head()
            if now is None or now.seq < entry.last:
                raise FleetError("another host has created the log again, too", hint="try again")
    member.log.settle(member.host, position.seq, SETTLE_S)
    alive = {one.host for one in hosts if one.lives} | {member.host}
    return Reseeded(position.seq, first, tuple(sorted(position.recorded.keys() - alive)))


def _refuse_older(position: FleetPosition, others: Sequence[BeatingHost]) -> None:
    """Raise RefusedError if another host has more events, or has followed another history today.

    Numbers of events in two histories cannot be compared: a change of the whole model begins one,
    whose numbers may be smaller.
    """
    same = [one for one in others if one.epoch == position.epoch]
    for one in others:
        if one not in same and one.age_s <= DAY_S:
            raise RefusedError(
                f"{one.host} follows another history of the fleet, with event {one.seq}",
                hint="reseed with --force on the host whose model was changed last",
            )
    best = max(same, key=lambda one: one.seq, default=None)
    if best is not None and best.seq > position.seq:
        raise RefusedError(
            f"{best.host} has event {best.seq}, this host has {position.seq}",
            hint=f"reseed on {best.host}; if that host is lost, reseed here with --force",
        )


def _refuse_loss(head: Head | None, position: FleetPosition, *, force: bool) -> None:
    """Raise RefusedError if the log that is there has to stay."""
    if head is None or force:
        return
    if head.epoch == position.epoch and head.seq >= position.seq:
        raise RefusedError(
            f"the log is there, and ends with event {head.seq}",
            hint="run `spamnb fleet rejoin` on a host that does not fit the log",
        )
    history = "this" if head.epoch == position.epoch else "another"
    raise RefusedError(
        f"the log is not lost: it ends with event {head.seq} of {history} history",
        hint="`spamnb fleet join --force` adopts it here, `fleet reseed --force` replaces it",
    )


def skip(store: Store, member: Member, last: int) -> LogEntry:
    """Make the entry that ends with event `last` empty for all hosts that have not applied it.

    RefusedError if it is not the one at which this host has stopped.
    """
    with store.read() as view:
        position = position_of(view)
    entry = next(iter(member.log.entries(position.seq)), None)
    if entry is None or entry.last != last or not follows(entry, position):
        raise RefusedError(
            f"this host has event {position.seq}, and did not stop at the entry with event {last}",
            hint="run it on a host that has stopped at an entry; the status of that host names the "
            "event",
        )
    permit = member.sealer.seal(str(now_us()).encode(), permit_place(entry, position))
    member.log.skip(last, permit)
    return entry


class Rejoined(NamedTuple):
    """What became of the corrections of a host that has joined again."""

    again: int
    """corrections that wait to be learnt again"""
    lost: int
    """events of this host that cannot be repeated: imports, expiries"""


def rejoin(home: Path, store: Store, member: Member) -> Rejoined:
    """Take the copy of another host, and learn again what the log has lost of this host.

    This is for a host with entries that the log has lost and no host gave back. The host puts its
    own lost corrections into its outbox, takes the copy, and learns the corrections again.

    The store is closed by it.
    """
    with store.read() as view:
        position = position_of(view)
    head = member.log.head()
    if head is not None and head.epoch != position.epoch:
        # The new history has what this host has appended, except what was removed from it.
        raise RefusedError("the log has another history", hint="run `spamnb fleet join --force`")
    recorded = member.log.recorded(member.host)
    links = member.tail.ending(position.seq, position.chain) if member.tail else []
    own = [link.entry for link in links if link.entry.host == member.host]
    found = [
        _corrections(entry, position, member, recorded) for entry in own if entry.upto > recorded
    ]
    lost = list(chain.from_iterable(found))
    corrections = [correction for correction in lost if correction is not None]
    outbox = Outbox(home, member.outbox_bytes)
    try:
        known = {(one.event.time_us, one.event.label_key) for one in outbox.first(1 << 62)}
        new = [one for one in corrections if (one.event.time_us, one.event.label_key) not in known]
        if new:
            outbox.put(new)
    finally:
        outbox.close()
    store.close()
    take_snapshot(home, member, overwrite=True)
    return Rejoined(len(corrections), len(lost) - len(corrections))


def _corrections(
    entry: LogEntry, position: FleetPosition, member: Member, recorded: int
) -> Iterator[WaitingCorrection | None]:
    """Yield the corrections of an entry that the log has not had; None for other events."""
    place = Place(position.epoch, entry.host, entry.first, entry.last, entry.upto)
    body = decode_body(entry.first, member.sealer.open(entry.body, place), member.level)
    counted = range(entry.upto - len(body.events) + 1, entry.upto + 1)
    for count, event in zip(counted, body.events, strict=True):
        if count > recorded:
            again = _again(event)
            yield again and WaitingCorrection(
                again, body.words, os.urandom(MARK_BYTES), again=event.immediate
            )


def _again(event: Event) -> Event | None:
    """Return an event that sets the label of an event again; None for one without a message."""
    if not event.digest:
        return None
    nothing = no_update(len(event.ids), event.delta.steps.shape[1])
    kind = EventKind.FORGET if event.after == NO_LABEL else EventKind.LEARN
    return event._replace(
        kind=kind,
        before=NO_LABEL,
        previous=0,
        undoes=0,
        delta=nothing,
        net_update=nothing,
        left_out=b"",
    )


_TRIES = 1000
"""Other hosts may append while this one closes the log."""


def catch_up(home: Path, member: Member) -> None:
    """Fold what the log has, without closing it, so that a preview shows the model of all hosts."""
    with closing(open_store(home)) as store:
        with store.read() as view:
            if view.position() is None:
                return
        FleetStore(store, member).follow()


@contextmanager
def renewing(home: Path, member: Member) -> Iterator[bool]:
    """Close the log; after the block, begin the new history, if the model was changed.

    Yields whether the log had entries that this host lacked. A model that follows no log is changed
    as it is.

    This host changes its model, makes the log anew from it, and puts a copy on the server. The
    other hosts score by their old model until they have joined; corrections wait there.

    If the change fails, the log is opened again: with the old history if the model is as it was,
    else with a new one. A host that is killed in between leaves a closed log: `spamnb fleet reseed
    --force` opens it again with the model that the host has.
    """
    epoch = secrets.token_hex(8)
    before, folded = _close(home, member, epoch)
    if before is None:
        yield False
        return
    try:
        yield folded > 0
    finally:
        _open(home, member, before, epoch)


def _open(home: Path, member: Member, before: FleetPosition, epoch: str) -> None:
    begin = _begin(home, before, epoch)
    if begin is None:
        member.log.renew(epoch, before.seq, before.epoch)
        return
    old = member.log.head()
    member.log.clear()
    member.log.make(Head(epoch, begin.seq, START, level=old.level if old else 1))
    if member.tail is not None:
        member.tail.clear()
    try:
        put_snapshot(home, member, begin.seq)
    except SpamnbError as error:
        raise FleetError(
            f"a new history of the fleet begins, but its copy is not on the server: {error}",
            hint="run `spamnb fleet snapshot` here, then `spamnb fleet join --force` on all others",
        ) from error


def _close(home: Path, member: Member, epoch: str) -> tuple[FleetPosition | None, int]:
    """Fold all entries and give the log another epoch; no host can append to it then.

    Returns the position, and how many entries were folded.
    """
    folded = 0
    with closing(open_store(home)) as store:
        with store.read() as view:
            if view.position() is None:
                return None, 0
        fleet = FleetStore(store, member)
        for _ in range(_TRIES):
            folded += fleet.follow()
            position = fleet.position()
            if member.log.renew(position.epoch, position.seq, epoch):
                return position, folded
    raise LogAwayError("other hosts write to the fleet's log", hint="try again")


def _begin(home: Path, before: FleetPosition, epoch: str) -> FleetPosition | None:
    """Give the changed model the first position of a history; None if it was not changed."""
    store = open_store(home)

    def run(view: WriteView) -> FleetPosition | None:
        # An earlier model that was kept has an earlier position.
        if view.position() == before:
            return None
        position = FleetPosition(epoch, view.totals().last_seq, START, {})
        view.put_position(position)
        return position

    try:
        return store.transact(run)
    finally:
        store.close()
