"""The journal of training events and its indexes, in tables.

    journal   seq u64 | part u16 (both big-endian)        a piece of the event's bytes
    digests   label key                                    message state: label, seq, folded
    mids      keyed hash of the Message-ID, 8 bytes | seq  digest
    kept      label u16 | seq u64 (both big-endian)        empty; live messages with journal events
    meta      "frequent" | name, 4 bytes                   u64 seq | u64 values | frequent ids

Message-IDs are hashed with the model's secret key, so that a sender cannot make two collide.
`model.training_rows` defines the effect of an event. Only integers are added, so every store that
replays the same events holds the same numbers.

Invariants: pieces of an event are numbered from 0 without a gap; a key in `kept` is the (label,
seq) of a message state that is not folded. Failure: StoreDamagedError.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from spamnb.errors import BugError, StoreDamagedError
from spamnb.model.events import (
    NO_LABEL,
    Event,
    EventKind,
    Ids,
    Recipe,
    Totals,
    no_totals,
    owner_of_key,
    person_of_key,
)
from spamnb.store.codec import (
    Buffer,
    ByteCursor,
    FrequentIds,
    NamedTable,
    decode_event,
    encode_event,
    has_table,
    no_table,
    read_head,
)
from spamnb.store.rows import Table
from spamnb.store.values import MessageState

_KEY = struct.Struct(">QH")
_KEPT = struct.Struct(">HQ")
_SEQ = struct.Struct(">Q")

MOST_DIGESTS = 64
"""digests returned for one Message-ID; a longer list would not help the reader"""
_LARGE = 32_768
_RUN_PAGES = 16
_PAGE_HEAD = 16
_NODE = 8 + _KEY.size
_LEAST = 64
"""minimum size of a piece, because its key and header take 20 bytes"""


class Pages:
    """Splits values for the engine's page layout, for values appended in key order.

    Events are only appended, so pieces are cut to fill the engine's pages: the first piece takes
    the free space of the last page, the next ones at most half a page (two share one). Measured at
    300 features an event: pieces of a fixed 480 bytes lose 250 bytes at the end of each page and
    take 8.4 bytes a feature in all; pieces cut to fit take 7.9. The free space is an estimate; a
    wrong one only costs space. Pieces of values above 32 KB fill whole runs of overflow pages
    instead.
    """

    __slots__ = ("full", "half", "room", "size")

    def __init__(self, size: int, room: int) -> None:
        self.size = size
        self.full = size - _PAGE_HEAD
        self.half = (self.full // 2 & ~1) - 2 - _NODE
        self.room = room

    def cut(self, length: int) -> list[int]:
        """Return the ends of the pieces of a value of this length; updates the free space."""
        ends: list[int] = []
        at = 0
        while at < length:
            at += self._piece(length - at, length)
            ends.append(at)
        return ends

    def chunks(self, seq: int, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and pieces of a value."""
        start = 0
        for part, end in enumerate(self.cut(len(data))):
            yield _KEY.pack(seq, part), data[start:end]
            start = end

    def _piece(self, rest: int, length: int) -> int:
        if length > _LARGE and rest > self.half:
            self._use(_NODE + 8)
            return min(rest, _RUN_PAGES * self.size - _PAGE_HEAD)
        space = min(self.half, self.room - 2 - _NODE)
        if rest > space and space < _LEAST:
            self.room = self.full
            space = self.half
        piece = min(rest, space)
        self._use(_NODE + piece)
        return piece

    def _use(self, count: int) -> None:
        """Subtract a node's size as the engine does: even size, a pointer, maybe a new page."""
        need = count + (count & 1) + 2
        self.room = (self.room if need <= self.room else self.full) - need


