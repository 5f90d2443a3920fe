"""A scan process: scans large messages for a worker, and can be killed at its time limit.

A timeout of an event loop cannot stop code that does not return; a signal can. The worker sends one
message at a time (a line of JSON, then the bytes) and gets a line of JSON. The process first
reports that it is ready, so its start does not count in a message's time. `scan_pool` has the
queue.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from spamnb.daemon.configure import plan_of
from spamnb.daemon.person_names import load_names
from spamnb.daemon.processes.channel import ChildChannel, StartParams
from spamnb.daemon.processes.child import Backoff, Child, exit_words, spawn
from spamnb.daemon.processes.child_loop import start_child
from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import InFlightGuard, ProcessState, SharedState
from spamnb.service.interpreter import lower_priority
from spamnb.service.scanning.model_session import ModelSession, scan_to_json
from spamnb.service.scanning.types import Notes
from spamnb.settings import Settings
from spamnb.settings.render import plain

ENTRY = "spamnb.daemon.roles.scan_process:main"
START_S = 60.0
"""time limit of a start: opening a store after a power cut reads all of it"""
NICE = 5
"""nice value of a scan process: the workers, which handle all mail, come first"""
FAILURES = 3
"""consecutive failed starts that count as a lasting fault"""
DEATHS = 2
"""processes that a message must crash to become a known crasher: one may have been killed by the
kernel when memory was short, or by an administrator"""


# --- in the scan process ------------------------------------------------------------------------


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Scan messages until the worker closes the connection."""
    lower_priority(NICE)
    settings, log = start_child(start, f"scan {start.slot}")
    model_session = ModelSession(
        plan_of(settings, Path(start.home), load_names(settings, log)),
        crash_register=InFlightGuard(shared, start.slot),
        log=log,
    )
    model_session.prepare()
    shared.set_state(start.slot, ProcessState.READY)
    (fd,) = start.sockets["jobs"]
    with socket.socket(fileno=fd) as jobs, jobs.makefile("rwb") as stream:
        jobs.setblocking(True)
        _say(stream, {"ready": True})
        while line := stream.readline():
            shared.beat(start.slot)
            job = json.loads(line)
            raw = stream.read(job["bytes"])
            _say(stream, scan_to_json(model_session, raw, job["notes"], job["recipients"]))
    model_session.close()
    channel.close()
    return 0


def _say(stream: Any, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value).encode() + b"\n")
    stream.flush()


# --- in the worker ----------------------------------------------------------------------------


class ScanProcessDeps(NamedTuple):
    """Dependencies of the worker's side."""

    start: StartParams
    """the worker's start parameters"""
    shared: SharedState
    log: Log
    loop: asyncio.AbstractEventLoop


@dataclass(slots=True, eq=False)
class ScanJob:
    """A message to scan."""

    raw: bytes
    notes: Notes
    recipients: Sequence[str]
    done: Callable[[dict[str, Any]], None]
    client: str
    begin_by: float
    """latest start of its scan, on the loop's clock"""
    end_by: float
    """latest end of its scan, on the loop's clock"""
    limit_s: float
    """limit of the time that the process spends on it"""
    deaths: int = 0
    """processes that ended while they scanned it"""
    timer: asyncio.TimerHandle | None = None


class JobObserver(Protocol):
    """Callbacks of a scan process."""

    def feed(self) -> None:
        """A process became ready, or may be started again."""

    def answered(self, job: ScanJob, answer: dict[str, Any], seconds: float) -> None:
        """A job is done, after this many seconds."""

    def again(self, job: ScanJob) -> None:
        """A process ended, but not because of this job."""


