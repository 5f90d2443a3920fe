"""Encode and decode feature rows, events, totals, the recipe and message states. Pure.

All numbers are little endian unless said otherwise; a varint has seven bits a byte, low ones first;
a text or chunk is a varint length and its bytes; `ids` and `ints` are described in `bytes`.

Row of a feature, 2 + 8 K bytes, packed (18 at two labels); its id is stored elsewhere:

    u32 n[K] | i32 w[K] | u16 day

Event (its seq is in the journal's key), version 2, 3 with a person, or 4 with an owner; 5, 6 and 7
are the same of an event that counts a part of its message:

    u8 version | u8 kind | u8 flags | i16 before | i16 after | i64 time_us
    varint previous | chunk digest | text message_id | text user | text channel
    u8 G | varint K | G * ids | [ints times, one for each id of all groups]      flag 2
    update delta | [update net_update]                                             flag 1
    [varint undoes]                                                             flag 8
    [f64 weight]                                                                flag 32
    [bulk]                                                                      flag 4
    [u64 person | ints personal[G, K - 1] of each update]                       version 3
    [u64 owner | i8 credit]                                                     version 4
    [u8 block of each id of all groups]                                          flag 64
    [chunk blocks that are left out]                                             version 5 to 7
  flag 16: a person's explicit correction
  update: ints steps[G, K] | ints bias[G, K] | ints temperatures[G] | varint rehearsals
        each rehearsal: G * ids | ints steps[G, K]
  bulk: ids | ints n[F, K] | ints w[F, K] | ints days[F] | ints messages[K] | ints bias[G, K]
        ints temperatures[G]

`net_update` is written only where it differs from `delta` (after a move, a forget, an undo).

Totals, version 2: u8 version | varint K | varint G | varint V | varint last_seq
    ints messages | ints tokens | ints bias | ints temperatures
    varint rows | varint columns | ints H[rows, columns]

Message state: i16 label | u64 seq | u8 folded.

The recipe is JSON: it is read once at open, and an administrator may want to read it.

Failure: inconsistent bytes raise StoreDamagedError, those of another version StoreVersionError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.model.events import (
    BulkChange,
    Event,
    EventKind,
    Ids,
    Recipe,
    Records,
    RehearsalUpdate,
    Totals,
    Update,
    changes,
    order_of,
)
from spamnb.store.bytes import (
    Buffer,
    ByteCursor,
    chunk,
    decode_blocks,
    decode_ids,
    decode_ints,
    encode_ids,
    encode_ints,
    text,
    varint,
)
from spamnb.store.contract import MessageState

VERSION = 2
"""of events without a person, and of totals"""
PERSON_VERSION = 3
"""of events with a person, which older programs must not apply"""
OWNER_VERSION = 4
"""of events with an owner, which older programs would take for an administrator's"""
PART = 3
"""is added to the version of an event that counts a part of its message, which older programs would
count as a whole"""
NEWEST_VERSION = OWNER_VERSION + PART

Rows = NDArray[np.void]
"""structured, of `row_type`"""

_NET_UPDATE, _TIMES, _BULK, _UNDOES, _IMMEDIATE, _WEIGHT, _BLOCKS = 1, 2, 4, 8, 16, 32, 64
_HEAD = struct.Struct("<BBBhhq")
_LIVE = struct.Struct("<hQB")
_DOUBLE = struct.Struct("<d")
_ID = struct.Struct("<Q")
_OWNED = struct.Struct("<Qb")


@cache
def row_type(labels: int) -> np.dtype[np.void]:
    """The packed row of a feature."""
    return np.dtype([("n", "<u4", (labels,)), ("w", "<i4", (labels,)), ("day", "<u2")])


def opaque_rows(rows: Rows) -> Rows:
    """The same memory with each row as one opaque value.

    Assigning structured rows by an index takes six times as long, and `rows[index]` ten times; with
    `take` both take about the same time.
    """
    return rows.view(f"V{rows.itemsize}")


class RowSet(NamedTuple):
    """Sorted ids and the row of each."""

    ids: Ids
    rows: Rows

    @staticmethod
    @cache
    def none(dtype: np.dtype[np.void]) -> RowSet:
        """The empty set."""
        return RowSet(np.zeros(0, np.uint64), np.zeros(0, dtype))

    def take(self, index: NDArray[np.intp]) -> RowSet:
        """Some of the rows."""
        return RowSet(
            self.ids.take(index), opaque_rows(self.rows).take(index).view(self.rows.dtype)
        )

    def part(self, some: slice) -> RowSet:
        """Neighbouring rows."""
        return RowSet(self.ids[some], self.rows[some])


