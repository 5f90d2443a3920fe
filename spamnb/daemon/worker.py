"""The processes that scan.

A `Worker` is one event loop with the endpoints of its listeners (`WorkerListeners`) and their
scanners (`ScannerFactory`). It scans small messages itself; large ones go to the scan processes of
its `ScanPool`, which can be killed at their time limit. Failure: an error affects one session only;
a worker that dies is restarted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from spamnb.daemon.configure import (
    WorkerShare,
    load_names,
    milter_params_of,
    next_hop_of,
    plan_of,
    policy_of,
    relay_params_of,
    scanner_params_of,
)
from spamnb.daemon.logs import DaemonLog
from spamnb.daemon.sender_check import SenderCheck
from spamnb.daemon.shared import FeedWriter, InFlightGuard, ProcessState, SharedState
from spamnb.daemon.start import BACKLOG, listeners_of, workers_of
from spamnb.daemon.supervisor import (
    Backoff,
    Child,
    ChildChannel,
    ChildContext,
    ChildLoop,
    ChildRole,
    StartParams,
    exit_words,
    run_role,
    spawn,
    start_child,
)
from spamnb.errors import SpamnbError
from spamnb.mail.envelope import network_of
from spamnb.milter.session import MilterListener
from spamnb.net.server import ConnectionCounts, MemoryBudget
from spamnb.operations.protocol import ask_once
from spamnb.policy.actions import PersonNames
from spamnb.scan.access_lists import TRAPS_FOLDER, AccessLists, RuleFiles, Traps
from spamnb.scan.judge import ModelSession, scan_to_json
from spamnb.scan.other_filters import asker_of
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.scanner import FairQueue, Scanner, ScannerDeps
from spamnb.scan.shadow import Shadow, ShadowDeps
from spamnb.scan.values import Notes
from spamnb.scanner.session import AskLearner, ScannerListener
from spamnb.settings import Settings
from spamnb.settings.render import plain
from spamnb.settings.schema import ListenerProtocol, ListenerSettings
from spamnb.smtp.relay import RelayListener
from spamnb.telemetry import Log, Meters, incident, lower_priority


class Endpoint(Protocol):
    """One listener of a worker."""

    def protocol(self) -> asyncio.BaseProtocol:
        """Make the protocol of a new connection."""

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""

    def apply_settings(self, params: Any, scanner: Scanner) -> None:
        """Take new settings; each session applies them between two messages."""

    async def drain(self, seconds: float) -> None:
        """Refuse new messages; let current ones finish for up to `seconds`, then abort them."""


class EndpointDeps(NamedTuple):
    """What the endpoints of a worker share."""

    meters: Meters
    log: Log
    budget: MemoryBudget
    loop: asyncio.AbstractEventLoop
    counts: ConnectionCounts
    ask: AskLearner
    """asks the learner for an administrative operation; for use in threads"""


class EndpointKind(NamedTuple):
    """How a listener with one protocol is made."""

    params: Callable[[Settings, ListenerSettings, WorkerShare], Any]
    make: Callable[[Any, Scanner, EndpointDeps], Endpoint]


def _relay(params: Any, scanner: Scanner, deps: EndpointDeps) -> Endpoint:
    meters, log, budget, loop, counts, _ = deps
    return RelayListener(
        params, scanner, meters=meters, log=log, budget=budget, loop=loop, counts=counts
    )


def _milter(params: Any, scanner: Scanner, deps: EndpointDeps) -> Endpoint:
    meters, log, budget, loop, _, _ = deps
    return MilterListener(params, scanner, meters=meters, log=log, budget=budget, loop=loop)


def _scanner(params: Any, scanner: Scanner, deps: EndpointDeps) -> Endpoint:
    meters, log, budget, loop, _, ask = deps
    return ScannerListener(
        params, scanner, meters=meters, log=log, budget=budget, loop=loop, ask=ask
    )


ENDPOINTS: Final[dict[ListenerProtocol, EndpointKind]] = {
    "smtp": EndpointKind(relay_params_of, _relay),
    "milter": EndpointKind(milter_params_of, _milter),
    "scanner": EndpointKind(scanner_params_of, _scanner),
}


ENTRY = "spamnb.daemon.worker:scan_main"
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


def scan_main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Scan messages until the worker closes the connection.

    A timeout of an event loop cannot stop code that does not return; a signal can. The worker sends
    one message at a time (a line of JSON, then the bytes) and gets a line of JSON. The process
    first reports that it is ready, so its start does not count in a message's time.
    """
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
    log: DaemonLog
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


