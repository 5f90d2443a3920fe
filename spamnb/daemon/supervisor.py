"""Supervise the processes of the daemon: start them, restart those that end, stop all in order.

`Supervisor` has the children, `SupervisorChannel` and `ChildChannel` are the two ends of the
channel to each, and `Notifier` tells systemd. Must not know what the roles do. Failure: BugError if
a process cannot be started at all; everything else is logged and retried.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Protocol

from spamnb.daemon.logs import DaemonLog, take_over
from spamnb.daemon.shared import ProcessState, SharedState, monotonic_us
from spamnb.errors import BugError, SpamnbError
from spamnb.operations.request import SWITCHES, is_on
from spamnb.operations.unscanned import WINDOW_S, RecentUnscanned, facts_of, too_many
from spamnb.scan.access_lists import AccessLists, RuleFiles
from spamnb.settings import Settings, restored
from spamnb.settings.render import merge_reloadable, plain
from spamnb.telemetry import Meters, lower_priority, package_environment

MOST_BYTES = 1 << 20
"""maximum size of one datagram; settings take about 10 KB"""
MOST_FDS = 253
"""maximum number of descriptors that the kernel passes with one message (SCM_MAX_FD)"""


@dataclass(frozen=True, slots=True)
class StartParams:
    """Start parameters of a child process."""

    role: str
    entry: str
    """"module:function", called with this value, the shared state and the channel"""
    slot: int
    shared_fd: int
    home: str
    parent: int
    """process id of the parent"""
    settings: dict[str, Any] = field(default_factory=dict)
    """plain values, as `spamnb.settings.plain` writes them"""
    settings_file: str = ""
    """the file that the settings are from; empty if there is none"""
    positions: dict[str, str] = field(default_factory=dict)
    """where each setting was found"""
    sockets: dict[str, list[int]] = field(default_factory=dict)
    """name of a listener -> descriptors of its listening sockets; `control` is the learner's"""
    control: str = ""
    """path of the control socket, for processes that train through it"""
    delivery: str = ""
    """address of the delivery agent, for listeners with the agent as upstream"""
    feed_fd: int = -1
    """the newest verdicts: see `shared.FeedWriter`; -1 without a console"""
    feed_ring: int = 0
    """the ring of a worker"""
    scan_slots: list[int] = field(default_factory=list)
    """slots of a worker's scan processes"""


@dataclass(frozen=True, slots=True)
class Order:
    """A message to a running child."""

    what: Literal["reload"]
    settings: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)
    sockets: dict[str, list[int]] = field(default_factory=dict)
    """name of a listener that is new or has moved -> descriptors of its listening sockets, which
    are passed with the message"""


class ChildChannel:
    """The child's end.

    A child stops on SIGTERM, and when its supervisor is gone.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def start(self) -> StartParams:
        """Wait for the start parameters."""
        message, _ = self._receive()
        if message is None:
            raise BugError("the supervisor ended before it sent the start parameters")
        return StartParams(**message)

    def next(self) -> Order | None:
        """Return the next order; None at the end. Blocks unless the descriptor is ready."""
        message, fds = self._receive()
        if message is None:
            return None
        order, passed = Order(**message), iter(fds)
        own = {name: [next(passed) for _ in theirs] for name, theirs in order.sockets.items()}
        return replace(order, sockets=own)

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MOST_BYTES, MOST_FDS)
        except ConnectionError:
            return None, []
        return (dict(json.loads(data)) if data else None), fds


class SupervisorChannel:
    """The supervisor's end.

    Each child inherits one end of a socket pair. The first datagram is its `StartParams`, later
    ones are `Order` messages; end of file means that the supervisor is gone. With datagrams
    (SOCK_SEQPACKET) a message arrives whole or not at all, and a child that does not read cannot
    block the supervisor. Values are JSON, so they cannot contain code.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        self._ours.setblocking(False)
        self.child_fd = self._theirs.fileno()

    def child_has_it(self) -> None:
        """Close the child's end in this process, so that the death of the child is noticed."""
        self._theirs.close()

    def leave_to_child(self) -> int:
        """In a fork of this process: return the child's end, which this value then forgets."""
        return self._theirs.detach()

    def tell(self, value: StartParams | Order) -> bool:
        """Send a message; False if the child does not read any more."""
        # A child inherits the descriptors in its start parameters; those of an order are sent.
        fds = value.sockets.values() if isinstance(value, Order) else ()
        passed = [fd for many in fds for fd in many]
        try:
            socket.send_fds(self._ours, [json.dumps(asdict(value)).encode()], passed)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._ours.close()


