"""The learner as a process of the daemon: from its start to `learner.run`."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from spamnb.daemon.local_domains import served_domains
from spamnb.daemon.processes.channel import Orders, Start
from spamnb.daemon.processes.child_loop import begun
from spamnb.daemon.processes.shared_state import Board
from spamnb.daemon.roles.learner import Post, run, uids_of
from spamnb.daemon.roles.model_holder import Learning
from spamnb.service.maintenance.expiry import Rules
from spamnb.settings import Settings, restored


def main(start: Start, board: Board, orders: Orders) -> int:
    """Run until told to stop."""
    settings, log = begun(start, "learner")

    def renewed(told: dict[str, Any]) -> Learning:
        fresh = restored(told)
        log.renew(fresh.log)
        return learning_of(fresh, Path(start.home))

    (listener,) = start.sockets["control"]
    post = Post(socket.socket(fileno=listener), board, start.slot, orders, renewed, start.parent)
    return run(learning_of(settings, Path(start.home)), post)


def learning_of(settings: Settings, home: Path) -> Learning:
    """What the learner needs of the settings."""
    served, delimiter = served_domains(settings), settings.post.delimiter
    teach, expire = replace(settings.teach, served=served, delimiter=delimiter), settings.expire
    return Learning(
        home=home,
        house=settings.house,
        costs=settings.costs,
        store_limit_bytes=settings.store.limit_bytes,
        history=settings.history,
        teaching=teach,
        review=settings.review,
        expiry=Rules(settings.journal.keep_days, expire.after_days, expire.most_holders),
        delegates=uids_of(settings.serve.delegates),
        spools=(Path(teach.spool),) if teach.spool else (),
        spool_limits=settings.spool._replace(file_bytes=teach.limit_bytes),
    )
