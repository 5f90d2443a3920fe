"""Keeps the model open for writing in the learner, and retries to open a faulty one.

Only the learner writes the model while a daemon serves it. A missing or damaged model stops
training, not the process: requests get the error, and opening is retried with pauses that double.
New settings create a new feedback service; the old one is closed after its last request.

Failure: `service` raises the StoreError of the last attempt to open the model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from spamnb.endpoints.control.server import ControlLimits
from spamnb.errors import (
    SpamnbError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreMissingError,
    StoreReplacedError,
)
from spamnb.service.admin.model_config import ModelConfig, open_service
from spamnb.service.engine.filter import Filter
from spamnb.service.feedback.review_queue import ReviewQueue
from spamnb.service.feedback.service import FeedbackService
from spamnb.service.limits import SpoolLimits
from spamnb.service.telemetry.metrics import Meters

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LET_GO_S = 5.0
"""time for requests in progress when the model is replaced; clients wait at least ten seconds"""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LearnerConfig(ModelConfig):
    """Configuration of the learner."""

    control: ControlLimits = field(default_factory=ControlLimits)
    delegates: frozenset[int] = frozenset()
    """user ids that may act for other users"""
    spools: tuple[Path, ...] = ()
    """spool folders; empty: `spool` in the home, and the system's if the daemon's user owns it"""
    spool_limits: SpoolLimits = field(default_factory=SpoolLimits)


class _Held:
    """A feedback service, and the number of requests that use it."""

    def __init__(self, service: FeedbackService) -> None:
        self.service = service
        self.users = 0
        self.retired = False


class ModelHolder:
    """`AdminModel` of a daemon: holds the open model, or the error of opening it."""

    def __init__(self, config: LearnerConfig, meters: Meters) -> None:
        self.config = config
        self.fault = "not opened yet"
        self._meters = meters
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        """notified when a request no longer uses the model"""
        self._opening = threading.Lock()
        self._held: _Held | None = None
        self._error: StoreError = StoreBusyError("the model is not opened yet", hint="try again")
        self._due = 0.0
        self._pause_s = FIRST_PAUSE_S

    @property
    def review_queue(self) -> ReviewQueue:
        return self.config.review_queue

    @property
    def documents(self) -> bool:
        """True if the model is for plain text instead of mail; False while it is not open."""
        held = self._held
        return held is not None and held.service.documents

    @contextmanager
    def service(self) -> Iterator[FeedbackService]:
        """Yield the feedback service for one request; waits while the model is being opened."""
        if self._held is None:
            with self._opening:
                pass
        with self._lock:
            held = self._held
            if held is None:
                # A new exception per request: threads would share traceback and context.
                raise type(self._error)(str(self._error), hint=self._error.hint)
            held.users += 1
        try:
            yield held.service
        except (StoreDamagedError, StoreReplacedError) as error:
            self._drop(held, error)
            raise
        finally:
            self._leave(held)

    @contextmanager
    def reading(self) -> Iterator[Filter]:
        with self.service() as service:
            yield service.model

    def retry_open(self) -> None:
        """Try to open the model, if it is not open and the pause is over."""
        if self._held is None and time.monotonic() >= self._due:
            self.open()

    def open(self) -> None:
        """Try to open the model now."""
        with self._opening:
            if self._held is None:
                self._open()

    def _open(self) -> None:
        try:
            service = self._opened()
        except StoreError as error:
            self._failed(error)
            return
        with self._lock:
            self._held, self.fault, self._pause_s = _Held(service), "", FIRST_PAUSE_S

    def apply_settings(self, config: LearnerConfig) -> None:
        """Reopen the model with other settings; requests wait meanwhile."""
        with self._opening:
            with self._lock:
                old, self._held, self.config, self._due = self._held, None, config, 0.0
            self._retire(old)
            self._open()

    def replaced(self, replace: Callable[[], Result]) -> Result:
        """Run a function while the model is closed, then open it; other requests wait."""
        with self._opening:
            with self._lock:
                old, self._held, self._due = self._held, None, 0.0
                if old is not None and not self._left.wait_for(lambda: old.users == 0, LET_GO_S):
                    self._held = old
                    raise StoreBusyError("another request takes too long", hint="try again")
            self._retire(old)
            try:
                return replace()
            finally:
                self._open()

    def close(self) -> None:
        """Close the model, after the last request that uses it."""
        with self._lock:
            old, self._held = self._held, None
            self._error = StoreBusyError("the daemon is stopping", hint="try again later")
        self._retire(old)

    def _opened(self) -> FeedbackService:
        def warn(text: str) -> None:
            self.config.log({"event": "history", "level": "warning", "text": text})

        return open_service(self.config, warn, self._meters)

    def _failed(self, error: StoreError) -> None:
        """Log each fault once, and double the pause."""
        fault = f"{error}"
        if fault != self.fault:
            level = "warning" if isinstance(error, StoreMissingError) else "error"
            self.config.log({"event": "training is not possible", "level": level, "error": fault})
        with self._lock:
            self._error, self.fault = error, fault
            self._due = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _drop(self, held: _Held, error: StoreError) -> None:
        with self._lock:
            if self._held is held:
                self._held = None
        self._failed(error)
        self._retire(held)

    def _retire(self, held: _Held | None) -> None:
        if held is None:
            return
        with self._lock:
            held.retired = True
            last = held.users == 0
            held.users += last  # so that only this call closes it
        if last:
            self._close(held)

    def _leave(self, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            last = held.retired and held.users == 0
            self._left.notify_all()
        if last:
            self._close(held)

    def _close(self, held: _Held) -> None:
        try:
            held.service.model.close()
        except SpamnbError as error:
            self.config.log({"event": "model not closed", "level": "warning", "error": str(error)})
