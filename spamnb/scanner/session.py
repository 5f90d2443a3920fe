"""Sessions of scanner clients: the commands of all protocols, a session, and the listener.

Failure: RequestError for an unknown or invalid command, RefusedError for a client that may not
teach, another SpamnbError if the rights of the client cannot be read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

from spamnb.errors import BugError, RefusedError, SpamnbError, StoreBusyError, UserError
from spamnb.mail.limits import shown
from spamnb.net.actions import CloseConnection, LogMessage, SendBytes, StartScan, StopScan
from spamnb.net.address import UNIX
from spamnb.net.server import ScanConnection, ScanListener
from spamnb.operations.request import AdminResponse
from spamnb.scan.values import Done, MessageAdviser, ScanRequest, ScanResult
from spamnb.scanner import dialects
from spamnb.scanner.dialects import HttpRequestReader, SpamdRequestReader
from spamnb.scanner.request import (
    MOST_BYTES,
    AskDaemon,
    ClientRequest,
    Dialect,
    PeerIdentity,
    RequestError,
    ScannerAction,
    ScannerParams,
    may_name,
    original,
    scan_request,
    stat_of,
    teaching_fields,
)
from spamnb.telemetry import Meters, incident

NO_FUZZY: Final = "No content to generate fuzzy hashes: none are kept here"
_LOCAL_FILES: Final = ("file", "path")
"""headers by which a client of rspamd names a file that the server reads"""


@dataclass(frozen=True, slots=True)
class Answered:
    """The reply is known."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """The message of the request is scanned."""


Plan = Scan | AskDaemon | Answered


def plan_of(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    """Return what a request needs: nothing, a scan or the learner."""
    if request.dialect == "http":
        return _http_plan(request, peer, params)
    return _spamd_plan(request, peer, params)


def problem(dialect: Dialect, error: RequestError, request: ClientRequest | None = None) -> bytes:
    """The reply to a request that is not served."""
    if dialect == "http":
        return dialects.http_failure(request, dialects.STATUSES[error.problem], error.text)
    return dialects.spamd_failure(dialects.CODES[error.problem], error.text, dialect)


def busy(request: ClientRequest) -> bytes:
    """The reply while the learner is away."""
    return worded(request, StoreBusyError("the learner does not answer"))


def worded(request: ClientRequest, answer: AdminResponse | SpamnbError) -> bytes:
    """The reply with the learner's answer."""
    if isinstance(answer, SpamnbError):
        return _failed(request, answer)
    if request.verb == "/stat":
        return dialects.answer(request, 200, stat_of(answer.header))
    if request.verb == "/metrics":
        kind = {"Content-Type": "text/plain; version=0.0.4"}
        return dialects.answer(request, 200, answer.body, kind)
    return _taught(request, answer.header)


def _taught(request: ClientRequest, header: Mapping[str, Any]) -> bytes:
    state = header.get("state")
    if state == "refused":
        return _failed(request, RefusedError(str(header.get("reason") or "refused")))
    if request.dialect == "http":
        if state == "review":
            value = {"success": False, "review": str(header.get("review", ""))}
            return dialects.answer(request, 202, value)
        return dialects.answer(request, 200, {"success": True})
    done, removes = state == "learnt", "remove" in request.headers
    return dialects.taught(did_set=done and not removes, did_remove=done and removes)


def _failed(request: ClientRequest, error: SpamnbError) -> bytes:
    transient = bool(getattr(error, "transient", False)) or isinstance(error, StoreBusyError)
    invalid = isinstance(error, UserError) and not isinstance(error, RefusedError)
    if request.dialect == "http":
        status = 503 if transient else 400 if invalid else 403
        if not transient and not isinstance(error, UserError):
            status = 503
        return dialects.http_failure(request, status, str(error))
    if isinstance(error, RefusedError):
        code = dialects.NO_PERMISSION
    else:
        code = dialects.CODES["data"] if invalid else dialects.TEMPORARY
    return dialects.spamd_failure(code, str(error), request.dialect)


# --- spamd ---------------------------------------------------------------------------------------


