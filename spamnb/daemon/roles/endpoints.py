"""The endpoints of a worker: one row for each protocol of a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from spamnb.daemon.configure import (
    WorkerShare,
    milter_params_of,
    relay_params_of,
    scanner_params_of,
)
from spamnb.endpoints.milter.listener import MilterListener
from spamnb.endpoints.net.connection_counts import ConnectionCounts
from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.endpoints.scanner.listener import AskLearner, ScannerListener
from spamnb.endpoints.smtp.relay.listener import RelayListener
from spamnb.service.scanning.scanner import Scanner
from spamnb.service.telemetry.log import Log
from spamnb.service.telemetry.metrics import Meters
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerProtocol, ListenerSettings


class Endpoint(Protocol):
    """One listener of a worker."""

    def protocol(self) -> asyncio.BaseProtocol:
        """Make the protocol of a new connection."""

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""

    def apply_settings(self, params: Any, scanner: Scanner) -> None:
        """Take new settings; each session applies them between two messages."""

    async def drain(self, seconds: float) -> None:
        """Refuse new messages; let current ones finish for up to `seconds`, then abort them."""


class EndpointDeps(NamedTuple):
    """What the endpoints of a worker share."""

    meters: Meters
    log: Log
    budget: MemoryBudget
    loop: asyncio.AbstractEventLoop
    counts: ConnectionCounts
    ask: AskLearner
    """asks the learner for an administrative operation; for use in threads"""


class EndpointKind(NamedTuple):
    """How a listener with one protocol is made."""

    params: Callable[[Settings, ListenerSettings, WorkerShare], Any]
    make: Callable[[Any, Scanner, EndpointDeps], Endpoint]


def _relay(params: Any, scanner: Scanner, deps: EndpointDeps) -> Endpoint:
    meters, log, budget, loop, counts, _ = deps
    return RelayListener(
        params, scanner, meters=meters, log=log, budget=budget, loop=loop, counts=counts
    )


def _milter(params: Any, scanner: Scanner, deps: EndpointDeps) -> Endpoint:
    meters, log, budget, loop, _, _ = deps
    return MilterListener(params, scanner, meters=meters, log=log, budget=budget, loop=loop)


def _scanner(params: Any, scanner: Scanner, deps: EndpointDeps) -> Endpoint:
    meters, log, budget, loop, _, ask = deps
    return ScannerListener(
        params, scanner, meters=meters, log=log, budget=budget, loop=loop, ask=ask
    )


ENDPOINTS: Final[dict[ListenerProtocol, EndpointKind]] = {
    "smtp": EndpointKind(relay_params_of, _relay),
    "milter": EndpointKind(milter_params_of, _milter),
    "scanner": EndpointKind(scanner_params_of, _scanner),
}
