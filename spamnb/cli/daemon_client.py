"""Find the daemon of the home, and send feedback through it or to the model directly.

Only the daemon writes a model that it serves, so commands that write check for it first. A user who
cannot read the home reaches only the socket, and trains under the own name. Without a daemon
the command uses a `FeedbackService` on the model.

Failure: StoreBusyError for a daemon that does not answer; nothing is written then.
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
"""socket of the shipped systemd unit"""
PING_S = 5.0


class RunningDaemon(NamedTuple):
    """The daemon that serves the home."""

    control: Path
    role: str
    login: str
    documents: bool

    @property
    def trust(self) -> Trust:
        """Trust level of this user's feedback."""
        return "admin" if self.role == "admin" else "user"


class FeedbackTarget(Protocol):
    """Accepts feedback: a local `FeedbackService`, or the daemon's."""

    @property
    def documents(self) -> bool:
        """True if the model is for plain text instead of mail."""

    def teach(self, feedback: Feedback) -> Answer:
        """Apply feedback on one message."""

    def undo(self, event: int, feedback: Feedback) -> Answer:
        """Undo an event."""


def served(session: CliSession) -> RunningDaemon | None:
    """Find the daemon that serves the home; None if there is none."""
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
    """Return True if no home is set and the default one has no model: use the system's daemon."""
    return not session.settings.home and not _exists(session.home / "data.mdb")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _ping(path: Path, home: str) -> RunningDaemon | None:
    """Ping the daemon at a socket; None if there is none, or if it serves another home."""
    from spamnb.endpoints.control.protocol import ControlClient

    try:
        caller = ControlClient(path, PING_S)
    except StoreBusyError as error:
        if isinstance(error.__cause__, TimeoutError):
            raise
        return None
    with caller:
        reply = caller.ask("ping").header
    if home and reply.get("home") != home:
        return None
    role, login = str(reply.get("role")), str(reply.get("login"))
    return RunningDaemon(path, role, login, documents=bool(reply.get("documents")))


def refuse_while_served(session: CliSession, what: str) -> None:
    """Raise RefusedError if a daemon serves the home: the command needs exclusive access."""
    if served(session):
        raise RefusedError(
            f"a daemon serves {session.home}",
            hint=f"stop it, then {what}; sending servers queue mail in the meantime",
        )


@contextmanager
def teacher(session: CliSession, *, who: str = "") -> Iterator[tuple[FeedbackTarget, Feedback]]:
    """Yield the target for feedback, and a `Feedback` to fill in with this user's name."""
    from spamnb.service.feedback.types import Feedback

    daemon = served(session)
    if daemon is not None:
        from spamnb.endpoints.control.protocol import ControlClient

        me = who or (speaker() if daemon.role == "admin" else "")
        with ControlClient(daemon.control) as caller:
            target = _DaemonTarget(caller, documents=daemon.documents)
            yield target, Feedback("", who=me, channel="cli", trust=daemon.trust)
        return
    from spamnb.service.feedback.review_queue import ReviewQueue
    from spamnb.service.feedback.service import FeedbackService

    with session.open(history=True) as model:
        review_queue = ReviewQueue(session.home / "review", session.settings.review)
        service = FeedbackService(model, review_queue, session.settings.feedback)
        yield service, Feedback("", who=who or speaker(), channel="cli", trust="admin")


class _DaemonTarget:
    def __init__(self, caller: ControlClient, *, documents: bool) -> None:
        self._caller = caller
        self.documents = documents

    def teach(self, feedback: Feedback) -> Answer:
        """Apply feedback on one message."""
        return self._caller.teach(feedback)

    def undo(self, event: int, feedback: Feedback) -> Answer:
        """Undo an event."""
        from spamnb.endpoints.control.protocol import answer_of, spoken

        return answer_of(self._caller.ask("undo", event=event, **spoken(feedback)).header)


def checked(answer: Answer) -> Answer:
    """Return the answer; raise the error of a refused one."""
    if answer.state == "refused":
        from spamnb.endpoints.control.protocol import failed

        raise failed({"error": answer.reason, **answer.facts})
    return answer
