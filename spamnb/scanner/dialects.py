"""The protocols of spamd and of rspamd: requests from bytes, replies to bytes.

No sockets and no clock. Failure: RequestError; then the connection cannot be read any further.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from spamnb.policy.headers import REQUIRED_SCORE
from spamnb.scan.values import ScanResult
from spamnb.scanner.request import (
    ClientRequest,
    Dialect,
    Problem,
    RequestError,
    ScanReport,
    header_of,
    length_of,
    marked,
    message_id_in,
    original,
    own_names_in,
    report_of,
    subject_in,
)
from spamnb.scanner.request import length_of as read_length

STATUSES: Final[dict[Problem, int]] = {
    "usage": 404,
    "method": 405,
    "data": 400,
    "size": 413,
    "media": 415,
    "protocol": 400,
}
_MOST_WINDOW: Final = 8 << 20
"""bytes of memory for a Zstandard window: that of all levels up to 19"""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON: Final = "application/json"
_as_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""made once: `json.dumps` makes an encoder for each call with separators"""
_REASONS: Final = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def reply(  # noqa: PLR0913 - the parts of a reply
    status: int,
    body: bytes,
    kind: str = "text/plain",
    *,
    version: tuple[int, int] = (1, 1),
    keep_alive: bool = False,
    extra: Mapping[str, str] | None = None,
) -> bytes:
    """A whole reply."""
    lines = [
        f"HTTP/{version[0]}.{version[1]} {status} {_REASONS[status]}",
        "Server: spamnb",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
        *(f"{name}: {value}" for name, value in (extra or {}).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii", "replace") + body


def answer(
    request: ClientRequest, status: int, value: object, extra: Mapping[str, str] | None = None
) -> bytes:
    """A reply to a request: text or bytes as they are, everything else as JSON."""
    kind = "text/plain"
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        kind, value = _JSON, _as_json(value).encode()
    extra = dict(extra or {})
    kind = extra.pop("Content-Type", kind)
    return reply(
        status, value, kind, version=request.version, keep_alive=request.keep_alive, extra=extra
    )


def http_failure(request: ClientRequest | None, status: int, text: str) -> bytes:
    """An error as rspamd words it."""
    if request is None:
        return reply(status, json.dumps({"error": text}).encode(), _JSON)
    return answer(request, status, {"error": text})


def http_scanned(request: ClientRequest, result: ScanResult, seconds: float) -> bytes:
    """The reply to a scanned message."""
    if result.action == "defer":
        if request.verb == "/v1/message":
            return http_failure(request, 503, "try again later")
        value = _skipped(request, seconds) | {"action": "soft reject"}
    elif request.verb == "/v1/message":
        return _own(request, result)
    else:
        value = _checked(request, result, seconds)
    return answer(request, 200, {"default": value} if request.verb == "/scan" else value)


def _skipped(request: ClientRequest, seconds: float) -> dict[str, Any]:
    return {
        "is_skipped": True,
        "score": 0.0,
        "required_score": 999.0,
        "action": "no action",
        "symbols": {},
        "messages": {"smtp_message": "Try again later"},
        "message-id": message_id_in(header_of(request)),
        "time_real": round(seconds, 6),
    }


def _checked(request: ClientRequest, result: ScanResult, seconds: float) -> dict[str, Any]:
    report, header = report_of(result), header_of(request)
    names = dict.fromkeys((*own_names_in(header), *(name for name, _ in result.add)), 0)
    value: dict[str, Any] = {
        "is_skipped": report.skipped,
        "score": report.score,
        "required_score": report.reject_score,
        "action": report.action,
        "thresholds": {"add header": REQUIRED_SCORE, "reject": report.reject_score},
        "symbols": {
            name: _symbol(name, score, text) for name, (score, text) in report.symbols().items()
        },
        "messages": {},
        "message-id": message_id_in(header),
        "time_real": round(seconds, 6),
        "milter": {
            "add_headers": {name: {"value": text, "order": 0} for name, text in result.add},
            "remove_headers": names,
        },
    }
    if report.action == "reject":
        value["messages"] = {"smtp_message": "This message is not wanted here"}
    if result.tag:
        value["subject"] = f"{result.tag.decode().rstrip()} {subject_in(header)}".rstrip()
    return value


def _symbol(name: str, score: float, text: str) -> dict[str, Any]:
    options = [text] if name.startswith("SPAMNB_CLUE_") else []
    return {
        "name": name,
        "score": score,
        "metric_score": score,
        "description": text,
        "options": options,
    }


def _own(request: ClientRequest, result: ScanResult) -> bytes:
    report = report_of(result)
    outcome = {
        "action": report.action,
        "spam": report.spam,
        "score": report.score,
        "required_score": REQUIRED_SCORE,
        "reject_score": report.reject_score,
        "skipped": report.skipped,
        **{name: result.facts.get(name, "") for name in _OUTCOME_FACTS},
    }
    header, body = marked(request.body, result.add, result.tag)
    full = request.query == "full=1"
    kind = "message/rfc822" if full else "message/rfc822-headers"
    extra = {"Content-Type": kind, "Spamnb-Outcome": _as_json(outcome)}
    return answer(request, 200, header + body if full else header, extra)


_OUTCOME_FACTS: Final = ("verdict", "probability", "decision", "mail_action", "reason", "signature")


MOST_LINE_BYTES: Final = 8192
MOST_HEAD_BYTES: Final = 65_536
MOST_CHUNK_LINE_BYTES: Final = 256
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8000}) HTTP/1\.([01])")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t -~]*)?")


