"""Where the mail of a recipient goes, and the values of a delivery.

A recipient address leads to a Maildir, a feedback address, or a rejecting reply; nothing is
relayed. Folder names have only safe characters, so no address leads out of the root. Must not know
protocols or trust. Failure: SettingsError if the table of users cannot be read; at a run-time
change that is an internal fault.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from spamnb.errors import SettingsError
from spamnb.feedback.values import Answer, Feedback, SenderChange
from spamnb.mail.envelope import Client
from spamnb.net.address import MailProtocol
from spamnb.operations.logins import KnownAddresses
from spamnb.settings.values import DeliveryParams
from spamnb.smtp import delivery_replies
from spamnb.telemetry import Log, Meters, silent

Teach = Callable[[Feedback | SenderChange], Answer]


class Copies(Protocol):
    """Makes copies of a message for recipients with verdicts of their own."""

    @property
    def is_needed(self) -> bool:
        """Whether any recipient may have a verdict of their own."""

    def of(self, raw: bytes, sender: str, recipients: Sequence[str]) -> Mapping[str, bytes]:
        """The copies by recipient; blocking, so it is called in a thread."""


@dataclass(frozen=True, slots=True)
class AgentDeps:
    """What connects the delivery agent to the rest of the daemon."""

    teach: Teach
    """submits feedback, or a change of a list; blocking, so it is called in a thread. Raises
    StoreError or PeerError if the learner cannot be reached"""
    meters: Meters = field(default_factory=Meters)
    log: Log = silent
    """one call a message, and one a fault or rejected login"""
    copies: Copies | None = None
    """None: each recipient gets the message unchanged"""
    known: KnownAddresses | None = None
    """from which networks each login was right; None: from none"""


class Listener(NamedTuple):
    """A bound socket and its protocol."""

    sock: socket.socket
    protocol: MailProtocol = "smtp"


SAFE = re.compile(r"[a-z0-9_][a-z0-9_.=-]{0,63}")
"""a local part that may name a folder: never hidden, never a parent folder"""
_SETTLED_NS = 1_000_000_000
POSTMASTER = "postmaster"
"""accepts mail without a domain (RFC 5321 4.5.1)"""


@dataclass(frozen=True, slots=True)
class RecipientMailbox:
    """The destination of one recipient's mail."""

    address: str
    folder: Path | None = None
    label: str = ""
    """of a feedback address: the label that it reports, or the word of its senders"""


class Recipients:
    """The mailboxes and feedback addresses of a delivery agent."""

    def __init__(self, config: DeliveryParams) -> None:
        self._config = config
        self._domains = frozenset(domain.lower().rstrip(".") for domain in config.domains)
        self._labels = config.reports
        self._root = Path(config.root) if config.root else None
        self._table_path = Path(config.users) if config.users else None
        self._mailboxes = self._counted_at = 0
        """the folders below the root, and the root's modification time when they were counted"""
        self._stamp = (0, 0)
        self._table: dict[str, Path] = {}
        self.table()

    def find(self, address: str) -> RecipientMailbox | str:
        """The mailbox of an address, or the reply that rejects it."""
        local, _, domain = address.lower().rpartition("@")
        if not local:
            local, domain = domain, ""
        domain = domain.rstrip(".")
        local = local.removeprefix('"').removesuffix('"')
        if not domain and local != POSTMASTER:
            return delivery_replies.BAD_ADDRESS
        if domain and self._domains and domain not in self._domains:
            return delivery_replies.RELAYING
        if local in self._labels:
            return RecipientMailbox(address, label=self._labels[local])
        folder = self._folder(local, domain)
        return RecipientMailbox(address, folder) if folder else delivery_replies.UNKNOWN_USER

    def _folder(self, local: str, domain: str) -> Path | None:
        name = local.partition(self._config.delimiter)[0] if self._config.delimiter else local
        table = self.table()
        for key in (f"{local}@{domain}", f"{name}@{domain}", f"@{domain}"):
            if key in table:
                return table[key]
        if not domain:
            found = [folder for key, folder in table.items() if key.startswith(f"{local}@")]
            if found:
                return found[0]
        if self._root is None or not SAFE.fullmatch(name):
            return None
        folder = self._root / name / "Maildir"
        return folder if folder.is_dir() or self._may_grow(self._root) else None

    def _may_grow(self, root: Path) -> bool:
        """Whether one more mailbox may be created; counts again if the folder has changed.

        10,000 names take 7 ms of the event loop, and guessed recipients come by the hundred.
        """
        try:
            changed = root.stat().st_mtime_ns
        except OSError:
            return True
        if changed != self._counted_at:
            self._mailboxes = len(os.listdir(root))  # noqa: PTH208 - only the number
            # A folder that has just changed may change again within the same tick.
            self._counted_at = changed if time.time_ns() - changed > _SETTLED_NS else 0
        return self._mailboxes < self._config.mailboxes

    def table(self) -> dict[str, Path]:
        """The table of users; read again when the file changes."""
        if self._table_path is not None:
            try:
                found = self._table_path.stat()
            except OSError as error:
                raise SettingsError(
                    f"the table of users {self._table_path} cannot be read: {error.strerror}"
                ) from error
            if (found.st_mtime_ns, found.st_size) != self._stamp:
                self._table = read_table(self._table_path)
                self._stamp = found.st_mtime_ns, found.st_size
        return self._table


def read_table(path: Path) -> dict[str, Path]:
    """Read `ADDRESS FOLDER` lines; `#` begins a comment line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the table of users {path} cannot be read: {error}") from error
    table: dict[str, Path] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        address, _, folder = line.strip().partition(" ")
        where = Path(folder.strip())
        if "@" not in address or not where.is_absolute() or ".." in where.parts:
            raise SettingsError(
                f"{path}:{number}: the line is not an address and an absolute path of a Maildir",
                hint="alice@example.org /var/mail/alice/Maildir",
            )
        table[address.lower()] = where
    return table


@dataclass(slots=True)
class DeliveryTransaction:
    """The envelope since the last message."""

    sender: str | None = None
    boxes: list[RecipientMailbox] = field(default_factory=list)
    utf8: bool = False
    client: Client | None = None
    """as XFORWARD named it"""


class LoggedIn(NamedTuple):
    """An authenticated user."""

    name: str
    addresses: tuple[str, ...]


class IncomingMessage(NamedTuple):
    """A received message with its envelope and client."""

    raw: bytes
    """LF line ends, as Maildirs have it"""
    sender: str
    boxes: tuple[RecipientMailbox, ...]
    client: Client
    xforwarded: bool
    """whether a trusted peer named the client"""
    login: LoggedIn | None
    peer: str
    secure: bool
    protocol: MailProtocol
