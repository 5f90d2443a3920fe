"""The learner as a process of the daemon: from its start to `learner.run`."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from spamnb.daemon.board import Board
from spamnb.daemon.keeper import Learning
from spamnb.daemon.learner import Post, learning_of, run, uids_of
from spamnb.daemon.logs import Log, take_over
from spamnb.daemon.start import Orders, Start
from spamnb.service.trust import TeachingRules
from spamnb.settings import Settings, restored


def main(start: Start, board: Board, orders: Orders) -> int:
    """Run until told to stop."""
    settings = restored(start.settings)
    log = Log(settings.log, "learner")
    take_over(log)

    def renewed(told: dict[str, Any]) -> Learning:
        fresh = restored(told)
        log.renew(fresh.log)
        return _learning(fresh, Path(start.home))

    (listener,) = start.sockets["control"]
    post = Post(socket.socket(fileno=listener), board, start.slot, orders, renewed, start.parent)
    return run(_learning(settings, Path(start.home)), post)


def _learning(settings: Settings, home: Path) -> Learning:
    teach = settings.teach
    return replace(
        learning_of(settings, home),
        delegates=uids_of(settings.serve.delegates),
        spools=(Path(teach.spool),) if teach.spool else (),
        teaching=TeachingRules(
            limit_bytes=teach.limit_bytes,
            user_per_day=teach.user_per_day,
            stranger_per_day=teach.stranger_per_day,
            strangers_per_day=teach.strangers_per_day,
            sure=teach.sure,
            unproven=teach.unproven,
            domains=teach.domains,
        ),
    )
