"""Requests to the engine (learn, forget, undo, bulk load), and the texts of words. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spamnb.model.costs import Costs
from spamnb.model.events import Blocks, BulkChange, Ids, merged_order
from spamnb.model.features import Words, join_pieces

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


class SharedIds(NamedTuple):
    """A message's ids as indexes into the ids of all messages parsed in the same batch."""

    ids: Ids
    """of the batch, sorted and distinct"""
    rows: NDArray[np.integer[Any]]
    """indexes of this message's ids, group after group"""


class Example(NamedTuple):
    """A message as the model sees it: its identity, and its feature ids by group."""

    digest: bytes
    message_id: str
    ids: tuple[Ids, ...]
    times: NDArray[np.uint32] | None = None
    words: WordSource | None = None
    shared_ids: SharedIds | None = None
    """avoids sorting the ids of a batch a second time"""
    blocks: Blocks | None = None
    """None for a text of a single block"""


class StoredMessage(Protocol):
    """What the journal and the history keep of a message."""

    @property
    def digest(self) -> bytes: ...
    @property
    def message_id(self) -> str: ...
    @property
    def ids(self) -> tuple[Ids, ...]: ...
    @property
    def times(self) -> NDArray[np.uint32] | None: ...
    @property
    def blocks(self) -> Blocks | None: ...


def stored_example(stored: StoredMessage, words: WordSource | None = None) -> Example:
    """Return a stored message as the model sees it."""
    return Example(
        stored.digest, stored.message_id, stored.ids, stored.times, words, blocks=stored.blocks
    )


class Source(NamedTuple):
    """The user that gave a label, the channel by which it arrived, and its weight."""

    user: str = ""
    channel: str = "api"
    weight: float = 1.0
    """scales the step of the corrections; counts always change by one"""
    immediate: bool = False
    """a person's correction: after the step, the model is changed until label and decision match"""
    person: int = 0
    """the person whose own corrections are changed until label and decision match, instead of the
    shared model's; 0 changes the shared model"""
    owner: int = 0
    """the id of the user that the label belongs to (`Filter.owner`); 0 for an administrator's"""
    costs: Costs | None = None
    """the costs by which the mail of this person is decided; None for those of the model"""


class Learn(NamedTuple):
    """Learn a message under a label."""

    example: Example
    label: int
    source: Source
    time_us: int
    again: bool = False
    """take further steps if the message has this label already, but the stored model, as it was
    before the batch, still classifies it otherwise"""
    pause_us: int = 0
    """no further steps within this time after the label: it is one act of the user"""


class Forget(NamedTuple):
    """Remove the training of a message."""

    digest: bytes
    source: Source
    time_us: int


class Undo(NamedTuple):
    """Undo one event of the journal."""

    event: int
    source: Source
    time_us: int


class BulkLoad(NamedTuple):
    """Add or remove counts of many rows in one event: an import, an expiry, or counts of scores."""

    bulk: BulkChange
    expire: bool
    source: Source
    time_us: int
    words: WordSource | None = None
    digest: bytes = b""
    """of an import; the import is refused while another one with this digest is in force"""
    scores: bool = False
    """whether the rows are those of `engine.site_scores`"""


TrainingRequest = Learn | Forget | Undo | BulkLoad
