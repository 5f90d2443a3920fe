"""The post office as a process of the daemon: it teaches through the control socket."""

from __future__ import annotations

import asyncio
import signal
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

from spamnb.daemon.board import Board, State
from spamnb.daemon.logs import Log, take_over
from spamnb.daemon.start import Orders, Start
from spamnb.errors import SpamnbError
from spamnb.faces.smtp.address import Address
from spamnb.faces.smtp.postoffice.config import PostOffice
from spamnb.faces.smtp.postoffice.links import Links, Listener
from spamnb.faces.smtp.postoffice.server import Server
from spamnb.service.control import teach_through
from spamnb.settings import Settings, restored

TICK_S = 1.0


def main(start: Start, board: Board, orders: Orders) -> int:
    """Run until told to stop."""
    settings = restored(start.settings)
    log = Log(settings.log, "post")
    take_over(log)
    try:
        asyncio.run(_PostProcess(start, board, orders, log).run(settings))
    except SpamnbError as error:
        log({"event": "the post office cannot begin", "level": "error", "error": str(error)}
            | {"hint": error.hint})  # fmt: skip
        return error.exit_code
    return 0


class _PostProcess:
    """One run."""

    def __init__(self, start: Start, board: Board, orders: Orders, log: Log) -> None:
        self._start = start
        self._board = board
        self._orders = orders
        self._log = log
        self._stop = asyncio.Event()

    async def run(self, settings: Settings) -> None:
        """Listen, and go on until told to stop."""
        loop, slot = asyncio.get_running_loop(), self._start.slot
        links = Links(
            teach=partial(teach_through, self._start.control),
            meters=self._board.meters(slot),
            log=lambda record: self._log(dict(record)),
        )
        server = Server(office_of(settings, Path(self._start.home)), links)
        speaks = Address.parse(settings.post.address).speaks if settings.post.address else "smtp"
        sockets = [socket.socket(fileno=fd) for fd in self._start.sockets["post"]]
        await server.listen([Listener(one, speaks) for one in sockets])
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_reader(self._orders.fileno(), self._obey, server)
        self._board.set_state(slot, State.READY)
        while not self._stop.is_set():
            self._board.beat(slot)
            self._board.set_open(slot, len(server.office.sessions))
            try:
                await asyncio.wait_for(self._stop.wait(), TICK_S)
            except TimeoutError:
                continue
        self._board.set_state(slot, State.LEAVING)
        await server.drain()

    def _obey(self, server: Server) -> None:
        order = self._orders.next()
        if order is None:
            asyncio.get_running_loop().remove_reader(self._orders.fileno())
            self._stop.set()
            return
        settings = restored(order.settings)
        self._log.renew(settings.log)
        try:
            server.renew(office_of(settings, Path(self._start.home)))
        except SpamnbError as error:
            self._log({"event": "the old settings stay", "level": "error", "error": str(error)}
                      | {"hint": error.hint})  # fmt: skip


def office_of(settings: Settings, home: Path) -> PostOffice:
    """The post office that the settings describe."""
    post = settings.post
    root = post.root if post.root or post.users else str(home / "mail")
    return replace(post, root=root, hostname=settings.serve.hostname or socket.gethostname())
