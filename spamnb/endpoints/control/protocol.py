"""The control socket's protocol, and a client for it: lines of JSON with bytes behind them.

    -> {"op": "teach", "label": "spam", "bytes": 1234, "channel": "imap", "for": "alice"}
       and 1234 bytes: the message
    <- {"ok": true, "state": "learnt", "receipt": {...}, "bytes": 0}
       or {"ok": false, "error": "one line", "hint": "...", "error_type": "RefError", "code": 2}

One line each way, in UTF-8, ended by a line feed; `bytes` (0 if it is left out) says how many bytes
follow. Many requests may use one connection, one after the other. So a shell or a few lines of any
language can speak it. The other side knows who we are by the socket itself.

Must not know the model or what requests mean. Failure: StoreBusyError where nobody answers, the
error of the family that the other side had, PeerError for what is no reply.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from spamnb import errors
from spamnb.errors import PeerError, SpamnbError, StoreBusyError
from spamnb.service.engine.receipt import Receipt
from spamnb.service.feedback.types import Answer, Feedback

LINE_BYTES = 1 << 16
CHUNK_BYTES = 1 << 18
ANSWER_S = 60.0
"""how long a client waits for an answer: another's transaction goes first, or the learner has died
and its successor starts; a mail server that waits for us has more patience than that"""
LONG_S = 3600.0
"""... to work that takes long: imports, expiry, training"""
_IDLE_S = 20.0
"""A connection that was silent for longer is made anew: the other side may have ended it."""

Header = dict[str, Any]


class FrameError(Exception):
    """What came is no frame; the stream cannot be used any further."""


class Frames:
    """Lines and bytes over a connected socket; each read is bounded in time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._held = bytearray()

    def line(self, first_s: float, read_s: float) -> Header | None:
        """Read a header; None when the other side has ended. It may wait `first_s` to begin."""
        until = time.monotonic() + first_s
        looked = 0
        while (end := self._held.find(b"\n", looked)) < 0:
            looked = len(self._held)
            if looked > LINE_BYTES:
                raise FrameError(f"the line is longer than {LINE_BYTES} bytes")
            if not self._more(until):
                if self._held:
                    raise FrameError("the connection ended within a line")
                return None
            if not looked:
                until = time.monotonic() + read_s
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return _header(line)

    def body(self, size: int, read_s: float, until: float) -> bytes:
        """Read that many bytes; each read waits at most `read_s`, all of them `until`."""
        while len(self._held) < size:
            if not self._more(min(until, time.monotonic() + read_s)):
                raise FrameError(f"{size} bytes were announced, {len(self._held)} came")
        found = bytes(self._held[:size])
        del self._held[:size]
        return found

    def taken(self, most: int, read_s: float) -> bytes:
        """Read some bytes, at most so many; for bodies that are not kept in memory."""
        if not self._held and not self._more(time.monotonic() + read_s):
            raise FrameError("the connection ended within its bytes")
        found = bytes(self._held[:most])
        del self._held[:most]
        return found

    def _more(self, until: float) -> bool:
        """Read what is there; False at the end. TimeoutError when the time is over."""
        self.connection.settimeout(max(until - time.monotonic(), 0.001))
        data = self.connection.recv(CHUNK_BYTES)
        self._held += data
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
        raise FrameError("the line is no JSON") from error
    if not isinstance(found, dict):
        raise FrameError("the line is no JSON object")
    size = found.setdefault("bytes", 0)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise FrameError("`bytes` is no number of bytes")
    return found


# --- values and lines ------------------------------------------------------------------------


def failure(error: SpamnbError) -> Header:
    """An error as a reply."""
    return {
        "ok": False,
        "error": " ".join(str(error).split()),
        "hint": error.hint,
        "error_type": type(error).__name__,
        "code": error.exit_code,
        "transient": bool(getattr(error, "transient", False)),
    }


def failed(header: Header) -> SpamnbError:
    """The error that a reply tells of."""
    sort = getattr(errors, str(header.get("error_type")), None)
    if not (isinstance(sort, type) and issubclass(sort, SpamnbError)):
        sort = PeerError
    return sort(str(header.get("error") or "refused"), hint=str(header.get("hint") or ""))


