"""The texts of features that are new to the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spamnb.core.features.extract import Words, join_pieces
from spamnb.core.model.events import Ids
from spamnb.core.model.id_arrays import merged_order

_NO_WORDS = Words(np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.uint8), b"")


class WordSource(Protocol):
    """Gives the texts of new features."""

    def words(self, ids: Ids) -> Words:
        """Return the known texts among these ids; `ids` are sorted and distinct."""


class MergedWords:
    """The texts of several batches, as one word source."""

    def __init__(self, parts: Sequence[Words]) -> None:
        self._parts = [part for part in parts if len(part.ids)]

    def words(self, ids: Ids) -> Words:
        """Return the known texts among these ids."""
        if not self._parts or not len(ids):
            return _NO_WORDS
        if len(self._parts) == 1 and np.array_equal(self._parts[0].ids, ids):
            return self._parts[0]
        every = np.concatenate([part.ids for part in self._parts])
        order = merged_order(every)
        ranked = every[order]
        at = np.searchsorted(ranked, ids)
        at[at == len(ranked)] = 0
        chosen = order[at[ranked[at] == ids]]
        sizes = np.concatenate([part.sizes for part in self._parts]).astype(np.int64)
        texts = np.frombuffer(b"".join(part.texts for part in self._parts), np.uint8)
        starts = np.cumsum(sizes) - sizes
        return Words(
            every[chosen],
            np.concatenate([part.locations for part in self._parts])[chosen],
            sizes[chosen].astype(np.uint8),
            join_pieces(texts, starts[chosen], sizes[chosen]),
        )
