"""The control socket's server: connections, client roles, and limits.

A thread for each connection, so that concurrent feedback shares one transaction. The kernel
identifies the client (SO_PEERCRED): the owner and root are admins, delegates may name the user they
act for, all others act as their own user. Connections in total and for each user, lines, bytes,
waits and the memory of all bodies are limited, since any local user may be hostile.

Must not know what requests mean: the handler does. Failure: a SpamnbError becomes the reply; any
other exception is logged once with an incident id, and the reply names the id alone.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from spamnb.errors import SpamnbError, StoreBusyError, UserError
from spamnb.net.server import OpenConnections
from spamnb.operations.protocol import CHUNK_BYTES, FrameError, Frames
from spamnb.operations.request import (
    AdminRequest,
    AdminResponse,
    Caller,
    Header,
    RequestHandler,
    Role,
    failure,
    login_of,
)
from spamnb.telemetry import Log, incident, silent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """Limits on what clients of the socket may use."""

    connections: int = 64
    each_user: int = 16
    """connections of one user that is no admin, so that no user excludes the others; all such users
    together get half of the connections, so that mail programs and admins always get one"""
    body_bytes: int = 64 << 20
    held_bytes: int = 256 << 20
    """of all request bodies in memory"""
    idle_s: float = 60.0
    read_s: float = 10.0
    request_s: float = 120.0
    """time limit for sending one request"""


class Roles:
    """Roles by uid."""

    def __init__(self, owner: int, delegates: frozenset[int] = frozenset()) -> None:
        self._owner = owner
        self._delegates = delegates

    def caller(self, uid: int) -> Caller:
        """The client with this uid."""
        role: Role = "self"
        if uid in (0, self._owner):
            role = "admin"
        elif uid in self._delegates:
            role = "delegate"
        return Caller(uid, role, login_of(uid))


class _BodyBudget:
    """Body bytes in memory: users without the right to name others get at most half of them.

    Each of these users may hold one body of the largest size. Otherwise a user that sends a byte a
    second could exclude all others.
    """

    def __init__(self, limits: ControlLimits) -> None:
        self._left = limits.held_bytes
        self._theirs = limits.held_bytes // 2
        self._each = limits.body_bytes
        self._by_user: Counter[int] = Counter()
        self._change = threading.Condition()

    def take(self, size: int, caller: Caller, wait_s: float) -> None:
        with self._change:
            if not self._change.wait_for(lambda: self._has(size, caller), wait_s):
                raise StoreBusyError("too many requests are in progress", hint="try again")
            self._add(size, caller)

    def give_back(self, size: int, caller: Caller) -> None:
        with self._change:
            self._add(-size, caller)
            self._change.notify_all()

    def _has(self, size: int, caller: Caller) -> bool:
        if caller.role != "self":
            return self._left >= size
        mine = self._by_user[caller.uid] + size <= self._each
        return mine and min(self._left, self._theirs) >= size

    def _add(self, size: int, caller: Caller) -> None:
        self._left -= size
        if caller.role == "self":
            self._theirs -= size
            self._by_user[caller.uid] += size
            if self._by_user[caller.uid] <= 0:
                del self._by_user[caller.uid]


class ControlServer:
    """Accepts connections on a listening socket until it is stopped."""

    def __init__(
        self,
        listener: socket.socket,
        handler: RequestHandler,
        roles: Callable[[], Roles],
        limits: ControlLimits | None = None,
        log: Log = silent,
    ) -> None:
        self.log = log
        self._listener = listener
        self._handler = handler
        self._roles = roles
        self._limits = limits or ControlLimits()
        self._budget = _BodyBudget(self._limits)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}
        self._others = OpenConnections()
        """of users without the right to name others"""
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, name="control-accept", daemon=True)
        self.faults = 0

    def start(self) -> None:
        """Start to accept."""
        self._listener.setblocking(False)
        self._thread.start()

    def stop(self, wait_s: float = 20.0) -> bool:
        """Stop accepting and finish the current requests; whether all ended in time."""
        self._stopping = True
        os.write(self._waker, b"x")
        self._thread.join()
        until = time.monotonic() + wait_s
        with self._lock:
            open_connections = list(self._open.values())
        for thread_connection in open_connections:
            thread_connection.finish()
        for thread_connection in open_connections:
            thread_connection.thread.join(max(0.0, until - time.monotonic()))
        os.close(self._wake)
        os.close(self._waker)
        return not any(
            thread_connection.thread.is_alive() for thread_connection in open_connections
        )

    def busy_s(self) -> float:
        """The age of the oldest request in progress."""
        with self._lock:
            began = [
                thread_connection.began
                for thread_connection in self._open.values()
                if thread_connection.began
            ]
        return time.monotonic() - min(began) if began else 0.0

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    # -- accepting ------------------------------------------------------------------------------

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._stopping:
            poll.poll()
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                continue
            except OSError as error:
                # Out of descriptors: they become free when connections end.
                self._warn("control: no connection can be accepted", error)
                time.sleep(0.1)
                continue
            self._serve(connection)

    def contained(self, what: str, run: Callable[[], T], failed: Callable[[str], T]) -> T:
        """Run a step; count and log an internal fault, and pass its incident id to `failed`."""
        try:
            return run()
        except Exception as error:  # noqa: BLE001 - logged, and answered with its incident id
            self.faults += 1
            return failed(incident(self.log, what, error))

    def _warn(self, event: str, error: Exception) -> None:
        self.log({"event": event, "level": "warning", "error": str(error)})

    def _serve(self, connection: socket.socket) -> None:
        def admit() -> None:
            try:
                self._admit(connection)
            except (OSError, RuntimeError) as error:
                # The peer's uid is not readable, or no thread can be started.
                self._warn("control: a connection cannot be served", error)
                self._close(connection)

        self.contained("a connection", admit, lambda _: self._close(connection))

    def _admit(self, connection: socket.socket) -> None:
        caller = self._roles().caller(_uid_of(connection))
        thread_connection = _Connection(self, connection, caller)
        limits, others = self._limits, self._others
        with self._lock:
            full = len(self._open) >= limits.connections
            if caller.role == "self" and not full:
                most, user = limits.connections // 2, str(caller.uid)
                full = bool(others.full(user, most, limits.each_user))
                if not full:
                    others.enter(user)
            if not full:
                self._open[connection] = thread_connection
        if full:
            with suppress(OSError), connection:
                busy = StoreBusyError("too many connections", hint="try again")
                Frames(connection).send(failure(busy), wait_s=0.1)
            return
        thread_connection.thread.start()

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            left = self._open.pop(connection, None)
            if left is not None and left.caller.role == "self":
                self._others.leave(str(left.caller.uid))
        connection.close()


class _Connection:
    """One connection, in its own thread."""

    def __init__(self, server: ControlServer, connection: socket.socket, caller: Caller) -> None:
        self._server = server
        self._limits = server._limits  # noqa: SLF001 - the two classes belong together
        self._frames = Frames(connection)
        self._left = 0
        self._held = 0
        self.caller = caller
        self.began = 0.0
        self.thread = threading.Thread(target=self._run, name="control", daemon=True)

    def finish(self) -> None:
        """Stop reading; a reply that is due is still sent."""
        with suppress(OSError):
            self._frames.connection.shutdown(socket.SHUT_RD)

    def _run(self) -> None:
        try:
            while self._serve_request():
                pass
        except (OSError, FrameError) as error:
            self._server.log(
                {"event": "control: connection ended", "level": "debug"}
                | {"uid": self.caller.uid, "error": str(error)}
            )
        finally:
            self._server._close(self._frames.connection)  # noqa: SLF001 - as above

    def _serve_request(self) -> bool:
        """Handle one request; False at the end of the connection."""
        limits, frames = self._limits, self._frames
        try:
            header = frames.line(limits.idle_s, limits.read_s)
        except FrameError as error:
            self._reply(AdminResponse(failure(UserError(str(error)))))
            return False
        if header is None:
            return False
        self.began, self._left = time.monotonic(), header["bytes"]
        try:
            what = f"a request {header.get('op')!r:.40}"
            self._reply(self._server.contained(what, partial(self._handle, header), _internal))
        finally:
            self._release()
            self.began = 0.0
        # Unread bytes of the body would be read as the next line.
        return self._left == 0 and not self._server._stopping  # noqa: SLF001 - as above

    def _handle(self, header: Header) -> AdminResponse:
        try:
            reply = self._server._handler(  # noqa: SLF001 - as above
                AdminRequest(self.caller, header, self._body, self._save_body)
            )
            return AdminResponse({"ok": True, **reply.header}, reply.body)
        except SpamnbError as error:
            return AdminResponse(failure(error))
        except (FrameError, TimeoutError) as error:
            self._left = -1
            return AdminResponse(
                failure(UserError(str(error) or "the bytes did not arrive in time"))
            )

    def _reply(self, reply: AdminResponse) -> None:
        self._frames.send(reply.header, reply.body, wait_s=self._limits.read_s)

    def _body(self, most: int) -> bytes:
        """Read the body into memory, within the budget."""
        size = self._sized(min(most, self._limits.body_bytes))
        budget = self._server._budget  # noqa: SLF001 - as above
        budget.take(size, self.caller, self._limits.read_s)
        self._held += size
        found = self._frames.body(size, self._limits.read_s, self._until())
        self._left = 0
        return found

    def _save_body(self, most: int, handle: int) -> None:
        """Write the body to a file as it arrives."""
        self._sized(most)
        with open(handle, "wb", closefd=False) as file:
            while self._left:
                data = self._frames.taken(min(self._left, CHUNK_BYTES), self._limits.read_s)
                self._left -= len(data)
                file.write(data)

    def _sized(self, most: int) -> int:
        if self._left > most:
            raise UserError(f"{self._left} bytes are announced, the limit is {most}")
        return self._left

    def _until(self) -> float:
        return time.monotonic() + self._limits.request_s

    def _release(self) -> None:
        self._server._budget.give_back(self._held, self.caller)  # noqa: SLF001 - as above
        self._held = 0


def _internal(incident: str) -> AdminResponse:
    text = f"internal error, incident {incident}"
    return AdminResponse(failure(SpamnbError(text, hint="see the daemon's log")))


def _uid_of(connection: socket.socket) -> int:
    """The peer's uid at the time of connect (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])
