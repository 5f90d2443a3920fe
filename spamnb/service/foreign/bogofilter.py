"""Read a word list of bogofilter, as `bogoutil -d wordlist.db` writes it.

A line is `WORD SPAM HAM DATE`; the prefix of a word tells its place. It counts messages, not
occurrences. Words of a name that begins with a dot hold facts: `.MSG_COUNT` the messages trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from typing import BinaryIO

from spamnb.core.features.locations import TokenLocation
from spamnb.service.foreign.dump import (
    TEXT,
    DumpEntry,
    DumpFacts,
    Place,
    count,
    lines_of,
    places,
)

HEADERS: tuple[Place, ...] = (
    *places(TokenLocation.CONTENT, TokenLocation.ID, TokenLocation.REPLY),
    *((TokenLocation.HEADER, name) for name in (
        b"x-mailer", b"user-agent", b"precedence", b"list-unsubscribe", b"list-id", b"x-priority",
        b"importance", b"x-mimeole",
    )),
)  # fmt: skip
"""Places of a word of any other header: the dump does not tell which header, so the word counts for
each of them. A message has it in one of them (docs/decisions/0048)."""
PREFIXES: dict[bytes, tuple[Place, ...]] = {
    b"subj": places(TokenLocation.SUBJECT),
    b"from": places(TokenLocation.FROM),
    b"to": places(TokenLocation.TO),
    b"rcvd": places(TokenLocation.RECEIVED),
    b"mime": places(TokenLocation.CONTENT, TokenLocation.PART, TokenLocation.FILE),
    b"url": places(TokenLocation.URL),
    b"head": HEADERS,
    b"rtrn": (),  # Return-Path, which delivery adds
}
_EPOCH = date(2000, 1, 1).toordinal()


def read(file: BinaryIO, facts: DumpFacts) -> Iterator[DumpEntry]:
    """Yield the words of a dump."""
    for line in lines_of(file):
        try:
            word, spam_text, ham_text, date_text = line.rsplit(b" ", 3)
            spam, ham = count(spam_text), count(ham_text)
        except ValueError:
            facts.skipped += 1
            continue
        if word.startswith(b"."):
            if word == b".MSG_COUNT":
                facts.ham, facts.spam = ham, spam
            continue
        prefix, colon, rest = word.partition(b":")
        if colon and prefix in PREFIXES:
            yield DumpEntry(PREFIXES[prefix], rest, ham, spam, _day(date_text))
        else:
            yield DumpEntry(TEXT, word, ham, spam, _day(date_text))


@lru_cache(maxsize=4096)
def _day(text: bytes) -> int:
    """Return the day of YYYYMMDD; 0 for any other text."""
    try:
        number = int(text)
        day = date(number // 10_000, number // 100 % 100, number % 100).toordinal() - _EPOCH
    except (ValueError, OverflowError):
        return 0
    return min(max(day, 0), 65_535)
