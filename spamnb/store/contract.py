"""The interface of a store, as protocols with their rules; `memory` and `model_store` implement it.

A store holds one model: its recipe, its totals, the records of its features, their texts (if the
recipe has a vocabulary), the corrections of persons, the lists of senders, the journal of events,
and two indexes into the journal.

* `read()` returns a snapshot. It never blocks on a writer and sees no unfinished transaction. The
  caller must not keep it open across a yield of control.
* `write()` waits for the writer lock. All changes become visible together when the block ends, and
  are on disk then; an exception inside the block leaves the store unchanged.
* `scatter` takes rows that were gathered and changed in the same transaction; a row in which counts
  and corrections are all zero removes the feature and its text. The caller maintains V and the
  histogram, because it knows the old row and the new one; the store computes no sums.
* Every array of ids passed in is sorted and distinct.
* `transact(run)` calls run(view) in a write transaction and returns its result. If the store has to
  grow meanwhile, all changes are undone and `run` is called again, so it must have no side effects
  other than changes to the view. In a `write()` block, the same situation raises a StoreBusyError
  (transient: nothing was changed, and the store has grown).
* A thread opens one write block at a time, and keeps no snapshot open while it writes.
* A store that follows the log of a fleet has a position in it. A transaction that appends events
  to such a store must also move the position to the last of them; otherwise nothing is changed
  (StoreAccessError). So a host adds no events that the other hosts lack.
* Such a store also keeps the sums of `row_sums`, by which hosts are compared.
* Events: `seq` is one more than that of the last event. The newest event of a label's key defines
  its state; an event without a digest (an import, an expiry) belongs to no message.

Failure: a store raises only StoreErrors, BugError (the caller broke a rule above) and RefusedError
(a sum leaves its range in `fold`). It never raises MapFullError or MapResizedError of LMDB.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from spamnb.model.events import Event, Ids, Recipe, Records, Totals
from spamnb.model.features import Words
from spamnb.model.persons import FilledPlaces, PersonalCorrections
from spamnb.policy.senders import SenderList
from spamnb.store.row_sums import FleetPosition, RowSums

Result = TypeVar("Result")


class MessageState(NamedTuple):
    """A message's current label, and the event that set it.

    `label` is NO_LABEL after a forget. `folded` means that the event is in the checkpoint: learning
    the message again still changes nothing, but a move must be refused.
    """

    label: int
    seq: int
    folded: bool


class Word(NamedTuple):
    """The text of a feature."""

    id: int
    location: int
    text: bytes
    """UTF-8, at most 255 bytes"""


def packed(words: Iterable[Word]) -> Words:
    """Return words as the value that `put_words` takes: sorted, one text for each id."""
    listed = sorted({word.id: word for word in reversed(list(words))}.values())
    return Words(
        np.array([word.id for word in listed], np.uint64),
        np.array([word.location for word in listed], np.uint8),
        np.array([len(word.text) for word in listed], np.uint8),
        b"".join(word.text for word in listed),
    )


def unpacked(words: Words) -> Iterator[Word]:
    """Yield the words one by one."""
    start = 0
    columns = words.ids.tolist(), words.locations.tolist(), words.sizes.tolist()
    for id_, location, size in zip(*columns, strict=True):
        yield Word(id_, location, words.texts[start : start + size])
        start += size


class ReadView(Protocol):
    """A snapshot of the store."""

    def totals(self) -> Totals:
        """Return a copy of the model's sums."""

    def gather(self, ids: Ids) -> Records:
        """Return the records of these features as writable arrays; zero rows for unknown ones."""

    def features(self) -> Iterator[tuple[Ids, Records]]:
        """Yield all features in order of their ids, in blocks of bounded size."""

    def words(self, ids: Ids) -> list[Word | None]:
        """Return the texts of these features, None for those without a text."""

    def all_words(self) -> Iterator[Word]:
        """Yield all texts in order of their ids."""

    def live(self, key: bytes) -> MessageState | None:
        """Return the state of the label with this `label_key`; None if it was never learnt."""

    def labels(self, digest: bytes) -> dict[int, MessageState]:
        """Return the states of a message's labels by owner; those of persons are not among them."""

    def learnt(self, most: int) -> list[int]:
        """Return how many messages have each label, at most `most` of each.

        Counts of imports are not messages. Reads few states if every label has so many messages.
        """

    def digests(self, message_id: str) -> list[bytes]:
        """Return the digests of the messages with this Message-ID, oldest first (at most 64)."""

    def event(self, seq: int) -> Event | None:
        """Return one event of the journal; None if it does not exist or is in the checkpoint."""

    def events(
        self, start: int = 1, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[Event]:
        """Yield the events start <= seq < stop."""

    def live_at(self, label: int, seq: int) -> int:
        """Return the first journal event at or after seq that defines a message of this label.

        The search wraps around to the first event; 0 if no message has the label.
        """

    def base_totals(self) -> Totals:
        """Return the sums of the checkpoint: of all events folded so far."""

    def base_features(self) -> Iterator[tuple[Ids, Records]]:
        """Yield the features of the checkpoint, as `features`."""

    def personal(self, person: int) -> FilledPlaces | None:
        """Return the corrections of a person; None if there are none."""

    def persons(self) -> Iterator[tuple[int, FilledPlaces]]:
        """Yield all persons with corrections, in order of their ids."""

    def person_sizes(self) -> dict[int, int]:
        """Return the size of each person's corrections, in bytes."""

    def base_persons(self) -> Iterator[tuple[int, FilledPlaces]]:
        """Yield the persons of the checkpoint, as `persons`."""

    def senders(self, owner: bytes) -> SenderList | None:
        """Return the list of senders with this `ListOwner.key`; None if there is none."""

    def sender_lists(self) -> Iterator[tuple[bytes, SenderList]]:
        """Yield all lists of senders, with the keys of their owners, in order of these."""

    def last_events(self, count: int) -> list[tuple[int, int]]:
        """Return (seq, label after) of the newest LEARN and MOVE events, newest first."""

    def position(self) -> FleetPosition | None:
        """Return the position in the log of the fleet; None if the store follows none."""

    def sums(self) -> RowSums | None:
        """Return sums over rows, texts and persons; None if the store follows no log."""


class WriteView(ReadView, Protocol):
    """The view of a write transaction; reads see its own changes."""

    def put_totals(self, totals: Totals) -> None:
        """Replace the model's sums."""

    def scatter(self, ids: Ids, records: Records) -> None:
        """Write back rows; a row of zeros (counts and corrections) removes feature and text."""

    def put_words(self, words: Words) -> None:
        """Store texts of new ids; existing texts stay. No effect without a vocabulary."""

    def put_personal(self, person: int, personal: PersonalCorrections | None) -> None:
        """Replace the corrections of a person; None removes them."""

    def drop_persons(self, persons: Collection[int]) -> None:
        """Remove the corrections of persons whom no event of the journal names.

        The checkpoint loses them too, with the states of their labels.
        """

    def put_senders(self, owner: bytes, senders: SenderList | None) -> None:
        """Replace a list of senders; None, and one without entries, removes it.

        It is no event: undo, rewind and relearn leave the lists as they are.
        """

    def append(self, *events: Event) -> None:
        """Add events, numbered from the last one on; each defines the state of its message."""

    def fold(self, before_us: int, most: int) -> int:
        """Move up to `most` of the oldest events into the checkpoint; return how many.

        Stops at the first event that is not older than `before_us`.
        """

    def put_position(self, position: FleetPosition | None) -> None:
        """Replace the position in the log of the fleet; None leaves the fleet."""


class Store(Protocol):
    """Storage of one model."""

    @property
    def recipe(self) -> Recipe:
        """Return the model's recipe."""

    @property
    def limit_bytes(self) -> int:
        """Return the maximum size of the store; 0 if unlimited."""

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
