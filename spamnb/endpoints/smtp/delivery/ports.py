"""What the delivery agent needs from the daemon. Values."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from spamnb.endpoints.net.address import MailProtocol
from spamnb.service.feedback.types import Answer, Feedback
from spamnb.service.telemetry.log import Log, silent
from spamnb.service.telemetry.metrics import Meters

Teach = Callable[[Feedback], Answer]


@dataclass(frozen=True, slots=True)
class AgentDeps:
    """What connects the delivery agent to the rest of the daemon."""

    teach: Teach
    """submits feedback; blocking, so it is called in a thread. Raises StoreError or PeerError if
    the learner cannot be reached"""
    meters: Meters = field(default_factory=Meters)
    log: Log = silent
    """one call a message, and one a fault or rejected login"""


class Listener(NamedTuple):
    """A bound socket and its protocol."""

    sock: socket.socket
    protocol: MailProtocol = "smtp"
