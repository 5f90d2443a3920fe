"""Import the data of other filters.

A reader takes a file and a `DumpFacts`, and yields a `DumpEntry` for each word; `map_dump` maps the
words to features of this model, as one bulk change. A line that a reader cannot read is counted,
never an error. Readers must not know the model. Failure: UserError for a dump without totals or
without words.
"""

from __future__ import annotations

import gc
import hashlib
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from spamnb.engine.values import MergedWords
from spamnb.errors import RefusedError, UserError
from spamnb.mail.charset import CONTROLS, ZERO_WIDTH
from spamnb.mail.confusables import plain
from spamnb.model.events import BulkChange, Ids, Ints, Recipe, changes, locate, no_totals, order_of
from spamnb.model.features import MIN_BYTES, Key, Words, extract
from spamnb.model.tokens import Field, TokenLocation
from spamnb.model.training_rows import day_of
from spamnb.telemetry import now_us

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
    """What holds for a whole dump.

    A reader fills the facts meanwhile, so they are complete after the last entry.
    """

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


HEADERS: tuple[Place, ...] = (
    *places(TokenLocation.CONTENT, TokenLocation.ID, TokenLocation.REPLY),
    *((TokenLocation.HEADER, name) for name in (
        b"x-mailer", b"user-agent", b"precedence", b"list-unsubscribe", b"list-id", b"x-priority",
        b"importance", b"x-mimeole",
    )),
)  # fmt: skip
"""Places of a word of any other header: the dump does not tell which header, so the word counts for
each of them. A message has it in one of them (docs/decisions/0048)."""
BOGOFILTER_PREFIXES: dict[bytes, tuple[Place, ...]] = {
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


def read_bogofilter(file: BinaryIO, facts: DumpFacts) -> Iterator[DumpEntry]:
    """Yield the words of a dump.

    As `bogoutil -d wordlist.db` writes it.

    A line is `WORD SPAM HAM DATE`; the prefix of a word tells its place. It counts messages, not
    occurrences. Words of a name that begins with a dot hold facts: `.MSG_COUNT` the messages
    trained.
    """
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
        if colon and prefix in BOGOFILTER_PREFIXES:
            yield DumpEntry(BOGOFILTER_PREFIXES[prefix], rest, ham, spam, _day(date_text))
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


FEATURES = 300_000
"""Most features of an import, those in most messages; 3,023 messages give 120,000."""
CHUNK = 2048
"""Words that are mapped together."""
PARTS = 8
"""Number of parts of all ids; counting one part at a time needs less memory. Ids are hashes, so the
parts are of equal size."""
_TOP_BITS = np.uint64(61)


class DumpOptions(NamedTuple):
    """How a dump is imported."""

    format: str
    labels: tuple[str, str] = ("ham", "spam")
    """the model's labels for ham and spam of the dump"""
    most: int = 3000
    """most messages that the dump counts as, so that as many own messages outweigh it"""
    folder: Path | None = None
    """where the temporary file is; default: where the system has them"""


class MappedDump(NamedTuple):
    """A dump as a change of a model, and what became of its words."""

    bulk: BulkChange
    words: Words
    messages: tuple[int, int]
    """how many ham and spam it counts as"""
    trained: tuple[int, int]
    """how many ham and spam the other filter was trained with"""
    taken: int
    left_out: int
    """words of places that this model does not read, and those that are too short for it"""
    skipped: int
    """lines that could not be read"""
    cleaned: int
    """words with characters that are invisible in mail, which are removed"""
    weight: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures."""
        names = ("messages", "trained", "taken", "left_out", "skipped", "cleaned", "weight")
        return {"features": len(self.bulk.ids)} | {name: getattr(self, name) for name in names}


class _Pairs(NamedTuple):
    """Features and the counts of the words that they come from; a feature occurs several times."""

    ids: Ids
    ham: NDArray[np.uint32]
    spam: NDArray[np.uint32]
    days: NDArray[np.uint16]

    def take(self, rows: Ints) -> _Pairs:
        """Return some rows."""
        return _Pairs(
            self.ids.take(rows), self.ham.take(rows), self.spam.take(rows), self.days.take(rows)
        )


def _joined(pairs: Iterable[_Pairs]) -> _Pairs:
    ids, ham, spam, days = map(np.concatenate, zip(_NO_PAIRS, *pairs, strict=True))
    return _Pairs(ids, ham, spam, days)


_NONE = np.zeros(0, np.uint32)
_NO_PAIRS = _Pairs(_NONE.astype(np.uint64), _NONE, _NONE, _NONE.astype(np.uint16))


@dataclass(slots=True)
class _Chunks:
    """The mapped chunks of a dump."""

    key: Key
    texts: IO[bytes] | None
    """where the texts are written; None if the model has no vocabulary"""
    today: int
    pairs: list[_Pairs] = field(default_factory=list)
    taken: int = 0
    left_out: int = 0

    def add(self, entries: list[DumpEntry]) -> None:
        """Map some words."""
        places, words, ham, spam, days = zip(*entries, strict=True)
        found = extract(self.key, [*map(_fields, places, words)])
        line = np.arange(len(entries)).repeat(np.diff(found.offsets))
        taken = int(np.count_nonzero(np.bincount(line)))
        self.taken += taken
        self.left_out += len(entries) - taken
        day = np.array(days, np.uint16)
        day[day == 0] = self.today
        of_ham, of_spam = (np.array(column, np.uint32).take(line) for column in (ham, spam))
        self.pairs.append(_Pairs(found.ids.take(found.rows), of_ham, of_spam, day.take(line)))
        if self.texts is not None:
            words = found.words(found.ids)
            for array in (*words[:3], np.frombuffer(words.texts, np.uint8)):
                np.save(self.texts, array)

    def words(self) -> Iterator[Words]:
        """Yield the texts that were written, chunk by chunk."""
        if self.texts is None:
            return
        end = self.texts.tell()
        self.texts.seek(0)
        while self.texts.tell() < end:
            ids, locations, sizes, texts = (np.load(self.texts) for _ in range(4))
            yield Words(ids, locations, sizes, texts.tobytes())


def _fields(places: tuple[Place, ...], word: bytes) -> list[Field]:
    """Return a field for each place of a word; none if the word is too short."""
    text = word if word.isascii() else _normalised(word)
    if len(text) < MIN_BYTES:
        return []
    return [(location, name, text) for location, name in places]


def _normalised(word: bytes) -> bytes:
    """Return a word as this model reads text; empty if it is not UTF-8."""
    try:
        return plain(word.decode()).strip()
    except UnicodeDecodeError:
        return b""


def map_dump(
    recipe: Recipe, entries: Iterable[DumpEntry], facts: DumpFacts, options: DumpOptions, today: int
) -> MappedDump:
    """Return a dump as a change of a model with this recipe; `today` is for lines without a day.

    A word becomes the features that the model's own extraction makes of a field with this word
    alone: the word, its folded form, the tail of a host, and the parts of a word that the other
    filter does not cut. Several words may become one feature, such as the spellings of a word. The
    dump does not tell which messages have several of them, so they are taken as independent:

        n = N (1 - prod(1 - n_i / N))

    Counts and N above `most` messages are scaled down together. Corrections are not imported: the
    model learns them from its own mistakes.

    Words are mapped in chunks, so memory grows only with the features; their texts are in a
    temporary file until it is known which features are taken. Must not know files' formats.
    Failure: UserError for a dump without totals or without words.
    """
    refuse_model(recipe, options.labels)
    with tempfile.TemporaryFile(dir=options.folder) as texts, _without_collector():
        chunks = _Chunks(Key(recipe.key), texts if recipe.vocabulary else None, today)
        for some in _chunked(entries):
            chunks.add(some)
        if not facts.ham + facts.spam:
            raise UserError(
                "the dump does not say how many messages the filter was trained with",
                hint="dump the whole database again",
            )
        bulk = _bulk(recipe, chunks.pairs, facts, options)
        if not len(bulk.ids):
            raise UserError("the dump has no words that this model can use", hint="check --from")
        words = _texts(chunks.words(), bulk.ids)
    ham, spam = bulk.messages[[recipe.labels.index(label) for label in options.labels]].tolist()
    return MappedDump(
        bulk,
        words,
        (ham, spam),
        (facts.ham, facts.spam),
        chunks.taken,
        chunks.left_out,
        facts.skipped,
        facts.cleaned,
        facts.weight,
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Run without the collector of cycles: it takes a fifth of the time, and there are none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _texts(parts: Iterable[Words], ids: Ids) -> Words:
    """Return the texts of these features; `parts` also have other texts, and some of them twice."""
    return MergedWords([MergedWords([part]).words(_common(part.ids, ids)) for part in parts]).words(
        ids
    )


def _common(some: Ids, ids: Ids) -> Ids:
    return some[locate(ids, some)[1]]


def refuse_model(recipe: Recipe, labels: tuple[str, str]) -> None:
    """Raise for a model that has no such labels, or whose counts are not of messages with words."""
    unknown = [label for label in labels if label not in recipe.labels]
    if unknown or labels[0] == labels[1]:
        raise UserError(
            f"the model's labels are {', '.join(recipe.labels)}, not {' and '.join(labels)}",
            hint="name two of them with --label-ham and --label-spam",
        )
    if recipe.documents or recipe.occurrences:
        raise RefusedError("the model is for documents, or counts occurrences instead of messages")


def _chunked(entries: Iterable[DumpEntry]) -> Iterator[list[DumpEntry]]:
    iterator = iter(entries)
    while some := list(islice(iterator, CHUNK)):
        yield some


def _bulk(
    recipe: Recipe, pairs: list[_Pairs], facts: DumpFacts, options: DumpOptions
) -> BulkChange:
    """Unite the counts of each feature, and scale them."""
    share = facts.weight * min(1.0, options.most / (facts.ham + facts.spam))
    columns = [recipe.labels.index(label) for label in options.labels]
    messages = np.zeros(len(recipe.labels), np.int64)
    for column, trained in zip(columns, (facts.ham, facts.spam), strict=True):
        messages[column] = max(round(share * trained), 1) if trained else 0
    scaled = [_scaled(_part(pairs, part), facts, share) for part in range(PARTS)]
    ids, ham, spam, days = _joined(scaled)
    n = np.zeros((len(ids), len(recipe.labels)), np.int64)
    for column, counts in zip(columns, (ham, spam), strict=True):
        n[:, column] = np.minimum(counts, messages[column])
    nothing = no_totals(recipe.groups, len(recipe.labels))
    return BulkChange(
        ids=ids,
        n=n,
        w=np.zeros_like(n),
        messages=messages,
        bias=nothing.bias,
        temperatures=nothing.temperatures,
        days=days,
    )


def _part(pairs: list[_Pairs], part: int) -> _Pairs:
    """Return the pairs of a part of all ids, sorted by id."""
    rows = ((chunk.ids >> _TOP_BITS == part).nonzero()[0] for chunk in pairs)
    joined = _joined(chunk.take(some) for chunk, some in zip(pairs, rows, strict=True))
    return joined.take(order_of(joined.ids))


def _scaled(part: _Pairs, facts: DumpFacts, share: float) -> _Pairs:
    """Return the strongest features with their united, scaled counts."""
    first = changes(part.ids).nonzero()[0]
    ham, spam = (
        np.rint(share * _united(counts, first, trained)).astype(np.uint32)
        for counts, trained in ((part.ham, facts.ham), (part.spam, facts.spam))
    )
    days = np.maximum.reduceat(part.days, first) if len(first) else part.days
    return _Pairs(part.ids.take(first), ham, spam, days).take(_strongest(ham + spam))


def _united(counts: NDArray[np.uint32], first: Ints, trained: int) -> NDArray[np.float64]:
    """Return how many of the trained messages have any word of each feature."""
    if not trained or not len(first):
        return np.zeros(len(first))
    with np.errstate(divide="ignore"):  # a word of every message: its feature is in every message
        without = np.log1p(-np.minimum(counts / trained, 1.0))
    return np.asarray(-trained * np.expm1(np.add.reduceat(without, first)))


def _strongest(counts: NDArray[np.uint32]) -> Ints:
    """Return the rows of the features with the largest counts above 0, in order."""
    most = FEATURES // PARTS
    if np.count_nonzero(counts) <= most:
        return counts.nonzero()[0]
    return np.sort(counts.argsort(kind="stable")[-most:])


WEIGHT = 0.1
"""Counts of occurrences tell less than counts of messages; with a tenth of the weight, the model's
own training soon outweighs them."""
MOST_BYTES = 1 << 28
"""Largest database; years of mail take 30 MB."""
SPAM = ("spam", "junk")
POPFILE_PREFIXES: dict[bytes, tuple[Place, ...]] = {
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


def read_popfile(file: BinaryIO, facts: DumpFacts) -> Iterator[DumpEntry]:
    """Yield the words of a database.

    It counts occurrences, so a count may exceed the number of messages: the mapper limits it, and
    all counts have a tenth of the weight. A bucket named spam or junk is spam, the others are ham.
    The database is read from memory and its tables are checked, so that it runs no code of its own.
    """
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
                yield _popfile_entry(last, counts)
            last, counts = _text(word), [0, 0]
        counts[is_spam[bucket]] += _number(times)
    if last:
        yield _popfile_entry(last, counts)


def _text(value: object) -> bytes:
    """Return a text; a column of SQLite may hold any type."""
    return value if isinstance(value, bytes) else b""


def _number(value: object) -> int:
    return min(max(int(value), 0), MOST_COUNT) if isinstance(value, int | float) else 0


def _popfile_entry(word: bytes, counts: list[int]) -> DumpEntry:
    ham, spam = (min(number, MOST_COUNT) for number in counts)
    prefix, colon, rest = word.partition(b":")
    if not colon:
        return DumpEntry(TEXT, word, ham, spam, 0)
    return DumpEntry(POPFILE_PREFIXES.get(prefix, ()), rest, ham, spam, 0)


_TYPE = places(TokenLocation.CONTENT, TokenLocation.PART)
SPAMBAYES_PREFIXES: dict[bytes, tuple[Place, ...]] = {
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
_LONGEST = max(map(len, SPAMBAYES_PREFIXES))


def read_spambayes(file: BinaryIO, facts: DumpFacts) -> Iterator[DumpEntry]:
    """Yield the words of a dump.

    As `sb_dbexpimp -e -f FILE` writes it.

    The first line is `HAM,SPAM`, the messages trained; each further one `WORD,HAM,SPAM` with the
    word quoted as in a URL. It counts messages. The part before a colon tells the place of a word;
    words of the body have no colon.
    """
    lines = lines_of(file)
    try:
        facts.ham, facts.spam = map(count, next(lines, b"").replace(b'"', b"").split(b",", 1))
    except ValueError:
        return
    for line in lines:
        try:
            quoted, ham, spam = line.replace(b'"', b"").rsplit(b",", 2)
            word = unquote_to_bytes(quoted) if b"%" in quoted else quoted
            yield _spambayes_entry(word, count(ham), count(spam))
        except ValueError:
            facts.skipped += 1


def _spambayes_entry(word: bytes, ham: int, spam: int) -> DumpEntry:
    if b":" not in word:
        return DumpEntry(TEXT, word, ham, spam, 0)
    end = word.find(b":") + 1
    for stop in (end, word.find(b":", end) + 1, word.find(b"@") + 1):
        if 0 < stop <= _LONGEST and word[:stop] in SPAMBAYES_PREFIXES:
            return DumpEntry(SPAMBAYES_PREFIXES[word[:stop]], word[stop:], ham, spam, 0)
    return DumpEntry((), word, ham, spam, 0)


READERS: Mapping[str, Callable[[BinaryIO, DumpFacts], Iterator[DumpEntry]]] = {
    "bogofilter": read_bogofilter,
    "spambayes": read_spambayes,
    "popfile": read_popfile,
}
_HASHES = "its dump has hashes instead of words, so no feature can be made of them"
REFUSED: Mapping[str, tuple[str, str]] = {
    "spamassassin": (
        _HASHES,
        "its list of trained messages has their labels: spamnb train --labels sa:FILE FOLDERS",
    ),
    "rspamd": ("its statistics have hashes of pairs of words", "train on the mail: spamnb train"),
    "dspam": (_HASHES, "train on the mail: spamnb train"),
    "crm114": (_HASHES, "train on the mail: spamnb train"),
}
"""filters of which no counts can be imported: the reason, and what to do instead"""
FORMATS = (*READERS, *REFUSED)
_PIECE = 1 << 20


def read_dump(recipe: Recipe, file: BinaryIO, options: DumpOptions) -> MappedDump:
    """Return a dump of a format as a change of a model; UserError if it cannot be read."""
    name, most = options.format, options.most
    if name in REFUSED:
        reason, hint = REFUSED[name]
        raise UserError(f"counts of {name} cannot be imported: {reason}", hint=hint)
    if name not in READERS:
        raise UserError(f"there is no format {name!r}", hint=f"one of {', '.join(READERS)}")
    if not isinstance(most, int) or not 0 < most <= MOST_COUNT:
        raise UserError("`most` must be a whole number of 1 or more")
    facts = DumpFacts()
    entries = cleaned(READERS[name](file, facts), facts)
    return map_dump(recipe, entries, facts, options, day_of(now_us()))


def dump_digest(file: BinaryIO) -> bytes:
    """Return the digest that identifies a dump; the file is read again from its start."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in iter(lambda: file.read(_PIECE), b""):
        digest.update(piece)
    file.seek(0)
    return digest.digest()
