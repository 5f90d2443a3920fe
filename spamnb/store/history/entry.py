"""One entry of the history as bytes, and back.

Failure: StoreVersionError and StoreDamagedError for bytes that are not an entry.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ids
from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.store.rows.id_codec import (
    Buffer,
    ByteCursor,
    chunk,
    decode_ids,
    decode_ints,
    encode_ids_raw,
    encode_ints,
    text,
    varint,
)

_VERSION = 1
_HEAD = struct.Struct("<BBqdd16s")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One verdict, as it was given."""

    time_us: int
    signature: bytes
    """16 unguessable bytes, given by the caller"""
    digest: bytes
    message_id: str
    label: str
    probability: float
    log_odds: float
    decision: str
    ids: tuple[Ids, ...]
    times: NDArray[np.uint32] | None = None
    """only in models that count occurrences"""
    notes: dict[str, str] = field(default_factory=dict)
    """recipient, queue id and other facts"""


def encode_entry(entry: HistoryEntry) -> bytes:
    """u8 version | u8 has times | i64 time_us | f64 probability | f64 log_odds | signature.

    Then chunk digest | text message_id, label, decision | chunk notes (JSON, or empty) | varint G
    | G * ids | [ints times]. Ids are stored with all bytes raw, because they are written for every
    message and seldom read.
    """
    notes = json.dumps(entry.notes).encode() if entry.notes else b""
    parts = [
        _HEAD.pack(
            _VERSION,
            entry.times is not None,
            entry.time_us,
            entry.probability,
            entry.log_odds,
            entry.signature,
        ),
        chunk(entry.digest),
        text(entry.message_id),
        text(entry.label),
        text(entry.decision),
        chunk(notes),
        varint(len(entry.ids)),
        *map(encode_ids_raw, entry.ids),
    ]
    if entry.times is not None:
        parts.append(encode_ints(entry.times))
    return b"".join(parts)


class EntryKeys(NamedTuple):
    """When an entry was made, and the keys by which it is found; the rest is not read."""

    time_us: int
    signature: bytes
    digest: bytes
    message_id: str


def decode_keys(data: Buffer) -> EntryKeys:
    """The keys of the entry in these bytes."""
    return _decode_head(ByteCursor(data))[0]


def _decode_head(reader: ByteCursor) -> tuple[EntryKeys, float, float, bool]:
    """The keys, the probability, the log odds, and whether there are times."""
    version, timed, time_us, probability, log_odds, signature = _HEAD.unpack(
        reader.take(_HEAD.size)
    )
    if version != _VERSION:
        raise StoreVersionError(f"a history entry of version {version}")
    keys = EntryKeys(time_us, signature, reader.chunk(), reader.text())
    return keys, probability, log_odds, timed


def decode_entry(data: Buffer) -> HistoryEntry:
    """The entry in these bytes."""
    reader = ByteCursor(data)
    entry, timed = _decode_facts(reader)
    ids = tuple(decode_ids(reader) for _ in range(reader.varint()))
    times = decode_ints(reader, sum(map(len, ids))).astype(np.uint32) if timed else None
    return replace(entry, ids=ids, times=times)


def decode_facts(data: Buffer) -> HistoryEntry:
    """The entry in these bytes without its ids, which take most of the time."""
    return _decode_facts(ByteCursor(data))[0]


def _decode_facts(reader: ByteCursor) -> tuple[HistoryEntry, bool]:
    """The entry without ids, and whether there are times."""
    keys, probability, log_odds, timed = _decode_head(reader)
    label, decision, notes = reader.text(), reader.text(), reader.chunk()
    try:
        facts: dict[str, str] = json.loads(notes) if notes else {}
    except ValueError as error:
        raise StoreDamagedError("notes of a history entry cannot be read") from error
    entry = HistoryEntry(*keys, label, probability, log_odds, decision, ids=(), notes=facts)
    return entry, timed
