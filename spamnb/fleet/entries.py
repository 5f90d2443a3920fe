"""Entries of the log of a fleet: body and seal.

Failure: inconsistent bytes raise StoreDamagedError, those of a later version StoreVersionError;
FleetError for bytes that are sealed otherwise, by another key, or for another place.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

from spamnb.errors import FleetError, StoreDamagedError, StoreVersionError
from spamnb.model.events import Event
from spamnb.model.features import Words
from spamnb.store.codec import ByteCursor, EncodedEvent, chunk, encode_event, varint

VERSION = 2
"""the newest that this program reads and writes; from 2 on there are events that count scores, and
events that have an owner"""
SCORES_VERSION = 2
OWNERS = 2
MARK_BYTES = 8
NO_MARK = bytes(MARK_BYTES)
_U64 = np.dtype("<u8")


class Body(NamedTuple):
    """What a transaction has added to the store.

        u8 version | 8 bytes mark | varint count | count * chunk event
        u32 n | n * u64 id | n * u8 location | n * u8 size | texts

    The mark names the transaction; a host recognises its own entries by it. Events are encoded as
    in the journal, without their seq: the entry has it. Numbers are little endian.

    A fleet agrees on the version that its hosts write (`Head.level`); a later one begins when all
    hosts read it. All versions up to the newest are read.
    """

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


KEY_BYTES = 32
_NONCE, _TAG = 12, 32


class Place(NamedTuple):
    """Where in which log an entry stands."""

    epoch: str
    host: str
    first: int
    last: int
    upto: int

    def encode(self) -> bytes:
        """Return the place as bytes, different for each place."""
        return "\0".join(map(str, self)).encode()


class Sealer(Protocol):
    """Seals the bodies of entries, and opens them.

        chacha20    u8 1 | 12 bytes nonce | ciphertext and tag      ChaCha20-Poly1305
        hmac        u8 2 | 32 bytes tag | body                      HMAC-SHA256

    Both bind the body to its place (epoch, host, events): the keeper of the log can neither forge
    nor change nor move an entry. Only ChaCha20-Poly1305 hides the body, which names persons and
    contains words of mail; it needs the package `cryptography`. Each has its own key, derived from
    the fleet's.
    """

    def seal(self, body: bytes, place: Place) -> bytes:
        """Return the sealed body."""

    def open(self, sealed: bytes, place: Place) -> bytes:
        """Return the body."""


class ChachaSealer:
    """Encrypts and authenticates."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.ciphers.aead import (  # noqa: PLC0415 - an extra
                ChaCha20Poly1305,
            )
        except ImportError as error:
            raise FleetError(
                "fleet.seal is chacha20, but the package cryptography is not installed",
                hint="install spamnb[fleet], or set fleet.seal to hmac on all hosts",
            ) from error
        self._cipher = ChaCha20Poly1305(_derived(key, b"1"))
        self._invalid: type[Exception] = InvalidTag

    def seal(self, body: bytes, place: Place) -> bytes:
        nonce = os.urandom(_NONCE)
        return b"\1" + nonce + self._cipher.encrypt(nonce, body, place.encode())

    def open(self, sealed: bytes, place: Place) -> bytes:
        nonce, rest = sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :]
        try:
            if sealed[:1] == b"\1":
                return self._cipher.decrypt(nonce, rest, place.encode())
        except (self._invalid, ValueError):
            pass
        raise _not_sealed(place)


class HmacSealer:
    """Authenticates without encrypting."""

    def __init__(self, key: bytes) -> None:
        self._key = _derived(key, b"2")

    def seal(self, body: bytes, place: Place) -> bytes:
        return b"\2" + self._tag(body, place) + body

    def open(self, sealed: bytes, place: Place) -> bytes:
        tag, body = sealed[1 : 1 + _TAG], sealed[1 + _TAG :]
        if sealed[:1] != b"\2" or not hmac.compare_digest(tag, self._tag(body, place)):
            raise _not_sealed(place)
        return body

    def _tag(self, body: bytes, place: Place) -> bytes:
        about = place.encode()
        return hmac.digest(self._key, len(about).to_bytes(4, "little") + about + body, "sha256")


SEALERS: dict[str, Callable[[bytes], Sealer]] = {"chacha20": ChachaSealer, "hmac": HmacSealer}


def _derived(key: bytes, use: bytes) -> bytes:
    return blake2b(use, key=key, digest_size=KEY_BYTES, person=b"spamnb fleet").digest()


def _not_sealed(place: Place) -> FleetError:
    return FleetError(
        f"the entry of host {place.host} that ends with event {place.last} does not open with the"
        " key of this fleet",
        hint="compare fleet.key and fleet.seal of all hosts",
    )
