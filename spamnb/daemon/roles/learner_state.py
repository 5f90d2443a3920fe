"""What the learner knows of its daemon, for the operations of the control socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from spamnb.daemon.processes.shared_state import ProcessState, ProcessStatus, SharedState
from spamnb.daemon.roles.follower import Follower
from spamnb.daemon.roles.model_holder import ModelHolder
from spamnb.endpoints.console.webhooks.standing import read_standings
from spamnb.endpoints.imap.away import AwayMailboxes
from spamnb.service.feedback.spool import Spool, problem
from spamnb.service.telemetry import unscanned
from spamnb.service.telemetry.metrics import Meters, as_dict
from spamnb.service.telemetry.status import Facts, is_open


class LearnerState:
    """`AdminDaemon`: the shared state of the processes, and the spools."""

    def __init__(
        self,
        holder: ModelHolder,
        shared: SharedState,
        spools: Sequence[Spool],
        follower: Follower,
        parent: int = 0,
    ) -> None:
        self._holder = holder
        self._shared = shared
        self._spools = spools
        self._follower = follower
        self._parent = parent
        self._away = AwayMailboxes(holder.config.home)

    def facts(self) -> Facts:
        shared = self._shared
        reads = any(one.role == "imap" for one in shared.statuses())
        return {
            "up_s": round(shared.up_s, 1),
            "processes": [
                _process(one) for one in shared.statuses() if one.state != ProcessState.EMPTY
            ],
            "counters": as_dict(shared.total()),
            "bypass": shared.bypass,
            "lately": unscanned.facts_of(shared.lately) | {"alarm": shared.alarm},
            "spool": {
                "waiting": sum(spool.waiting() for spool in self._spools),
                "set_aside": sum(spool.set_aside for spool in self._spools),
            },
            "moves_failed": sum(spool.failed() for spool in self._spools),
            "mailboxes_away": [one._asdict() for one in self._away.found() if reads],
            "webhooks": read_standings(self._holder.config.home),
            "spool_problems": self._spool_problems(),
        } | self._follower.facts()

    def meters(self) -> Meters:
        return self._shared.total()

    def set_bypass(self, *, on: bool) -> None:
        self._shared.bypass = on

    def reread_settings(self) -> None:
        if self._parent:
            os.kill(self._parent, signal.SIGHUP)

    def _spool_problems(self) -> list[str]:
        """Return why feedback cannot be written to the spools, or not read from them."""
        config = self._holder.config
        outside = [one for one in self._spools if not one.folder.is_relative_to(config.home)]
        found = [str(error) for one in outside if (error := problem(one.folder))]
        if config.delegates and not outside and not is_open(config.home):
            found.append(
                "serve.delegates is set, but delegates cannot reach a spool:"
                " set feedback.spool, or create /var/spool/spamnb"
            )
        return found


def _process(process: ProcessStatus) -> dict[str, object]:
    return {
        "role": process.role,
        "slot": process.slot,
        "state": process.state.name.lower(),
        "pid": process.pid,
        "starts": process.starts,
        "up_s": round(process.up_s, 1),
        "beat_age_s": round(process.beat_age_s, 1),
        "open": process.open_sessions,
    }
