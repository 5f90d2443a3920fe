"""What is known of a message on its way in: values that session, office and trace share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spamnb.core.mail.envelope import Client
from spamnb.endpoints.net.address import Speech
from spamnb.endpoints.smtp.delivery.recipients import RecipientMailbox


@dataclass(slots=True)
class DeliveryTransaction:
    """What was said since the last message."""

    sender: str | None = None
    boxes: list[RecipientMailbox] = field(default_factory=list)
    utf8: bool = False
    client: Client | None = None
    """as XFORWARD named it"""


class LoggedIn(NamedTuple):
    """Who logged in."""

    name: str
    addresses: tuple[str, ...]


class IncomingMessage(NamedTuple):
    """A message, and all that is known of where it came from."""

    raw: bytes
    """LF line ends, as Maildirs have it"""
    sender: str
    boxes: tuple[RecipientMailbox, ...]
    client: Client
    xforwarded: bool
    """a trusted peer named the client"""
    login: LoggedIn | None
    peer: str
    secure: bool
    speaks: Speech
