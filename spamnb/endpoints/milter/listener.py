"""One milter listener and its connections.

If a connection is closed at once, the MTA takes the filter for being down, and does what its
`milter_default_action` or `F=` says.
"""

from __future__ import annotations

from collections.abc import Callable

from spamnb.endpoints.milter.params import MilterParams
from spamnb.endpoints.milter.session import PROGRESS_S, MilterSession
from spamnb.endpoints.net.connection import ScanConnection
from spamnb.endpoints.net.listener import ScanListener
from spamnb.service.scanning.types import Done, MessageScanner, ScanRequest, ScanResult


class MilterListener(ScanListener[MilterParams, MessageScanner]):
    """The connections of one listener."""

    def protocol(self) -> MilterConnection:
        """Make the protocol of a new connection."""
        return MilterConnection(self)


class MilterConnection(ScanConnection):
    """The connection to an MTA. It is never ended for others: an MTA sends without pauses."""

    __slots__ = ("_progress_at",)

    name = "milter"
    is_trusted = True

    def begin_session(self, peer: str, now: float) -> MilterSession:
        """Begin the session of a new MTA."""
        return MilterSession(self._listener.params, self._listener.meters, peer, now)

    def start(self, request: ScanRequest, done: Done) -> Callable[[str], None] | None:
        """Scan a message, or only mark it; progress is due after some time."""
        if self.session.params.border:
            done(ScanResult("relay", self._listener.scanner.border(request)))
            return None
        self._progress_at = self._listener.loop.time() + PROGRESS_S
        stop: Callable[[str], None] | None = self._listener.scanner.scan(request, done)
        return stop

    def check_time(self, now: float) -> None:
        """Handle a passed deadline; send progress."""
        super().check_time(now)
        if self.session.state == "scanning" and now >= self._progress_at:
            self._progress_at = now + PROGRESS_S
            self.run(self.session.progress)
