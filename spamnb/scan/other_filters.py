"""Ask another filter, and note what it says.

Ask rspamd, SpamAssassin's spamd or bogofilter for a verdict on one message.

    ask = asker_of("rspamd:127.0.0.1:11333")       spamd:HOST:PORT, spamd:unix:PATH,
    mark = ask(raw)                                bogofilter, bogofilter:DIR

Blocking, with a deadline for each message, for use in threads and commands. The other filter gets
the bytes of the message, but not the envelope. It is a program of the administrator, so its replies
are trusted, but their size is limited. Failure: PeerError; UserError for an unknown filter.

Ask another filter about a share of the scanned messages, and keep its verdicts.

    shadow = Shadow(ask, ShadowOptions(share), file, run_in_thread=..., log=...)
    shadow.offer(raw, facts)         after the client has its result

Mail never waits for it: a message is asked about in another thread, after its result. A message is
left out if too many are being asked about, or too many were in this second. The signature, which no
sender can guess, decides which messages are in the share. There is a file for each day, with one
JSON object a line; its size and the number of files are limited.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from spamnb.errors import PeerError, SpamnbError, UserError
from spamnb.mail.other_filters import (
    RSPAMD_ACTIONS,
    FilterMark,
    mark_of_text,
    names_of_tests,
    read_mark,
)
from spamnb.net.address import Address
from spamnb.net.clients import connected
from spamnb.scan.judge import attempt
from spamnb.telemetry import Log, incident

Ask = Callable[[bytes], FilterMark | None]

ASK_S: Final = 10.0
MOST_REPLY: Final = 1 << 20
_PIECE: Final = 65_536
_SPAMD = re.compile(
    rb"SPAMD/[\d.]+ 0 [^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*?"
    rb"Spam: (?P<word>True|False) ; (?P<score>-?\d+(?:\.\d+)?) / (?P<required>-?\d+(?:\.\d+)?)\r?\n"
    rb"(?:[^\r\n]+\r?\n)*\r?\n(?P<tests>[^\r\n]*)",
    re.IGNORECASE,
)


def asker_of(text: str) -> Ask:
    """A function that asks the filter with this name."""
    kind, _, place = text.partition(":")
    if kind not in ASKERS:
        raise UserError(f"{kind!r} cannot be asked", hint=f"one of {', '.join(ASKERS)}")
    try:
        return ASKERS[kind](place)
    except ValueError as error:
        raise UserError(f"{text}: {error}", hint=f"write {kind}:HOST:PORT") from error


# -- bogofilter -----------------------------------------------------------------------------------


def _bogofilter(place: str) -> Ask:
    folder = ["-d", place] if place else []
    return partial(_ask_bogofilter, ["bogofilter", "-v", *folder])


def _ask_bogofilter(command: list[str], raw: bytes) -> FilterMark | None:
    message = raw.replace(b"\r\n", b"\n")
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program
            command, input=message, capture_output=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"bogofilter did not answer: {error}") from error
    if done.returncode not in (0, 1, 2):
        text = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise PeerError(f"bogofilter failed: {text}")
    return read_mark(done.stdout[:_PIECE], other="bogofilter")


# -- spamd ----------------------------------------------------------------------------------------


def _spamd(place: str) -> Ask:
    return partial(_ask_spamd, Address.parse(place))


def _ask_spamd(address: Address, raw: bytes) -> FilterMark | None:
    head = b"SYMBOLS SPAMC/1.2\r\nContent-length: %d\r\n\r\n" % len(raw)
    deadline = time.monotonic() + ASK_S
    with connected(address, deadline) as peer:
        try:
            peer.settimeout(ASK_S)
            peer.sendall(head + raw)
            reply = _received(peer, deadline)
        except OSError as error:
            raise PeerError(f"spamd at {address} did not answer: {error}") from error
    found = _SPAMD.match(reply)
    if found is None:
        raise PeerError(f"spamd at {address} gave no verdict")
    return FilterMark(
        "spam" if found["word"].lower() == b"true" else "ham",
        float(found["score"]),
        float(found["required"]),
        names_of_tests(found["tests"].decode("ascii", "replace").split(",")),
    )


def _received(peer: socket.socket, deadline: float) -> bytes:
    """All that the peer sends until it closes the connection."""
    reply = bytearray()
    while len(reply) < MOST_REPLY:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        peer.settimeout(left)
        piece = peer.recv(_PIECE)
        if not piece:
            break
        reply += piece
    return bytes(reply)


# -- rspamd ---------------------------------------------------------------------------------------


def _rspamd(place: str) -> Ask:
    return partial(_ask_rspamd, Address.parse(place))


def _ask_rspamd(address: Address, raw: bytes) -> FilterMark | None:
    asked = http.client.HTTPConnection("localhost", timeout=ASK_S)
    asked.sock = connected(address, time.monotonic() + ASK_S)
    try:
        asked.request("POST", "/checkv2", raw)
        reply = json.loads(asked.getresponse().read(MOST_REPLY))
        action, tests = str(reply["action"]), [str(name) for name in reply.get("symbols", ())]
        score, required = float(reply["score"]), float(reply["required_score"])
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as error:
        raise PeerError(f"rspamd at {address} gave no verdict: {error!r}") from error
    finally:
        asked.close()
    verdict = RSPAMD_ACTIONS.get(action)
    if verdict is None:
        return None
    return FilterMark(verdict, score, required, names_of_tests(tests))


ASKERS: Final[Mapping[str, Callable[[str], Ask]]] = {
    "bogofilter": _bogofilter,
    "spamd": _spamd,
    "rspamd": _rspamd,
}


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