class HttpRequestReader:
    """Reads the requests of a connection, one after the other.

    Strict where leniency has been used for smuggling: one Content-Length or one `chunked`, never
    both; no folded headers; no blank before the colon.
    """

    __slots__ = (
        "_body", "_chunk_left", "_data", "_left", "_limit", "_request", "_trailer_bytes",
        "wants_continue",
    )  # fmt: skip

    def __init__(self, size_limit_bytes: int) -> None:
        self._limit = size_limit_bytes
        self._data = bytearray()
        self.wants_continue = False
        """whether the client waits for a 100 before it sends the body; the caller resets this"""
        self._start()

    def _start(self) -> None:
        self._request: ClientRequest | None = None
        self._body = bytearray()
        self._left: int | None = None
        """of a body with a length; None: it is chunked"""
        self._chunk_left = -1
        """of the current chunk with its line end; -1: its line is next; -2: the trailer is next"""
        self._trailer_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""
        head = self._request.header_bytes if self._request else 0
        return len(self._data) + len(self._body) + head

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun."""
        return self._request is None and not self._data

    def feed(self, data: bytes) -> ClientRequest | None:
        """Take bytes; return a complete request. A call without bytes gives the next request."""
        self._data += data
        if self._request is None and not self._read_head():
            return None
        request = self._request
        assert request is not None
        complete = self._read_chunks() if self._left is None else self._read_length()
        if not complete:
            return None
        request.body = bytes(self._body)
        self.wants_continue = False
        self._start()
        return request

    # -- head -------------------------------------------------------------------------------------

    def _read_head(self) -> bool:
        end = self._data.find(b"\r\n\r\n", 0, MOST_HEAD_BYTES)
        if end < 0:
            line_open = self._data.find(b"\r\n", 0, MOST_LINE_BYTES) < 0
            if len(self._data) >= (MOST_LINE_BYTES if line_open else MOST_HEAD_BYTES):
                raise RequestError("protocol", "the head of the request is too long")
            return False
        first, *lines = bytes(self._data[:end]).split(b"\r\n")
        del self._data[: end + 4]
        request = self._request = _request_line(first)
        for line in lines:
            if b"\r" in line or b"\n" in line or b"\0" in line:
                raise RequestError("protocol", "invalid header line")
            request.add_header(line)
        self._left = _body_length(request, self._limit)
        request.keep_alive = _keeps_alive(request)
        expected = request.header("expect").lower()
        self.wants_continue = expected == "100-continue" and request.version == (1, 1)
        return True

    # -- body -------------------------------------------------------------------------------------

    def _read_length(self) -> bool:
        assert self._left is not None
        self._left -= self._take(self._left)
        return self._left == 0

    def _take(self, most: int) -> int:
        """Move bytes to the body; return their number."""
        if len(self._data) <= most:
            count = len(self._data)
            self._body += self._data
            self._data.clear()
            return count
        self._body += self._data[:most]
        del self._data[:most]
        return most

    def _read_chunks(self) -> bool:
        while True:
            if self._chunk_left >= 0:
                if not self._read_chunk():
                    return False
            elif (line := self._line()) is None:
                return False
            elif self._chunk_left == -2:
                if not line:
                    return True
                self._trailer_bytes += len(line)
                if self._trailer_bytes > MOST_LINE_BYTES:
                    raise RequestError("protocol", "the trailer is too long")
            else:
                self._chunk_line(line)

    def _chunk_line(self, line: bytes) -> None:
        found = _CHUNK_LINE.fullmatch(line)
        if found is None:
            raise RequestError("protocol", "invalid chunk")
        size = int(found[1], 16)
        if len(self._body) + size > self._limit:
            raise RequestError("size", "the message is too large")
        self._chunk_left = size + 2 if size else -2

    def _read_chunk(self) -> bool:
        """Read data of the chunk and its line end; whether it is complete."""
        if self._chunk_left > 2:
            self._chunk_left -= self._take(self._chunk_left - 2)
        if self._chunk_left > 2 or len(self._data) < 2:
            return False
        if self._data[:2] != b"\r\n":
            raise RequestError("protocol", "invalid chunk")
        del self._data[:2]
        self._chunk_left = -1
        return True

    def _line(self) -> bytes | None:
        end = self._data.find(b"\r\n", 0, MOST_CHUNK_LINE_BYTES)
        if end < 0:
            if len(self._data) >= MOST_CHUNK_LINE_BYTES:
                raise RequestError("protocol", "the line of a chunk is too long")
            return None
        line = bytes(self._data[:end])
        del self._data[: end + 2]
        return line


def _request_line(line: bytes) -> ClientRequest:
    found = _REQUEST_LINE.fullmatch(line)
    if found is None or len(line) > MOST_LINE_BYTES:
        raise RequestError("protocol", "invalid request line")
    path, _, query = found[2].decode("ascii").partition("?")
    return ClientRequest(
        "http", path, (1, int(found[3])), method=found[1].decode("ascii"), query=query
    )


def _body_length(request: ClientRequest, most: int) -> int | None:
    """The length of the body; None if it is chunked."""
    coding, length = request.headers.get("transfer-encoding"), length_of(request.headers, most)
    if coding is None:
        return length or 0
    known = [one.lower() for one in coding] == ["chunked"]
    if length is not None or not known or request.version == (1, 0):
        raise RequestError("protocol", "invalid Transfer-Encoding")
    return None


def _keeps_alive(request: ClientRequest) -> bool:
    words = ",".join(request.headers.get("connection", ())).lower()
    options = {word.strip() for word in words.split(",")}
    return "close" not in options and (request.version == (1, 1) or "keep-alive" in options)


CODES: Final[dict[Problem, tuple[int, str]]] = {
    "usage": (64, "EX_USAGE"),
    "method": (64, "EX_USAGE"),
    "data": (65, "EX_DATAERR"),
    "size": (65, "EX_DATAERR"),
    "media": (65, "EX_DATAERR"),
    "protocol": (76, "EX_PROTOCOL"),
}
TEMPORARY: Final = (75, "EX_TEMPFAIL")
NO_PERMISSION: Final = (77, "EX_NOPERM")
PONG: Final = b"SPAMD/1.5 0 PONG\r\n"
OK: Final = b"SPAMD/1.1 0 EX_OK\r\n"
_LINE_CHARACTERS: Final = 998
SCANNED: Final = ("CHECK", "SYMBOLS", "REPORT", "REPORT_IFSPAM", "PROCESS", "HEADERS")
_REWRITES: Final = ("PROCESS", "HEADERS")
_WITH_LENGTH: Final = (1, 3)


def spamd_failure(code: tuple[int, str], text: str, dialect: str = "spamd") -> bytes:
    """An error; the text is for people who read the connection."""
    number, name = code
    if dialect == "rspamc":
        return f"RSPAMD/1.3 {number} {name}\r\n\r\n".encode()
    words = " ".join(text.split())[:200]
    return f"SPAMD/1.1 {number} {name} {words}".rstrip().encode("ascii", "replace") + b"\r\n"


def spamd_scanned(request: ClientRequest, result: ScanResult) -> bytes:
    """The reply to a command of `SCANNED`.

    From version 1.3 of the protocol on, a reply has its length and the verdict. In earlier versions
    it has either the length (PROCESS, HEADERS) or the verdict: Exim's reader refuses a reply with
    both.
    """
    if result.action == "defer":
        return spamd_failure(TEMPORARY, "try again later", request.dialect)
    report = report_of(result)
    if request.dialect == "rspamc":
        return _old_rspamd(request, result, report)
    body = _BODIES[request.verb](request, result, report)
    verdict = f"Spam: {report.spam_line}\r\n".encode()
    length = b"Content-length: %d\r\n" % len(body)
    if request.version >= _WITH_LENGTH:
        head = length + verdict
    else:
        head = length if request.verb in _REWRITES else verdict
    return OK + head + b"\r\n" + body


def taught(*, did_set: bool, did_remove: bool) -> bytes:
    """The reply to TELL."""
    done = b"DidSet: local\r\n" * did_set + b"DidRemove: local\r\n" * did_remove
    return OK + done + b"Content-length: 0\r\n\r\n"


def _old_rspamd(request: ClientRequest, result: ScanResult, report: ScanReport) -> bytes:
    """The reply to Exim, which gives its rules all lines as `$spam_report`, also the new fields."""
    scores = f"{report.score:.1f} / {REQUIRED_SCORE:.1f} / {report.reject_score:.1f}"
    lines = [
        "RSPAMD/1.3 0 EX_OK",
        f"Metric: default; {report.spam}; {scores}",
        f"Action: {report.action}",
        *(f"Symbol: {name}({score:.1f})" for name, (score, _) in report.symbols().items()),
        f"Message-ID: {message_id_in(header_of(request))}",
        # A line that continues a field would be a field of its own in Exim's report, and by default
        # Exim passes no line on that is longer than 998 characters.
        *(line for line in map(_unfolded, result.add) if len(line) <= _LINE_CHARACTERS),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii", "replace")


def _unfolded(field: tuple[str, str]) -> str:
    return f"{field[0]}: {' '.join(field[1].split())}"


def _nothing(_request: ClientRequest, _result: ScanResult, _report: ScanReport) -> bytes:
    return b""


def _symbols(request: ClientRequest, _result: ScanResult, report: ScanReport) -> bytes:
    names = ",".join(report.symbols())
    return names.encode() + (b"" if request.version >= _WITH_LENGTH else b"\r\n")


def _report(_request: ClientRequest, _result: ScanResult, report: ScanReport) -> bytes:
    return report.text.encode("ascii", "replace")


def _report_if_spam(request: ClientRequest, result: ScanResult, report: ScanReport) -> bytes:
    return _report(request, result, report) if report.spam else b""


def _header(request: ClientRequest, result: ScanResult, _report: ScanReport) -> bytes:
    return marked(original(request), result.add, result.tag)[0]


def _message(request: ClientRequest, result: ScanResult, _report: ScanReport) -> bytes:
    return b"".join(marked(original(request), result.add, result.tag))


_BODIES: Final = {
    "CHECK": _nothing,
    "SYMBOLS": _symbols,
    "REPORT": _report,
    "REPORT_IFSPAM": _report_if_spam,
    "HEADERS": _header,
    "PROCESS": _message,
}


MOST_HEADERS: Final = 64
_FIRST_LINE = re.compile(rb"([A-Za-z_]{1,32})[ \t]+(R?SPAMC)/(\d{1,3})\.(\d{1,3})[ \t]*")
_BARE: Final = frozenset(("PING", "SKIP"))
"""commands without a message"""


class SpamdRequestReader:
    """Reads the one request of a connection.

        CHECK SPAMC/1.5            CHECK RSPAMC/1.3
        Content-length: 1234       Content-length: 1234
        User: alice                Rcpt: alice@example.org

        the message                the message

    A connection has one request. Without a length the message goes to the end of the input, which
    only spamd's protocol allows.
    """

    __slots__ = ("_body", "_head", "_inflated_limit", "_length", "_limit", "_lines", "_request")

    def __init__(self, size_limit_bytes: int, inflated_limit_bytes: int) -> None:
        self._limit, self._inflated_limit = size_limit_bytes, inflated_limit_bytes
        self._head = bytearray()
        self._lines = 0
        self._request: ClientRequest | None = None
        self._length: int | None = None
        self._body = bytearray()

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""
        head = self._request.header_bytes if self._request else 0
        return len(self._head) + len(self._body) + head

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun."""
        return self._request is None and not self._head

    def feed(self, data: bytes) -> ClientRequest | None:
        """Take bytes; the request when it is complete."""
        if self._head_open:
            self._head += data
            if not self._read_head():
                return None
        else:
            self._body += data
        if self._length is None:
            self._check_size()
            return None
        if len(self._body) > self._length:
            raise RequestError("protocol", "more bytes than Content-length says")
        return self._complete() if len(self._body) == self._length else None

    def end(self) -> ClientRequest:
        """Take the end of the input; return the request."""
        if self._head_open:
            raise RequestError("protocol", "the request is not complete")
        if self._length is not None:
            raise RequestError("protocol", "fewer bytes than Content-length says")
        return self._complete()

    # -- head -------------------------------------------------------------------------------------

    @property
    def _head_open(self) -> bool:
        return self._lines >= 0

    def _read_head(self) -> bool:
        """Read complete lines of the head; whether the head is complete."""
        while (end := self._head.find(b"\n")) >= 0:
            line = bytes(self._head[:end]).removesuffix(b"\r")
            del self._head[: end + 1]
            if self._request is None:
                self._request = _first_line(line)
                if self._request.verb in _BARE:
                    return self._end_head(0)
            elif not line:
                return self._end_head(None)
            else:
                self._lines += 1
                if self._lines > MOST_HEADERS:
                    raise RequestError("protocol", "too many headers")
                self._request.add_header(line)
        if len(self._head) > MOST_LINE_BYTES:
            raise RequestError("protocol", "the line is too long")
        return False

    def _end_head(self, length: int | None) -> bool:
        """End the head; the bytes after it are the message."""
        request = self._request
        assert request is not None
        self._lines = -1
        self._length = length
        if length is None:
            self._length = read_length(request.headers, self._limit)
            if self._length is None and request.dialect == "rspamc":
                raise RequestError("protocol", "Content-length is missing")
            self._body, self._head = self._head, bytearray()
        else:
            self._head.clear()
        return True

    # -- body -------------------------------------------------------------------------------------

    def _check_size(self) -> None:
        if len(self._body) > self._limit:
            raise RequestError("size", "the message is too large")

    def _complete(self) -> ClientRequest:
        request = self._request
        assert request is not None
        request.body, self._body = bytes(self._body), bytearray()
        method = request.header("compress").lower()
        if method:
            if method != "zlib" or self._length is None:
                raise RequestError("data", "only zlib with a Content-length can be read")
            request.body = _inflated(request.body, self._inflated_limit)
        return request


