"""The learner's threads for the fleet.

`Follower` waits for entries of other hosts and folds them. A log that is away, or does not fit this
host, is logged once, and tried again. `Answerer` tells other hosts what verdicts this one has
given; it is a thread of its own, because the follower asks the others, and they may ask meanwhile.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

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
"""for the first new entry: the longest pause before the thread sees that it has to stop"""


ASK_AGAIN_S = 5.0
"""between two attempts to ask other hosts"""


class Answerer:
    """Answers the questions of other hosts."""

    def __init__(self, holder: ModelHolder) -> None:
        self._holder = holder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answerer", daemon=True)
        self._fault = ""

    def start(self) -> None:
        """Answer from now on, if the host is in a fleet."""
        if self._holder.config.fleet is not None:
            self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """Stop after the current question; return False if that took too long."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._answer()
                self._fault = ""
            except LogAwayError:
                # The follower tells it.
                self._stop.wait(WAIT_S)
            except SpamnbError as error:
                if str(error) != self._fault:
                    event = "a question of another host is not answered"
                    self._holder.config.log(
                        {"event": event, "level": "warning", "error": str(error)}
                    )
                self._fault = str(error)
                self._stop.wait(WAIT_S)
            except Exception as error:  # noqa: BLE001 - the thread must outlive a bug
                incident(self._holder.config.log, "answerer", error)
                self._stop.wait(WAIT_S)

    def _answer(self) -> None:
        with self._holder.service() as service:
            store = service.model.store
            if not isinstance(store, FleetStore):
                self._stop.wait(WAIT_S)
            else:
                answer_next(store.member, service.model.history, WAIT_S)


class Follower:
    """Keeps the model of this host at the head of the log."""

    def __init__(self, holder: ModelHolder) -> None:
        self._holder = holder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._fault = ""
        self._folded = 0
        self._ask_due = 0.0
        self._pulse: Pulse | None = None
        self._host = ""
        self._current = time.monotonic()
        """when this host was last known to have all entries"""

    def start(self) -> None:
        """Follow from now on, if the host is in a fleet."""
        if self._holder.config.fleet is not None:
            self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """Stop after the current fold; return False if that took too long."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def facts(self) -> Facts:
        """Return what `status` tells of the fleet."""
        if self._holder.config.fleet is None:
            return {}
        lag_s = round(time.monotonic() - self._current, 1)
        facts = {"fault": self._fault, "lag_s": lag_s, "folded_entries": self._folded}
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
        oldest_s = round(max(now_us() - state.oldest_us, 0) / 1e6) if state.lessons else 0
        return {"waiting": state.lessons, "waiting_bytes": state.bytes, "waiting_s": oldest_s}

    def _run(self) -> None:
        while not self._stop.is_set():
            pause_s = WAIT_S
            try:
                pause_s = self._follow()
                if self._fault:
                    self._holder.config.log({"event": "the fleet's log answers again"})
                self._fault = ""
            except SpamnbError as error:
                self._failed(str(error), error.hint)
            except Exception as error:  # noqa: BLE001 - the thread must outlive a bug
                incident(self._holder.config.log, "follower", error)
            self._stop.wait(pause_s)

    def _follow(self) -> float:
        """Fold what is new; return the pause until the next fold, which gathers entries."""
        with self._holder.service() as service:
            store = service.model.store
            if not isinstance(store, FleetStore):
                return WAIT_S
            committer = service.model.committer
            assert isinstance(committer, FleetCommitter), "the committer of a host in a fleet"
            self._beat(store, committer.outbox.state().lessons)
            self._folded += store.follow()
            self._current = time.monotonic()
            committer.learn_waiting()
            self._ask_again(service)
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

    def _beat(self, store: FleetStore, waiting: int) -> None:
        if self._pulse is None or self._pulse.store is not store:
            config = self._holder.config
            self._pulse = Pulse(config.home, store, config.log)
        self._host = store.host
        self._pulse.beat(waiting)

    def _failed(self, fault: str, hint: str) -> None:
        if fault != self._fault:
            event = "the fleet's log is not followed"
            self._holder.config.log(
                {"event": event, "level": "warning", "error": fault, "hint": hint}
            )
        self._fault = fault