def _spamd_plan(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    verb = request.verb
    if request.dialect == "rspamc" and verb != "CHECK":
        raise RequestError("usage", "no such command")
    if verb in dialects.SCANNED:
        return Scan()
    if verb == "PING":
        return Answered(dialects.PONG)
    if verb == "SKIP":
        return Answered(b"")
    if verb == "TELL":
        return _tell(request, peer, params)
    raise RequestError("usage", "no such command")


def _places(request: ClientRequest, name: str) -> set[str]:
    return {word.strip().lower() for word in request.header(name).split(",")} - {""}


def _tell(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    """Learn or forget locally; nothing is ever reported to other sites."""
    learns = "local" in _places(request, "set")
    forgets = "local" in _places(request, "remove")
    label = request.header("message-class").lower()
    if learns and forgets:
        raise RequestError("data", "a message cannot be learnt and forgotten at once")
    if not learns and not forgets:
        return Answered(dialects.taught(did_set=False, did_remove=False))
    if learns and label not in ("spam", "ham"):
        raise RequestError("data", "Message-class is neither spam nor ham")
    fields = teaching_fields(peer, params, request.header("user"))
    if forgets:
        return AskDaemon("forget", original(request), fields)
    return AskDaemon("teach", original(request), fields | {"label": label})


# --- HTTP ----------------------------------------------------------------------------------------


def _http_plan(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    for name in request.headers:
        if name in _LOCAL_FILES or name.startswith("shm"):
            raise RequestError("protocol", "messages are not read from files")
    compression = request.header("compression", "content-encoding").lower()
    if compression == "zstd" and request.body:
        request.body = dialects.unpacked(request.body, params.scan_limit_bytes + INFLATED_BYTES)
    elif compression not in ("", "identity", "zstd"):
        raise RequestError("media", "of compressed messages only zstd can be read")
    path = _PATHS.get(request.verb)
    if path is None:
        raise RequestError("usage", "no such path")
    method, plan = path
    if request.method not in ("POST", method):
        raise RequestError("method", f"use {method}")
    return plan(request, peer, params)


def _scan(_request: ClientRequest, _peer: PeerIdentity, _params: ScannerParams) -> Plan:
    return Scan()


def _learn(label: str) -> Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]:
    def plan(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
        named = label or request.header("class").lower()
        if not named:
            raise RequestError("data", "no Class is given")
        if not request.body:
            raise RequestError("data", "no message is given")
        user, password = request.header("deliver-to", "user"), request.header("password")
        fields = teaching_fields(peer, params, user, password)
        return AskDaemon("teach", request.body, fields | {"label": named})

    return plan


def _fixed(value: object) -> Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]:
    def plan(request: ClientRequest, _peer: PeerIdentity, _params: ScannerParams) -> Plan:
        return Answered(dialects.answer(request, 200, value))

    return plan


def _question(op: str) -> Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]:
    def plan(_request: ClientRequest, _peer: PeerIdentity, _params: ScannerParams) -> Plan:
        return AskDaemon(op)

    return plan


_PATHS: Final[
    dict[str, tuple[str, Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]]]
] = {
    **dict.fromkeys(("/checkv2", "/check", "/scan", "/symbols", "/v1/message"), ("POST", _scan)),
    "/learnspam": ("POST", _learn("spam")),
    "/learnham": ("POST", _learn("ham")),
    "/learnclass": ("POST", _learn("")),
    "/fuzzyadd": ("POST", _fixed({"success": False, "error": NO_FUZZY})),
    "/fuzzydel": ("POST", _fixed({"success": False, "error": NO_FUZZY})),
    "/ping": ("GET", _fixed("pong\r\n")),
    "/auth": ("GET", _fixed({"auth": "ok"})),
    "/healthy": ("GET", _fixed({"success": True})),
    "/ready": ("GET", _fixed({"success": True})),
    "/stat": ("GET", _question("status")),
    "/metrics": ("GET", _question("metrics")),
}


State = Literal["first", "reading", "scanning", "asking"]

FIRST_LINE_S: Final = 5.0
IDLE_S: Final = 60.0
"""between two requests of an HTTP connection"""
ASKED_S: Final = 75.0
"""limit for the learner's answer; the client of the control socket gives up earlier"""
MOST_LINE_BYTES: Final = 8192
MOST_AHEAD_BYTES: Final = 65_536
"""bytes of further requests that are read while a request is answered"""
LOGGED_RECIPIENTS: Final = 3
INFLATED_BYTES: Final = 64 << 10
"""bytes beyond the scan limit that a compressed message may have"""


