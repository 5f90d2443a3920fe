"""The process of the built-in delivery agent; it trains through the control socket."""

from __future__ import annotations

import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

from spamnb.core.persons.names import PersonNames
from spamnb.daemon.configure import plan_of
from spamnb.daemon.person_names import load_names
from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.child_loop import ChildContext, ChildLoop, ChildRole, run_role
from spamnb.daemon.processes.shared_state import ProcessState, SharedState
from spamnb.endpoints.control.protocol import teach_through
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.smtp.delivery.params import DeliveryParams
from spamnb.endpoints.smtp.delivery.ports import AgentDeps, Listener
from spamnb.endpoints.smtp.delivery.server import Server
from spamnb.errors import SpamnbError
from spamnb.service.scanning.model_session import SessionConfig
from spamnb.service.scanning.personal_copies import PersonalCopies
from spamnb.settings import Settings
from spamnb.store.sessions import SessionStore

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
