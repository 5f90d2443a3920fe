"""One host of a fleet as a program: a learner with its control socket.

Arguments: home, folder of the socket, url of the log, name of the host, newest version of an entry
that it reads, seconds by which its clock is wrong.
"""

import sys
import time
from pathlib import Path

from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import SharedState
from spamnb.daemon.roles.learner import LearnerSockets, run
from spamnb.daemon.roles.model_holder import LearnerConfig
from spamnb.endpoints.fleet.membership import open_member
from spamnb.endpoints.fleet.params import FleetParams
from spamnb.settings.schema import LogSettings
from support.learner import listening


def main():
    home, where, url, host, level, ahead_s = sys.argv[1:]
    set_clock(int(ahead_s))
    params = FleetParams(url=url, host=host, fold_s=0.05)
    path = Path(where) / "c.sock"
    path.unlink(missing_ok=True)
    shared = SharedState.create(["learner"])
    config = LearnerConfig(
        home=Path(home),
        log=Log(LogSettings()),
        fleet=lambda: open_member(params, Path(home))._replace(level=int(level)),
        spools=(Path(where) / "spool",),
    )
    return run(config, LearnerSockets(listening(path), shared, 0))


def set_clock(ahead_s):
    """Let the clock of this process be wrong by so many seconds."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + ahead_s
    time.time_ns = lambda: nanoseconds() + ahead_s * 10**9


if __name__ == "__main__":
    sys.exit(main())
