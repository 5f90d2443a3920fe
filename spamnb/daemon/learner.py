"""The learner: the only process that writes the model while a daemon serves it.

`ModelHolder` keeps the model open, `Follower` and `Answerer` are its threads for a fleet, and `run`
answers the control socket, learns the files of the spools and records heartbeats. With a missing or
damaged model it keeps running: requests get an error, and it retries to open the model.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from spamnb.console.webhook_state import read_standings
from spamnb.daemon.configure import load_names
from spamnb.daemon.shared import ProcessState, ProcessStatus, SharedState
from spamnb.daemon.supervisor import ChildChannel, Order, StartParams, start_child
from spamnb.engine.filter import Filter
from spamnb.engine.score_watch import ScoreWatch
from spamnb.errors import (
    FleetError,
    LogAwayError,
    SpamnbError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreMissingError,
    StoreReplacedError,
    UserError,
)
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.spool import Spool, SpoolFile, problem
from spamnb.fleet.outbox import OutboxState
from spamnb.fleet.pulse import Pulse
from spamnb.fleet.store import FleetStore
from spamnb.fleet.waiting import FleetCommitter, answer_next
from spamnb.imap.away import AwayMailboxes
from spamnb.operations import unscanned
from spamnb.operations.home import ModelConfig, model_options, open_service, read_clock
from spamnb.operations.request import Caller, Switch, login_of, user_id
from spamnb.operations.socket import ControlLimits, ControlServer, Roles
from spamnb.operations.status import Facts, check_home, is_open
from spamnb.operations.table import Administration
from spamnb.policy.actions import PersonNames
from spamnb.scan.access_lists import TRAPS_FOLDER
from spamnb.settings import Settings, restored
from spamnb.settings.persons import recipient_costs
from spamnb.settings.values import SpoolLimits
from spamnb.telemetry import Log, Meters, as_dict, incident, now_us

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LET_GO_S = 5.0
"""time for requests in progress when the model is replaced; clients wait at least ten seconds"""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LearnerConfig(ModelConfig):
    """Configuration of the learner."""

    control: ControlLimits = field(default_factory=ControlLimits)
    delegates: frozenset[int] = frozenset()
    """user ids that may act for other users"""
    spools: tuple[Path, ...] = ()
    """spool folders; empty: `spool` in the home, and the system's if the daemon's user owns it"""
    spool_limits: SpoolLimits = field(default_factory=SpoolLimits)


class _Held:
    """A feedback service, and the number of requests that use it."""

    def __init__(self, service: FeedbackService) -> None:
        self.service = service
        self.users = 0
        self.retired = False


class ModelHolder:
    """`AdminModel` of a daemon: holds the open model, or the error of opening it.

    Only the learner writes the model while a daemon serves it. A missing or damaged model stops
    training, not the process: requests get the error, and opening is retried with pauses that
    double. New settings create a new feedback service; the old one is closed after its last
    request.

    Failure: `service` raises the StoreError of the last attempt to open the model.
    """

    def __init__(self, config: LearnerConfig, meters: Meters) -> None:
        self.config = config
        self.fault = "not opened yet"
        self._meters = meters
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        """notified when a request no longer uses the model"""
        self._opening = threading.Lock()
        self._held: _Held | None = None
        self._error: StoreError = StoreBusyError("the model is not opened yet", hint="try again")
        self._due = 0.0
        self._pause_s = FIRST_PAUSE_S

    @property
    def review_queue(self) -> ReviewQueue:
        return self.config.review_queue

    @property
    def documents(self) -> bool:
        """True if the model is for plain text instead of mail; False while it is not open."""
        held = self._held
        return held is not None and held.service.documents

    @contextmanager
    def service(self) -> Iterator[FeedbackService]:
        """Yield the feedback service for one request; waits while the model is being opened."""
        if self._held is None:
            with self._opening:
                pass
        with self._lock:
            held = self._held
            if held is None:
                # A new exception per request: threads would share traceback and context.
                raise type(self._error)(str(self._error), hint=self._error.hint)
            held.users += 1
        try:
            yield held.service
        except (StoreDamagedError, StoreReplacedError) as error:
            self._drop(held, error)
            raise
        finally:
            self._leave(held)

    @contextmanager
    def reading(self) -> Iterator[Filter]:
        with self.service() as service:
            yield service.model

    def retry_open(self) -> None:
        """Try to open the model, if it is not open and the pause is over."""
        if self._held is None and time.monotonic() >= self._due:
            self.open()

    def open(self) -> None:
        """Try to open the model now."""
        with self._opening:
            if self._held is None:
                self._open()

    def _open(self) -> None:
        try:
            service = self._opened()
        except StoreError as error:
            self._failed(error)
            return
        with self._lock:
            self._held, self.fault, self._pause_s = _Held(service), "", FIRST_PAUSE_S

    def apply_settings(self, config: LearnerConfig) -> None:
        """Reopen the model with other settings; requests wait meanwhile."""
        with self._opening:
            with self._lock:
                old, self._held, self.config, self._due = self._held, None, config, 0.0
            self._retire(old)
            self._open()

    def replaced(self, replace: Callable[[], Result]) -> Result:
        """Run a function while the model is closed, then open it; other requests wait."""
        with self._opening:
            with self._lock:
                old, self._held, self._due = self._held, None, 0.0
                if old is not None and not self._left.wait_for(lambda: old.users == 0, LET_GO_S):
                    self._held = old
                    raise StoreBusyError("another request takes too long", hint="try again")
            self._retire(old)
            try:
                return replace()
            finally:
                self._open()

    def close(self) -> None:
        """Close the model, after the last request that uses it."""
        with self._lock:
            old, self._held = self._held, None
            self._error = StoreBusyError("the daemon is stopping", hint="try again later")
        self._retire(old)

    def _opened(self) -> FeedbackService:
        def warn(text: str) -> None:
            self.config.log({"event": "history", "level": "warning", "text": text})

        return open_service(self.config, warn, self._meters)

    def _failed(self, error: StoreError) -> None:
        """Log each fault once, and double the pause."""
        fault = f"{error}"
        if fault != self.fault:
            level = "warning" if isinstance(error, StoreMissingError) else "error"
            self.config.log({"event": "training is not possible", "level": level, "error": fault})
        with self._lock:
            self._error, self.fault = error, fault
            self._due = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _drop(self, held: _Held, error: StoreError) -> None:
        with self._lock:
            if self._held is held:
                self._held = None
        self._failed(error)
        self._retire(held)

    def _retire(self, held: _Held | None) -> None:
        if held is None:
            return
        with self._lock:
            held.retired = True
            last = held.users == 0
            held.users += last  # so that only this call closes it
        if last:
            self._close(held)

    def _leave(self, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            last = held.retired and held.users == 0
            self._left.notify_all()
        if last:
            self._close(held)

    def _close(self, held: _Held) -> None:
        try:
            held.service.model.close()
        except SpamnbError as error:
            self.config.log({"event": "model not closed", "level": "warning", "error": str(error)})


WAIT_S = 1.0
"""longest wait for a new entry or a question, before the thread sees that it has to stop"""
ASK_AGAIN_S = 5.0
"""pause between two attempts to ask other hosts"""


class _FleetThread(ABC):
    """A thread of a host in a fleet, which goes on after faults."""

    name: ClassVar[str]

    def __init__(self, holder: ModelHolder) -> None:
        self._holder = holder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._fault = ""

    def start(self) -> None:
        """Begin, if the host is in a fleet."""
        if self._holder.config.fleet is not None:
            self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """Stop after the current step; return False if that took too long."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause_s = WAIT_S
            try:
                pause_s = self._step()
                self._succeeded()
            except SpamnbError as error:
                if str(error) != self._fault:
                    self._log_fault(error)
                self._fault = str(error)
            except Exception as error:  # noqa: BLE001 - the thread must outlive a bug
                incident(self._holder.config.log, self.name, error)
            self._stop.wait(pause_s)

    @abstractmethod
    def _step(self) -> float:
        """Do what is due; return the pause until the next step."""

    def _succeeded(self) -> None:
        self._fault = ""

    @abstractmethod
    def _log_fault(self, error: SpamnbError) -> None:
        """Log a fault; repetitions are not logged."""


