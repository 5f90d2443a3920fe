"""Entry point of the learner process: convert the start parameters for `learner.run`."""

from __future__ import annotations

import socket
from pathlib import Path

from spamnb.core.persons.names import PersonNames
from spamnb.daemon.person_names import load_names
from spamnb.daemon.processes.channel import ChildChannel, Order, StartParams
from spamnb.daemon.processes.child_loop import start_child
from spamnb.daemon.processes.shared_state import SharedState
from spamnb.daemon.roles.learner import LearnerSockets, run, uids_of
from spamnb.daemon.roles.model_holder import LearnerConfig
from spamnb.service.telemetry.log import Log
from spamnb.settings import Settings, restored
from spamnb.settings.model import model_options
from spamnb.settings.persons import recipient_costs


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    settings, log = start_child(start, "learner")

    config = learning_of(settings, Path(start.home), log)

    def reloaded(order: Order) -> LearnerConfig:
        nonlocal config
        new = restored(order.settings, order.positions)
        log.apply_settings(new.log)
        config = learning_of(new, Path(start.home), log, config.persons)
        return config

    (listener,) = start.sockets["control"]
    sockets = LearnerSockets(
        socket.socket(fileno=listener), shared, start.slot, channel, reloaded, start.parent
    )
    return run(config, sockets)


def learning_of(
    settings: Settings, home: Path, log: Log, before: PersonNames | None = None
) -> LearnerConfig:
    """Return the configuration of the learner."""
    feedback = settings.feedback
    persons = load_names(settings, log, before)
    return LearnerConfig(
        **model_options(settings, home),
        log=log,
        persons=persons,
        recipient_costs=recipient_costs(settings, persons),
        delegates=uids_of(settings.serve.delegates, log),
        spools=(Path(feedback.spool),) if feedback.spool else (),
        spool_limits=settings.spool._replace(file_bytes=feedback.limit_bytes),
    )
