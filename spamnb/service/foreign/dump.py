"""The values that all readers of dumps give, and the input that they share.

A reader takes a file and a `DumpFacts`, and yields an `DumpEntry` for each word. It fills the facts
meanwhile, so they are complete after the last entry. A line that it cannot read is counted, never
an error. Must not know the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import BinaryIO, NamedTuple

from spamnb.core.features.locations import TokenLocation
from spamnb.core.mail.charset import CONTROLS, ZERO_WIDTH

LINE = 4096
"""Most bytes of a line. The rest of a longer line is a line of its own, without valid counts."""
_DIGITS = 10
"""A number of fewer digits is below `MOST_COUNT`."""
MOST_COUNT = (1 << 32) - 1
"""Larger counts become this one; the mapper limits them to the number of messages."""

Place = tuple[TokenLocation, bytes]
"""a location of this model, and the name of a header in it"""


class DumpEntry(NamedTuple):
    """A word of a dump; it is counted at each of these places."""

    places: tuple[Place, ...]
    """empty if this model has no such place"""
    word: bytes
    ham: int
    spam: int
    day: int
    """last seen, days since 2000-01-01; 0 if the dump does not tell"""


@dataclass(slots=True)
class DumpFacts:
    """What holds for a whole dump."""

    ham: int = 0
    """messages that were trained as ham; `ham` and `spam` are 0 if the dump does not tell"""
    spam: int = 0
    skipped: int = 0
    """lines that could not be read"""
    cleaned: int = 0
    """words with characters that are invisible in mail, which are removed"""
    weight: float = 1.0
    """the factor of all counts: less than 1 if they do not count messages"""


def places(*locations: TokenLocation) -> tuple[Place, ...]:
    """Return these locations as places without a name."""
    return tuple((location, b"") for location in locations)


TEXT = places(TokenLocation.BODY, TokenLocation.URL)
"""Places of a word of the text: other filters count words in text and in links together
(docs/decisions/0048)."""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; a long one in parts."""
    for line in iter(partial(file.readline, LINE), b""):
        yield line.rstrip(b"\r\n")


def cleaned(entries: Iterable[DumpEntry], facts: DumpFacts) -> Iterator[DumpEntry]:
    """Remove from words what the reader of mail removes: control and invisible characters.

    A word with a NUL in it would else be read as two words, which no mail has.
    """
    for entry in entries:
        word = _without_unseen(entry.word)
        facts.cleaned += word != entry.word
        yield entry._replace(word=word)


def _without_unseen(word: bytes) -> bytes:
    bare = word.translate(None, CONTROLS)
    if bare.isascii():
        return bare
    try:
        return ZERO_WIDTH.sub("", bare.decode()).encode()
    except UnicodeDecodeError:
        return bare


@lru_cache(maxsize=4096)
def count(text: bytes) -> int:
    """Return a count; ValueError for what is no whole number of 0 or more."""
    if not text.isdigit():
        raise ValueError(f"{text[:20]!r} is not a count")
    return int(text) if len(text) < _DIGITS else min(int(text), MOST_COUNT)