_SUPERVISOR_ONLY = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC",
           "WATCHDOG_PID")  # fmt: skip
"""variables of the service manager that are meant for the supervisor"""


class Process(Protocol):
    """A child process of this one, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def wait(self) -> int: ...


class ForkedProcess:
    """A fork of this process that has not been waited for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@dataclass(slots=True, eq=False)
class Child:
    """A started process."""

    start: StartParams
    line: SupervisorChannel
    process: Process
    pidfd: int
    since_s: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.since_s

    def tell(self, order: Order) -> bool:
        """Send it an order; False if it does not read."""
        return self.line.tell(order)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def buried(self) -> int:
        """Reap it and close its descriptors; return its exit code (negative: the signal)."""
        code = self.process.wait()
        os.close(self.pidfd)
        self.line.close()
        return code


Begin = Callable[[StartParams, SupervisorChannel, list[int]], Process]
"""starts a process that has these descriptors"""


def spawn(start: StartParams, shared: SharedState) -> Child:
    """Start a child in a new interpreter: it has nothing that the memory of this process has."""
    return _begun(start, shared, _interpreter)


def fork(start: StartParams, shared: SharedState) -> Child:
    """Start a child as a fork of this process, which must have no other thread.

    It shares the memory of modules with this process, and is ready after .02 s of processor time
    instead of .65 (docs/decisions/0086).
    """
    return _begun(start, shared, _forked)


def _begun(start: StartParams, shared: SharedState, begin: Begin) -> Child:
    """Start a child and send it its parameters."""
    line = SupervisorChannel()
    fds = [line.child_fd, shared.fd, *(fd for fds in start.sockets.values() for fd in fds)]
    fds += [start.feed_fd] if start.feed_fd >= 0 else []
    shared.begin(start.slot)
    try:
        process = begin(start, line, fds)
    except OSError:
        line.close()
        raise
    finally:
        line.child_has_it()
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        line.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
        raise
    shared.set_pid(start.slot, process.pid)
    line.tell(start)
    return Child(start, line, process, pidfd)


def _interpreter(start: StartParams, line: SupervisorChannel, fds: list[int]) -> Process:
    return subprocess.Popen(  # noqa: S603 - this interpreter and this package
        [sys.executable, "-P", "-m", "spamnb.daemon", start.role, str(line.child_fd)],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        env=package_environment(_SUPERVISOR_ONLY),
        cwd="/",
        process_group=0,
    )


def _forked(start: StartParams, line: SupervisorChannel, fds: list[int]) -> Process:
    # Until the child has its own handlers, a signal would reach those of the supervisor's loop.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_fork(start.role, line, fds, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ForkedProcess(pid)


