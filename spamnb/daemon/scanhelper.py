"""The scan helper: a process beside each worker that judges large messages, and may be killed.

No timeout of an event loop stops code that does not return; a signal does. The worker hands over
one message at a time (a line of JSON, then the bytes) and waits for a line; at the deadline the
helper is killed, and what it had in hand is poisonous. It is started when it is first needed.

Failure: every job is answered; what went wrong is {"reason": "overrun" | "busy" | "fault"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from spamnb.daemon.board import Board, Hand, State
from spamnb.daemon.children import Child, exit_words, spawn
from spamnb.daemon.following import begun
from spamnb.daemon.logs import Log
from spamnb.daemon.mapping import plan_of
from spamnb.daemon.start import Orders, Start
from spamnb.service.bench import Bench, Notes, judged_aside
from spamnb.settings import Settings
from spamnb.settings.showing import plain

ENTRY = "spamnb.daemon.scanhelper:main"
MOST_WAITING = 64
MOST_WAITING_BYTES = 64 << 20
_SHARE = 0.9
"""of the time for a scan: the answer must come before the front door gives up on it"""

Answered = Callable[[dict[str, Any]], None]


# --- in the helper ----------------------------------------------------------------------------


def main(start: Start, board: Board, orders: Orders) -> int:
    """Judge what comes until nobody sends any more."""
    settings, log = begun(start, f"scan {start.slot}")
    bench = Bench(plan_of(settings, Path(start.home)), hand=Hand(board, start.slot), log=log)
    bench.prepare()
    board.set_state(start.slot, State.READY)
    (fd,) = start.sockets["jobs"]
    with socket.socket(fileno=fd) as jobs, jobs.makefile("rwb") as stream:
        jobs.setblocking(True)
        while line := stream.readline():
            board.beat(start.slot)
            job = json.loads(line)
            answer = judged_aside(bench, stream.read(job["bytes"]), job["notes"])
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()
    bench.close()
    orders.close()
    return 0


# --- in the worker ----------------------------------------------------------------------------


class HelperLinks(NamedTuple):
    """What the worker's side works with."""

    start: Start
    """the worker's own"""
    board: Board
    log: Log
    loop: asyncio.AbstractEventLoop


class _Job(NamedTuple):
    raw: bytes
    notes: Notes
    done: Answered
    until: float


