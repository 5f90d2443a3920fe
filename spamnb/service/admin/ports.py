"""What the operations need of the process that runs them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from spamnb.service.telemetry.metrics import Meters

if TYPE_CHECKING:
    from spamnb.service.admin.model_config import ModelConfig
    from spamnb.service.engine.filter import Filter
    from spamnb.service.feedback.review_queue import ReviewQueue
    from spamnb.service.feedback.service import FeedbackService
    from spamnb.service.telemetry.status import Facts


Result = TypeVar("Result")


class AdminModel(Protocol):
    """The model of a home: the daemon's `ModelHolder`, or `HomeModel` without a daemon."""

    @property
    def config(self) -> ModelConfig:
        """The configuration."""

    @property
    def fault(self) -> str:
        """Why the model cannot be used; empty if it can."""

    @property
    def documents(self) -> bool:
        """True if the model is for plain text instead of mail."""

    @property
    def review_queue(self) -> ReviewQueue:
        """The review queue, which needs no model."""

    def service(self) -> AbstractContextManager[FeedbackService]:
        """Open the feedback service for one request."""

    def reading(self) -> AbstractContextManager[Filter]:
        """Open the model for reading."""

    def open(self) -> None:
        """Try to open the model now."""

    def replaced(self, replace: Callable[[], Result]) -> Result:
        """Run a function while this process has the model closed; other requests wait."""


class AdminDaemon(Protocol):
    """The daemon that runs the operations."""

    def facts(self) -> Facts:
        """Return the facts of `status` that only a daemon has."""

    def meters(self) -> Meters:
        """Return the counters of all processes."""

    def set_bypass(self, *, on: bool) -> None:
        """Let all processes deliver mail unscanned, or scan it."""

    def reread_settings(self) -> None:
        """Start to read the settings again."""
