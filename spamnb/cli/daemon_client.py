"""Whether a daemon serves our home, and how to teach: through it, or by ourselves.

While a daemon serves a model it alone writes it, so commands that write ask here first. Who may not
read the home (a user of a mail server) reaches only the socket, and teaches as themselves. Without
a daemon the same desk stands here, over the model itself.

Failure: StoreBusyError for a daemon that is there and does not answer; nothing is written then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spamnb.cli.session import CliSession, speaker
from spamnb.errors import RefusedError, StoreBusyError

if TYPE_CHECKING:
    from spamnb.endpoints.control.protocol import ControlClient
    from spamnb.service.feedback.types import Answer, Feedback, Trust

WELL_KNOWN = Path("/run/spamnb/control.sock")
"""where the shipped unit puts it"""
PING_S = 5.0


class RunningDaemon(NamedTuple):
    """A daemon that serves our home."""

    control: Path
    role: str
    login: str
    documents: bool

    @property
    def trust(self) -> Trust:
        """How far our word goes there."""
        return "admin" if self.role == "admin" else "user"


class FeedbackTarget(Protocol):
    """Takes words on messages: the desk here, or a daemon's."""

    @property
    def documents(self) -> bool:
        """Whether they are on plain text that is no mail."""

    def teach(self, feedback: Feedback) -> Answer:
        """One word on one message."""

    def undo(self, event: int, feedback: Feedback) -> Answer:
        """Take back an event."""


def served(session: CliSession) -> RunningDaemon | None:
    """The daemon that serves our home; None if there is none."""
    from spamnb.settings import control_of

    home = os.path.realpath(session.home)
    ours = [control_of(session.settings, session.home), session.home / "control.sock"]
    for path in dict.fromkeys(ours):
        if found := _ping(path, home):
            return found
    if WELL_KNOWN in ours or not _exists(WELL_KNOWN):
        return None
    return _ping(WELL_KNOWN, "" if _roaming(session) else home)


def _roaming(session: CliSession) -> bool:
    """Nobody named a home, and we have no model of our own: the system's daemon is meant."""
    return not session.settings.home and not _exists(session.home / "data.mdb")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _ping(path: Path, home: str) -> RunningDaemon | None:
    """Ask who is there; None if nobody is, or if they serve another home."""
    from spamnb.endpoints.control.protocol import ControlClient

    try:
        caller = ControlClient(path, PING_S)
    except StoreBusyError as error:
        if isinstance(error.__cause__, TimeoutError):
            raise
        return None
    with caller:
        told = caller.ask("ping").header
    if home and told.get("home") != home:
        return None
    role, login = str(told.get("role")), str(told.get("login"))
    return RunningDaemon(path, role, login, documents=bool(told.get("documents")))


def refuse_while_served(session: CliSession, what: str) -> None:
    """For commands that need the model alone."""
    if served(session):
        raise RefusedError(
            f"a daemon serves {session.home}", hint=f"stop it, then {what}; mail waits meanwhile"
        )


@contextmanager
def teacher(session: CliSession, *, who: str = "") -> Iterator[tuple[FeedbackTarget, Feedback]]:
    """Whoever takes our words, and an empty word that says who speaks."""
    from spamnb.service.feedback.types import Feedback

    daemon = served(session)
    if daemon is not None:
        from spamnb.endpoints.control.protocol import ControlClient

        me = who or (speaker() if daemon.role == "admin" else "")
        with ControlClient(daemon.control) as caller:
            there = _DaemonTarget(caller, documents=daemon.documents)
            yield there, Feedback("", who=me, channel="cli", trust=daemon.trust)
        return
    from spamnb.service.feedback.review_queue import ReviewQueue
    from spamnb.service.feedback.service import FeedbackService

    with session.open(history=True) as model:
        review_queue = ReviewQueue(session.home / "review", session.settings.review)
        desk = FeedbackService(model, review_queue, session.settings.feedback)
        yield desk, Feedback("", who=who or speaker(), channel="cli", trust="admin")


class _DaemonTarget:
    """A daemon's desk."""

    def __init__(self, caller: ControlClient, *, documents: bool) -> None:
        self._caller = caller
        self.documents = documents

    def teach(self, feedback: Feedback) -> Answer:
        """One word on one message."""
        return self._caller.teach(feedback)

    def undo(self, event: int, feedback: Feedback) -> Answer:
        """Take back an event."""
        from spamnb.endpoints.control.protocol import answer_of, spoken

        return answer_of(self._caller.ask("undo", event=event, **spoken(feedback)).header)


def checked(answer: Answer) -> Answer:
    """Raise what was refused as the error that it is."""
    if answer.state == "refused":
        from spamnb.endpoints.control.protocol import failed

        raise failed({"error": answer.reason, **answer.facts})
    return answer
