"""Begin a fleet, leave it, and compare a host with the log."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from spamnb.errors import FleetError, LogAwayError, RefusedError
from spamnb.service.fleet.fleet_store import Member, position_of
from spamnb.service.fleet.pulse import hosts_of
from spamnb.store.contract import Store, WriteView
from spamnb.store.fleet.fleet_log import DAY_S, START, FleetLog, Head
from spamnb.store.fleet.position import FleetPosition


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
