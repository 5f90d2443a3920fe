"""The filter process of OpenSMTPD, version 0.6 and later of its protocol (smtpd-filters(7)).

OpenSMTPD starts `python -m spamnb.opensmtpd ADDRESS SECONDS`. It needs nothing but the standard
library, and loads all of its modules at the start; it does not parse mail.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar, Final, NamedTuple

from spamnb.errors import PeerError
from spamnb.net.address import Address
from spamnb.net.clients import RequestHeaders, ScanAnswer, ask, connected
from spamnb.policy.headers import Reason, add_to_message, header_end, unscanned_fields

OLDEST: Final = (6, 8)
"""before OpenSMTPD 6.8 the fields have another order"""
HELD_BYTES: Final = 64 << 20
"""of all messages in memory"""
MOST_RECIPIENTS: Final = 1000
_EVENTS: Final = (
    b"report|smtp-in|link-connect",
    b"report|smtp-in|link-identify",
    b"report|smtp-in|link-disconnect",
    b"report|smtp-in|tx-mail",
    b"report|smtp-in|tx-rcpt",
    b"report|smtp-in|tx-reset",
    b"filter|smtp-in|data-line",
    b"filter|smtp-in|commit",
    b"ready",
)
REGISTRATION: Final = b"".join(b"register|%b\n" % event for event in _EVENTS)
_REFUSED: Final = b"reject|550 5.7.1 This message is not wanted here"
_DEFERRED: Final = b"reject|451 4.3.0 Temporary failure, please try again later"
_PROCEED: Final = b"proceed"
_END: Final = b"."
_VERSION = re.compile(rb"(\d{1,4})\.(\d{1,4})")


class VersionError(Exception):
    """OpenSMTPD is too old for this filter."""


class PendingMessage(NamedTuple):
    """A whole message to ask about."""

    session: bytes
    token: bytes
    raw: bytearray
    """CRLF line ends, dots not stuffed"""
    headers: RequestHeaders


@dataclass(slots=True)
class _SmtpClient:
    """One client of OpenSMTPD."""

    address: str = ""
    name: str = ""
    helo: str = ""
    queue_id: str = ""
    sender: str = ""
    recipients: list[str] = field(default_factory=list)
    held: bytearray = field(default_factory=bytearray)
    """of the message that comes in, as in `PendingMessage`"""
    token: bytes = b""
    """of its lines"""
    passes: bool = False
    """whether the lines of the message are written at once"""
    pending: PendingMessage | None = None
    result: bytes = _PROCEED


class OpensmtpdFilter:
    """The state of the filter: all clients of OpenSMTPD. Without I/O.

        config|smtpd-version|6.8.0p2                          and more, until config|ready
        report|0.6|TIME|smtp-in|EVENT|SESSION|...             what happens
        filter|0.6|TIME|smtp-in|data-line|SESSION|TOKEN|LINE  the message, dots stuffed, to its "."
        filter|0.6|TIME|smtp-in|commit|SESSION|TOKEN|         answered by filter-result

    `receive` takes a line. The caller writes the bytes in `output`, asks about the messages in
    `pending`, and logs the texts in `notes`; `answered` takes the answer to a message.

    Invariants: each line of a message is written once, in order, even after a failure; above the
    memory limit a message passes unscanned; after an internal error it passes unchanged.
    """

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self.output = bytearray()
        self.pending: deque[PendingMessage] = deque()
        self.notes: list[str] = []
        self.held_bytes = 0
        self._limit = limit_bytes
        self._clients: dict[bytes, _SmtpClient] = {}

    def receive(self, line: bytes) -> None:
        """Take a line without its end. VersionError if OpenSMTPD is too old."""
        kind = line.partition(b"|")[0]
        if kind == b"config":
            self._configure(line)
        elif kind in self._KINDS:
            try:
                self._KINDS[kind](self, line)
            except Exception as error:  # noqa: BLE001 - the boundary: the message has to pass
                self.notes.append(f"internal error: {error!r}")
                if kind == b"filter":
                    self._pass_line(line)

    def answered(self, message: PendingMessage, answer: ScanAnswer | None) -> None:
        """Write a message with its answer; without one it passes unscanned."""
        self.held_bytes -= len(message.raw)
        client = self._clients.get(message.session)
        if client is None or client.pending is not message:
            return  # the client has disconnected
        client.pending = None
        end = _end(message.raw)
        header = bytes(message.raw[:end])
        if answer is None:
            header = _unscanned(header, "fault")
        elif answer.deferred:
            client.result = _DEFERRED
        else:
            is_refused = answer.outcome.get("action") == "reject"
            header, client.result = answer.header, _REFUSED if is_refused else _PROCEED
        self._write(message.session, message.token, header)
        self._write(message.session, message.token, message.raw, end)
        self._write_line(message.session, message.token, _END)

    # -- lines ------------------------------------------------------------------------------------

    def _configure(self, line: bytes) -> None:
        name, _, value = line.partition(b"|")[2].partition(b"|")
        if name == b"ready":
            self.output += REGISTRATION
        elif name == b"smtpd-version":
            found = _VERSION.search(value)
            if found and (int(found[1]), int(found[2])) < OLDEST:
                raise VersionError(f"OpenSMTPD {value.decode('ascii', 'replace')} is too old")

    def _report(self, line: bytes) -> None:
        _, _, _, _, event, session, *rest = line.split(b"|", 6)
        if event == b"link-disconnect":
            self._drop(self._clients.pop(session, _SmtpClient()))
        elif event in self._REPORTS:
            client = self._clients.setdefault(session, _SmtpClient())
            self._REPORTS[event](self, client, b"".join(rest).decode("utf-8", "replace"))

    def _filter(self, line: bytes) -> None:
        _, _, _, _, phase, session, token, text = line.split(b"|", 7)
        client = self._clients.setdefault(session, _SmtpClient())
        if phase == b"data-line":
            self._data_line(client, session, token, text)
        else:
            self._result(session, token, client.result)
            client.result = _PROCEED

    def _pass_line(self, line: bytes) -> None:
        """Answer a line that could not be handled; the line passes unchanged."""
        fields = line.split(b"|", 7)
        if len(fields) < 8:
            return  # the line is incomplete, so there is no answer to it
        phase, session, token, text = fields[4:]
        if phase == b"data-line":
            client = self._clients.setdefault(session, _SmtpClient())
            self._release(client, session, token, None)
            self._write_line(session, token, text)
            client.passes = text != _END
        else:
            self._result(session, token, _PROCEED)

    # -- reports ----------------------------------------------------------------------------------

    def _connected(self, client: _SmtpClient, text: str) -> None:
        name, is_confirmed, source, _ = text.rsplit("|", 3)
        client.address = source.rpartition(":")[0].strip("[]")
        client.name = name if is_confirmed == "pass" else ""

    def _identified(self, client: _SmtpClient, text: str) -> None:
        client.helo = text.partition("|")[2]

    def _mail(self, client: _SmtpClient, text: str) -> None:
        queue_id, result, address = text.split("|", 2)
        if result == "ok":
            client.queue_id, client.sender = queue_id, address

    def _rcpt(self, client: _SmtpClient, text: str) -> None:
        _, result, address = text.split("|", 2)
        if result == "ok" and len(client.recipients) < MOST_RECIPIENTS:
            client.recipients.append(address)

    def _reset(self, client: _SmtpClient, _text: str) -> None:
        self._drop(client)
        client.queue_id, client.sender, client.result = "", "", _PROCEED
        client.recipients = []

    _REPORTS: ClassVar[dict[bytes, Callable[[Any, _SmtpClient, str], None]]] = {
        b"link-connect": _connected,
        b"link-identify": _identified,
        b"tx-mail": _mail,
        b"tx-rcpt": _rcpt,
        b"tx-reset": _reset,
    }
    _KINDS: ClassVar[dict[bytes, Callable[[Any, bytes], None]]] = {
        b"report": _report,
        b"filter": _filter,
    }

    def _drop(self, client: _SmtpClient) -> None:
        """Forget the message; the answer to a pending message releases its memory."""
        self.held_bytes -= len(client.held)
        client.held, client.pending, client.passes = bytearray(), None, False

    # -- the message ------------------------------------------------------------------------------

    def _data_line(self, client: _SmtpClient, session: bytes, token: bytes, line: bytes) -> None:
        if client.passes:
            self._write_line(session, token, line)
            client.passes = line != _END
        elif line == _END:
            client.pending = PendingMessage(session, token, client.held, _headers(client))
            client.held = bytearray()
            self.pending.append(client.pending)
        else:
            text = b"%b\r\n" % line[line.startswith(b".") :]
            client.token = token
            client.held += text
            self.held_bytes += len(text)
            if self.held_bytes > self._limit:
                self._make_room()

    def _make_room(self) -> None:
        """Let the largest message pass: a few large ones must not make others pass unscanned."""
        session, client = max(self._clients.items(), key=lambda item: len(item[1].held))
        self.notes.append(f"{client.queue_id}: passes unscanned: too much mail at once")
        self._release(client, session, client.token, "large")

    def _release(
        self, client: _SmtpClient, session: bytes, token: bytes, reason: Reason | None
    ) -> None:
        """Write the lines that are held; later lines of the message are written as they arrive.

        With a reason, a complete header section gets a field with this reason.
        """
        end = _end(client.held) if reason else 0
        if reason and end < len(client.held):
            self._write(session, token, _unscanned(bytes(client.held[:end]), reason))
        else:
            end = 0
        self._write(session, token, client.held, end)
        self.held_bytes -= len(client.held)
        client.held, client.passes = bytearray(), True

    # -- output -----------------------------------------------------------------------------------

    def _write(self, session: bytes, token: bytes, raw: bytes | bytearray, start: int = 0) -> None:
        """Write lines of a message."""
        for line in _lines(raw, start):
            self._write_line(session, token, b"." * line.startswith(b".") + line)

    def _write_line(self, session: bytes, token: bytes, line: bytes) -> None:
        self.output += b"filter-dataline|%b|%b|%b\n" % (session, token, line)

    def _result(self, session: bytes, token: bytes, result: bytes) -> None:
        self.output += b"filter-result|%b|%b|%b\n" % (session, token, result)


def _headers(client: _SmtpClient) -> RequestHeaders:
    return {
        "From": [client.sender],
        "Rcpt": client.recipients,
        "IP": [client.address],
        "Hostname": [client.name],
        "Helo": [client.helo],
        "Queue-Id": [client.queue_id],
    }


def _end(raw: bytearray) -> int:
    """The end of the header section; the end of the message if it has no body."""
    end = header_end(raw)
    return len(raw) if end < 0 else end


def _unscanned(header: bytes, reason: Reason) -> bytes:
    return add_to_message(header, unscanned_fields(reason))


def _lines(raw: bytes | bytearray, start: int) -> Iterator[bytes]:
    """The lines without their line ends; the last line has a line end, too."""
    while (end := raw.find(b"\r\n", start)) >= 0:
        yield bytes(raw[start:end])
        start = end + 2


ASKERS: Final = 16
AWAY_S: Final = 10.0
"""how long messages wait for a daemon that is away: a restart takes two seconds"""
RETRY_S: Final = 0.2
_IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_ERROR: Final = 2


class FilterProcess:
    """Reads lines of OpenSMTPD, and writes the answers.

    OpenSMTPD ends when one of its filters ends, so this process ends only with its input. A few
    threads ask the scanner listener, each about one message; while the daemon is away they wait for
    it, for ten seconds after the first attempt that failed. A message without an answer at its
    deadline passes unscanned, which is logged: OpenSMTPD writes the lines on standard error to its
    own log.
    """

    def __init__(self, address: Address, deadline_s: float) -> None:
        self._address, self._deadline_s = address, deadline_s
        self._filter = OpensmtpdFilter()
        self._lock = threading.Lock()
        """of the filter and of standard output"""
        self._asked: SimpleQueue[tuple[float, PendingMessage]] = SimpleQueue()
        self._away_since: float | None = None

    def run(self) -> int:
        """Run until the input ends; the exit code."""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for _ in range(ASKERS):
            threading.Thread(target=self._ask_all, daemon=True).start()
        for line in sys.stdin.buffer:
            try:
                self._do(partial(self._filter.receive, line.rstrip(b"\n")))
            except VersionError as error:
                _log(f"{error}: this filter needs 6.8 or later")
                return 1
        return 0

    def _do(self, step: Callable[[], None]) -> None:
        """Do a step of the filter, and what it has left to do; only VersionError comes out."""
        with self._lock:
            try:
                step()
                self._flush()
            except VersionError:
                raise
            except BrokenPipeError:
                os._exit(0)  # OpenSMTPD has ended
            except Exception as error:  # noqa: BLE001 - OpenSMTPD would end with its filter
                _log(f"internal error: {error!r}")

    def _flush(self) -> None:
        state = self._filter
        while state.pending:
            self._asked.put((time.monotonic() + self._deadline_s, state.pending.popleft()))
        for note in state.notes:
            _log(note)
        state.notes.clear()
        data, state.output = state.output, bytearray()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]

    # -- the scanner ------------------------------------------------------------------------------

    def _ask_all(self) -> None:
        """Answer messages, one after the other."""
        while True:
            deadline, message = self._asked.get()
            answer: ScanAnswer | None = None
            try:
                answer = self._answer(message, deadline)
            except Exception as error:  # noqa: BLE001 - the boundary: the message has to pass
                queue_id = "".join(message.headers["Queue-Id"])
                _log(f"{queue_id}: passes unscanned: {error or repr(error)}")
            self._do(partial(self._filter.answered, message, answer))

    def _answer(self, message: PendingMessage, deadline: float) -> ScanAnswer:
        """Ask the daemon; wait for it while it is away."""
        while True:
            try:
                with connected(self._address, deadline) as peer:
                    answer = ask(peer, message.raw, message.headers, deadline)
            except PeerError as error:
                if error.reply or not self._may_wait(deadline):
                    raise
                time.sleep(RETRY_S)
            else:
                self._away_since = None
                return answer

    def _may_wait(self, deadline: float) -> bool:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        return now + RETRY_S < min(deadline, self._away_since + AWAY_S)


def _log(text: str) -> None:
    with suppress(OSError):
        os.write(_ERROR, f"spamnb: {text}\n".encode("utf-8", "replace"))


def main() -> None:
    """Run as a program."""
    address, deadline_s = sys.argv[1:]
    os._exit(FilterProcess(Address.parse(address), float(deadline_s)).run())


if __name__ == "__main__":
    main()
