"""Read the database of SpamBayes, as `sb_dbexpimp -e -f FILE` writes it.

The first line is `HAM,SPAM`, the messages trained; each further one `WORD,HAM,SPAM` with the word
quoted as in a URL. It counts messages. The part before a colon tells the place of a word; words of
the body have no colon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

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

_TYPE = places(TokenLocation.CONTENT, TokenLocation.PART)
PREFIXES: dict[bytes, tuple[Place, ...]] = {
    b"subject:": places(TokenLocation.SUBJECT),
    b"from:addr:": places(TokenLocation.FROM),
    b"from:name:": places(TokenLocation.FROM),
    b"to:addr:": places(TokenLocation.TO),
    b"to:name:": places(TokenLocation.TO),
    b"cc:addr:": places(TokenLocation.TO),
    b"cc:name:": places(TokenLocation.TO),
    b"reply-to:addr:": places(TokenLocation.REPLY),
    b"reply-to:name:": places(TokenLocation.REPLY),
    b"sender:addr:": places(TokenLocation.REPLY),
    b"sender:name:": places(TokenLocation.REPLY),
    b"message-id:@": places(TokenLocation.ID),
    b"received:": places(TokenLocation.RECEIVED),
    b"url:": places(TokenLocation.URL),
    b"content-type:": _TYPE,
    b"content-transfer-encoding:": _TYPE,
    b"charset:": _TYPE,
    b"filename:": places(TokenLocation.FILE),
    b"x-mailer:": ((TokenLocation.HEADER, b"x-mailer"),),
}
_LONGEST = max(map(len, PREFIXES))


def read(file: BinaryIO, facts: DumpFacts) -> Iterator[DumpEntry]:
    """Yield the words of a dump."""
    lines = lines_of(file)
    try:
        facts.ham, facts.spam = map(count, next(lines, b"").replace(b'"', b"").split(b",", 1))
    except ValueError:
        return
    for line in lines:
        try:
            quoted, ham, spam = line.replace(b'"', b"").rsplit(b",", 2)
            word = unquote_to_bytes(quoted) if b"%" in quoted else quoted
            yield _entry(word, count(ham), count(spam))
        except ValueError:
            facts.skipped += 1


def _entry(word: bytes, ham: int, spam: int) -> DumpEntry:
    if b":" not in word:
        return DumpEntry(TEXT, word, ham, spam, 0)
    end = word.find(b":") + 1
    for stop in (end, word.find(b":", end) + 1, word.find(b"@") + 1):
        if 0 < stop <= _LONGEST and word[:stop] in PREFIXES:
            return DumpEntry(PREFIXES[word[:stop]], word[stop:], ham, spam, 0)
    return DumpEntry((), word, ham, spam, 0)
