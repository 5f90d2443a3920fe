"""The session with one client: bytes in, replies, scans and questions to the learner out.

    state      what comes next                                    then
    first      the first line, which tells the protocol           reading
    reading    the rest of a request                              scanning, asking or a reply
    scanning   the result of the scan                             a reply
    asking     the learner's answer                               a reply

After a reply an HTTP connection may continue with `reading`; all others are closed. No sockets and
no clock: events come in, actions go out. A request gets one reply. After a fault of this program no
reply is sent, so that the client acts as it does without a filter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from spamnb.core.mail.printable import shown
from spamnb.endpoints.net.scan_actions import (
    CloseConnection,
    LogMessage,
    SendBytes,
    StartScan,
    StopScan,
)
from spamnb.endpoints.scanner import commands, http_replies, spamd_replies
from spamnb.endpoints.scanner.actions import AskDaemon, ScannerAction
from spamnb.endpoints.scanner.commands import Answered, Scan
from spamnb.endpoints.scanner.http_requests import HttpRequestReader
from spamnb.endpoints.scanner.message import scan_request
from spamnb.endpoints.scanner.params import ScannerParams
from spamnb.endpoints.scanner.request import ClientRequest, Dialect, RequestError
from spamnb.endpoints.scanner.spamd_requests import SpamdRequestReader
from spamnb.endpoints.scanner.teaching import PeerIdentity, may_name
from spamnb.errors import SpamnbError
from spamnb.service.admin.request import AdminResponse
from spamnb.service.scanning.types import ScanRequest, ScanResult
from spamnb.service.telemetry.metrics import Meters

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
    """The state of one connection."""

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
            data = http_replies.scanned(asked, result, now - self._began)
        else:
            data = spamd_replies.scanned(asked, result)
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
            self._reply(commands.worded(self._current, answer))
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
            self._reply(commands.busy(self._current))
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
            self.deadline = now + self.params.read_s
            self._add(CloseConnection())

    # -- reading ----------------------------------------------------------------------------------

    def _extend_deadline(self) -> None:
        if self.state == "reading":
            whole = self._began + self.params.message_s
            self.deadline = min(self._now + self.params.read_s, whole)

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
            self._add(SendBytes(http_replies.CONTINUE))
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
        limit = self.params.size_limit_bytes
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
            self._add(SendBytes(commands.problem(self._dialect, error)))
            self.close(self._now)
            return False

    # -- a request --------------------------------------------------------------------------------

    def _begin(self, request: ClientRequest) -> None:
        self._request = request
        try:
            plan = commands.plan_of(request, self._peer, self.params)
        except RequestError as error:
            self._reply(commands.problem(self._dialect, error, request))
        except SpamnbError as error:
            self._reply(commands.worded(request, error))
        else:
            self._carry_out(plan)

    def _carry_out(self, plan: Scan | AskDaemon | Answered) -> None:
        if isinstance(plan, Answered):
            self._reply(plan.data)
        elif isinstance(plan, AskDaemon):
            self.state, self.deadline = "asking", self._now + ASKED_S
            self._add(plan)
        else:
            self.state, self.deadline = "scanning", self._now + self.params.scan_total_s
            self._scanned = scan_request(
                self._current,
                named=may_name(self._peer, self.params),
                refusable=self.params.refusable,
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
