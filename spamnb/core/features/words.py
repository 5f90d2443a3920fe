"""Split texts into words, in numpy: no Python loop handles single words.

A *word* is a run of letters, digits and any byte beyond ASCII; single dots, dashes, underscores,
apostrophes and at signs inside join its parts. Of each word come: the word itself, folded to lower
case; if it has capitals, also as it is written (1-AUC 0.050, else 0.054 %, decision 0001); if
it has three parts or more, its last two (`example.com` of a host) or, if it begins with a digit,
all but the last (the net of an address). Shorter than 3 bytes: no word; longer than 64: its first
12 bytes, marked as cut.

Must not know locations, hashing or the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

MIN_BYTES = 3
MAX_BYTES = 64
CUT_BYTES = 12
_GLUE = b".-_'@"
_WORD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789$!%"


def _classes() -> bytes:
    """Class of each byte: 0 ends a word, 1 is part of it, 2 joins two parts."""
    table = bytearray(128) + bytes([1]) * 128
    for symbol in _WORD:
        table[symbol] = 1
    for symbol in _GLUE:
        table[symbol] = 2
    return bytes(table)


_CLASSES = _classes()
_FIRST_CAPITAL, _CAPITALS = np.uint8(ord("A")), 26


class Spans(NamedTuple):
    """Pieces of some texts: the bytes that they are in, and edges and text of each piece."""

    text: bytes
    """words: the joined texts as they are, followed by the same in lower case"""
    starts: I64
    ends: I64
    owner: I64
    """the number of the text"""
    cut: slice = slice(0)
    """the words of which only the first bytes are left"""


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


def _word_edges(text: bytes) -> tuple[I64, I64]:
    """The edges of whole words, and the positions of the joints in them."""
    kind = np.frombuffer(text.translate(_CLASSES), np.uint8)
    inside = kind == 1
    joint = kind[1:-1] == 2
    joint &= inside[:-2]
    joint &= inside[2:]
    inside[1:-1] |= joint
    return (inside[1:] != inside[:-1]).nonzero()[0] + 1, joint.nonzero()[0] + 1


def words_of(texts: Sequence[bytes], after: bytes = b"") -> Spans:
    """Split texts; `after` follows them in the text of the result, unsplit."""
    # Separators at both ends give every word edges.
    text = b"\n".join((b"", *texts, b"_" + b"\0" * 16))
    edges, joints = _word_edges(text)
    starts, ends = edges[::2], edges[1::2]
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    bounds = starts.searchsorted(sizes.cumsum() + np.arange(2, len(texts) + 2))
    bounds[1:] -= bounds[:-1].copy()
    owner = np.arange(len(texts)).repeat(bounds)
    *tails, whole = _tails(text, joints, starts, ends)
    spans = np.concatenate(((starts, ends, owner), (*tails, owner.take(whole))), axis=1)
    starts, ends, _ = spans
    size = ends - starts
    fits = size <= MAX_BYTES
    long = (~fits).nonzero()[0]
    fits &= size >= MIN_BYTES
    # Running count of capitals. numpy sums 32 bits in a third of the time of bytes.
    capital = np.frombuffer(text, np.uint8) - _FIRST_CAPITAL < _CAPITALS
    upto = capital.view(np.uint8).cumsum(dtype=np.int32)
    # The byte after a word is a separator or a joint, and no capital.
    shown = upto.take(ends) != upto.take(starts - 1)
    shown &= fits
    folded, shown = fits.nonzero()[0], shown.nonzero()[0]
    starts, ends, owner = spans.take(np.concatenate((folded, long, shown)), 1)
    cut = slice(len(folded), len(folded) + len(long))
    ends[cut] = starts[cut] + CUT_BYTES
    starts[: cut.stop] += len(text)
    ends[: cut.stop] += len(text)
    return Spans(b"".join((text, text.lower(), after)), starts, ends, owner, cut)
