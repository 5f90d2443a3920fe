"""Consistency checks of a whole store, and the features that may expire.

Works on any store of the contract. Memory, with two labels: about 80 bytes for each feature of the
model and its journal, and 64 KB for one person at a time. Failure: what applying an event raises.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import NO_LABEL, Event, Ids, Recipe, Records, Totals
from spamnb.core.model.id_arrays import locate
from spamnb.core.model.training_rows import TrainingRows
from spamnb.core.persons.corrections import FilledPlaces, filled_places
from spamnb.core.persons.rows import PersonalRows
from spamnb.errors import SpamnbError, StoreDamagedError
from spamnb.store.apply_events import event_ids, named_ids
from spamnb.store.contract import MessageState, ReadView
from spamnb.store.fleet.weights import scan_sums
from spamnb.store.rows.codec import empty_rows, no_records

_MOST_NAMED = 5
"""faults reported of one kind, because a damaged store may have thousands"""


def refold(view: ReadView) -> tuple[Totals, Ids, Records]:
    """Return the checkpoint with all journal events applied: the live state must be equal to it."""
    totals = view.base_totals()
    base_ids, base = collect(view.base_features(), len(totals.messages))
    sets = [base_ids, *(event_ids(event) for event in view.events())]
    ids = np.unique(np.concatenate(sets))
    records = no_records(len(ids), len(totals.messages))
    at = np.searchsorted(ids, base_ids)
    records.n[at], records.w[at], records.day[at] = base.n, base.w, base.day
    training_rows = TrainingRows(totals, ids, records)
    for event in view.events():
        training_rows.apply(event)
        training_rows.totals.last_seq = event.seq
    records = training_rows.to_records()
    full = ~empty_rows(records)
    return (
        training_rows.totals,
        ids[full],
        Records(records.n[full], records.w[full], records.day[full]),
    )


def collect(blocks: Iterator[tuple[Ids, Records]], labels: int) -> tuple[Ids, Records]:
    """Return all blocks as one."""
    parts = list(blocks)
    if not parts:
        return np.zeros(0, np.uint64), no_records(0, labels)
    n, w, day = ([getattr(r, name) for _, r in parts] for name in ("n", "w", "day"))
    joined = Records(np.concatenate(n), np.concatenate(w), np.concatenate(day))
    return np.concatenate([i for i, _ in parts]), joined


def stale(view: ReadView, before_day: int, max_messages: int) -> Iterator[Ids]:
    """Yield features of few messages, last learnt before a day; `named` ones must not expire."""
    for ids, records in view.features():
        old = records.day < before_day
        few = records.n.sum(axis=1, dtype=np.uint64) <= max_messages
        if (old & few).any():
            yield ids[old & few]


def named(view: ReadView, ids: Ids) -> NDArray[np.bool_]:
    """Return which of these features a journal event names; its undo needs them."""
    found = np.zeros(len(ids), np.bool_)
    if len(ids):
        for event in view.events():
            at, there = locate(ids, named_ids(event))
            found[at[there]] = True
    return found


def check(view: ReadView) -> list[str]:
    """Return the inconsistencies of a store, one sentence each; empty for a consistent store."""
    faults: list[str] = []
    labels = len(view.totals().messages)
    try:
        ids, records = collect(view.features(), labels)
        faults += _features(view, ids, records)
        faults += _sums(view.totals(), records)
        faults += _words(view, ids)
        faults += _indexes(view, labels)
        faults += _fold(view, ids, records)
        faults += _persons(view, labels)
        faults += _senders(view)
    except SpamnbError as error:
        faults.append(f"reading stopped: {error}")
    return faults


def check_sums(view: ReadView, recipe: Recipe) -> list[str]:
    """Return where the sums of a fleet's host differ from its rows; see `store.fleet.row_sums`."""
    sums = view.sums()
    if sums is None or sums.same(scan_sums(view, recipe)):
        return []
    return ["the sums by which the hosts of a fleet are compared are not those of the rows"]


def _features(view: ReadView, ids: Ids, records: Records) -> list[str]:
    faults = []
    if (ids[1:] <= ids[:-1]).any():
        faults.append("features are not in order of their ids")
    if (count := int(empty_rows(records).sum())) > 0:
        faults.append(f"{count} features hold neither counts nor corrections")
    again = view.gather(np.unique(ids))
    if not faults and not _same(again, records):
        faults.append("features read by id differ from features read in order")
    return faults


def _sums(totals: Totals, records: Records) -> list[str]:
    n = records.n.astype(np.int64)
    known = n.any(axis=1)
    faults = []
    if totals.known != int(known.sum()):
        faults.append(f"V is {totals.known}, but {int(known.sum())} features are known")
    if not np.array_equal(totals.tokens, n.sum(axis=0)):
        faults.append(f"T is {totals.tokens.tolist()}, but counts sum to {n.sum(axis=0).tolist()}")
    for label, line in enumerate(totals.histogram):
        real = np.bincount(n[known, label], minlength=len(line))
        if not np.array_equal(_trimmed(real), _trimmed(line)):
            faults.append(f"the histogram of label {label} does not agree with the counts")
    return faults