class ScanProcess:
    """The worker's side of one scan process."""

    def __init__(self, links: ScanProcessDeps, slot: int, entry: str, pool: JobObserver) -> None:
        self._links = links
        self._slot = slot
        self._entry = entry
        self._pool = pool
        self._backoff = Backoff()
        self._dialling: asyncio.Task[None] | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wire: _JobConnection | None = None
        self._ready = self._stale = False
        self._job: ScanJob | None = None
        self._began = self._starved = 0.0

    @property
    def is_ready(self) -> bool:
        """True if it can start a message now."""
        return self._ready and self._job is None and not self._stale

    @property
    def is_starting(self) -> bool:
        """True if its process is not ready yet."""
        return not self._ready and (self._wire is not None or self._dialling is not None)

    @property
    def is_failing(self) -> bool:
        """True if its last processes ended before they were ready, or could not be started."""
        return self._backoff.failures >= FAILURES

    # -- its process ------------------------------------------------------------------------------

    def start(self, settings: Settings) -> bool:
        """Start a process; False if there is one, or the pause after a failure is not over."""
        if self._wire is not None or self._dialling is not None or self._rest is not None:
            return False
        self._dialling = self._links.loop.create_task(self._start(settings))
        return True

    def apply_settings(self) -> None:
        """Use a new process, with the new settings, for the next message."""
        self._stale = True
        if self._job is None:
            self._let_go()

    def _let_go(self) -> None:
        """Stop a process with old settings; waiting messages go to another one."""
        if self._wire is not None:
            self._wire.end()
            self._pool.feed()

    async def close(self) -> None:
        """Stop the process."""
        # Not cancelled: after a cancelled connection uvloop's loop cannot be closed.
        while self._dialling is not None:
            await asyncio.wait([self._dialling])
        for timer in (self._rest, self._timer):
            if timer is not None:
                timer.cancel()
        self._stale = True
        self._answer({"reason": "busy"})
        if self._wire is not None:
            self._wire.end()

    async def _start(self, settings: Settings) -> None:
        self._stale = False
        try:
            await self._connect(settings, *socket.socketpair())
        except OSError as error:
            self._links.log(
                {"event": "scan process cannot be started", "level": "error", "error": str(error)}
            )
            self._failed(0.0)
        finally:
            self._dialling = None
        if self._stale:
            self._let_go()

    async def _connect(
        self, settings: Settings, own: socket.socket, child_end: socket.socket
    ) -> None:
        """Start the process and connect to it by a socket pair."""
        own.setblocking(False)
        start = replace(
            self._links.start,
            role="scan",
            entry=self._entry,
            slot=self._slot,
            parent=os.getpid(),
            settings=plain(settings),
            sockets={"jobs": [child_end.fileno()]},
        )
        child = None
        try:
            with child_end:
                child = spawn(start, self._links.shared)
            self._timer = self._links.loop.call_later(START_S, self._kill)
            _, self._wire = await self._links.loop.create_unix_connection(
                partial(_JobConnection, self, child), sock=own
            )
        except OSError:
            own.close()
            if child is not None:
                child.signal(signal.SIGKILL)
                child.buried()
            raise

    def _failed(self, age_s: float) -> None:
        """Pause before the next try."""
        self._rest = self._links.loop.call_later(self._backoff.after(age_s), self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._pool.feed()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- its message ------------------------------------------------------------------------------

    def begin(self, job: ScanJob) -> None:
        """Send a message to the process; its time limit starts."""
        wire = self._wire
        assert wire is not None
        self._job = job
        self._began, self._starved = self._links.loop.time(), starved_s(wire.child.pid)
        self._timer = self._links.loop.call_at(
            min(self._began + job.limit_s, job.end_by), self._look
        )
        wire.send(job)

    def _look(self) -> None:
        """At the time limit, kill the process unless it spent the time waiting for a core."""
        job, wire, loop = self._job, self._wire, self._links.loop
        assert job is not None
        assert wire is not None
        now = loop.time()
        left_s = job.limit_s - self._own_s(wire)
        if left_s > 0 and now < job.end_by:
            self._timer = loop.call_later(min(left_s, job.end_by - now) + 0.01, self._look)
            return
        is_crasher = left_s <= 0 and bool(self._links.shared.in_flight(self._slot))
        self._end(wire, "overrun" if is_crasher else "busy", is_crasher=is_crasher)

    def _own_s(self, wire: _JobConnection) -> float:
        """Return the time that the process has spent on the message."""
        waited_s = starved_s(wire.child.pid) - self._starved
        return self._links.loop.time() - self._began - waited_s

    # -- what the process does --------------------------------------------------------------------

    def received(self, line: bytes) -> None:
        """Handle a line of the process: ready, or a result."""
        self._stop_timer()
        if not self._ready:
            self._ready, self._backoff.failures = True, 0
            self._pool.feed()
            return
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"reason": "fault"}
        self._answer(answer)
        if self._stale and self._job is None:
            self._let_go()

    def _answer(self, answer: dict[str, Any]) -> None:
        job, self._job = self._job, None
        if job is not None:
            self._pool.answered(job, answer, self._links.loop.time() - self._began)

    def _kill(self) -> None:
        """Stop a process that does not become ready."""
        if self._wire is not None:
            self._wire.end()

    def ended(self, wire: _JobConnection) -> None:
        """Handle the end of the process."""
        job = self._job
        held = job is not None and bool(self._links.shared.in_flight(self._slot))
        if job is not None and held:
            job.deaths += 1
        is_crasher = held and job is not None and job.deaths >= DEATHS
        self._end(wire, "known_crasher" if is_crasher else "fault", is_crasher=is_crasher)

    def _end(self, wire: _JobConnection, reason: str, *, is_crasher: bool) -> None:
        """Reap the process; a message that crashed it becomes a known crasher."""
        if wire.over:
            return
        wire.over = True
        wire.close()
        self._stop_timer()
        child, shared, was_ready = wire.child, self._links.shared, self._ready
        child.signal(signal.SIGKILL)
        code = child.buried()
        shared.set_state(self._slot, ProcessState.DEAD)
        known_crasher = shared.mark_crashers(self._slot) if is_crasher else []
        shared.release(self._slot)
        self._wire, self._ready = None, False
        if not was_ready and not self._stale:
            self._failed(child.age_s)
        job = self._job
        if job is None and (was_ready or self._stale):
            return
        shared.meters(self._links.start.slot).count("restarts")
        self._links.log(
            {"event": "scan process died", "level": "error", "reason": reason}
            | {"known_crashers": [digest.hex() for digest in known_crasher]}
            | exit_words(code)
        )
        if job is not None and reason == "fault" and not is_crasher:
            self._job = None
            self._pool.again(job)
        else:
            self._answer({"reason": reason})


def starved_s(pid: int) -> float:
    """Return how long a process has waited for a core; 0 on systems without this number."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class _JobConnection(asyncio.Protocol):
    """The connection to one scan process."""

    def __init__(self, helper: ScanProcess, child: Child) -> None:
        self._helper = helper
        self.child = child
        self.over = False
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass complete lines on."""
        self._held += data
        while not self.over and (end := self._held.find(b"\n")) >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 1]
            self._helper.received(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Report the end of the process."""
        self._helper.ended(self)

    def send(self, job: ScanJob) -> None:
        if self._transport is not None and not self._transport.is_closing():
            about = {"bytes": len(job.raw), "notes": job.notes, "recipients": job.recipients}
            head = json.dumps(about).encode() + b"\n"
            self._transport.write(head)
            self._transport.write(job.raw)

    def end(self) -> None:
        self._helper.ended(self)

    def close(self) -> None:
        if self._transport is not None:
            with suppress(RuntimeError):
                self._transport.abort()
