"""Parameters of one listener, and the memory budget that all listeners of a process share.

Values with their defaults. Must not know sockets, TOML or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from spamnb.endpoints.net.address import Address, Speech
from spamnb.endpoints.net.networks import LOOPBACK, NetworkSet

Queue = Literal["before", "after"]

_JUDGE_SHARE = 0.6


class Timeouts(NamedTuple):
    """Time limits in seconds."""

    connect_s: float = 5.0
    proxy_s: float = 5.0
    """until a PROXY header is complete"""
    first_mail_s: float = 30.0
    """from the connection, and again from the reply to the first EHLO, until the first MAIL"""
    first_mail_busy_s: float = 5.0
    """the same while more than `crowded` of the connections are in use"""
    message_s: float = 300.0
    """for an untrusted client: from the connection or its last message until the next"""
    command_s: float = 300.0
    """RFC 5321, 4.5.3.2"""
    data_s: float = 180.0
    """each read during DATA, and each wait for the next hop to accept more"""
    crowded_data_s: float = 10.0
    """while resources are short: how long bytes received above the minimum rate count"""
    reply_s: float = 60.0
    """the next hop's replies, except the final one"""
    final_s: float = 95.0
    """from the final dot to the client's reply: Postfix allows 100 s a step
    (smtpd_proxy_timeout)"""
    scan_s: float = 10.0
    """for the scan, within `final_s`"""
    scan_wait_s: float = 30.0
    """until the scan begins, within `final_s`, while other messages are scanned"""
    close_s: float = 10.0
    """for a client that does not read the last replies"""
    sweep_s: float = 1.0
    """interval between two checks of all deadlines"""

    @property
    def scan_total_s(self) -> float:
        """Limit for waiting and scanning together; the next hop keeps its share of `final_s`."""
        return min(self.scan_wait_s + self.scan_s, _JUDGE_SHARE * self.final_s)

    @property
    def scan_start_s(self) -> float:
        """Limit until a scan must have begun."""
        return min(self.scan_wait_s, max(self.scan_total_s - self.scan_s, self.scan_total_s / 2))


class Limits(NamedTuple):
    """Limits on counts and sizes."""

    connections: int = 4000
    crowded: float = 0.8
    """the fraction of connections and memory above which resources count as short"""
    connections_an_address: int = 50
    """over all processes; trusted clients are exempt"""
    upstream_connections: int = 100
    """to one next hop, over all processes; trusted clients are exempt"""
    reserved: float = 0.2
    """the fraction of client connections, upstream connections and memory that only trusted
    clients use"""
    command_bytes: int = 4096
    """Postfix accepts 2 KB; DSN and SMTPUTF8 make lines longer"""
    input_bytes: int = 65536
    """of pipelined input in the buffer; above it the client is not read"""
    skipped_bytes: int = 262144
    """of too long lines, in one session"""
    errors: int = 100
    """commands that the relay itself rejects, in one session"""
    commands: int = 100
    """of an untrusted client, from the connection or its last message until the next"""
    recipients: int = 1000
    """of one message of an untrusted client; the next hop may accept fewer"""
    memory_bytes: int = 256 << 20
    """of messages, over all listeners of a process: the limit of its `MemoryBudget`"""

    def untrusted_part(self, whole: int) -> int:
        """The part of a limit that untrusted clients may use."""
        return max(1, int(whole * (1 - self.reserved)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPolicy:
    """How a listener receives messages."""

    queue: Queue = "before"
    """before: the client waits for the next hop's reply. after: a mail queue sent the message,
    so a 5xx causes a bounce"""
    scan_limit_bytes: int = 1 << 20
    header_limit_bytes: int = 256 << 10
    size_limit_bytes: int = 0
    """of a message; 0 leaves the limit to the next hop"""
    bare_newlines: Literal["normalise", "refuse"] = "normalise"
    """`refuse` applies before the queue only; after it a rejection would cause a bounce"""


@dataclass(frozen=True, slots=True)
class ListenerParams(RelayPolicy):
    """One listener: its address, next hop, access rules and limits."""

    address: Address
    upstream: Address
    speaks: Speech = "smtp"
    """protocol towards clients; the next hop's is part of its address"""
    peers: NetworkSet = LOOPBACK
    """trusted clients: any recipient, XFORWARD, no connection limits"""
    proxies: NetworkSet = field(default_factory=NetworkSet)
    """if not empty: the only hosts that may connect, each with a PROXY header"""
    recipient_domains: frozenset[str] = frozenset()
    """recipient domains for untrusted clients, in lower case; empty: only trusted clients may
    connect"""
    hostname: str = "localhost"
    times: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)


class PausableReader(Protocol):
    """A connection whose reading can be paused."""

    def pause_for_memory(self) -> None:
        """Stop reading."""

    def resume_after_memory(self) -> None:
        """Read again."""

    def memory_cost(self, now: float) -> float:
        """Bytes that it stores until its client has sent the rest, times the message's age."""

    def shed(self) -> int:
        """End its message to free memory for others; returns the freed bytes."""


class MemoryBudget:
    """The message bytes that one process may store, in two shares.

    Untrusted clients may use all but the reserve. Trusted clients have the reserve and whatever
    else is free. So no number of untrusted clients can stop the relay from reading a trusted one.
    """

    __slots__ = ("has_waiting", "limit_bytes", "shares", "unreserved_bytes", "used")

    def __init__(self, limit_bytes: int, reserved: float = 0.0) -> None:
        reserve = int(limit_bytes * reserved)
        self.limit_bytes = limit_bytes
        self.unreserved_bytes = limit_bytes - reserve
        """while the total is below this, neither share is exceeded"""
        self.used = 0
        self.has_waiting = False
        """whether a reader may be paused"""
        self.shares = {
            True: MemoryShare(self, guaranteed=reserve, limit=limit_bytes),
            False: MemoryShare(self, guaranteed=0, limit=limit_bytes - reserve),
        }
        """whether a client is trusted -> its share"""

    @property
    def has_room(self) -> bool:
        """Whether any client may store more."""
        return self.used <= self.unreserved_bytes

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
        if size > self.SMALL_BYTES:
            self._large[reader] = None
            if pool.used > pool.unreserved_bytes and self.is_beyond():
                self._over(reader, count)

    def give(self, count: int) -> None:
        """Account for freed bytes."""
        self.used -= count
        self._given += count
        self._pool.used -= count
        if self._pool.has_waiting:
            self._pool.resume_waiting()

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
        self._waiting.pop(reader, None)
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
