"""Values of a store: states of messages, texts, sums of rows, and the position in a fleet's log.

Values that are stored alone encode themselves. Failure: StoreDamagedError for bytes that are no
such value.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from spamnb.errors import StoreAccessError, StoreDamagedError
from spamnb.model.features import Words
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
