"""The listeners of a worker: sockets, servers and endpoints; new settings add and remove some.

A listener that was removed, or has moved to another address, accepts the connections that wait at
its sockets, stops listening, and serves its open connections until they end, or `serve.drain_s` is
over, with the last settings of its section. Not thread-safe.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spamnb.daemon.configure import WorkerShare
from spamnb.daemon.processes.bootstrap import listeners_of
from spamnb.daemon.processes.sockets import BACKLOG
from spamnb.daemon.roles.endpoints import ENDPOINTS, Endpoint, EndpointDeps
from spamnb.daemon.roles.scan_setup import ScannerFactory
from spamnb.service.telemetry.log import Log
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerSettings

_KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""The supervisor removes the file of a unix socket; other workers may still listen there."""
EMPTY_S = 2.0
"""how long waiting connections are still accepted at the end"""


@dataclass(slots=True, eq=False)
class _ServedListener:
    name: str
    settings: ListenerSettings
    endpoint: Endpoint
    sockets: list[socket.socket]
    servers: list[asyncio.AbstractServer] = field(default_factory=list)
    ends_at: float = math.inf
    """when a removed listener is forgotten at the latest, by the loop's clock"""

    async def listen(self) -> None:
        loop, made = asyncio.get_running_loop(), self.endpoint.protocol
        for one in self.sockets:
            if one.family == socket.AF_UNIX:
                server = await loop.create_unix_server(
                    made, sock=one, backlog=BACKLOG, **_KEEP_FILE
                )
            else:
                server = await loop.create_server(made, sock=one, backlog=BACKLOG)
            self.servers.append(server)

    def stop_listening(self) -> None:
        while self.servers:
            self.servers.pop().close()


class WorkerListeners:
    """All listeners of a worker."""

    def __init__(
        self,
        scanners: ScannerFactory,
        deps: EndpointDeps,
        share_of: Callable[[Settings, int], WorkerShare],
        log_of: Callable[[str, Log], Log],
    ) -> None:
        self._scanners, self._deps, self._share_of = scanners, deps, share_of
        self._log_of = log_of
        self._served: dict[str, _ServedListener] = {}
        self._ended: list[_ServedListener] = []
        self._changing = asyncio.Lock()

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""
        return sum(one.endpoint.open_sessions for one in self._all())

    async def apply_settings(self, settings: Settings, sockets: Mapping[str, list[int]]) -> None:
        """Serve the listeners of these settings; `sockets` has those of new and moved ones."""
        async with self._changing:
            listeners = listeners_of(settings)
            gone = [name for name in self._served if name in sockets or name not in listeners]
            ended = [self._served.pop(name) for name in gone]
            for one in ended:
                one.ends_at = asyncio.get_running_loop().time() + settings.serve.drain_s
            self._ended += ended
            share = self._share_of(settings, len(listeners))
            for name, one in self._served.items():
                one.settings = listeners[name]
            for one in self._all():
                params = ENDPOINTS[one.settings.protocol].params(settings, one.settings, share)
                one.endpoint.apply_settings(
                    params, self._scanners.scanner_for(one.name, one.settings)
                )
            for name, fds in sockets.items():
                await self._serve(name, fds, settings, share)
            await self._stop_listening(ended)

    async def leave(self, drain_s: float) -> None:
        """Stop listening, and finish open sessions."""
        async with self._changing:
            await self._stop_listening(self._served.values())
        await asyncio.gather(*(one.endpoint.drain(drain_s) for one in self._all()))

    async def forget_ended(self) -> None:
        """Forget removed listeners without open sessions; after `serve.drain_s` all of them."""
        if self._changing.locked():
            return
        now = asyncio.get_running_loop().time()
        done = [one for one in self._ended if now >= one.ends_at or not one.endpoint.open_sessions]
        self._ended = [one for one in self._ended if one not in done]
        for one in done:
            await one.endpoint.drain(0.0)

    def _all(self) -> list[_ServedListener]:
        return [*self._served.values(), *self._ended]

    async def _serve(
        self, name: str, fds: list[int], settings: Settings, share: WorkerShare
    ) -> None:
        listener = listeners_of(settings)[name]
        kind = ENDPOINTS[listener.protocol]
        scanner = self._scanners.scanner_for(name, listener)
        deps = self._deps._replace(log=self._log_of(name, self._deps.log))
        endpoint = kind.make(kind.params(settings, listener, share), scanner, deps)
        one = _ServedListener(name, listener, endpoint, [socket.socket(fileno=fd) for fd in fds])
        self._served[name] = one
        await one.listen()

    async def _stop_listening(self, listeners: Iterable[_ServedListener]) -> None:
        """Accept waiting connections at sockets that no listener keeps, then stop listening."""
        listeners = list(listeners)
        kept = {
            _inode(one) for served in self._served.values() for one in served.sockets
            if served not in listeners
        }  # fmt: skip
        left = [one for served in listeners for one in served.sockets if _inode(one) not in kept]
        await _accept_waiting(left)
        for served in listeners:
            served.stop_listening()


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


async def _accept_waiting(sockets: list[socket.socket]) -> None:
    """Let the loop accept the waiting connections, for a limited time."""
    loop, poll = asyncio.get_running_loop(), select.poll()
    until = loop.time() + EMPTY_S
    for one in sockets:
        poll.register(one, select.POLLIN)
    # The kernel has no event for an empty queue.
    while sockets and poll.poll(0) and loop.time() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
