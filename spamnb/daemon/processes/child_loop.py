"""How a child of the daemon follows its supervisor: what it begins with, and what it hears later.

Must not know what the roles do. A child stops on SIGTERM, and when its supervisor is gone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from spamnb.daemon.processes.channel import Orders, Start
from spamnb.daemon.processes.logs import Log, take_over
from spamnb.settings import Settings, restored


def begun(start: Start, name: str) -> tuple[Settings, Log]:
    """The settings that a child was told, and its log, which libraries write to as well."""
    settings = restored(start.settings)
    log = Log(settings.log, name)
    take_over(log)
    return settings, log


class Follower:
    """A child's event loop hears its supervisor. Made within the running loop."""

    def __init__(self, orders: Orders, log: Log) -> None:
        self._orders = orders
        self._log = log
        self.stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop.set)

    def follow(self, renew: Callable[[Settings], None]) -> None:
        """Obey orders from now on: `renew` takes new settings, the log has them already."""
        asyncio.get_running_loop().add_reader(self._orders.fileno(), self._obey, renew)

    def _obey(self, renew: Callable[[Settings], None]) -> None:
        order = self._orders.next()
        if order is None:
            asyncio.get_running_loop().remove_reader(self._orders.fileno())
            self.stop.set()
            return
        settings = restored(order.settings)
        self._log.renew(settings.log)
        renew(settings)
