"""Begin a fleet, leave it, and compare a host with the log."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from spamnb.errors import FleetError, LogAwayError
from spamnb.service.fleet.fleet_store import Member, position_of
from spamnb.store.contract import Store, WriteView
from spamnb.store.fleet.fleet_log import START, FleetLog, Head
from spamnb.store.fleet.position import FleetPosition


class Standing(NamedTuple):
    """Where a host and the log are."""

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

    The position is stored first: if this is interrupted, the next call makes the log. If the server
    has lost the log, it is made anew at the position of this host.
    """
    position = store.transact(_begun)
    head = Head(position.epoch, position.seq, position.chain)
    if not member.log.make(head):
        found = member.log.head()
        if found is None or found.epoch != position.epoch:
            if position.chain == START:
                leave(store)
            raise FleetError(
                "there is a fleet of this name already",
                hint="to join it, restore a backup of one of its hosts; or set fleet.name",
            )
    return position


def _begun(view: WriteView) -> FleetPosition:
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
    if head is None or head.epoch != position.epoch:
        fault = "the log is not the one that this host follows"
        return Standing(position.epoch, position.seq, head.seq if head else None, fault)
    fault = "" if head.seq >= position.seq else "the log has lost entries"
    return Standing(position.epoch, position.seq, head.seq, fault)
