"""Map the words of a dump to features of this model, as one bulk change.

A word becomes the features that the model's own extraction makes of a field with this word alone:
the word, its folded form, the tail of a host, and the parts of a word that the other filter does
not cut. Several words may become one feature, such as the spellings of a word. The dump does not
tell which messages have several of them, so they are taken as independent:
    n = N (1 - prod(1 - n_i / N))
Counts and N above `most` messages are scaled down together. Corrections are not imported: the model
learns them from its own mistakes.

Words are mapped in chunks, so memory grows only with the features; their texts are in a temporary
file until it is known which features are taken. Must not know files' formats.
Failure: UserError for a dump without totals or without words.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.features.extract import Key, Words, extract
from spamnb.core.features.locations import Field
from spamnb.core.features.spans import MIN_BYTES
from spamnb.core.mail.confusables import plain
from spamnb.core.model.events import BulkChange, Ids, Ints, Recipe, no_totals
from spamnb.core.model.id_arrays import changes, locate, order_of
from spamnb.errors import RefusedError, UserError
from spamnb.service.engine.words import MergedWords
from spamnb.service.foreign.dump import DumpEntry, DumpFacts, Place

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
    """Return a dump as a change of a model with this recipe; `today` is for lines without a day."""
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
