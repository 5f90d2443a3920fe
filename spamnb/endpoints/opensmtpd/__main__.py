"""The process that OpenSMTPD starts: `python -m spamnb.endpoints.opensmtpd ADDRESS SECONDS`.

OpenSMTPD ends when one of its filters ends, so this process ends only with its input. It needs
nothing but the standard library, and loads all of its modules at the start; it does not parse mail.
A few threads ask the scanner listener, each about one message; while the daemon is away they wait
for it, for ten seconds after the first attempt that failed. A message without an answer at its
deadline passes unscanned, which is logged: OpenSMTPD writes the lines on standard error to its own
log.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Final

from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.scan_client import ScanAnswer, ask, connected
from spamnb.endpoints.opensmtpd.protocol import OpensmtpdFilter, PendingMessage, VersionError
from spamnb.errors import PeerError

ASKERS: Final = 16
AWAY_S: Final = 10.0
"""how long messages wait for a daemon that is away: a restart takes two seconds"""
RETRY_S: Final = 0.2
_IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_ERROR: Final = 2


class FilterProcess:
    """Reads lines of OpenSMTPD, and writes the answers."""

    def __init__(self, address: Address, deadline_s: float) -> None:
        self._address, self._deadline_s = address, deadline_s
        self._filter = OpensmtpdFilter()
        self._lock = threading.Lock()
        """of the filter and of standard output"""
        self._asked: SimpleQueue[tuple[float, PendingMessage]] = SimpleQueue()
        self._away_since: float | None = None

    def run(self) -> int:
        """Run until the input ends; the exit code."""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for _ in range(ASKERS):
            threading.Thread(target=self._ask_all, daemon=True).start()
        for line in sys.stdin.buffer:
            try:
                self._do(partial(self._filter.receive, line.rstrip(b"\n")))
            except VersionError as error:
                _log(f"{error}: this filter needs 6.8 or later")
                return 1
        return 0

    def _do(self, step: Callable[[], None]) -> None:
        """Do a step of the filter, and what it has left to do; only VersionError comes out."""
        with self._lock:
            try:
                step()
                self._flush()
            except VersionError:
                raise
            except BrokenPipeError:
                os._exit(0)  # OpenSMTPD has ended
            except Exception as error:  # noqa: BLE001 - OpenSMTPD would end with its filter
                _log(f"internal error: {error!r}")

    def _flush(self) -> None:
        state = self._filter
        while state.pending:
            self._asked.put((time.monotonic() + self._deadline_s, state.pending.popleft()))
        for note in state.notes:
            _log(note)
        state.notes.clear()
        data, state.output = state.output, bytearray()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]

    # -- the scanner ------------------------------------------------------------------------------

    def _ask_all(self) -> None:
        """Answer messages, one after the other."""
        while True:
            deadline, message = self._asked.get()
            answer: ScanAnswer | None = None
            try:
                answer = self._answer(message, deadline)
            except Exception as error:  # noqa: BLE001 - the boundary: the message has to pass
                queue_id = "".join(message.headers["Queue-Id"])
                _log(f"{queue_id}: passes unscanned: {error or repr(error)}")
            self._do(partial(self._filter.answered, message, answer))

    def _answer(self, message: PendingMessage, deadline: float) -> ScanAnswer:
        """Ask the daemon; wait for it while it is away."""
        while True:
            try:
                with connected(self._address, deadline) as peer:
                    answer = ask(peer, message.raw, message.headers, deadline)
            except PeerError as error:
                if error.reply or not self._may_wait(deadline):
                    raise
                time.sleep(RETRY_S)
            else:
                self._away_since = None
                return answer

    def _may_wait(self, deadline: float) -> bool:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        return now + RETRY_S < min(deadline, self._away_since + AWAY_S)


def _log(text: str) -> None:
    with suppress(OSError):
        os.write(_ERROR, f"spamnb: {text}\n".encode("utf-8", "replace"))


def main() -> None:
    """Run as a program."""
    address, deadline_s = sys.argv[1:]
    os._exit(FilterProcess(Address.parse(address), float(deadline_s)).run())


if __name__ == "__main__":
    main()
