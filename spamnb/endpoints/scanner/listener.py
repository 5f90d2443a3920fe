"""One scanner listener and its connections.

Questions to the learner wait in separate threads, so that they do not delay other work.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

from spamnb.endpoints.net.connection import ScanConnection
from spamnb.endpoints.net.listener import ScanListener
from spamnb.endpoints.net.networks import UNIX
from spamnb.endpoints.scanner.actions import AskDaemon
from spamnb.endpoints.scanner.params import ScannerParams
from spamnb.endpoints.scanner.session import ScannerSession
from spamnb.endpoints.scanner.teaching import PeerIdentity
from spamnb.errors import BugError, SpamnbError, StoreBusyError
from spamnb.service.admin.request import AdminResponse
from spamnb.service.scanning.types import Done, MessageAdviser, ScanRequest
from spamnb.service.telemetry.log import incident

ASKERS: Final = 4
"""threads that wait for the learner"""
MOST_QUESTIONS: Final = 64
"""waiting and asked together; further ones are answered as if the learner were away"""


class AskLearner(Protocol):
    """Asks for an administrative operation; called in a thread."""

    def __call__(self, op: str, body: bytes, **fields: Any) -> AdminResponse:
        """Return the reply; its error is raised."""


class ScannerListener(ScanListener[ScannerParams, MessageAdviser]):
    """The connections of one listener, and the threads that ask the learner."""

    def __init__(
        self, params: ScannerParams, scanner: MessageAdviser, *, ask: AskLearner, **shared: Any
    ) -> None:
        super().__init__(params, scanner, **shared)
        self._ask = ask
        self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="ask")
        self._questions = 0

    def protocol(self) -> ScannerConnection:
        """Make the protocol of a new connection."""
        return ScannerConnection(self)

    async def drain(self, seconds: float) -> None:
        """Drain as each listener does, then end the threads."""
        await super().drain(seconds)
        self._askers.shutdown(wait=False, cancel_futures=True)

    def ask(self, question: AskDaemon, done: Callable[[AdminResponse | SpamnbError], None]) -> None:
        """Ask the learner in a thread; `done` is called once, in this thread."""
        if self._questions >= MOST_QUESTIONS or self.closing:
            done(StoreBusyError("too many corrections at once", hint="try again"))
            return
        self._questions += 1

        def answered(future: asyncio.Future[AdminResponse | SpamnbError]) -> None:
            self._questions -= 1
            cancelled = StoreBusyError("the daemon is stopping", hint="try again")
            done(cancelled if future.cancelled() else future.result())

        work = partial(self._asked, question)
        self.loop.run_in_executor(self._askers, work).add_done_callback(answered)

    def _asked(self, question: AskDaemon) -> AdminResponse | SpamnbError:
        try:
            return self._ask(question.op, question.body, **question.fields)
        except SpamnbError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the boundary of a thread
            return BugError(f"internal error, incident {incident(self.log, 'scanner', error)}")


class ScannerConnection(ScanConnection):
    """The connection to a client, which may be any program of this machine."""

    __slots__ = ()

    name = "scanner"
    is_trusted = False

    def begin_session(self, peer: str, now: float) -> ScannerSession:
        """Begin the session of a new client."""
        identity = PeerIdentity(peer, _uid_of(self.transport) if peer == UNIX else None)
        return ScannerSession(self._listener.params, self._listener.meters, identity, now)

    def start(self, request: ScanRequest, done: Done) -> Callable[[str], None] | None:
        """Ask for the verdict on a message."""
        stop: Callable[[str], None] | None = self._listener.scanner.advise(request, done)
        return stop

    def eof_received(self) -> bool:
        """Pass the end of the client's input to the session; the client may still read."""
        self.run(self.session.input_ended)
        return True

    def _ask(self, action: AskDaemon) -> None:
        self._listener.ask(action, partial(self._asked, self.session.request))

    def _asked(self, request: object, answer: AdminResponse | SpamnbError) -> None:
        self.run(self.session.asked, request, answer)

    PERFORM = ScanConnection.PERFORM | {AskDaemon: _ask}

    def memory_cost(self, now: float) -> float:
        """Byte-seconds of a request that is not complete, or of a reply that is not read."""
        if self.session.state in ("scanning", "asking"):
            return 0.0
        began: float = self.session.began
        return self._held_bytes * (now - began)


def _uid_of(transport: asyncio.BaseTransport) -> int | None:
    """The user of a unix socket's peer at the time of connect (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    peer = transport.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])
