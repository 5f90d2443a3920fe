"""One front door's settings, and the memory that all doors of a process share.

Values only, with the defaults that ship. Must not know sockets, TOML or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from spamnb.endpoints.net.address import Address, Speech
from spamnb.endpoints.net.networks import LOOPBACK, NetworkSet
from spamnb.service.scanning.types import Fallbacks

Queue = Literal["before", "after"]

_JUDGE_SHARE = 0.6


class Timeouts(NamedTuple):
    """How long each thing may take, in seconds."""

    connect_s: float = 5.0
    proxy_s: float = 5.0
    """until a PROXY header is whole"""
    first_mail_s: float = 30.0
    """from the connection, and again from our answer to the first hello, to the first MAIL"""
    first_mail_busy_s: float = 5.0
    """the same where more than `crowded` of the connections are taken"""
    message_s: float = 300.0
    """of a client that is not trusted, from the connection or its last message to the next"""
    command_s: float = 300.0
    """RFC 5321, 4.5.3.2"""
    data_s: float = 180.0
    """each read while a message comes, and each wait for room while it goes"""
    crowded_data_s: float = 10.0
    """how long bytes that came fast stand for the least rate where room is short"""
    reply_s: float = 60.0
    """the next hop's replies, but for the last"""
    final_s: float = 95.0
    """from the final dot to our reply: Postfix allows 100 s for a step (smtpd_proxy_timeout)"""
    scan_s: float = 10.0
    """of these, for the scan"""
    scan_wait_s: float = 30.0
    """of these, until the scan begins, where others are scanned first"""
    close_s: float = 10.0
    """for a client that does not fetch our last words"""
    sweep_s: float = 1.0
    """how often the clocks are looked at"""

    @property
    def judge_s(self) -> float:
        """To wait for a scan and to scan; the next hop keeps its share of `final_s`."""
        return min(self.scan_wait_s + self.scan_s, _JUDGE_SHARE * self.final_s)

    @property
    def begin_s(self) -> float:
        """Until a scan must have begun."""
        return min(self.scan_wait_s, max(self.judge_s - self.scan_s, self.judge_s / 2))