SHARE = 0.9
"""share of the configured time limits: the answer must come before the relay's own limit"""
S_PER_BYTE = 1e-6
"""estimated cost of a message until its scan time is known, for the fair order of clients"""

Answered = Callable[[dict[str, Any]], None]


class ScanPool:
    """Implements `scanning.Offload`.

    All workers together have as many scan processes as the machine has cores, and each worker at
    least one. One pool for all workers would use the cores better when one worker has all the large
    mail, but would need a central process; its crash would stop all scans.

    A message waits in the queue until a process is ready, in an order that is fair to the clients.
    Its time limit starts when it leaves the queue. If its scan cannot start in time, it is answered
    `busy`; it is not recorded as a known crasher.

    The queue has no own limit: each message in it belongs to a session that waits for its reply,
    counts in the worker's memory budget (above it the relay stops reading), and leaves the queue
    when its session ends.

    Failure: every job is answered; a fault is {"reason": ...}: `overrun`, `busy`, `known_crasher`
    (it ended two processes), or `fault` (no process can be started, or its answer cannot be read).
    """

    def __init__(self, settings: Settings, links: ScanProcessDeps, entry: str = ENTRY) -> None:
        self._settings = settings
        self._loop = links.loop
        self._queue: FairQueue[ScanJob] = FairQueue()
        self._waiting: dict[ScanJob, None] = {}
        self._helpers = [ScanProcess(links, slot, entry, self) for slot in links.start.scan_slots]
        self._is_closed = False

    def submit(
        self, raw: bytes, notes: Notes, done: Answered, recipients: Sequence[str] = ()
    ) -> Callable[[], None]:
        """Have a message scanned by `scan_to_json`; the returned callable cancels it."""
        times, now = self._settings.timeouts, self._loop.time()
        job = ScanJob(
            raw=raw,
            notes=notes,
            recipients=recipients,
            done=done,
            client=network_of(notes.get("client", "")),
            begin_by=now + times.scan_start_s * SHARE,
            end_by=now + times.scan_total_s * SHARE,
            limit_s=times.scan_s * SHARE,
        )
        self._wait(job, self._queue.put)
        self.feed()
        return partial(self._take_back, job)

    def apply_settings(self, settings: Settings) -> None:
        """Use other settings from the next message on."""
        self._settings = settings
        for helper in self._helpers:
            helper.apply_settings()

    async def close(self) -> None:
        """Stop the scan processes; answer all waiting jobs."""
        self._is_closed = True
        for job in list(self._waiting):
            self._late(job)
        await asyncio.gather(*(helper.close() for helper in self._helpers))

    # -- the queue --------------------------------------------------------------------------------

    def _wait(self, job: ScanJob, put: Callable[[str, ScanJob], None]) -> None:
        put(job.client, job)
        self._waiting[job] = None
        job.timer = self._loop.call_at(job.begin_by, self._late, job)

    def _leave(self, job: ScanJob) -> None:
        """Remove a job from the waiting ones."""
        del self._waiting[job]
        if job.timer is not None:
            job.timer.cancel()

    def _late(self, job: ScanJob) -> None:
        """Answer a job that did not start in time: all processes were busy, or none can start."""
        self._take_back(job)
        failing = all(helper.is_failing for helper in self._helpers)
        job.done({"reason": "fault" if failing else "busy"})

    def _take_back(self, job: ScanJob) -> None:
        if job in self._waiting:
            self._queue.remove(job.client, job)
            self._leave(job)

    def feed(self) -> None:
        """Assign waiting jobs to ready processes; start more processes for the rest."""
        for helper in self._helpers:
            if self._queue and helper.is_ready:
                job = self._queue.take()
                self._leave(job)
                self._queue.charge(job.client, len(job.raw) * S_PER_BYTE)
                helper.begin(job)
        missing = len(self._queue) - sum(helper.is_starting for helper in self._helpers)
        for helper in self._helpers:
            if missing > 0 and not self._is_closed and helper.start(self._settings):
                missing -= 1

    def answered(self, job: ScanJob, answer: dict[str, Any], seconds: float) -> None:
        """Report the result of a job."""
        self._queue.charge(job.client, max(0.0, seconds - len(job.raw) * S_PER_BYTE))
        job.done(answer)
        self.feed()

    def again(self, job: ScanJob) -> None:
        """Put a job back at the head of its client's queue."""
        if self._is_closed:
            job.done({"reason": "busy"})
        else:
            self._wait(job, self._queue.put_back)
            self.feed()


