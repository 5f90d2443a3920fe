"""Parameters of the delivery agent, with their defaults. Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spamnb.core.policy.rulings import WORDS
from spamnb.endpoints.net.networks import LOOPBACK

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
