"""Scanners of a worker: a model session, a scanner per listener, and scan processes.

New settings create a new set; messages being scanned finish with the old one. Must not know
connections. Failure: an access list that cannot be read is logged, and the old one stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.core.persons.names import PersonNames
from spamnb.daemon.configure import next_hop_of, plan_of, policy_of
from spamnb.daemon.person_names import load_names
from spamnb.daemon.processes.channel import StartParams
from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import InFlightGuard, SharedState
from spamnb.daemon.roles.scan_pool import ScanPool
from spamnb.daemon.roles.scan_process import ScanProcessDeps
from spamnb.endpoints.other_filters.ask import asker_of
from spamnb.errors import SpamnbError
from spamnb.service.scanning.access_lists import AccessLists, RuleFiles
from spamnb.service.scanning.model_session import ModelSession
from spamnb.service.scanning.quarantine import Quarantine
from spamnb.service.scanning.scanner import Scanner, ScannerDeps
from spamnb.service.scanning.shadow import Shadow, ShadowDeps
from spamnb.service.scanning.spamtraps import TRAPS_FOLDER, Traps
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerSettings

_LAST_SCANS_S = 60.0
"""until the old model session is closed: longer than any of its scans"""


class ScannerFactoryDeps(NamedTuple):
    """Dependencies of a scanner factory."""

    start: StartParams
    shared: SharedState
    log: Log
    loop: asyncio.AbstractEventLoop


class ScannerFactory:
    """Creates the scanners of one worker."""

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
        self._load(settings)

    def scanner_for(self, name: str, listener: ListenerSettings) -> Scanner:
        """Return the scanner of a listener."""
        deps = self._scanner_deps(next_hop_of(listener, self._deps.start.delivery))
        return Scanner(self._session, policy_of(self._settings, listener, name), deps)

    def apply_settings(self, settings: Settings) -> None:
        """Use other settings; `scanner_for` then returns new scanners."""
        old = self._session
        self._session, self._settings = self._new_session(settings), settings
        self._deps.loop.call_later(_LAST_SCANS_S, old.close)
        self._pool.apply_settings(settings)
        self._load(settings)

    async def close(self) -> None:
        """Stop the scan processes and close the model."""
        await self._pool.close()
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
            traps=Traps(traps, Path(deps.start.home) / TRAPS_FOLDER) if traps else None,
            bypassed=lambda: deps.shared.bypass,
            call_soon=deps.loop.call_soon,
            run_in_thread=self._run_in_thread,
            meters=deps.shared.meters(deps.start.slot),
            log=deps.log,
        )

    def _run_in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `work`, which must not raise, in another thread."""
        future = self._deps.loop.run_in_executor(None, work)
        future.add_done_callback(lambda done: then(done.result()))
