"""What can be asked of a model that learns: teach, forget, undo. Values only."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spamnb.core.features.extract import Words
from spamnb.core.model.events import BulkChange, Ids


class WordSource(Protocol):
    """Where the texts of new features come from."""

    def words(self, ids: Ids) -> Words:
        """The texts of those of these ids (sorted, distinct) that it has."""


class SharedIds(NamedTuple):
    """Where a message's ids stand among those of all that were read with it."""

    ids: Ids
    """sorted and distinct"""
    rows: NDArray[np.integer[Any]]
    """its own, group after group"""


class Example(NamedTuple):
    """A message as a model sees it: who it is, and its ids by group."""

    digest: bytes
    message_id: str
    ids: tuple[Ids, ...]
    times: NDArray[np.uint32] | None = None
    words: WordSource | None = None
    shared_ids: SharedIds | None = None
    """spares sorting the ids of many messages once more"""


class Source(NamedTuple):
    """Whose word it is, by which way it came, and how much it weighs."""

    who: str = ""
    channel: str = "api"
    weight: float = 1.0
    """scales the step of the corrections; counts always move by one"""
    immediate: bool = False
    """a person's correction: no doubt, and repeated until the message is judged as they said"""


class Learn(NamedTuple):
    """A message has a label."""

    example: Example
    label: int
    source: Source
    time_us: int
    again: bool = False
    """take further steps even if the message has this label: it is judged otherwise all the same"""


class Forget(NamedTuple):
    """As if this message had never been taught (but for what others learnt meanwhile)."""

    digest: bytes
    source: Source
    time_us: int


class Undo(NamedTuple):
    """Take back one event of the journal."""

    event: int
    source: Source
    time_us: int


class BulkLoad(NamedTuple):
    """Add or drop counts of many features at once: an import, or an expiry."""

    bulk: BulkChange
    expire: bool
    source: Source
    time_us: int
    words: WordSource | None = None


Lesson = Learn | Forget | Undo | BulkLoad
