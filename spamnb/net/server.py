"""Listeners: admission, limits, memory, connections.

`ScanListener` has the connections of one listener and `ScanConnection` one of them, which runs a
session of any protocol. `OpenConnections` and `ConnectionCounts` limit the connections,
`MemoryBudget` the memory of messages. Must not know protocols.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar, cast

from spamnb.net.actions import CloseConnection, LogMessage, SendBytes, StartScan, StopScan, Withdraw
from spamnb.net.address import UNIX
from spamnb.scan.values import Done, ScanRequest, ScanResult
from spamnb.settings.values import ListenerRules
from spamnb.telemetry import Log, Meters, incident

Full = Literal["", "all", "client"]
"""which limit is reached, if any"""


class OpenConnections:
    """Open connections by client, within one process. Not for use by several threads at once."""

    __slots__ = ("_by_client", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_client: Counter[str] = Counter()

    def full(self, client: str, most: int, each: int) -> Full:
        """Return the limit that one more connection of a client would exceed."""
        if self.total >= most:
            return "all"
        return "client" if self._by_client[client] >= each else ""

    def enter(self, client: str) -> None:
        """Count a connection."""
        self.total += 1
        self._by_client[client] += 1

    def leave(self, client: str) -> None:
        """Stop counting a connection."""
        self.total -= 1
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]


CELLS = 8192
"""in each half of a row. 80 addresses with 50 connections each use 1 % of it, so the count of
another address is too high in one of 10,000 cases; because of the secret a client cannot choose
this address"""
SECRET_BYTES = 16

Row = memoryview | list[int]


class ConnectionCounts:
    """The counts of this process and the others.

    Each process has a row of cells and writes only that one; a count is the sum over all rows. A
    row is cleared when its process ends, so `kill -9` leaves no connection counted. Keys are hashed
    with a secret to one cell in each half of a row, and the smaller sum is the count. It is never
    too small, and too large only if other keys use both cells. Must not know what is counted.
    """

    __slots__ = ("_own", "_rows", "_secret")

    def __init__(self, own: Row, rows: Sequence[Row], secret: bytes) -> None:
        self._own, self._rows, self._secret = own, rows, secret

    @classmethod
    def alone(cls) -> ConnectionCounts:
        """Counts for a single process."""
        row = [0] * (2 * CELLS)
        return cls(row, [row], b"")

    def add(self, key: str, by: int = 1) -> int:
        """Add to a key; return its new count over all processes.

        The process adds before it reads: if two processes add at once, at least one sees both.
        """
        first, second = self._cells(key)
        self._own[first] += by
        self._own[second] += by
        return self._read(first, second)

    def of(self, key: str) -> int:
        """The count of a key over all processes."""
        return self._read(*self._cells(key))

    def _cells(self, key: str) -> tuple[int, int]:
        found = int.from_bytes(blake2b(key.encode(), digest_size=8, key=self._secret).digest())
        return found % CELLS, CELLS + (found >> 32) % CELLS

    def _read(self, first: int, second: int) -> int:
        sums = [sum(row[cell] for row in self._rows) for cell in (first, second)]
        return min(sums)


class PausableReader(Protocol):
    """A connection that can stop reading for a time."""

    def pause_for_memory(self) -> None:
        """Stop reading."""

    def resume_after_memory(self) -> None:
        """Read again."""

    def memory_cost(self, now: float) -> float:
        """Bytes stored until the client has sent the rest, times the age of the message."""

    def shed(self) -> int:
        """End its message to free memory for others; returns the freed bytes."""


class MemoryBudget:
    """The message bytes that one process may store, in two shares.

    Untrusted clients may use all but the reserve. Trusted clients have the reserve and whatever
    else is free. So no number of untrusted clients can stop the relay from reading a trusted one.

    It pauses and resumes readers, and ends the most costly messages. Must not know sockets.
    """

    __slots__ = ("has_room", "has_waiting", "limit_bytes", "shares", "unreserved_bytes", "used")

    def __init__(self, limit_bytes: int, reserved: float = 0.0) -> None:
        reserve = int(limit_bytes * reserved)
        self.limit_bytes = limit_bytes
        self.unreserved_bytes = limit_bytes - reserve
        """while the total is below this, neither share is exceeded"""
        self.used = 0
        self.has_room = True
        """whether any client may store more"""
        self.has_waiting = False
        """whether a reader may be paused"""
        self.shares = {
            True: MemoryShare(self, guaranteed=reserve, limit=limit_bytes),
            False: MemoryShare(self, guaranteed=0, limit=limit_bytes - reserve),
        }
        """whether a client is trusted -> its share"""

    def resume_waiting(self) -> None:
        """Resume the readers of each share that has room again."""
        still = [share.resume_waiting() for share in self.shares.values()]
        self.has_waiting = any(still)

    def rotate(self, now: float) -> None:
        """Rotate the paused readers of each share; called about once a second by each listener."""
        for share in self.shares.values():
            share.rotate(now)


class MemoryShare:
    """The memory share of one class of clients; above it reading pauses, nothing is rejected.

    While the share is exceeded, one reader (the head) still reads, or no message would ever finish
    and free its memory. A head that received little since the last `rotate` yields to the next
    reader. Small messages are always read: the connection limits bound their number. While readers
    are paused, a sixteenth of the share is freed each second: if the messages that end in that time
    free less, the messages with the highest cost (bytes times seconds) are ended. A message that
    arrives fast has a low cost at any size; one that stalls gets the highest.
    """

    LITTLE_BYTES = 32768
    SMALL_BYTES = 16384
    TURNOVER = 1 / 16
    TURN_S = 1.0

    __slots__ = (
        "_brought", "_given", "_head", "_large", "_pool", "_rotated_at", "_waiting", "guaranteed",
        "limit", "used",
    )  # fmt: skip

    def __init__(self, pool: MemoryBudget, guaranteed: int, limit: int) -> None:
        self._pool = pool
        self.guaranteed, self.limit = guaranteed, limit
        """guaranteed: bytes it may use whatever the other share uses; limit: bytes at which it
        is full"""
        self.used = self._given = self._brought = 0
        self._waiting: dict[PausableReader, None] = {}
        self._large: dict[PausableReader, None] = {}
        self._head: PausableReader | None = None
        self._rotated_at = 0.0

    def is_beyond(self, part: float = 1.0) -> bool:
        """Whether more than this part of the share is used."""
        pool = self._pool
        full = self.used > self.guaranteed and pool.used > pool.limit_bytes * part
        return full or self.used > self.limit * part

    def take(self, count: int, reader: PausableReader, size: int) -> None:
        """Account for bytes that a reader received; `size` is its message's total so far."""
        pool = self._pool
        self.used += count
        pool.used += count
        pool.has_room = pool.used <= pool.unreserved_bytes
        if size > self.SMALL_BYTES:
            self._large[reader] = None
            if not pool.has_room and self.is_beyond():
                self._over(reader, count)

    def give(self, count: int) -> None:
        """Account for freed bytes."""
        self.used -= count
        self._given += count
        pool = self._pool
        pool.used -= count
        pool.has_room = pool.used <= pool.unreserved_bytes
        if pool.has_waiting:
            pool.resume_waiting()

    def resume_waiting(self) -> bool:
        """Resume the paused readers if there is room; whether some are still paused."""
        if self._waiting and not self.is_beyond():
            self._head = None
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.resume_after_memory()
        return bool(self._waiting)

    def forget(self, reader: PausableReader) -> None:
        """Remove a reader that has ended its message or its connection."""
        self._large.pop(reader, None)
        if reader in self._waiting:
            del self._waiting[reader]
            reader.resume_after_memory()
        if reader is self._head:
            self._head = None
            self._next()

    def rotate(self, now: float) -> None:
        """Let the next paused reader read if the head received little; free memory if needed."""
        if self._waiting and self._brought < self.LITTLE_BYTES:
            if self._head is not None:
                self._wait(self._head)
            self._next()
        self._brought = 0
        if now - self._rotated_at >= self.TURN_S:
            if self._waiting:
                self._make_room(now, int(self.limit * self.TURNOVER) - self._given)
            self._rotated_at, self._given = now, 0

    def _make_room(self, now: float, wanted: int) -> None:
        """End the messages with the highest memory cost until so much is free."""
        worst = sorted(self._large, key=lambda reader: reader.memory_cost(now), reverse=True)
        for reader in worst:
            if wanted <= 0 or not self._waiting or reader.memory_cost(now) <= 0:
                return
            wanted -= reader.shed()

    def _over(self, reader: PausableReader, count: int) -> None:
        if self._head is None:
            self._head, self._brought = reader, self.LITTLE_BYTES
        if reader is self._head:
            self._brought += count
        else:
            self._wait(reader)

    def _wait(self, reader: PausableReader) -> None:
        self._waiting[reader] = None
        self._pool.has_waiting = True
        reader.pause_for_memory()

    def _next(self) -> None:
        self._head = next(iter(self._waiting), None)
        if self._head is not None:
            del self._waiting[self._head]
            self._brought = self.LITTLE_BYTES
            self._head.resume_after_memory()


