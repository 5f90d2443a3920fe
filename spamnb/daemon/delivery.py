"""The process of the built-in delivery agent; it trains through the control socket."""

from __future__ import annotations

import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

from spamnb.daemon.configure import load_names, plan_of
from spamnb.daemon.shared import ProcessState, SharedState
from spamnb.daemon.supervisor import (
    ChildChannel,
    ChildContext,
    ChildLoop,
    ChildRole,
    StartParams,
    run_role,
)
from spamnb.errors import SpamnbError
from spamnb.net.address import Address
from spamnb.operations.protocol import teach_through
from spamnb.policy.actions import PersonNames
from spamnb.records.console import SessionStore
from spamnb.scan.judge import PersonalCopies, SessionConfig
from spamnb.settings import Settings
from spamnb.settings.values import DeliveryParams
from spamnb.smtp.delivery_session import Server
from spamnb.smtp.delivery_values import AgentDeps, Listener

TICK_S = 1.0


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    return run_role(_DeliveryProcess, "delivery", start, shared, channel)


class _DeliveryProcess(ChildRole):
    def __init__(self, context: ChildContext) -> None:
        super().__init__(context)
        self._names: PersonNames | None = None

    async def run(self, settings: Settings) -> None:
        """Serve until told to stop."""
        slot, child_loop = self._start.slot, ChildLoop(self._orders, self._log)
        self._copies = PersonalCopies(self._plan(settings), self._log)
        deps = AgentDeps(
            teach=partial(teach_through, self._start.control),
            copies=self._copies,
            known=SessionStore(Path(self._start.home)),
            meters=self._shared.meters(slot),
            log=self._log,
        )
        server = Server(delivery_params(settings, Path(self._start.home)), deps)
        protocol = (
            Address.parse(settings.delivery.address).protocol
            if settings.delivery.address
            else "smtp"
        )
        sockets = [socket.socket(fileno=fd) for fd in self._start.sockets["delivery"]]
        await server.listen([Listener(one, protocol) for one in sockets])
        child_loop.follow(partial(self._apply_settings, server))
        self._shared.set_state(slot, ProcessState.READY)
        async for _ in child_loop.turns(TICK_S):
            self._shared.beat(slot)
            self._shared.set_open(slot, server.open_sessions)
        self._shared.set_state(slot, ProcessState.LEAVING)
        await server.drain()

    def _plan(self, settings: Settings) -> SessionConfig:
        self._names = load_names(settings, self._log, self._names)
        return plan_of(settings, Path(self._start.home), self._names)

    def _apply_settings(self, server: Server, settings: Settings, _: object) -> None:
        try:
            server.apply_settings(delivery_params(settings, Path(self._start.home)))
            self._copies.apply_settings(self._plan(settings))
        except SpamnbError as error:
            self._log({"event": "settings not reloaded", "level": "error", "error": str(error)}
                      | {"hint": error.hint})  # fmt: skip


def delivery_params(settings: Settings, home: Path) -> DeliveryParams:
    """Return the parameters of the delivery agent."""
    delivery = settings.delivery
    root = delivery.root if delivery.root or delivery.users else str(home / "mail")
    return replace(delivery, root=root, hostname=settings.serve.hostname or socket.gethostname())
