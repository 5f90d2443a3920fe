"""The learner: the one process that writes the model while a daemon serves it.

It answers the control socket, drains the spool, and gives signs of life. With a model that is
missing or damaged it goes on: it says so to whoever asks, and looks for the model again. On
SIGTERM, or when its supervisor is gone, it accepts no more, finishes what is in hand, and closes
the store.

`run` is all: `LearnerConfig` says how, the listening socket and the board come from the supervisor.
"""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from spamnb.daemon.operations import Operations
from spamnb.daemon.processes.channel import ChildChannel
from spamnb.daemon.processes.shared_state import ProcessState, SharedState
from spamnb.daemon.roles.model_holder import LearnerConfig, ModelHolder
from spamnb.endpoints.control.server import ControlServer, Peer, Roles, login_of
from spamnb.errors import SpamnbError, StoreBusyError, StoreError, UserError
from spamnb.service.feedback.spool import Spool, SpoolFile
from spamnb.service.scanning.spamtraps import TRAPS_FOLDER
from spamnb.service.telemetry.status import check_home

LOG = logging.getLogger("spamnb.learner")

SYSTEM_SPOOL = Path("/var/spool/spamnb")
"""where the shipped units put it: a home is closed to mail programs"""
TURN_S = 1.0
"""between two signs of life"""
LOOK_S = 0.25
"""between two looks at a spool where nothing was"""
CLOCK_S = 60.0
"""between two looks at the clock"""
END_S = 20.0
"""for the requests in hand, when we are told to stop"""
STUCK_S = 900.0
"""A request that takes longer hangs: no sign of life is given any more. The longest honest ones,
imports and expiries of millions of features, take minutes."""


class LearnerSockets(NamedTuple):
    """What the supervisor hands over."""

    listener: socket.socket
    """the control socket, listening"""
    shared: SharedState
    slot: int
    channel: ChildChannel | None = None
    """more words of the supervisor's; its end is ours"""
    reloaded: Callable[[dict[str, Any]], LearnerConfig] | None = None
    """how the settings of an order become ours"""
    parent: int = 0
    """process that reads the settings again on SIGHUP"""


def uids_of(names: Iterable[str]) -> frozenset[int]:
    """Users by name or number, as numbers; who is unknown here is left out, and told."""
    found = set()
    for name in names:
        uid = user_id(name)
        if uid is None:
            LOG.warning("serve.delegates names %r, who is no user here", name)
        else:
            found.add(uid)
    return frozenset(found)


def user_id(name: str) -> int | None:
    """The number of a user, by name or number; None for a name that is unknown here."""
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def run(learning: LearnerConfig, post: LearnerSockets) -> int:
    """Serve until told to stop; 0 if everything in hand was finished."""
    return _LearnerRun(learning, post).run()