class Answerer(_FleetThread):
    """Answers the questions of other hosts."""

    name = "answerer"

    def _step(self) -> float:
        with self._holder.service() as service:
            store = service.model.store
            if not isinstance(store, FleetStore):
                return WAIT_S
            # The follower reports a log that is away.
            with suppress(LogAwayError):
                answer_next(store.member, service.model.history, WAIT_S)
                return 0.0
            return WAIT_S

    def _log_fault(self, error: SpamnbError) -> None:
        event = "a question of another host is not answered"
        self._holder.config.log({"event": event, "level": "warning", "error": str(error)})


class Follower(_FleetThread):
    """Keeps the model of this host at the head of the log.

    It waits for entries of other hosts and folds them. If the log of the fleet is away, or does not
    fit this host, it reports that once, and tries again.
    """

    name = "follower"

    def __init__(self, holder: ModelHolder) -> None:
        super().__init__(holder)
        self._folded = 0
        self._ask_due = 0.0
        self._pulse: Pulse | None = None
        self._host = ""
        self._is_copied = True
        """whether a replica of the server has the last append of this host"""
        self._current = time.monotonic()
        """when this host was last known to have all entries"""

    def facts(self) -> Facts:
        """Return what `status` tells of the fleet."""
        if self._holder.config.fleet is None:
            return {}
        lag_s = round(time.monotonic() - self._current, 1)
        facts = {"fault": self._fault, "lag_s": lag_s, "folded_entries": self._folded}
        facts["copied"] = self._is_copied
        hosts = self._pulse.hosts() if self._pulse else []
        shown = [one._asdict() | {"lives": one.lives} for one in hosts]
        return {"fleet": facts | self._waiting() | {"host": self._host, "hosts": shown}}

    def _waiting(self) -> Facts:
        """Return how much waits for the log."""
        state = OutboxState(0, 0, 0)
        with suppress(SpamnbError), self._holder.service() as service:
            committer = service.model.committer
            if isinstance(committer, FleetCommitter):
                state = committer.outbox.state()
        oldest_s = round(max(now_us() - state.oldest_us, 0) / 1e6) if state.waiting else 0
        return {"waiting": state.waiting, "waiting_bytes": state.bytes, "waiting_s": oldest_s}

    def _succeeded(self) -> None:
        if self._fault:
            self._holder.config.log({"event": "the fleet's log answers again"})
        super()._succeeded()

    def _step(self) -> float:
        """Fold what is new; return the pause until the next fold, which gathers entries."""
        with self._holder.service() as service:
            store = service.model.store
            if not isinstance(store, FleetStore):
                return WAIT_S
            committer = service.model.committer
            assert isinstance(committer, FleetCommitter), "the committer of a host in a fleet"
            self._beat(store, committer.outbox.state().waiting)
            self._folded += store.follow()
            self._current = time.monotonic()
            committer.learn_waiting()
            self._ask_again(service)
            self._tell_copied(store)
            return store.fold_s if store.wait(WAIT_S) else 0.0

    def _ask_again(self, service: FeedbackService) -> None:
        """Ask other hosts about the corrections that wait for their answers."""
        if time.monotonic() < self._ask_due:
            return
        self._ask_due = time.monotonic() + ASK_AGAIN_S
        for answer in service.ask_again():
            if answer.state == "refused":
                event = "waiting correction refused"
                self._holder.config.log(
                    {"event": event, "level": "warning", "error": answer.reason}
                )

    def _tell_copied(self, store: FleetStore) -> None:
        """Log if `fleet.durable` demands a replica, and none has the last append."""
        if self._is_copied and not store.is_copied:
            error = (
                "no replica of the server of the fleet's log has confirmed this host's last entry"
            )
            hint = "check the replication of the server"
            event = "the fleet needs attention"
            self._holder.config.log(
                {"event": event, "level": "warning", "error": error, "hint": hint}
            )
        self._is_copied = store.is_copied

    def _beat(self, store: FleetStore, waiting: int) -> None:
        if self._pulse is None or self._pulse.store is not store:
            config = self._holder.config
            self._pulse = Pulse(config.home, store, config.log)
        self._host = store.host
        self._pulse.beat(waiting)

    def _log_fault(self, error: SpamnbError) -> None:
        event = "the fleet's log is not followed"
        self._holder.config.log(
            {"event": event, "level": "warning", "error": str(error), "hint": error.hint}
        )