def _words(view: ReadView, ids: Ids) -> list[str]:
    faults = []
    of = np.fromiter((word.id for word in view.all_words()), np.uint64)
    if (of[1:] <= of[:-1]).any():
        faults.append("words are not in order of their ids, each once")
    lost = of[~locate(ids, of)[1]]
    faults += [f"the word of id {i:016x} has no feature" for i in lost[:_MOST_NAMED].tolist()]
    return faults


def _indexes(view: ReadView, labels: int) -> list[str]:
    lines: dict[bytes, MessageState] = {}
    faults = []
    last = view.base_totals().last_seq
    for event in view.events():
        if event.seq != last + 1:
            faults.append(f"event {event.seq} follows event {last}")
        last = event.seq
        if event.digest:
            lines[event.label_key] = MessageState(event.after, event.seq, folded=False)
            faults += _message_id(view, event)
    if last != view.totals().last_seq:
        faults.append(f"the last event is {last}, the totals say {view.totals().last_seq}")
    wrong = [key for key, line in lines.items() if view.live(key) != line]
    faults += [
        f"the state of digest {key.hex()} is not its last event" for key in wrong[:_MOST_NAMED]
    ]
    for label in range(labels):
        want = sorted(line.seq for line in lines.values() if line.label == label != NO_LABEL)
        if list(_kept(view, label)) != want:
            faults.append(f"the live events of label {label} are not those of the journal")
    return faults[: 4 * _MOST_NAMED]


def _message_id(view: ReadView, event: Event) -> list[str]:
    if not event.message_id:
        return []
    digests = view.digests(event.message_id)
    if event.digest in digests or len(digests) >= 64:
        return []
    return [f"event {event.seq} is not found by its message id"]


def _kept(view: ReadView, label: int) -> Iterator[int]:
    seq = view.live_at(label, 0)
    last = 0
    while seq > last:
        yield seq
        last, seq = seq, view.live_at(label, seq + 1)


def _fold(view: ReadView, ids: Ids, records: Records) -> list[str]:
    totals, live = refold(view), view.totals()
    folded, want_ids, want = totals
    if not np.array_equal(ids, want_ids):
        wrong = np.setxor1d(ids, want_ids)
        return [f"{len(wrong)} features are in the model or in its journal only, not in both"]
    faults = []
    if not _same(records, want):
        differ = (records.n != want.n).any(axis=1) | (records.w != want.w).any(axis=1)
        wrong = ids[differ | (records.day != want.day)]
        faults.append(f"{len(wrong)} features do not hold what the journal says")
    for name in ("messages", "tokens", "bias", "temperatures", "known", "last_seq"):
        a, b = getattr(live, name), getattr(folded, name)
        if not np.array_equal(a, b):
            faults.append(f"{name} is {_plain(a)}, the journal says {_plain(b)}")
    lines = zip(live.histogram, folded.histogram, strict=True)
    if not all(np.array_equal(_trimmed(a), _trimmed(b)) for a, b in lines):
        faults.append("the histogram is not what the journal says")
    return faults


def _persons(view: ReadView, labels: int) -> list[str]:
    """Compare the corrections of each person with the checkpoint and the journal."""
    events: dict[int, list[int]] = {}
    for event in view.events():
        if event.person:
            events.setdefault(event.person, []).append(event.seq)
    base, live = dict(view.base_persons()), dict(view.persons())
    wrong = []
    # One person at a time: all places of a person take 64 KB.
    for person in events.keys() | base.keys() | live.keys():
        rows, want = PersonalRows(labels, base.get), base.get(person)
        for seq in events.get(person, ()):
            if (event_again := view.event(seq)) is not None:
                rows.apply(event_again)
        for _, changed in rows.changed():
            want = filled_places(changed) if changed else None
        if not _same_personal(want, live.get(person)):
            wrong.append(person)
    return [
        f"the corrections of person {person:016x} are not what the journal says"
        for person in sorted(wrong)[:_MOST_NAMED]
    ]


def _senders(view: ReadView) -> list[str]:
    """Read each entry of each list of senders."""
    faults = []
    for owner, senders in view.sender_lists():
        try:
            entries = [one.sender for one in senders]
            is_right = entries == sorted(set(entries)) and owner[:1] == senders.kind[:1].encode()
        except StoreDamagedError:
            is_right = False
        if not is_right:
            faults.append(f"the list of senders of {senders.kind} {senders.name} is damaged")
    return faults[:_MOST_NAMED]


def _same_personal(a: FilledPlaces | None, b: FilledPlaces | None) -> bool:
    if a is None or b is None:
        return a is b
    return np.array_equal(a.places, b.places) and np.array_equal(a.values, b.values)


def _same(a: Records, b: Records) -> bool:
    pairs = ((a.n, b.n), (a.w, b.w), (a.day, b.day))
    return all(np.array_equal(x, y) for x, y in pairs)


def _trimmed(line: NDArray[np.int64]) -> list[int]:
    return list(map(int, np.trim_zeros(line, "b")))


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value
