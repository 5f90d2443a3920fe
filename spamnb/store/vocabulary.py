"""The words behind features, in hash buckets: the texts that clues show. Pure.

Ids are uniform hashes, so the top bits of an id are the number of its bucket. A bucket's key is the
first id of its range, big-endian; zero bytes at the end are left out, so that each page above the
leaves leads to a quarter more pages. When buckets are full on average, each is split in two.

    u32 count | count * (u64 id, u8 place, u8 length) | the texts, one after another

Recently added words are *pending*: they are stored outside the buckets, in values of the same form,
under keys of 8 bytes ff | u32 number.

Heads and texts are in the order of arrival, not sorted: a new word is appended by joining five
slices, and thousands of buckets are read as one array of heads. Heads between the texts were worse:
to find the n-th text, a reader then has to walk over all texts before it.

Must not know which engine keeps the table. Invariants: an id occurs at most once, in the bucket of
its range; no bucket is an empty value; the sum of lengths is the length of the texts.
Failure: StoreDamagedError.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import BugError, StoreDamagedError
from spamnb.model.events import Ids, changes, locate, order_of
from spamnb.model.features import Words
from spamnb.store.codec import Buffer
from spamnb.store.rows import Table
from spamnb.store.values import Word

_HEAD = np.dtype([("id", "<u8"), ("place", "u1"), ("size", "u1")])
BUCKET_WORDS = 40
"""A bucket has between half as many words and this many, up to 800 bytes. Buckets twice as large
cost 42 instead of 32 bytes a word, because a third of them then are overflow pages, and saved
little."""
SLAB_BUCKETS = 1024
"""Buckets read and written together, some 700 KB. To split the buckets of a million words takes
0.44 s, once in the life of a model."""
_LAYOUT = struct.Struct("<BQ")
_KEY = np.dtype(">u8")
_HEAD_BYTES = _HEAD.itemsize
_PENDING_PREFIX = b"\xff" * 8
"""prefix of the keys of pending words; no bucket has such a key"""
MAX_PENDING_BATCH = 1024
"""a larger batch of words goes straight to the buckets"""
PENDING_JOINED = 128
"""A message brings some new words, each for another bucket: writing them one by one took an eighth
of the time to learn it. As one value after the last one, they take a page. So many values are
joined into one, because a search would otherwise read thousands."""
MAX_PENDING_WORDS = 131_072
"""So many pending words are moved to the buckets together, where they share pages and buckets. In a
store of a million features they come from 4,900 messages and take 0.26 s, 55 us a message; moving
the words of 128 messages at a time took 200 us a message."""

_Piece = tuple[int, bytes, bytes]
"""of one bucket: how many words, their heads, their texts"""
_COUNT = struct.Struct("<I").unpack_from
_PACK = struct.Struct("<I").pack


class BucketLayout(NamedTuple):
    """There are 2^`bits` buckets for some `words`."""

    bits: int = 0
    words: int = 0

    def starts(self, ids: Ids) -> Ids:
        """The first id of each id's bucket."""
        below = np.uint64(63 - self.bits)
        return ids >> below >> np.uint64(1) << np.uint64(1) << below

    def verify(self, key: bytes, ids: Ids) -> None:
        """Refuse a bucket that holds ids outside its range: a search would not find these ids."""
        if set(keys_of(self.starts(ids))) != {key}:
            raise StoreDamagedError("a word is stored in a bucket of another id range")

    def encode(self) -> bytes:
        """The layout as bytes."""
        return _LAYOUT.pack(*self)

    @staticmethod
    def decode(data: Buffer) -> BucketLayout:
        """The layout in these bytes."""
        try:
            layout = BucketLayout(*_LAYOUT.unpack(data))
        except struct.error as error:
            raise StoreDamagedError(f"a layout of {len(data)} bytes") from error
        if layout.bits > 62:
            raise StoreDamagedError(f"a layout of 2^{layout.bits} buckets")
        return layout