class _LearnerRun:
    """One run of this process."""

    def __init__(self, learning: LearnerConfig, post: LearnerSockets) -> None:
        self._post = post
        self._keeper = ModelHolder(learning, post.shared.meters(post.slot))
        self._spools = [Spool(folder, learning.spool_limits) for folder in _spools(learning)]
        traps = learning.home / TRAPS_FOLDER
        self._spools.append(Spool(traps, learning.spool_limits, private=True))
        self._operations = Operations(self._keeper, post.shared, self._spools, parent=post.parent)
        self._server = ControlServer(post.listener, self._operations, self._roles, learning.control)
        self._chores = _Maintenance(self._keeper, self._spools, self._taken)
        self._stop = False

    def run(self) -> int:
        """Until we are told to stop."""
        shared, slot = self._post.shared, self._post.slot
        with _Wakeups(child=self._post.channel is not None) as wakeups:
            self._keeper.open()
            self._server.start()
            self._chores.start()
            shared.set_state(slot, ProcessState.READY)
            while not (self._stop or wakeups.stop):
                self._beat()
                self._wait(wakeups)
            shared.set_state(slot, ProcessState.LEAVING)
            done = self._server.stop(END_S) and self._chores.stop(END_S)
        self._keeper.close()
        return 0 if done else 1

    def _beat(self) -> None:
        """Give a sign of life, unless something hangs."""
        if max(self._server.busy_s(), self._chores.busy_s()) < STUCK_S:
            self._post.shared.beat(self._post.slot)
        self._post.shared.set_open(self._post.slot, self._server.connections)

    def _wait(self, wakeups: _Wakeups) -> None:
        """Until the next turn, a signal, or a word of the supervisor's."""
        poll = select.poll()
        poll.register(wakeups.fileno(), select.POLLIN)
        channel = self._post.channel
        if channel is not None:
            poll.register(channel.fileno(), select.POLLIN)
        ready = dict(poll.poll(TURN_S * 1000))
        wakeups.clear()
        if channel is not None and channel.fileno() in ready:
            self._obey(channel)

    def _obey(self, channel: ChildChannel) -> None:
        order = channel.next()
        if order is None:
            self._stop = True
        elif order.what == "reload" and self._post.reloaded is not None:
            learning = self._post.reloaded(order.settings)
            for spool in self._spools:
                spool.limits = learning.spool_limits
            self._keeper.apply_settings(learning)
            LOG.info("new settings are in force")

    def _taken(self, left: SpoolFile) -> None:
        """Learn what was left in a spool, in the name of the file's owner."""
        roles = self._roles()
        peer = roles.peer(left.uid) if left.private else self._author(left.uid)
        try:
            self._operations.of_spool(left, peer)
        except UserError as error:
            LOG.warning("a file of the spool is refused: uid %d: %s", left.uid, error)

    def _author(self, uid: int) -> Peer:
        """Give a file's owner the rights of a delegate or of a user: no file speaks as an admin."""
        delegate = uid in self._keeper.learning.delegates
        return Peer(uid, "delegate" if delegate else "self", login_of(uid))

    def _roles(self) -> Roles:
        return Roles(os.geteuid(), self._keeper.learning.delegates)


def _spools(learning: LearnerConfig) -> tuple[Path, ...]:
    """The folders to look into; the system's is not ours to empty if somebody else owns it."""
    if learning.spools:
        return learning.spools
    with suppress(OSError):
        if SYSTEM_SPOOL.stat().st_uid == os.geteuid():
            return (learning.home / "spool", SYSTEM_SPOOL)
    return (learning.home / "spool",)


class _Maintenance:
    """Looks after the model and the spools, in a thread of its own: both may have to wait."""

    def __init__(
        self, keeper: ModelHolder, spools: Sequence[Spool], take: Callable[[SpoolFile], None]
    ) -> None:
        self._keeper = keeper
        self._spools = spools
        self._take = take
        self._stop = threading.Event()
        self._began = self._clock_due = 0.0
        self._thread = threading.Thread(target=self._run, name="chores", daemon=True)
        self._told = ""

    def start(self) -> None:
        for spool in (self._spools[0], self._spools[-1]):
            with suppress(StoreError):
                spool.make()
        self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """After the file in hand; whether that was done in time."""
        self._stop.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def busy_s(self) -> float:
        """How long the step in hand takes."""
        return time.monotonic() - self._began if self._began else 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            self._began = time.monotonic()
            done = 0
            try:
                self._keeper.retry_open()
                check_home(self._keeper.learning.home)
                self._read_clock()
                done = self._drain()
                self._told = ""
            except SpamnbError as error:
                if str(error) != self._told and not self._keeper.fault:
                    LOG.warning("the spool waits: %s", error)
                self._told = str(error)
            except Exception:
                # The boundary of this thread: the spool must not end because of one file.
                LOG.exception("incident %s: the spool waits", secrets.token_hex(6))
            self._began = 0.0
            if not (done or any(spool.busy for spool in self._spools)):
                self._stop.wait(LOOK_S)

    def _read_clock(self) -> None:
        """Keep what is known of the clock, so that one that jumps is told at once."""
        if time.monotonic() >= self._clock_due:
            self._keeper.read_clock()
            self._clock_due = time.monotonic() + CLOCK_S

    def _drain(self) -> int:
        """Take what was left; how many. The next look follows at once if there was something."""
        with self._keeper.desk() as desk:
            labels = desk.model.labels
        done = sum(spool.drain(labels, self._one) for spool in self._spools)
        if done:
            LOG.info("%d files of the spool were learnt from", done)
        return done

    def _one(self, left: SpoolFile) -> None:
        if self._stop.is_set():
            raise StoreBusyError("the daemon ends")
        self._began = time.monotonic()
        self._take(left)


class _Wakeups:
    """Signals as something to wait on."""

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
            # Ctrl-C reaches the whole group; our supervisor tells us when it is our turn.
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
