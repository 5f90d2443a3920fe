"""One child process: start it by exec, send it messages, watch it by its pidfd.

Must not know what the roles do, nor when a child is restarted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from spamnb.daemon.processes.channel import Order, StartParams, SupervisorChannel
from spamnb.daemon.processes.shared_state import SharedState
from spamnb.service.interpreter import package_environment

_SUPERVISOR_ONLY = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC",
           "WATCHDOG_PID")  # fmt: skip
"""variables of the service manager that are meant for the supervisor"""


@dataclass(slots=True, eq=False)
class Child:
    """A started process."""

    start: StartParams
    line: SupervisorChannel
    process: subprocess.Popen[bytes]
    pidfd: int
    since_s: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.since_s

    def tell(self, order: Order) -> bool:
        """Send it an order; False if it does not read."""
        return self.line.tell(order)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def buried(self) -> int:
        """Reap it and close its descriptors; return its exit code (negative: the signal)."""
        code = self.process.wait()
        os.close(self.pidfd)
        self.line.close()
        return code


def spawn(start: StartParams, shared: SharedState, more_fds: Iterable[int] = ()) -> Child:
    """Start a child process and send it its parameters."""
    line = SupervisorChannel()
    inherited = [fd for fds in start.sockets.values() for fd in fds]
    inherited += [start.feed_fd] if start.feed_fd >= 0 else []
    shared.begin(start.slot)
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and this package
            [sys.executable, "-P", "-m", "spamnb.daemon", start.role, str(line.child_fd)],
            pass_fds=[line.child_fd, shared.fd, *inherited, *more_fds],
            stdin=subprocess.DEVNULL,
            env=package_environment(_SUPERVISOR_ONLY),
            cwd="/",
            process_group=0,
        )
    except OSError:
        line.close()
        raise
    finally:
        line.child_has_it()
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        line.close()
        process.kill()
        process.wait()
        raise
    shared.set_pid(start.slot, process.pid)
    line.tell(start)
    return Child(start, line, process, pidfd)


def bury_orphans(own: Container[int]) -> None:
    """Reap processes that have ended, except the children `own`.

    As the first process of a container, the supervisor inherits the children of killed processes.
    """
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, ended)) and found.si_pid not in own:
            os.waitpid(found.si_pid, os.WNOHANG)


class Backoff:
    """Pause before a process is restarted: doubles each time it ends soon after its start."""

    FIRST_S = 0.1
    LONGEST_S = 10.0
    OLD_S = 60.0
    """a process of this age did not fail at its start"""

    def __init__(self) -> None:
        self.failures = 0

    def after(self, age_s: float) -> float:
        """Return the pause after an end at this age."""
        self.failures = 1 if age_s >= self.OLD_S else self.failures + 1
        if self.failures == 1:
            return 0.0
        return float(min(self.FIRST_S * 2.0 ** (self.failures - 2), self.LONGEST_S))


def exit_words(code: int) -> dict[str, object]:
    """Return the exit code or signal, for the log."""
    if code >= 0:
        return {"code": code}
    with suppress(ValueError):
        return {"signal": signal.Signals(-code).name}
    return {"signal": -code}
