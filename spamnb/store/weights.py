"""What rows, texts and persons add to the sums of a model.

Every number is multiplied by a secret weight of its column and of its feature, and added modulo
2^64. The weights are odd, so one number that differs always changes its sum; the chance that
several that differ leave it equal is about 2^-64. The weights come from the model's key, which all
hosts have.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import numpy as np

from spamnb.model.events import Ids, Recipe, Records
from spamnb.model.features import Words
from spamnb.model.persons import PLACE_BITS, FilledPlaces
from spamnb.store.codec import empty_rows

_TEXT_BYTES = 256
_FACTORS = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
"""the factors of MurmurHash3's last step"""
_HALF, _ODD = np.uint64(33), np.uint64(1)


class Weights:
    """The weights of one model."""

    def __init__(self, key: bytes, labels: int) -> None:
        self._seed = np.uint64(int.from_bytes(blake2b(b"sums", key=key, digest_size=8).digest()))
        others = (labels - 1) << PLACE_BITS
        numbers = np.arange(2 * labels + 4 + _TEXT_BYTES + others, dtype=np.uint64)
        cuts = 2 * labels + 1, 2 * labels + 4, 2 * labels + 4 + _TEXT_BYTES
        # Such small numbers do not occur as ids, because ids are hashes.
        self._columns, self._words, self._bytes, places = np.split(self._mixed(numbers), cuts)
        self._places = places.reshape(labels - 1, -1)

    def _mixed(self, ids: Ids) -> Ids:
        """Return an odd weight of each id."""
        mixed = ids ^ self._seed
        for factor in _FACTORS:
            mixed *= factor
            mixed ^= mixed >> _HALF
        return mixed | _ODD

    def rows(self, ids: Ids, records: Records) -> int:
        """Return the sum of these rows; empty ones count nothing."""
        columns = *records.n.T, *records.w.T, records.day * ~empty_rows(records)
        total = np.zeros(len(ids), np.uint64)
        for column, weight in zip(columns, self._columns, strict=True):
            total += column.astype(np.uint64) * weight
        total *= self._mixed(ids)
        return int(total.sum())

    def texts(self, words: Words) -> Ids:
        """Return the part of each of these texts in the sum."""
        sizes = words.sizes.astype(np.intp)
        ends = sizes.cumsum()
        place = np.arange(len(words.texts)) - (ends - sizes).repeat(sizes)
        parts = np.zeros(len(words.texts) + 1, np.uint64)
        data = np.frombuffer(words.texts, np.uint8).astype(np.uint64)
        (data * self._bytes.take(place)).cumsum(out=parts[1:])
        total = parts.take(ends) - parts.take(ends - sizes)
        columns = words.locations, words.sizes, np.ones(len(sizes), np.uint8)
        for column, weight in zip(columns, self._words, strict=True):
            total += column.astype(np.uint64) * weight
        return total * self._mixed(words.ids)

    def person(self, person: int, filled: FilledPlaces | None) -> int:
        """Return the sum of a person's corrections."""
        if filled is None:
            return 0
        values = filled.values.astype(np.int64).view(np.uint64)
        weight = self._mixed(np.array([person], np.uint64))
        return int((values * self._places[:, filled.places] * weight).sum())


@lru_cache(maxsize=4)
def weights_of(key: bytes, labels: int) -> Weights:
    """Return the weights of the models with this key."""
    return Weights(key, labels)


def weights_for(recipe: Recipe) -> Weights:
    """Return the weights of a model."""
    return weights_of(recipe.key, len(recipe.labels))
