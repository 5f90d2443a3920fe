"""Encode and decode the corrections of one person. Pure.

All numbers are little endian; K - 1 values for each place, those of the second label first:

    u8 0 | u16 count | u16 place[count], rising | i32 value[K - 1, count]
    u8 1 | i32 value[K - 1, places]

The first form has the places that are not zero; it is used while it is shorter: with two labels,
below two thirds of all places. A person that has given 3 labels takes 8 KB; the most is 64 KB.

Failure: inconsistent bytes raise StoreDamagedError, an unknown form StoreVersionError.
"""

from __future__ import annotations

import numpy as np

from spamnb.core.persons.corrections import (
    PLACE_BITS,
    FilledPlaces,
    PersonalCorrections,
    filled_places,
)
from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.store.rows.id_codec import Buffer

_FILLED, _ALL = 0, 1
_PLACES = 1 << PLACE_BITS


def encode_personal(personal: PersonalCorrections) -> bytes:
    """Encode the corrections of a person."""
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
