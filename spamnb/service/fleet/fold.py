"""Fold entries of the log into the store of this host.

Several entries are folded in one transaction, with the result of one transaction for each: the rows
are sums, and a feature has the text that it got when it was last new. Therefore a transaction ends
before an entry that changes a feature that an earlier entry in it has removed.

Failure: FleetError for an entry that does not follow the store's last event, is not sealed for its
place, or cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import NO_LABEL, Event, EventKind, Ids, Recipe, no_update
from spamnb.errors import BugError, FleetError, RefusedError, StoreError
from spamnb.service.engine.words import MergedWords
from spamnb.store.apply_events import Replay, event_ids, ids_of
from spamnb.store.contract import WriteView
from spamnb.store.fleet.body import VERSION, decode_body
from spamnb.store.fleet.fleet_log import LogEntry
from spamnb.store.fleet.position import FleetPosition, Recorded, next_chain
from spamnb.store.fleet.seal import Place, Sealer

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