_LAST_SCANS_S = 60.0
"""until the old model session is closed: longer than any of its scans"""


class ScannerFactoryDeps(NamedTuple):
    """Dependencies of a scanner factory."""

    start: StartParams
    shared: SharedState
    log: DaemonLog
    loop: asyncio.AbstractEventLoop


class ScannerFactory:
    """Creates the scanners of one worker.

    New settings create a new set; messages being scanned finish with the old one. Must not know
    connections. Failure: an access list that cannot be read is logged, and the old one stays.
    """

    def __init__(self, settings: Settings, deps: ScannerFactoryDeps) -> None:
        self._deps = deps
        self._pool = ScanPool(
            settings, ScanProcessDeps(deps.start, deps.shared, deps.log, deps.loop)
        )
        self._rules = AccessLists()
        self._persons: PersonNames | None = None
        self._shadow: Shadow | None = None
        self._session = self._new_session(settings)
        self._settings = settings
        self._senders = self._new_check(settings)
        self._closing: asyncio.Task[None] | None = None
        """the end of the check by earlier settings: the loop has only a weak reference"""
        self._load(settings)

    def _new_check(self, settings: Settings) -> SenderCheck:
        check = SenderCheck(settings.auth, self._deps.log)
        check.begin()
        return check

    def scanner_for(self, name: str, listener: ListenerSettings) -> Scanner:
        """Return the scanner of a listener."""
        deps = self._scanner_deps(next_hop_of(listener, self._deps.start.delivery))
        return Scanner(self._session, policy_of(self._settings, listener, name), deps)

    def apply_settings(self, settings: Settings) -> None:
        """Use other settings; `scanner_for` then returns new scanners."""
        old, old_settings = self._session, self._settings
        self._session, self._settings = self._new_session(settings), settings
        self._deps.loop.call_later(_LAST_SCANS_S, old.close)
        self._pool.apply_settings(settings)
        if settings.auth != old_settings.auth:
            self._closing = self._deps.loop.create_task(self._senders.close())
            self._senders = self._new_check(settings)
        self._load(settings)

    async def close(self) -> None:
        """Stop the scan processes and the check of senders, and close the model."""
        await self._pool.close()
        await self._senders.close()
        self._session.close()

    def _new_session(self, settings: Settings) -> ModelSession:
        start = self._deps.start
        register = InFlightGuard(self._deps.shared, start.slot)
        self._persons = load_names(settings, self._deps.log, self._persons)
        plan = plan_of(settings, Path(start.home), self._persons)
        model_session = ModelSession(plan, crash_register=register, log=self._deps.log)
        model_session.prepare()
        return model_session

    def _load(self, settings: Settings) -> None:
        """Make the shadow, and read the access lists; if one cannot be read, the old ones stay."""
        trial, home = settings.trial, Path(self._deps.start.home)
        self._shadow = None
        if trial.ask:
            shadow_deps = ShadowDeps(asker_of(trial.ask), self._run_in_thread, self._deps.log)
            self._shadow = Shadow(home, trial.share, shadow_deps)
        try:
            self._rules = AccessLists.load(RuleFiles(settings.rules.allow, settings.rules.block))
        except SpamnbError as error:
            self._deps.log(
                {"event": "access lists not reloaded", "level": "error", "error": str(error)}
                | {"hint": error.hint}
            )

    def _scanner_deps(self, upstream: str) -> ScannerDeps:
        deps, traps = self._deps, self._settings.feedback.traps
        return ScannerDeps(
            rules=self._rules,
            quarantine=Quarantine(
                Path(deps.start.home) / "quarantine",
                self._settings.quarantine,
                upstream=upstream,
                log=deps.log,
            ),
            offload=self._pool,
            shadow=self._shadow,
            senders=self._senders,
            traps=Traps(traps, Path(deps.start.home) / TRAPS_FOLDER) if traps else None,
            bypassed=partial(deps.shared.is_on, "bypass"),
            live=partial(deps.shared.is_on, "live"),
            call_soon=deps.loop.call_soon,
            run_in_thread=self._run_in_thread,
            meters=deps.shared.meters(deps.start.slot),
            log=deps.log,
        )

    def _run_in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `work`, which must not raise, in another thread."""
        future = self._deps.loop.run_in_executor(None, work)
        future.add_done_callback(lambda done: then(done.result()))


_KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""The supervisor removes the file of a unix socket; other workers may still listen there."""
EMPTY_S = 2.0
"""how long waiting connections are still accepted at the end"""


