"""Extract feature ids: from the fields of many messages to arrays of 64-bit ids, in numpy.

Words and lines are found and hashed for a whole batch; no Python loop handles single ones. Must not
know what a model does with the ids.

A *word* is a run of letters, digits, `$`, `!`, `%` and any byte beyond ASCII; single dots, dashes,
underscores, apostrophes and at signs inside join its parts. Each word gives: the word itself,
folded to lower case; if it has capitals, also the word as it is written (1-AUC 0.050, else 0.054 %,
decision 0001); if it has three parts or more, its last two (`example.com` of a host) or, if it
begins with a digit, all but the last (the net of an address). A word shorter than 3 bytes is left
out; of a word longer than 64, only the first 12 bytes are kept, marked as cut. A *line* is a run of
any bytes but the line feed; joints and capitals have no meaning in it, and a long line loses its
end. A *rough* line has `a` for each run of letters and `9` for each run of digits: it shows the
signs, and where letters and digits stand between them.

Ids. A word is read as 32-bit little-endian pieces m_i, and h = seed + sum k_i m_i mod 2^64 with
secret random k_i; the upper half of h is strongly universal: two given words collide with
probability 2^-32 over the keys. Two independent halves make 2^-64. So a sender cannot prepare words
that collide without knowing the key, whatever their structure. This is proven, while a secret
polynomial mod 2^64 fails on Thue-Morse words under every base. This hash is also faster, because
the work is done per word and not per byte: 8 us a message against 20 for prefix sums over symbols.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.model import events
from spamnb.model.events import Blocks, changes, constant, merged_order, order_of
from spamnb.model.tokens import ROUGH, SHAPES, WRITTEN, Field, TokenLocation, digest_field

MIN_BYTES = 3
MAX_BYTES = 64
CUT_BYTES = 12
LINE_BYTES = 128
"""A longer line is cut; only lines with the names of all headers are often longer."""
ROUGH_BYTES = 100
_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_GLUE = b".-_'@"
_WORD = _CAPITALS.lower() + b"0123456789$!%"
_END = b"\n" * 8
"""follows the texts, so that the last word ends, and can be read in pieces of eight bytes, too"""

_LETTER, _DIGIT = b"a", b"9"
_BETWEEN = b"\xff"
"""separates texts; a byte that no shape contains"""

SEPARATOR, JOINT, PART, CAPITAL = range(4)
"""classes of bytes; the parts of words consist of bytes of the last two"""


def _classes() -> bytes:
    table = bytearray(128) + bytes([PART]) * 128
    for kind, symbols in ((JOINT, _GLUE), (PART, _WORD), (CAPITAL, _CAPITALS)):
        for symbol in symbols:
            table[symbol] = kind
    return bytes(table)


_WORD_CLASSES = _classes()
_LINE_CLASSES = bytes(SEPARATOR if symbol == ord("\n") else PART for symbol in range(256))


def _rough_classes() -> bytes:
    table = bytearray(range(128)) + _LETTER * 128
    for symbol in _CAPITALS + _CAPITALS.lower():
        table[symbol] = _LETTER[0]
    for symbol in b"0123456789":
        table[symbol] = _DIGIT[0]
    return bytes(table)


_ROUGH_CLASSES = _rough_classes()
_REPEATED = bytes(symbol not in _LETTER + _DIGIT for symbol in range(256))
"""[byte] whether repeats of it are kept"""


class Spans(NamedTuple):
    """Pieces of some texts: the bytes that they are in, and edges and text of each piece."""

    text: bytes
    """the joined texts as they are, followed by the same with their words in lower case"""
    starts: I64
    ends: I64
    owner: I64
    """the number of the text"""
    cut: slice
    """the words of which only the first bytes are left"""
    places: I64
    """where each piece begins in its own text"""


def _edges(kind: NDArray[np.uint8]) -> tuple[I64, I64, I64]:
    """Starts and ends of words and lines, and the joints in words.

    `kind` has a separator before the text. So where the inside of a word begins, the index of the
    edge is that of the first byte; where it ends, that of the byte after it.
    """
    inside = kind >= PART
    joint = kind[1:-1] == JOINT
    joint &= inside[:-2]
    joint &= inside[2:]
    inside[1:-1] |= joint
    edges = (inside[1:] != inside[:-1]).nonzero()[0]
    return edges[::2], edges[1::2], joint.nonzero()[0]


def _tails(text: bytes, joints: I64, starts: I64, ends: I64) -> tuple[I64, I64, I64]:
    """The tails of words with three parts or more: starts, ends, and the index of the word."""
    # Joints are few, so the words of the joints are looked up, not the joints of all words.
    whole = starts.searchsorted(joints, side="right") - 1
    same = whole[1:] == whole[:-1]
    same[:-1] &= ~same[1:]
    second = same.nonzero()[0]
    whole, before_last, last = whole.take(second), joints.take(second), joints.take(second + 1)
    start = starts.take(whole)
    number = np.frombuffer(text, np.uint8).take(start) < ord("A")
    return (
        np.where(number, start, before_last + 1),
        np.where(number, last, ends.take(whole)),
        whole,
    )


def _has_capitals(kind: NDArray[np.uint8], starts: I64, ends: I64) -> NDArray[np.bool_]:
    """Whether there are capitals between these edges; none are beyond the end of `kind`."""
    # Running count of capitals. numpy sums 32 bits in a third of the time of bytes.
    upto = (kind == CAPITAL).view(np.uint8).cumsum(dtype=np.int32)
    return np.asarray(upto.take(ends, mode="clip") != upto.take(starts, mode="clip"))


def _by_size(size: I64, capitals: NDArray[np.bool_]) -> tuple[I64, I64, I64]:
    """Indexes of the words that fit, of those that are too long, and of those with capitals."""
    fits = size <= MAX_BYTES
    long = (~fits).nonzero()[0]
    fits &= size >= MIN_BYTES
    return fits.nonzero()[0], long, (fits & capitals).nonzero()[0]


def rough(texts: Iterable[bytes]) -> list[bytes]:
    """The texts with `a` for each run of letters, and `9` for each run of digits.

    8 us for 1,300 bytes; two regular expressions take 22, `replace` in steps 27.
    """
    shapes = _BETWEEN.join([b"", *[text.translate(_ROUGH_CLASSES) for text in texts]])
    codes = np.frombuffer(shapes, np.uint8)
    kept = codes[1:] != codes[:-1]
    kept |= np.frombuffer(shapes.translate(_REPEATED), np.bool_)[1:]
    return codes[1:].compress(kept).tobytes().split(_BETWEEN)


def spans_of(words: Sequence[bytes], lines: Sequence[bytes], coarse: Sequence[bytes]) -> Spans:
    """Cut the first texts into words, the others into lines; those of `coarse` are made rough."""
    texts = [*words, *lines, *rough(coarse)]
    ends_of_texts = accumulate([len(text) + 1 for text in texts], initial=0)
    begins = np.fromiter(ends_of_texts, np.int64, len(texts) + 1)
    text = b"\n".join((*texts, _END))
    middle = int(begins[len(words)])
    by_word, by_line = text[:middle], text[middle:]
    classes = b"\0", by_word.translate(_WORD_CLASSES), by_line.translate(_LINE_CLASSES)
    kind = np.frombuffer(b"".join(classes), np.uint8)
    starts, ends, joints = _edges(kind)
    bounds = starts.searchsorted(begins)
    owner = np.arange(len(texts)).repeat(bounds[1:] - bounds[:-1])
    # After words and lines come the tails of words.
    tails, tail_ends, whole = _tails(text, joints, starts, ends)
    starts, ends = np.concatenate((starts, tails)), np.concatenate((ends, tail_ends))
    owner = np.concatenate((owner, owner.take(whole)))
    line, shape, tail = bounds.take((len(words), len(words) + len(lines), -1)).tolist()
    for first, most in ((line, LINE_BYTES), (shape, ROUGH_BYTES)):
        np.minimum(ends[first:tail], starts[first:tail] + most, out=ends[first:tail])
    size = ends - starts
    size[line:tail] = MIN_BYTES  # lines of any size are features
    capitals = _has_capitals(kind[: middle + 1], starts, ends)
    folded, long, shown = _by_size(size, capitals)
    taken = np.concatenate((folded, long, shown))
    starts, ends, owner = starts.take(taken), ends.take(taken), owner.take(taken)
    places = starts - begins.take(owner)
    cut = slice(len(folded), len(folded) + len(long))
    ends[cut] = starts[cut] + CUT_BYTES
    starts[: cut.stop] += len(text)
    ends[: cut.stop] += len(text)
    return Spans(b"".join((text, by_word.lower(), by_line)), starts, ends, owner, cut, places)


U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

_PIECES = LINE_BYTES // 8
_LOW_HALF, _HIGH_HALF = constant(0xFFFFFFFF), constant(0xFFFFFFFF_00000000)
_HALF = constant(32)
_SHIFTS = constant(30), constant(27), constant(31)
_FACTORS = constant(0xBF58476D1CE4E5B9), constant(0x94D049BB133111EB)
"""of splitmix64"""
_EIGHT_BYTES = np.dtype("<u8")
_FIRST_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_CUT_NAME = b"cut:"

SEEDS_KEPT = 1024
"""Senders choose header names, so at most so many seeds are cached; then the cache starts again.
Adding a seed copies all seeds, 50 us at most (130 with 4,096); 6,046 messages of some years have
342."""


class _Seeds(NamedTuple):
    """The seeds of the locations seen so far, and of each header name in HEADER."""

    line: dict[tuple[TokenLocation, bytes], int]
    sums: U64
    """[high or low, line] the initial values of the two sums of a word"""
    sent: NDArray[np.uint16]
    """[line] the group: 0 for what was written, 1 for how it was sent"""
    how: NDArray[np.uint8]
    """[line] WORDS, LINES or ROUGH_LINES"""


WORDS, LINES, ROUGH_LINES = range(3)
"""how a field is cut into features"""


def _how_cut(where: tuple[TokenLocation, bytes]) -> int:
    return ROUGH_LINES if where in ROUGH else LINES if where[0] in SHAPES else WORDS


_LOCATION_AND_NAME, _TEXT = itemgetter(0, 1), itemgetter(2)
"""parts of a field"""
_NO_SEEDS = _Seeds({}, np.zeros((2, 0), np.uint64), np.zeros(0, np.uint16), np.zeros(0, np.uint8))


class Key:
    """The secret numbers of one model's features, all derived from its 32-byte key.

    Threads share it: the cache is replaced as a whole, so each thread sees a consistent one.
    """

    def __init__(self, secret: bytes) -> None:
        random_bytes = hashlib.shake_256(b"spamnb words 1" + secret).digest(8 * 4 * _PIECES)
        numbers = np.frombuffer(random_bytes, "<u8").astype(np.uint64).reshape(_PIECES, 2, 2)
        self.pieces = np.ascontiguousarray(numbers.transpose(2, 1, 0))
        """[first or second half of a piece's eight bytes, high or low sum, piece]"""
        self.first_pieces = tuple(self.pieces[:, :, :1])
        self._secret = hashlib.blake2b(secret, digest_size=32).digest()
        self._seeds = _NO_SEEDS
        self.cut = self._seed_of((TokenLocation.BODY, _CUT_NAME))[:, None]
        """[high or low, 1] added to the sums of a word that was cut"""

    def seeds(self, fields: list[Field]) -> tuple[_Seeds, I64]:
        """The seeds, and the line of each field in them."""
        seeds, where = self._seeds, list(map(_LOCATION_AND_NAME, fields))
        found = list(map(seeds.line.get, where))
        if None in found:
            seeds = self._seeds = self._with(seeds, set(where))
            found = list(map(seeds.line.get, where))
        return seeds, np.fromiter(found, np.intp, len(found))

    def _with(self, seeds: _Seeds, where: set[tuple[TokenLocation, bytes]]) -> _Seeds:
        if len(seeds.line) > SEEDS_KEPT:
            seeds = _NO_SEEDS
        new = where - seeds.line.keys()
        line = seeds.line | {location: at for at, location in enumerate(new, len(seeds.line))}
        sent = np.array([location not in WRITTEN for location, _ in new], np.uint16)
        return _Seeds(
            line,
            np.column_stack((seeds.sums, *map(self._seed_of, new))),
            np.concatenate((seeds.sent, sent)),
            np.concatenate(
                (seeds.how, np.array([_how_cut(location) for location in new], np.uint8))
            ),
        )

    def _seed_of(self, location: tuple[TokenLocation, bytes]) -> U64:
        text = bytes([location[0]]) + location[1]
        random_bytes = hashlib.blake2b(text, key=self._secret, digest_size=16).digest()
        return np.frombuffer(random_bytes, "<u8").astype(np.uint64)

    def fingerprint(self) -> bytes:
        """16 bytes that identify the key without revealing it."""
        return hashlib.blake2b(b"fingerprint", key=self._secret, digest_size=16).digest()


def digest_id(key: Key, digest: bytes) -> np.uint64:
    """The id of the feature that only this message has."""
    location, _, word = digest_field(digest)
    return np.uint64(id_of(key, location, word))


GROUPS = 2
TEXT_BYTES = 255
"""The longest text in the vocabulary, with its header's name."""


class Words(NamedTuple):
    """Texts of ids (sorted, distinct): location and size of each, and all texts joined."""

    ids: U64
    locations: NDArray[np.uint8]
    sizes: NDArray[np.uint8]
    texts: bytes


@dataclass(frozen=True, slots=True)
class Features:
    """The features of some messages: `ids[rows[offsets[m]:offsets[m + 1]]]` are those of message m.

    `ids` are sorted and distinct over the batch; the `rows` of a message are distinct, and sorted
    within each group, one group after the other. `_sample` has one word of each id, for its text.
    """

    ids: U64
    rows: I64
    offsets: I64
    sizes: I64
    """[messages * groups] how many features each group of each message has"""
    blocks: Blocks
    """for each row, the number of the block of visible text in which the message has the feature
    first; 0 for all that is not in the visible text"""
    _at: I64
    """where the words of each row begin, row after row"""
    _end: int
    """where the words of the last row end"""
    _sample: I64
    _words: _Words

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def times(self) -> NDArray[np.uint32]:
        """How often the message contains the feature, row by row."""
        return np.diff(self._at, append=self._end).astype(np.uint32)

    def times_of(self, message: int) -> NDArray[np.uint32]:
        """How often one message contains each of its features."""
        return self.times[self.offsets[message] : self.offsets[message + 1]]

    def blocks_of(self, message: int) -> Blocks | None:
        """The blocks of one message; None if its text is a single one."""
        return several(self.blocks[self.offsets[message] : self.offsets[message + 1]])

    def of(self, message: int) -> I64:
        """The rows of one message."""
        return self.rows[self.offsets[message] : self.offsets[message + 1]]

    def by_group(self, message: int) -> tuple[U64, ...]:
        """The ids of one message, a part for each group."""
        ids = self.ids.take(self.of(message))
        middle = int(self.sizes[GROUPS * message])
        return ids[:middle], ids[middle:]

    def beyond(self, most: tuple[int, ...]) -> list[int]:
        """The messages that have more features in a group than allowed."""
        if max(self.sizes.tolist(), default=0) <= min(most):
            return []  # the usual case, checked before arrays are made
        large = self.sizes.reshape(-1, GROUPS) > np.array(most)
        found: list[int] = np.unique(large.nonzero()[0]).tolist()
        return found

    def bounded(self, most: tuple[int, ...], always: U64) -> Features:
        """Keep at most so many features of each group of each message, those with the smallest ids.

        The ids in `always` are kept in addition.

        Ids are keyed hashes, so this is a random sample that a sender cannot predict: it does not
        depend on where in the message a word is; evidence is averaged over a group, so its mean
        stays the same; and messages that share words share those of them that are kept.
        """
        limits = np.tile(most, len(self))
        if (self.sizes <= limits).all():
            return self
        rank = np.arange(len(self.rows)) - (self.sizes.cumsum() - self.sizes).repeat(self.sizes)
        kept = (rank < limits.repeat(self.sizes)) | np.isin(self.ids, always)[self.rows]
        times, rows = self.times[kept].astype(np.int64), self.rows[kept]
        used = np.zeros(len(self.ids), np.bool_)
        used[rows] = True
        ends = np.concatenate(([0], kept.cumsum()))[self.sizes.cumsum()]
        sizes = np.diff(ends, prepend=0)
        return Features(
            ids=self.ids[used],
            rows=(used.cumsum() - 1).take(rows),
            offsets=np.concatenate(([0], sizes.cumsum()[GROUPS - 1 :: GROUPS])),
            sizes=sizes,
            blocks=self.blocks[kept],
            _at=times.cumsum() - times,
            _end=int(times.sum()),
            _sample=self._sample[used],
            _words=self._words,
        )

    def word(self, row: int) -> tuple[TokenLocation, bytes]:
        """The location and text of a feature of the batch."""
        return self._words.text(int(self._sample[row]))

    def words(self, ids: U64) -> Words:
        """The texts of those of these ids that are in the batch."""
        at, here = events.locate(self.ids, ids)
        rows = at[here]
        return self._words.texts(self.ids.take(rows), self._sample.take(rows))


def several(blocks: Blocks | None) -> Blocks | None:
    """The blocks of a message; None if its text is a single one."""
    return blocks if blocks is not None and blocks.max(initial=0) > 1 else None


@dataclass(slots=True)
class _Words:
    """All words of a batch: their positions in the text, and their fields."""

    text_bytes: bytes
    """the text of the words, then the text of the lines"""
    starts: I64
    ends: I64
    field: I64
    cut: slice
    places: I64
    fields: list[Field]

    def text(self, index: int) -> tuple[TokenLocation, bytes]:
        """Location and text of one word, as shown to users."""
        text = self.text_bytes[self.starts[index] : self.ends[index]]
        location, name, _ = self.fields[self.field[index]]
        return location, (name + b":")[: TEXT_BYTES - MAX_BYTES] + text if name else text

    def texts(self, ids: U64, index: I64) -> Words:
        """The same as `text` for many words."""
        field = self.field[index]
        used = np.zeros(len(self.fields), np.bool_)
        used[field] = True
        field = (used.cumsum() - 1).take(field)
        about = [self.fields[number] for number in used.nonzero()[0].tolist()]
        prefixes = [name + b":" if name else b"" for _, name, _ in about]
        length = np.fromiter(map(len, prefixes), np.int64, len(prefixes))
        # Two pieces for each word: the name before it, and itself.
        at, size = np.empty((2, len(index), 2), np.int64)
        at[:, 0], at[:, 1] = (length.cumsum() - length).take(field), self.starts[index]
        size[:, 0] = np.minimum(length, TEXT_BYTES - MAX_BYTES).take(field)
        size[:, 1] = self.ends[index] - at[:, 1]
        # One array to take from: the names, then the text.
        at[:, 1] += int(length.sum())
        taken = b"".join((*prefixes, self.text_bytes))
        locations = np.frombuffer(bytes([location for location, _, _ in about]), np.uint8)
        return Words(
            ids,
            locations.take(field),
            size.sum(axis=1).astype(np.uint8),
            join_pieces(np.frombuffer(taken, np.uint8), at.ravel(), size.ravel()),
        )


def distinct(parts: Sequence[U64]) -> tuple[U64, list[NDArray[np.int32]]]:
    """All ids of all parts, sorted and distinct, and the positions of each part's ids in them.

    Most parts are sorted and need only be merged; `np.unique` takes three times as long.
    """
    if len(parts) == 1:
        ids = parts[0]
        if (ids[1:] > ids[:-1]).all():
            return ids, [np.arange(len(ids), dtype=np.int32)]
    every = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
    order = merged_order(every)
    # Bulk training brings 2.7 million ids: arrays are released as soon as they are not needed.
    every = every.take(order)
    first = changes(every)
    every = every[first]
    location = np.empty(len(first), np.int32)
    location[order] = np.cumsum(first, dtype=np.int32) - 1
    ends = itertools.accumulate(map(len, parts))
    return every, [location[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]


_JOINED_PIECES = 8192
"""Pieces joined in one step, which needs an index of eight bytes for each byte of the pieces."""


def join_pieces(source: NDArray[np.uint8], starts: I64, sizes: I64) -> bytes:
    """Join pieces of an array."""
    parts = []
    for at in range(0, len(sizes), _JOINED_PIECES):
        size = sizes[at : at + _JOINED_PIECES]
        ends = np.cumsum(size)
        index = np.repeat(starts[at : at + _JOINED_PIECES] - (ends - size), size)
        parts.append(source.take(index + np.arange(len(index))).tobytes())
    return b"".join(parts)


def _cut(fields: list[Field], how: list[int]) -> _Words:
    """Cut fields, which are sorted by how they are cut."""
    texts = list(map(_TEXT, fields))
    lines = how.count(WORDS)
    shapes = lines + how.count(LINES)
    return _Words(*spans_of(texts[:lines], texts[lines:shapes], texts[shapes:]), fields)


def _finish(sums: U64) -> U64:
    """The finaliser of splitmix64: a bijection, so it adds no collisions, and mixes the bits."""
    first, second, third = _SHIFTS
    sums ^= sums >> first
    sums *= _FACTORS[0]
    sums ^= sums >> second
    sums *= _FACTORS[1]
    sums ^= sums >> third
    return sums


def _at_any_byte(text: bytes) -> U64:
    """The text as overlapping 64-bit little-endian pieces, one for each byte."""
    return np.ndarray((len(text) - 7,), _EIGHT_BYTES, text, strides=(1,))


def _hash(key: Key, text: bytes, starts: I64, sizes: I64, seeds: U64) -> U64:
    """Ids of the words; `seeds` is [2, words], changed in place."""
    pieces = _at_any_byte(text)
    first, second = key.first_pieces
    seeds += _partial_sums(pieces, starts, sizes, first, second)
    longer = (sizes > 8).nonzero()[0]
    if len(longer):
        # All later pieces together: a loop over the eight of a word took twice as long.
        count = (sizes.take(longer) - 1) >> 3
        stop = count.cumsum()
        nth = np.arange(1, int(stop[-1]) + 1) - (stop - count).repeat(count)
        owner = longer.repeat(count)
        done = nth << 3
        at, left = starts.take(owner) + done, sizes.take(owner) - done
        first, second = key.pieces.take(nth, 2)
        more = _partial_sums(pieces, at, left, first, second)
        for sums, some in zip(seeds, np.add.reduceat(more, stop - count, axis=1), strict=True):
            sums[longer] += some
    high, low = seeds
    high &= _HIGH_HALF
    low >>= _HALF
    high |= low
    return _finish(high)


def _partial_sums(pieces: U64, at: I64, left: I64, first: U64, second: U64) -> U64:
    """[2, pieces] what the eight bytes at each place, or those that are left, add to the sums."""
    word = pieces[at] & _FIRST_BYTES.take(left, mode="clip")
    more = (word & _LOW_HALF) * first
    more += (word >> _HALF) * second
    return more


def _word_ids(key: Key, words: _Words, seeds: U64) -> U64:
    """Ids of the words; `seeds` is [2, words], changed in place."""
    seeds[:, words.cut] += key.cut
    return _hash(key, words.text_bytes, words.starts, words.ends - words.starts, seeds)


def id_of(key: Key, location: TokenLocation, word: bytes) -> int:
    """The id of one word that has no capitals and at most two parts."""
    return int(extract(key, [[(location, b"", word)]]).ids[0])


def ids_of(key: Key, tokens: Sequence[Field]) -> U64:
    """The ids of words and lines that are features already: they are not cut or folded again."""
    seeds, line = key.seeds(list(tokens))
    texts = [text for _, _, text in tokens]
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    return _hash(
        key, b"".join((*texts, bytes(8))), sizes.cumsum() - sizes, sizes, seeds.sums.take(line, 1)
    )


BLOCK_BYTES = 256
"""of visible text, some forty words"""
MOST_BLOCKS = 127
"""in a message: their numbers take a byte each in journal and history"""
_IN_TEXT = frozenset((TokenLocation.BODY, TokenLocation.URL))
"""What has a place in the text. With the links outside, a third of the spam below 3,000 words of
others' mail is delivered: links of the good text count for every passage (docs/decisions/0079)."""


def _blocks(words: _Words, messages: Sequence[list[Field]], by_cut: NDArray[np.intp]) -> Blocks:
    """The block of each word of the visible text and of its links, from 1; 0 for all else.

    The texts of a message follow one another, and each begins with a new block. Links have no place
    in the text: they are spread over its blocks in their order.
    """
    blocks = np.zeros(len(words.field), np.uint8)
    numbers: list[int] = []
    lines: list[tuple[float, float]] = []
    """of each text or its links: first block, and blocks for each byte"""
    at = 0
    for fields in messages:
        end = last = 0
        found = []
        for number, (location, _, text) in enumerate(fields, at):
            if location is TokenLocation.BODY:
                last = -(-len(text) // BLOCK_BYTES)
                end += last
            if last and location in _IN_TEXT:
                numbers.append(number)
                found.append((end - last, last / (len(text) or 1)))
        at += len(fields)
        step = -(-end // MOST_BLOCKS)
        lines += [(begin / step, rate / step) for begin, rate in found]
    if not lines:
        return blocks
    of_field = np.full(at, -1)
    of_field[numbers] = np.arange(len(numbers))
    of_word = of_field.take(by_cut).take(words.field)
    in_text = (of_word >= 0).nonzero()[0]
    begin, rate = np.array(lines).T.take(of_word.take(in_text), axis=1)
    blocks[in_text] = begin + words.places.take(in_text) * rate + 1
    return blocks


def text_of_blocks(fields: Sequence[Field], first: int, count: int) -> bytes:
    """The visible text of some blocks of a message, which are numbered from 1."""
    texts = [text for location, _, text in fields if location is TokenLocation.BODY]
    sizes = [-(-len(text) // BLOCK_BYTES) for text in texts]
    step = -(-sum(sizes) // MOST_BLOCKS)
    begin, end = (first - 1) * step, (first - 1 + count) * step
    found, at = [], 0
    for text, size in zip(texts, sizes, strict=True):
        places = [(edge - at) * len(text) // size if size else 0 for edge in (begin, end)]
        start, stop = (min(max(place, 0), len(text)) for place in places)
        found.append(text[start:stop].strip())
        at += size
    return b"\n\n".join(filter(None, found))


def extract(key: Key, messages: Sequence[list[Field]]) -> Features:
    """The features of these messages. Memory: about 20 bytes for each byte of their text."""
    fields = list(itertools.chain.from_iterable(messages))
    seeds, line = key.seeds(fields)
    how = seeds.how.take(line)
    by_cut = how.argsort(kind="stable")
    fields, line = [fields[number] for number in by_cut.tolist()], line.take(by_cut)
    words = _cut(fields, how.tolist())
    ids = _word_ids(key, words, seeds.sums.take(line.take(words.field), 1))
    order = order_of(ids)
    ids = ids.take(order)
    new = changes(ids)
    row = new.cumsum() - 1
    first = new.nonzero()[0]
    # A slot is one group of one message. numpy sorts such small numbers by counting, and the sort
    # is stable, so the rows of a slot stay sorted.
    slot = np.arange(0, 2 * len(messages), 2).repeat(list(map(len, messages)))
    slot = slot.take(by_cut) | seeds.sent.take(line)
    slot = slot.astype(np.uint16 if len(messages) < 1 << 15 else np.int64)
    slot = slot.take(words.field.take(order))
    by_slot = slot.argsort(kind="stable")
    slot, row = slot.take(by_slot), row.take(by_slot)
    another = changes(row)
    another[1:] |= slot[1:] != slot[:-1]
    at = another.nonzero()[0]
    sample = order.take(first)
    blocks = _blocks(words, messages, by_cut).take(order.take(by_slot.take(at)))
    ends = slot.take(at).searchsorted(np.arange(2 * len(messages) + 1))
    return Features(
        ids=ids.take(first),
        rows=row.take(at),
        offsets=ends[::2],
        _at=at,
        _end=len(words.starts),
        sizes=ends[1:] - ends[:-1],
        blocks=blocks,
        _sample=sample,
        _words=words,
    )