def joined(parts: Sequence[RowSet]) -> RowSet:
    """Sets one after another."""
    rows = np.concatenate([opaque_rows(part.rows) for part in parts])
    return RowSet(np.concatenate([part.ids for part in parts]), rows.view(parts[0].rows.dtype))


def newest(parts: Sequence[RowSet]) -> RowSet:
    """All sets as one; for an id in several sets, the row of the last set."""
    if len(parts) == 1:
        return parts[0]
    rows = joined(parts)
    order = order_of(rows.ids)
    # The last of several equal ids is the one before a change.
    return rows.take(order[np.roll(changes(rows.ids.take(order)), -1)])


def to_rows(records: Records) -> Rows:
    """Rows from columns."""
    rows = np.empty(len(records.day), row_type(records.n.shape[1]))
    rows["n"], rows["w"], rows["day"] = records
    return rows


def records_of(rows: Rows) -> Records:
    """The columns, each a new array."""
    return Records(
        rows["n"].astype(np.uint32), rows["w"].astype(np.int32), rows["day"].astype(np.uint16)
    )


def no_records(count: int, labels: int) -> Records:
    """Records of unknown features."""
    return Records(
        np.zeros((count, labels), np.uint32),
        np.zeros((count, labels), np.int32),
        np.zeros(count, np.uint16),
    )


def empty_rows(records: Records) -> NDArray[np.bool_]:
    """Which rows are empty; a last-learnt day alone does not count."""
    # Column by column: over rows of four numbers numpy takes four times as long.
    empty: NDArray[np.bool_] = ~reduce(np.logical_or, (*records.n.T, *records.w.T))
    return empty


# --- events -------------------------------------------------------------------------------------


def _written_updates(event: Event) -> tuple[Update, ...]:
    """The updates that are written: one if delta and net update are the same."""
    delta, net_update = event.delta, event.net_update
    return (delta,) if same_update(delta, net_update) else (delta, net_update)


class EncodedEvent(Event):
    """An event with the bytes that it was read from, to store them unchanged. A copy has none."""

    encoded = b""

    @classmethod
    def decode(cls, seq: int, data: Buffer) -> EncodedEvent:
        """Decode an event, and keep its bytes."""
        event = cls(*decode_event(seq, data))
        event.encoded = bytes(data)
        return event


def encode_event(event: Event) -> bytes:
    """Encode an event without its seq."""
    if isinstance(event, EncodedEvent) and event.encoded:
        return event.encoded
    updates = _written_updates(event)
    flags = (len(updates) > 1) * _NET_UPDATE | (event.times is not None) * _TIMES
    flags |= (event.bulk is not None) * _BULK | (event.undoes != 0) * _UNDOES
    flags |= event.immediate * _IMMEDIATE | (event.weight != 1.0) * _WEIGHT
    flags |= (event.blocks is not None) * _BLOCKS
    parts = [
        _HEAD.pack(
            _version(event),
            event.kind,
            flags,
            event.before,
            event.after,
            event.time_us,
        ),
        varint(event.previous),
        chunk(event.digest),
        text(event.message_id),
        text(event.user),
        text(event.channel),
        bytes((len(event.delta.temperatures),)),
        varint(event.delta.bias.shape[1]),
        varint(len(event.ids)),
        *map(encode_ids, event.ids),
    ]
    if event.times is not None:
        parts.append(encode_ints(event.times))
    for update in updates:
        parts += _encode_update(update)
    if event.undoes:
        parts.append(varint(event.undoes))
    if flags & _WEIGHT:
        parts.append(_DOUBLE.pack(event.weight))
    if event.bulk is not None:
        parts.append(_encode_bulk(event.bulk))
    if _has_person(event):
        parts.append(_ID.pack(event.person))
        parts += [encode_ints(_personal_steps(update)) for update in updates]
    elif event.owner:
        parts.append(_OWNED.pack(event.owner, event.credit))
    if event.blocks is not None:
        parts.append(event.blocks.tobytes())
    if event.left_out:
        parts.append(chunk(event.left_out))
    return b"".join(parts)


def _version(event: Event) -> int:
    more = PART if event.left_out else 0
    if _has_person(event):
        return PERSON_VERSION + more
    return (OWNER_VERSION if event.owner else VERSION) + more


def _has_person(event: Event) -> bool:
    """Whether an event is written with a person; this is also so if the person is erased."""
    return event.person != 0 or event.kind == EventKind.ERASED