def _first_line(line: bytes) -> ClientRequest:
    found = _FIRST_LINE.fullmatch(line)
    if found is None:
        raise RequestError("protocol", "bad header line")
    dialect: Dialect = "rspamc" if found[2] == b"RSPAMC" else "spamd"
    version = int(found[3]), int(found[4])
    return ClientRequest(dialect, found[1].decode("ascii").upper(), version)


def unpacked(data: bytes, most: int) -> bytes:
    """A message of Zstandard frames, of at most so many bytes."""
    try:
        zstandard = import_module("zstandard")
    except ImportError as error:
        raise RequestError("media", "zstd needs the package zstandard") from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
    try:
        with decompressor.stream_reader(data, read_across_frames=True) as reader:
            found = bytes(reader.read(most + 1))
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise RequestError("data", "the message is not valid zstd data") from error
    if len(found) > most:
        raise RequestError("data", "the unpacked message is too large")
    if len(found) < size:
        raise RequestError("data", "the compressed message is cut off")
    return found


def _inflated(data: bytes, most: int) -> bytes:
    """Inflate, to at most one byte above the limit."""
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data, most + 1)
    except zlib.error as error:
        raise RequestError("data", "the message is not valid zlib data") from error
    if len(found) > most:
        raise RequestError("data", "the inflated message is too large")
    if not reader.eof:
        raise RequestError("data", "the compressed message is cut off")
    return found
