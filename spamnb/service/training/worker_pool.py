"""Work on all cores, results in order: forked processes, each with a pipe.

Tasks go round the workers in turn and results come back in the same turn, so the order is fixed
and no queue can starve. Fork because a worker then starts in a millisecond with everything
imported; so whoever calls must not have a store open nor a thread running yet.

Failure: an exception in a worker is raised here; a worker that dies raises BugError. An interrupt
reaches only the parent. A block that ends by an exception kills the workers; else their pipes
close, and they end.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np

from spamnb.errors import BugError

Task = TypeVar("Task")
Result = TypeVar("Result")

_BEHIND = 5
"""How nice workers are: who takes their results does the last part alone, so that comes first."""
_MOST = 8
"""Workers for each core at most, whatever is asked for: each takes memory of its own."""
WINDOW = 20
"""Tasks under way for each worker: it goes on while the parent is busy with a transaction."""


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool(Generic[Task, Result]):
    """Workers that all run one function; `start` makes it in each worker after the fork."""

    def __init__(self, start: Callable[[], Callable[[Task], Result]], jobs: int) -> None:
        context = get_context("fork")
        jobs = min(jobs, _MOST * cores())
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(start, theirs, [*self._pipes, ours]), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def map(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Results in the order of their tasks."""
        waiting: deque[Connection] = deque()
        for number, task in enumerate(tasks):
            if len(waiting) == WINDOW * len(self._pipes):
                yield self._result(waiting.popleft())
            pipe = self._pipes[number % len(self._pipes)]
            self._send(pipe, task)
            waiting.append(pipe)
        while waiting:
            yield self._result(waiting.popleft())

    def _send(self, pipe: Connection, task: Task) -> None:
        try:
            pipe.send_bytes(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BugError("a worker process ended before its work did") from error

    def _result(self, pipe: Connection) -> Result:
        try:
            good, value = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own child
        except (EOFError, ConnectionResetError) as error:
            raise BugError("a worker process ended before its work did") from error
        if not good:
            raise value
        result: Result = value
        return result

    def close(self) -> None:
        """Let the workers end, and wait for them."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def __enter__(self) -> Pool[Task, Result]:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            # Nobody waits for the tasks under way, which would take seconds.
            for process in self._processes:
                process.kill()
        self.close()


def settle_garbage() -> None:
    """Let the collector look less often, and not at what is imported: a twentieth of the time.

    Reading makes many short-lived lists and tuples and no cycles. And let the allocator keep what
    arrays give back: a large block that was freed once raises its threshold for mapping new ones,
    which takes a third of the page faults away.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    np.empty(_KEPT_BYTES, np.uint8)


_KEPT_BYTES = 24 << 20


def _work(
    start: Callable[[], Callable[[Any], Any]], pipe: Connection, others: list[Connection]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_BEHIND)
    settle_garbage()
    for other in others:
        # The parent's ends: while we hold them, no sibling would notice that the parent is gone.
        other.close()
    answers: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_send, args=(pipe, answers), daemon=True).start()
    run = None
    try:
        while True:
            task = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own parent
            try:
                run = run or start()
                answer = (True, run(task))
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                answer = (False, error)
            answers.put(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    except (EOFError, ConnectionResetError):
        return


def _send(pipe: Connection, answers: SimpleQueue[bytes]) -> None:
    """Answers wait here and not in the worker: a pipe holds only 64 KB."""
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send_bytes(answers.get())
