"""Group commit: lessons of many threads share one transaction and its fsync.

Whoever gets the turn first takes along all lessons that wait by then; the others find theirs done.
No thread of our own, so nothing to start or stop. Invariants: lessons of one caller stay together
and in order; nobody's `run` returns before their lessons are on the disk or refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from spamnb.errors import RefusedError
from spamnb.service.engine.learner import Learner, LearningBatch
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Lesson
from spamnb.store.contract import Store, WriteView


@dataclass(slots=True, eq=False)
class _Request:
    requests: Sequence[Lesson]
    scored: bool
    receipts: list[Receipt] | None = None
    error: BaseException | None = field(default=None)


class ReplayableBatches:
    """Lessons that come bit by bit, and once more from the start whenever they are asked for.

    For a transaction may begin again: because the map had to grow, or to end what was interrupted.
    """

    def __init__(self, source: Iterable[Sequence[Lesson]]) -> None:
        self._source = source
        self._come: list[Sequence[Lesson]] = []

    def __iter__(self) -> Iterator[Sequence[Lesson]]:
        yield from self._come[:]
        for requests in self._source:
            self._come.append(requests)
            yield requests

    def stop(self) -> None:
        """Nothing comes any more."""
        self._source = ()


class Committer:
    """The one way from lessons into a store."""

    def __init__(self, store: Store, learner: Learner) -> None:
        self._store = store
        self.learner = learner
        self._turn = threading.Lock()
        self._waiting: list[_Request] = []
        self._list = threading.Lock()

    def run(self, requests: Sequence[Lesson], *, scored: bool = True) -> list[Receipt]:
        """Learn these, durably; a receipt for each."""
        entry = _Request(requests, scored)
        with self._list:
            self._waiting.append(entry)
        with self._turn:
            if entry.receipts is None and entry.error is None:
                with self._list:
                    taken, self._waiting = self._waiting, []
                self._commit(taken)
        if entry.error is not None:
            raise entry.error
        assert entry.receipts is not None
        return entry.receipts

    def run_arriving(self, arriving: ReplayableBatches) -> list[Receipt]:
        """Learn lessons as they come, all in one transaction; nobody else writes meanwhile."""

        def body(view: WriteView) -> list[Receipt]:
            learning_batch = LearningBatch(self.learner, view)
            receipts = [
                r for requests in arriving for r in learning_batch.take(requests, scored=False)
            ]
            learning_batch.close()
            return receipts

        with self._turn:
            receipts = self._store.transact(body)
            self.learner.committed()
        return receipts

    def _commit(self, entries: list[_Request]) -> None:
        try:
            self._together(entries)
        except RefusedError as error:
            # One of them would overflow: alone, the others are none the worse for it.
            if len(entries) == 1:
                entries[0].error = error
                return
            for entry in entries:
                self._commit([entry])
        except BaseException as error:  # noqa: BLE001 - each caller raises it in its own thread
            for entry in entries:
                entry.error = error

    def _together(self, entries: list[_Request]) -> None:
        requests = [request for entry in entries for request in entry.requests]
        scored = any(entry.scored for entry in entries)
        receipts = self._store.transact(
            lambda view: self.learner.run(view, requests, scored=scored)
        )
        self.learner.committed()
        start = 0
        for entry in entries:
            entry.receipts = receipts[start : start + len(entry.requests)]
            start += len(entry.requests)
