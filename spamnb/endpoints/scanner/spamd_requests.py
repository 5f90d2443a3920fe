"""Requests of spamd's protocol and of rspamd's old one: bytes in, one request out.

    CHECK SPAMC/1.5            CHECK RSPAMC/1.3
    Content-length: 1234       Content-length: 1234
    User: alice                Rcpt: alice@example.org

    the message                the message

A connection has one request. Without a length the message goes to the end of the input, which only
spamd's protocol allows. No sockets and no clock. Failure: RequestError.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from spamnb.endpoints.scanner.request import ClientRequest, Dialect, RequestError
from spamnb.endpoints.scanner.request import length_of as read_length

MOST_LINE_BYTES: Final = 8192
MOST_HEADERS: Final = 64
_FIRST_LINE = re.compile(rb"([A-Za-z_]{1,32})[ \t]+(R?SPAMC)/(\d{1,3})\.(\d{1,3})[ \t]*")
_BARE: Final = frozenset(("PING", "SKIP"))
"""commands without a message"""


class SpamdRequestReader:
    """Reads the one request of a connection."""

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
