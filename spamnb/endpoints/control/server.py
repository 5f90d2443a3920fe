"""The control socket's server: connections, who is on the other end, and bounds on all of it.

A thread for each connection, so that the lessons of many share one transaction. The kernel says who
connects (SO_PEERCRED): the owner and root are admins, some may name the person they speak for, all
others speak for themselves. Connections, their number for each user, lines, bytes, waits and the
memory of all bodies together are bounded: whoever reaches the socket may be hostile.

Must not know what requests mean: `hear` does. Failure: an error of the family is its reply; any
other is ours: logged once with an incident id, and the reply names the id alone.
"""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from spamnb.endpoints.control.protocol import CHUNK_BYTES, FrameError, Frames, Header, failure
from spamnb.errors import SpamnbError, StoreBusyError, UserError

LOG = logging.getLogger("spamnb.control")

Role = Literal["admin", "delegate", "self"]


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """What whoever reaches the socket may use up."""

    connections: int = 64
    each_user: int = 16
    """connections of one who is no admin, so that nobody shuts the others out; all of those
    together have half of the connections, so that mail programs and admins always get through"""
    body_bytes: int = 64 << 20
    held_bytes: int = 256 << 20
    """of all bodies that are in memory at a time"""
    idle_s: float = 60.0
    read_s: float = 10.0
    request_s: float = 120.0
    """to send one request"""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is on the other end, by the kernel's word."""

    uid: int
    role: Role
    login: str


class ControlResponse(NamedTuple):
    """What goes back."""

    header: Header
    body: bytes = b""


class ControlRequest(NamedTuple):
    """What came: the bytes are read by whoever knows how many may come."""

    peer: Peer
    header: Header
    body: Callable[[int], bytes]
    """reads the body if it has at most so many bytes"""
    pour: Callable[[int, int], None]
    """writes the body, at most so many bytes, to a descriptor"""


class RequestHandler(Protocol):
    """Answers requests; may be called by many threads."""

    def __call__(self, request: ControlRequest) -> ControlResponse:
        """One request."""


class Roles:
    """Who may do what, by uid."""

    def __init__(self, owner: int, delegates: frozenset[int] = frozenset()) -> None:
        self._owner = owner
        self._delegates = delegates

    def peer(self, uid: int) -> Peer:
        """Whoever has this uid."""
        role: Role = "self"
        if uid in (0, self._owner):
            role = "admin"
        elif uid in self._delegates:
            role = "delegate"
        return Peer(uid, role, login_of(uid))


