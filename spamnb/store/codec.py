"""Encode and decode sets of ids, arrays of integers, rows, events, totals, the recipe. Pure.

All numbers are little endian unless said otherwise; a varint has seven bits a byte, low ones first;
a text or chunk is a varint length and its bytes.

Ids are uniform hashes, so a sorted set of n of them holds log2(2^64 / n) + 1.44 bits an id and no
less: 7.0 bytes at n = 300. The Elias-Fano code comes within a quarter of a byte of that without
a loop: the low bytes of every id are stored as they are, the high bits become a unary bitmap.

    ids: varint n, the number of ids (nothing follows if it is 0)
         u8 b, bytes kept raw of each id, 1..8
         n * b bytes: the low bytes, little endian
         bitmap: bit (id >> 8b) + i is set for the i-th id; first bit is the highest of its byte;
                 n + 2^(64-8b) bits, filled up to a byte (no bitmap if b = 8)
    ints: u8 width (0, 1, 2, 4 or 8; 0 says that all are zero), then the values, little endian

Gap coding with varints was worse: 8.2 bytes an id against 7.25, and a Python loop to read it. Low
parts that are no whole number of bytes would save 0.1 byte an id, but could not be read as plain
bytes. `FrequentIds` stores several sets in 2.9 bytes an id, if both sides have a table of frequent
ids.

Row of a feature, 2 + 8 K bytes, packed (18 at two labels); its id is stored elsewhere:

    u32 n[K] | i32 w[K] | u16 day

Event (its seq is in the journal's key), version 2, 3 with a person, or 4 with an owner; 3 more if
it counts a part of its message; 6 more if its ids are by a table of frequent ids:

    u8 version | u8 kind | u8 flags | i16 before | i16 after | i64 time_us
    varint previous | chunk digest | text message_id | text user | text channel
    u8 G | varint K | sets | [ints times, one for each id of all groups]         flag 2
    update delta | [update net_update]                                             flag 1
    [varint undoes]                                                             flag 8
    [f64 weight]                                                                flag 32
    [bulk]                                                                      flag 4
    [u64 person | ints personal[G, K - 1] of each update]                       version 3
    [u64 owner | i8 credit]                                                     version 4
    [u8 block of each id of all groups, or as small values with a table]         flag 64
    [chunk blocks that are left out]                                             version 5 to 7
  flag 16: a person's explicit correction
  sets: varint G | G * ids, or by the table, whose name of 4 bytes is before the sets of the event
  update: ints steps[G, K] | ints bias[G, K] | ints temperatures[G] | varint rehearsals
        each rehearsal: sets | ints steps[G, K]
  bulk: ids | ints n[F, K] | ints w[F, K] | ints days[F] | ints messages[K] | ints bias[G, K]
        ints temperatures[G]

`net_update` is written only where it differs from `delta` (after a move, a forget, an undo).

Totals, version 2: u8 version | varint K | varint G | varint V | varint last_seq
    ints messages | ints tokens | ints bias | ints temperatures
    varint rows | varint columns | ints H[rows, columns]

The recipe is JSON: it is read once at open, and an administrator may want to read it.

Failure: inconsistent bytes raise StoreDamagedError, those of another version StoreVersionError;
nothing is read past the end.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache, reduce
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import BugError, StoreDamagedError, StoreVersionError
from spamnb.model.events import (
    Blocks,
    BulkChange,
    Event,
    EventKind,
    Ids,
    Ints,
    Recipe,
    Records,
    RehearsalUpdate,
    Totals,
    Update,
    changes,
    order_of,
)

# --- numbers, texts and sets of ids ---------------------------------------------------------------

Buffer = bytes | memoryview

_U64 = np.dtype("<u8")
_WIDTHS = {0: None, 1: np.dtype("i1"), 2: np.dtype("<i2"), 4: np.dtype("<i4"), 8: np.dtype("<i8")}
_SMALL_SET = 33
_LARGE_SET = 8_160
"""between these two sizes, seven raw bytes an id give the smallest code"""


class ByteCursor:
    """A read position in a buffer; each method reads the next value and moves on."""

    __slots__ = ("at", "data")

    def __init__(self, data: Buffer, at: int = 0) -> None:
        self.data = memoryview(data)
        self.at = at

    def take(self, count: int) -> memoryview:
        """Read this many bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise StoreDamagedError(f"a stored value ends at {len(self.data)}, {end} was needed")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def byte(self) -> int:
        """Read one byte."""
        at = self.at
        if at >= len(self.data):
            raise StoreDamagedError(f"a stored value ends at {at}, more was needed")
        self.at = at + 1
        return self.data[at]

    def varint(self) -> int:
        """Read a varint."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise StoreDamagedError("a stored number is longer than 64 bits")

    def chunk(self) -> bytes:
        """Read bytes with a length before them."""
        return bytes(self.take(self.varint()))

    def text(self) -> str:
        """Read a string with its length before it."""
        # Lone surrogates come from header bytes that are not UTF-8; they must be read unchanged.
        try:
            return self.chunk().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise StoreDamagedError("a stored text is not UTF-8") from error


_SMALL = tuple(bytes((value,)) for value in range(128))


def varint(value: int) -> bytes:
    """Seven bits a byte, low ones first; the top bit says that more bytes follow."""
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def chunk(data: bytes) -> bytes:
    """The bytes with their length before them."""
    return varint(len(data)) + data


def text(value: str) -> bytes:
    """The string as UTF-8 with its length before it."""
    return chunk(value.encode("utf-8", "surrogatepass"))


def encode_ids(ids: Ids) -> bytes:
    """A sorted set of distinct ids."""
    n = len(ids)
    if n == 0:
        return b"\0"
    low = _low_bytes(n)
    raw = np.ascontiguousarray(ids, _U64)
    body = raw.view(np.uint8).reshape(n, 8)[:, :low].tobytes()
    head = varint(n) + bytes((low,))
    if low == 8:
        return head + body
    bits = np.zeros(n + (1 << (64 - 8 * low)), np.uint8)
    bits[(raw >> np.uint64(8 * low)).view(np.int64) + np.arange(n)] = 1
    return head + body + np.packbits(bits).tobytes()


def encode_ids_raw(ids: Ids) -> bytes:
    """A set with all eight bytes of each id raw: an eighth larger, and 2 us instead of 10."""
    return varint(len(ids)) + b"\x08" + ids.astype(_U64).tobytes() if len(ids) else b"\0"


def decode_ids(reader: ByteCursor) -> Ids:
    """Read a set of ids."""
    n = reader.varint()
    if n == 0:
        return np.zeros(0, np.uint64)
    low = reader.byte()
    if not 1 <= low <= 8 or n * low > len(reader.data):
        raise StoreDamagedError(f"a stored set of {n} ids with {low} raw bytes each")
    wide = np.zeros((n, 8), np.uint8)
    wide[:, :low] = np.frombuffer(reader.take(n * low), np.uint8).reshape(n, low)
    ids = wide.reshape(-1).view(_U64)
    if low == 8:
        return ids
    bits = n + (1 << (64 - 8 * low))
    packed = np.frombuffer(reader.take((bits + 7) // 8), np.uint8)
    ones = np.flatnonzero(np.unpackbits(packed, count=bits))
    if len(ones) != n:
        raise StoreDamagedError(f"a stored set of {n} ids has a bitmap of {len(ones)}")
    high = (ones - np.arange(n)).astype(np.uint64)
    ids |= high << np.uint64(8 * low)
    return ids


_PLACE_BITS = 16
_PLACES = 1 << _PLACE_BITS
_PLACE_SHIFT = np.uint64(64 - _PLACE_BITS)
_LOW_BYTES = 6
_PARTS = _PLACES >> 8


class FrequentIds:
    """A table of frequent ids, by which sets of ids are stored in less space. Immutable.

    The place of an id in the table is its top 16 bits, which are stored of every id; the other 48
    bits are stored only if the table has another id there.

        varint G | G * varint n       the number of ids in each set; N is their sum
        bitmap, N bits                whether the table has another id there
        those ids * 6                 their low bytes, little endian
        N bytes                       the lower half of each place
        bitmap, N + 256 G bits        bit (place >> 8) + 256 g + i is set for the i-th id, of set g

    Of the messages of three collections of mail, the table of 1,000 others has 76 % of the ids:
    2.9 bytes an id, in some 30 us a message. Ranks in a sorted table of as many ids took a
    binary search for each id, 200 us a message, and saved a tenth.
    """

    SIZE = 8 * _PLACES
    """bytes in memory"""

    def __init__(self, ids: Ids) -> None:
        if len(ids) != _PLACES:
            raise StoreDamagedError(f"a table of {len(ids)} frequent ids")
        self.ids = ids

    @staticmethod
    def of(ids: Ids) -> FrequentIds:
        """The table of the ids that occur most often in an array."""
        distinct, counts = np.unique(ids, return_counts=True)
        distinct = distinct.take(np.argsort(counts, kind="stable"))
        table = np.zeros(_PLACES, np.uint64)
        table[(distinct >> _PLACE_SHIFT).view(np.int64)] = distinct  # the last one stays
        return FrequentIds(table)

    def encode(self, sets: Sequence[Ids]) -> bytes:
        """Sorted sets of distinct ids."""
        sizes = [len(one) for one in sets]
        ids = np.concatenate(sets) if sets else np.zeros(0, np.uint64)
        places = (ids >> _PLACE_SHIFT).view(np.int64)
        others = self.ids.take(places) != ids
        lows = ids.compress(others).astype(_U64, copy=False).view(np.uint8).reshape(-1, 8)
        at = np.arange(len(ids))
        end = 0
        for size in sizes[:-1]:
            end += size
            at[end:] += _PARTS
        bitmap = np.zeros(len(ids) + _PARTS * len(sets), np.bool_)
        bitmap[(places >> 8) + at] = True
        return b"".join(
            (
                varint(len(sets)),
                *map(varint, sizes),
                np.packbits(others).tobytes(),
                lows[:, :_LOW_BYTES].tobytes(),
                places.astype(np.uint8).tobytes(),
                np.packbits(bitmap).tobytes(),
            )
        )

    def decode(self, reader: ByteCursor) -> tuple[Ids, ...]:
        """Read what `encode` made with this table."""
        sizes = [reader.varint() for _ in range(reader.varint())]
        count = sum(sizes)
        others = _bits(reader, count).view(np.bool_)
        known = count - int(np.count_nonzero(others))
        raw = np.frombuffer(reader.take((count - known) * _LOW_BYTES), np.uint8)
        lows = np.zeros((count - known, 8), np.uint8)
        lows[:, :_LOW_BYTES] = raw.reshape(-1, _LOW_BYTES)
        halves = np.frombuffer(reader.take(count), np.uint8)
        ones = np.flatnonzero(_bits(reader, count + _PARTS * len(sizes)))
        if len(ones) != count:
            raise StoreDamagedError(f"stored sets of {count} ids have a bitmap of {len(ones)}")
        places = (((ones - np.arange(count)) & (_PARTS - 1)) << 8 | halves).view(np.uint64)
        ids = self.ids.take(places.view(np.int64))
        ids[others] = lows.reshape(-1).view(_U64) | places.compress(others) << _PLACE_SHIFT
        ends = list(accumulate(sizes, initial=0))
        return tuple(ids[start:end] for start, end in pairwise(ends))


TABLE_NAME_BYTES = 4


class NamedTable(NamedTuple):
    """A table of frequent ids and its name, a hash of it: another table has another name."""

    name: bytes
    table: FrequentIds

    @classmethod
    def of(cls, ids: Ids) -> NamedTable:
        """Return the table of the ids that occur most often in an array."""
        table = FrequentIds.of(ids)
        name = hashlib.blake2b(table.ids.tobytes(), digest_size=TABLE_NAME_BYTES).digest()
        return cls(name, table)


TableOf = Callable[[bytes], FrequentIds]
"""gives the table of a name; raises StoreDamagedError for a name without one"""


def no_table(name: bytes) -> FrequentIds:
    """For values without a table."""
    raise StoreDamagedError(f"the table {name.hex()} of frequent ids is missing")


def _encode_sets(sets: Sequence[Ids]) -> bytes:
    return b"".join((varint(len(sets)), *map(encode_ids, sets)))


def _decode_sets(reader: ByteCursor) -> tuple[Ids, ...]:
    return tuple(decode_ids(reader) for _ in range(reader.varint()))


def _bits(reader: ByteCursor, count: int) -> NDArray[np.uint8]:
    """Read a bitmap of so many bits."""
    return np.unpackbits(np.frombuffer(reader.take((count + 7) // 8), np.uint8), count=count)


def _low_bytes(count: int) -> int:
    """The number of raw bytes that makes raw bytes and bitmap together smallest."""
    if count < _SMALL_SET:
        return 8
    if count < _LARGE_SET:
        return 7
    return min(range(1, 8), key=lambda low: count * low * 8 + (1 << (64 - 8 * low)))


def encode_ints(values: NDArray[Any]) -> bytes:
    """An array of integers, flat; the reader must know its shape."""
    if not values.any():
        return b"\0"
    width = _width(int(values.min()), int(values.max()))
    return _SMALL[width] + values.astype(_WIDTHS[width]).tobytes()


def _width(bottom: int, top: int) -> int:
    """The smallest width that can store both."""
    for width in (1, 2, 4, 8):
        if -(limit := 1 << 8 * width - 1) <= bottom and top < limit:
            return width
    raise BugError(f"integers to be stored fit 64 bits, {top} does not")


_HEX = bytes(b"0123456789abcdef"[value] if value < 16 else 0 for value in range(256))
_FROM_HEX = bytes(
    int(chr(char), 16) if chr(char) in "0123456789abcdef" else 0 for char in range(256)
)


def encode_small(values: NDArray[np.uint8]) -> bytes:
    """An array of bytes, in half the space if all are below 16; the reader must know its length.

    As hexadecimal digits: 2 us for 450 values, shifting and joining them took 8.
    """
    raw = values.tobytes()
    digits = raw.translate(_HEX)
    if 0 in digits:
        return _SMALL[8] + raw
    return _SMALL[4] + bytes.fromhex((digits + b"0" * (len(digits) & 1)).decode("ascii"))


def decode_small(reader: ByteCursor, count: int) -> NDArray[np.uint8]:
    """Read an array of so many bytes."""
    width = reader.byte()
    if width not in (4, 8):
        raise StoreDamagedError(f"stored values of {width} bits each")
    if width == 8:
        return np.frombuffer(reader.take(count), np.uint8)
    digits = reader.take((count + 1) // 2).hex().encode("ascii")
    return np.frombuffer(digits.translate(_FROM_HEX), np.uint8, count)


def decode_blocks(reader: ByteCursor, groups: Sequence[Ids]) -> Blocks:
    """The blocks of a message with these ids."""
    return np.frombuffer(reader.take(sum(map(len, groups))), np.uint8)


def decode_ints(reader: ByteCursor, *shape: int) -> Ints:
    """Read an array of this shape."""
    width = reader.byte()
    if width not in _WIDTHS:
        raise StoreDamagedError(f"stored integers of {width} bytes each")
    count = 1
    for side in shape:
        count *= side
    kind = _WIDTHS[width]
    if kind is None:
        return np.zeros(shape, np.int64)
    return np.frombuffer(reader.take(count * width), kind).astype(np.int64).reshape(shape)


# --- rows -----------------------------------------------------------------------------------------

Rows = NDArray[np.void]
"""structured, of `row_type`"""

_NET_UPDATE, _TIMES, _BULK, _UNDOES, _IMMEDIATE, _WEIGHT, _BLOCKS = 1, 2, 4, 8, 16, 32, 64
_HEAD = struct.Struct("<BBBhhq")
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

VERSION = 2
"""of events without a person, and of totals"""
PERSON_VERSION = 3
"""of events with a person, which older programs must not apply"""
OWNER_VERSION = 4
"""of events with an owner, which older programs would take for an administrator's"""
PART = 3
"""is added to the version of an event that counts a part of its message, which older programs would
count as a whole"""
BY_TABLE = 6
"""is added to the version of an event whose ids are by a table of frequent ids, which older
programs cannot read"""
NEWEST_VERSION = OWNER_VERSION + PART + BY_TABLE


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


