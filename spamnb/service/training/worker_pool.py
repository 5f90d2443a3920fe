"""`Pool`: run tasks on all cores in forked worker processes, with results in order.

Tasks are given to the workers in turn and results are read in the same turn, so the order is fixed
and no worker starves. A forked worker starts in a millisecond with all modules imported; therefore
the caller must not have a store open or a thread running yet.

Failure: an exception in a worker is raised in the parent; a worker that dies raises BugError. Only
the parent receives an interrupt. If the `with` block raises, the workers are killed; otherwise
their pipes are closed, and they end.
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
from spamnb.service.interpreter import lower_priority

Task = TypeVar("Task")
Result = TypeVar("Result")

_BEHIND = 5
"""The workers' nice value: the parent does the last step alone, so it has priority."""
_MOST = 8
"""maximum number of workers for each core, because each uses its own memory"""
WINDOW = 20
"""pending tasks of each worker: it continues while the parent is busy with a transaction"""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended workers."""
    return sum(os.times()[:4])


class Pool(Generic[Task, Result]):
    """Workers that all run one function; `start` returns it, in each worker after the fork."""

    def __init__(self, start: Callable[[], Callable[[Task], Result]], jobs: int) -> None:
        context = get_context("fork")
        jobs = min(jobs, _MOST * cores())
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(jobs):
            parent_end, worker_end = context.Pipe()
            process = context.Process(
                target=_work, args=(start, worker_end, [*self._pipes, parent_end]), daemon=True
            )
            process.start()
            worker_end.close()
            self._pipes.append(parent_end)
            self._processes.append(process)

    def map(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks."""
        pending: deque[Connection] = deque()
        for number, task in enumerate(tasks):
            if len(pending) == WINDOW * len(self._pipes):
                yield self._result(pending.popleft())
            pipe = self._pipes[number % len(self._pipes)]
            self._send(pipe, task)
            pending.append(pipe)
        while pending:
            yield self._result(pending.popleft())

    def _send(self, pipe: Connection, task: Task) -> None:
        try:
            pipe.send_bytes(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BugError("a worker process ended before its work did") from error

    def _result(self, pipe: Connection) -> Result:
        try:
            good, value = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from a child process
        except (EOFError, ConnectionResetError) as error:
            raise BugError("a worker process ended before its work did") from error
        if not good:
            raise value
        result: Result = value
        return result

    def close(self) -> None:
        """Close the pipes, and wait until the workers end."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def __enter__(self) -> Pool[Task, Result]:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            # Finishing the pending tasks would take seconds.
            for process in self._processes:
                process.kill()
        self.close()


def tune_memory() -> None:
    """Tune garbage collector and allocator for parsing.

    The collector runs less often and skips imported objects, which saves a twentieth of the time:
    parsing makes many short-lived lists and tuples, but no cycles. Freeing one large block raises
    the allocator's mmap threshold, which avoids a third of the page faults.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    np.empty(_KEPT_BYTES, np.uint8)


_KEPT_BYTES = 24 << 20


def _work(
    start: Callable[[], Callable[[Any], Any]], pipe: Connection, others: list[Connection]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lower_priority(_BEHIND)
    tune_memory()
    for other in others:
        # The parent's ends: while they are open here, siblings do not notice the parent's death.
        other.close()
    answers: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_send, args=(pipe, answers), daemon=True).start()
    run = None
    try:
        while True:
            task = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the parent process
            try:
                run = run or start()
                answer = (True, run(task))
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                answer = (False, error)
            answers.put(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    except (EOFError, ConnectionResetError):
        return


def _send(pipe: Connection, answers: SimpleQueue[bytes]) -> None:
    """Send results from a thread, because a pipe takes only 64 KB and would block the worker."""
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send_bytes(answers.get())
