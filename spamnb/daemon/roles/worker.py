"""A worker: one event loop, the front doors of all listeners, one scanner.

It listens on the sockets of its slot, which the supervisor keeps open: whoever replaces it goes on
with the connections that wait there. On SIGTERM it takes what waits, finishes what is under way,
and leaves; so it does if the supervisor is gone. Failure: a fault of one session stays in it; a
worker that dies is replaced.
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

from spamnb.daemon.configure import fitting, listener_params_of
from spamnb.daemon.processes.bootstrap import listeners_of, workers_of
from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.child_loop import ChildLoop, start_child
from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import ProcessState, SharedState
from spamnb.daemon.processes.sockets import BACKLOG
from spamnb.daemon.roles.scan_setup import ScannerFactory, ScannerFactoryDeps
from spamnb.endpoints.smtp.relay.listener import RelayListener
from spamnb.endpoints.smtp.relay.params import ListenerParams, MemoryBudget
from spamnb.settings import Settings

BEAT_S = 1.0
EMPTY_S = 2.0
"""how long the last connections of the queues are taken for, at the end"""


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
    """One run."""

    def __init__(
        self, start: StartParams, shared: SharedState, channel: ChildChannel, log: Log
    ) -> None:
        self._start = start
        self._board = shared
        self._orders = channel
        self._log = log
        self._doors: dict[str, RelayListener] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._sockets = [
            (name, socket.socket(fileno=fd)) for name, fds in start.sockets.items() for fd in fds
        ]

    async def run(self, settings: Settings) -> None:
        """Listen, and go on until told to stop."""
        loop, slot = asyncio.get_running_loop(), self._start.slot
        child_loop = ChildLoop(self._orders, self._log)
        judge = ScannerFactory(settings, self._judge_links(loop))
        budget = MemoryBudget(settings.limits.memory_bytes, settings.limits.reserved)
        counts = self._board.counts(slot)
        for name, door in self._doors_of(settings).items():
            self._doors[name] = RelayListener(
                door,
                judge.scanner_for(name),
                meters=self._board.meters(slot),
                log=self._log,
                budget=budget,
                loop=loop,
                counts=counts,
            )
        await self._listen(loop)
        child_loop.follow(partial(self._renew, judge))
        self._beat()
        self._board.set_state(slot, ProcessState.READY)
        gc.collect()
        gc.freeze()
        await child_loop.stop.wait()
        self._board.set_state(slot, ProcessState.LEAVING)
        await self._leave(settings.serve.drain_s)
        await judge.close()

    def _judge_links(self, loop: asyncio.AbstractEventLoop) -> ScannerFactoryDeps:
        return ScannerFactoryDeps(self._start, self._board, self._log, loop)

    def _doors_of(self, settings: Settings) -> dict[str, ListenerParams]:
        """The doors of those listeners that we have sockets of."""
        workers, ours = workers_of(settings), self._start.sockets
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        made = {
            name: listener_params_of(settings, listener, self._start.post, workers)
            for name, listener in listeners_of(settings).items()
            if name in ours
        }
        return {name: fitting(door, descriptors, len(ours)) for name, door in made.items()}

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        for name, one in self._sockets:
            made = self._doors[name].protocol
            if one.family == socket.AF_UNIX:
                server = await loop.create_unix_server(made, sock=one, backlog=BACKLOG)
            else:
                server = await loop.create_server(made, sock=one, backlog=BACKLOG)
            self._servers.append(server)

    def _beat(self) -> None:
        self._board.beat(self._start.slot)
        self._board.set_open(
            self._start.slot, sum(door.open_sessions for door in self._doors.values())
        )
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _renew(self, judge: ScannerFactory, settings: Settings) -> None:
        judge.apply_settings(settings)
        for name, door in self._doors_of(settings).items():
            self._doors[name].apply_settings(door)
            self._doors[name].scanner = judge.scanner_for(name)

    async def _leave(self, drain_s: float) -> None:
        """Take what waits, then nothing new; finish what is under way."""
        loop = asyncio.get_running_loop()
        until = loop.time() + EMPTY_S
        # The loop accepts them meanwhile; the kernel tells nobody when a queue becomes empty.
        while self._somebody_waits() and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for server in self._servers:
            server.close()
        await asyncio.gather(*(door.drain(drain_s) for door in self._doors.values()))

    def _somebody_waits(self) -> bool:
        poll = select.poll()
        for _, one in self._sockets:
            if one.fileno() >= 0:
                poll.register(one, select.POLLIN)
        return bool(poll.poll(0))