class LearnerState:
    """`AdminDaemon`: the shared state of the processes, and the spools."""

    def __init__(
        self,
        holder: ModelHolder,
        shared: SharedState,
        spools: Sequence[Spool],
        follower: Follower,
        parent: int = 0,
    ) -> None:
        self._holder = holder
        self._shared = shared
        self._spools = spools
        self._follower = follower
        self._parent = parent
        self._away = AwayMailboxes(holder.config.home)

    def facts(self) -> Facts:
        shared = self._shared
        reads = any(one.role == "imap" for one in shared.statuses())
        return {
            "up_s": round(shared.up_s, 1),
            "processes": [
                _process(one) for one in shared.statuses() if one.state != ProcessState.EMPTY
            ],
            "counters": as_dict(shared.total()),
            "bypass": shared.is_on("bypass"),
            "live": shared.is_on("live"),
            "lately": unscanned.facts_of(shared.lately) | {"alarm": shared.alarm},
            "spool": {
                "waiting": sum(spool.waiting() for spool in self._spools),
                "set_aside": sum(spool.set_aside for spool in self._spools),
            },
            "moves_failed": sum(spool.failed() for spool in self._spools),
            "mailboxes_away": [one._asdict() for one in self._away.found() if reads],
            "webhooks": read_standings(self._holder.config.home),
            "spool_problems": self._spool_problems(),
        } | self._follower.facts()

    def meters(self) -> Meters:
        return self._shared.total()

    def set_switch(self, switch: Switch, *, on: bool) -> None:
        self._shared.turn(switch, on=on)

    def reread_settings(self) -> None:
        if self._parent:
            os.kill(self._parent, signal.SIGHUP)

    def _spool_problems(self) -> list[str]:
        """Return why feedback cannot be written to the spools, or not read from them."""
        config = self._holder.config
        outside = [one for one in self._spools if not one.folder.is_relative_to(config.home)]
        found = [str(error) for one in outside if (error := problem(one.folder))]
        if config.delegates and not outside and not is_open(config.home):
            found.append(
                "serve.delegates is set, but delegates cannot reach a spool:"
                " set feedback.spool, or create /var/spool/spamnb"
            )
        return found


