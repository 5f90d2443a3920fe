"""A request in any of the protocols, and what is wrong with one. Values only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

Dialect = Literal["spamd", "rspamc", "http"]
HEADER_BYTES: Final = 400
"""memory that Python needs for a header in addition to its text"""
Problem = Literal["usage", "method", "data", "size", "protocol", "media"]
"""usage: no such command; method: not for this path; data: the body is not what it claims to be;
size: the request is too large; protocol: everything else; media: an unknown compression"""

_NAME = re.compile(rb"[!-~]+")


class RequestError(Exception):
    """A request that is not served; the text is for the client."""

    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(text)
        self.problem = problem
        self.text = text


@dataclass(slots=True)
class ClientRequest:
    """One request."""

    dialect: Dialect
    verb: str
    """the command in upper case; of HTTP the path without its query"""
    version: tuple[int, int] = (1, 1)
    method: str = ""
    query: str = ""
    headers: dict[str, list[str]] = field(default_factory=dict)
    """by name in lower case"""
    body: bytes = b""
    keep_alive: bool = False
    header_bytes: int = 0
    """that the headers need in memory"""

    def header(self, *names: str) -> str:
        """The first value of the first of these headers that is present."""
        return next((self.headers[name][0] for name in names if name in self.headers), "")

    def add_header(self, line: bytes) -> None:
        """Add the header in a line without its end; RequestError if it is none."""
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None:
            raise RequestError("protocol", "invalid header line")
        text = value.strip().decode("utf-8", "replace")
        self.headers.setdefault(name.decode("ascii").lower(), []).append(text)
        self.header_bytes += len(line) + HEADER_BYTES


def length_of(headers: dict[str, list[str]], most: int) -> int | None:
    """The value of Content-Length; None without one."""
    values = headers.get("content-length")
    if values is None:
        return None
    if len(values) != 1 or not (values[0].isascii() and values[0].isdigit()):
        raise RequestError("protocol", "invalid Content-length")
    if len(values[0]) > len(str(most)) or int(values[0]) > most:
        raise RequestError("size", "the message is too large")
    return int(values[0])
