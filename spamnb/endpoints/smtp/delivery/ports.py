"""What the delivery agent needs from the daemon. Values."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from spamnb.endpoints.net.address import MailProtocol
from spamnb.service.admin.logins import KnownAddresses
from spamnb.service.feedback.types import Answer, Feedback, SenderChange
from spamnb.service.telemetry.log import Log, silent
from spamnb.service.telemetry.metrics import Meters

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