def encode_event(event: Event, frequent: NamedTable | None = None) -> bytes:
    """Encode an event without its seq; only this store can read it if its ids are by a table."""
    if frequent is None and isinstance(event, EncodedEvent) and event.encoded:
        return event.encoded
    encode = _encode_sets if frequent is None else frequent.table.encode
    updates = _written_updates(event)
    flags = (len(updates) > 1) * _NET_UPDATE | (event.times is not None) * _TIMES
    flags |= (event.bulk is not None) * _BULK | (event.undoes != 0) * _UNDOES
    flags |= event.immediate * _IMMEDIATE | (event.weight != 1.0) * _WEIGHT
    flags |= (event.blocks is not None) * _BLOCKS
    parts = [
        _HEAD.pack(
            _version(event) + (BY_TABLE if frequent else 0),
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
        frequent.name if frequent else b"",
        encode(event.ids),
    ]
    if event.times is not None:
        parts.append(encode_ints(event.times))
    for update in updates:
        parts += _encode_update(update, encode)
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
        parts.append(encode_small(event.blocks) if frequent else event.blocks.tobytes())
    if event.left_out:
        parts.append(chunk(event.left_out))
    return b"".join(parts)


_FACTS_BYTES = 160
"""of an event: numbers, times, and the steps of seven groups"""


def charged_bytes(event: Event) -> int:
    """Return what an event counts in a quota of stored bytes: about what it takes without a table.

    It is not encoded for that, which takes 0.2 ms.
    """
    updates = _written_updates(event)
    rehearsed = [ids for update in updates for one in update.rehearsals for ids in one.ids]
    count = sum(map(len, event.ids))
    texts = len(event.message_id) + len(event.user) + len(event.channel)
    blocks = 0 if event.blocks is None else count
    return _FACTS_BYTES + texts + blocks + 8 * (count + sum(map(len, rehearsed)))


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


def decode_event(seq: int, data: Buffer, table_of: TableOf = no_table) -> Event:
    """Decode an event."""
    reader = ByteCursor(data)
    version = data[0] if len(data) else VERSION
    by_table = has_table(data)
    version -= BY_TABLE * by_table
    is_part = version > OWNER_VERSION
    version -= PART * is_part
    kind, flags, before, after, time_us = read_head(reader)
    previous = reader.varint()
    digest, message_id = reader.chunk(), reader.text()
    user, channel = reader.text(), reader.text()
    groups, labels = reader.byte(), reader.varint()
    decode = table_of(bytes(reader.take(TABLE_NAME_BYTES))).decode if by_table else _decode_sets
    ids = decode(reader)
    times = None
    if flags & _TIMES:
        times = decode_ints(reader, sum(map(len, ids))).astype(np.uint32)
    delta = _decode_update(reader, groups, labels, decode)
    net_update = _decode_update(reader, groups, labels, decode) if flags & _NET_UPDATE else delta
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
        count = sum(map(len, ids))
        blocks = decode_small(reader, count) if by_table else decode_blocks(reader, ids)
        event = event._replace(blocks=blocks)
    return event._replace(left_out=reader.chunk()) if is_part else event


def has_table(data: Buffer) -> bool:
    """Whether an event is encoded by a table of frequent ids."""
    return len(data) > 0 and data[0] > OWNER_VERSION + PART


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


def _encode_update(update: Update, encode: Callable[[Sequence[Ids]], bytes]) -> list[bytes]:
    parts = [
        encode_ints(update.steps),
        encode_ints(update.bias),
        encode_ints(update.temperatures),
        varint(len(update.rehearsals)),
    ]
    for rehearsal in update.rehearsals:
        parts += encode(rehearsal.ids), encode_ints(rehearsal.steps)
    return parts


Decode = Callable[[ByteCursor], tuple[Ids, ...]]
"""reads sets of ids"""


def _decode_update(reader: ByteCursor, groups: int, labels: int, decode: Decode) -> Update:
    steps = decode_ints(reader, groups, labels)
    bias = decode_ints(reader, groups, labels)
    temperatures = decode_ints(reader, groups)
    rehearsals = tuple(
        RehearsalUpdate(decode(reader), decode_ints(reader, groups, labels))
        for _ in range(reader.varint())
    )
    return Update(steps, bias, temperatures, rehearsals)


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