def _personal_steps(update: Update) -> NDArray[np.int64]:
    """The personal step of an update; zeros if it has none."""
    steps = update.personal
    return np.zeros_like(update.steps[:, 1:]) if steps is None else steps


def decode_event(seq: int, data: Buffer) -> Event:
    """Decode an event."""
    reader = ByteCursor(data)
    version = data[0] if len(data) else VERSION
    is_part = version > OWNER_VERSION
    version -= PART * is_part
    kind, flags, before, after, time_us = read_head(reader)
    previous = reader.varint()
    digest, message_id = reader.chunk(), reader.text()
    user, channel = reader.text(), reader.text()
    groups, labels = reader.byte(), reader.varint()
    ids = tuple(decode_ids(reader) for _ in range(reader.varint()))
    times = None
    if flags & _TIMES:
        times = decode_ints(reader, sum(map(len, ids))).astype(np.uint32)
    delta = _decode_update(reader, groups, labels)
    net_update = _decode_update(reader, groups, labels) if flags & _NET_UPDATE else delta
    undoes = reader.varint() if flags & _UNDOES else 0
    weight = _DOUBLE.unpack(reader.take(_DOUBLE.size))[0] if flags & _WEIGHT else 1.0
    bulk = _decode_bulk(reader, groups, labels) if flags & _BULK else None
    event = Event(
        seq, kind, time_us, user, channel, digest, message_id, before, after, previous,
        ids, delta, net_update, times, bulk, undoes, bool(flags & _IMMEDIATE), weight,
    )  # fmt: skip
    if version == OWNER_VERSION:
        owner, credit = _OWNED.unpack(reader.take(_OWNED.size))
        event = event._replace(owner=owner, credit=credit)
    elif version == PERSON_VERSION:
        event = _with_person(reader, event)
    if flags & _BLOCKS:
        event = event._replace(blocks=decode_blocks(reader, ids))
    return event._replace(left_out=reader.chunk()) if is_part else event


def _with_person(reader: ByteCursor, event: Event) -> Event:
    """Read the person and the personal steps of an event."""
    (person,) = _ID.unpack(reader.take(_ID.size))
    groups, labels = event.delta.steps.shape
    delta = event.delta._replace(personal=decode_ints(reader, groups, labels - 1))
    if event.net_update is event.delta:
        return event._replace(person=person, delta=delta, net_update=delta)
    net_update = event.net_update._replace(personal=decode_ints(reader, groups, labels - 1))
    return event._replace(person=person, delta=delta, net_update=net_update)


def read_head(reader: ByteCursor) -> tuple[EventKind, int, int, int, int]:
    """Kind, flags, before, after and time; the rest of the event is not read."""
    version, kind, flags, before, after, time_us = _HEAD.unpack(reader.take(_HEAD.size))
    if not VERSION <= version <= NEWEST_VERSION:
        raise StoreVersionError(
            f"an event of version {version}, this program reads up to {NEWEST_VERSION}",
            hint="use the newer program that wrote it",
        )
    try:
        return EventKind(kind), flags, before, after, time_us
    except ValueError as error:
        raise StoreDamagedError(f"an event of the unknown kind {kind}") from error


def same_update(a: Update, b: Update) -> bool:
    """Whether two updates are equal."""
    return a is b or (
        np.array_equal(a.steps, b.steps)
        and np.array_equal(a.bias, b.bias)
        and np.array_equal(a.temperatures, b.temperatures)
        and np.array_equal(_personal_steps(a), _personal_steps(b))
        and len(a.rehearsals) == len(b.rehearsals)
        and all(map(_same_rehearsal, a.rehearsals, b.rehearsals))
    )


def _same_rehearsal(a: RehearsalUpdate, b: RehearsalUpdate) -> bool:
    return (
        np.array_equal(a.steps, b.steps)
        and len(a.ids) == len(b.ids)
        and all(map(np.array_equal, a.ids, b.ids))
    )


def _encode_update(update: Update) -> list[bytes]:
    parts = [
        encode_ints(update.steps),
        encode_ints(update.bias),
        encode_ints(update.temperatures),
        varint(len(update.rehearsals)),
    ]
    for rehearsal in update.rehearsals:
        parts.append(varint(len(rehearsal.ids)))
        parts += map(encode_ids, rehearsal.ids)
        parts.append(encode_ints(rehearsal.steps))
    return parts


