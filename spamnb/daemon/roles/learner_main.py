"""Entry point of the learner process: convert the start parameters for `learner.run`."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from spamnb.daemon.local_domains import served_domains
from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.child_loop import start_child
from spamnb.daemon.processes.shared_state import SharedState
from spamnb.daemon.roles.learner import LearnerSockets, run, uids_of
from spamnb.daemon.roles.model_holder import LearnerConfig
from spamnb.service.maintenance.expiry import ExpiryRules
from spamnb.settings import Settings, restored


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    settings, log = start_child(start, "learner")

    def reloaded(values: dict[str, Any]) -> LearnerConfig:
        new = restored(values)
        log.apply_settings(new.log)
        return learning_of(new, Path(start.home))

    (listener,) = start.sockets["control"]
    post = LearnerSockets(
        socket.socket(fileno=listener), shared, start.slot, channel, reloaded, start.parent
    )
    return run(learning_of(settings, Path(start.home)), post)


def learning_of(settings: Settings, home: Path) -> LearnerConfig:
    """Return the configuration of the learner."""
    served, delimiter = served_domains(settings), settings.delivery.delimiter
    feedback, expire = (
        replace(settings.feedback, served=served, delimiter=delimiter),
        settings.expire,
    )
    return LearnerConfig(
        home=home,
        local=settings.local,
        costs=settings.costs,
        store_limit_bytes=settings.store.limit_bytes,
        history=settings.history,
        teaching=feedback,
        review=settings.review,
        expiry=ExpiryRules(settings.journal.keep_days, expire.after_days, expire.max_messages),
        delegates=uids_of(settings.serve.delegates),
        spools=(Path(feedback.spool),) if feedback.spool else (),
        spool_limits=settings.spool._replace(file_bytes=feedback.limit_bytes),
    )
