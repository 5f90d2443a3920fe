"""Run commands that read the model file in a child process, since LMDB may crash it.

LMDB does not verify its pages. On a damaged file it aborts, or the kernel kills the process that
reads a missing page (SIGBUS), without a Python exception. The parent waits, forwards signals, and
turns such an end into one line and the exit code of a store error.

Imports nothing heavy: the child is forked before anything is loaded. Commands not in `GUARDED` run
directly.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from spamnb.errors import StoreError

GUARDED = frozenset((
    "backup", "bisect", "check", "compact", "correct", "doubt", "expire", "explain", "export",
    "forget", "history", "import", "journal", "relearn", "restore", "rewind", "score", "stats",
    "undo",
))  # fmt: skip
"""`serve` and `watch` have processes of their own."""
TEMPORARY = 75
FATAL = frozenset((signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE, signal.SIGILL))
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VALUED = ("--home", "--config")
_STDERR = 2
_PR_SET_PDEATHSIG = 1
_MOST_OUTPUT = 300


def command_of(words: Sequence[str]) -> str:
    """Return the command's name, "" if there is none."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _VALUED:
            skip = True
        elif not word.startswith("-"):
            return word
    return ""


def guarded(run: Callable[[], None], words: Sequence[str]) -> None:
    """Run a command; in a child process if it reads the model file."""
    name = command_of(words)
    if name not in GUARDED or not hasattr(os, "memfd_create"):
        run()
        return
    output = os.memfd_create("spamnb-engine")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the exit status would be lost
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become_child(output, parent)
        run()
        return
    code = _outcome(child)
    size = os.fstat(output).st_size
    text = os.pread(output, size if code >= 0 else _MOST_OUTPUT, 0).decode("utf-8", "replace")
    if code >= 0:
        _write_stderr(text)
        os._exit(code)
    if -code not in FATAL:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    why = " ".join(text.split()) or signal.Signals(-code).name
    _write_stderr(
        f"spamnb: LMDB ended the process ({why}) - the model is damaged, restore a backup\n"
    )
    strict = name == "score" and "--exit-code" in words
    os._exit(TEMPORARY if strict else StoreError.exit_code)


def _become_child(output: int, parent: int) -> None:
    """Redirect descriptor 2, which LMDB writes to, to `output`; sys.stderr stays as it was."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(StoreError.exit_code)
    if sys.stderr is not None:
        shown = os.dup(_STDERR)
        sys.stderr = open(  # noqa: PTH123, SIM115 - a descriptor, until exit
            shown, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace"
        )
        os.dup2(output, _STDERR)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_PASSED_ON, signal.SIGCHLD))


def _outcome(child: int) -> int:
    """Wait for the child; return its exit code, or less than 0 for a signal."""
    while True:
        info = signal.sigwaitinfo((*_PASSED_ON, signal.SIGCHLD))
        if info.si_signo != signal.SIGCHLD and info.si_code <= 0:
            # Sent by a process. Signals of the terminal reach the child directly.
            os.kill(child, info.si_signo)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _write_stderr(text: str) -> None:
    with suppress(OSError):
        os.write(_STDERR, text.encode("utf-8", "replace"))
