"""The post office's settings with their defaults. Values."""

from __future__ import annotations

from dataclasses import dataclass

from spamnb.endpoints.net.networks import LOOPBACK


@dataclass(frozen=True, slots=True)
class DeliveryParams:
    """How the post office works. The defaults are safe on loopback and nowhere else."""

    hostname: str = "localhost"
    """our name in greetings and trace lines"""
    domains: tuple[str, ...] = ()
    """domains that are delivered here; none: every domain (for listeners on loopback only)"""
    root: str = ""
    """catch-all: everybody's mail goes to ROOT/USER/Maildir, made at the first message"""
    mailboxes: int = 10_000
    """folders that are made below `root`: whoever guesses names does not fill the disk with them"""
    users: str = ""
    """file of `ADDRESS FOLDER` lines; comes before `root`; `@domain` stands for its other users"""
    delimiter: str = "+"
    """what follows it in a local part is the recipient's own business; empty: nothing"""
    spam: str = "spam"
    """local part of the address that takes reports of spam; empty: there is none"""
    ham: str = "ham"
    """local part of the address that takes reports of ham"""
    passwords: str = ""
    """file of logins (`spamnb passwd`); empty: no logins"""
    certificate: str = ""
    """PEM file for STARTTLS; empty: no TLS, so no logins"""
    key: str = ""
    """PEM file of the certificate's key, if it is not in the same file"""
    plain_login: bool = False
    """take passwords without TLS; for loopback and tests"""
    peers: tuple[str, ...] = LOOPBACK.texts
    """networks whose XFORWARD is believed: the front door's, the MTA's"""
    trusted: tuple[str, ...] = ()
    """networks of clients whose reports are believed, named by XFORWARD or connected directly;
    loopback is nobody even here, since behind an MTA everybody comes from there"""
    trust_local: bool = False
    """believe clients that XFORWARD calls LOCAL and names an address of, loopback too: with
    Postfix, what local_header_rewrite_clients names. That must be permit_sasl_authenticated alone
    (as shipped it is every program of the machine), and senders must be held to their logins
    (reject_authenticated_sender_login_mismatch)"""
    received: bool = False
    """write a Received line (RFC 5321 4.4). Only if `hostname` is one of the house's hosts, or the
    message would be another one after delivery (its digest)"""
    receipts: bool = True
    """answer reports of authenticated senders"""
    size_limit_bytes: int = 50 << 20
    memory_limit_bytes: int = 256 << 20
    """bytes of messages in hand, over all connections; above it 452"""
    recipients: int = 1_000
    connections: int = 200
    connections_per_address: int = 50
    """of one client address that is not one of `peers`"""
    command_timeout_s: float = 300.0
    data_timeout_s: float = 180.0
    """each read of a message (RFC 5321 4.5.3.2.5)"""
    message_timeout_s: float = 1_800.0
    """all of a message"""
    teach_timeout_s: float = 60.0
    """until the teacher has answered; then 451"""