class Limits(NamedTuple):
    """How much of each thing there may be."""

    connections: int = 4000
    crowded: float = 0.8
    """the part of connections and memory that may be taken before room is short"""
    connections_an_address: int = 50
    """over all processes; trusted peers are exempt"""
    upstream_connections: int = 100
    """to one next hop, over all processes; trusted peers are exempt"""
    reserved: float = 0.2
    """the part of connections, of those to the next hop and of memory that strangers cannot take"""
    command_bytes: int = 4096
    """Postfix takes 2 KB; DSN and SMTPUTF8 make long ones"""
    input_bytes: int = 65536
    """of pipelined input that waits; more is not read"""
    skipped_bytes: int = 262144
    """of lines that are longer, in one session"""
    errors: int = 100
    """commands that we refuse, in one session"""
    commands: int = 100
    """of a client that is not trusted, from the connection or its last message to the next"""
    recipients: int = 1000
    """of one message of such a client; the next hop may take fewer"""
    memory_bytes: int = 256 << 20
    """of messages, over all doors of a process: its `MemoryBudget`"""

    def of_strangers(self, whole: int) -> int:
        """So much of something clients may take that are not trusted."""
        return max(1, int(whole * (1 - self.reserved)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPolicy(Fallbacks):
    """On which terms mail passes."""

    queue: Queue = "before"
    """before: the sender waits for our reply. After: a queue does, and a 5xx makes a bounce"""
    scan_limit_bytes: int = 1 << 20
    header_limit_bytes: int = 256 << 10
    size_limit_bytes: int = 0
    """of a message; 0 leaves it to the next hop"""
    bare_newlines: Literal["normalise", "refuse"] = "normalise"
    """refuse exists before the queue only; after it, it would make bounces"""


@dataclass(frozen=True, slots=True)
class ListenerParams(RelayPolicy):
    """A listener: who may come, where the mail goes, and by which rules."""

    address: Address
    upstream: Address
    speaks: Speech = "smtp"
    """to clients; what the next hop speaks stands in its address"""
    peers: NetworkSet = LOOPBACK
    """trusted: any recipient, XFORWARD, any number of connections"""
    proxies: NetworkSet = field(default_factory=NetworkSet)
    """if any: who may connect, each with a PROXY header"""
    recipient_domains: frozenset[str] = frozenset()
    """where strangers may send to, in lower case; empty: strangers may not connect"""
    hostname: str = "localhost"
    times: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)


class PausableReader(Protocol):
    """A connection whose input can wait."""

    def hold_for_memory(self) -> None:
        """Stop reading."""

    def free_for_memory(self) -> None:
        """Go on reading."""

    def burden(self, now: float) -> float:
        """Bytes that it holds until its client has sent the rest, times the age: byte-seconds."""

    def shed(self) -> int:
        """End its message in favour of others; gives the bytes that it held."""


class MemoryBudget:
    """The bytes of messages that one process may hold, in two shares.

    Clients that are not trusted get all but the reserve; trusted clients get the reserve, and of
    the rest what is free. So no number of strangers stops the reading from a trusted client.
    """

    __slots__ = ("easy_bytes", "limit_bytes", "shares", "used", "waits")

    def __init__(self, limit_bytes: int, reserved: float = 0.0) -> None:
        reserve = int(limit_bytes * reserved)
        self.limit_bytes = limit_bytes
        self.easy_bytes = limit_bytes - reserve
        """so much in all, and no share can be exceeded"""
        self.used = 0
        self.waits = False
        """whether a reader may wait"""
        self.shares = {
            True: MemoryShare(self, sure=reserve, most=limit_bytes),
            False: MemoryShare(self, sure=0, most=limit_bytes - reserve),
        }
        """whether a client is trusted -> its share"""

    @property
    def has_room(self) -> bool:
        """Whether there is room for anything."""
        return self.used <= self.easy_bytes

    def freed(self) -> None:
        """Let those go on for whom there is room again."""
        still = [share.freed() for share in self.shares.values()]
        self.waits = any(still)

    def turn(self, now: float) -> None:
        """Look after those who wait; called about once a second by each listener."""
        for share in self.shares.values():
            share.turn(now)


class MemoryShare:
    """What one class of clients may hold; over it reading stops, nothing is refused.

    While it is exceeded one reader, the head, still reads, or none would ever finish and give
    back. A head that brought little since the last `turn` makes room for the next. Small messages
    always come in: of those the number of connections is bound enough. And while readers wait, a
    sixteenth of the share is freed each second: what the messages that end in that time do not
    give back, those have to that burden it most, in bytes times seconds. A message that comes fast
    is small in that measure at any size, and one that stalls becomes the worst.
    """

    LITTLE_BYTES = 32768
    SMALL_BYTES = 16384
    TURNOVER = 1 / 16
    TURN_S = 1.0

    __slots__ = (
        "_brought", "_given", "_head", "_large", "_pool", "_turned_at", "_waiting", "most", "sure",
        "used",
    )  # fmt: skip

    def __init__(self, pool: MemoryBudget, sure: int, most: int) -> None:
        self._pool = pool
        self.sure, self.most = sure, most
        """bytes that it has whatever others hold, and with which it is full"""
        self.used = self._given = self._brought = 0
        self._waiting: dict[PausableReader, None] = {}
        self._large: dict[PausableReader, None] = {}
        self._head: PausableReader | None = None
        self._turned_at = 0.0

    def is_beyond(self, part: float = 1.0) -> bool:
        """Whether more than this part of it is taken."""
        pool = self._pool
        full = self.used > self.sure and pool.used > pool.limit_bytes * part
        return full or self.used > self.most * part

    def take(self, count: int, reader: PausableReader, size: int) -> None:
        """Account for bytes that a reader brought; its message has so many by now."""
        pool = self._pool
        self.used += count
        pool.used += count
        if size > self.SMALL_BYTES:
            self._large[reader] = None
            if pool.used > pool.easy_bytes and self.is_beyond():
                self._over(reader, count)

    def give(self, count: int) -> None:
        """Account for bytes that are gone."""
        self.used -= count
        self._given += count
        self._pool.used -= count
        if self._pool.waits:
            self._pool.freed()

    def freed(self) -> bool:
        """Let the readers go on that wait, if there is room; whether some still wait."""
        if self._waiting and not self.is_beyond():
            self._head = None
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.free_for_memory()
        return bool(self._waiting)

    def forget(self, reader: PausableReader) -> None:
        """A reader has ended its message, or is gone."""
        self._large.pop(reader, None)
        self._waiting.pop(reader, None)
        if reader is self._head:
            self._head = None
            self._next()

    def turn(self, now: float) -> None:
        """Give the next reader its turn if the head brought little; see to it that room comes."""
        if self._waiting and self._brought < self.LITTLE_BYTES:
            if self._head is not None:
                self._wait(self._head)
            self._next()
        self._brought = 0
        if now - self._turned_at >= self.TURN_S:
            if self._waiting:
                self._make_room(now, int(self.most * self.TURNOVER) - self._given)
            self._turned_at, self._given = now, 0

    def _make_room(self, now: float, wanted: int) -> None:
        """End the messages that burden it most, until so much is free."""
        worst = sorted(self._large, key=lambda reader: reader.burden(now), reverse=True)
        for reader in worst:
            if wanted <= 0 or not self._waiting or reader.burden(now) <= 0:
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
        self._pool.waits = True
        reader.hold_for_memory()

    def _next(self) -> None:
        self._head = next(iter(self._waiting), None)
        if self._head is not None:
            del self._waiting[self._head]
            self._brought = self.LITTLE_BYTES
            self._head.free_for_memory()
