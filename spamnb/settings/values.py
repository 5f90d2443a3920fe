"""Settings of listeners, accounts, deliveries, outboxes and limits, as their users read them.

Values with their defaults, apart from the modules that use them because every command reads the
settings: importing those modules would add about 10 ms each to its start. Must not know sockets,
TOML or the environment.
"""

from __future__ import annotations

import os
import re
import socket
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from spamnb.errors import SettingsError, UserError
from spamnb.mail.envelope import LocalHosts, address_of, domain_of
from spamnb.net.address import LOOPBACK, Address, MailProtocol, NetworkSet
from spamnb.net.credentials import SecretSource
from spamnb.policy.rulings import WORDS

OUTBOX_BYTES = 1 << 30
"""The most disk space for corrections that wait for the log. It is defined here because commands
that do not import numpy read the settings."""

ImapTls = Literal["implicit", "starttls", "none"]
ImapAction = Literal["move", "flag", "nothing"]
_PORTS = {"implicit": 993, "starttls": 143, "none": 143}


class ImapTimes(NamedTuple):
    """Time limits of one connection."""

    step_s: float = 30.0
    """for connecting, and for each read and write"""
    command_s: float = 300.0
    """for the whole answer to a command: 8 MB at 250 kbit/s"""


def is_here(host: str) -> bool:
    """Return True for a server on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class ImapParams:
    """The server, the login, and what becomes of junk."""

    host: str = ""
    port: int = 0
    tls: ImapTls = "implicit"
    ca_file: str = ""
    user: str = ""
    auth: Literal["password", "xoauth2"] = "password"
    password_file: str = ""
    password_command: tuple[str, ...] = ()
    inbox: str = "INBOX"
    junk: str = ""
    act: ImapAction = "move"
    poll_s: float = 60.0

    def __post_init__(self) -> None:
        self.password.check_one()
        if self.tls == "none" and self.host and not self.is_here:
            raise SettingsError(
                f"a password for {self.host} would be sent without encryption",
                hint='set tls to "implicit" or "starttls"; "none" is for this machine only',
            )

    @property
    def password(self) -> SecretSource:
        """Where the password comes from."""
        return SecretSource("password", self.password_file, self.password_command)

    @property
    def is_here(self) -> bool:
        """Return True for a server on this machine."""
        return is_here(self.host)

    @property
    def effective_port(self) -> int:
        """The port, by default that of the kind of encryption."""
        return self.port or _PORTS[self.tls]

    @property
    def place(self) -> str:
        """The mailbox in one text, for logs and for the state on disk."""
        return f"{self.user} at {self.host}:{self.effective_port}"


REPORTS: Final = ("spam", "ham", *WORDS)
"""the fields of `DeliveryParams` that name an address for reports: a label, or a word of a list"""


@dataclass(frozen=True, slots=True)
class DeliveryParams:
    """How the delivery agent works. The defaults are safe on loopback only."""

    hostname: str = "localhost"
    """the host name in greetings and trace lines"""
    domains: tuple[str, ...] = ()
    """domains that are delivered here; none: every domain (for listeners on loopback only)"""
    root: str = ""
    """catch-all: mail for any user goes to ROOT/USER/Maildir, which the first message creates"""
    mailboxes: int = 10_000
    """the most folders created below `root`, so that guessed names do not fill the disk"""
    users: str = ""
    """file of `ADDRESS FOLDER` lines, checked before `root`; `@domain` matches its other users"""
    delimiter: str = "+"
    """separates the user from an address extension in the local part; empty: no extensions"""
    spam: str = "spam"
    """local part of the address for spam reports; empty: none"""
    ham: str = "ham"
    """local part of the address for ham reports"""
    wanted: str = ""
    """local part of the address for mail of senders that the user always wants; empty: none"""
    unwanted: str = ""
    """... and that the user never wants"""
    passwords: str = ""
    """file of logins (`spamnb passwd`); empty: no logins"""
    certificate: str = ""
    """PEM file for STARTTLS; empty: no TLS, so no logins"""
    key: str = ""
    """PEM file of the certificate's key, if it is not in the same file"""
    plain_login: bool = False
    """accept passwords without TLS; for loopback and tests"""
    peers: tuple[str, ...] = LOOPBACK.texts
    """networks that XFORWARD is accepted from: the relay's, the MTA's"""
    trusted: tuple[str, ...] = ()
    """networks of clients with trusted reports, named by XFORWARD or connected directly;
    loopback never counts, since behind an MTA all mail comes from there"""
    trust_local: bool = False
    """trust clients that XFORWARD calls LOCAL and gives an address for, even loopback: with
    Postfix, those in local_header_rewrite_clients. That must be permit_sasl_authenticated alone
    (the default is every program of the machine), and senders must be limited to their logins
    (reject_authenticated_sender_login_mismatch)"""
    received: bool = False
    """write a Received line (RFC 5321 4.4). Only if `hostname` is one of the local hosts, or the
    delivered message would have another digest"""
    receipts: bool = True
    """answer reports of authenticated senders by mail"""
    size_limit_bytes: int = 50 << 20
    memory_limit_bytes: int = 256 << 20
    """bytes of unfinished messages, over all connections; above it 452"""
    recipients: int = 1_000
    connections: int = 200
    connections_per_address: int = 50
    """of a client address that is not one of `peers`"""
    command_timeout_s: float = 300.0
    data_timeout_s: float = 180.0
    """each read of a message (RFC 5321 4.5.3.2.5)"""
    message_timeout_s: float = 1_800.0
    """for a whole message"""
    teach_timeout_s: float = 60.0
    """limit for the answer of the learner; after it the reply is 451"""

    @property
    def reports(self) -> dict[str, str]:
        """What mail to a local part reports: spam, ham, wanted or unwanted."""
        named = {kind: getattr(self, kind) for kind in REPORTS}
        return {local.lower(): kind for kind, local in named.items() if local}


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
    """of a message; 0 leaves the limit to the next hop, and gives a scanner its own"""
    bare_newlines: Literal["normalise", "refuse"] = "normalise"
    """`refuse` applies before the queue only; after it a rejection would cause a bounce"""
    other: str = ""
    """the filter in front of spamnb, whose marks are kept; empty if there is none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRules(RelayPolicy):
    """What every kind of listener has: its clients, its policy and its limits."""

    peers: NetworkSet = LOOPBACK
    """clients that may connect, and of a relay those that are trusted: any recipient, XFORWARD, no
    limit of connections. The socket's mode decides as well if it is a unix socket"""
    times: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class ListenerParams(ListenerRules):
    """A relay: its address, next hop and access rules."""

    address: Address
    upstream: Address
    protocol: MailProtocol = "smtp"
    """protocol towards clients; the next hop's is part of its address"""
    proxies: NetworkSet = field(default_factory=NetworkSet)
    """if not empty: the only hosts that may connect, each with a PROXY header"""
    recipient_domains: frozenset[str] = frozenset()
    """recipient domains for untrusted clients, in lower case; empty: only trusted clients may
    connect"""
    hostname: str = "localhost"
    local: LocalHosts = field(default_factory=LocalHosts)
    """the names of the site, under which strangers must not report results of authentication"""


