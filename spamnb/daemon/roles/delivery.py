"""The post office as a process of the daemon: it teaches through the control socket."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

from spamnb.daemon.processes.channel import Orders, Start
from spamnb.daemon.processes.child_loop import Follower, begun
from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import Board, State
from spamnb.endpoints.control.protocol import teach_through
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.smtp.delivery.params import PostOffice
from spamnb.endpoints.smtp.delivery.ports import Links, Listener
from spamnb.endpoints.smtp.delivery.server import Server
from spamnb.errors import SpamnbError
from spamnb.settings import Settings

TICK_S = 1.0


def main(start: Start, board: Board, orders: Orders) -> int:
    """Run until told to stop."""
    settings, log = begun(start, "post")
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

    async def run(self, settings: Settings) -> None:
        """Listen, and go on until told to stop."""
        slot, follower = self._start.slot, Follower(self._orders, self._log)
        links = Links(
            teach=partial(teach_through, self._start.control),
            meters=self._board.meters(slot),
            log=lambda record: self._log(dict(record)),
        )
        server = Server(office_of(settings, Path(self._start.home)), links)
        speaks = Address.parse(settings.post.address).speaks if settings.post.address else "smtp"
        sockets = [socket.socket(fileno=fd) for fd in self._start.sockets["post"]]
        await server.listen([Listener(one, speaks) for one in sockets])
        follower.follow(partial(self._renew, server))
        self._board.set_state(slot, State.READY)
        while not follower.stop.is_set():
            self._board.beat(slot)
            self._board.set_open(slot, len(server.office.sessions))
            try:
                await asyncio.wait_for(follower.stop.wait(), TICK_S)
            except TimeoutError:
                continue
        self._board.set_state(slot, State.LEAVING)
        await server.drain()

    def _renew(self, server: Server, settings: Settings) -> None:
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