@dataclass(slots=True, eq=False)
class _ServedListener:
    name: str
    settings: ListenerSettings
    endpoint: Endpoint
    sockets: list[socket.socket]
    servers: list[asyncio.AbstractServer] = field(default_factory=list)
    ends_at: float = math.inf
    """when a removed listener is forgotten at the latest, by the loop's clock"""

    async def listen(self) -> None:
        loop, made = asyncio.get_running_loop(), self.endpoint.protocol
        for one in self.sockets:
            if one.family == socket.AF_UNIX:
                server = await loop.create_unix_server(
                    made, sock=one, backlog=BACKLOG, **_KEEP_FILE
                )
            else:
                server = await loop.create_server(made, sock=one, backlog=BACKLOG)
            self.servers.append(server)

    def stop_listening(self) -> None:
        while self.servers:
            self.servers.pop().close()


class WorkerListeners:
    """All listeners of a worker.

    A listener that was removed, or has moved to another address, accepts the connections that wait
    at its sockets, stops listening, and serves its open connections until they end, or
    `serve.drain_s` is over, with the last settings of its section. Not thread-safe.
    """

    def __init__(
        self,
        scanners: ScannerFactory,
        deps: EndpointDeps,
        share_of: Callable[[Settings, int], WorkerShare],
        log_of: Callable[[str, Log], Log],
    ) -> None:
        self._scanners, self._deps, self._share_of = scanners, deps, share_of
        self._log_of = log_of
        self._served: dict[str, _ServedListener] = {}
        self._ended: list[_ServedListener] = []
        self._changing = asyncio.Lock()

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""
        return sum(one.endpoint.open_sessions for one in self._all())

    async def apply_settings(self, settings: Settings, sockets: Mapping[str, list[int]]) -> None:
        """Serve the listeners of these settings; `sockets` has those of new and moved ones."""
        async with self._changing:
            listeners = listeners_of(settings)
            gone = [name for name in self._served if name in sockets or name not in listeners]
            ended = [self._served.pop(name) for name in gone]
            for one in ended:
                one.ends_at = asyncio.get_running_loop().time() + settings.serve.drain_s
            self._ended += ended
            share = self._share_of(settings, len(listeners))
            for name, one in self._served.items():
                one.settings = listeners[name]
            for one in self._all():
                params = ENDPOINTS[one.settings.protocol].params(settings, one.settings, share)
                one.endpoint.apply_settings(
                    params, self._scanners.scanner_for(one.name, one.settings)
                )
            for name, fds in sockets.items():
                await self._serve(name, fds, settings, share)
            await self._stop_listening(ended)

    async def leave(self, drain_s: float) -> None:
        """Stop listening, and finish open sessions."""
        async with self._changing:
            await self._stop_listening(self._served.values())
        await asyncio.gather(*(one.endpoint.drain(drain_s) for one in self._all()))

    async def forget_ended(self) -> None:
        """Forget removed listeners without open sessions; after `serve.drain_s` all of them."""
        if self._changing.locked():
            return
        now = asyncio.get_running_loop().time()
        done = [one for one in self._ended if now >= one.ends_at or not one.endpoint.open_sessions]
        self._ended = [one for one in self._ended if one not in done]
        for one in done:
            await one.endpoint.drain(0.0)

    def _all(self) -> list[_ServedListener]:
        return [*self._served.values(), *self._ended]

    async def _serve(
        self, name: str, fds: list[int], settings: Settings, share: WorkerShare
    ) -> None:
        listener = listeners_of(settings)[name]
        kind = ENDPOINTS[listener.protocol]
        scanner = self._scanners.scanner_for(name, listener)
        deps = self._deps._replace(log=self._log_of(name, self._deps.log))
        endpoint = kind.make(kind.params(settings, listener, share), scanner, deps)
        one = _ServedListener(name, listener, endpoint, [socket.socket(fileno=fd) for fd in fds])
        self._served[name] = one
        await one.listen()

    async def _stop_listening(self, listeners: Iterable[_ServedListener]) -> None:
        """Accept waiting connections at sockets that no listener keeps, then stop listening."""
        listeners = list(listeners)
        kept = {
            _inode(one) for served in self._served.values() for one in served.sockets
            if served not in listeners
        }  # fmt: skip
        left = [one for served in listeners for one in served.sockets if _inode(one) not in kept]
        await _accept_waiting(left)
        for served in listeners:
            served.stop_listening()


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