class ChunkedValues:
    """Values of any length by sequence number, each stored in pieces."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def last_seq(self) -> int:
        """Return the greatest sequence number; 0 if the table is empty."""
        for key, _ in self.table.scan(down=True):
            return int(_KEY.unpack(key)[0])
        return 0

    def append(self, first: int, values: Iterable[bytes], pages: Pages) -> None:
        """Append values, numbered from `first`."""
        for seq, data in enumerate(values, first):
            for key, piece in pages.chunks(seq, data):
                self.table.put(key, piece, append=True)

    def up(self, start: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, value) for start <= seq < stop."""
        here = 0
        chunks: list[bytes] = []
        for key, value in self.table.scan(_KEY.pack(max(start, 0), 0)):
            seq, part = _KEY.unpack(key)
            if seq != here and chunks:
                yield here, b"".join(chunks)
                chunks = []
            if stop is not None and seq >= stop:
                return
            if part != len(chunks):
                raise StoreDamagedError(
                    f"entry {seq} lacks its part {len(chunks)}", hint="restore a backup"
                )
            here = seq
            chunks.append(bytes(value))
        if chunks:
            yield here, b"".join(chunks)

    def down(self, start: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield the same values as `up`, greatest number first."""
        if stop is not None and stop <= 0:
            return
        from_ = b"" if stop is None else _KEY.pack(stop - 1, 0xFFFF)
        chunks: list[bytes] = []
        for key, value in self.table.scan(from_, down=True):
            seq, part = _KEY.unpack(key)
            if seq < start:
                return
            chunks.append(bytes(value))
            if part == 0:
                yield seq, b"".join(reversed(chunks))
                chunks = []

    def heads(self) -> Iterator[tuple[int, Buffer]]:
        """Yield (seq, first piece) of each value, greatest number first."""
        for key, value in self.table.scan(down=True):
            seq, part = _KEY.unpack(key)
            if part == 0:
                yield seq, value

    def remove(self, seq: int) -> None:
        """Delete a value."""
        keys = []
        for key, _ in self.table.scan(_KEY.pack(seq, 0)):
            if _KEY.unpack(key)[0] != seq:
                break
            keys.append(key)
        for key in keys:
            self.table.delete(key)


_FREQUENT = b"frequent"
_FREQUENT_HEAD = struct.Struct("<QQ")


class StoredTable(NamedTuple):
    """A table of frequent ids in a table of the engine, and when it was made."""

    seq: int
    """of the newest value when it was made"""
    values: int
    """how many there were"""
    named: NamedTable

    def put(self, meta: Table) -> None:
        """Store it."""
        head = _FREQUENT_HEAD.pack(self.seq, self.values)
        meta.put(_FREQUENT + self.named.name, head + self.named.table.ids.tobytes())

    @classmethod
    def all(cls, meta: Table, known: dict[bytes, FrequentIds]) -> Iterator[StoredTable]:
        """Yield all; `known` keeps the ids that this process has read, by the name of the table."""
        for key, value in meta.scan(_FREQUENT):
            if not key.startswith(_FREQUENT):
                break
            if len(value) != _FREQUENT_HEAD.size + FrequentIds.SIZE:
                raise StoreDamagedError(f"a table of frequent ids has {len(value)} bytes")
            name = key.removeprefix(_FREQUENT)
            if name not in known:
                ids = np.frombuffer(bytes(value), np.uint64, offset=_FREQUENT_HEAD.size)
                known[name] = FrequentIds(ids)
            seq, values = _FREQUENT_HEAD.unpack_from(value)
            yield cls(seq, values, NamedTable(name, known[name]))

    @staticmethod
    def remove(meta: Table, name: bytes) -> None:
        """Delete the table of a name."""
        meta.delete(_FREQUENT + name)


_TABLE_FROM = 1_024
_TABLE_GROWTH = 16


class EventTables:
    """The tables of frequent ids by which the events of a journal are encoded.

    A table is made of the newest 1,024 events, in the transaction that appends an event, when there
    are that many, and again when there are 16 times as many. It takes 512 KB and .13 s, and halves
    the size of the events (an id takes 2.9 bytes instead of 7.3); older events stay as they are.
    Tables are never changed or removed.
    """

    def __init__(self, meta: Table, known: dict[bytes, FrequentIds]) -> None:
        """`known` keeps the tables that this process has read."""
        self._meta = meta
        self._stored = {one.named.name: one for one in StoredTable.all(meta, known)}

    def of(self, name: bytes) -> FrequentIds:
        """Return the table of a name."""
        return self._stored[name].named.table if name in self._stored else no_table(name)

    @property
    def newest(self) -> NamedTable | None:
        """The table for new events."""
        found = max(self._stored.values(), key=lambda one: one.seq, default=None)
        return found.named if found else None

    def renew(self, last_seq: int, newest: Iterable[Event]) -> None:
        """Make a table if it is time for one; `newest` has the newest event first."""
        made_at = max((one.seq for one in self._stored.values()), default=0)
        if last_seq < (_TABLE_GROWTH * made_at or _TABLE_FROM):
            return
        ids = [ids for event in islice(newest, _TABLE_FROM) for ids in event.ids]
        named = NamedTable.of(np.concatenate([*ids, np.zeros(0, np.uint64)]))
        same = self._stored.get(named.name)
        if same is None or np.array_equal(same.named.table.ids, named.table.ids):
            # Another table with the same name, if there ever is one, is not replaced.
            self._stored[named.name] = StoredTable(last_seq, last_seq, named)
            self._stored[named.name].put(self._meta)


class Journal:
    """Events by sequence number."""

    def __init__(self, table: Table, frequent: EventTables) -> None:
        self._pieces = ChunkedValues(table)
        self._frequent = frequent
        self.last_seq = self._pieces.last_seq
        self.remove = self._pieces.remove

    def append(self, events: Sequence[Event], pages: Pages) -> None:
        """Append events."""
        if not events:
            return
        self._frequent.renew(events[-1].seq, chain(reversed(events), self._newest()))
        encode = partial(encode_event, frequent=self._frequent.newest)
        self._pieces.append(events[0].seq, map(encode, events), pages)

    def _newest(self) -> Iterator[Event]:
        return self.events(0, None, newest_first=True)

    def table_in(self, frequent: EventTables) -> NamedTable | None:
        """Return the table for these events in a copy that has these tables; makes one if due."""
        frequent.renew(self.last_seq(), self._newest())
        return frequent.newest

    def encoded(self, frequent: NamedTable | None) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, value) of all events, those without a table by this one."""
        for seq, data in self._pieces.up(0, None):
            if frequent is None or has_table(data):
                yield seq, data
            else:
                yield seq, encode_event(decode_event(seq, data), frequent)

    def event(self, seq: int) -> Event | None:
        """Return an event; None if the journal does not have it."""
        return next(self.events(seq, seq + 1), None)

    def events(
        self, start: int, stop: int | None, *, newest_first: bool = False
    ) -> Iterator[Event]:
        """Return the events start <= seq < stop."""
        walk = self._pieces.down if newest_first else self._pieces.up
        return (decode_event(seq, data, self._frequent.of) for seq, data in walk(start, stop))

    def last_labels(self, count: int) -> list[tuple[int, int]]:
        """Return (seq, label after) of the newest LEARN and MOVE events, newest first."""
        found: list[tuple[int, int]] = []
        for seq, head in self._pieces.heads() if count > 0 else ():
            kind, _, _, after, _ = read_head(ByteCursor(head))
            if kind in (EventKind.LEARN, EventKind.MOVE):
                found.append((seq, after))
                if len(found) == count:
                    break
        return found


def count_labels(labels: Iterable[int], count: int, most: int) -> list[int]:
    """Count the labels 0 to `count` - 1, until each occurs `most` times."""
    found = [0] * count
    for label in labels:
        if label != NO_LABEL:
            found[label] += 1
            if min(found) >= most:
                break
    return [min(number, most) for number in found]


class Index:
    """Message states by digest, by Message-ID and by label."""

    def __init__(self, digests: Table, mids: Table, kept: Table, key: bytes) -> None:
        self.digests_ = digests
        self.mids = mids
        self.kept = kept
        self._key = key[:64]

    def live(self, key: bytes) -> MessageState | None:
        """Return the state of the label with this key; None if it was never learnt."""
        value = self.digests_.get(key) if key else None
        return None if value is None else MessageState.decode(value)

    def labels_of(self, digest: bytes) -> dict[int, MessageState]:
        """Return the states of a message's labels by owner, without those of persons."""
        found: dict[int, MessageState] = {}
        for key, value in self.digests_.scan(digest) if digest else ():
            if key[: len(digest)] != digest:
                break
            if (owner := owner_of_key(key)) is not None:
                found[owner] = MessageState.decode(value)
        return found

    def labels(self) -> Iterator[int]:
        """Yield the label of each message, in the order of their digests."""
        return (MessageState.decode(value).label for _, value in self.digests_.scan())

    def digests(self, message_id: str) -> list[bytes]:
        """Return the digests of a Message-ID, oldest first."""
        if not message_id:
            return []
        head = self._hash(message_id)
        found: dict[bytes, None] = {}
        for key, value in self.mids.scan(head):
            if key[:8] != head or len(found) == MOST_DIGESTS:
                break
            found[bytes(value)] = None
        return list(found)

    def live_at(self, label: int, seq: int) -> int:
        """Return the first live event of a label at or after seq, wrapping around; 0 if none."""
        if label < 0:
            return 0
        for start in (max(seq, 0), 0):
            for key, _ in self.kept.scan(_KEPT.pack(label, start)):
                where, found = _KEPT.unpack(key)
                if where == label:
                    return int(found)
                break
        return 0

    def record(self, event: Event) -> None:
        """Make an event the state of its message."""
        if not event.digest:
            return
        if len(event.digest) > 255:
            raise BugError(f"a digest has at most 255 bytes, one has {len(event.digest)}")
        key = event.label_key
        old = self.live(key)
        if old is not None and old.label != NO_LABEL and not old.folded:
            self.kept.delete(_KEPT.pack(old.label, old.seq))
        self.digests_.put(key, MessageState(event.after, event.seq, folded=False).encode())
        if event.after != NO_LABEL:
            self.kept.put(_KEPT.pack(event.after, event.seq), b"")
        if event.message_id and (old is None or event.digest not in self.digests(event.message_id)):
            self.mids.put(self._hash(event.message_id) + _SEQ.pack(event.seq), event.digest)

    def mark_folded(self, event: Event) -> None:
        """Note that an event is now in the checkpoint."""
        key = event.label_key
        live = self.live(key)
        if live is None or live.seq != event.seq:
            return
        self.digests_.put(key, live._replace(folded=True).encode())
        if live.label != NO_LABEL:
            self.kept.delete(_KEPT.pack(live.label, live.seq))

    def drop_persons(self, persons: Collection[int]) -> None:
        """Remove the states of labels of these persons, all of which are folded."""
        gone = [key for key, _ in self.digests_.scan() if person_of_key(key) in persons]
        for key in gone:
            self.digests_.delete(key)

    def _hash(self, message_id: str) -> bytes:
        raw = message_id.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(raw, digest_size=8, key=self._key).digest()


def first_totals(recipe: Recipe) -> Totals:
    """Return the totals of a new model; a Bernoulli model's histogram has a row for each label."""
    totals = no_totals(recipe.groups, len(recipe.labels))
    if recipe.kind == "bernoulli":
        totals.histogram = np.zeros((len(recipe.labels), 0), np.int64)
    return totals


def event_ids(event: Event) -> Ids:
    """Return every feature that the event changes: its own, its rehearsals', its bulk change's."""
    sets = [*event.ids]
    for rehearsal in event.delta.rehearsals:
        sets += rehearsal.ids
    if event.bulk is not None and not event.person:
        sets.append(event.bulk.ids)
    if not sets:
        return np.zeros(0, np.uint64)
    return sets[0] if len(sets) == 1 else np.unique(np.concatenate(sets))


def older(times_us: Sequence[int], before_us: int) -> int:
    """Count the leading times up to the last one before `before_us`; times are in journal order.

    An event that precedes an old one counts as old, whatever its time: otherwise one event of a
    clock that was years ahead would keep all later events for these years.
    """
    return max((i for i, at in enumerate(times_us, 1) if at < before_us), default=0)


def surely_older(times_us: Sequence[int], before_us: int, now_us: int) -> int:
    """Count as `older` does, but stop at the first time from `before_us` to `now_us`.

    Otherwise one event of a clock that was set back would make all earlier events old. Times in the
    future are ignored.
    """
    recent = (i for i, at in enumerate(times_us) if before_us <= at <= now_us)
    return older(times_us[: next(recent, len(times_us))], before_us)


def named_ids(event: Event) -> Ids:
    """Return every feature that the event changes, or that forgetting its message would change."""
    rehearsals = [ids for rehearsal in event.net_update.rehearsals for ids in rehearsal.ids]
    return (
        np.unique(np.concatenate([event_ids(event), *rehearsals]))
        if rehearsals
        else event_ids(event)
    )


def ids_of(events: Sequence[Event]) -> Ids:
    """Return every feature that these events change."""
    return np.unique(np.concatenate([event_ids(event) for event in events]))
