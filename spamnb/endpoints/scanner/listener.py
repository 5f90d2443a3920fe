"""One scanner listener and its connections.

Questions to the learner wait in threads of their own, so that they hold up no other work. Failure:
an exception ends one connection, is counted, and is logged with an incident id.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Final, Protocol, cast

from spamnb.endpoints.net.listener import ScanListener
from spamnb.endpoints.net.networks import UNIX
from spamnb.endpoints.net.peers import peer_of
from spamnb.endpoints.net.scan_actions import LogMessage, StartScan, StopScan
from spamnb.endpoints.scanner.actions import AskDaemon, EndConnection, SendReply
from spamnb.endpoints.scanner.params import ScannerParams
from spamnb.endpoints.scanner.session import ScannerSession
from spamnb.endpoints.scanner.teaching import PeerIdentity
from spamnb.errors import BugError, SpamnbError, StoreBusyError
from spamnb.service.admin.request import AdminResponse
from spamnb.service.scanning.types import MessageAdviser, ScanRequest, ScanResult
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
            cancelled = StoreBusyError("the daemon stops", hint="try again")
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


class ScannerConnection(asyncio.Protocol):
    """The connection to a client: runs its session."""

    session: ScannerSession
    _transport: asyncio.Transport

    def __init__(self, listener: ScannerListener) -> None:
        self._listener = listener
        self._stop_scan: Callable[[str], None] | None = None
        self._held_bytes = 0
        self._share = listener.budget.shares[False]
        self._waits_for_memory = False

    def run(self, event: Callable[..., None], *args: Any) -> None:
        """Pass an event to the session, and perform the actions that follow."""
        try:
            event(*args, self._listener.loop.time())
            while self.session.actions:
                action = self.session.actions.popleft()
                self._PERFORM[type(action)](self, action)
            self._account()
        except Exception as error:  # noqa: BLE001 - the boundary of a connection
            self._listener.meters.count("faults")
            incident(self._listener.log, "scanner", error)
            self.break_off()

    def break_off(self) -> None:
        """Close the connection immediately."""
        self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if it has no request."""
        if self.session.is_idle and not self.session.closed:
            self.run(self.session.close)

    def check_time(self, now: float) -> None:
        """Handle a passed deadline; account for what the client has read of its reply."""
        self._account()
        if self._waits_for_memory or self.session.deadline > now:
            return
        if self.session.closed:
            self.break_off()
        else:
            self.run(self.session.timeout)

    # -- events -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session of a new client."""
        listener, address = self._listener, peer_of(transport)
        self._transport = cast("asyncio.Transport", transport)
        peer = PeerIdentity(address, _uid_of(transport) if address == UNIX else None)
        self.session = ScannerSession(listener.params, listener.meters, peer, listener.loop.time())
        if not listener.admit(self, address):
            self.session.closed = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass the client's bytes to the session."""
        self.run(self.session.receive, data)

    def eof_received(self) -> bool:
        """Pass the end of the client's input to the session; the client may still read."""
        self.run(self.session.input_ended)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session."""
        del exc
        self.run(self.session.close)
        self._listener.leave(self)

    def pause_writing(self) -> None:
        """The client does not read: stop reading its requests."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # -- actions ----------------------------------------------------------------------------------

    def _send(self, action: SendReply) -> None:
        if not self._transport.is_closing():
            self._transport.write(action.data)
            if self._listener.closing:
                self._listener.loop.call_soon(self.close_if_idle)

    def _start_scan(self, action: StartScan) -> None:
        self._stop_scan = None
        done = partial(self._scan_done, action.request)
        self._stop_scan = self._listener.scanner.advise(action.request, done)

    def _scan_done(self, request: ScanRequest, result: ScanResult) -> None:
        self.run(self.session.scan_done, request, result)

    def _end_scan(self, action: StopScan) -> None:
        if self._stop_scan is not None:
            self._stop_scan(action.reason)

    def _ask(self, action: AskDaemon) -> None:
        self._listener.ask(action, partial(self._asked, self.session.request))

    def _asked(self, request: object, answer: AdminResponse | SpamnbError) -> None:
        self.run(self.session.asked, request, answer)

    def _log(self, action: LogMessage) -> None:
        self._listener.log(action.record)

    def _close(self, _action: EndConnection) -> None:
        self._transport.close()

    _PERFORM: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        SendReply: _send,
        StartScan: _start_scan,
        StopScan: _end_scan,
        AskDaemon: _ask,
        LogMessage: _log,
        EndConnection: _close,
    }

    # -- memory -----------------------------------------------------------------------------------

    def _account(self) -> None:
        """Take the memory of request and unread reply from the share of all clients."""
        held = self.session.held_bytes
        if held or self._held_bytes:
            held += self._transport.get_write_buffer_size()
        before, self._held_bytes = self._held_bytes, held
        if held > before:
            self._share.take(held - before, self, held)
        elif held < before:
            self._share.give(before - held)
        if before and not held:
            self._share.forget(self)

    def pause_for_memory(self) -> None:
        """Stop reading because the process's memory budget is used up."""
        if not self._transport.is_closing():
            self._waits_for_memory = True
            self._transport.pause_reading()

    def resume_after_memory(self) -> None:
        """Read again: the memory budget has room."""
        self._waits_for_memory = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def memory_cost(self, now: float) -> float:
        """Byte-seconds of a request that is not complete, or of a reply that is not read."""
        if self.session.state in ("scanning", "asking"):
            return 0.0
        return self._held_bytes * (now - self.session.began)

    def shed(self) -> int:
        """End the connection to free memory for others; returns the bytes that it freed."""
        held = self._held_bytes
        self.break_off()
        return held


def _uid_of(transport: asyncio.BaseTransport) -> int | None:
    """The user of a unix socket's peer at the time of connect (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    peer = transport.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])