@dataclass(frozen=True, slots=True)
class MilterParams(ListenerRules):
    """One listener for MTAs."""

    keeps: bool = False
    """whether quarantine is possible, because there is a server for released messages"""
    border: bool = False
    """whether it comes before all other milters, and scans nothing: it removes results of
    authentication under `authserv_ids`, and marks where the sender's fields begin"""
    authserv_ids: tuple[str, ...] = ()


Durable = Literal["local", "replica", "trust"]
Seal = Literal["chacha20", "hmac"]
SCHEMES = ("valkeys", "valkey", "rediss", "redis", "unix", "postgresql")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class FleetParams:
    """The log, and this host's part in it; without a url the host is alone."""

    url: str = ""
    name: str = "spamnb"
    host: str = ""
    key_file: str = ""
    password_file: str = ""
    ca_file: str = ""
    durable: Durable = "local"
    seal: Seal = "chacha20"
    fold_s: float = 0.5
    append_s: float = 1.0
    keep_events: int = 200_000
    outbox_bytes: int = OUTBOX_BYTES

    def __post_init__(self) -> None:
        for key in ("name", "host"):
            value = getattr(self, key)
            if not _NAME.fullmatch(value or "x"):
                raise SettingsError(
                    f"{key} is {value!r}", hint="use letters, digits, dots and dashes, at most 64"
                )
        url = urlsplit(self.url)
        if self.url and url.scheme not in SCHEMES:
            raise SettingsError(
                f"{self.url!r} is not a valid url",
                hint="valkeys://USER@HOST:PORT, unix://PATH, or postgresql://USER@HOST/DATABASE",
            )
        if url.password:
            raise SettingsError(
                "the url has a password, which other users may read", hint="set password_file"
            )

    @property
    def is_encrypted(self) -> bool:
        """Return True if the connection is encrypted."""
        return self.url.startswith(("valkeys:", "rediss:"))

    @property
    def effective_host(self) -> str:
        """The name of this host, by default that of the machine."""
        return self.host or socket.gethostname()[:64]


