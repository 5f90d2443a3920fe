"""The learner: the only process that writes the model while a daemon serves it.

It answers the control socket, learns the files of the spools, and records heartbeats. With a
missing or damaged model it keeps running: requests get an error, and it retries to open the model.
On SIGTERM, or when its supervisor is gone, it accepts no more requests, finishes the current ones
and closes the store.

The public function is `run`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from spamnb.daemon.processes.channel import ChildChannel, Order
from spamnb.daemon.processes.shared_state import ProcessState, SharedState
from spamnb.daemon.roles.follower import Answerer, Follower
from spamnb.daemon.roles.learner_state import LearnerState
from spamnb.daemon.roles.model_holder import LearnerConfig, ModelHolder
from spamnb.endpoints.control.server import ControlServer, Roles
from spamnb.errors import (
    FleetError,
    LogAwayError,
    SpamnbError,
    StoreBusyError,
    StoreError,
    UserError,
)
from spamnb.service.admin.model_config import read_clock
from spamnb.service.admin.operations import Administration
from spamnb.service.admin.request import Caller, login_of, user_id
from spamnb.service.engine.clock import now_us
from spamnb.service.engine.score_watch import ScoreWatch
from spamnb.service.feedback.service import FeedbackService
from spamnb.service.feedback.spool import Spool, SpoolFile
from spamnb.service.scanning.spamtraps import TRAPS_FOLDER
from spamnb.service.telemetry.log import Log, incident
from spamnb.service.telemetry.status import check_home

SYSTEM_SPOOL = Path("/var/spool/spamnb")
"""spool of the shipped units: mail programs cannot access a home"""
TURN_S = 1.0
"""interval of heartbeats"""
LOOK_S = 0.25
"""pause after a pass over empty spools"""
CLOCK_S = 60.0
"""interval of clock checks"""
COUNT_S = 30.0
"""interval of counts of scores: some milliseconds for the newest 1,000 verdicts"""
END_S = 20.0
"""time for running requests after a stop signal"""
STUCK_S = 900.0
"""While a request takes longer than this, there are no heartbeats. The longest regular requests,
imports and expiries of millions of features, take minutes."""


class LearnerSockets(NamedTuple):
    """Sockets and shared state from the supervisor."""

    listener: socket.socket
    """the control socket, listening"""
    shared: SharedState
    slot: int
    channel: ChildChannel | None = None
    """messages of the supervisor; the learner stops at its end"""
    reloaded: Callable[[Order], LearnerConfig] | None = None
    """converts the settings of a reload message"""
    parent: int = 0
    """process that rereads the settings on SIGHUP"""


def uids_of(names: Iterable[str], log: Log) -> frozenset[int]:
    """Return the ids of users given by name or number; unknown users are logged."""
    found = set()
    for name in names:
        uid = user_id(name)
        if uid is None:
            log({"event": "unknown user in serve.delegates", "level": "warning", "user": name})
        else:
            found.add(uid)
    return frozenset(found)


def run(learning: LearnerConfig, sockets: LearnerSockets) -> int:
    """Serve until told to stop; return 0 if all requests were finished."""
    return _LearnerRun(learning, sockets).run()


class _LearnerRun:
    def __init__(self, learning: LearnerConfig, sockets: LearnerSockets) -> None:
        self._sockets = sockets
        self._holder = ModelHolder(learning, sockets.shared.meters(sockets.slot))
        self._spools = [Spool(folder, learning.spool_limits) for folder in _spools(learning)]
        traps = learning.home / TRAPS_FOLDER
        self._spools.append(Spool(traps, learning.spool_limits, private=True))
        self._follower, self._answerer = Follower(self._holder), Answerer(self._holder)
        state = LearnerState(
            self._holder, sockets.shared, self._spools, self._follower, sockets.parent
        )
        self._administration = Administration(self._holder, state)
        self._server = ControlServer(
            sockets.listener, self._administration, self._roles, learning.control, learning.log
        )
        self._maintenance = _Maintenance(self._holder, self._spools, self._taken)
        self._stop = False

    def run(self) -> int:
        """Serve until told to stop."""
        shared, slot = self._sockets.shared, self._sockets.slot
        with _Wakeups(child=self._sockets.channel is not None) as wakeups:
            self._holder.open()
            self._server.start()
            self._maintenance.start()
            self._follower.start()
            self._answerer.start()
            shared.set_state(slot, ProcessState.READY)
            while not (self._stop or wakeups.stop):
                self._beat()
                self._wait(wakeups)
            shared.set_state(slot, ProcessState.LEAVING)
            parts = self._server, self._maintenance, self._follower, self._answerer
            stopped = [part.stop(END_S) for part in parts]
            self._administration.close()
        self._holder.close()
        return 0 if all(stopped) else 1

    def _beat(self) -> None:
        """Record a heartbeat, unless a request or the maintenance hangs."""
        if max(self._server.busy_s(), self._maintenance.busy_s()) < STUCK_S:
            self._sockets.shared.beat(self._sockets.slot)
        self._sockets.shared.set_open(self._sockets.slot, self._server.connections)

    def _wait(self, wakeups: _Wakeups) -> None:
        """Wait for the next turn, a signal, or a message of the supervisor."""
        poll = select.poll()
        poll.register(wakeups.fileno(), select.POLLIN)
        channel = self._sockets.channel
        if channel is not None:
            poll.register(channel.fileno(), select.POLLIN)
        ready = dict(poll.poll(TURN_S * 1000))
        wakeups.clear()
        if channel is not None and channel.fileno() in ready:
            self._receive(channel)

    def _receive(self, channel: ChildChannel) -> None:
        order = channel.next()
        if order is None:
            self._stop = True
        elif order.what == "reload" and self._sockets.reloaded is not None:
            learning = self._sockets.reloaded(order)
            for spool in self._spools:
                spool.limits = learning.spool_limits
            self._holder.apply_settings(learning)
            learning.log({"event": "settings reloaded"})

    def _taken(self, left: SpoolFile) -> None:
        """Learn a file of a spool, in the name of its owner."""
        roles = self._roles()
        author = roles.caller(left.uid) if left.private else self._author(left.uid)
        try:
            self._administration.teach_spooled(left, author)
        except UserError as error:
            self._holder.config.log(
                {"event": "spool file refused", "level": "warning", "uid": left.uid}
                | {"error": str(error)}
            )

    def _author(self, uid: int) -> Caller:
        """Give a file's owner the role of a delegate or a user; a file never has the role admin."""
        delegate = uid in self._holder.config.delegates
        return Caller(uid, "delegate" if delegate else "self", login_of(uid))

    def _roles(self) -> Roles:
        return Roles(os.geteuid(), self._holder.config.delegates)


