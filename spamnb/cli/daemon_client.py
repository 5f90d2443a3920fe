"""Find the daemon of the home, and ask it for operations; without a daemon run them here.

Only the daemon writes a model that it serves, so commands that write check for it first. A user
without access to the home reaches only the socket, and trains under the own name. Without a daemon
`LocalClient` runs the same operations in this process.

Failure: StoreBusyError for a daemon that does not answer; nothing is written then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spamnb.cli.printing import warn
from spamnb.cli.session import CliSession, speaker
from spamnb.errors import RefusedError, StoreBusyError

if TYPE_CHECKING:
    from spamnb.endpoints.control.protocol import ControlClient
    from spamnb.service.admin.client import AdminClient
    from spamnb.service.admin.home_model import LocalClient
    from spamnb.service.feedback.types import Answer, Feedback

WELL_KNOWN = Path("/run/spamnb/control.sock")
"""socket of the shipped systemd unit"""
PING_S = 5.0


class RunningDaemon(NamedTuple):
    """The daemon that serves the home."""

    control: Path
    role: str
    login: str
    client: ControlClient
    """the connection by which it was found"""


def served(session: CliSession) -> RunningDaemon | None:
    """Find the daemon that serves the home; None if there is none. Its client is closed."""
    if found := _connected(session):
        found.client.close()
    return found


def _connected(session: CliSession) -> RunningDaemon | None:
    """Connect to the daemon that serves the home; None if there is none."""
    from spamnb.settings import control_of

    home = os.path.realpath(session.home)
    of_home = [control_of(session.settings, session.home), session.home / "control.sock"]
    for path in dict.fromkeys(of_home):
        if found := _ping(path, home):
            return found
    if WELL_KNOWN in of_home or not _exists(WELL_KNOWN):
        return None
    if _roaming(session):
        return _ping(WELL_KNOWN, "")
    found = _ping(WELL_KNOWN, home)
    if found is None:
        _warn_of_another(WELL_KNOWN, home)
    return found


def _warn_of_another(path: Path, home: str) -> None:
    """Warn if a daemon serves another home that this user may write."""
    if not (found := _ping(path, "")):
        return
    served_home = str(found.client.ask("ping").header.get("home", ""))
    found.client.close()
    if served_home != home and os.access(served_home, os.W_OK):
        warn(
            f"the daemon serves {served_home}, and this command uses {home} - add --home "
            f"{served_home}, or name one of them as `home` in the settings"
        )


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
        if isinstance(error.__cause__, TimeoutError | BlockingIOError):
            raise
        return None
    try:
        reply = caller.ask("ping").header
    except BaseException:
        caller.close()
        raise
    if home and reply.get("home") != home:
        caller.close()
        return None
    return RunningDaemon(path, str(reply.get("role")), str(reply.get("login")), caller)


def refuse_while_served(session: CliSession, what: str) -> None:
    """Raise RefusedError if a daemon serves the home: the command needs exclusive access."""
    if served(session):
        raise RefusedError(
            f"a daemon serves {session.home}",
            hint=f"stop it, then {what}; sending servers queue mail in the meantime",
        )


@contextmanager
def asking(session: CliSession, *, long: bool = False) -> Iterator[AdminClient]:
    """Yield a client of the daemon, or one that runs the operations here without a daemon.

    `long`: the operation may take minutes.
    """
    with _client(session, _connected(session), long=long) as client:
        yield client


def _client(
    session: CliSession, daemon: RunningDaemon | None, *, long: bool = False
) -> ControlClient | LocalClient:
    if daemon is not None:
        from spamnb.endpoints.control.protocol import ANSWER_S, LONG_S

        daemon.client.wait_s = LONG_S if long else ANSWER_S
        return daemon.client
    from spamnb.service.admin.home_model import LocalClient

    return LocalClient(session.model_config(), speaker(), warn)


@contextmanager
def teacher(session: CliSession) -> Iterator[tuple[AdminClient, Feedback]]:
    """Yield a client, and a `Feedback` to fill in with this user's name."""
    from spamnb.service.feedback.types import Feedback

    daemon = _connected(session)
    me = Feedback("", user=speaker(), channel="cli", trust="admin")
    if daemon is not None and daemon.role != "admin":
        me = Feedback("", channel="cli", trust="user")
    with _client(session, daemon) as client:
        yield client, me


def source_fields() -> dict[str, Any]:
    """Return the fields that name this user as the source of a change."""
    return {"channel": "cli", "trust": "admin", "for": speaker()}


def checked(answer: Answer) -> Answer:
    """Return the answer; raise the error of a refused one."""
    if answer.state == "refused":
        from spamnb.service.admin.client import failed

        raise failed({"error": answer.reason, **answer.facts})
    return answer
