"""The control socket's protocol, and a client for it: lines of JSON followed by bytes.

    -> {"op": "teach", "label": "spam", "bytes": 1234, "channel": "imap", "for": "alice"}
       and 1234 bytes: the message
    <- {"ok": true, "state": "learnt", "receipt": {...}, "bytes": 0}
       or {"ok": false, "error": "one line", "hint": "...", "error_type": "RefError", "code": 2}

One line each way, in UTF-8, ended by a line feed; `bytes` (default 0) says how many bytes follow. A
connection may carry many requests, one after the other. So a shell script, or a few lines in any
language, can be a client. The server identifies the client by the socket's credentials.

Must not know the model or what requests mean. Failure: StoreBusyError if no server answers, the
server's own error class for a refused request, PeerError for an invalid reply.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from spamnb.errors import PeerError, StoreBusyError
from spamnb.feedback.values import Answer, Feedback, SenderChange
from spamnb.operations.request import AdminClient, AdminResponse, Header, failed

LINE_BYTES = 1 << 16
CHUNK_BYTES = 1 << 18
ANSWER_S = 60.0
"""how long a client waits for an answer: another transaction may run first, or the learner may
be restarting; mail servers in front of the client wait longer than that"""
LONG_S = 3600.0
"""... for operations that take long: imports, expiry, training"""
_IDLE_S = 20.0
"""A connection that was idle for longer is replaced: the server may have closed it."""


class FrameError(Exception):
    """The bytes are no valid frame; the stream cannot be used any further."""


class Frames:
    """Lines and bytes over a connected socket; each read has a time limit."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = bytearray()

    def line(self, first_s: float, read_s: float) -> Header | None:
        """Read a header, which must begin within `first_s`; None at the end of the connection."""
        until = time.monotonic() + first_s
        looked = 0
        while (end := self._buffer.find(b"\n", looked)) < 0:
            looked = len(self._buffer)
            if looked > LINE_BYTES:
                raise FrameError(f"the line is longer than {LINE_BYTES} bytes")
            if not self._more(until):
                if self._buffer:
                    raise FrameError("the connection ended within a line")
                return None
            if not looked:
                until = time.monotonic() + read_s
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return _header(line)

    def body(self, size: int, read_s: float, until: float) -> bytes:
        """Read `size` bytes; each read waits at most `read_s`, and the last one ends at `until`."""
        while len(self._buffer) < size:
            if not self._more(min(until, time.monotonic() + read_s)):
                raise FrameError(f"{size} bytes were announced, {len(self._buffer)} arrived")
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def taken(self, most: int, read_s: float) -> bytes:
        """Read some bytes, at most `most`; for bodies that are not kept in memory."""
        if not self._buffer and not self._more(time.monotonic() + read_s):
            raise FrameError("the connection ended within its bytes")
        found = bytes(self._buffer[:most])
        del self._buffer[:most]
        return found

    def _more(self, until: float) -> bool:
        """Read available bytes; False at the end. TimeoutError when the time is over."""
        self.connection.settimeout(max(until - time.monotonic(), 0.001))
        data = self.connection.recv(CHUNK_BYTES)
        self._buffer += data
        return bool(data)

    def send(self, header: Mapping[str, Any], body: bytes = b"", *, wait_s: float) -> None:
        """Write a header and its bytes."""
        line = json.dumps({**header, "bytes": len(body)}, separators=(",", ":")).encode() + b"\n"
        self.connection.settimeout(wait_s)
        self.connection.sendall(line + body if len(body) < CHUNK_BYTES else line)
        if len(body) >= CHUNK_BYTES:
            self.connection.sendall(body)


def _header(line: bytes) -> Header:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FrameError("the line is not JSON") from error
    if not isinstance(found, dict):
        raise FrameError("the line is not a JSON object")
    size = found.setdefault("bytes", 0)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise FrameError("`bytes` is not a number of bytes")
    return found


# --- values and headers ----------------------------------------------------------------------


