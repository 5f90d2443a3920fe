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
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from spamnb.daemon.configure import WorkerShare
from spamnb.daemon.processes.bootstrap import workers_of
from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.child_loop import ChildContext, ChildLoop, ChildRole, run_role
from spamnb.daemon.processes.shared_state import ProcessState, SharedState
from spamnb.daemon.processes.verdict_feed import FeedWriter
from spamnb.daemon.roles.endpoints import EndpointDeps
from spamnb.daemon.roles.scan_setup import ScannerFactory, ScannerFactoryDeps
from spamnb.daemon.roles.worker_listeners import WorkerListeners
from spamnb.endpoints.control.protocol import ask_once
from spamnb.endpoints.net.memory_budget import MemoryBudget
from spamnb.service.telemetry.log import Log, incident
from spamnb.settings import Settings

BEAT_S = 1.0


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    return run_role(Worker, f"worker {start.slot}", start, shared, channel)


class Worker(ChildRole):
    """The endpoints of all listeners in one event loop."""

    def __init__(self, context: ChildContext) -> None:
        super().__init__(context)
        self._tasks: set[asyncio.Task[None]] = set()

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
        listeners = WorkerListeners(scanners, deps, self._share_of, self._log_of())
        await listeners.apply_settings(settings, self._start.sockets)
        child_loop.follow(partial(self._apply_settings, child_loop.stop, scanners, listeners))
        self._beat(listeners)
        self._shared.set_state(slot, ProcessState.READY)
        gc.collect()
        gc.freeze()
        await child_loop.stop.wait()
        self._shared.set_state(slot, ProcessState.LEAVING)
        await listeners.leave(settings.serve.drain_s)
        await scanners.close()

    def _scanner_deps(self, loop: asyncio.AbstractEventLoop) -> ScannerFactoryDeps:
        return ScannerFactoryDeps(self._start, self._shared, self._log, loop)

    def _log_of(self) -> Callable[[str, Log], Log]:
        """Return what makes the log of a listener: with a console it writes the verdict feed."""
        start = self._start
        if start.feed_fd < 0:
            return lambda _, log: log
        return FeedWriter(start.feed_fd, start.feed_ring).log_of

    def _share_of(self, settings: Settings, listeners: int) -> WorkerShare:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        home = Path(self._start.home)
        return WorkerShare(self._start.delivery, workers_of(settings), listeners, descriptors, home)

    def _beat(self, listeners: WorkerListeners) -> None:
        self._shared.beat(self._start.slot)
        self._shared.set_open(self._start.slot, listeners.open_sessions)
        self._run(listeners.forget_ended())
        asyncio.get_running_loop().call_later(BEAT_S, self._beat, listeners)

    def _apply_settings(
        self,
        stop: asyncio.Event,
        scanners: ScannerFactory,
        listeners: WorkerListeners,
        settings: Settings,
        sockets: dict[str, list[int]],
    ) -> None:
        """Take new settings; if that fails, the process ends, and the next one uses them."""

        async def apply() -> None:
            try:
                await listeners.apply_settings(settings, sockets)
            except Exception as error:  # noqa: BLE001 - the boundary of a task
                incident(self._log, "reload", error)
                stop.set()

        scanners.apply_settings(settings)
        self._run(apply())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
