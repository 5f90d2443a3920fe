"""Normalise text in any script to UTF-8 bytes in which every word is a run of word bytes.

ASCII stays as it is, case included, so that a text gives the same words whether it came as bytes
or as str. Outside ASCII: compatibility forms become their plain letters (fullwidth, mathematical
and circled letters are how spam hides from word lists), case is folded, punctuation becomes a
space, and scripts written without spaces become overlapping pairs of characters: no dictionary is
needed and nothing is lost at a wrong cut. Pure; never raises; linear in the text's length.
"""

from __future__ import annotations

import itertools
import unicodedata
from functools import lru_cache

import regex

from spamnb.mail.charset import Text, non_ascii

_FOREIGN = regex.compile(r"[^\x00-\x7f]+")
_UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u30fc]+"
)
_STACKED = regex.compile(r"(\p{M}{16})\p{M}+")
"""Longer stacks of marks occur in no language, and sorting them makes NFKC quadratic. Measured with
marks of alternating classes: 16,000 took 0.13 s, 64,000 two seconds."""
_MARK = regex.compile(r"\p{M}")
_NO_WORD = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_ANY_UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
)


_SMALL_CAPITALS = "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz"
_PLAIN_LETTERS = str.maketrans(*_SMALL_CAPITALS) | {
    first + letter: chr(ord("a") + letter) for first in (0x1F150, 0x1F170) for letter in range(26)
}
"""letters of a style that NFKC leaves: small capitals; white on black in circles and squares"""


def _pairs(run: str) -> str:
    if len(run) == 1:
        return f" {run} "
    return f" {' '.join(a + b for a, b in itertools.pairwise(run))} "


def _folded(run: str) -> str:
    run = _NO_WORD.sub(" ", run.casefold().translate(_PLAIN_LETTERS))
    if _ANY_UNSPACED.search(run):
        run = _UNSPACED.sub(lambda part: _pairs(part[0]), run)
    return run


_folded_word = lru_cache(maxsize=4096)(_folded)
_WORD_LETTERS = 32
"""the longest run that is cached across messages, so that the cache takes two megabytes at most"""


class _FoldCache(dict[str, str]):
    """A cache of folded runs for one text: words repeat, also in a hostile megabyte."""

    def __missing__(self, run: str) -> str:
        folded = self[run] = (_folded_word if len(run) <= _WORD_LETTERS else _folded)(run)
        return folded


MAX_CHARACTERS = 262_144
"""Characters of a normalised text. U+FDFA alone becomes eighteen; a megabyte took 0.35 s."""
_PIECE = 16_384


def _normal(text: str) -> tuple[str, bool]:
    """Replace compatibility forms by plain letters; also returns whether the text is whole.

    Most texts have no compatibility forms. Looking only at the few characters beyond ASCII is
    enough to find this out, because only marks combine with an ASCII letter; it takes a third of
    the time.
    """
    signs = non_ascii(text)
    marked = _MARK.search(signs) is not None
    if not marked and unicodedata.is_normalized("NFKC", signs):
        return text[:MAX_CHARACTERS], len(text) <= MAX_CHARACTERS
    text = _STACKED.sub(r"\1", text) if marked else text
    pieces, size = [], 0
    for start in range(0, len(text), _PIECE):
        pieces.append(unicodedata.normalize("NFKC", text[start : start + _PIECE]))
        size += len(pieces[-1])
        if size > MAX_CHARACTERS:
            break
    return "".join(pieces)[:MAX_CHARACTERS], size <= MAX_CHARACTERS


def plain(text: str) -> bytes:
    """The text as UTF-8 for the features: every non-ASCII run folded, split and paired."""
    return plain_and_whole(text)[0]


def plain_and_whole(text: Text) -> tuple[bytes, bool]:
    """The same as `plain`, and whether it contains the whole text."""
    if isinstance(text, bytes):
        return text, True
    if text.isascii():
        return text.encode(), True
    folds = _FoldCache()
    normal, is_whole = _normal(text)
    folded: str = _FOREIGN.sub(lambda found: folds[found[0]], normal)
    return folded.encode("utf-8", "replace"), is_whole
