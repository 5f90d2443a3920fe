"""One host of a fleet as a program: a learner with its control socket.

Arguments: home, folder of the socket, url of the log, name of the host.
"""

import sys
from functools import partial
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
    home, where, url, host = sys.argv[1:]
    params = FleetParams(url=url, host=host, fold_s=0.05)
    path = Path(where) / "c.sock"
    path.unlink(missing_ok=True)
    shared = SharedState.create(["learner"])
    config = LearnerConfig(
        home=Path(home),
        log=Log(LogSettings()),
        fleet=partial(open_member, params, Path(home)),
        spools=(Path(where) / "spool",),
    )
    return run(config, LearnerSockets(listening(path), shared, 0))


if __name__ == "__main__":
    sys.exit(main())
