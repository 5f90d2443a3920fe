"""The body of a log's entry <-> bytes: the events of a transaction and the texts of new features.

    u8 version | 8 bytes mark | varint count | count * chunk event
    u32 n | n * u64 id | n * u8 location | n * u8 size | texts

The mark names the transaction; a host recognises its own entries by it.
Events are encoded as in the journal, without their seq: the entry has it. Numbers are little
endian.

A fleet agrees on the version that its hosts write (`Head.level`); a later one begins when all hosts
read it. All versions up to the newest are read.

Failure: inconsistent bytes raise StoreDamagedError, those of a later version StoreVersionError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event
from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.store.rows.codec import EncodedEvent, encode_event
from spamnb.store.rows.id_codec import ByteCursor, chunk, varint

VERSION = 2
"""the newest that this program reads and writes; from 2 on there are events that count scores, and
events that have an owner"""
SCORES_VERSION = 2
OWNERS = 2
MARK_BYTES = 8
NO_MARK = bytes(MARK_BYTES)
_U64 = np.dtype("<u8")


class Body(NamedTuple):
    """What a transaction has added to the store."""

    events: tuple[Event, ...]
    words: Words
    """texts of the features that were new, without those that the transaction removed again"""
    mark: bytes = NO_MARK


def encode_body(
    events: Sequence[Event], words: Words, mark: bytes = NO_MARK, version: int = VERSION
) -> bytes:
    """Encode what a transaction has added."""
    return b"".join((
        bytes((version,)),
        mark,
        varint(len(events)),
        *(chunk(encode_event(event)) for event in events),
        len(words.ids).to_bytes(4, "little"),
        words.ids.astype(_U64).tobytes(),
        words.locations.astype(np.uint8).tobytes(),
        words.sizes.astype(np.uint8).tobytes(),
        words.texts,
    ))  # fmt: skip


def decode_body(first: int, data: bytes, newest: int = VERSION) -> Body:
    """Decode a body; `first` is the seq of its first event, `newest` the newest known version."""
    reader = ByteCursor(data)
    if not 1 <= (version := reader.byte()) <= newest:
        raise StoreVersionError(
            f"an entry of version {version}, this program reads {newest}",
            hint="upgrade this host",
        )
    mark = bytes(reader.take(MARK_BYTES))
    count = reader.varint()
    events = tuple(EncodedEvent.decode(seq, reader.chunk()) for seq in range(first, first + count))
    size = int.from_bytes(reader.take(4), "little")
    ids = np.frombuffer(reader.take(8 * size), _U64).astype(np.uint64)
    locations = np.frombuffer(reader.take(size), np.uint8)
    sizes = np.frombuffer(reader.take(size), np.uint8)
    texts = bytes(reader.take(int(sizes.sum(dtype=np.int64))))
    if not count or reader.at != len(data) or (ids[1:] <= ids[:-1]).any():
        raise StoreDamagedError("an entry of the fleet's log is inconsistent")
    return Body(events, Words(ids, locations, sizes, texts), mark)
