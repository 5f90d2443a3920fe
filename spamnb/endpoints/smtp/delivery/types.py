"""Values of a message in progress, shared by session, agent and trace headers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spamnb.core.mail.envelope import Client
from spamnb.endpoints.net.address import MailProtocol
from spamnb.endpoints.smtp.delivery.recipients import RecipientMailbox


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