def _run_fork(role: str, line: SupervisorChannel, fds: list[int], mask: Iterable[int]) -> NoReturn:
    """Run a role in a fork; nothing of the supervisor runs in it, neither now nor at its end."""
    status = 1
    try:
        asyncio._set_running_loop(None)  # noqa: SLF001 - documented for implementers of loops
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.chdir("/")
        _close_others(fds)
        for name in _SUPERVISOR_ONLY:
            os.environ.pop(name, None)
        _show(f"spamnb.daemon\0{role}")
        status = run_child(line.leave_to_child(), mask)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the end of a process
        sys.excepthook(*sys.exc_info())
    finally:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _close_others(fds: Iterable[int]) -> None:
    """Close all descriptors but these and those of the output; nothing can be read on input."""
    kept = sorted({0, 1, 2, *fds})
    for before, after in pairwise((*kept, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(before + 1, after)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _show(title: str) -> None:
    """Let `ps` show a title in place of the supervisor's command line, where the system lets it."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARGUMENTS]), int(fields[_ARGUMENTS + 1])
        if start:
            ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"),
                           end - start)  # fmt: skip


_ARGUMENTS = 45
"""number of the field `arg_start` behind the name of the program (proc(5), /proc/PID/stat)"""
_NICE = {"console": 18}
"""Roles with less priority than the mail: a thread at nice 18 gets 18 parts of processor time for
1,024 of one at nice 0. A flood of requests keeps two threads busy, which cost the mail 3.4 %; at
nice 15 they took 6.2 (scripts/bench/console_flood)."""
_PR_SET_PDEATHSIG = 1


def run_child(fd: int, mask: Iterable[int] = ()) -> int:
    """Receive the start parameters on a descriptor and run the role; return the exit status.

    Then only the signals of `mask` are blocked.
    """
    # Ctrl-C reaches the terminal's whole process group; only the supervisor may stop a child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    channel = ChildChannel(fd)
    start = channel.start()
    _die_with_parent(start.parent)
    if start.role in _NICE:
        lower_priority(_NICE[start.role])
    shared = SharedState(start.shared_fd)
    shared.beat(start.slot)
    module, _, name = start.entry.partition(":")
    return int(getattr(import_module(module), name)(start, shared, channel))


def _die_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent ends, or now if it has ended."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prctl(option: int, value: int) -> None:
    """Set an option of this process, where the system has them (prctl(2))."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def bury_orphans(own: Container[int]) -> None:
    """Reap processes that have ended, except the children `own`.

    As the first process of a container, the supervisor inherits the children of killed processes.
    """
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, ended)) and found.si_pid not in own:
            os.waitpid(found.si_pid, os.WNOHANG)


class Backoff:
    """Pause before a process is restarted: doubles each time it ends soon after its start."""

    FIRST_S = 0.1
    LONGEST_S = 10.0
    OLD_S = 60.0
    """a process of this age did not fail at its start"""

    def __init__(self) -> None:
        self.failures = 0

    def after(self, age_s: float) -> float:
        """Return the pause after an end at this age."""
        self.failures = 1 if age_s >= self.OLD_S else self.failures + 1
        if self.failures == 1:
            return 0.0
        return float(min(self.FIRST_S * 2.0 ** (self.failures - 2), self.LONGEST_S))


def exit_words(code: int) -> dict[str, object]:
    """Return the exit code or signal, for the log."""
    if code >= 0:
        return {"code": code}
    with suppress(ValueError):
        return {"signal": signal.Signals(-code).name}
    return {"signal": -code}


LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Apply = Callable[[Settings, dict[str, list[int]]], None]
"""takes new settings, and the descriptors of listeners that are new or have moved"""


def start_child(start: StartParams, name: str) -> tuple[Settings, DaemonLog]:
    """Return a child's settings and its log, which also receives the logging of libraries."""
    settings = restored(start.settings, start.positions)
    log = DaemonLog(settings.log, name)
    take_over(log)
    return settings, log


def loop_factory(settings: Settings) -> LoopFactory | None:
    """Return what makes the event loop of a child: uvloop if it is wanted and installed."""
    if settings.serve.uvloop:
        with suppress(ImportError):
            made: LoopFactory = import_module("uvloop").new_event_loop
            return made
    return None


class ChildContext(NamedTuple):
    """What a child process gets from its supervisor, and its log."""

    start: StartParams
    shared: SharedState
    channel: ChildChannel
    log: DaemonLog


