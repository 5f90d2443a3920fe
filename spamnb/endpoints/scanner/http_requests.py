"""HTTP/1.0 and HTTP/1.1 requests: bytes in, requests out (RFC 9112).

Strict where leniency has been used for smuggling: one Content-Length or one `chunked`, never both;
no folded headers; no blank before the colon. No sockets and no clock. Failure: RequestError; then
the connection cannot be read any further.
"""

from __future__ import annotations

import re
from typing import Final

from spamnb.endpoints.scanner.request import ClientRequest, RequestError, length_of

MOST_LINE_BYTES: Final = 8192
MOST_HEAD_BYTES: Final = 65_536
MOST_CHUNK_LINE_BYTES: Final = 256
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8000}) HTTP/1\.([01])")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t -~]*)?")


class HttpRequestReader:
    """Reads the requests of a connection, one after the other."""

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
