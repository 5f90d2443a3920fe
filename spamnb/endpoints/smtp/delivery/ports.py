"""What the post office is given to work with. Values."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spamnb.endpoints.net.address import Speech
from spamnb.service.feedback.types import Answer, Feedback
from spamnb.service.telemetry.metrics import Meters

Log = Callable[[Mapping[str, object]], None]
Teach = Callable[[Feedback], Answer]
Send = Callable[[str, bytes], None]
"""(recipient, message): hands over a receipt with the null sender; blocking; raises if it fails"""


def _silent(_: Mapping[str, object]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class AgentDeps:
    """What joins the post office with the rest of the daemon."""

    teach: Teach
    """the one way in for feedback; blocking, so it is called in a thread. Raises StoreError or
    PeerError if it cannot be reached"""
    meters: Meters = field(default_factory=Meters)
    log: Log = _silent
    """one call a message, and one a fault or refused login"""
    send: Send | None = None
    """for receipts to people who have no Maildir here"""


class Listener(NamedTuple):
    """A bound socket, and what is spoken there."""

    sock: socket.socket
    speaks: Speech = "smtp"