def _process(process: ProcessStatus) -> dict[str, object]:
    return {
        "role": process.role,
        "slot": process.slot,
        "state": process.state.name.lower(),
        "pid": process.pid,
        "starts": process.starts,
        "up_s": round(process.up_s, 1),
        "beat_age_s": round(process.beat_age_s, 1),
        "open": process.open_sessions,
    }


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


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    settings, log = start_child(start, "learner")

    config = learning_of(settings, Path(start.home), log)

    def reloaded(order: Order) -> LearnerConfig:
        nonlocal config
        new = restored(order.settings, order.positions)
        log.apply_settings(new.log)
        config = learning_of(new, Path(start.home), log, config.persons)
        return config

    (listener,) = start.sockets["control"]
    sockets = LearnerSockets(
        socket.socket(fileno=listener), shared, start.slot, channel, reloaded, start.parent
    )
    return run(config, sockets)


def learning_of(
    settings: Settings, home: Path, log: Log, before: PersonNames | None = None
) -> LearnerConfig:
    """Return the configuration of the learner."""
    feedback = settings.feedback
    persons = load_names(settings, log, before)
    return LearnerConfig(
        **model_options(settings, home),
        log=log,
        persons=persons,
        recipient_costs=recipient_costs(settings, persons),
        delegates=uids_of(settings.serve.delegates, log),
        spools=(Path(feedback.spool),) if feedback.spool else (),
        spool_limits=settings.spool._replace(file_bytes=feedback.limit_bytes),
    )
