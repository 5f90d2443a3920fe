"""One front door's settings, and the memory that all doors of a process share.

Values only, with the defaults that ship. Must not know sockets, TOML or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from spamnb.faces.smtp.address import Address, Speech
from spamnb.faces.smtp.nets import LOOPBACK, Nets
from spamnb.service.letters import Fallbacks

Queue = Literal["before", "after"]

_JUDGE_SHARE = 0.6


class Times(NamedTuple):
    """How long each thing may take, in seconds."""

    connect_s: float = 5.0
    proxy_s: float = 5.0
    """until a PROXY header is whole"""
    first_mail_s: float = 30.0
    """from the connection, and again from our answer to the first hello, to the first MAIL"""
    crowded_s: float = 5.0
    """the same where more than `crowded` of the connections are taken"""
    command_s: float = 300.0
    """RFC 5321, 4.5.3.2"""
    data_s: float = 180.0
    """each read while a message comes, and each wait for room while it goes"""
    reply_s: float = 60.0
    """the next hop's replies, but for the last"""
    final_s: float = 95.0
    """from the final dot to our reply: Postfix allows 100 s for a step (smtpd_proxy_timeout)"""
    scan_s: float = 10.0
    """of these, for the scan"""
    scan_wait_s: float = 30.0
    """of these, until the scan begins, where others are scanned first"""
    goodbye_s: float = 10.0
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
    """share of them above which a new one must come to its first MAIL sooner"""
    connections_an_address: int = 50
    """trusted peers are exempt"""
    command_bytes: int = 4096
    """Postfix takes 2 KB; DSN and SMTPUTF8 make long ones"""
    input_bytes: int = 65536
    """of pipelined input that waits; more is not read"""
    skipped_bytes: int = 262144
    """of lines that are longer, in one session"""
    errors: int = 100
    """commands that we refuse, in one session"""
    memory_bytes: int = 256 << 20
    """of messages, over all doors of a process: its `Budget`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Fallbacks):
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
class Door(Terms):
    """A listener: who may come, where the mail goes, and by which rules."""

    address: Address
    upstream: Address
    speaks: Speech = "smtp"
    """to clients; what the next hop speaks stands in its address"""
    peers: Nets = LOOPBACK
    """trusted: any recipient, XFORWARD, any number of connections"""
    proxies: Nets = field(default_factory=Nets)
    """if any: who may connect, each with a PROXY header"""
    recipient_domains: frozenset[str] = frozenset()
    """where strangers may send to, in lower case; empty: strangers may not connect"""
    hostname: str = "localhost"
    times: Times = field(default_factory=Times)
    limits: Limits = field(default_factory=Limits)


class Reader(Protocol):
    """Somebody whose input can wait."""

    def hold_for_memory(self) -> None:
        """Stop reading."""

    def free_for_memory(self) -> None:
        """Go on reading."""


class Budget:
    """The bytes of messages that one process may hold; over it reading stops, nothing is refused.

    While it is exceeded one reader, the head, still reads, or nobody would ever finish and give
    back. A head that brought little since the last `turn` makes room for the next, or one that
    sends a byte a second would keep all others waiting. Small messages always come in: those who
    stall with large ones would otherwise keep them out for minutes, and of small ones the number of
    connections is bound enough.
    """

    LITTLE_BYTES = 32768
    SMALL_BYTES = 16384

    __slots__ = ("_brought", "_head", "_waiting", "limit_bytes", "used")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0
        self._waiting: dict[Reader, None] = {}
        self._head: Reader | None = None
        self._brought = 0

    @property
    def has_room(self) -> bool:
        """Whether there may be more."""
        return self.used <= self.limit_bytes

    def take(self, count: int, reader: Reader, size: int) -> None:
        """Account for bytes that a reader brought; its message has so many by now."""
        self.used += count
        if self.used > self.limit_bytes and size > self.SMALL_BYTES:
            self._over(reader, count)

    def give(self, count: int) -> None:
        """Account for bytes that are gone."""
        self.used -= count
        if self._waiting and self.used <= self.limit_bytes:
            self._head = None
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.free_for_memory()

    def forget(self, reader: Reader) -> None:
        """A reader has ended its message, or is gone."""
        self._waiting.pop(reader, None)
        if reader is self._head:
            self._head = None
            self._next()

    def turn(self) -> None:
        """Give the next reader its turn, if the head brought little lately."""
        if self._waiting and self._brought < self.LITTLE_BYTES:
            if self._head is not None:
                self._wait(self._head)
            self._next()
        self._brought = 0

    def _over(self, reader: Reader, count: int) -> None:
        if self._head is None:
            self._head, self._brought = reader, self.LITTLE_BYTES
        if reader is self._head:
            self._brought += count
        else:
            self._wait(reader)

    def _wait(self, reader: Reader) -> None:
        self._waiting[reader] = None
        reader.hold_for_memory()

    def _next(self) -> None:
        self._head = next(iter(self._waiting), None)
        if self._head is not None:
            del self._waiting[self._head]
            self._brought = self.LITTLE_BYTES
            self._head.free_for_memory()
