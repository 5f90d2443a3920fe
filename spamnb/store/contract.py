"""What a store promises, in words and as protocols; `memory` and `lmdb_store` keep it alike.

A store holds one model: its recipe, its totals, the records of its features, the words behind
them (if the recipe has a vocabulary), the journal of events, and two indexes into the journal.

* `read()` gives a snapshot: it never blocks on a writer and sees no half transaction. It must not
  be kept open across a yield of control.
* `write()` gives the one writer (waits for it). All that it puts appears at once when the block
  ends, and is on the disk then; an exception inside the block leaves the store as it was.
* `scatter` takes rows that were gathered and changed in the same transaction; a row whose counts
  and corrections are all zero removes the feature and its word. V and the histogram are the
  caller's to keep (core knows the old row and the new one); the store keeps no sum of its own.
* Every array of ids passed in is sorted and distinct.
* `transact(run)` calls run(view) in a write transaction and returns what it returns; should the
  store have to make room on the way, everything is undone and `run` is called again, so it must
  do nothing else than change the view. In a `write()` block the same event raises a StoreBusyError
  (transient: nothing was changed, the room is there now).
* A thread holds one write block at a time, and no snapshot while it writes.
* Events: `seq` is one more than the last one's. What is live of a digest is told by its newest
  event; an event without a digest (an import, an expiry) is no message's.

Failure: only errors of the StoreError family leave a store, but for BugError (a promise of the
caller that did not hold) and RefusedError (a sum that leaves its range in `fold`). MapFull and
MapResized never do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event, Ids, Recipe, Records, Totals

Result = TypeVar("Result")


class MessageState(NamedTuple):
    """What the model holds of one message now: its label, and the event that says so.

    `label` is NO_LABEL after a forget. `folded` tells that the event went into the checkpoint, so
    a duplicate still changes nothing, but a move must be refused.
    """

    label: int
    seq: int
    folded: bool


class Word(NamedTuple):
    """The text behind a feature."""

    id: int
    place: int
    text: bytes
    """UTF-8, at most 255 bytes"""


def packed(words: Iterable[Word]) -> Words:
    """Texts one by one, as the value that a store takes: sorted, one for each id."""
    listed = sorted({word.id: word for word in reversed(list(words))}.values())
    return Words(
        np.array([word.id for word in listed], np.uint64),
        np.array([word.place for word in listed], np.uint8),
        np.array([len(word.text) for word in listed], np.uint8),
        b"".join(word.text for word in listed),
    )


def unpacked(words: Words) -> Iterator[Word]:
    """The texts one by one."""
    start = 0
    columns = words.ids.tolist(), words.places.tolist(), words.sizes.tolist()
    for id_, place, size in zip(*columns, strict=True):
        yield Word(id_, place, words.texts[start : start + size])
        start += size


class ReadView(Protocol):
    """A snapshot of the store."""

    def totals(self) -> Totals:
        """The model's sums, a value of the caller's own."""

    def gather(self, ids: Ids) -> Records:
        """The records of these features, zero rows for unknown ones; writable arrays."""

    def features(self) -> Iterator[tuple[Ids, Records]]:
        """All features in order of their ids, in blocks of bounded size."""

    def words(self, ids: Ids) -> list[Word | None]:
        """The texts of these features, None where the store has none."""

    def all_words(self) -> Iterator[Word]:
        """All texts, in order of their ids."""

    def live(self, digest: bytes) -> MessageState | None:
        """What is held of the message with this digest; None if it was never seen."""

    def digests(self, message_id: str) -> list[bytes]:
        """Digests of the messages with this Message-ID, oldest first (at most 64)."""

    def event(self, seq: int) -> Event | None:
        """One event of the journal; None if there is none or it went into the checkpoint."""

    def events(
        self, start: int = 1, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[Event]:
        """Events start <= seq < stop, lazily."""

    def live_at(self, label: int, seq: int) -> int:
        """The first kept event at or after seq whose message is live under the label by it.

        From the start again if there is none; 0 if there is none at all.
        """

    def base_totals(self) -> Totals:
        """The sums of the checkpoint: everything folded so far."""

    def base_features(self) -> Iterator[tuple[Ids, Records]]:
        """The features of the checkpoint, as `features`."""

    def last_events(self, count: int) -> list[tuple[int, int]]:
        """(seq, label after) of the newest kept LEARN and MOVE events, newest first."""


class WriteView(ReadView, Protocol):
    """The one writer's view: reads see its own puts."""

    def put_totals(self, totals: Totals) -> None:
        """Replace the model's sums."""

    def scatter(self, ids: Ids, records: Records) -> None:
        """Write back rows; those of zeros (counts and corrections) remove feature and word."""

    def put_words(self, words: Words) -> None:
        """Keep texts; an id that has one keeps it. Nothing where the recipe has no vocabulary."""

    def append(self, *events: Event) -> None:
        """Add events (seqs go on from the last), and make each what is live of its digest.

        Many at once are cheaper: their ids are coded together.
        """

    def fold(self, before_us: int, most: int) -> int:
        """Move up to `most` of the oldest events, all older than that time, into the checkpoint.

        Returns how many; stops at the first event that is not older.
        """


class Store(Protocol):
    """One model's home."""

    @property
    def recipe(self) -> Recipe:
        """What the model is made of."""

    @property
    def limit_bytes(self) -> int:
        """What the model may grow to; 0 if nothing bounds it."""

    def read(self) -> AbstractContextManager[ReadView]:
        """A snapshot."""

    def write(self) -> AbstractContextManager[WriteView]:
        """The writer's transaction."""

    def transact(self, run: Callable[[WriteView], Result]) -> Result:
        """Change the store by a function, which may be called more than once."""

    def close(self) -> None:
        """Let go; a second call does nothing."""
