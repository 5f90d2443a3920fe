"""Encode and decode the corrections of one person. Pure.

All numbers are little endian; K - 1 values for each place, those of the second label first:

    u8 0 | u16 count | u16 place[count], rising | i32 value[K - 1, count]
    u8 1 | i32 value[K - 1, places]

The first form has the places that are not zero; it is used while it is shorter, which is below
two thirds of all places with two labels. A person with 3 labels given takes 8 KB, and 64 KB is the
most.

Failure: inconsistent bytes raise StoreDamagedError, an unknown form StoreVersionError.
"""

from __future__ import annotations

import numpy as np

from spamnb.core.persons.corrections import PLACE_BITS, PersonalCorrections, no_corrections
from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.store.rows.id_codec import Buffer

_FILLED, _ALL = 0, 1
_PLACES = 1 << PLACE_BITS


def encode_personal(personal: PersonalCorrections) -> bytes:
    """Encode the corrections of a person."""
    values = personal.values
    places = np.flatnonzero(values.any(axis=0))
    if 2 + len(places) * (2 + 4 * len(values)) >= values.size * 4:
        return bytes((_ALL,)) + values.astype("<i4").tobytes()
    parts = len(places), places, values[:, places]
    types = "<u2", "<u2", "<i4"
    return bytes((_FILLED,)) + b"".join(
        np.asarray(part, kind).tobytes() for part, kind in zip(parts, types, strict=True)
    )


def decode_personal(data: Buffer, labels: int) -> PersonalCorrections:
    """Decode the corrections of a person in a model with so many labels."""
    data, columns = bytes(data), labels - 1
    if data[:1] not in (b"\0", b"\1"):
        raise StoreVersionError(
            "corrections of a person in an unknown form",
            hint="use the newer program that wrote them",
        )
    body = data[1:]
    if data[0] == _ALL:
        _expect(len(body) == 4 * columns * _PLACES)
        values = np.frombuffer(body, "<i4").reshape(columns, _PLACES)
        return PersonalCorrections(values.astype(np.int32))
    count = int.from_bytes(body[:2], "little")
    _expect(len(body) == 2 + count * (2 + 4 * columns))
    places = np.frombuffer(body, "<u2", count, 2)
    _expect(bool((places[1:] > places[:-1]).all()) and int(places.max(initial=0)) < _PLACES)
    personal = no_corrections(labels)
    personal.values[:, places] = np.frombuffer(body, "<i4", offset=2 + 2 * count).reshape(
        columns, count
    )
    return personal


def _expect(is_right: bool) -> None:  # noqa: FBT001 - a condition
    if not is_right:
        raise StoreDamagedError("the corrections of a person are damaged", hint="run spamnb check")
