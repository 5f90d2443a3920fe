"""Sorted sets of 64-bit ids <-> bytes, and arrays of integers <-> bytes. Pure.

Ids are uniform hashes, so a sorted set of n of them holds log2(2^64 / n) + 1.44 bits an id and no
less: 7.0 bytes at n = 300. The Elias-Fano code comes within a quarter of a byte of that without
a loop: the low bytes of every id are stored as they are, the high bits become a unary bitmap.

    varint      n, the number of ids (nothing follows if it is 0)
    u8          b, bytes kept raw of each id, 1..8
    n * b       the low bytes, little endian
    bitmap      bit (id >> 8b) + i is set for the i-th id; first bit is the highest of its byte;
                n + 2^(64-8b) bits, filled up to a byte (no bitmap if b = 8)

Gap coding with varints was worse: 8.2 bytes an id against 7.25, and a Python loop to read it. Low
parts that are no whole number of bytes would save 0.1 byte an id, but could not be read as plain
bytes.

Integers: u8 width (0, 1, 2, 4 or 8; 0 says that all are zero), then the values, little endian.

`FrequentIds` stores several sets in 2.9 bytes an id, if both sides have a table of frequent ids.

Failure: inconsistent bytes raise StoreDamagedError; nothing is read past the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import BugError, StoreDamagedError
from spamnb.model.events import Blocks, Ids, Ints

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
