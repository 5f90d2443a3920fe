"""The journal of events and its indexes, in tables; long values are split into pieces. Pure.

    journal   seq u64 | part u16 (both big-endian)        a piece of the event's bytes
    digests   label key                                    message state: label, seq, folded
    mids      keyed hash of the Message-ID, 8 bytes | seq  digest
    kept      label u16 | seq u64 (both big-endian)        empty; live messages with journal events

Events are only appended, so pieces are cut to fill the engine's pages: the first piece takes the
free space of the last page, the next ones at most half a page (two share one). Measured at 300
features an event: pieces of a fixed 480 bytes lose 250 bytes at the end of each page and take 8.4
bytes a feature in all; pieces cut to fit take 7.9. The free space is an estimate; a wrong one only
costs space. Pieces of values above 32 KB fill whole runs of overflow pages instead.

Message-IDs are hashed with the model's secret key, so that a sender cannot make two collide.

Must not know what applying an event does. Invariants: pieces of an event are numbered from 0
without a gap; a key in `kept` is the (label, seq) of a message state that is not folded.
Failure: StoreDamagedError.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence

from spamnb.core.model.events import NO_LABEL, Event, EventKind, owner_of_key, person_of_key
from spamnb.errors import BugError, StoreDamagedError
from spamnb.store.contract import MessageState
from spamnb.store.rows.codec import (
    decode_event,
    decode_state,
    encode_event,
    encode_state,
    read_head,
)
from spamnb.store.rows.id_codec import Buffer, ByteCursor
from spamnb.store.rows.table import Table

_KEY = struct.Struct(">QH")
_KEPT = struct.Struct(">HQ")
_SEQ = struct.Struct(">Q")

MOST_DIGESTS = 64
"""digests returned for one Message-ID; a longer list would not help the reader"""
_LARGE = 32_768
_RUN_PAGES = 16
_PAGE_HEAD = 16
_NODE = 8 + _KEY.size
_LEAST = 64
"""minimum size of a piece, because its key and header take 20 bytes"""


class Pages:
    """Splits values for the engine's page layout, for values appended in key order."""

    __slots__ = ("full", "half", "room", "size")

    def __init__(self, size: int, room: int) -> None:
        self.size = size
        self.full = size - _PAGE_HEAD
        self.half = (self.full // 2 & ~1) - 2 - _NODE
        self.room = room

    def cut(self, length: int) -> list[int]:
        """Return the ends of the pieces of a value of this length; updates the free space."""
        ends: list[int] = []
        at = 0
        while at < length:
            at += self._piece(length - at, length)
            ends.append(at)
        return ends

    def chunks(self, seq: int, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and pieces of a value."""
        start = 0
        for part, end in enumerate(self.cut(len(data))):
            yield _KEY.pack(seq, part), data[start:end]
            start = end

    def _piece(self, rest: int, length: int) -> int:
        if length > _LARGE and rest > self.half:
            self._use(_NODE + 8)
            return min(rest, _RUN_PAGES * self.size - _PAGE_HEAD)
        space = min(self.half, self.room - 2 - _NODE)
        if rest > space and space < _LEAST:
            self.room = self.full
            space = self.half
        piece = min(rest, space)
        self._use(_NODE + piece)
        return piece

    def _use(self, count: int) -> None:
        """Subtract a node's size as the engine does: even size, a pointer, maybe a new page."""
        need = count + (count & 1) + 2
        self.room = (self.room if need <= self.room else self.full) - need


class ChunkedValues:
    """Values of any length by sequence number, each stored in pieces."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def last_seq(self) -> int:
        """Return the greatest sequence number; 0 if the table is empty."""
        for key, _ in self.table.scan(down=True):
            return int(_KEY.unpack(key)[0])
        return 0

    def append(self, first: int, values: Iterable[bytes], pages: Pages) -> None:
        """Append values, numbered from `first`."""
        for seq, data in enumerate(values, first):
            for key, piece in pages.chunks(seq, data):
                self.table.put(key, piece, append=True)

    def up(self, start: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, value) for start <= seq < stop."""
        here = 0
        chunks: list[bytes] = []
        for key, value in self.table.scan(_KEY.pack(max(start, 0), 0)):
            seq, part = _KEY.unpack(key)
            if seq != here and chunks:
                yield here, b"".join(chunks)
                chunks = []
            if stop is not None and seq >= stop:
                return
            if part != len(chunks):
                raise StoreDamagedError(
                    f"entry {seq} lacks its part {len(chunks)}", hint="restore a backup"
                )
            here = seq
            chunks.append(bytes(value))
        if chunks:
            yield here, b"".join(chunks)

    def down(self, start: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield the same values as `up`, greatest number first."""
        if stop is not None and stop <= 0:
            return
        from_ = b"" if stop is None else _KEY.pack(stop - 1, 0xFFFF)
        chunks: list[bytes] = []
        for key, value in self.table.scan(from_, down=True):
            seq, part = _KEY.unpack(key)
            if seq < start:
                return
            chunks.append(bytes(value))
            if part == 0:
                yield seq, b"".join(reversed(chunks))
                chunks = []

    def heads(self) -> Iterator[tuple[int, Buffer]]:
        """Yield (seq, first piece) of each value, greatest number first."""
        for key, value in self.table.scan(down=True):
            seq, part = _KEY.unpack(key)
            if part == 0:
                yield seq, value

    def remove(self, seq: int) -> None:
        """Delete a value."""
        keys = []
        for key, _ in self.table.scan(_KEY.pack(seq, 0)):
            if _KEY.unpack(key)[0] != seq:
                break
            keys.append(key)
        for key in keys:
            self.table.delete(key)


class Journal:
    """Events by sequence number."""

    def __init__(self, table: Table) -> None:
        self._pieces = ChunkedValues(table)
        self.last_seq = self._pieces.last_seq
        self.remove = self._pieces.remove

    def append(self, events: Sequence[Event], pages: Pages) -> None:
        """Append events."""
        if events:
            self._pieces.append(events[0].seq, map(encode_event, events), pages)

    def event(self, seq: int) -> Event | None:
        """Return an event; None if the journal does not have it."""
        return next(self.events(seq, seq + 1), None)

    def events(
        self, start: int, stop: int | None, *, newest_first: bool = False
    ) -> Iterator[Event]:
        """Return the events start <= seq < stop."""
        walk = self._pieces.down if newest_first else self._pieces.up
        return (decode_event(seq, data) for seq, data in walk(start, stop))

    def last_labels(self, count: int) -> list[tuple[int, int]]:
        """Return (seq, label after) of the newest LEARN and MOVE events, newest first."""
        found: list[tuple[int, int]] = []
        for seq, head in self._pieces.heads() if count > 0 else ():
            kind, _, _, after, _ = read_head(ByteCursor(head))
            if kind in (EventKind.LEARN, EventKind.MOVE):
                found.append((seq, after))
                if len(found) == count:
                    break
        return found


def count_labels(labels: Iterable[int], count: int, most: int) -> list[int]:
    """Count the labels 0 to `count` - 1, until each occurs `most` times."""
    found = [0] * count
    for label in labels:
        if label != NO_LABEL:
            found[label] += 1
            if min(found) >= most:
                break
    return [min(number, most) for number in found]


class Index:
    """Message states by digest, by Message-ID and by label."""

    def __init__(self, digests: Table, mids: Table, kept: Table, key: bytes) -> None:
        self.digests_ = digests
        self.mids = mids
        self.kept = kept
        self._key = key[:64]

    def live(self, key: bytes) -> MessageState | None:
        """Return the state of the label with this key; None if it was never learnt."""
        value = self.digests_.get(key) if key else None
        return None if value is None else decode_state(value)

    def labels_of(self, digest: bytes) -> dict[int, MessageState]:
        """Return the states of a message's labels by owner, without those of persons."""
        found: dict[int, MessageState] = {}
        for key, value in self.digests_.scan(digest) if digest else ():
            if key[: len(digest)] != digest:
                break
            if (owner := owner_of_key(key)) is not None:
                found[owner] = decode_state(value)
        return found

    def labels(self) -> Iterator[int]:
        """Yield the label of each message, in the order of their digests."""
        return (decode_state(value).label for _, value in self.digests_.scan())

    def digests(self, message_id: str) -> list[bytes]:
        """Return the digests of a Message-ID, oldest first."""
        if not message_id:
            return []
        head = self._hash(message_id)
        found: dict[bytes, None] = {}
        for key, value in self.mids.scan(head):
            if key[:8] != head or len(found) == MOST_DIGESTS:
                break
            found[bytes(value)] = None
        return list(found)

    def live_at(self, label: int, seq: int) -> int:
        """Return the first live event of a label at or after seq, wrapping around; 0 if none."""
        if label < 0:
            return 0
        for start in (max(seq, 0), 0):
            for key, _ in self.kept.scan(_KEPT.pack(label, start)):
                where, found = _KEPT.unpack(key)
                if where == label:
                    return int(found)
                break
        return 0

    def record(self, event: Event) -> None:
        """Make an event the state of its message."""
        if not event.digest:
            return
        if len(event.digest) > 255:
            raise BugError(f"a digest has at most 255 bytes, one has {len(event.digest)}")
        key = event.label_key
        old = self.live(key)
        if old is not None and old.label != NO_LABEL and not old.folded:
            self.kept.delete(_KEPT.pack(old.label, old.seq))
        self.digests_.put(key, encode_state(MessageState(event.after, event.seq, folded=False)))
        if event.after != NO_LABEL:
            self.kept.put(_KEPT.pack(event.after, event.seq), b"")
        if event.message_id and (old is None or event.digest not in self.digests(event.message_id)):
            self.mids.put(self._hash(event.message_id) + _SEQ.pack(event.seq), event.digest)

    def mark_folded(self, event: Event) -> None:
        """Note that an event is now in the checkpoint."""
        key = event.label_key
        live = self.live(key)
        if live is None or live.seq != event.seq:
            return
        self.digests_.put(key, encode_state(live._replace(folded=True)))
        if live.label != NO_LABEL:
            self.kept.delete(_KEPT.pack(live.label, live.seq))

    def drop_persons(self, persons: Collection[int]) -> None:
        """Remove the states of labels of these persons, all of which are folded."""
        gone = [key for key, _ in self.digests_.scan() if person_of_key(key) in persons]
        for key in gone:
            self.digests_.delete(key)

    def _hash(self, message_id: str) -> bytes:
        raw = message_id.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(raw, digest_size=8, key=self._key).digest()
