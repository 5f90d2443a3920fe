"""Cut texts into words or lines, in numpy: no Python loop handles single ones.

A *word* is a run of letters, digits, `$`, `!`, `%` and any byte beyond ASCII; single dots, dashes,
underscores, apostrophes and at signs inside join its parts. Each word gives: the word itself,
folded to lower case; if it has capitals, also the word as it is written (1-AUC 0.050, else 0.054 %,
decision 0001); if it has three parts or more, its last two (`example.com` of a host) or, if it
begins with a digit, all but the last (the net of an address). A word shorter than 3 bytes is left
out; of a word longer than 64, only the first 12 bytes are kept, marked as cut.

A *line* is a run of any bytes but the line feed, of at least one byte; joints and capitals have no
meaning in it, and a long line loses its end. So words and lines are found in one pass.

A *rough* line has `a` for each run of letters and `9` for each run of digits: it shows the signs,
and where letters and digits stand between them.

Must not know locations, hashing or the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

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
    starts, ends = starts.take(taken), ends.take(taken)
    cut = slice(len(folded), len(folded) + len(long))
    ends[cut] = starts[cut] + CUT_BYTES
    starts[: cut.stop] += len(text)
    ends[: cut.stop] += len(text)
    return Spans(b"".join((text, by_word.lower(), by_line)), starts, ends, owner.take(taken), cut)
