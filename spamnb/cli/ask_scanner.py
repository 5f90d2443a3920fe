"""Ask a scanner about one message: the daemon's, else one in a child process.

The child runs the session of a scanner listener on the model of the home (`daemon.one_scan`), so
both give the same answer. If the child crashes or takes too long, only the verdict is missing. Must
not import anything heavy in the parent.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Final, NamedTuple, NoReturn

from spamnb.cli.printing import warn
from spamnb.cli.session import CliSession
from spamnb.errors import SpamnbError, StoreError
from spamnb.net.address import Address
from spamnb.net.clients import RequestHeaders, ScanAnswer, ask, connected

CONNECT_S: Final = 2.0


class Question(NamedTuple):
    """What to ask, except for the message."""

    address: Address
    """of the daemon's scanner listener"""
    timeout_s: float
    """for the daemon, and again for the child process"""
    headers: RequestHeaders


def answer_of(session: CliSession, question: Question, message: bytes) -> ScanAnswer | None:
    """The answer; None without one. A line on standard error says why there is no verdict."""
    reasons: list[str] = []
    answer = _first_answer(session, question, message, reasons)
    if answer is not None and answer.deferred:
        reasons.append("the scanner asks to try again later")
        answer = None
    elif answer is not None and answer.outcome.get("verdict") == "unscanned":
        reasons.append(f"unscanned, reason {answer.outcome.get('reason')}")
    elif answer is not None:
        return answer
    warn(f"no verdict: {'; '.join(reasons)}")
    return answer


def _first_answer(
    session: CliSession, question: Question, message: bytes, reasons: list[str]
) -> ScanAnswer | None:
    for way in (_daemon(question), _child(session, question.timeout_s)):
        try:
            with way as peer:
                deadline = time.monotonic() + question.timeout_s
                return ask(peer, message, question.headers, deadline)
        except (SpamnbError, OSError) as error:
            reasons.append(str(error))
    return None


@contextmanager
def _daemon(question: Question) -> Iterator[socket.socket]:
    deadline = time.monotonic() + min(CONNECT_S, question.timeout_s)
    with connected(question.address, deadline) as peer:
        yield peer


@contextmanager
def _child(session: CliSession, timeout_s: float) -> Iterator[socket.socket]:
    """Start a child process that answers one request; it is killed at the end."""
    here, there = socket.socketpair()
    with here:
        pid = os.fork()
        if pid == 0:
            here.close()
            signal.alarm(ceil(timeout_s) + 1)  # also ends the child if the parent is killed
            _run_child(there, session)
        try:
            there.close()
            yield here
        finally:
            with suppress(ProcessLookupError, ChildProcessError):  # if SIGCHLD is ignored
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _run_child(peer: socket.socket, session: CliSession) -> NoReturn:
    """Answer the request; the child does not use standard input and output of the parent."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        from spamnb.daemon.one_scan import answer_one
        from spamnb.telemetry import silent

        log = session.log if session.verbose else silent
        answer_one(peer, session.settings, session.home, log)
    except BaseException as error:  # noqa: BLE001 - the end of a process
        text = f"{error} - {error.hint}" if isinstance(error, SpamnbError) else repr(error)
        warn(f"the scan without a daemon failed: {text}")
    finally:
        os._exit(StoreError.exit_code)
