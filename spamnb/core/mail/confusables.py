"""Characters that deceive: remove invisible ones, mark look-alikes, fold text to plain words.

`clean_text` is for a text that is read. `plain` makes UTF-8 bytes of it in which every word is a
run of word bytes, in any script.

ASCII stays as it is, case included, so that a text gives the same words whether it came as bytes
or as str. Outside ASCII: compatibility forms become their plain letters (fullwidth, mathematical
and circled letters are how spam hides from word lists), case is folded, punctuation becomes a
space, and scripts written without spaces become overlapping pairs of characters: no dictionary is
needed and nothing is lost at a wrong cut. Pure; total; linear in the text's length.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from functools import lru_cache
from typing import Final

import regex

from spamnb.core.mail import limits
from spamnb.core.mail.charset import Text, compact_text

_ASCII: Final = bytes(range(128))
_UNSEEN: Final = (
    "\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Control characters, and those that Unicode calls default ignorable: programs show nothing for
them, so they can split a word invisibly."""
ZERO_WIDTH = re.compile(f"[{_UNSEEN}]+")
_EUROPEAN: Final = "[A-Za-z\u00c0-\u024f\u0370-\u052f]"
SPLIT_WORD = re.compile(f"{_EUROPEAN}{ZERO_WIDTH.pattern}{_EUROPEAN}")
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_STYLED: Final = "\U0001d400-\U0001d7ff\uff21-\uff3a\uff41-\uff5a\u24b6-\u24e9\U0001f130-\U0001f189"
LETTERS = re.compile(f"[{_STYLED}]")
STYLED = re.compile(f"[{_STYLED}]{{3}}")
# Letters that look like Latin ones: Cyrillic, Armenian, Cherokee, and some of Greek (kΩ, μm and Δx
# are legitimate). Ranges in `re` take 12 ns a character, properties in `regex` 30.
_LATIN: Final = "A-Za-zÀ-ÖØ-öø-ɏ"
_LOOKS: Final = "\u0400-\u052f\u0531-\u0587\u13a0-\u13ff\uab70-\uabbfΑΒΕΖΗΙΚΜΝΟΡΤΥΧοικνρυ"
# Any character of interest: one search instead of five.
NOTABLE = re.compile(f"[{_LOOKS}{_STYLED}{_UNSEEN}]")
CONTROLS: Final = bytes((*range(9), *range(14, 32), 127))

LOOKS = re.compile(f"[{_LOOKS}]")
# The look-alike comes first: a search that starts at any Latin letter took ten times as long.
MIXED = re.compile(
    f"[{_LOOKS}](?:[\u0300-\u036f]?[{_LATIN}]|(?<=[{_LATIN}].)|(?<=[{_LATIN}][\u0300-\u036f].))"
)

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


def non_ascii(text: str) -> str:
    """The characters beyond ASCII, joined: 1 ns a character of ASCII, with `re` 8."""
    raw = text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    return raw.decode("utf-8", "surrogatepass")


def clean_text(text: Text, marks: set[str]) -> Text:
    """Remove invisible characters from a text; marks their misuse and that of look-alikes.

    A no-break space becomes a space: most html is ASCII but for these, and so it stays bytes.
    """
    if isinstance(text, bytes):
        bare = text.translate(None, CONTROLS)
        if len(bare) < len(text):
            marks.add("text:zero-width")
        return bare
    text = text.replace("\xa0", " ")
    if text.isascii():
        return compact_text(text)
    # each once, in any order: 0.4 us for most texts, 16 ms for 262,144 of them
    signs = "".join(set(non_ascii(text)))
    if NOTABLE.search(signs) is None:
        return text
    if ZERO_WIDTH.search(signs) is not None:
        if SPLIT_WORD.search(text) is not None:
            marks.add("text:zero-width")
        text = ZERO_WIDTH.sub("", text)
    if BIDI.search(signs) is not None:
        marks.add("text:bidi")
    sample = text[: limits.SCRIPT_SAMPLE]
    if LOOKS.search(signs) is not None and MIXED.search(sample) is not None:
        marks.add("text:mixed-script")
    if LETTERS.search(signs) is not None and STYLED.search(sample) is not None:
        marks.add("text:styled-letters")
    return compact_text(text)


def _pairs(run: str) -> str:
    if len(run) == 1:
        return f" {run} "
    return f" {' '.join(a + b for a, b in itertools.pairwise(run))} "


def _folded(run: str) -> str:
    run = _NO_WORD.sub(" ", run.casefold())
    if _ANY_UNSPACED.search(run):
        run = _UNSPACED.sub(lambda part: _pairs(part[0]), run)
    return run


_folded_word = lru_cache(maxsize=4096)(_folded)
_WORD_LETTERS = 32
"""the longest run that is cached across messages, so that the cache takes two megabytes at most"""


class _FoldCache(dict[str, str]):
    """A cache of folded runs for one text: words repeat, and so do those of a hostile megabyte."""

    def __missing__(self, run: str) -> str:
        folded = self[run] = (_folded_word if len(run) <= _WORD_LETTERS else _folded)(run)
        return folded


MAX_CHARACTERS = 262_144
"""Characters of a normalised text. U+FDFA alone becomes eighteen; a megabyte took 0.35 s."""
_PIECE = 16_384


def _normal(text: str) -> tuple[str, bool]:
    """Replace compatibility forms by plain letters; also returns whether the text is whole.

    Most texts have none; the few characters beyond ASCII show this, because only marks combine
    with an ASCII letter. A third of the time.
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
    """The text as UTF-8 for `extract`: every non-ASCII run folded, split and paired."""
    return plain_and_whole(text)[0]


def plain_and_whole(text: str) -> tuple[bytes, bool]:
    """The same as `plain`, and whether it contains the whole text."""
    if text.isascii():
        return text.encode(), True
    folds = _FoldCache()
    normal, is_whole = _normal(text)
    folded: str = _FOREIGN.sub(lambda found: folds[found[0]], normal)
    return folded.encode("utf-8", "replace"), is_whole