def _decode_update(reader: ByteCursor, groups: int, labels: int) -> Update:
    steps = decode_ints(reader, groups, labels)
    bias = decode_ints(reader, groups, labels)
    temperatures = decode_ints(reader, groups)
    rehearsals = tuple(_decode_rehearsal(reader, groups, labels) for _ in range(reader.varint()))
    return Update(steps, bias, temperatures, rehearsals)


def _decode_rehearsal(reader: ByteCursor, groups: int, labels: int) -> RehearsalUpdate:
    ids = tuple(decode_ids(reader) for _ in range(reader.varint()))
    return RehearsalUpdate(ids, decode_ints(reader, groups, labels))


def _encode_bulk(bulk: BulkChange) -> bytes:
    parts = [encode_ids(bulk.ids), encode_ints(bulk.n), encode_ints(bulk.w), encode_ints(bulk.days)]
    parts += [encode_ints(bulk.messages), encode_ints(bulk.bias), encode_ints(bulk.temperatures)]
    return b"".join(parts)


def _decode_bulk(reader: ByteCursor, groups: int, labels: int) -> BulkChange:
    ids = decode_ids(reader)
    n = decode_ints(reader, len(ids), labels)
    w = decode_ints(reader, len(ids), labels)
    days = decode_ints(reader, len(ids)).astype(np.uint16)
    messages, bias = decode_ints(reader, labels), decode_ints(reader, groups, labels)
    return BulkChange(ids, n, w, messages, bias, decode_ints(reader, groups), days)


# --- totals, digests, recipe ----------------------------------------------------------------------


def encode_totals(totals: Totals) -> bytes:
    """Encode the totals."""
    labels, groups = len(totals.messages), len(totals.temperatures)
    return b"".join((
        bytes((VERSION,)), varint(labels), varint(groups),
        varint(totals.known), varint(totals.last_seq),
        encode_ints(totals.messages), encode_ints(totals.tokens),
        encode_ints(totals.bias), encode_ints(totals.temperatures),
        *map(varint, totals.histogram.shape), encode_ints(totals.histogram),
    ))  # fmt: skip


def decode_totals(data: Buffer) -> Totals:
    """Decode totals: a new value, which the caller may change."""
    return _decoded_totals(bytes(data)).copy()


@lru_cache(maxsize=4)
def _decoded_totals(data: bytes) -> Totals:
    """Cached, because a snapshot's totals are read for each message: 20 us, a copy takes 5 us."""
    reader = ByteCursor(data)
    if (version := reader.byte()) != VERSION:
        raise StoreVersionError(f"totals of version {version}, this program reads {VERSION}")
    labels, groups = reader.varint(), reader.varint()
    known, last_seq = reader.varint(), reader.varint()
    messages, tokens = decode_ints(reader, labels), decode_ints(reader, labels)
    bias, temperatures = decode_ints(reader, groups, labels), decode_ints(reader, groups)
    histogram = decode_ints(reader, reader.varint(), reader.varint())
    if min([*messages.tolist(), *tokens.tolist()], default=0) < 0:
        raise StoreDamagedError("the totals count fewer than no messages")
    return Totals(messages, tokens, bias, temperatures, known, last_seq, histogram)


def encode_state(live: MessageState) -> bytes:
    """Encode the state of one message."""
    return _LIVE.pack(live.label, live.seq, live.folded)


def decode_state(data: Buffer) -> MessageState:
    """Decode the state of one message."""
    try:
        label, seq, folded = _LIVE.unpack(data)
    except struct.error as error:
        raise StoreDamagedError(f"a message state has {len(data)} bytes") from error
    return MessageState(label, seq, bool(folded))


def encode_recipe(recipe: Recipe) -> bytes:
    """Encode the recipe as JSON."""
    plain = asdict(replace(recipe, key=b"")) | {"key": recipe.key.hex()}
    return json.dumps(plain, sort_keys=True).encode()


def decode_recipe(data: Buffer) -> Recipe:
    """Decode the recipe; constants unknown to this program are refused."""
    try:
        plain: dict[str, Any] = json.loads(bytes(data))
        plain["key"] = bytes.fromhex(plain["key"])
        plain["labels"] = tuple(plain["labels"])
        recipe = Recipe(**plain)
    except TypeError as error:
        raise StoreVersionError(f"the model's recipe is not of this version: {error}") from error
    except (ValueError, KeyError) as error:
        raise StoreDamagedError(f"the model's recipe cannot be read: {error}") from error
    if recipe.extra:
        raise StoreVersionError(
            f"the model needs constants unknown here: {', '.join(sorted(recipe.extra))}",
            hint="use the newer program that made it",
        )
    return recipe
