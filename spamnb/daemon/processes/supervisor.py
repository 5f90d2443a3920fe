"""The supervisor starts the daemon's processes, restarts those that end, and stops all in order.

It never reads mail. Every second it checks the shared state: a process without a heartbeat for too
long is killed, and the messages that it was scanning become known crashers. The supervisor reads
and checks new settings; if they are invalid, all processes keep the old ones. At the end workers
finish first, while their next hop (the delivery agent) and the learner still run.

Failure: BugError if a process cannot be started at all; everything else is logged and retried.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from spamnb.daemon.processes.channel import Order, StartParams
from spamnb.daemon.processes.child import Backoff, Child, bury_orphans, exit_words, spawn
from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import ProcessState, SharedState, monotonic_us
from spamnb.daemon.processes.systemd import Notifier
from spamnb.errors import BugError, SpamnbError
from spamnb.service.admin.bypass import bypass_is_on
from spamnb.service.scanning.access_lists import AccessLists, RuleFiles
from spamnb.service.telemetry.metrics import Meters
from spamnb.service.telemetry.unscanned import WINDOW_S, RecentUnscanned, facts_of, too_many
from spamnb.settings import Settings
from spamnb.settings.reload import merge_reloadable
from spamnb.settings.render import plain

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
    """One run of the daemon."""

    def __init__(self, process_plan: ProcessPlan, log: Log, notifier: Notifier) -> None:
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

    def _start(self, start: StartParams) -> None:
        self._waiting.pop(start.slot, None)
        try:
            sockets = self._plan.sockets.of(start)
            settings, positions = plain(self._settings), dict(self._settings.positions)
            start = replace(start, settings=settings, positions=positions, sockets=sockets)
            child = spawn(start, self._shared)
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
        before = self._shared.bypass
        # Written only if it differs: the learner may change file and flag between the two reads.
        if (found := bypass_is_on(self._plan.home, before=before)) != before:
            self._shared.bypass = found
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
        bypass = ", bypassed" if self._shared.bypass else ""
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
            if warning := AccessLists.load(files).warning(self._settings.local):
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
