"""`python -m spamnb.daemon ROLE FD`: entry point of the daemon's child processes.

The role is an argument so that `ps` shows it; the parameters are the `StartParams` on the
descriptor.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

from spamnb.daemon.shared import SharedState
from spamnb.daemon.start import die_with_parent
from spamnb.daemon.supervisor import ChildChannel
from spamnb.telemetry import lower_priority

_NICE = {"console": 15}
"""Roles with less priority than the mail: a process at nice 15 gets 36 parts of processor time for
1,024 of a process at nice 0, so a flood of requests costs the mail 3.4 % at most."""
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> int:
    """Receive the start parameters and run the role."""
    # Ctrl-C reaches the terminal's whole process group; only the supervisor may stop a child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for variable in _THREADS:
        # Before numpy is imported: its threads cost memory and gain nothing on small arrays.
        os.environ.setdefault(variable, "1")
    channel = ChildChannel(int(sys.argv[2]))
    start = channel.start()
    die_with_parent(start.parent)
    if start.role in _NICE:
        lower_priority(_NICE[start.role])
    shared = SharedState(start.shared_fd)
    shared.beat(start.slot)
    module, _, name = start.entry.partition(":")
    return int(getattr(import_module(module), name)(start, shared, channel))


if __name__ == "__main__":
    sys.exit(main())
