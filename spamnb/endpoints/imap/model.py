"""The model, for the threads that read mailboxes: one message, or one batch, at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spamnb.core.policy.sender_evidence import evidence_of
from spamnb.service.engine.filter import Filter
from spamnb.service.limits import TeachingRules
from spamnb.service.scanning.model_session import Found, ModelSession, ScanFault
from spamnb.service.scanning.types import Notes


class MailboxModel:
    """Judges messages and looks up their labels."""

    def __init__(
        self, session: ModelSession, opened: Callable[[], Filter], rules: TeachingRules
    ) -> None:
        self._session = session
        self._rules = rules
        self._opened = opened
        """opens the model for reading"""
        self._lock = threading.Lock()

    def judge(self, raws: list[bytes], user: str) -> list[Found]:
        """Return the verdicts on messages of a user, who may label them later.

        Lists of wanted and unwanted senders apply as in the mail path.
        """
        with self._lock:
            local, lists = self._session.local, self._session.sender_lists((user,))
            rulings = [lists.rulings(evidence_of(raw, local)) for raw in raws]
            notes = [_notes(user, one.reason((user,))) for one in rulings]
            found = self._session.scan(raws, notes, [(user,)] * len(raws))
        return [
            one if isinstance(one, ScanFault) else ruling.applied(one).of(user)
            for one, ruling in zip(found, rulings, strict=True)
        ]

    def label_of(self, raw: bytes, user: str) -> str | None:
        """Return the label that a message is trained with for a user; None if it is not."""
        names = self._session.plan.persons
        with self._lock, self._opened() as model:
            return model.trained_label(raw, model.source_of(user, self._rules, names))

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


def _notes(user: str, reason: str) -> Notes:
    return {"to": user, "list": reason} if reason else {"to": user}
