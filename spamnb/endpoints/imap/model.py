"""The model, for the threads that read mailboxes: one message, or one batch, at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spamnb.service.engine.filter import Filter
from spamnb.service.scanning.model_session import Found, ModelSession


class MailboxModel:
    """Judges messages and looks up their labels."""

    def __init__(self, session: ModelSession, opened: Callable[[], Filter]) -> None:
        self._session = session
        self._opened = opened
        """opens the model for reading"""
        self._lock = threading.Lock()

    def judge(self, raws: list[bytes], user: str) -> list[Found]:
        """Return the verdicts on messages of a user, who may later label them."""
        with self._lock:
            return self._session.scan(raws, [{"to": user} for _ in raws])

    def label_of(self, raw: bytes) -> str | None:
        """Return the label that a message is trained with; None if it is not."""
        with self._lock, self._opened() as model:
            return model.trained_label(raw)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the model closed for a block that opens it for writing in this process."""
        with self._lock:
            self._session.close()
            yield

    def replace_session(self, session: ModelSession) -> None:
        """Judge with other settings from now on."""
        with self._lock:
            self._session.close()
            self._session = session

    def close(self) -> None:
        """Close the model."""
        with self._lock:
            self._session.close()
