"""Change the whole model of a fleet on one host: a rewind, a relearning, an erasure.

Such a change is no event that the other hosts could fold. It begins a new history: the log is
closed, this host changes its model, makes the log anew from it, and puts a copy on the server.
The other hosts score by their old model until they have joined; corrections wait there.

If the change fails, the log is opened again: with the old history if the model is as it was, else
with a new one. A host that is killed in between leaves a closed log: `spamnb fleet reseed --force`
opens it again with the model that the host has.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from spamnb.errors import FleetError, LogAwayError, SpamnbError
from spamnb.service.fleet.fleet_store import FleetStore, Member
from spamnb.service.fleet.snapshot import put_snapshot
from spamnb.store.contract import WriteView
from spamnb.store.fleet.fleet_log import START, Head
from spamnb.store.fleet.position import FleetPosition
from spamnb.store.lmdb.store import open_store

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
