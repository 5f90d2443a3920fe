"""Read the database of POPFile, `popfile.db`, in SQLite.

It counts occurrences, so a count may exceed the number of messages: the mapper limits it, and all
counts have a tenth of the weight. A bucket named spam or junk is spam, the others are ham. The
database is read from memory and its tables are checked, so that it runs no code of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import BinaryIO

from spamnb.core.features.locations import TokenLocation
from spamnb.errors import UserError
from spamnb.service.foreign.dump import (
    MOST_COUNT,
    TEXT,
    DumpEntry,
    DumpFacts,
    Place,
    places,
)

WEIGHT = 0.1
"""Counts of occurrences tell less than counts of messages; with a tenth of the weight, the model's
own training soon outweighs them."""
MOST_BYTES = 1 << 28
"""Largest database; years of mail take 30 MB."""
SPAM = ("spam", "junk")
PREFIXES: dict[bytes, tuple[Place, ...]] = {
    b"subject": places(TokenLocation.SUBJECT),
    b"from": places(TokenLocation.FROM),
    b"to": places(TokenLocation.TO),
    b"cc": places(TokenLocation.TO),
}
_TABLES = frozenset({"buckets", "words", "matrix", "bucket_params", "bucket_template"})
_BUCKETS = """
    select buckets.id, buckets.name, sum(bucket_params.val)
    from buckets
    join bucket_params on bucket_params.bucketid = buckets.id
    join bucket_template on bucket_template.id = bucket_params.btid
    where buckets.pseudo = 0 and bucket_template.name = 'count'
    group by buckets.id
"""
_WORDS = """
    select words.word, matrix.bucketid, matrix.times
    from matrix join words on words.id = matrix.wordid
    order by matrix.wordid
"""


def read(file: BinaryIO, facts: DumpFacts) -> Iterator[DumpEntry]:
    """Yield the words of a database."""
    facts.weight = WEIGHT
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES or not data.startswith(b"SQLite format 3\0"):
        raise UserError(f"this is not an SQLite database of at most {MOST_BYTES} bytes")
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(data)
            database.execute("pragma trusted_schema = off")
            database.text_factory = bytes
            yield from _entries(database, facts)
    except (sqlite3.Error, OverflowError) as error:
        raise UserError(f"this is not a database of POPFile: {error}") from error


def _entries(database: sqlite3.Connection, facts: DumpFacts) -> Iterator[DumpEntry]:
    master = database.execute("select name from sqlite_master where type = 'table'")
    missing = _TABLES - {name.decode("ascii", "replace") for (name,) in master}
    if missing:
        raise UserError(f"the database has no table {', '.join(sorted(missing))}")
    is_spam: dict[object, bool] = {}
    for bucket, name, messages in database.execute(_BUCKETS):
        is_spam[bucket] = _text(name).decode("utf-8", "replace").casefold() in SPAM
        if is_spam[bucket]:
            facts.spam += _number(messages)
        else:
            facts.ham += _number(messages)
    last, counts = b"", [0, 0]
    for word, bucket, times in database.execute(_WORDS):
        if bucket not in is_spam:
            facts.skipped += 1
            continue
        if word != last:
            if last:
                yield _entry(last, counts)
            last, counts = _text(word), [0, 0]
        counts[is_spam[bucket]] += _number(times)
    if last:
        yield _entry(last, counts)


def _text(value: object) -> bytes:
    """Return a text; a column of SQLite may hold any type."""
    return value if isinstance(value, bytes) else b""


def _number(value: object) -> int:
    return min(max(int(value), 0), MOST_COUNT) if isinstance(value, int | float) else 0


def _entry(word: bytes, counts: list[int]) -> DumpEntry:
    ham, spam = (min(number, MOST_COUNT) for number in counts)
    prefix, colon, rest = word.partition(b":")
    if not colon:
        return DumpEntry(TEXT, word, ham, spam, 0)
    return DumpEntry(PREFIXES.get(prefix, ()), rest, ham, spam, 0)