EVENTS: Final = (
    "review.waiting",
    "warning.raised",
    "warning.cleared",
    "quarantine.full",
    "model.changed",
    "verdict.reject",
)
"""Their places are on disk: add new ones at the end."""
_RARE: Final = EVENTS[:-1]
_WEBHOOK_PORTS: Final = {"http": 80, "https": 443}
_URL: Final = re.compile(r"[!-~]{1,2000}")
_SECRET: Final = "whsec_"  # noqa: S105 - the prefix of each secret
_KEY_BYTES: Final = range(24, 65)


class WebhookTarget(NamedTuple):
    """What a URL says."""

    tls: bool
    host: str
    port: int
    netloc: str
    """for the field Host"""
    path: str
    """with the query"""


@dataclass(frozen=True, slots=True)
class WebhookParams:
    """The receiver, and the events that it gets."""

    url: str = ""
    secret_file: str = ""
    secret_command: tuple[str, ...] = ()
    ca_file: str = ""
    events: tuple[str, ...] = _RARE

    def __post_init__(self) -> None:
        self.secret.check_one()
        if self.url:
            _ = self.target

    @property
    def secret(self) -> SecretSource:
        """Where the secret comes from."""
        return SecretSource("secret", self.secret_file, self.secret_command)

    @property
    def target(self) -> WebhookTarget:
        """The parts of the URL. Failure: SettingsError for one that is not valid."""
        try:
            parts = urlsplit(self.url)
            port = parts.port or _WEBHOOK_PORTS[parts.scheme]
            plain = _URL.fullmatch(self.url) and not ("@" in parts.netloc or parts.fragment)
        except (ValueError, KeyError):
            plain = None
        if not (plain and parts.hostname):
            raise SettingsError(
                "the url is not valid",  # it is often a password, so it is not shown
                hint="https://HOST/PATH, without a login and without #",
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return WebhookTarget(parts.scheme == "https", parts.hostname, port, parts.netloc, path)

    def key(self) -> bytes:
        """Return the key of the signature, read from its source. Failure: UserError."""
        text = self.secret.read()
        try:
            found = b64decode(text.removeprefix(_SECRET), validate=True)
        except (Base64Error, ValueError):
            found = b""
        if not text.startswith(_SECRET) or len(found) not in _KEY_BYTES:
            raise UserError(
                "the secret of the webhook is not valid",
                hint=f"{_SECRET} and the base64 form of 24 to 64 random bytes",
            )
        return found


def webhook_problems(params: WebhookParams) -> Iterator[UserError]:
    """Yield what would stop this webhook; nothing is connected or run."""
    if not params.url:
        yield SettingsError("url is not set", hint="the address of the receiver")
    problems = list(params.secret.problems())
    yield from problems
    if params.secret_file and not problems:
        try:
            params.key()
        except UserError as error:
            yield error
    if params.ca_file and not os.access(params.ca_file, os.R_OK, effective_ids=True):
        yield SettingsError(f"the file {params.ca_file} cannot be read", hint="see ca_file")


DigestLinks = Literal["act", "login"]
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
ADDRESS: Final = re.compile(r"[!#-'*+/-9=?A-Z^-~.-]{1,64}@[A-Za-z0-9.-]{1,253}")
"""addresses that need no quoting in a command or a header field; others get no digest"""


class DigestPlan(NamedTuple):
    """The section `digest` of the settings."""

    at: str = ""
    smtp: str = ""
    sender: str = ""
    links: DigestLinks = "act"
    admin: str = ""
    """the address that gets new warnings by mail; empty: none is sent"""

    @property
    def minute(self) -> int:
        """The minute of the day in local time; -1: no digests are sent."""
        hours, _, minutes = self.at.partition(":")
        return int(hours) * 60 + int(minutes) if self.at else -1


def digest_plan(
    at: str = "", smtp: str = "", sender: str = "", links: DigestLinks = "act", admin: str = ""
) -> DigestPlan:
    """Return the section. Failure: SettingsError if it is not complete."""
    sends = at or admin
    if at and _TIME.fullmatch(at) is None:
        raise SettingsError(f"{at!r} is not a time of the day", hint="such as 07:00")
    if sends and not smtp:
        raise SettingsError("digest.smtp is missing", hint="the server that delivers digests")
    if admin and ADDRESS.fullmatch(admin) is None:
        raise SettingsError(f"digest.admin {admin!r} is not an address")
    if sends and ADDRESS.fullmatch(sender) is None:
        raise SettingsError(f"digest.sender {sender!r} is not an address",
                            hint="such as postmaster@example.org")  # fmt: skip
    return DigestPlan(at, smtp, sender, links, admin)


Unproven = Literal["review", "refuse", "learn"]


@dataclass(frozen=True, slots=True)
class TeachingRules:
    """Which feedback is accepted, and how much of it from each sender."""

    limit_bytes: int = 32 << 20
    """maximum size of a message"""
    user_per_day: int = 5000
    """Changes by one user. Moving one whole folder makes about a thousand; a runaway program is
    stopped before it damages the model."""
    user_bytes_per_day: int = 32 << 20
    """Bytes that one user's changes add to the model: about 70 for a new feature, 7 for a known
    one. In an empty model 1,000 ordinary messages take 9 MB, and 5,000 take 28 MB."""
    stranger_per_day: int = 20
    strangers_per_day: int = 200
    """All unknown senders together, because sender names are free to invent. Feedback that an
    unknown sender cannot prove is counted separately with the same limits, by source network."""
    sure: float = 0.999
    """a channel with low trust cannot contradict a verdict of this probability"""
    unproven: Unproven = "review"
    """what to do with a user's feedback on a message that is not known to be delivered to that
    user: it arrived before spamnb was installed, or is no longer in the history"""
    domains: tuple[str, ...] = ()
    """domains whose addresses are logins of this site; empty: all domains with local delivery"""
    served: frozenset[str] = frozenset()
    """domains with mailboxes at this site, derived from other settings; empty: not known"""
    delimiter: str = "+"
    """in a local part, the delimiter and what follows it do not change the mailbox; empty: none"""
    exact: frozenset[str] = frozenset()
    """addresses whose mailboxes have the delimiter in their names"""

    def mailbox(self, address: str) -> str:
        """The mailbox of an address or a login."""
        return address_of(address, self.delimiter, self.exact)

    def owner(self, user: str) -> str:
        """The mailbox of a user; an address of a domain of logins is that login."""
        mailbox = self.mailbox(user)
        local, _, domain = mailbox.rpartition("@")
        logins = {domain_of(f"@{name}") for name in self.domains}
        return local if local and domain in logins else mailbox


class ReviewLimits(NamedTuple):
    """Size of the review queue."""

    max_messages: int = 1000
    limit_bytes: int = 256 << 20
    keep_days: int = 30
    share: int = 8
    """one user may fill an eighth of the queue, so that no user blocks the others"""
    strangers: int = 2
    """unknown senders may fill half of the queue, one network of them an eighth of that half"""


class SpoolLimits(NamedTuple):
    """How much is read from a spool."""

    file_bytes: int = 32 << 20
    each_owner: int = 200
    """files of one owner in one pass, so that the files of other owners are read too"""
    owner_bytes: int = 8 << 20
    """... and their bytes: learning takes about half a second for each megabyte"""
    max_invalid: int = 100
    """invalid entries kept for the administrator to inspect; more are removed"""


class QuarantineLimits(NamedTuple):
    """Size of the quarantine, and how long messages stay in it."""

    keep_days: int = 30
    """as long as the history, so that a released message can still be learnt by its signature"""
    limit_bytes: int = 1 << 30
    """messages and metadata files together; when it is reached, messages are delivered with
    headers"""


class HistoryLimits(NamedTuple):
    """Which verdicts can be corrected without the message."""

    keep_days: int = 30
    limit_bytes: int = 1 << 30
    """the oldest go first"""
    keep_subject: bool = True
    """whether entries have the subject, the sender, the size and the listener of the message"""
