"""Child side of the supervisor channel: initial settings, reload and stop.

Must not know what the roles do. A child stops on SIGTERM, and when its supervisor is gone.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.logs import Log, take_over
from spamnb.daemon.processes.shared_state import SharedState
from spamnb.errors import SpamnbError
from spamnb.settings import Settings, restored

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Apply = Callable[[Settings, dict[str, list[int]]], None]
"""takes new settings, and the descriptors of listeners that are new or have moved"""


def start_child(start: StartParams, name: str) -> tuple[Settings, Log]:
    """Return a child's settings and its log, which also receives the logging of libraries."""
    settings = restored(start.settings, start.positions)
    log = Log(settings.log, name)
    take_over(log)
    return settings, log


def loop_factory(settings: Settings) -> LoopFactory | None:
    """Return what makes the event loop of a child: uvloop if it is wanted and installed."""
    if settings.serve.uvloop:
        with suppress(ImportError):
            made: LoopFactory = import_module("uvloop").new_event_loop
            return made
    return None


class ChildContext(NamedTuple):
    """What a child process gets from its supervisor, and its log."""

    start: StartParams
    shared: SharedState
    channel: ChildChannel
    log: Log


class ChildRole(ABC):
    """What a child process with an event loop does."""

    def __init__(self, context: ChildContext) -> None:
        self._start, self._shared, self._orders, self._log = context

    @abstractmethod
    async def run(self, settings: Settings) -> None:
        """Serve until told to stop."""


def run_role(
    role: type[ChildRole], name: str, start: StartParams, shared: SharedState, channel: ChildChannel
) -> int:
    """Run a role in an event loop; returns the exit status of the process."""
    settings, log = start_child(start, name)
    try:
        with asyncio.Runner(loop_factory=loop_factory(settings)) as runner:
            context = ChildContext(start, shared, channel, log)
            runner.run(role(context).run(settings))
    except SpamnbError as error:
        log({"event": "process cannot start", "level": "error", "error": str(error)}
            | {"hint": error.hint})  # fmt: skip
        return error.exit_code
    return 0


class ChildLoop:
    """Connects a child's event loop to its supervisor. Create it within the running loop."""

    def __init__(self, channel: ChildChannel, log: Log) -> None:
        self._orders = channel
        self._log = log
        self.stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop.set)

    def follow(self, apply_settings: Apply) -> None:
        """Call `apply_settings` with reloaded settings; the log already uses them."""
        asyncio.get_running_loop().add_reader(self._orders.fileno(), self._receive, apply_settings)

    async def turns(self, period_s: float) -> AsyncIterator[None]:
        """Yield at once, and then every `period_s` seconds, until told to stop."""
        while not self.stop.is_set():
            yield
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), period_s)

    def _receive(self, apply_settings: Apply) -> None:
        order = self._orders.next()
        if order is None:
            asyncio.get_running_loop().remove_reader(self._orders.fileno())
            self.stop.set()
            return
        settings = restored(order.settings, order.positions)
        self._log.apply_settings(settings.log)
        apply_settings(settings, order.sockets)
