"""A thread that flushes a history soon after an entry was added. Must not know entries."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from spamnb.errors import SpamnbError

_FLUSH_S = 1.0


class Flusher:
    """A thread that calls a function at most a second after each wake."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._due = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def wake(self) -> None:
        """Request a flush."""
        if self._pid != os.getpid():
            # The first call, or the first in a child process, which has no threads.
            self._due, self._stop, self._pid = threading.Event(), threading.Event(), os.getpid()
            self._thread = threading.Thread(target=self._loop, name="history-flush", daemon=True)
            self._thread.start()
        if not self._due.is_set():
            self._due.set()

    def _loop(self) -> None:
        # Checked each time: `stop` may be called between the end of the wait and `clear`, which
        # would hide it.
        while not self._stop.is_set():
            self._due.wait()
            if self._stop.wait(_FLUSH_S):
                return
            self._due.clear()
            # The next `add` reports the failure; this thread must go on until then.
            with suppress(SpamnbError):
                self._run()

    def stop(self) -> None:
        """End the thread and wait for it."""
        if self._thread is not None and self._pid == os.getpid():
            self._stop.set()
            self._due.set()
            self._thread.join()
