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
* Such a store also keeps the sums of its rows (`RowSums`), by which hosts are compared.
* Events: `seq` is one more than that of the last event. The newest event of a label's key defines
  its state; an event without a digest (an import, an expiry) belongs to no message.

Values that are stored alone encode themselves: `MessageState`, `RowSums`, `FleetPosition`.

Failure: a store raises only StoreErrors, BugError (the caller broke a rule above) and RefusedError
(a sum leaves its range in `fold`). It never raises MapFullError or MapResizedError of LMDB.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from spamnb.errors import StoreAccessError, StoreDamagedError
from spamnb.model.events import Event, Ids, Recipe, Records, Totals
from spamnb.model.features import Words
from spamnb.model.persons import FilledPlaces, PersonalCorrections
from spamnb.policy.senders import SenderList
from spamnb.store.codec import Buffer

_SUMS = struct.Struct("<4Q")
MASK = (1 << 64) - 1


class RowSums(NamedTuple):
    """The sums over all values that events change, modulo 2^64; hosts compare their models by them.

        u64 rows | u64 texts | u64 persons | u64 dropped

    Each change of a row updates the sums by the old and the new row, so they need no scan; see
    `weights` for what is added. Each host drops persons when their labels are old in its own
    journal. `persons` is the sum over all events, which is the same on all hosts; `dropped` is the
    part of this sum that belongs to persons that this host has dropped.
    """

    rows: int = 0
    texts: int = 0
    persons: int = 0
    """of all events"""
    dropped: int = 0
    """of the persons that this host has dropped"""

    def plus(self, rows: int = 0, texts: int = 0, persons: int = 0, dropped: int = 0) -> RowSums:
        """Return the sums after a change."""
        changes = rows, texts, persons, dropped
        return RowSums(*((a + b) & MASK for a, b in zip(self, changes, strict=True)))

    def same(self, scanned: RowSums) -> bool:
        """Return whether a scan of this host's rows gives the same sums."""
        return self.plus(persons=-self.dropped)[:3] == scanned[:3]

    def encode(self) -> bytes:
        """Return the sums as bytes."""
        return _SUMS.pack(*self)

    @staticmethod
    def decode(data: Buffer) -> RowSums:
        """Return the sums that these bytes encode."""
        try:
            return RowSums(*_SUMS.unpack(data))
        except struct.error as error:
            raise StoreDamagedError("the sums of the rows cannot be read") from error


class Recorded(NamedTuple):
    """What one host has appended to the log."""

    events: int
    """their number; it shows that an append was stored although its answer was lost"""
    chain: str
    """of the host's last entry"""
    mark: str = ""
    """of the host's last entry; it shows that a waiting correction was stored"""


class FleetPosition(NamedTuple):
    """The last event of the log that a store holds.

    All stores of a fleet that hold the same events hold the same position, byte for byte, so a
    backup of one host is a start for another. It is stored as JSON, which an administrator may want
    to read.
    """

    epoch: str
    """random name of the history; a log with another epoch does not belong to this store"""
    seq: int
    chain: str
    """hash of all entries up to this event"""
    recorded: Mapping[str, Recorded]
    """by the name of the host"""

    def of(self, host: str) -> Recorded:
        """Return what a host has recorded."""
        return self.recorded.get(host, Recorded(0, ""))

    def after(self, seq: int, host: str, recorded: Recorded) -> FleetPosition:
        """Return the position after an entry of a host that ends with event `seq`."""
        chain, recorded_by = recorded.chain, {**self.recorded, host: recorded}
        return self._replace(seq=seq, chain=chain, recorded=recorded_by)

    def encode(self) -> bytes:
        """Return the position as bytes."""
        return json.dumps(self._asdict(), sort_keys=True).encode()

    @staticmethod
    @lru_cache(maxsize=4)
    def decode(data: bytes) -> FleetPosition:
        """Return the position that these bytes encode."""
        try:
            plain = json.loads(data)
            recorded = {
                host: Recorded(int(one[0]), *map(str, one[1:]))
                for host, one in plain["recorded"].items()
            }
            return FleetPosition(plain["epoch"], int(plain["seq"]), plain["chain"], recorded)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StoreDamagedError(
                "the model's position in its fleet cannot be read", hint="restore a backup"
            ) from error


def refuse_apart(position: FleetPosition | None, last_seq: int) -> None:
    """Raise StoreAccessError if a store that follows a log has events that the log lacks."""
    if position is not None and position.seq != last_seq:
        raise StoreAccessError(
            "this model follows the log of a fleet, and learns only through the log",
            hint="start the daemon, which writes to the log, or run `spamnb fleet leave`",
        )


def next_chain(chain: str, body: bytes) -> str:
    """Return the chain after an entry; the engines compute the same."""
    return hashlib.sha1(chain.encode() + body, usedforsecurity=False).hexdigest()


Result = TypeVar("Result")


_STATE = struct.Struct("<hQB")


class MessageState(NamedTuple):
    """A message's current label, and the event that set it.

    `label` is NO_LABEL after a forget. `folded` means that the event is in the checkpoint: learning
    the message again still changes nothing, but a move must be refused.
    """

    label: int
    seq: int
    folded: bool

    def encode(self) -> bytes:
        """Return the state as bytes."""
        return _STATE.pack(*self)

    @staticmethod
    def decode(data: Buffer) -> MessageState:
        """Return the state that these bytes encode."""
        try:
            label, seq, folded = _STATE.unpack(data)
        except struct.error as error:
            raise StoreDamagedError(f"a message state has {len(data)} bytes") from error
        return MessageState(label, seq, bool(folded))


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

    def last_change(self) -> int:
        """Return the number of the newest change in it; see `Store.last_change`."""

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
