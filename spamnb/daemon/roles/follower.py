"""The learner's thread that follows the log of the fleet.

It waits for entries of other hosts and folds them. A log that is away, or does not fit this host,
is logged once, and tried again.
"""

from __future__ import annotations

import threading
import time

from spamnb.daemon.roles.model_holder import ModelHolder
from spamnb.errors import SpamnbError
from spamnb.service.fleet.fleet_store import FleetStore
from spamnb.service.telemetry.log import incident
from spamnb.service.telemetry.status import Facts

WAIT_S = 1.0
"""for the first new entry: the longest pause before the thread sees that it has to stop"""


class Follower:
    """Keeps the model of this host at the head of the log."""

    def __init__(self, holder: ModelHolder) -> None:
        self._holder = holder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._fault = ""
        self._folded = 0
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
        return {"fleet": {"fault": self._fault, "lag_s": lag_s, "folded_entries": self._folded}}

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
            self._folded += store.follow()
            self._current = time.monotonic()
            return store.fold_s if store.wait(WAIT_S) else 0.0

    def _failed(self, fault: str, hint: str) -> None:
        if fault != self._fault:
            event = "the fleet's log is not followed"
            self._holder.config.log(
                {"event": event, "level": "warning", "error": fault, "hint": hint}
            )
        self._fault = fault
