"""`NotedChanges`: a write view that keeps what a transaction adds, for the entry of the log."""

from __future__ import annotations

from typing import Any

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event
from spamnb.service.engine.words import MergedWords
from spamnb.store.contract import WriteView

_NO_IDS = np.zeros(0, np.uint64)


class NotedChanges:
    """A write view that also keeps the events and words that are added to it."""

    def __init__(self, view: WriteView) -> None:
        self._view = view
        self.events: list[Event] = []
        self.words: list[Words] = []

    def append(self, *events: Event) -> None:
        self._view.append(*events)
        self.events += events

    def put_words(self, words: Words) -> None:
        self._view.put_words(words)
        self.words.append(words)

    def merged_words(self) -> Words:
        """Return the words that were added, each once."""
        ids = [part.ids for part in self.words]
        return MergedWords(self.words).words(np.unique(np.concatenate(ids or [_NO_IDS])))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)
