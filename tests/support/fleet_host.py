"""One host of a fleet as a program: a learner with its control socket.

Arguments: home, folder of the socket, url of the log, name of the host, newest version of an entry
that it reads, seconds by which its clock is wrong.
"""

import sys
import time
from pathlib import Path

from spamnb.daemon.learner import LearnerConfig, LearnerSockets, run
from spamnb.daemon.logs import DaemonLog
from spamnb.daemon.shared import SharedState
from spamnb.fleet.membership import open_member
from spamnb.settings.schema import LogSettings
from spamnb.settings.values import FleetParams
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
        log=DaemonLog(LogSettings()),
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
