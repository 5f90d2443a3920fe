"""The learner's threads for the fleet.

`Follower` waits for entries of other hosts and folds them. If the log of the fleet is away, or does
not fit this host, the follower reports that once, and tries again. `Answerer` tells other hosts
what verdicts this one has given. It is a thread of its own, because other hosts may ask while the
follower waits for their answers.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import ClassVar

from spamnb.daemon.roles.model_holder import ModelHolder
from spamnb.errors import LogAwayError, SpamnbError
from spamnb.service.engine.clock import now_us
from spamnb.service.feedback.service import FeedbackService
from spamnb.service.fleet.fleet_store import FleetStore
from spamnb.service.fleet.pulse import Pulse
from spamnb.service.fleet.questions import answer_next
from spamnb.service.fleet.waiting import FleetCommitter
from spamnb.service.telemetry.log import incident
from spamnb.service.telemetry.status import Facts
from spamnb.store.fleet.outbox import OutboxState

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
    """Keeps the model of this host at the head of the log."""

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
