"""Ask another filter about a share of the scanned messages, and keep its verdicts.

    shadow = Shadow(ask, ShadowOptions(share), file, run_in_thread=..., log=...)
    shadow.offer(raw, facts)         after the client has its result

Mail never waits for it: a message is asked about in another thread, after its result. A message is
left out if too many are being asked about, or too many were in this second. The signature, which no
sender can guess, decides which messages are in the share. There is a file for each day, with one
JSON object a line; its size and the number of files are limited.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from spamnb.errors import SpamnbError
from spamnb.mail.other_filters import (
    FilterMark,
    mark_of_text,
)
from spamnb.scan.judge import attempt
from spamnb.telemetry import Log, incident

Ask = Callable[[bytes], FilterMark | None]


ASKED_FOLDER: Final = "trial"
MOST_BYTES: Final = 4 << 20
"""of one day: some 30,000 verdicts"""
KEPT_DAYS: Final = 30
MOST_A_SECOND: Final = 10
MOST_AT_ONCE: Final = 2
_PAUSE_S: Final = 60.0
"""after a failure: an absent filter is not asked about each message"""


class AskedVerdict(NamedTuple):
    """What the other filter said, and how long both filters took."""

    mark: FilterMark
    own_ms: float
    other_ms: float


class ShadowDeps(NamedTuple):
    """What a shadow works with."""

    ask: Ask
    """asks the other filter; it may block, and raise"""
    run_in_thread: Callable[[Callable[[], Any], Callable[[Any], None]], None]
    log: Log
    clock: Callable[[], float] = time.monotonic


class Shadow:
    """Another filter that gets copies of messages. Made for one process."""

    def __init__(self, home: Path, share: float, deps: ShadowDeps) -> None:
        self._folder = home / ASKED_FOLDER
        self._limit = int(share * (1 << 64))
        self._deps = deps
        self._open = 0
        self._second, self._asked = 0, 0
        self._next_try = 0.0

    def offer(self, raw: bytes, facts: Mapping[str, object]) -> None:
        """Ask about a scanned message if it is in the share, and there is room."""
        signature = str(facts.get("signature", ""))
        if not signature or not self._is_chosen(signature) or not self._has_room():
            return
        self._open += 1
        own_ms = float(str(facts.get("scan_ms", 0.0)))
        work = partial(attempt, partial(self._ask, raw, signature, own_ms))
        self._deps.run_in_thread(work, self._asked_one)

    def _is_chosen(self, signature: str) -> bool:
        drawn = blake2b(signature.encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < self._limit

    def _has_room(self) -> bool:
        now = self._deps.clock()
        if int(now) != self._second:
            self._second, self._asked = int(now), 0
        if self._open >= MOST_AT_ONCE or self._asked >= MOST_A_SECOND or now < self._next_try:
            return False
        self._asked += 1
        return True

    def _ask(self, raw: bytes, signature: str, own_ms: float) -> None:
        began = time.perf_counter()
        mark = self._deps.ask(raw)
        other_ms = round((time.perf_counter() - began) * 1000, 3)
        if mark is not None:
            row = {"signature": signature, "other": mark.text(),
                   "own_ms": own_ms, "other_ms": other_ms}  # fmt: skip
            _append(self._folder, json.dumps(row))

    def _asked_one(self, error: Exception | None) -> None:
        self._open -= 1
        if error is not None:
            self._next_try = self._deps.clock() + _PAUSE_S
            if isinstance(error, SpamnbError):
                self._deps.log({"event": "trial", "level": "warning", "error": str(error)})
            else:
                incident(self._deps.log, "trial", error)


def _append(folder: Path, line: str) -> None:
    """Append a line to the file of the day in one write: lines of several processes do not mix."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / time.strftime("asked-%Y%m%d.jsonl", time.gmtime())
    if not path.exists():
        for old in _files(folder)[: -(KEPT_DAYS - 1)]:
            old.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(handle).st_size < MOST_BYTES:
            os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


def _files(folder: Path) -> list[Path]:
    """The files of all days, the oldest first."""
    return sorted(folder.glob("asked-*.jsonl"))


def read_asked(home: Path) -> dict[str, AskedVerdict]:
    """The verdicts by signature; lines that cannot be read are skipped."""
    found: dict[str, AskedVerdict] = {}
    for path in _files(home / ASKED_FOLDER):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                _take(found, line)
    return found


def _take(found: dict[str, AskedVerdict], line: str) -> None:
    try:
        row = json.loads(line)
        mark = mark_of_text(row["other"])
        if mark is not None:
            times = float(row["own_ms"]), float(row["other_ms"])
            found[str(row["signature"])] = AskedVerdict(mark, *times)
    except (ValueError, TypeError, KeyError):
        return