def distinct(sorted_ids: Ids) -> Ids:
    """The distinct values of a sorted array; a diff, because np.unique would sort again."""
    return sorted_ids[changes(sorted_ids)]


def keys_of(starts: Ids) -> list[bytes]:
    """Keys of buckets, in order. `tolist` of short byte strings is fast, and drops the zeros."""
    keys: list[bytes] = starts.astype(_KEY).view("S8").tolist()
    return [key or b"\0" for key in keys]


class _WordBlock(NamedTuple):
    """Words of some buckets in stored order."""

    heads: NDArray[np.void]
    texts: NDArray[np.uint8]
    bucket: NDArray[np.intp]
    """index of each word's bucket among those that were read"""

    @property
    def ids(self) -> Ids:
        return np.ascontiguousarray(self.heads["id"])

    def ends(self) -> NDArray[np.intp]:
        """Where each text ends."""
        return np.cumsum(self.heads["size"], dtype=np.intp)

    def taken(self, order: NDArray[np.intp]) -> tuple[NDArray[np.void], bytes, NDArray[np.intp]]:
        """Heads and texts in another order, and where each text ends in it."""
        heads = self.heads[order]
        sizes = heads["size"].astype(np.intp)
        ends = np.cumsum(sizes)
        from_ = self.ends()[order] - sizes
        index = np.repeat(from_ - (ends - sizes), sizes) + np.arange(int(sizes.sum()))
        return heads, self.texts[index].tobytes(), ends


def _read(values: list[Buffer]) -> _WordBlock:
    heads, texts, counts = [], [], np.zeros(len(values), np.intp)
    for i, value in enumerate(values):
        if len(value) == 0:
            continue
        view = memoryview(value)
        count = _COUNT(view)[0]
        cut = 4 + count * _HEAD.itemsize
        heads.append(view[4:cut])
        texts.append(view[cut:])
        counts[i] = count
    joined = b"".join(heads)
    if len(joined) != int(counts.sum()) * _HEAD.itemsize:
        raise StoreDamagedError("a bucket of words is shorter than its heads")
    block = _WordBlock(
        np.frombuffer(joined, _HEAD),
        np.frombuffer(b"".join(texts), np.uint8),
        np.repeat(np.arange(len(values)), counts),
    )
    if int(block.heads["size"].sum(dtype=np.intp)) != len(block.texts):
        raise StoreDamagedError("texts and heads of words differ in length")
    return block


def _pieces(
    heads: NDArray[np.void], texts: bytes, ends: NDArray[np.intp], bounds: NDArray[np.intp]
) -> Iterator[_Piece]:
    """The words of each bucket; the words of a bucket lie between two neighbours of `bounds`."""
    raw, text = heads.tobytes(), texts
    at = np.concatenate([[0], ends])[bounds].tolist()
    where = bounds.tolist()
    size = _HEAD.itemsize
    for a, b, start, end in zip(where[:-1], where[1:], at[:-1], at[1:], strict=True):
        yield b - a, raw[a * size : b * size], text[start:end]


def _value(piece: _Piece) -> bytes:
    count, heads, texts = piece
    return b"".join((_PACK(count), heads, texts)) if count else b""


