"""One person's corrections, added to those of the shared model.

A person's correction of feature f is v[s(p, f)], at one of 16,384 places:
    s(p, f) = ((f xor p) * FACTOR mod 2^64) >> 50,   p: the person's 64-bit id
The places of two persons are unrelated. Features that meet in one place share its value, and a
change is added once for each of them. Values are integers, so subtracting the same changes restores
every value, whatever was added in between.

A correction is 0 in sum over the labels, so the value of the first label is not stored: it is the
negative sum of the others. For ham and spam, one number remains.

Pure; must not know models. Units: 2^-20 nats. Fails with RefusedError for values out of range.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import Ids, Ints
from spamnb.errors import RefusedError

PLACE_BITS = 14
"""With 10 bits, one verdict in eight more is wrong (docs/decisions/0045)."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - PLACE_BITS)
_MOST = (1 << 31) - 1

Places = NDArray[np.uint16]


def person_id(name: str, key: bytes) -> int:
    """The id of a person in the model with this key; never 0, which names no person."""
    return int.from_bytes(blake2b(name.encode(), key=key, digest_size=8).digest()) or 1


def places_of(person: np.uint64 | Ids, ids: Ids) -> Places:
    """The place of each feature in the person's corrections; of each person for a column."""
    return (((ids ^ person) * _FACTOR) >> _SHIFT).astype(np.uint16)


class PersonalCorrections(NamedTuple):
    """The corrections of one person."""

    values: NDArray[np.int32]
    """[K - 1, places] of every label but the first"""

    def at(self, places: Places) -> Ints:
        """[K, m] the correction of each label at these places."""
        others = self.values.take(places, axis=1).astype(np.int64)
        return np.concatenate((-others.sum(axis=0, keepdims=True), others))

    def plus(self, places: Places, changes: Ints) -> PersonalCorrections:
        """The corrections after changes [K - 1, m] at these places, which may repeat."""
        sums = self.values.astype(np.int64)
        for line, change in zip(sums, changes, strict=True):
            np.add.at(line, places, change)
        if np.abs(sums).max() > _MOST:
            raise RefusedError("a person's correction would leave 2048 nats")
        return PersonalCorrections(sums.astype(np.int32))


class FilledPlaces(NamedTuple):
    """The same as a store has them: the places that are not zero alone.

    The arrays of a store are views, which end with its snapshot.
    """

    places: Places
    """rising"""
    values: NDArray[np.int32]
    """[K - 1, count]"""

    def spread(self) -> PersonalCorrections:
        """All places."""
        values = np.zeros((len(self.values), 1 << PLACE_BITS), np.int32)
        values[:, self.places] = self.values
        return PersonalCorrections(values)


def filled_places(personal: PersonalCorrections) -> FilledPlaces:
    """The places of a person that are not zero."""
    places = np.flatnonzero(personal.values.any(axis=0))
    return FilledPlaces(places.astype(np.uint16), personal.values[:, places])


class CorrectionReader:
    """Reads the corrections of persons at a few places; it keeps the memory between calls."""

    def __init__(self, labels: int) -> None:
        self._values = no_corrections(labels).values

    def at(self, filled: FilledPlaces, places: Places) -> NDArray[np.int32]:
        """[K - 1, m] of every label but the first; a third of the time that `spread` takes."""
        at = filled.places.astype(np.intp)
        for line, values in zip(self._values, filled.values, strict=True):
            line[at] = values
        found = self._values.take(places, axis=1)
        for line in self._values:
            line[at] = 0
        return found


def no_corrections(labels: int) -> PersonalCorrections:
    """The corrections of a person who has taught nothing."""
    return PersonalCorrections(np.zeros((labels - 1, 1 << PLACE_BITS), np.int32))
