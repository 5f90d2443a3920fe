"""The keeper: holds the model open for writing, or says why it is not, and tries again.

While a daemon serves a model this is the one place that writes it. A model that is missing or
damaged stops teaching, never the process: requests are answered with the fault, and opening is
tried again after a pause that doubles. New settings give a new desk; the old one is closed when
the last request that uses it has ended.

Failure: the StoreError with which the model could not be opened, for whoever asks for the desk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.costs import Costs
from spamnb.endpoints.control.server import ControlLimits
from spamnb.errors import (
    SpamnbError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreMissingError,
)
from spamnb.service.engine.filter import Filter
from spamnb.service.feedback.review_queue import ReviewQueue
from spamnb.service.feedback.service import FeedbackService
from spamnb.service.limits import ReviewLimits, SpoolLimits, TeachingRules
from spamnb.service.maintenance.expiry import ExpiryRules, newest_us
from spamnb.service.maintenance.expiry_clock import ClockMark, expiry_mark
from spamnb.service.telemetry.metrics import Meters
from spamnb.service.telemetry.status import QUIET_DAYS
from spamnb.store.history.limits import HistoryLimits
from spamnb.store.history.verdict_history import History

LOG = logging.getLogger("spamnb.learner")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """All that the learner is told."""

    home: Path
    local: LocalHosts = field(default_factory=LocalHosts)
    costs: Costs = field(default_factory=Costs)
    store_limit_bytes: int = 0
    history: HistoryLimits = field(default_factory=HistoryLimits)
    teaching: TeachingRules = field(default_factory=TeachingRules)
    review: ReviewLimits = field(default_factory=ReviewLimits)
    expiry: ExpiryRules = field(default_factory=lambda: ExpiryRules(400, 400, 1))
    control: ControlLimits = field(default_factory=ControlLimits)
    delegates: frozenset[int] = frozenset()
    """uids that may name the person they speak for"""
    spools: tuple[Path, ...] = ()
    """where feedback is left; empty: `spool` in the home, and the system's if it is ours"""
    spool_limits: SpoolLimits = field(default_factory=SpoolLimits)
    quarantine: Path | None = None
    """`quarantine` in the home if it is not given; only its size is told"""
    quiet_days: int = QUIET_DAYS


class _Held:
    """A desk, and how many use it."""

    def __init__(self, desk: FeedbackService) -> None:
        self.desk = desk
        self.users = 0
        self.retired = False


class ModelHolder:
    """The model's place in the learner."""

    def __init__(self, learning: LearnerConfig, meters: Meters) -> None:
        self.learning = learning
        self.fault = "not opened yet"
        self._meters = meters
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._held: _Held | None = None
        self._error: StoreError = StoreBusyError("the model is not opened yet", hint="try again")
        self._due = 0.0
        self._pause_s = FIRST_PAUSE_S

    @property
    def review_queue(self) -> ReviewQueue:
        """The review list, which needs no model."""
        return ReviewQueue(self.learning.home / "review", self.learning.review)

    @property
    def documents(self) -> bool:
        """Whether the model judges plain text that is no mail; False while it is not open."""
        held = self._held
        return held is not None and held.desk.documents

    @contextmanager
    def desk(self) -> Iterator[FeedbackService]:
        """The desk, for one request; while the model is being opened, requests wait."""
        if self._held is None:
            with self._opening:
                pass
        with self._lock:
            held = self._held
            if held is None:
                # One of its own for each: threads would share traceback and context.
                raise type(self._error)(str(self._error), hint=self._error.hint)
            held.users += 1
        try:
            yield held.desk
        except StoreDamagedError as error:
            self._drop(held, error)
            raise
        finally:
            self._leave(held)

    def read_clock(self, *, trust: bool = False) -> ClockMark:
        """Tell what is known of the clock: by the newest event, in a home without a record."""
        with self.desk() as desk:
            return expiry_mark(self.learning.home, newest_us(desk.model.store), trust=trust)

    def retry_open(self) -> None:
        """Try to open the model, if it is not open and time is up."""
        if self._held is None and time.monotonic() >= self._due:
            self.open()

    def open(self) -> None:
        """Try to open the model now."""
        with self._opening:
            if self._held is None:
                self._open()

    def _open(self) -> None:
        try:
            desk = self._opened()
        except StoreError as error:
            self._failed(error)
            return
        with self._lock:
            self._held, self.fault, self._pause_s = _Held(desk), "", FIRST_PAUSE_S

    def apply_settings(self, learning: LearnerConfig) -> None:
        """Go on by other settings; who asks meanwhile waits, and is not sent away."""
        with self._opening:
            with self._lock:
                old, self._held, self.learning, self._due = self._held, None, learning, 0.0
            self._retire(old)
            self._open()

    def close(self) -> None:
        """Let go of the model; whoever uses it still closes it."""
        with self._lock:
            old, self._held = self._held, None
            self._error = StoreBusyError("the daemon ends", hint="try again")
        self._retire(old)

    def _opened(self) -> FeedbackService:
        learning = self.learning
        model = Filter.open(
            learning.home,
            history=False,
            local=learning.local,
            costs=learning.costs,
            limit_bytes=learning.store_limit_bytes,
        )
        try:
            model.history = History.open(learning.home / "history", learning.history)
            if model.history.warning:
                LOG.warning("%s", model.history.warning)
            return FeedbackService(model, self.review_queue, learning.teaching, self._meters)
        except BaseException:
            model.close()
            raise

    def _failed(self, error: StoreError) -> None:
        """Say it once for each fault, and wait longer each time."""
        told = f"{error}"
        if told != self.fault:
            level = logging.WARNING if isinstance(error, StoreMissingError) else logging.ERROR
            LOG.log(level, "nothing can be learnt: %s", told)
        with self._lock:
            self._error, self.fault = error, told
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
            held.users += last  # nobody else closes it
        if last:
            _close(held)

    def _leave(self, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            last = held.retired and held.users == 0
        if last:
            _close(held)


def _close(held: _Held) -> None:
    try:
        held.desk.model.close()
    except SpamnbError as error:
        LOG.warning("the model was not closed well: %s", error)