def answered(answer: Answer) -> Header:
    """An answer as a reply."""
    receipt = answer.receipt.as_dict() if answer.receipt else None
    return {
        "ok": True,
        "state": answer.state,
        "reason": answer.reason,
        "review": answer.review,
        "receipt": receipt,
        "facts": answer.facts,
    }


def answer_of(header: Header) -> Answer:
    """The answer that a reply holds."""
    try:
        receipt = header.get("receipt")
        return Answer(
            header["state"],
            Receipt.from_dict(receipt) if receipt else None,
            str(header.get("reason", "")),
            str(header.get("review", "")),
            dict(header.get("facts") or {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError("the daemon's answer cannot be read") from error


# --- the client ------------------------------------------------------------------------------


class ControlReply(NamedTuple):
    """What came back."""

    header: Header
    body: bytes


class ControlClient:
    """A connection to the control socket, for one thread."""

    def __init__(self, path: Path | str, wait_s: float = ANSWER_S) -> None:
        self._path = Path(path)
        self._wait_s = wait_s
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
        """Hang up."""
        self._frames.connection.close()

    def ask(self, op: str, body: bytes = b"", **fields: Any) -> ControlReply:
        """One request, and its reply; an error of the other side is raised here."""
        self._fresh()
        try:
            # Who is refused may not be read to the end: the reply is there all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._frames.send({"op": op, **fields}, body, wait_s=self._wait_s)
        except OSError as error:
            raise _away(error) from error
        return self._replied()

    def _fresh(self) -> None:
        if time.monotonic() - self._used > _IDLE_S:
            self.close()
            self._frames = Frames(connected(self._path, self._wait_s))

    def _replied(self) -> ControlReply:
        """Read a reply; what the other side refuses is raised."""
        frames, wait_s = self._frames, self._wait_s
        try:
            header = frames.line(wait_s, wait_s)
            if header is None:
                raise StoreBusyError("the daemon hung up", hint="try again, or see its log")
            came = frames.body(header["bytes"], wait_s, time.monotonic() + wait_s)
            self._used = time.monotonic()
        except OSError as error:
            raise _away(error) from error
        except FrameError as error:
            raise PeerError(f"the daemon's reply cannot be read: {error}") from error
        if not header.get("ok"):
            raise failed(header)
        return ControlReply(header, came)

    def pour(self, op: str, file: BinaryIO, size: int, **fields: Any) -> Header:
        """One request whose bytes are a plain file of that size, and its reply."""
        self._fresh()
        line = json.dumps({"op": op, **fields, "bytes": size}).encode() + b"\n"
        connection = self._frames.connection
        connection.settimeout(self._wait_s)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(line)
                if size:
                    connection.sendfile(file, 0, size)
        except OSError as error:
            raise _away(error) from error
        return self._replied().header

    def teach(self, feedback: Feedback) -> Answer:
        """One word on one message."""
        op = "teach" if feedback.label else "forget"
        said = spoken(feedback)
        return answer_of(self.ask(op, feedback.raw, **said).header)


def spoken(feedback: Feedback) -> Header:
    """What a feedback says, but for the message itself."""
    said: Header = {"channel": feedback.channel, "trust": feedback.trust}
    if feedback.label:
        said["label"] = feedback.label
    if feedback.who:
        said["for"] = feedback.who
    if feedback.refs:
        said["refs"] = list(feedback.refs)
    said |= {"domain": feedback.domain} if feedback.domain else {}
    said |= {"client": feedback.client} if feedback.client else {}
    return said


def teach_through(path: Path | str, feedback: Feedback) -> Answer:
    """One word on one message, by a connection of its own: for callers in many threads."""
    with ControlClient(path) as caller:
        return caller.teach(feedback)


def connected(path: Path, wait_s: float) -> socket.socket:
    """Connect; StoreBusyError where nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(wait_s)
    folder = -1
    try:
        if len(os.fsencode(path)) < 100:
            connection.connect(str(path))
        else:
            # An address holds 107 bytes (unix(7)); by way of its folder every path is short.
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError as error:
        connection.close()
        raise _away(error) from error
    finally:
        if folder >= 0:
            os.close(folder)
    return connection


def _away(error: OSError) -> StoreBusyError:
    why = "it took too long" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return StoreBusyError(f"the daemon does not answer: {why}", hint="is it running? see its log")