class ScannerSession:
    """The session with one client: bytes in, replies, scans and questions to the learner out.

        state      what comes next                                    then
        first      the first line, which tells the protocol           reading
        reading    the rest of a request                              scanning, asking or a reply
        scanning   the result of the scan                             a reply
        asking     the learner's answer                               a reply

    After a reply an HTTP connection may continue with `reading`; all others are closed. No sockets
    and no clock: events come in, actions go out. A request gets one reply. After a fault of this
    program no reply is sent, so that the client acts as it does without a filter.
    """

    def __init__(
        self, params: ScannerParams, meters: Meters, peer: PeerIdentity, now: float
    ) -> None:
        self.params = params
        self.actions: deque[ScannerAction] = deque()
        self.state: State = "first"
        self.closed = False
        self.deadline = now + FIRST_LINE_S
        self._meters, self._peer, self._now = meters, peer, now
        self._dialect: Dialect = "spamd"
        self._reader: SpamdRequestReader | HttpRequestReader | None = None
        self._ahead = bytearray()
        self._request: ClientRequest | None = None
        self._scanned: ScanRequest | None = None
        self._began = now
        self._input_ended = False

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""
        held = len(self._ahead) + (self._reader.held_bytes if self._reader else 0)
        if self._request is not None:
            copies = 2 if self._scanned else 1
            held += self._request.header_bytes + len(self._request.body) * copies
        return held

    @property
    def began(self) -> float:
        """When the current request began."""
        return self._began

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun."""
        begun = self._ahead or (self._reader is not None and not self._reader.is_idle)
        return self.state in ("first", "reading") and not begun

    # -- events -----------------------------------------------------------------------------------

    def receive(self, chunk: bytes, now: float) -> None:
        """Take bytes from the client."""
        self._now = now
        if self.closed:
            return
        if self.is_idle:
            self._began = now
        self._ahead += chunk
        if self.state in ("first", "reading"):
            self._read()
        elif len(self._ahead) > MOST_AHEAD_BYTES:
            self.close(now)

    def input_ended(self, now: float) -> None:
        """The client sends no more; it may still read."""
        self._now = now
        self._input_ended = True
        if self.closed or self.state in ("scanning", "asking"):
            return
        if isinstance(self._reader, SpamdRequestReader):
            self._guarded(self._take_last)
        else:
            self.close(now)

    def scan_done(self, request: ScanRequest, result: ScanResult, now: float) -> None:
        """Answer the message; a late result is dropped."""
        self._now = now
        if request is not self._scanned:
            return
        asked, self._scanned = self._current, None
        if asked.dialect == "http":
            data = dialects.http_scanned(asked, result, now - self._began)
        else:
            data = dialects.spamd_scanned(asked, result)
        deferred = result.action == "defer"
        self._meters.count("deferred" if deferred else "messages")
        self._meters.count("bytes", 0 if deferred else len(asked.body))
        self._add(LogMessage(self._record(asked, request, result) | result.facts))
        self._reply(data)
        self._read()

    def asked(self, request: object, answer: AdminResponse | SpamnbError, now: float) -> None:
        """Pass on the answer of the learner; a late answer is dropped."""
        self._now = now
        if self.state == "asking" and request is self._request:
            self._reply(worded(self._current, answer))
            self._read()

    @property
    def request(self) -> object:
        """The current request; an answer to another request is dropped."""
        return self._request

    def timeout(self, now: float) -> None:
        """Handle the passed deadline."""
        self._now = now
        if self.state == "scanning":
            # The scanner itself ends a scan that takes too long; this scan has not begun in time.
            self._add(StopScan("busy"))
        elif self.state == "asking":
            self._reply(busy(self._current))
            self._read()
        else:
            self.close(now)

    def close(self, now: float) -> None:
        """End the session: the client has disconnected, or is no longer served."""
        self._now = now
        if self._scanned is not None:
            self._scanned = None
            self._add(StopScan())
        self._ahead.clear()
        self._request = self._reader = None
        self.state = "reading"
        if not self.closed:
            self.closed = True
            self.deadline = now + self.params.times.data_s
            self._add(CloseConnection())

    # -- reading ----------------------------------------------------------------------------------

    def _extend_deadline(self) -> None:
        if self.state == "reading":
            whole = self._began + self.params.times.message_s
            self.deadline = min(self._now + self.params.times.data_s, whole)

    def _read(self) -> None:
        """Process received bytes, request after request, until one has to wait for its answer."""
        while not self.closed and self.state in ("first", "reading") and not self.is_idle:
            self._extend_deadline()
            if not self._guarded(self._take):
                return

    def _take(self) -> bool:
        """Pass received bytes to the reader; whether a complete request was begun."""
        if self._reader is None and not self._choose_reader():
            return False
        reader = self._reader
        assert reader is not None
        data, self._ahead = bytes(self._ahead), bytearray()
        found = reader.feed(data)
        if isinstance(reader, HttpRequestReader) and reader.wants_continue and found is None:
            reader.wants_continue = False
            self._add(SendBytes(dialects.CONTINUE))
        if found is not None:
            self._begin(found)
        return found is not None

    def _take_last(self) -> bool:
        assert isinstance(self._reader, SpamdRequestReader)
        self._begin(self._reader.end())
        return True

    def _choose_reader(self) -> bool:
        """Recognise the protocol by the first line; whether this line has arrived."""
        end = self._ahead.find(b"\n", 0, MOST_LINE_BYTES)
        if end < 0:
            if len(self._ahead) >= MOST_LINE_BYTES:
                raise RequestError("protocol", "the first line is too long")
            return False
        version = bytes(self._ahead[:end]).rpartition(b" ")[2]
        limit = self.params.size_limit_bytes or MOST_BYTES
        self.state, self._began = "reading", self._now
        self._extend_deadline()
        if version.startswith(b"HTTP/"):
            self._dialect, self._reader = "http", HttpRequestReader(limit)
        else:
            self._dialect = "rspamc" if version.startswith(b"RSPAMC/") else "spamd"
            most = self.params.scan_limit_bytes + INFLATED_BYTES
            self._reader = SpamdRequestReader(limit, most)
        return True

    def _guarded(self, step: Callable[[], bool]) -> bool:
        """Run a step; a request that cannot be served gets an error, and the connection ends."""
        try:
            return step()
        except RequestError as error:
            self._request = None
            self._add(SendBytes(problem(self._dialect, error)))
            self.close(self._now)
            return False

    # -- a request --------------------------------------------------------------------------------

    def _begin(self, request: ClientRequest) -> None:
        self._request = request
        try:
            plan = plan_of(request, self._peer, self.params)
        except RequestError as error:
            self._reply(problem(self._dialect, error, request))
        except SpamnbError as error:
            self._reply(worded(request, error))
        else:
            self._carry_out(plan)

    def _carry_out(self, plan: Scan | AskDaemon | Answered) -> None:
        if isinstance(plan, Answered):
            self._reply(plan.data)
        elif isinstance(plan, AskDaemon):
            self.state, self.deadline = "asking", self._now + ASKED_S
            self._add(plan)
        else:
            self.state, self.deadline = "scanning", self._now + self.params.times.scan_total_s
            self._scanned = scan_request(
                self._current,
                named=may_name(self._peer, self.params),
                refusable=self.params.queue == "before",
                limit_bytes=self.params.scan_limit_bytes,
            )
            self._add(StartScan(self._scanned))

    def _reply(self, data: bytes) -> None:
        """Send a reply; read the next request of an HTTP connection."""
        goes_on = self._current.keep_alive and not self._input_ended
        self._request = None
        self.state, self._began = "reading", self._now
        self._add(SendBytes(data))
        if not goes_on:
            self.close(self._now)
        else:
            self.deadline = self._now + IDLE_S

    @property
    def _current(self) -> ClientRequest:
        assert self._request is not None, "its state has a request"
        return self._request

    def _record(
        self, asked: ClientRequest, scanned: ScanRequest, result: ScanResult
    ) -> dict[str, object]:
        envelope = scanned.envelope
        return {
            "event": "message",
            "peer": self._peer.address,
            "command": shown(asked.verb.encode())[:40],
            "client": shown(envelope.client.address.encode())[:80],
            "ident": shown(envelope.client.ident.encode())[:80],
            "from": shown(envelope.sender.encode())[:320],
            "to": [shown(one.encode())[:320] for one in envelope.recipients[:LOGGED_RECIPIENTS]],
            "recipients": len(envelope.recipients),
            "size": len(asked.body),
            "action": "defer" if result.action == "defer" else "advise",
            "ms": int((self._now - self._began) * 10_000) / 10,
        }

    def _add(self, action: ScannerAction) -> None:
        self.actions.append(action)


ASKERS: Final = 4
"""threads that wait for the learner"""
MOST_QUESTIONS: Final = 64
"""waiting and asked together; further ones are answered as if the learner were away"""


class AskLearner(Protocol):
    """Asks for an administrative operation; called in a thread."""

    def __call__(self, op: str, body: bytes, **fields: Any) -> AdminResponse:
        """Return the reply; its error is raised."""


class ScannerListener(ScanListener[ScannerParams, MessageAdviser]):
    """The connections of one listener, and the threads that ask the learner.

    Questions to the learner wait in separate threads, so that they do not delay other work.
    """

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