async def _accept_waiting(sockets: list[socket.socket]) -> None:
    """Let the loop accept the waiting connections, for a limited time."""
    loop, poll = asyncio.get_running_loop(), select.poll()
    until = loop.time() + EMPTY_S
    for one in sockets:
        poll.register(one, select.POLLIN)
    # The kernel has no event for an empty queue.
    while sockets and poll.poll(0) and loop.time() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


BEAT_S = 1.0


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    return run_role(Worker, f"worker {start.slot}", start, shared, channel)


class Worker(ChildRole):
    """The endpoints of all listeners in one event loop.

    It listens on the sockets of its slot. The supervisor keeps them open, so that the next process
    in the slot serves the connections that wait there. On SIGTERM, or when the supervisor is gone,
    it accepts the waiting connections, finishes open sessions and exits. Failure: an error affects
    one session only; a worker that dies is restarted.
    """

    def __init__(self, context: ChildContext) -> None:
        super().__init__(context)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, settings: Settings) -> None:
        """Serve until told to stop."""
        loop, slot = asyncio.get_running_loop(), self._start.slot
        child_loop = ChildLoop(self._orders, self._log)
        scanners = ScannerFactory(settings, self._scanner_deps(loop))
        deps = EndpointDeps(
            meters=self._shared.meters(slot),
            log=self._log,
            budget=MemoryBudget(settings.limits.memory_bytes, settings.limits.reserved),
            loop=loop,
            counts=self._shared.counts(slot),
            ask=partial(ask_once, self._start.control),
        )
        listeners = WorkerListeners(scanners, deps, self._share_of, self._log_of())
        await listeners.apply_settings(settings, self._start.sockets)
        child_loop.follow(partial(self._apply_settings, child_loop.stop, scanners, listeners))
        self._beat(listeners)
        self._shared.set_state(slot, ProcessState.READY)
        gc.collect()
        gc.freeze()
        await child_loop.stop.wait()
        self._shared.set_state(slot, ProcessState.LEAVING)
        await listeners.leave(settings.serve.drain_s)
        await scanners.close()

    def _scanner_deps(self, loop: asyncio.AbstractEventLoop) -> ScannerFactoryDeps:
        return ScannerFactoryDeps(self._start, self._shared, self._log, loop)

    def _log_of(self) -> Callable[[str, Log], Log]:
        """Return what makes the log of a listener: with a console it writes the verdict feed."""
        start = self._start
        if start.feed_fd < 0:
            return lambda _, log: log
        return FeedWriter(start.feed_fd, start.feed_ring).log_of

    def _share_of(self, settings: Settings, listeners: int) -> WorkerShare:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        home = Path(self._start.home)
        return WorkerShare(self._start.delivery, workers_of(settings), listeners, descriptors, home)

    def _beat(self, listeners: WorkerListeners) -> None:
        self._shared.beat(self._start.slot)
        self._shared.set_open(self._start.slot, listeners.open_sessions)
        self._run(listeners.forget_ended())
        asyncio.get_running_loop().call_later(BEAT_S, self._beat, listeners)

    def _apply_settings(
        self,
        stop: asyncio.Event,
        scanners: ScannerFactory,
        listeners: WorkerListeners,
        settings: Settings,
        sockets: dict[str, list[int]],
    ) -> None:
        """Take new settings; if that fails, the process ends, and the next one uses them."""

        async def apply() -> None:
            try:
                await listeners.apply_settings(settings, sockets)
            except Exception as error:  # noqa: BLE001 - the boundary of a task
                incident(self._log, "reload", error)
                stop.set()

        scanners.apply_settings(settings)
        self._run(apply())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
