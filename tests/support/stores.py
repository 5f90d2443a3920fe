"""Small events, and how a caller of the store applies them, for the tests of the store."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np

from spamnb.model.events import (
    NO_LABEL,
    BulkChange,
    Event,
    EventKind,
    Recipe,
    RehearsalUpdate,
    Update,
    label_key,
    no_update,
)
from spamnb.model.persons import PersonalRows
from spamnb.store.codec import encode_event
from spamnb.store.journal import event_ids
from spamnb.store.maintenance import check, collect
from spamnb.store.person_tables import encode_personal
from spamnb.store.values import Word, packed
from support.memory_store import MemoryStore, apply_event

NOON_2026 = 1_767_268_800_000_000
DAY_US = 86_400_000_000
RECIPE = Recipe(groups=2, key=bytes(range(32)))
HAM, SPAM = 0, 1


def sound(store):
    """Whether the store finds nothing wrong with itself."""
    with store.read() as view:
        return check(view) == []


def copied(store):
    """A copy of a store in memory; a change of one does not change the other."""
    made = MemoryStore(store.recipe)
    made.slots = copy.deepcopy(store.slots)
    made._state = {name: dict(table) for name, table in store._state.items()}
    return made


def ids_of(*names):
    """Sorted ids, spread over the whole range like hashes are."""
    raw = np.array(sorted(set(names)), np.uint64)
    return np.sort(raw * np.uint64(0x9E3779B97F4A7C15))


@dataclass
class Mail:
    """A message as the store knows it."""

    number: int
    groups: tuple = ()
    times: object = None
    message_id: str = ""
    updates: list = field(default_factory=list)

    @property
    def digest(self):
        return self.number.to_bytes(16, "big")


def mail(number, *names, groups=2):
    """A message with these features, distributed over the groups."""
    names = tuple(dict.fromkeys(names))  # a place has one group, so no id is in two
    parts = tuple(ids_of(*names[g::groups]) for g in range(groups))
    return Mail(number, parts, message_id=f"{number}@example.org")


def update(size=1000, *, groups=2, labels=2, rehearsals=(), personal=None):
    """Make a push of different numbers."""
    steps = np.arange(1, groups * labels + 1, dtype=np.int64).reshape(groups, labels) * size
    return Update(
        steps,
        np.arange(groups * labels, dtype=np.int64).reshape(groups, labels) * size * 7 - size,
        np.arange(groups, dtype=np.int64) * size * 11 + size,
        tuple(rehearsals),
        personal,
    )


def event_for(
    view, message, after, *, time_us=NOON_2026, delta=None, rehearsals=(), person=0, owner=0
):
    """The event that brings a message under a label (NO_LABEL: forgets it)."""
    totals = view.totals()
    groups, labels = len(totals.temperatures), len(totals.messages)
    live = view.live(label_key(message.digest, person, owner))
    before = NO_LABEL if live is None else live.label
    net_update = no_update(groups, labels)
    if before != NO_LABEL:
        net_update = view.event(live.seq).net_update
    wanted = no_update(groups, labels)
    if after != NO_LABEL:
        wanted = delta or update(
            100 + message.number % 1000, groups=groups, labels=labels, rehearsals=rehearsals
        )
    kind = (
        EventKind.FORGET
        if after == NO_LABEL
        else EventKind.LEARN
        if before == NO_LABEL
        else EventKind.MOVE
    )
    return Event(
        seq=totals.last_seq + 1,
        kind=kind,
        time_us=time_us,
        user="ann",
        channel="test",
        digest=message.digest,
        message_id=message.message_id,
        before=before,
        after=after,
        previous=0 if live is None else live.seq,
        ids=message.groups,
        delta=net_update.negated().plus(wanted),
        net_update=wanted,
        times=message.times,
        person=person,
        owner=owner,
    )


def bulk_event(view, ids, n, w, *, kind=EventKind.IMPORT, messages=(0, 0), day=9_000, sign=1):
    """An import, or with sign -1 its counterpart."""
    totals = view.totals()
    groups, labels = len(totals.temperatures), len(totals.messages)
    bulk = BulkChange(
        ids,
        sign * np.asarray(n, np.int64),
        sign * np.asarray(w, np.int64),
        sign * np.asarray(messages, np.int64),
        sign * np.arange(groups * labels, dtype=np.int64).reshape(groups, labels),
        sign * np.arange(groups, dtype=np.int64),
        np.full(len(ids), day, np.uint16),
    )
    nothing = no_update(groups, labels)
    return Event(
        totals.last_seq + 1, kind, NOON_2026, "ann", "test", b"", "", NO_LABEL, NO_LABEL, 0,
        (), nothing, nothing, bulk=bulk,
    )  # fmt: skip


def apply(view, event):
    """Do all that a caller does to apply an event."""
    totals, ids = view.totals(), event_ids(event)
    records = view.gather(ids)
    unknown = ~records.n.any(axis=1)
    apply_event(event, totals, ids, records)
    totals.last_seq = event.seq
    view.put_totals(totals)
    view.scatter(ids, records)
    fresh = ids[unknown & records.n.any(axis=1)]
    view.put_words(packed(word(i) for i in fresh.tolist()))
    personal_rows = PersonalRows(len(totals.messages), view.personal)
    personal_rows.apply(event)
    for person, personal in personal_rows.changed():
        view.put_personal(person, personal)
    view.append(event)


def learn(store, message, after, **how):
    """Apply one event in a transaction; return its seq."""

    def run(view):
        event = event_for(view, message, after, **how)
        apply(view, event)
        return event.seq

    return store.transact(run)


def word(id_):
    """The text of a feature: some are empty, some long, some no ASCII."""
    text = (f"wört{id_ % 1000}" * (id_ % 7)).encode()[:255]
    return Word(id_, id_ % 200, text)


def echo_of(message, size=3):
    """A rehearsal step on another message."""
    groups = len(message.groups)
    return RehearsalUpdate(message.groups, np.full((groups, 2), size, np.int64))


def picture(view):
    """Everything that a store holds, as plain values that can be compared."""
    totals, base = view.totals(), view.base_totals()
    labels = len(totals.messages)
    return {
        "totals": plain_totals(totals),
        "base_totals": plain_totals(base),
        "features": plain_records(*collect(view.features(), labels)),
        "base": plain_records(*collect(view.base_features(), labels)),
        "words": list(view.all_words()),
        "events": [(e.seq, encode_event(e)) for e in view.events()],
        "backwards": [e.seq for e in view.events(newest_first=True)][::-1],
        "last": view.last_events(20),
        "persons": [(p, encode_personal(v.spread())) for p, v in view.persons()],
        "base_persons": [(p, encode_personal(v.spread())) for p, v in view.base_persons()],
        "senders": list(view.sender_lists()),
    }


def plain_totals(totals):
    columns = (totals.messages, totals.tokens, totals.bias, totals.temperatures)
    sums = [c.tolist() for c in columns]
    return sums, totals.known, totals.last_seq, totals.histogram.tolist()


def plain_records(ids, records):
    return ids.tolist(), records.n.tolist(), records.w.tolist(), records.day.tolist()