def login_of(uid: int) -> str:
    """The name of a user; its number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class _BodyBudget:
    """Bytes that may be held at a time: half of them by users who only speak for themselves.

    And by each of them one body of the largest size, or one user who sends a byte a second would
    keep out all others.
    """

    def __init__(self, limits: ControlLimits) -> None:
        self._left = limits.held_bytes
        self._theirs = limits.held_bytes // 2
        self._each = limits.body_bytes
        self._by_user: Counter[int] = Counter()
        self._change = threading.Condition()

    def take(self, size: int, peer: Peer, wait_s: float) -> None:
        with self._change:
            if not self._change.wait_for(lambda: self._has(size, peer), wait_s):
                raise StoreBusyError("too much is on its way", hint="try again")
            self._add(size, peer)

    def give_back(self, size: int, peer: Peer) -> None:
        with self._change:
            self._add(-size, peer)
            self._change.notify_all()

    def _has(self, size: int, peer: Peer) -> bool:
        if peer.role != "self":
            return self._left >= size
        mine = self._by_user[peer.uid] + size <= self._each
        return mine and min(self._left, self._theirs) >= size

    def _add(self, size: int, peer: Peer) -> None:
        self._left -= size
        if peer.role == "self":
            self._theirs -= size
            self._by_user[peer.uid] += size
            if self._by_user[peer.uid] <= 0:
                del self._by_user[peer.uid]


class ControlServer:
    """Accepts on a listening socket until it is stopped."""

    def __init__(
        self,
        listener: socket.socket,
        hear: RequestHandler,
        roles: Callable[[], Roles],
        limits: ControlLimits | None = None,
    ) -> None:
        self._listener = listener
        self._hear = hear
        self._roles = roles
        self._limits = limits or ControlLimits()
        self._budget = _BodyBudget(self._limits)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, name="control-accept", daemon=True)
        self.faults = 0

    def start(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._thread.start()

    def stop(self, wait_s: float = 20.0) -> bool:
        """Accept no more, finish the requests in hand; whether all were done in time."""
        self._stopping = True
        os.write(self._waker, b"x")
        self._thread.join()
        until = time.monotonic() + wait_s
        with self._lock:
            visits = list(self._open.values())
        for visit in visits:
            visit.finish()
        for visit in visits:
            visit.thread.join(max(0.0, until - time.monotonic()))
        os.close(self._wake)
        os.close(self._waker)
        return not any(visit.thread.is_alive() for visit in visits)

    def busy_s(self) -> float:
        """How long the oldest request is in hand."""
        with self._lock:
            began = [visit.began for visit in self._open.values() if visit.began]
        return time.monotonic() - min(began) if began else 0.0

    @property
    def connections(self) -> int:
        """How many are open."""
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
                # Out of descriptors: they come back when connections end.
                LOG.warning("no connection can be accepted: %s", error)
                time.sleep(0.1)
                continue
            try:
                self._welcome(connection)
            except Exception as error:  # noqa: BLE001 - the boundary: the next one is served
                # Its user cannot be told, there is no room for one more thread, or a fault of ours.
                LOG.warning("a connection cannot be served: %s", error)
                self._gone(connection)

    def _welcome(self, connection: socket.socket) -> None:
        peer = self._roles().peer(_uid_of(connection))
        visit = _Connection(self, connection, peer)
        with self._lock:
            users = Counter(other.peer.uid for other in self._open.values())
            limits = self._limits
            full = len(self._open) >= limits.connections
            if peer.role == "self":
                others = sum(other.peer.role == "self" for other in self._open.values())
                full |= users[peer.uid] >= limits.each_user or others >= limits.connections // 2
            if not full:
                self._open[connection] = visit
        if full:
            with suppress(OSError), connection:
                busy = StoreBusyError("too many connections", hint="try again")
                Frames(connection).send(failure(busy), wait_s=0.1)
            return
        visit.thread.start()

    def _gone(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
        connection.close()


class _Connection:
    """One connection, in a thread of its own."""

    def __init__(self, server: ControlServer, connection: socket.socket, peer: Peer) -> None:
        self._server = server
        self._limits = server._limits  # noqa: SLF001 - one thing in two classes
        self._frames = Frames(connection)
        self._left = 0
        self._held = 0
        self.peer = peer
        self.began = 0.0
        self.thread = threading.Thread(target=self._run, name="control", daemon=True)

    def finish(self) -> None:
        """Read nothing more; an answer that is due is still sent."""
        with suppress(OSError):
            self._frames.connection.shutdown(socket.SHUT_RD)

    def _run(self) -> None:
        try:
            while self._one():
                pass
        except (OSError, FrameError) as error:
            LOG.debug("a connection of uid %d ended: %s", self.peer.uid, error)
        finally:
            self._server._gone(self._frames.connection)  # noqa: SLF001 - as above

    def _one(self) -> bool:
        """One request and its reply; False at the end of the connection."""
        limits, frames = self._limits, self._frames
        try:
            header = frames.line(limits.idle_s, limits.read_s)
        except FrameError as error:
            self._reply(ControlResponse(failure(UserError(str(error)))))
            return False
        if header is None:
            return False
        self.began, self._left = time.monotonic(), header["bytes"]
        try:
            reply = self._heard(header)
            self._reply(reply)
        finally:
            self._release()
            self.began = 0.0
        # Bytes that nobody read would be taken for the next line.
        return self._left == 0 and not self._server._stopping  # noqa: SLF001 - as above

    def _heard(self, header: Header) -> ControlResponse:
        try:
            return self._server._hear(  # noqa: SLF001 - as above
                ControlRequest(self.peer, header, self._body, self._pour)
            )
        except SpamnbError as error:
            return ControlResponse(failure(error))
        except (FrameError, TimeoutError) as error:
            self._left = -1
            return ControlResponse(
                failure(UserError(str(error) or "the bytes did not come in time"))
            )
        except Exception:
            incident = secrets.token_hex(6)
            self._server.faults += 1
            LOG.exception("incident %s: a request %.40r failed", incident, header.get("op"))
            text = f"a fault of ours, incident {incident}"
            return ControlResponse(failure(SpamnbError(text, hint="see the log")))

    def _reply(self, reply: ControlResponse) -> None:
        self._frames.send(reply.header, reply.body, wait_s=self._limits.read_s)

    def _body(self, most: int) -> bytes:
        """Read the body into memory, within everybody's budget."""
        size = self._sized(min(most, self._limits.body_bytes))
        budget = self._server._budget  # noqa: SLF001 - as above
        budget.take(size, self.peer, self._limits.read_s)
        self._held += size
        found = self._frames.body(size, self._limits.read_s, self._until())
        self._left = 0
        return found

    def _pour(self, most: int, handle: int) -> None:
        """Write the body to a file as it comes."""
        self._sized(most)
        with open(handle, "wb", closefd=False) as file:
            while self._left:
                data = self._frames.taken(min(self._left, CHUNK_BYTES), self._limits.read_s)
                self._left -= len(data)
                file.write(data)

    def _sized(self, most: int) -> int:
        if self._left > most:
            raise UserError(f"{self._left} bytes are announced, {most} are taken")
        return self._left

    def _until(self) -> float:
        return time.monotonic() + self._limits.request_s

    def _release(self) -> None:
        self._server._budget.give_back(self._held, self.peer)  # noqa: SLF001 - as above
        self._held = 0


def _uid_of(connection: socket.socket) -> int:
    """By the kernel's word (unix(7), SO_PEERCRED), as of the time of connect."""
    size = struct.calcsize("3i")
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", said)[1])
