"""A worker's judging: one bench, a scanner for each listener, the helpers for large messages.

New settings give a new set of all of these; letters under way finish with the old one. Must not
know connections. Failure: SettingsError for a list that cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.daemon.configure import plan_of, policy_of
from spamnb.daemon.processes.bootstrap import listeners_of
from spamnb.daemon.processes.channel import StartParams
from spamnb.daemon.processes.logs import Log
from spamnb.daemon.processes.shared_state import InFlightGuard, SharedState
from spamnb.daemon.roles.scan_pool import ScanPool
from spamnb.daemon.roles.scan_process import ScanProcessDeps
from spamnb.errors import SpamnbError
from spamnb.service.scanning.access_lists import AccessLists, RuleFiles
from spamnb.service.scanning.model_session import ModelSession
from spamnb.service.scanning.quarantine import Quarantine
from spamnb.service.scanning.scanner import Scanner, ScannerDeps
from spamnb.service.scanning.spamtraps import TRAPS_FOLDER, Traps
from spamnb.settings import Settings

_LAST_LETTERS_S = 60.0
"""until the old bench is closed: longer than any letter is under way at it"""


class ScannerFactoryDeps(NamedTuple):
    """What a judge works with."""

    start: StartParams
    shared: SharedState
    log: Log
    loop: asyncio.AbstractEventLoop


class ScannerFactory:
    """The scanners of one worker."""

    def __init__(self, settings: Settings, links: ScannerFactoryDeps) -> None:
        self._links = links
        self._pool = ScanPool(
            settings, ScanProcessDeps(links.start, links.shared, links.log, links.loop)
        )
        self._rules = AccessLists()
        self._session = self._made(settings)
        self._settings = settings
        self._load(settings)

    def scanner_for(self, name: str) -> Scanner:
        """The scanner of a listener."""
        listener = listeners_of(self._settings)[name]
        around = self._around(listener.upstream or self._links.start.post)
        return Scanner(self._session, policy_of(self._settings, listener), around)

    def apply_settings(self, settings: Settings) -> None:
        """Judge by other settings from now on; `scanner_for` gives new scanners."""
        old = self._session
        self._session, self._settings = self._made(settings), settings
        self._links.loop.call_later(_LAST_LETTERS_S, old.close)
        self._pool.apply_settings(settings)
        self._load(settings)

    async def close(self) -> None:
        """Let go of the helpers and the model."""
        await self._pool.close()
        self._session.close()

    def _made(self, settings: Settings) -> ModelSession:
        start = self._links.start
        hand = InFlightGuard(self._links.shared, start.slot)
        model_session = ModelSession(
            plan_of(settings, Path(start.home)), hand=hand, log=self._links.log
        )
        model_session.prepare()
        return model_session

    def _load(self, settings: Settings) -> None:
        """Read the lists; those that cannot be read stay as they were."""
        try:
            self._rules = AccessLists.load(RuleFiles(settings.rules.allow, settings.rules.block))
        except SpamnbError as error:
            self._links.log(
                {"event": "the old lists stay", "level": "error", "error": str(error)}
                | {"hint": error.hint}
            )

    def _around(self, upstream: str) -> ScannerDeps:
        links = self._links
        return ScannerDeps(
            rules=self._rules,
            quarantine=Quarantine(
                Path(links.start.home) / "quarantine",
                self._settings.quarantine,
                upstream=upstream,
            ),
            offload=self._pool,
            traps=Traps(self._settings.feedback.traps, Path(links.start.home) / TRAPS_FOLDER),
            bypassed=lambda: links.shared.bypass,
            later=links.loop.call_soon,
            aside=self._aside,
            meters=links.shared.meters(links.start.slot),
            log=links.log,
        )

    def _aside(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """In another thread; `work` does not raise."""
        future = self._links.loop.run_in_executor(None, work)
        future.add_done_callback(lambda done: then(done.result()))