class Vocabulary:
    """The texts of features in a table."""

    def __init__(self, table: Table, layout: BucketLayout) -> None:
        self.table = table
        self.layout = layout

    def find(self, ids: Ids) -> list[Word | None]:
        """The texts of sorted ids, None for ids without a text."""
        if len(ids) == 0:
            return []
        block = self._read_block(distinct(self.layout.starts(ids)), self._pending())
        at, wanted = locate(ids, block.ids)
        ends = block.ends()
        found: list[Word | None] = [None] * len(ids)
        for row in wanted.nonzero()[0].tolist():
            head, end = block.heads[row], int(ends[row])
            text = block.texts[end - int(head["size"]) : end].tobytes()
            found[at[row]] = Word(int(head["id"]), int(head["place"]), text)
        return found

    def add(self, words: Words, new_ids: Ids) -> NDArray[np.intp]:
        """Put new words; an id that has a text keeps it: return the indexes of these.

        `new_ids` are sorted ids known to have no text, because their features are new: bulk
        training then need not read every bucket.
        """
        ids, texts = words.ids, words.texts
        if len(ids) == 0:
            return np.zeros(0, np.intp)
        if (ids[1:] <= ids[:-1]).any() or int(words.sizes.sum(dtype=np.intp)) != len(texts):
            raise BugError("words to store must be sorted by id, one for each id, with all texts")
        heads = np.empty(len(ids), _HEAD)
        heads["id"], heads["place"], heads["size"] = ids, words.locations, words.sizes
        doubtful = (~locate(new_ids, ids)[1]).nonzero()[0]
        known = doubtful[self._known(ids[doubtful])] if len(doubtful) else doubtful
        if len(known):
            bucket = np.zeros(len(ids), np.intp)
            block = _WordBlock(heads, np.frombuffer(texts, np.uint8), bucket)
            heads, texts, _ = block.taken(np.delete(np.arange(len(ids)), known))
        if 0 < len(heads) <= MAX_PENDING_BATCH:
            self._append_pending(b"".join((_PACK(len(heads)), heads.tobytes(), texts)))
        elif len(heads):
            self._append(heads, texts, heads["size"].cumsum(dtype=np.intp))
        return known

    def _pending(self) -> list[Buffer]:
        """The values of pending words."""
        return [bytes(value) for _, value in self.table.scan(_PENDING_PREFIX)]

    def _append_pending(self, value: bytes) -> None:
        """Store some words as pending; when there are many, move all of them to the buckets."""
        last = next((key for key, _ in self.table.scan(down=True)), b"")
        number = (
            int.from_bytes(last[len(_PENDING_PREFIX) :]) + 1
            if last.startswith(_PENDING_PREFIX)
            else 1
        )
        self.table.put(_pending_key(number), value, append=True)
        if number % PENDING_JOINED == 0:
            present = sum(_COUNT(value)[0] for _, value in self.table.scan(_PENDING_PREFIX))
            if present < MAX_PENDING_WORDS:
                self._join_pending(number)
            else:
                self._move_pending()

    def _join_pending(self, last: int) -> None:
        keys = [_pending_key(number) for number in range(last + 1 - PENDING_JOINED, last + 1)]
        block = _read(self.table.get_many(keys))
        for key in keys[:-1]:
            self.table.delete(key)
        piece = len(block.heads), block.heads.tobytes(), block.texts.tobytes()
        self.table.put(keys[-1], _value(piece))

    def _move_pending(self) -> None:
        present = [(key, bytes(value)) for key, value in self.table.scan(_PENDING_PREFIX)]
        block = _read([value for _, value in present])
        for key, _ in present:
            self.table.delete(key)
        if len(block.heads):
            heads, texts, ends = block.taken(order_of(block.ids))
            self._append(heads, texts, ends)

    def remove(self, ids: Ids) -> None:
        """Delete the texts of sorted ids, if they have any."""
        if len(ids) == 0:
            return
        if locate(ids, _read(self._pending()).ids)[1].any():
            self._move_pending()
        if self.layout.words == 0:
            return
        starts = distinct(self.layout.starts(ids))
        block = self._read_block(starts)
        keep = np.flatnonzero(~locate(ids, block.ids)[1])
        if len(keep) == len(block.heads):
            return
        bounds = np.searchsorted(block.bucket[keep], np.arange(len(starts) + 1))
        self._put(starts, map(_value, _pieces(*block.taken(keep), bounds)))
        gone = len(block.heads) - len(keep)
        self.layout = self.layout._replace(words=self.layout.words - gone)

    def all(self) -> Iterator[Word]:
        """All texts in order of their ids."""
        pending = _sorted_words(_read(self._pending()))
        return heapq.merge(self._bucket_words(), pending, key=lambda word: word.id)

    def _bucket_words(self) -> Iterator[Word]:
        for key, value in _bucket_values(self.table):
            block = _read([bytes(value)])
            self.layout.verify(key, block.ids)
            yield from _sorted_words(block)

    def _known(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these have a text."""
        if len(ids) == 0:
            return np.zeros(0, np.bool_)
        block = self._read_block(distinct(self.layout.starts(ids)), self._pending())
        known = np.zeros(len(ids), np.bool_)
        at, wanted = locate(ids, block.ids)
        known[at[wanted]] = True
        return known

    def _append(self, heads: NDArray[np.void], texts: bytes, ends: NDArray[np.intp]) -> None:
        """Add sorted words to the buckets, which are split first if there are too few."""
        words = self.layout.words + len(heads)
        bits = (words // BUCKET_WORDS).bit_length()
        if bits > self.layout.bits:
            self._split(bits)
        self._join(heads, texts, ends)
        self.layout = self.layout._replace(words=words)

    def _split(self, bits: int) -> None:
        """Move all words to more buckets."""
        self.layout = self.layout._replace(bits=bits)
        keys = [key for key, _ in _bucket_values(self.table)]
        for i in range(0, len(keys), SLAB_BUCKETS):
            few = keys[i : i + SLAB_BUCKETS]
            block = _read(self.table.get_many(few))
            for key in few:
                self.table.delete(key)
            self._join(*block.taken(order_of(block.ids)))

    def _join(self, heads: NDArray[np.void], texts: bytes, ends: NDArray[np.intp]) -> None:
        """Append sorted words to their buckets."""
        bucket = self.layout.starts(np.ascontiguousarray(heads["id"]))
        starts = distinct(bucket)
        bounds = np.append(np.searchsorted(bucket, starts), len(heads))
        keys = keys_of(starts)
        pending = _pieces(heads, texts, ends, bounds)
        for i in range(0, len(keys), SLAB_BUCKETS):
            few = keys[i : i + SLAB_BUCKETS]
            old = self.table.get_many(few)
            chunks = itertools.islice(pending, len(few))
            # All buckets are joined before the first is put, because a put may move the others.
            joined = [*map(_joined, old, chunks)]
            for key, value in zip(few, joined, strict=True):
                self.table.put(key, value)

    def _read_block(self, starts: Ids, more: Sequence[Buffer] = ()) -> _WordBlock:
        return _read([*self.table.get_many(keys_of(starts)), *more])

    def _put(self, starts: Ids, values: Iterator[bytes]) -> None:
        for key, value in zip(keys_of(starts), values, strict=True):
            if value:
                self.table.put(key, value)
            else:
                self.table.delete(key)


def _pending_key(number: int) -> bytes:
    return _PENDING_PREFIX + number.to_bytes(4)


def _bucket_values(table: Table) -> Iterator[tuple[bytes, Buffer]]:
    """The keys and values of the buckets, without pending words."""
    return itertools.takewhile(lambda pair: not pair[0].startswith(_PENDING_PREFIX), table.scan())


def _joined(old: Buffer, piece: _Piece) -> bytes:
    """A bucket's value with more words appended."""
    more, heads, texts = piece
    if len(old) == 0:
        return b"".join((_PACK(more), heads, texts))
    count = _COUNT(old)[0]
    cut = 4 + count * _HEAD_BYTES
    return b"".join((_PACK(count + more), old[4:cut], heads, old[cut:], texts))


def _sorted_words(block: _WordBlock) -> Iterator[Word]:
    heads, texts, ends = block.taken(order_of(block.ids))
    at = 0
    columns = (heads["id"].tolist(), heads["place"].tolist(), ends.tolist())
    for id_, where, end in zip(*columns, strict=True):
        yield Word(id_, where, texts[at:end])
        at = end
