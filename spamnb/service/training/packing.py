"""Pack batches of parsed messages for transfer between processes, as arrays and bytes.

A worker parses messages, the parent learns them. A batch contains its distinct ids, which of them
each message has, and the texts of ids that this worker has not sent recently. A worker sends each
text at least once before the parent needs it; a table of sent ids, 8 MB for any corpus, avoids
sending most of them again.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.features.extract import Features, Words
from spamnb.core.model.events import Ids
from spamnb.service.engine.requests import Example, SharedIds
from spamnb.service.engine.words import WordSource
from spamnb.service.training.sources import Unreadable

_SENT_SLOTS = 1 << 20


class MessageName(NamedTuple):
    """A message's identity."""

    digest: bytes
    message_id: str


class PackedBatch(NamedTuple):
    """A parsed batch of messages."""

    names: list[MessageName | Unreadable]
    """one for each requested message, in order"""
    ids: Ids
    rows: NDArray[np.int32]
    sizes: NDArray[np.int32]
    """[messages * groups] number of rows of each group of each message"""
    times: NDArray[np.uint32] | None
    words: Words | None


class Packer:
    """Packs the batches of one worker."""

    def __init__(self, *, vocabulary: bool, occurrences: bool) -> None:
        self._sent = np.zeros(_SENT_SLOTS if vocabulary else 0, np.uint64)
        self._occurrences = occurrences

    def pack(self, names: list[MessageName | Unreadable], features: Features) -> PackedBatch:
        """Return what the parent needs of this batch."""
        return PackedBatch(
            names,
            features.ids,
            features.rows.astype(np.int32),
            features.sizes.astype(np.int32),
            features.times if self._occurrences else None,
            self._new_words(features) if len(self._sent) else None,
        )

    def _new_words(self, features: Features) -> Words:
        slots = (features.ids & np.uint64(_SENT_SLOTS - 1)).astype(np.int64)
        new = np.flatnonzero(self._sent[slots] != features.ids)
        self._sent[slots[new]] = features.ids[new]
        return features.words(features.ids[new])


def examples(
    packed: PackedBatch, groups: int, words: WordSource | None = None
) -> list[Example | Unreadable]:
    """Return the messages of a batch as the model sees them; `words` has all their texts."""
    ends = np.cumsum(packed.sizes).tolist()
    ids = packed.ids[packed.rows]
    found: list[Example | Unreadable] = []
    start, part = 0, 0
    for name in packed.names:
        if isinstance(name, Unreadable):
            found.append(name)
            continue
        bounds = [start, *ends[part : part + groups]]
        found.append(
            Example(
                name.digest,
                name.message_id,
                tuple(ids[a:b] for a, b in itertools.pairwise(bounds)),
                None if packed.times is None else packed.times[start : bounds[-1]],
                words,
                SharedIds(packed.ids, packed.rows[start : bounds[-1]]),
            )
        )
        start, part = bounds[-1], part + groups
    return found
