"""Snapshots and write transactions of a model, over tables of bytes.

    meta      format, recipe, totals, base totals, words' layout, journal's free space and tables of
              frequent ids, log's state, position in the log of a fleet; corrections of persons and
              lists of senders: `person_tables`; in a fleet: `RowSums`
    features  segments of rows: the live state         base      the same for the checkpoint
    log       the rows that changed last, see `rows`
    words     buckets of texts                         journal, digests, mids, kept   see `journal`

Must not know LMDB. The write view keeps layout and free space
in memory and writes them in `finish`, which the store calls once before it commits.
Failure: StoreDamagedError if a value is missing or inconsistent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from spamnb.errors import BugError, StoreDamagedError
from spamnb.model.events import Event, Ids, Recipe, Records, Totals, locate
from spamnb.model.features import Words
from spamnb.model.persons import (
    FilledPlaces,
    PersonalCorrections,
    PersonalRows,
    filled_places,
)
from spamnb.model.training_rows import TrainingRows
from spamnb.policy.senders import SenderList
from spamnb.store.codec import (
    FrequentIds,
    Rows,
    RowSet,
    decode_totals,
    empty_rows,
    encode_recipe,
    encode_totals,
    records_of,
    row_type,
    to_rows,
)
from spamnb.store.journal import (
    EventTables,
    Index,
    Journal,
    Pages,
    count_labels,
    event_ids,
    first_totals,
    ids_of,
    older,
)
from spamnb.store.person_tables import BASE, LIVE, PersonalTable, SenderTable
from spamnb.store.rows import (
    LOG_KEY,
    LoggedRows,
    LogState,
    Places,
    RowCache,
    Segments,
    Table,
    bits_for,
    encode,
    key_of,
)
from spamnb.store.values import (
    MASK,
    FleetPosition,
    MessageState,
    RowSums,
    Word,
    packed,
    refuse_apart,
)
from spamnb.store.vocabulary import BucketLayout, Vocabulary
from spamnb.store.weights import weights_for

FORMAT = 5
"""of the whole store; increased when the meaning of any table or the features of mail change"""
FORMAT_KEY = b"format"
RECIPE_KEY = b"recipe"
ROOM_KEY = b"room"
TOTALS_KEY, BASE_TOTALS_KEY = b"totals", b"base_totals"
LAYOUT_KEY = b"layout_words"
POSITION_KEY = b"position"
SUMS_KEY = b"sums"
_NO_IDS: Ids = np.zeros(0, np.uint64)
_WORDS_AT_ONCE = 1 << 14
_FOLD_BATCH = 1024
"""events folded together: they change rows in all segments, which are read and written once"""

Result = TypeVar("Result")


class Tables(NamedTuple):
    """The tables of one transaction."""

    meta: Table
    features: Table
    log: Table
    base: Table
    words: Table
    journal: Table
    digests: Table
    mids: Table
    kept: Table


def _columns(parts: Iterable[RowSet]) -> Iterator[tuple[Ids, Records]]:
    """Ids and columns, each a new array."""
    return ((ids.copy(), records_of(rows)) for ids, rows in parts if len(ids))


@dataclass(frozen=True)
class Caches:
    """What a process keeps of the tables of one store, valid until the map is moved."""

    rows: RowCache = field(default_factory=RowCache)
    frequent: dict[bytes, FrequentIds] = field(default_factory=dict)


class ReadView:
    """A snapshot of the store."""

    def __init__(self, tables: Tables, recipe: Recipe, caches: Caches | None = None) -> None:
        self._tables = tables
        self._recipe = recipe
        self._caches = caches or Caches()
        self._labels = len(recipe.labels)
        self._row_type = row_type(self._labels)

    def _meta(self, key: bytes) -> bytes | memoryview:
        value = self._tables.meta.get(key)
        if value is None:
            raise StoreDamagedError(
                f"the model lacks its entry {key.decode()!r}", hint="restore a backup"
            )
        return value

    @cached_property
    def _features(self) -> LoggedRows:
        tables = self._tables
        segments = Segments(tables.features, self._row_type)
        return LoggedRows(segments, tables.log, tables.meta, self._caches.rows)

    @cached_property
    def _base(self) -> Segments:
        return Segments(self._tables.base, self._row_type)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._tables.words, BucketLayout.decode(self._meta(LAYOUT_KEY)))

    @cached_property
    def _journal(self) -> Journal:
        tables = self._tables
        return Journal(tables.journal, EventTables(tables.meta, self._caches.frequent))

    @cached_property
    def _index(self) -> Index:
        tables = self._tables
        return Index(tables.digests, tables.mids, tables.kept, self._recipe.key)

    def last_change(self) -> int:
        """Return the number of the newest change in it; see `Store.last_change`."""
        return self._tables.meta.transaction()

    def totals(self) -> Totals:
        """Return a copy of the model's sums."""
        return decode_totals(self._meta(TOTALS_KEY))

    def gather(self, ids: Ids) -> Records:
        """Return the records of these features as writable arrays; zero rows for unknown ones."""
        return records_of(self._features.find(ids))

    def features(self) -> Iterator[tuple[Ids, Records]]:
        """Yield all features in order of their ids, in blocks of bounded size."""
        return _columns(self._features.all())

    def words(self, ids: Ids) -> list[Word | None]:
        """Return the texts of these features, None for those without a text."""
        return self._vocabulary.find(ids)

    def all_words(self) -> Iterator[Word]:
        """Yield all texts in order of their ids."""
        return self._vocabulary.all()

    def live(self, key: bytes) -> MessageState | None:
        """Return the state of the label with this `label_key`; None if it was never learnt."""
        return self._index.live(key)

    def labels(self, digest: bytes) -> dict[int, MessageState]:
        """Return the states of a message's labels by owner; those of persons are not among them."""
        return self._index.labels_of(digest)

    def learnt(self, most: int) -> list[int]:
        """Return how many messages have each label, at most `most` of each.

        Counts of imports are not messages. Reads few states if every label has so many messages.
        """
        return count_labels(self._index.labels(), self._labels, most)

    def digests(self, message_id: str) -> list[bytes]:
        """Return the digests of the messages with this Message-ID, oldest first (at most 64)."""
        return self._index.digests(message_id)

    def event(self, seq: int) -> Event | None:
        """Return one event of the journal; None if it does not exist or is in the checkpoint."""
        return self._journal.event(seq)

    def events(
        self, start: int = 1, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[Event]:
        """Yield the events start <= seq < stop."""
        return self._journal.events(start, stop, newest_first=newest_first)

    def live_at(self, label: int, seq: int) -> int:
        """Return the first journal event at or after seq that defines a message of this label.

        The search wraps around to the first event; 0 if no message has the label.
        """
        return self._index.live_at(label, seq)

    def base_totals(self) -> Totals:
        """Return the sums of the checkpoint: of all events folded so far."""
        return decode_totals(self._meta(BASE_TOTALS_KEY))

    def base_features(self) -> Iterator[tuple[Ids, Records]]:
        """Yield the features of the checkpoint, as `features`."""
        return _columns(self._base.all())

    def segments(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of the features' segments, with what is only in the log."""
        for number, rows in enumerate(self._features.all()):
            yield key_of(number), encode(rows, self._features.segments.bits)

    def personal(self, person: int) -> FilledPlaces | None:
        """Return the corrections of a person; None if there are none."""
        return self._persons.get(person)

    def persons(self) -> Iterator[tuple[int, FilledPlaces]]:
        """Yield all persons with corrections, in order of their ids."""
        return self._personal(LIVE).all()

    def person_sizes(self) -> dict[int, int]:
        """Return the size of each person's corrections, in bytes."""
        return self._personal(LIVE).sizes()

    def base_persons(self) -> Iterator[tuple[int, FilledPlaces]]:
        """Yield the persons of the checkpoint, as `persons`."""
        return self._personal(BASE).all()

    @cached_property
    def _persons(self) -> PersonalTable:
        return self._personal(LIVE)

    def _personal(self, state: bytes) -> PersonalTable:
        return PersonalTable(self._tables.meta, state, self._labels)

    def senders(self, owner: bytes) -> SenderList | None:
        """Return the list of senders with this `ListOwner.key`; None if there is none."""
        return self._senders.get(owner)

    def sender_lists(self) -> Iterator[tuple[bytes, SenderList]]:
        """Yield all lists of senders, with the keys of their owners, in order of these."""
        return self._senders.all()

    @property
    def _senders(self) -> SenderTable:
        return SenderTable(self._tables.meta)

    def last_events(self, count: int) -> list[tuple[int, int]]:
        """Return (seq, label after) of the newest LEARN and MOVE events, newest first."""
        return self._journal.last_labels(count)

    def position(self) -> FleetPosition | None:
        """Return the position in the log of the fleet; None if the store follows none."""
        value = self._tables.meta.get(POSITION_KEY)
        return None if value is None else FleetPosition.decode(bytes(value))

    def sums(self) -> RowSums | None:
        """Return sums over rows, texts and persons; None if the store follows no log."""
        value = self._tables.meta.get(SUMS_KEY)
        return None if value is None else RowSums.decode(value)

    def scanned_sums(self) -> RowSums:
        """Return the sums as all rows and texts give them; those of `dropped` are 0."""
        weights, sums = weights_for(self._recipe), RowSums(self.scanned_rows())
        words = self.all_words()
        while some := list(islice(words, _WORDS_AT_ONCE)):
            sums = sums.plus(texts=int(weights.texts(packed(some)).sum()))
        for person, personal in self.persons():
            sums = sums.plus(persons=weights.person(person, personal))
        return sums

    def scanned_rows(self) -> int:
        """Return the sum of all rows as they give it."""
        weights = weights_for(self._recipe)
        return sum(weights.rows(ids, records) for ids, records in self.features()) & MASK


class WriteView(ReadView):
    """The view of a write transaction; reads see its own changes.

    Every array of ids passed in is sorted and distinct. `scatter` takes rows that were gathered and
    changed in the same transaction. The caller maintains V and the histogram, because it knows the
    old row and the new one. The newest event of a label's key defines its state; an event without a
    digest (an import, an expiry) belongs to no message.

    A store that follows the log of a fleet has a position in it. A transaction that appends events
    to such a store must also move the position to the last of them; otherwise nothing is changed
    (StoreAccessError). So a host adds no events that the other hosts lack. Such a store also keeps
    the sums of its rows (`RowSums`), by which hosts are compared.
    """

    def __init__(self, tables: Tables, recipe: Recipe, caches: Caches, page_bytes: int) -> None:
        super().__init__(tables, recipe, caches)
        self._page_bytes = page_bytes
        self._next = 0
        self._gathered: tuple[Ids, Rows] | None = None
        self._new_ids: list[Ids] = []
        self._pages: Pages | None = None
        self._sums = super().sums()

    def sums(self) -> RowSums | None:
        """Return the sums with the changes of this transaction."""
        return self._sums

    def gather(self, ids: Ids) -> Records:
        """Return the records, and keep them for the `scatter` that follows."""
        rows = self._features.find(ids)
        self._gathered = ids, rows
        return records_of(rows)

    def put_totals(self, totals: Totals) -> None:
        """Replace the model's sums."""
        self._tables.meta.put(TOTALS_KEY, encode_totals(totals))

    def scatter(self, ids: Ids, records: Records) -> None:
        """Write back rows; a row of zeros (counts and corrections) removes feature and text."""
        if len(ids) == 0:
            return
        if self._recipe.vocabulary or self._sums:
            old, empty = self._old(ids), empty_rows(records)
            if self._sums:
                self._add_sums(ids, old, records)
            if self._recipe.vocabulary:
                if empty.any():
                    self._remove_words(ids[empty])
                self._new_ids.append(ids[empty_rows(old) & ~empty])
        self._features.put(RowSet(ids, to_rows(records)))

    def _old(self, ids: Ids) -> Records:
        """Return the rows of these ids as they are; they were usually gathered just before."""
        gathered, self._gathered = self._gathered, None
        if gathered is None or not np.array_equal(gathered[0], ids):
            gathered = ids, self._features.find(ids)
        return records_of(gathered[1])

    def _add_sums(self, ids: Ids, old: Records, new: Records) -> None:
        weights = weights_for(self._recipe)
        self._add(rows=weights.rows(ids, new) - weights.rows(ids, old))

    def _add(self, **changes: int) -> None:
        if self._sums is not None:
            self._sums = self._sums.plus(**changes)

    def _remove_words(self, ids: Ids) -> None:
        if self._sums is not None:
            old = packed(word for word in self._vocabulary.find(ids) if word is not None)
            self._add(texts=-int(weights_for(self._recipe).texts(old).sum()))
        self._vocabulary.remove(ids)

    def put_words(self, words: Words) -> None:
        """Store texts of new ids; existing texts stay. No effect without a vocabulary."""
        if self._recipe.vocabulary:
            new_ids = np.concatenate(self._new_ids or [_NO_IDS])
            known = self._vocabulary.add(words, np.sort(new_ids, kind="stable"))
            if self._sums is not None:
                parts = weights_for(self._recipe).texts(words)
                parts[known] = 0
                self._add(texts=int(parts.sum()))

    def put_personal(self, person: int, personal: PersonalCorrections | None) -> None:
        """Replace the corrections of a person; None removes them."""
        if self._sums is not None:
            new = None if personal is None else filled_places(personal)
            self._add(persons=self._person_sum(person, new))
        self._personal(LIVE).put(person, personal)

    def _person_sum(self, person: int, new: FilledPlaces | None) -> int:
        """Return by how much these corrections change the sum of a person."""
        weights = weights_for(self._recipe)
        return weights.person(person, new) - weights.person(person, self.personal(person))

    def drop_persons(self, persons: Collection[int]) -> None:
        """Remove the corrections of persons whom no event of the journal names.

        The checkpoint loses them too, with the states of their labels.
        """
        for person in persons:
            if self._sums is not None:
                self._add(dropped=-self._person_sum(person, None))
            self._personal(LIVE).put(person, None)
            self._personal(BASE).put(person, None)
        self._index.drop_persons(persons)

    def put_senders(self, owner: bytes, senders: SenderList | None) -> None:
        """Replace a list of senders; None, and one without entries, removes it.

        It is no event: undo, rewind and relearn leave the lists as they are.
        """
        self._senders.put(owner, senders)

    def append(self, *events: Event) -> None:
        """Add events, numbered from the last one on; each defines the state of its message."""
        if self._pages is None:
            # Events in the checkpoint are older than those in the journal.
            self._next = (self._journal.last_seq() or self.base_totals().last_seq) + 1
            self._pages = Pages(self._page_bytes, self._room())
        for event in events:
            if event.seq != self._next:
                raise BugError(f"event {event.seq} is appended, expected {self._next}")
            self._next += 1
        if events:
            self._journal.append(events, self._pages)
        for event in events:
            self._index.record(event)

    def _room(self) -> int:
        value = self._tables.meta.get(ROOM_KEY)
        return 0 if value is None else int.from_bytes(value, "little")

    def fold(self, before_us: int, most: int) -> int:
        """Move up to `most` of the oldest events into the checkpoint; return how many.

        Stops at the first event that is not older than `before_us`.
        """
        done = 0
        while done < most:
            batch = self._oldest(before_us, min(_FOLD_BATCH, most - done))
            if not batch:
                break
            self._fold_batch(batch)
            done += len(batch)
        return done

    def _oldest(self, before_us: int, most: int) -> list[Event]:
        batch = [*islice(self._journal.events(0, None), most)]
        return batch[: older([event.time_us for event in batch], before_us)]

    def _fold_batch(self, batch: list[Event]) -> None:
        ids = np.unique(np.concatenate([event_ids(event) for event in batch]))
        totals, rows = self.base_totals(), np.zeros(len(ids), self._row_type)
        places = Places(self._base)
        places.fill(ids, rows, np.arange(len(ids)))
        persons = self._personal(BASE)
        personal_rows = PersonalRows(self._labels, persons.get)
        training_rows = TrainingRows(totals, ids, records_of(rows), personal_rows)
        for event in batch:
            training_rows.apply(event)
            training_rows.totals.last_seq = event.seq
        for person, personal in personal_rows.changed():
            persons.put(person, personal)
        changed = RowSet(ids, to_rows(training_rows.to_records()))
        self._base.merge(changed, self._base.numbers, bits_for(places.count + len(ids)))
        self._tables.meta.put(BASE_TOTALS_KEY, encode_totals(training_rows.totals))
        for event in batch:
            self._journal.remove(event.seq)
            self._index.mark_folded(event)

    def put_position(self, position: FleetPosition | None) -> None:
        """Replace the position in the log of the fleet; None leaves the fleet."""
        meta = self._tables.meta
        if position is None:
            self._sums = None
            meta.delete(POSITION_KEY)
            meta.delete(SUMS_KEY)
        else:
            meta.put(POSITION_KEY, position.encode())
            self._sums = self._sums or self.scanned_sums()

    def finish(self) -> None:
        """Write the changed rows, the words' layout and the journal's free space."""
        meta = self._tables.meta
        if self._sums is not None:
            meta.put(SUMS_KEY, self._sums.encode())
        if "_features" in self.__dict__:
            self._features.finish()
        if "_vocabulary" in self.__dict__:
            layout = self._vocabulary.layout.encode()
            if meta.get(LAYOUT_KEY) != layout:
                meta.put(LAYOUT_KEY, layout)
        if self._pages is not None:
            refuse_apart(self.position(), self._next - 1)
            meta.put(ROOM_KEY, self._pages.room.to_bytes(4, "little"))


class Store(Protocol):
    """Storage of one model."""

    @property
    def recipe(self) -> Recipe:
        """Return the model's recipe."""

    @property
    def limit_bytes(self) -> int:
        """Return the maximum size of the store; 0 if unlimited."""

    @property
    def scores_host(self) -> str:
        """Return the name under which its host counts scores; empty if it counts none."""

    def last_change(self) -> int:
        """Return a number that differs after each change by any process."""

    def read(self) -> AbstractContextManager[ReadView]:
        """Open a snapshot."""

    def write(self) -> AbstractContextManager[WriteView]:
        """Open the write transaction."""

    def transact(self, run: Callable[[WriteView], Result]) -> Result:
        """Change the store by a function, which may be called more than once."""

    def close(self) -> None:
        """Close the store; a second call does nothing."""


class Replay:
    """Events that are applied to rows in memory one by one; `write` stores them all."""

    def __init__(self, view: WriteView, events: Sequence[Event]) -> None:
        """Read the rows that these events change."""
        self._view = view
        ids, totals = ids_of(events), view.totals()
        self._persons = PersonalRows(len(totals.messages), view.personal)
        self._rows = TrainingRows(totals, ids, view.gather(ids), self._persons)
        self._count = len(events)
        self._applied: list[Event] = []

    def apply(self, event: Event) -> None:
        """Apply the next event."""
        self._rows.apply(event)
        self._rows.totals.last_seq = event.seq
        self._applied.append(event)

    def removed(self, ids: Ids) -> Ids:
        """Return which of these features have no row now; `ids` are those of applied events."""
        return ids[empty_rows(self._rows.records_of(self._rows.find((ids,))))]

    def write(self, texts: Callable[[Ids], Words]) -> None:
        """Append the applied events; `texts` returns the texts of features that are new."""
        view, rows = self._view, self._rows
        ids, records = rows.ids, rows.to_records()
        if len(self._applied) < self._count:
            ids = ids_of(self._applied)
            at = locate(rows.ids, ids)[0]
            records = Records(records.n[at], records.w[at], records.day[at])
        view.append(*self._applied)
        view.scatter(ids, records)
        view.put_totals(rows.totals)
        for person, personal in self._persons.changed():
            view.put_personal(person, personal)
        view.put_words(texts(rows.new_ids()))


def create_model(tables: Tables, recipe: Recipe) -> None:
    """Write the entries of a new model."""
    meta = tables.meta
    meta.put(RECIPE_KEY, encode_recipe(recipe))
    for key in (TOTALS_KEY, BASE_TOTALS_KEY):
        meta.put(key, encode_totals(first_totals(recipe)))
    Segments.create(tables.features)
    Segments.create(tables.base)
    meta.put(LAYOUT_KEY, BucketLayout().encode())
    meta.put(LOG_KEY, LogState.of_new_model().encode())
    meta.put(FORMAT_KEY, FORMAT.to_bytes(2, "little"))