class Helper:
    """The worker's side; implements `scanning.Offload`."""

    def __init__(self, settings: Settings, links: HelperLinks, entry: str = ENTRY) -> None:
        self._settings = settings
        self._links = links
        self._entry = entry
        self._jobs: deque[_Job] = deque()
        self._bytes = 0
        self._current: _Job | None = None
        self._wire: _Wire | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stale = False
        self._dialling: asyncio.Task[None] | None = None

    def submit(self, raw: bytes, notes: Notes, done: Answered) -> None:
        """Have a message judged, by `bench.judged_aside`, before its time is over."""
        if len(self._jobs) >= MOST_WAITING or self._bytes + len(raw) > MOST_WAITING_BYTES:
            done({"reason": "busy"})
            return
        until = self._links.loop.time() + self._settings.timeouts.scan_s * _SHARE
        self._jobs.append(_Job(raw, notes, done, until))
        self._bytes += len(raw)
        self._next()

    def renew(self, settings: Settings) -> None:
        """Judge by other settings from the next message on."""
        self._settings = settings
        self._stale = True
        self._refresh()

    async def close(self) -> None:
        """Let the helper end; whoever waits is answered."""
        self._fail_all()
        # Not cancelled: uvloop's loop does not close any more after a connection that was.
        while self._dialling is not None:
            await asyncio.wait([self._dialling])
        if self._wire is not None:
            self._wire.end()

    # -- one after the other ----------------------------------------------------------------------

    def _next(self) -> None:
        """Give the next message to the helper, if it has none; start it if it is not there."""
        if self._current is not None or not self._jobs or self._dialling is not None:
            return
        self._refresh()
        if self._wire is None:
            self._dialling = self._links.loop.create_task(self._begin())
            return
        job = self._jobs.popleft()
        self._bytes -= len(job.raw)
        self._current = job
        left_s = job.until - self._links.loop.time()
        if left_s <= 0:
            self._answer({"reason": "busy"})
            return
        self._timer = self._links.loop.call_later(left_s, self._overrun)
        self._wire.send(job)

    def _refresh(self) -> None:
        if self._stale and self._current is None and self._dialling is None:
            wire, self._wire, self._stale = self._wire, None, False
            if wire is not None:
                wire.end()

    async def _begin(self) -> None:
        """Start the helper."""
        self._stale = False
        try:
            await self._connect(*socket.socketpair())
        except OSError as error:
            self._links.log({"event": "no scan helper", "level": "error", "error": str(error)})
            self._fail_all()
        finally:
            self._dialling = None
        self._next()

    async def _connect(self, ours: socket.socket, theirs: socket.socket) -> None:
        """Have it at the other end of a pair of sockets."""
        ours.setblocking(False)
        worker = self._links.start
        start = replace(
            worker,
            role="scan",
            entry=self._entry,
            slot=worker.scan_slot,
            parent=os.getpid(),
            settings=plain(self._settings),
            sockets={"jobs": [theirs.fileno()]},
        )
        child = None
        try:
            with theirs:
                child = spawn(start, self._links.board)
            _, self._wire = await self._links.loop.create_unix_connection(
                partial(_Wire, self, child), sock=ours
            )
        except OSError:
            ours.close()
            if child is not None:
                child.signal(signal.SIGKILL)
                child.buried()
            raise

    def _fail_all(self) -> None:
        jobs, self._jobs, self._bytes = list(self._jobs), deque(), 0
        for job in jobs:
            job.done({"reason": "fault"})

    def _answer(self, answer: dict[str, Any]) -> None:
        job, self._current = self._current, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if job is not None:
            job.done(answer)
        self._next()

    def _overrun(self) -> None:
        """The deadline: it is killed, and the message will not be judged again."""
        wire = self._wire
        if wire is not None:
            wire.child.signal(signal.SIGKILL)
            self.ended(wire, "overrun")

    # -- what the helper does ---------------------------------------------------------------------

    def answered(self, line: bytes) -> None:
        """It has judged."""
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"reason": "fault"}
        self._answer(answer)

    def ended(self, wire: _Wire, reason: str) -> None:
        """It is gone: by itself, by our hand, or because it had nothing more to do."""
        if wire.over:
            return
        wire.over = True
        wire.close()
        child, board = wire.child, self._links.board
        child.signal(signal.SIGKILL)
        code = child.buried()
        board.set_state(child.start.slot, State.DEAD)
        poison = board.poison_in_hand(child.start.slot)
        if self._wire is wire:
            self._wire = None
            if self._current is not None:
                board.meters(self._links.start.slot).count("restarts")
                self._links.log(
                    {"event": "scan helper died", "level": "error", "reason": reason}
                    | {"poisonous": [digest.hex() for digest in poison]}
                    | exit_words(code)
                )
                self._answer({"reason": reason})


class _Wire(asyncio.Protocol):
    """The connection to one helper process."""

    def __init__(self, helper: Helper, child: Child) -> None:
        self._helper = helper
        self.child = child
        self.over = False
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It listens."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """It answers."""
        self._held += data
        while (end := self._held.find(b"\n")) >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 1]
            self._helper.answered(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """It is gone."""
        self._helper.ended(self, "fault")

    def send(self, job: _Job) -> None:
        """Hand a message over."""
        if self._transport is not None and not self._transport.is_closing():
            head = json.dumps({"bytes": len(job.raw), "notes": job.notes}).encode() + b"\n"
            self._transport.write(head + job.raw)

    def end(self) -> None:
        """No more messages: it ends by itself, and is seen to."""
        self._helper.ended(self, "fault")

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            with suppress(RuntimeError):
                self._transport.abort()