# --- the client ------------------------------------------------------------------------------


class ControlClient(AdminClient):
    """A connection to the control socket, for one thread."""

    def __init__(self, path: Path | str, wait_s: float = ANSWER_S) -> None:
        self._path = Path(path)
        self.wait_s = wait_s
        """how long to wait for each reply"""
        self._frames = Frames(connected(self._path, wait_s))
        self._used = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._frames.connection.close()

    def ask(self, op: str, body: bytes = b"", **fields: Any) -> AdminResponse:
        """Send a request and return its reply; an error of the server is raised here."""
        self._reconnect_if_idle()
        try:
            # The server may refuse without reading all of the request; its reply can still be read.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._frames.send({"op": op, **fields}, body, wait_s=self.wait_s)
        except OSError as error:
            raise _not_answering(error) from error
        return self._read_reply()

    def _reconnect_if_idle(self) -> None:
        if time.monotonic() - self._used > _IDLE_S:
            self.close()
            self._frames = Frames(connected(self._path, self.wait_s))

    def _read_reply(self) -> AdminResponse:
        """Read a reply; an error in it is raised."""
        frames, wait_s = self._frames, self.wait_s
        try:
            header = frames.line(wait_s, wait_s)
            if header is None:
                raise StoreBusyError(
                    "the daemon closed the connection", hint="try again, or see its log"
                )
            body = frames.body(header["bytes"], wait_s, time.monotonic() + wait_s)
            self._used = time.monotonic()
        except OSError as error:
            raise _not_answering(error) from error
        except FrameError as error:
            raise PeerError(f"the daemon's reply is invalid: {error}") from error
        if not header.get("ok"):
            raise failed(header)
        return AdminResponse(header, body)

    def ask_with_file(self, op: str, file: BinaryIO, size: int, **fields: Any) -> Header:
        """Send a request with a plain file of that size as its body; returns the reply."""
        self._reconnect_if_idle()
        line = json.dumps({"op": op, **fields, "bytes": size}).encode() + b"\n"
        connection = self._frames.connection
        connection.settimeout(self.wait_s)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(line)
                if size:
                    connection.sendfile(file, 0, size)
        except OSError as error:
            raise _not_answering(error) from error
        return self._read_reply().header


def teach_through(path: Path | str, given: Feedback | SenderChange) -> Answer:
    """Submit one feedback by a new connection: for callers in many threads."""
    with ControlClient(path) as caller:
        return caller.teach(given) if isinstance(given, Feedback) else caller.list_sender(given)


def ask_once(path: Path | str, op: str, body: bytes = b"", **fields: Any) -> AdminResponse:
    """Ask for one operation by a new connection: for callers in many threads."""
    with ControlClient(path) as caller:
        return caller.ask(op, body, **fields)


def connected(path: Path, wait_s: float) -> socket.socket:
    """Connect; StoreBusyError if no server listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _limit_connect(connection, wait_s)
    folder = -1
    try:
        if len(os.fsencode(path)) < 100:
            connection.connect(str(path))
        else:
            # A socket's path has at most 107 bytes (unix(7)); relative to its folder, it is short.
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        connection.settimeout(wait_s)
    except OSError as error:
        connection.close()
        raise _not_answering(error) from error
    finally:
        if folder >= 0:
            os.close(folder)
    return connection


def _limit_connect(connection: socket.socket, wait_s: float) -> None:
    """Let `connect` wait in the kernel for a place in a full backlog, in order of arrival.

    With a timeout of Python's the socket does not block, and `connect` fails immediately.
    """
    seconds, part = divmod(wait_s, 1)
    limit = struct.pack("@ll", int(seconds), int(part * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _not_answering(error: OSError) -> StoreBusyError:
    is_late = isinstance(error, TimeoutError | BlockingIOError)
    why = "it took too long" if is_late else error.strerror or str(error)
    return StoreBusyError(
        f"the daemon does not answer: {why}", hint="check that it runs; see its log"
    )