SWEEP_S: Final = 1.0
"""interval between two checks of all deadlines"""


class TimedConnection(Protocol):
    """One connection of a listener."""

    def close_if_idle(self) -> None:
        """Close the connection if nothing is under way."""

    def check_time(self, now: float) -> None:
        """Handle a passed deadline."""

    def break_off(self) -> None:
        """Close the connection immediately."""


Params = TypeVar("Params", bound=ListenerRules)
Scans = TypeVar("Scans")


class ScanListener(Generic[Params, Scans]):
    """The connections of one listener.

    The daemon binds the sockets. A connection that cannot be served is closed at once: the client
    then acts as it does without a filter. Must not know protocols.
    """

    def __init__(  # noqa: PLR0913 - the daemon gives each dependency by name
        self,
        params: Params,
        scanner: Scans,
        *,
        meters: Meters,
        log: Log,
        budget: MemoryBudget,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.params = params
        self.scanner, self.meters, self.log = scanner, meters, log
        self.budget, self.loop = budget, loop
        self.closing = False
        self.connections: set[Any] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    @property
    def open_sessions(self) -> int:
        """The number of open connections."""
        return len(self.connections)

    def apply_settings(self, params: Params, scanner: Scans) -> None:
        """Take new settings, for messages that come from now on."""
        self.params, self.scanner = params, scanner
        for connection in self.connections:
            connection.session.params = params

    async def drain(self, seconds: float) -> None:
        """Close connections without a message; let current ones end for up to `seconds`."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_if_idle()
        if self.connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.break_off()
        await asyncio.sleep(0)

    def admit(self, connection: TimedConnection, peer: str) -> bool:
        """Register a new connection; False if it is refused."""
        self.meters.count("connections")
        reason = ""
        if not self.params.peers.contains(peer):
            reason = "not one of the listener's peers"
        elif len(self.connections) >= self.params.limits.connections:
            reason = "too many connections"
        if reason or self.closing:
            self.meters.count("connections_refused")
            self.log({"event": "turned-away", "peer": peer, "error": reason or "closing"})
            return False
        self.connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        return True

    def leave(self, connection: TimedConnection) -> None:
        """Remove a connection. A second call does nothing."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_time(now)
        self.budget.rotate(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep) if self.connections else None


_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The peer's address; empty if the peer has already left."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and name:
        return str(name[0])
    # A disconnected TCP peer has no name either and must not be taken for a unix socket's peer.
    sock = transport.get_extra_info("socket")
    return UNIX if sock is not None and sock.family == socket.AF_UNIX else ""


def tcp_socket_of(transport: asyncio.BaseTransport, peer: str) -> Any:
    """The socket for `acknowledge_at_once`; None for a unix socket, or without this option.

    The connection keeps it, because uvloop makes a new object for each call.
    """
    return None if _QUICKACK is None or peer == UNIX else transport.get_extra_info("socket")


def acknowledge_at_once(tcp_socket: Any) -> None:
    """Have the peer's next bytes acknowledged when they are read; to be called after each write.

    Otherwise the kernel waits for up to 40 ms, and a peer with Nagle's algorithm delays its next
    small write as long: Postfix writes the parts of a message to a milter one by one, and most of
    them get no reply. The option lasts until the kernel sends bytes again.
    """
    if tcp_socket is not None:
        tcp_socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


LARGE_BYTES = 65_536
"""a message with more bytes waits for others after each part"""
_QUIET_S = 0.002
_WAIT_TURNS, _MOST_WAIT_S = 4, 0.25


def after_others(loop: asyncio.AbstractEventLoop, resume: Callable[[], None]) -> None:
    """Resume reading a large message after the other connections, and four times as long again.

    If the others had nothing to do, it goes on at once. A client that sends messages of 1 MB
    without a pause takes a quarter of the worker. Beside it, at 90 % of the worker's capacity,
    small mail has a median of 0.1 to 1.1 s with this wait and of 1.4 to 2.6 s without it; at 60 %,
    16 to 23 ms and 28 to 55 ms (docs/capacity.md).
    """

    def begin() -> None:
        loop.call_soon(end, loop.time())  # after all that was ready

    def end(began: float) -> None:
        took = loop.time() - began
        if took < _QUIET_S:
            resume()
        else:
            loop.call_later(min(_WAIT_TURNS * took, _MOST_WAIT_S), resume)

    loop.call_soon(begin)


MEMORY: Final = 1
"""reading is paused: the memory budget is used up"""
UNREAD: Final = 2
"""reading is paused: the peer does not read what it was sent"""
TURN: Final = 4
"""reading is paused: other connections are served before the next part of a large message"""


class ScanSession(Protocol):
    """What each session of such a connection has."""

    actions: deque[Any]
    closed: bool
    deadline: float

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""

    def receive(self, chunk: bytes, now: float) -> None:
        """Take bytes from the peer."""

    def scan_done(self, request: ScanRequest, result: ScanResult, now: float) -> None:
        """Take the result of a scan."""

    def timeout(self, now: float) -> None:
        """Handle the passed deadline."""

    def close(self, now: float) -> None:
        """End the session."""


class ScanConnection(asyncio.Protocol, ABC):
    """A connection; each protocol adds how its session begins and how it scans.

    The session is the protocol without I/O: events go in, actions (`actions`) come out.
    Failure: an exception ends this connection, is counted, and is logged with an incident id.
    """

    __slots__ = (
        "_held_bytes", "_is_performing", "_listener", "_paused", "_scanned", "_share", "_stop_scan",
        "_tcp", "_transport", "session",
    )  # fmt: skip

    name: ClassVar[str]
    """in the log of faults"""
    is_trusted: ClassVar[bool]
    """which share of the memory budget it uses"""
    session: Any
    """a ScanSession"""

    def __init__(self, listener: ScanListener[Any, Any]) -> None:
        self._listener: Any = listener
        self._transport: asyncio.Transport | None = None
        self._tcp: Any = None
        self._share = listener.budget.shares[self.is_trusted]
        self._scanned: ScanRequest | None = None
        self._stop_scan: Callable[[str], None] | None = None
        self._held_bytes = self._paused = 0
        self._is_performing = False

    @abstractmethod
    def begin_session(self, peer: str, now: float) -> ScanSession:
        """Return the session of a new connection."""

    @abstractmethod
    def start(self, request: ScanRequest, done: Done) -> Callable[[str], None] | None:
        """Start a scan; return a function that ends it."""

    def run(self, event: Callable[..., None], *args: Any) -> None:
        """Pass an event to the session, and perform the actions that follow.

        If an action causes an event, the actions of that event are performed afterwards.
        """
        try:
            event(*args, self._listener.loop.time())
            if not self._is_performing:
                self._perform()
                self._account()
        except Exception as error:  # noqa: BLE001 - the boundary of a connection
            self.session.actions.clear()
            self._listener.meters.count("faults")
            incident(self._listener.log, self.name, error)
            self.break_off()

    def _perform(self) -> None:
        actions, self._is_performing = self.session.actions, True
        try:
            while actions:
                action = actions.popleft()
                self.PERFORM[type(action)](self, action)
        finally:
            self._is_performing = False

    def break_off(self) -> None:
        """Close the connection immediately."""
        self.transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if nothing is under way."""
        if self.session.is_idle and not self.session.closed:
            self.run(self.session.close)

    def check_time(self, now: float) -> None:
        """Handle a passed deadline; account for replies that the peer has read."""
        self._account()
        waits = self._paused & MEMORY and self._scanned is None
        if waits or self.session.deadline > now:
            return
        if self.session.closed:
            self.break_off()
        else:
            self.run(self.session.timeout)

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""
        assert self._transport is not None, "events come after connection_made"
        return self._transport

    # -- events -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session of a new connection."""
        peer = peer_of(transport)
        self._transport = cast("asyncio.Transport", transport)
        self._tcp = tcp_socket_of(transport, peer)
        self.session = self.begin_session(peer, self._listener.loop.time())
        if not self._listener.admit(self, peer):
            self.session.closed = True
            self.break_off()

    def data_received(self, data: bytes) -> None:
        """Pass the peer's bytes to the session."""
        self.run(self.session.receive, data)
        if self._held_bytes > LARGE_BYTES and not self._paused & TURN:
            self._pause(TURN)
            after_others(self._listener.loop, partial(self._resume, TURN))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session."""
        del exc
        self.run(self.session.close)
        self._set_held(0)
        self._listener.leave(self)

    def pause_writing(self) -> None:
        """The peer does not read: stop reading."""
        self._pause(UNREAD)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._resume(UNREAD)

    def _pause(self, reason: int) -> None:
        self._paused |= reason
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume(self, reason: int) -> None:
        """Read again unless another reason to pause remains."""
        self._paused &= ~reason
        if not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- actions ----------------------------------------------------------------------------------

    def _send(self, action: SendBytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(action.data)
            acknowledge_at_once(self._tcp)
            if self._listener.closing:
                self._listener.loop.call_soon(self.close_if_idle)

    def _start_scan(self, action: StartScan) -> None:
        request = self._scanned = action.request
        stop = self.start(request, partial(self._scan_done, request))
        if self._scanned is request:
            self._stop_scan = stop

    def _scan_done(self, request: ScanRequest, result: ScanResult) -> None:
        if self._scanned is request:
            self._scanned = self._stop_scan = None  # both hold the message
        self.run(self.session.scan_done, request, result)

    def _end_scan(self, action: StopScan) -> None:
        stop, self._stop_scan = self._stop_scan, None
        if stop is not None:
            stop(action.reason)

    def _withdraw(self, action: Withdraw) -> None:
        action.delete()

    def _log(self, action: LogMessage) -> None:
        self._listener.log(action.record)

    def _close(self, _action: CloseConnection) -> None:
        self.transport.close()

    PERFORM: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        SendBytes: _send,
        StartScan: _start_scan,
        StopScan: _end_scan,
        Withdraw: _withdraw,
        LogMessage: _log,
        CloseConnection: _close,
    }
    """what is done for each action"""

    # -- memory -----------------------------------------------------------------------------------

    def _account(self) -> None:
        """Take memory for the message and unread bytes from the share, or give memory back."""
        held = self.session.held_bytes
        if held or self._held_bytes:
            held += self.transport.get_write_buffer_size()
            self._set_held(held)

    def _set_held(self, held: int) -> None:
        before, self._held_bytes = self._held_bytes, held
        if held > before:
            self._share.take(held - before, self, held)
        elif held < before:
            self._share.give(before - held)
        if before and not held:
            self._share.forget(self)

    def pause_for_memory(self) -> None:
        """Stop reading because the process's memory budget is used up."""
        self._pause(MEMORY)

    def resume_after_memory(self) -> None:
        """Read again: the memory budget has room."""
        self._resume(MEMORY)

    def memory_cost(self, now: float) -> float:
        """Byte-seconds of an incomplete message; 0: the connection is not ended for others."""
        del now
        return 0.0

    def shed(self) -> int:
        """End the connection to free memory for others; returns the bytes that it freed."""
        held = self._held_bytes
        self.break_off()
        return held
