"""Responses of an IMAP server (RFC 3501), from bytes: without sockets, within limits.

A response is one line, or several lines with literals (byte strings of an announced length) between
them. The reader keeps at most one incomplete response. If a line or a literal is longer than any
that this client asks for, the conversation ends.

Must not know what the client asked. Failure: PeerError for bytes that are no response, or too many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from spamnb.errors import PeerError

LINE_BYTES: Final = 1 << 16
SEARCH_BYTES: Final = 4 << 20
"""of the only response that grows with the mailbox: 600,000 UIDs"""
LITERAL_BYTES: Final = (1 << 20) + 1024
"""of all literals of a response: the client asks for at most 1 MB of a message"""
_MOST_TOKENS: Final = 2000
_MOST_DEPTH: Final = 16
_MOST_NUMBER: Final = 1 << 32

_LITERAL = re.compile(rb"\{(\d{1,10})\+?\}\Z")
_STATUS = re.compile(
    rb"(\S{1,20}) (OK|NO|BAD|BYE|PREAUTH)(?: (?:\[([^\]]*)\] ?)?(.*))?", re.IGNORECASE | re.DOTALL
)
_NUMBERED = re.compile(rb"\* (\d{1,10}) ([A-Za-z]+)(.*)", re.DOTALL)
_NAMED = re.compile(rb"\* ([A-Za-z][A-Za-z0-9-]*)(.*)", re.DOTALL)
# A section such as BODY[HEADER.FIELDS (FROM)]<0> is one token.
_TOKEN = re.compile(
    rb'\s*(?:([()])|"((?:[^"\\]|\\.)*)"|([^\s()"\[\]]*\[[^\]]*\](?:<\d+>)?|[^\s()"]+))', re.DOTALL
)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_PARSED: Final = ("FETCH", "LIST", "STATUS")
"""responses with values that are read; the values of other untagged responses are ignored"""


class ImapResponse(NamedTuple):
    """One response."""

    tag: str
    """of the command that it ends; * for data, + for a request to continue"""
    kind: str
    """such as OK, FETCH, EXISTS, in upper case; empty for +"""
    number: int = 0
    """the number before the kind"""
    code: str = ""
    """the response code of a status: the text in brackets"""
    text: str = ""
    values: tuple[Any, ...] = ()
    """atoms and strings as bytes, NIL as None, lists as lists; of SEARCH numbers"""


class ResponseReader:
    """Splits received bytes into responses."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._lines: list[bytes] = []
        """of the response that is not complete"""
        self._literals: list[bytes] = []
        self._missing = -1
        """missing bytes of the current literal; -1: a line is being received"""
        self._looked = 0

    @property
    def is_empty(self) -> bool:
        """Return True if no byte is left over."""
        return not (self._buffer or self._lines)

    def feed(self, data: bytes) -> Iterator[ImapResponse]:
        """Yield the responses that these bytes complete."""
        self._buffer += data
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> ImapResponse | None:
        while self._take_literal():
            line = self._take_line()
            if line is None:
                return None
            announced = None if self._is_status(line) else _LITERAL.search(line)
            if announced is None:
                self._lines.append(line)
                lines, literals = self._lines, self._literals
                self._lines, self._literals = [], []
                return _parse(lines, literals)
            self._lines.append(line[: announced.start()])
            self._missing = int(announced[1])
            if self._missing + sum(map(len, self._literals)) > LITERAL_BYTES:
                raise PeerError(f"the server announces {self._missing} bytes, too many")
        return None

    def _is_status(self, line: bytes) -> bool:
        """Return True for a text of the server, which may end like a literal."""
        return not self._lines and (line.startswith(b"+") or bool(_STATUS.match(line)))

    def _take_literal(self) -> bool:
        """Take the literal that is being received; False if bytes of it are missing."""
        if self._missing < 0:
            return True
        if len(self._buffer) < self._missing:
            return False
        self._literals.append(bytes(self._buffer[: self._missing]))
        del self._buffer[: self._missing]
        self._missing = -1
        return True

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._looked)
        size = (end if end >= 0 else len(self._buffer)) + sum(map(len, self._lines))
        is_search = not self._lines and self._buffer[:9].upper() == b"* SEARCH "
        if size > (SEARCH_BYTES if is_search else LINE_BYTES):
            raise PeerError("the server sends a line that is too long")
        if end < 0:
            self._looked = len(self._buffer)
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        self._looked = 0
        return line


def _parse(lines: list[bytes], literals: list[bytes]) -> ImapResponse:
    first = lines[0]
    if first.startswith(b"+"):
        return ImapResponse("+", "", text=_text(first[1:].strip()))
    if status := _STATUS.fullmatch(first):
        tag, word, code, text = map(_text, status.groups(b""))
        return ImapResponse(tag, word.upper(), code=code, text=text)
    number = 0
    if found := _NUMBERED.fullmatch(first):
        number, name, rest = _number(found[1]), found[2], found[3]
    elif found := _NAMED.fullmatch(first):
        name, rest = found.groups()
    else:
        raise PeerError(f"the server sends {_text(first[:80])!r}, which is not IMAP")
    kind = _text(name).upper()
    if kind == "SEARCH":
        return ImapResponse("*", kind, values=tuple(map(_number, rest.split())))
    if kind == "CAPABILITY":
        return ImapResponse("*", kind, text=_text(rest.strip()))
    values = _values([rest, *lines[1:]], literals) if kind in _PARSED else ()
    return ImapResponse("*", kind, number, values=values)


def _values(lines: list[bytes], literals: list[bytes]) -> tuple[Any, ...]:
    """Return the values of the lines, with a literal after each line except the last."""
    stack: list[list[Any]] = [[]]
    count = 0
    for index, line in enumerate(lines):
        at = 0
        while found := _TOKEN.match(line, at):
            at, count = found.end(), count + 1
            _push(stack, found)
            if count > _MOST_TOKENS or len(stack) > _MOST_DEPTH:
                raise PeerError("the server sends a response with too many values")
        if line[at:].strip():
            raise PeerError("the server sends a response that cannot be read")
        if index < len(literals):
            stack[-1].append(literals[index])
    if len(stack) != 1:
        raise PeerError("the server sends a response with an open bracket")
    return tuple(stack[0])


def _push(stack: list[list[Any]], found: re.Match[bytes]) -> None:
    """Add one token to the innermost list."""
    bracket, quoted, atom = found.groups()
    if bracket == b"(":
        inner: list[Any] = []
        stack[-1].append(inner)
        stack.append(inner)
    elif bracket == b")":
        if len(stack) == 1:
            raise PeerError("the server sends a response with one bracket too many")
        stack.pop()
    elif quoted is not None:
        stack[-1].append(_ESCAPED.sub(rb"\1", quoted))
    else:
        stack[-1].append(None if atom.upper() == b"NIL" else atom)


def _number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 10 or int(digits) >= _MOST_NUMBER:
        raise PeerError("the server sends an invalid number")
    return int(digits)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
