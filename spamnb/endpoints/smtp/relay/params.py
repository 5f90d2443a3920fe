"""Parameters of one listener.

Values with their defaults. Must not know sockets, TOML or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.endpoints.net.address import Address, MailProtocol
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
    """the same while more than `busy_share` of the connections are in use"""
    message_s: float = 300.0
    """for an untrusted client: from the connection or its last message until the next"""
    command_s: float = 300.0
    """RFC 5321, 4.5.3.2"""
    data_s: float = 180.0
    """each read during DATA, and each wait for the next hop to accept more"""
    data_busy_s: float = 10.0
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
    busy_share: float = 0.8
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
    other: str = ""
    """the filter in front of spamnb, whose marks are kept; empty if there is none"""


@dataclass(frozen=True, slots=True)
class ListenerParams(RelayPolicy):
    """One listener: its address, next hop, access rules and limits."""

    address: Address
    upstream: Address
    protocol: MailProtocol = "smtp"
    """protocol towards clients; the next hop's is part of its address"""
    peers: NetworkSet = LOOPBACK
    """trusted clients: any recipient, XFORWARD, no connection limits"""
    proxies: NetworkSet = field(default_factory=NetworkSet)
    """if not empty: the only hosts that may connect, each with a PROXY header"""
    recipient_domains: frozenset[str] = frozenset()
    """recipient domains for untrusted clients, in lower case; empty: only trusted clients may
    connect"""
    hostname: str = "localhost"
    local: LocalHosts = field(default_factory=LocalHosts)
    """the names of the site, under which strangers must not report results of authentication"""
    times: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
