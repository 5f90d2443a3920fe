"""The log: one line for each record, as text or JSON, on stderr or in a file.

A record is a dict with `event` and further fields. Must not know what is logged.
Invariants: a line contains no control characters, even if a field of a message does; values of
fields named like secrets are masked. A log that cannot be written never blocks mail: lines are
dropped and counted, also if the reader of a pipe hangs; the count is logged later.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import stat
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from spamnb.settings.schema import LogSettings

LEVELS: dict[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_PRIORITY = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>"}
"""what journald reads at the start of a line (sd-daemon(3))"""
_SECRET_KEY = re.compile(r"pass(word|phrase)?$|secret|token|^key$|_key$|credential", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@<>+,\[\]{}%*!?~^&|;()#$-]+")
MOST_VALUE = 2_000
"""maximum number of characters of one value, to keep lines readable"""
MOST_ITEMS = 100
"""maximum number of items of a list, such as a message's recipients"""


class DaemonLog:
    """Writes records: call it with a record."""

    def __init__(self, form: LogSettings, process: str = "") -> None:
        self.process = process
        self._fd = -1
        self._lost = 0
        self._cut = False
        """True if the last line was cut off"""
        # Python refuses a poll that two threads use at a time. A signal handler may log.
        self._lock = threading.RLock()
        self.apply_settings(form)

    def apply_settings(self, form: LogSettings) -> None:
        """Use other settings, and reopen the file, which may have been rotated."""
        with self._lock:
            old, self._form, self._least = self._fd, form, LEVELS[form.level]
            self._fd = _opened(form.file)
            self._journal = self._fd == 2 and _is_journal(2)
            self._poll = _poll_of(self._fd)
            if old > 2:
                os.close(old)

    def give(self, uid: int, gid: int) -> None:
        """Change the owner of the file, so that this user can reopen it."""
        if self._fd > 2:
            os.fchown(self._fd, uid, gid)

    def __call__(self, record: Mapping[str, object]) -> None:
        """Write one record; the default `level` is info."""
        level = str(record.get("level", "info"))
        if LEVELS.get(level, 20) < self._least:
            return
        with self._lock:
            if self._poll is not None and not self._poll.poll(0):
                self._lost += 1
                return
            line = self._line(level, record)
            if self._lost:
                loss = {"event": "log lines lost", "lines": self._lost}
                line, self._lost = self._line("warning", loss) + line, 0
            self._write(line.encode("utf-8", "replace"))

    def _write(self, data: bytes) -> None:
        """Write a line; to a pipe in pieces that never block."""
        data = b"\n" * self._cut + data
        self._cut = False
        step = len(data) if self._poll is None else select.PIPE_BUF
        for at in range(0, len(data), step):
            if at and self._poll is not None and not self._poll.poll(0):
                self._cut = True
                self._lost += 1
                return
            with suppress(OSError):
                os.write(self._fd, data[at : at + step])

    def _line(self, level: str, record: Mapping[str, object]) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        said = {key: _masked(key, value) for key, value in record.items() if key != "level"}
        if self.process:
            said["process"] = self.process
        start = _PRIORITY.get(level, "<6>") if self._journal else ""
        if self._form.format == "json":
            return start + json.dumps({"time": now, "level": level} | said, default=str) + "\n"
        event = _as_text(said.pop("event", "note"))
        words = [f"{key}={_as_text(value)}" for key, value in said.items()]
        return start + " ".join([now, level, event, *words]) + "\n"


def _opened(file: str) -> int:
    if not file:
        return 2
    try:
        return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        os.write(2, f"spamnb: the log {file} cannot be opened ({error.strerror})\n".encode())
        return 2


def _poll_of(fd: int) -> select.poll | None:
    """Return a poll that tells whether a write would block; None for a regular file."""
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return None
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return poll


def _is_journal(fd: int) -> bool:
    """Return True if a descriptor is the systemd journal (systemd.exec(5), $JOURNAL_STREAM)."""
    with suppress(OSError):
        where = os.fstat(fd)
        return os.environ.get("JOURNAL_STREAM", "") == f"{where.st_dev}:{where.st_ino}"
    return False


def _masked(key: str, value: object) -> object:
    if _SECRET_KEY.search(key):
        return "********"
    if isinstance(value, str) and len(value) > MOST_VALUE:
        return value[:MOST_VALUE] + "..."
    if isinstance(value, bytes):
        return value[:MOST_VALUE].decode("latin-1")
    if isinstance(value, list | tuple):
        return [_masked(key, one) for one in value[:MOST_ITEMS]]
    if isinstance(value, dict):
        return {str(k): _masked(str(k), v) for k, v in value.items()}
    return value


def _as_text(value: object) -> str:
    """Format a value unambiguously: quoted unless it is plain."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ",".join(map(_as_text, value)) or '""'
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class _Bridge(logging.Handler):
    """Forwards records of the standard logging module to the log."""

    def __init__(self, log: DaemonLog) -> None:
        super().__init__()
        self._log = log
        self._last, self._told_at, self._untold = "", 0.0, 0

    def emit(self, record: logging.LogRecord) -> None:
        level = next((k for k, v in reversed(LEVELS.items()) if record.levelno >= v), "debug")
        fields: dict[str, Any] = {"event": "library", "level": level, "of": record.name}
        fields["text"] = record.getMessage()
        if self._is_repeated(fields["text"], record.created):
            return
        if self._untold:
            fields["untold"], self._untold = self._untold, 0
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
        self._log(fields)

    def _is_repeated(self, text: str, now: float) -> bool:
        """Return True if the same text was logged within the last second.

        Without free descriptors asyncio logs a line per pending connection (CPython 3.11,
        selector_events.py): 20,000 lines in five seconds were seen.
        """
        if text == self._last and 0 <= now - self._told_at < 1.0:
            self._untold += 1
            return True
        self._last, self._told_at = text, now
        return False


def take_over(log: DaemonLog) -> None:
    """Redirect logging and warnings to this log; other libraries only from level warning."""
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(log)]
    root.setLevel(logging.WARNING)
    sys.excepthook = lambda kind, error, _: log(
        {"event": "uncaught exception", "level": "error", "error": f"{kind.__name__}: {error}"}
    )