class ChildRole(ABC):
    """What a child process with an event loop does."""

    def __init__(self, context: ChildContext) -> None:
        self._start, self._shared, self._orders, self._log = context

    @abstractmethod
    async def run(self, settings: Settings) -> None:
        """Serve until told to stop."""


def run_role(
    role: type[ChildRole], name: str, start: StartParams, shared: SharedState, channel: ChildChannel
) -> int:
    """Run a role in an event loop; returns the exit status of the process."""
    settings, log = start_child(start, name)
    try:
        with asyncio.Runner(loop_factory=loop_factory(settings)) as runner:
            context = ChildContext(start, shared, channel, log)
            runner.run(role(context).run(settings))
    except SpamnbError as error:
        log({"event": "process cannot start", "level": "error", "error": str(error)}
            | {"hint": error.hint})  # fmt: skip
        return error.exit_code
    return 0


class ChildLoop:
    """Connects a child's event loop to its supervisor. Create it within the running loop."""

    def __init__(self, channel: ChildChannel, log: DaemonLog) -> None:
        self._orders = channel
        self._log = log
        self.stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop.set)

    def follow(self, apply_settings: Apply) -> None:
        """Call `apply_settings` with reloaded settings; the log already uses them."""
        asyncio.get_running_loop().add_reader(self._orders.fileno(), self._receive, apply_settings)

    async def turns(self, period_s: float) -> AsyncIterator[None]:
        """Yield at once, and then every `period_s` seconds, until told to stop."""
        while not self.stop.is_set():
            yield
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), period_s)

    def _receive(self, apply_settings: Apply) -> None:
        order = self._orders.next()
        if order is None:
            asyncio.get_running_loop().remove_reader(self._orders.fileno())
            self.stop.set()
            return
        settings = restored(order.settings, order.positions)
        self._log.apply_settings(settings.log)
        apply_settings(settings, order.sockets)


