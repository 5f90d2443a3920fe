"""Fold entries of the log into the store of this host.

Several entries are folded in one transaction, with the result of one transaction for each: the rows
are sums, and a feature has the text that it got when it was last new. Therefore a transaction ends
before an entry that changes a feature that an earlier one of it has removed.

Failure: FleetError for an entry that does not follow the store's last event, is not sealed for its
place, or cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event, EventKind, Ids
from spamnb.errors import FleetError, StoreError
from spamnb.service.engine.words import MergedWords
from spamnb.store.apply_events import Replay, event_ids, ids_of
from spamnb.store.contract import WriteView
from spamnb.store.fleet.body import decode_body
from spamnb.store.fleet.fleet_log import LogEntry
from spamnb.store.fleet.position import FleetPosition, next_chain
from spamnb.store.fleet.seal import Place, Sealer


class OpenEntry(NamedTuple):
    """An entry with its events and the position after it."""

    host: str
    events: tuple[Event, ...]
    words: Words
    before: int
    after: FleetPosition


def open_entries(
    entries: Sequence[LogEntry], position: FleetPosition, sealer: Sealer
) -> list[OpenEntry]:
    """Open the entries that follow a position, one after the other."""
    opened = []
    for entry in entries:
        one = _opened(entry, position, sealer)
        opened.append(one)
        position = one.after
    return opened


def _opened(entry: LogEntry, position: FleetPosition, sealer: Sealer) -> OpenEntry:
    if entry.first != position.seq + 1:
        raise FleetError(
            f"the log goes on with event {entry.first}, this host has event {position.seq}",
            hint="restore a backup of another host: the log keeps the newest events only",
        )
    if next_chain(position.chain, entry.body) != entry.chain:
        raise FleetError(
            f"event {entry.first} of the log follows another history than this host's",
            hint="restore a backup of another host",
        )
    place = Place(position.epoch, entry.host, entry.first, entry.last, entry.upto)
    body = sealer.open(entry.body, place)
    try:
        events, words = decode_body(entry.first, body)
    except StoreError as error:
        raise FleetError(f"event {entry.first} of the log: {error}", hint=error.hint) from error
    if entry.first + len(events) != entry.last + 1:
        raise FleetError(f"the entry that ends with event {entry.last} has {len(events)} events")
    after = position.after(entry.last, entry.chain, entry.host, entry.upto)
    return OpenEntry(entry.host, events, words, position.seq, after)


def fold(view: WriteView, entries: Sequence[OpenEntry]) -> int:
    """Fold entries in one transaction; return how many, which is fewer if the others must wait.

    Entries that the store has already are counted too: another process may have folded them.
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
