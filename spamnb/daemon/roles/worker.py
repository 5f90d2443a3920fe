"""The worker process: one event loop with the endpoints of all listeners and their scanners.

It listens on the sockets of its slot. The supervisor keeps them open, so that the next process in
the slot serves the connections that wait there. On SIGTERM, or when the supervisor is gone, it
accepts the waiting connections, finishes open sessions and exits. Failure: an error affects one
session only; a worker that dies is restarted.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from spamnb.daemon.configure import WorkerShare
from spamnb.daemon.processes.bootstrap import listeners_of, workers_of
from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.child_loop import ChildLoop, start_child
from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import ProcessState, SharedState
from spamnb.daemon.processes.sockets import BACKLOG
from spamnb.daemon.roles.endpoints import ENDPOINTS, Endpoint, EndpointDeps, EndpointKind
from spamnb.daemon.roles.scan_setup import ScannerFactory, ScannerFactoryDeps
from spamnb.endpoints.control.protocol import ask_once
from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.settings import Settings

BEAT_S = 1.0
EMPTY_S = 2.0
"""how long waiting connections are still accepted at the end"""


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    settings, log = start_child(start, f"worker {start.slot}")
    with asyncio.Runner(loop_factory=_loop_factory(settings)) as runner:
        runner.run(Worker(start, shared, channel, log).run(settings))
    return 0


def _loop_factory(settings: Settings) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if settings.serve.uvloop:
        with suppress(ImportError):
            made: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
            return made
    return None


class Worker:
    """The endpoints of all listeners in one event loop."""

    def __init__(
        self, start: StartParams, shared: SharedState, channel: ChildChannel, log: Log
    ) -> None:
        self._start = start
        self._shared = shared
        self._orders = channel
        self._log = log
        self._listeners: dict[str, Endpoint] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._sockets = [
            (name, socket.socket(fileno=fd)) for name, fds in start.sockets.items() for fd in fds
        ]

    async def run(self, settings: Settings) -> None:
        """Serve until told to stop."""
        loop, slot = asyncio.get_running_loop(), self._start.slot
        child_loop = ChildLoop(self._orders, self._log)
        scanners = ScannerFactory(settings, self._scanner_deps(loop))
        deps = EndpointDeps(
            meters=self._shared.meters(slot),
            log=self._log,
            budget=MemoryBudget(settings.limits.memory_bytes, settings.limits.reserved),
            loop=loop,
            counts=self._shared.counts(slot),
            ask=partial(ask_once, self._start.control),
        )
        for name, (kind, params) in self._endpoints(settings).items():
            self._listeners[name] = kind.make(params, scanners.scanner_for(name), deps)
        await self._listen(loop)
        child_loop.follow(partial(self._apply_settings, scanners))
        self._beat()
        self._shared.set_state(slot, ProcessState.READY)
        gc.collect()
        gc.freeze()
        await child_loop.stop.wait()
        self._shared.set_state(slot, ProcessState.LEAVING)
        await self._leave(settings.serve.drain_s)
        await scanners.close()

    def _scanner_deps(self, loop: asyncio.AbstractEventLoop) -> ScannerFactoryDeps:
        return ScannerFactoryDeps(self._start, self._shared, self._log, loop)

    def _endpoints(self, settings: Settings) -> dict[str, tuple[EndpointKind, Any]]:
        """Return kind and parameters of the listeners that have sockets in this worker."""
        sockets, (descriptors, _) = self._start.sockets, resource.getrlimit(resource.RLIMIT_NOFILE)
        share = WorkerShare(
            self._start.delivery, workers_of(settings), len(sockets) or 1, descriptors
        )
        listeners = listeners_of(settings).items()
        kinds = {name: (ENDPOINTS[one.protocol], one) for name, one in listeners if name in sockets}
        return {
            name: (kind, kind.params(settings, one, share)) for name, (kind, one) in kinds.items()
        }

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        for name, one in self._sockets:
            made = self._listeners[name].protocol
            if one.family == socket.AF_UNIX:
                server = await loop.create_unix_server(made, sock=one, backlog=BACKLOG)
            else:
                server = await loop.create_server(made, sock=one, backlog=BACKLOG)
            self._servers.append(server)

    def _beat(self) -> None:
        self._shared.beat(self._start.slot)
        self._shared.set_open(
            self._start.slot, sum(one.open_sessions for one in self._listeners.values())
        )
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _apply_settings(self, scanners: ScannerFactory, settings: Settings) -> None:
        scanners.apply_settings(settings)
        for name, (_, params) in self._endpoints(settings).items():
            self._listeners[name].apply_settings(params, scanners.scanner_for(name))

    async def _leave(self, drain_s: float) -> None:
        """Accept waiting connections, then stop listening and finish open sessions."""
        loop = asyncio.get_running_loop()
        until = loop.time() + EMPTY_S
        # The loop accepts them meanwhile; the kernel has no event for an empty queue.
        while self._has_waiting_connections() and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for server in self._servers:
            server.close()
        await asyncio.gather(*(one.drain(drain_s) for one in self._listeners.values()))

    def _has_waiting_connections(self) -> bool:
        poll = select.poll()
        for _, one in self._sockets:
            if one.fileno() >= 0:
                poll.register(one, select.POLLIN)
        return bool(poll.poll(0))
