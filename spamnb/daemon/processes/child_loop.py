"""How a child of the daemon follows its supervisor: what it begins with, and what it hears later.

Must not know what the roles do. A child stops on SIGTERM, and when its supervisor is gone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.logs import Log, take_over
from spamnb.settings import Settings, restored


def start_child(start: StartParams, name: str) -> tuple[Settings, Log]:
    """The settings that a child was told, and its log, which libraries write to as well."""
    settings = restored(start.settings)
    log = Log(settings.log, name)
    take_over(log)
    return settings, log


class ChildLoop:
    """A child's event loop hears its supervisor. Made within the running loop."""

    def __init__(self, channel: ChildChannel, log: Log) -> None:
        self._orders = channel
        self._log = log
        self.stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop.set)

    def follow(self, apply_settings: Callable[[Settings], None]) -> None:
        """Obey the supervisor: `apply_settings` gets new settings; the log has them already."""
        asyncio.get_running_loop().add_reader(self._orders.fileno(), self._obey, apply_settings)

    def _obey(self, apply_settings: Callable[[Settings], None]) -> None:
        order = self._orders.next()
        if order is None:
            asyncio.get_running_loop().remove_reader(self._orders.fileno())
            self.stop.set()
            return
        settings = restored(order.settings)
        self._log.apply_settings(settings.log)
        apply_settings(settings)
