"""The body of a log's entry <-> bytes: the events of a transaction and the texts of new features.

    u8 version | varint count | count * chunk event | u32 n | n * u64 id | n * u8 location
    n * u8 size | texts

Events are encoded as in the journal, without their seq: the entry has it. Numbers are little
endian.

Failure: inconsistent bytes raise StoreDamagedError, those of another version StoreVersionError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event
from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.store.rows.codec import decode_event, encode_event
from spamnb.store.rows.id_codec import ByteCursor, chunk, varint

VERSION = 1
_U64 = np.dtype("<u8")


class Body(NamedTuple):
    """What a transaction has added to the store."""

    events: tuple[Event, ...]
    words: Words
    """texts of the features that were new, without those that the transaction removed again"""


def encode_body(events: Sequence[Event], words: Words) -> bytes:
    """Encode events and words."""
    return b"".join((
        bytes((VERSION,)),
        varint(len(events)),
        *(chunk(encode_event(event)) for event in events),
        len(words.ids).to_bytes(4, "little"),
        words.ids.astype(_U64).tobytes(),
        words.locations.astype(np.uint8).tobytes(),
        words.sizes.astype(np.uint8).tobytes(),
        words.texts,
    ))  # fmt: skip


def decode_body(first: int, data: bytes) -> Body:
    """Decode a body; `first` is the seq of its first event."""
    reader = ByteCursor(data)
    if (version := reader.byte()) != VERSION:
        raise StoreVersionError(
            f"an entry of version {version}, this program reads {VERSION}",
            hint="upgrade this host",
        )
    count = reader.varint()
    events = tuple(decode_event(seq, reader.chunk()) for seq in range(first, first + count))
    size = int.from_bytes(reader.take(4), "little")
    ids = np.frombuffer(reader.take(8 * size), _U64).astype(np.uint64)
    locations = np.frombuffer(reader.take(size), np.uint8)
    sizes = np.frombuffer(reader.take(size), np.uint8)
    texts = bytes(reader.take(int(sizes.sum(dtype=np.int64))))
    if not count or reader.at != len(data) or (ids[1:] <= ids[:-1]).any():
        raise StoreDamagedError("an entry of the fleet's log is inconsistent")
    return Body(events, Words(ids, locations, sizes, texts))
