"""Tables of persons and of senders: entries of the table `meta`. Pure.

All numbers are little endian. Failure: inconsistent bytes raise StoreDamagedError, an unknown form
StoreVersionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.model.persons import PLACE_BITS, FilledPlaces, PersonalCorrections, filled_places
from spamnb.policy.senders import OWNERS, SenderList
from spamnb.store.codec import Buffer

if TYPE_CHECKING:
    from spamnb.store.rows import Table

_FILLED, _ALL = 0, 1
_PLACES = 1 << PLACE_BITS


def encode_personal(personal: PersonalCorrections) -> bytes:
    """Encode the corrections of a person.

    K - 1 values for each place, those of the second label first:

        u8 0 | u16 count | u16 place[count], rising | i32 value[K - 1, count]
        u8 1 | i32 value[K - 1, places]

    The first form has the places that are not zero; it is used while it is shorter: with two
    labels, below two thirds of all places. A person that has given 3 labels takes 8 KB; the most is
    64 KB.
    """
    places, values = filled_places(personal)
    if 2 + len(places) * (2 + 4 * len(values)) >= personal.values.size * 4:
        return bytes((_ALL,)) + personal.values.astype("<i4").tobytes()
    parts = len(places), places, values
    types = "<u2", "<u2", "<i4"
    return bytes((_FILLED,)) + b"".join(
        np.asarray(part, kind).tobytes() for part, kind in zip(parts, types, strict=True)
    )


def decode_personal(data: Buffer, labels: int) -> FilledPlaces:
    """Decode the corrections of a person in a model with so many labels: views of the data."""
    columns, size = labels - 1, len(data)
    if not size or data[0] > _ALL:
        raise StoreVersionError(
            "corrections of a person in an unknown form",
            hint="use the newer program that wrote them",
        )
    if data[0] == _ALL:
        _expect(size == 1 + 4 * columns * _PLACES)
        values = np.frombuffer(data, "<i4", offset=1).reshape(columns, _PLACES)
        return filled_places(PersonalCorrections(values))
    count = int.from_bytes(data[1:3], "little")
    _expect(size == 3 + count * (2 + 4 * columns))
    places = np.frombuffer(data, "<u2", count, 3)
    if count:
        # `all` takes three times as long.
        _expect(not np.count_nonzero(places[1:] <= places[:-1]) and int(places[-1]) < _PLACES)
    values = np.frombuffer(data, "<i4", offset=3 + 2 * count).reshape(columns, count)
    return FilledPlaces(places, values)


def _expect(is_right: bool) -> None:  # noqa: FBT001 - a condition
    if not is_right:
        raise StoreDamagedError("the corrections of a person are damaged", hint="run spamnb check")


LIVE, BASE = b"person ", b"base person "


class PersonalTable:
    """The corrections of all persons, in one of the two states.

        person u64     live corrections           base person u64     those of the checkpoint

    The id is big-endian, so entries are in its order. A model without persons has none of these
    entries. A row without corrections is removed.
    """

    def __init__(self, meta: Table, state: bytes, labels: int) -> None:
        self._meta = meta
        self._state = state
        self._labels = labels

    def get(self, person: int) -> FilledPlaces | None:
        """Return the corrections of a person; None if there are none."""
        value = self._meta.get(self._key(person))
        return None if value is None else decode_personal(value, self._labels)

    def put(self, person: int, personal: PersonalCorrections | None) -> None:
        """Replace the corrections of a person; None removes them."""
        if personal is None:
            self._meta.delete(self._key(person))
        else:
            self._meta.put(self._key(person), encode_personal(personal))

    def sizes(self) -> dict[int, int]:
        """Return the size of each person's corrections, in bytes; nothing is decoded."""
        return {self._person(key): len(value) for key, value in self._entries()}

    def all(self) -> Iterator[tuple[int, FilledPlaces]]:
        """Yield all persons in order of their ids."""
        for key, value in self._entries():
            yield self._person(key), decode_personal(value, self._labels)

    def _entries(self) -> Iterator[tuple[bytes, Buffer]]:
        every = self._meta.scan(self._state)
        return takewhile(lambda entry: entry[0].startswith(self._state), every)

    def _person(self, key: bytes) -> int:
        return int.from_bytes(key[len(self._state) :])

    def _key(self, person: int) -> bytes:
        return self._state + person.to_bytes(8)


SENDERS = b"senders "
_FORM = b"\1"


def encode_senders(senders: SenderList) -> bytes:
    """Encode a list."""
    return _FORM + f"{senders.kind} {senders.name}".encode() + senders.lines


def decode_senders(data: Buffer) -> SenderList:
    """Decode a list; its entries are read when they are needed."""
    data = bytes(data)
    if data[:1] != _FORM:
        raise StoreVersionError(
            "a list of senders in an unknown form", hint="use the newer program that wrote it"
        )
    head, newline, lines = data[1:].partition(b"\n")
    kind, _, name = head.decode("utf-8", "replace").partition(" ")
    owner_kind = next((one for one in OWNERS if one == kind), None)
    if owner_kind is None or not lines.isascii():
        raise StoreDamagedError("a list of senders is damaged", hint="run spamnb check")
    return SenderList(owner_kind, name, newline + lines)


class SenderTable:
    """The lists of all owners.

        senders OWNER       u8 1 | KIND NAME | for each entry: new line SENDER WORD TIME

    OWNER is `ListOwner.key`. The value alone names a person in clear, so removing the entry removes
    the name. A model without lists has no such entry.
    """

    def __init__(self, meta: Table) -> None:
        self._meta = meta

    def get(self, owner: bytes) -> SenderList | None:
        """Return the list of an owner; None if there is none."""
        value = self._meta.get(SENDERS + owner)
        return None if value is None else decode_senders(value)

    def put(self, owner: bytes, senders: SenderList | None) -> None:
        """Replace the list of an owner; one without entries is removed."""
        if senders:
            self._meta.put(SENDERS + owner, encode_senders(senders))
        else:
            self._meta.delete(SENDERS + owner)

    def all(self) -> Iterator[tuple[bytes, SenderList]]:
        """Yield the lists of all owners, with their keys, in order of these."""
        for key, value in self._meta.scan(SENDERS):
            if not key.startswith(SENDERS):
                return
            yield key[len(SENDERS) :], decode_senders(value)