class Notifier:
    """Connection to the service manager, opened before privileges are dropped.

    Each notification is a datagram to $NOTIFY_SOCKET; without that variable nothing is sent. Must
    not know what the daemon does. A notification that cannot be sent is dropped.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket = _connected(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environment)
        """watchdog interval of the service manager; 0 is none"""

    def ready(self, status: str) -> None:
        """Report that all processes are ready."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that a reload starts; `ready` ends it (Type=notify-reload needs the time)."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={monotonic_us()}")

    def stopping(self, status: str) -> None:
        self._say("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Set the line in `systemctl status`."""
        self._say(f"STATUS={status}")

    def alive(self) -> None:
        """Send the watchdog keep-alive."""
        self._say("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send("\n".join(lines).encode())


def _connected(address: str) -> socket.socket | None:
    if not address.startswith(("/", "@")):
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        # Connected now: the path may not be reachable after privileges are dropped.
        made.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        made.close()
        return None
    made.setblocking(False)
    return made


def _watchdog_s(environment: Mapping[str, str]) -> float:
    meant = environment.get("WATCHDOG_PID", "")
    if meant and meant != str(os.getpid()):
        return 0.0
    try:
        return max(0, int(environment.get("WATCHDOG_USEC", "0"))) / 1e6
    except ValueError:
        return 0.0


TICK_S = 1.0
START_TICK_S = 0.02
"""interval of checks until all processes are ready, so that this is reported without delay"""
GIVE_UP = 5
"""number of failed starts of a process after which a daemon that was never ready gives up"""
_SLOW_START = 10
"""A starting process may miss heartbeats this many times longer: opening a store after a power cut
reads all of it."""
_OTHERS_S = 10.0
"""how long the delivery agent and the learner may take to stop"""

QUIET_S = 5.0
"""If a process that mail needs has had no heartbeat for this time, systemd's watchdog gets no
keep-alive; the process is not killed yet."""

LOOK_S = 5.0
"""how often the supervisor checks the share of unscanned mail"""

_FIRST = 1
"""process id of the first process of a container"""

OPTIONAL = ("console", "imap")
"""roles that no mail needs: the daemon is ready without them, and never gives up because of them"""
LAST = ("delivery", "learner")
"""roles that stop after the workers, in this order"""


class ListeningSockets(Protocol):
    """The sockets of all processes."""

    def of(self, start: StartParams) -> dict[str, list[int]]:
        """Return the descriptors of a process, by listener."""

    def apply_settings(self, before: Settings, after: Settings) -> Collection[str]:
        """Return the listeners that are new or have moved. Failure: UserError, nothing changed."""

    def close(self) -> None:
        """Close all."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The processes of a daemon, and what they share."""

    home: Path
    settings: Settings
    sockets: ListeningSockets
    starts: tuple[StartParams, ...]
    """one per process, without its settings and sockets"""
    shared: SharedState
    load: Callable[[], Settings]
    """rereads the settings"""


class Supervisor:
    """One run of the daemon.

    It never reads mail. Every second it checks the shared state: a process without a heartbeat for
    too long is killed, and the messages that it was scanning become known crashers. The supervisor
    reads and checks new settings; if they are invalid, all processes keep the old ones. At the end
    workers finish first, while their next hop (the delivery agent) and the learner still run.
    """

    def __init__(self, process_plan: ProcessPlan, log: DaemonLog, notifier: Notifier) -> None:
        self._plan = process_plan
        self._shared = process_plan.shared
        self._settings = process_plan.settings
        self._meters: Meters = process_plan.shared.meters(0)
        self._log = log
        self._notifier = notifier
        self._children: dict[int, Child] = {}
        self._backoffs = {start.slot: Backoff() for start in process_plan.starts}
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        self._replacing: set[int] = set()
        self._stopping = False
        self._was_ready = False
        self._failure: SpamnbError | None = None
        self._change = asyncio.Event()
        self._last_tick_us = 0
        self._lately = RecentUnscanned()
        self._look_at = self._warn_at = 0.0

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._shared.begin(0)
        self._shared.set_pid(0, os.getpid())
        self._shared.set_state(0, ProcessState.READY)
        self._warn_of_lists()
        self._load_roles()
        for start in self._plan.starts:
            self._start(start)
        try:
            while not self._stopping:
                self._tick()
                await self._wait(TICK_S if self._was_ready else START_TICK_S)
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure

    async def _wait(self, seconds: float) -> None:
        """Wait for a change or for the end of the time."""
        try:
            await asyncio.wait_for(self._change.wait(), seconds)
        except TimeoutError:
            return
        self._change.clear()

    # -- processes --------------------------------------------------------------------------------

    def _load_roles(self) -> None:
        """Import what the processes for mail need, once for all forks."""
        for start in self._plan.starts:
            if start.role not in OPTIONAL:
                with suppress(ImportError):  # the child reports it
                    import_module(start.entry.partition(":")[0])
        gc.collect()
        gc.freeze()  # else each collection in a child copies the pages of all these objects

    def _start(self, start: StartParams) -> None:
        self._waiting.pop(start.slot, None)
        try:
            sockets = self._plan.sockets.of(start)
            settings, positions = plain(self._settings), dict(self._settings.positions)
            start = replace(start, settings=settings, positions=positions, sockets=sockets)
            child = fork(start, self._shared)
        except OSError as error:
            # No memory or no descriptors, for now.
            self._not_started(start, error)
            return
        self._children[start.slot] = child
        asyncio.get_running_loop().add_reader(child.pidfd, self._died, child)

    def _died(self, child: Child) -> None:
        asyncio.get_running_loop().remove_reader(child.pidfd)
        code, slot = child.buried(), child.start.slot
        del self._children[slot]
        self._shared.set_state(slot, ProcessState.DEAD)
        self._shared.forget_connections(slot)
        known_crasher = self._shared.mark_crashers(slot) if code else []
        self._change.set()
        facts = {"role": child.start.role, "slot": slot, "pid": child.pid} | exit_words(code)
        if self._stopping:
            self._log({"event": "process ended", "level": "debug"} | facts)
            return
        if slot in self._replacing and code == 0:
            self._replacing.discard(slot)
            self._start(self._start_of(slot))
            return
        self._replacing.discard(slot)
        self._meters.count("restarts")
        pause_s = self._backoffs[slot].after(child.age_s)
        self._log(
            {
                "event": "process died",
                "level": "error",
                "known_crashers": [d.hex() for d in known_crasher],
            }
            | facts
            | {"again_in_s": pause_s}
        )
        self._start_again(self._start_of(slot), pause_s)

    def _not_started(self, start: StartParams, error: OSError) -> None:
        self._shared.set_state(start.slot, ProcessState.DEAD)
        pause_s = self._backoffs[start.slot].after(0.0)
        self._log(
            {"event": "process cannot be started", "level": "error", "error": str(error)}
            | {"role": start.role, "slot": start.slot, "again_in_s": pause_s}
        )
        self._start_again(start, pause_s)

    def _start_again(self, start: StartParams, pause_s: float) -> None:
        """Start it after a pause; give up if the daemon was never ready."""
        failures = self._backoffs[start.slot].failures
        if not self._was_ready and failures >= GIVE_UP and start.role not in OPTIONAL:
            self._failure = BugError(
                f"the {start.role} process ends as soon as it starts", hint="see the log"
            )
            self._asked_to_stop()
            return
        loop = asyncio.get_running_loop()
        self._waiting[start.slot] = loop.call_later(pause_s, self._start, start)

    def _start_of(self, slot: int) -> StartParams:
        return next(start for start in self._plan.starts if start.slot == slot)

    # -- every second -----------------------------------------------------------------------------

    def _tick(self) -> None:
        now = monotonic_us()
        late = self._last_tick_us and now - self._last_tick_us > 5e6
        self._last_tick_us = now
        self._shared.beat(0)
        for switch in SWITCHES:
            before = self._shared.is_on(switch)
            # Written only if it differs: the learner may change file and flag between the reads.
            if (found := is_on(self._plan.home, switch, before=before)) != before:
                self._shared.turn(switch, on=found)
        self._look_at_unscanned(now / 1e6)
        if os.getpid() == _FIRST:
            bury_orphans({child.pid for child in self._children.values()})
        if late:
            return  # the whole machine was suspended: no process is stuck
        well = [
            self._check(child) or child.start.role in OPTIONAL for child in self._children.values()
        ]
        waiting = {self._start_of(slot).role for slot in self._waiting}
        if all(well) and waiting <= set(OPTIONAL):
            if not self._was_ready:
                self._was_ready = True
                self._notifier.ready(self._status())
                self._log({"event": "ready", "processes": len(self._children) + 1})
            self._notifier.alive()

    def _look_at_unscanned(self, now: float) -> None:
        """Warn if too much mail passes unscanned: immediately, and repeatedly while it lasts."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        found = self._lately.seen(now, self._shared.total())
        alarm, before = too_many(found, self._settings.serve.unscanned_percent), self._shared.alarm
        self._shared.set_lately(found, alarm=alarm)
        if alarm and now >= self._warn_at:
            self._warn_at = now + WINDOW_S
            self._log({"event": "mail passes unscanned", "level": "warning"} | facts_of(found))
        elif before and not alarm:
            self._warn_at = 0.0
            self._log({"event": "mail is scanned again"} | facts_of(found))

    def _check(self, child: Child) -> bool:
        """Return True if a child is ready and alive; kill it if its heartbeat is too old."""
        status = self._shared.status(child.start.slot)
        watchdog_s = self._settings.serve.watchdog_s
        starting = status.state is not ProcessState.READY
        if status.beat_age_s > watchdog_s * (_SLOW_START if starting else 1):
            self._log(
                {"event": "process is stuck", "level": "error", "role": child.start.role}
                | {"slot": child.start.slot, "pid": child.pid, "silent_s": status.beat_age_s}
            )
            child.signal(signal.SIGKILL)
            return False
        return not starting and status.beat_age_s < QUIET_S

    def _status(self) -> str:
        total = self._shared.total()
        messages, scanned = total.value("messages"), total.value("scanned")
        bypass = ", bypassed" if self._shared.is_on("bypass") else ""
        return f"{len(self._children)} processes, {messages} messages, {scanned} scanned{bypass}"

    # -- new settings -----------------------------------------------------------------------------

    def _reload(self) -> None:
        if self._stopping:
            return
        self._notifier.reloading()
        try:
            has_agent = any(start.delivery for start in self._plan.starts)
            settings, later = merge_reloadable(
                self._settings, self._plan.load(), has_agent=has_agent
            )
            moved = self._plan.sockets.apply_settings(self._settings, settings)
        except SpamnbError as error:
            hint = f" - {error.hint}" if error.hint else ""
            self._log(
                {"event": "settings not reloaded", "level": "error", "error": f"{error}{hint}"}
            )
        else:
            self._apply_settings(settings, later, moved)
        self._notifier.ready(self._status())

    def _warn_of_lists(self) -> None:
        with suppress(SpamnbError):  # each worker logs a list that cannot be read
            files = RuleFiles(self._settings.rules.allow, self._settings.rules.block)
            if warning := AccessLists.load(files).warning(self._settings.site):
                self._log({"event": "list without effect", "level": "warning", "error": warning})

    def _apply_settings(self, settings: Settings, later: list[str], moved: Collection[str]) -> None:
        """Send checked settings to all processes."""
        if later:
            self._log({"event": "settings need a restart", "level": "warning", "settings": later})
        self._settings = settings
        self._log.apply_settings(settings.log)
        self._warn_of_lists()
        for child in self._children.values():
            own = self._plan.sockets.of(child.start)
            passed = {name: fds for name, fds in own.items() if name in moved}
            order = Order("reload", plain(settings), dict(settings.positions), passed)
            if not child.tell(order):
                self._log(
                    {"event": "process does not take settings", "level": "error"}
                    | {"role": child.start.role, "slot": child.start.slot}
                )
                child.signal(signal.SIGKILL)
        self._log({"event": "settings reloaded"})

    # -- the end ----------------------------------------------------------------------------------

    def _asked_to_stop(self) -> None:
        if self._stopping:
            for child in self._children.values():
                child.signal(signal.SIGKILL)
        self._stopping = True
        self._change.set()

    async def _end(self) -> None:
        self._stopping = True
        self._notifier.stopping("finishing open sessions")
        self._log({"event": "stopping", "processes": len(self._children)})
        for timer in self._waiting.values():
            timer.cancel()
        # No new connections; workers still accept those that wait in their queues.
        self._plan.sockets.close()
        await self._end_of(
            lambda role: role not in LAST, self._settings.serve.drain_s + _OTHERS_S / 2
        )
        for last in LAST:
            await self._end_of(lambda role, last=last: role == last, _OTHERS_S)  # type: ignore[misc]
        self._log({"event": "stopped", **_numbers(self._shared.total())})

    async def _end_of(self, selected: Callable[[str], bool], wait_s: float) -> None:
        """Stop the processes of some roles; kill those that take too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._of_roles(selected):
                child.signal(number)
            while self._of_roles(selected) and (loop.time() < until or number == signal.SIGKILL):
                self._notifier.alive()
                await self._wait(min(TICK_S, max(until - loop.time(), 0.01)))

    def _of_roles(self, selected: Callable[[str], bool]) -> list[Child]:
        return [child for child in self._children.values() if selected(child.start.role)]


def _numbers(total: Meters) -> dict[str, int]:
    return {name: total.value(name) for name in ("messages", "scanned", "unscanned", "restarts")}
