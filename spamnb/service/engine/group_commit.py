"""Group commit: training requests of several threads share one transaction and its fsync.

The thread that gets the lock first commits all requests that are pending then; the other threads
find their receipts ready. There is no background thread to start or stop. Invariants: requests of
one caller stay together and in order; `run` returns only after its requests are on disk or
refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from spamnb.errors import RefusedError
from spamnb.service.engine.learner import Learner, LearningBatch
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import TrainingRequest
from spamnb.store.contract import Store, WriteView


@dataclass(slots=True, eq=False)
class _Request:
    requests: Sequence[TrainingRequest]
    scored: bool
    receipts: list[Receipt] | None = None
    error: BaseException | None = field(default=None)


class ReplayableBatches:
    """Batches of requests from an iterator; each iteration begins again with the first batch.

    A transaction is run a second time when the map had to grow, or to finish interrupted work.
    """

    def __init__(self, source: Iterable[Sequence[TrainingRequest]]) -> None:
        self._source = source
        self._received: list[Sequence[TrainingRequest]] = []

    def __iter__(self) -> Iterator[Sequence[TrainingRequest]]:
        yield from self._received[:]
        for requests in self._source:
            self._received.append(requests)
            yield requests

    def stop(self) -> None:
        """Take nothing more from the source."""
        self._source = ()


class Committer:
    """Runs training requests on a store, one transaction at a time."""

    def __init__(self, store: Store, learner: Learner) -> None:
        self._store = store
        self.learner = learner
        self.committing = threading.Lock()
        self._pending: list[_Request] = []
        self._pending_lock = threading.Lock()

    def run(self, requests: Sequence[TrainingRequest], *, scored: bool = True) -> list[Receipt]:
        """Run these requests and return a receipt for each, when the changes are on disk."""
        entry = _Request(requests, scored)
        with self._pending_lock:
            self._pending.append(entry)
        with self.committing:
            if entry.receipts is None and entry.error is None:
                with self._pending_lock:
                    entries, self._pending = self._pending, []
                self._commit(entries)
        if entry.error is not None:
            raise entry.error
        assert entry.receipts is not None
        return entry.receipts

    def run_stream(self, batches: ReplayableBatches) -> list[Receipt]:
        """Run requests as they arrive, in one transaction that blocks other writers meanwhile."""

        def body(view: WriteView) -> list[Receipt]:
            learning_batch = LearningBatch(self.learner, view)
            receipts = [
                r for requests in batches for r in learning_batch.take(requests, scored=False)
            ]
            learning_batch.close()
            return receipts

        with self.committing:
            receipts = self._store.transact(body)
            self.learner.committed()
        return receipts

    def _commit(self, entries: list[_Request]) -> None:
        try:
            self._commit_together(entries)
        except RefusedError as error:
            # One request would overflow a number: commit each entry separately.
            if len(entries) == 1:
                entries[0].error = error
                return
            for entry in entries:
                self._commit([entry])
        except BaseException as error:  # noqa: BLE001 - each caller raises it in its own thread
            for entry in entries:
                entry.error = error

    def _commit_together(self, entries: list[_Request]) -> None:
        requests = [request for entry in entries for request in entry.requests]
        scored = any(entry.scored for entry in entries)
        receipts = self._learnt(requests, scored=scored)
        start = 0
        for entry in entries:
            entry.receipts = receipts[start : start + len(entry.requests)]
            start += len(entry.requests)

    def _learnt(self, requests: Sequence[TrainingRequest], *, scored: bool) -> list[Receipt]:
        """Run requests in one transaction."""
        receipts = self._store.transact(
            lambda view: self.learner.run(view, requests, scored=scored)
        )
        self.learner.committed()
        return receipts
