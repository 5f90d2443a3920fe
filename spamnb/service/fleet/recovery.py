"""Make a lost log anew from a host (`reseed`), and bring back a host that the log has left behind.

`reseed` begins the log where the kept entries of the host begin, and appends them: the other hosts
find the entries that they lack, if they lack no more than these.

`rejoin` is for a host with entries that the log has lost and no host gave back. The host puts its
own lost corrections into its outbox, takes the copy of another host, and learns the corrections
again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from spamnb.core.model.events import NO_LABEL, Event, EventKind, no_update
from spamnb.errors import FleetError, RefusedError
from spamnb.service.engine.clock import now_us
from spamnb.service.fleet.administration import first_position
from spamnb.service.fleet.fleet_store import SETTLE_S, Member, position_of
from spamnb.service.fleet.fold import follows, permit_place
from spamnb.service.fleet.pulse import BeatingHost, hosts_of
from spamnb.service.fleet.snapshot import take_snapshot
from spamnb.store.contract import Store
from spamnb.store.fleet.body import MARK_BYTES, decode_body
from spamnb.store.fleet.fleet_log import DAY_S, Head, LogEntry
from spamnb.store.fleet.outbox import Outbox, WaitingCorrection
from spamnb.store.fleet.position import FleetPosition
from spamnb.store.fleet.seal import Place


class Reseeded(NamedTuple):
    """A log that was made anew."""

    seq: int
    first: int
    """the first event that the log has; a host that lacks earlier ones joins anew"""
    silent: tuple[str, ...]
    """hosts that have taught this fleet, and do not answer: they may have had more events"""


def reseed(store: Store, member: Member, *, force: bool = False) -> Reseeded:
    """Make the log anew at the position of this host; `force` replaces a log that does not fit.

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
        kind=kind, before=NO_LABEL, previous=0, undoes=0, delta=nothing, net_update=nothing
    )
