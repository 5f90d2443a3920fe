"""Ask a scanner about one message: the daemon's, else one in a child process.

The child runs the session of a scanner listener on the model of the home (`daemon.one_scan`), so
both give the same answer. A crash of the child, or a message that takes too long, costs the verdict
only. Must not import anything heavy in the parent.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, NoReturn

from spamnb.cli.printing import warn
from spamnb.cli.session import CliSession
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.scan_client import RequestHeaders, ScanAnswer, ask, connected
from spamnb.errors import SpamnbError, StoreError

CONNECT_S: Final = 2.0


class Question(NamedTuple):
    """What to ask, except for the message."""

    address: Address
    """of the daemon's scanner listener"""
    timeout_s: float
    """for the daemon, and again for the child process"""
    headers: RequestHeaders


def answer_of(session: CliSession, question: Question, message: bytes) -> ScanAnswer | None:
    """The answer; None without one, for which a line on standard error gives the reason."""
    reasons: list[str] = []
    found: ScanAnswer | None = None
    for way in (_daemon(question), _child(session)):
        try:
            with way as peer:
                deadline = time.monotonic() + question.timeout_s
                found = ask(peer, message, question.headers, deadline)
            break
        except (SpamnbError, OSError) as error:
            reasons.append(str(error))
    if found is None:
        warn(f"no verdict: {'; '.join(reasons)}")
    elif found.deferred:
        warn("no verdict: the scanner asks to try again later")
    elif found.outcome.get("verdict") == "unscanned":
        warn(f"no verdict: unscanned, reason {found.outcome.get('reason')}")
    return None if found is None or found.deferred else found


@contextmanager
def _daemon(question: Question) -> Iterator[socket.socket]:
    deadline = time.monotonic() + min(CONNECT_S, question.timeout_s)
    with connected(question.address, deadline) as peer:
        yield peer


@contextmanager
def _child(session: CliSession) -> Iterator[socket.socket]:
    """Start a child process that answers one request; it is killed at the end."""
    here, there = socket.socketpair()
    with here:
        pid = os.fork()
        if pid == 0:
            here.close()
            _run_child(there, session)
        try:
            there.close()
            yield here
        finally:
            with suppress(ProcessLookupError, ChildProcessError):  # if SIGCHLD is ignored
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _run_child(peer: socket.socket, session: CliSession) -> NoReturn:
    """ScanAnswer; standard input and output are the parent's alone."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        from spamnb.daemon.one_scan import answer_one
        from spamnb.service.telemetry.log import silent

        log = session.log if session.verbose else silent
        answer_one(peer, session.settings, session.home, log)
    except BaseException as error:  # noqa: BLE001 - the end of a process
        text = f"{error} - {error.hint}" if isinstance(error, SpamnbError) else repr(error)
        warn(f"the scan without a daemon failed: {text}")
    finally:
        os._exit(StoreError.exit_code)
