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
from spamnb.service.engine.learner import Learner, Sitting
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Lesson
from spamnb.store.contract import Store, WriteView


@dataclass(slots=True, eq=False)
class _Request:
    lessons: Sequence[Lesson]
    scored: bool
    receipts: list[Receipt] | None = None
    error: BaseException | None = field(default=None)


class Arriving:
    """Lessons that come bit by bit, and once more from the start whenever they are asked for.

    For a transaction may begin again: because the map had to grow, or to end what was interrupted.
    """

    def __init__(self, source: Iterable[Sequence[Lesson]]) -> None:
        self._source = source
        self._come: list[Sequence[Lesson]] = []

    def __iter__(self) -> Iterator[Sequence[Lesson]]:
        yield from self._come[:]
        for lessons in self._source:
            self._come.append(lessons)
            yield lessons

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

    def run(self, lessons: Sequence[Lesson], *, scored: bool = True) -> list[Receipt]:
        """Learn these, durably; a receipt for each."""
        request = _Request(lessons, scored)
        with self._list:
            self._waiting.append(request)
        with self._turn:
            if request.receipts is None and request.error is None:
                with self._list:
                    taken, self._waiting = self._waiting, []
                self._commit(taken)
        if request.error is not None:
            raise request.error
        assert request.receipts is not None
        return request.receipts

    def run_arriving(self, arriving: Arriving) -> list[Receipt]:
        """Learn lessons as they come, all in one transaction; nobody else writes meanwhile."""

        def body(view: WriteView) -> list[Receipt]:
            sitting = Sitting(self.learner, view)
            receipts = [r for lessons in arriving for r in sitting.take(lessons, scored=False)]
            sitting.close()
            return receipts

        with self._turn:
            receipts = self._store.transact(body)
            self.learner.committed()
        return receipts

    def _commit(self, requests: list[_Request]) -> None:
        try:
            self._together(requests)
        except RefusedError as error:
            # One of them would overflow: alone, the others are none the worse for it.
            if len(requests) == 1:
                requests[0].error = error
                return
            for request in requests:
                self._commit([request])
        except BaseException as error:  # noqa: BLE001 - each caller raises it in its own thread
            for request in requests:
                request.error = error

    def _together(self, requests: list[_Request]) -> None:
        lessons = [lesson for request in requests for lesson in request.lessons]
        scored = any(request.scored for request in requests)
        receipts = self._store.transact(lambda view: self.learner.run(view, lessons, scored=scored))
        self.learner.committed()
        start = 0
        for request in requests:
            request.receipts = receipts[start : start + len(request.lessons)]
            start += len(request.lessons)