def _spools(learning: LearnerConfig) -> tuple[Path, ...]:
    """Return the spools to empty; the system's only if it belongs to the daemon's user."""
    if learning.spools:
        return learning.spools
    with suppress(OSError):
        if SYSTEM_SPOOL.stat().st_uid == os.geteuid():
            return (learning.home / "spool", SYSTEM_SPOOL)
    return (learning.home / "spool",)


class _Maintenance:
    """Retries to open the model, empties the spools and counts scores, in its own thread.

    All of these may block.
    """

    def __init__(
        self, holder: ModelHolder, spools: Sequence[Spool], take: Callable[[SpoolFile], None]
    ) -> None:
        self._holder = holder
        self._spools = spools
        self._take = take
        self._stop = threading.Event()
        self._began = self._clock_due = self._count_due = 0.0
        self._watch: tuple[FeedbackService | None, ScoreWatch] = None, ScoreWatch()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._logged = ""

    def start(self) -> None:
        for spool in (self._spools[0], self._spools[-1]):
            with suppress(StoreError):
                spool.make()
        self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """Stop after the current file; return False if that took too long."""
        self._stop.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def busy_s(self) -> float:
        """Return the duration of the current step."""
        return time.monotonic() - self._began if self._began else 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            self._began = time.monotonic()
            done = 0
            try:
                self._holder.retry_open()
                check_home(self._holder.config.home)
                self._read_clock()
                self._count_scores()
                done = self._drain()
                self._logged = ""
            except SpamnbError as error:
                if str(error) != self._logged and not self._holder.fault:
                    self._holder.config.log(
                        {"event": "spool not readable", "level": "warning", "error": str(error)}
                    )
                self._logged = str(error)
            except Exception as error:  # noqa: BLE001 - one file must not stop the spool
                incident(self._holder.config.log, "spool", error)
            self._began = 0.0
            if not (done or any(spool.busy for spool in self._spools)):
                self._stop.wait(LOOK_S)

    def _read_clock(self) -> None:
        """Record the clock regularly, so that a jump is detected early."""
        if time.monotonic() >= self._clock_due:
            with self._holder.service() as service:
                read_clock(self._holder.config, service.model)
            self._clock_due = time.monotonic() + CLOCK_S

    def _count_scores(self) -> None:
        """Count the scores of the verdicts that have settled; they set the threshold of junk."""
        if time.monotonic() < self._count_due:
            return
        self._count_due = time.monotonic() + COUNT_S
        with self._holder.service() as service:
            if self._watch[0] is not service:
                self._watch = service, ScoreWatch()
            try:
                change = self._watch[1].look(service.model, now_us())
            except (LogAwayError, FleetError):
                return  # the follower logs this, and the next look counts the same
        if change is not None:
            self._holder.config.log(
                {"event": "junk threshold changed", "before": change.before, "after": change.after}
                | ({"level": "warning"} if change.is_jump else {})
            )

    def _drain(self) -> int:
        """Learn the files of all spools; return their number."""
        with self._holder.service() as service:
            labels = service.model.labels
        done = sum(spool.drain(labels, self._one) for spool in self._spools)
        if done:
            self._holder.config.log({"event": "spool files learnt or refused", "files": done})
        return done

    def _one(self, left: SpoolFile) -> None:
        if self._stop.is_set():
            raise StoreBusyError("the daemon is stopping")
        self._began = time.monotonic()
        self._take(left)


class _Wakeups:
    """A descriptor that becomes readable when a signal arrives."""

    def __init__(self, *, child: bool) -> None:
        self.stop = False
        self._child = child
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._read, 4096)

    def __enter__(self) -> Self:
        ways: dict[signal.Signals, Any] = {signal.SIGTERM: self._ended, signal.SIGINT: self._ended}
        if self._child:
            # Ctrl-C reaches the whole process group; only the supervisor may stop a child.
            ways[signal.SIGINT] = signal.SIG_IGN
        self._before = {number: signal.signal(number, way) for number, way in ways.items()}
        self._fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _ended(self, *_: object) -> None:
        self.stop = True
