"""Answer the request of one scanner client without a daemon, as a daemon with these settings would.

`answer_one` runs the session of a scanner listener on a connected socket: the client gets the same
reply, and the history the same entry. Messages of any size are scanned in this process, so the
caller limits the time of the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from spamnb.daemon.configure import WorkerShare, load_names, plan_of, policy_of, scanner_params_of
from spamnb.daemon.sender_check import SenderCheck
from spamnb.errors import UserError
from spamnb.net.actions import CloseConnection, SendBytes, StartScan
from spamnb.net.address import UNIX
from spamnb.operations.request import is_on
from spamnb.scan.access_lists import AccessLists, RuleFiles
from spamnb.scan.judge import ModelSession, scan_to_json
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.scanner import Scanner, ScannerDeps
from spamnb.scan.values import Notes, ScanRequest, ScanResult
from spamnb.scanner.request import PeerIdentity
from spamnb.scanner.session import ScannerSession
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerSettings
from spamnb.telemetry import Log, Meters

_RECEIVE_BYTES: Final = 65_536


def answer_one(peer: socket.socket, settings: Settings, home: Path, log: Log) -> None:
    """Answer one request for a scan; other requests get no reply."""
    listener = _listener_of(settings)
    share = WorkerShare(delivery="", workers=1, listeners=1, descriptors=64, home=home)
    params = scanner_params_of(settings, listener, share)
    identity = PeerIdentity(UNIX, os.geteuid())
    session = ScannerSession(params, Meters(), identity, time.monotonic())
    while not session.closed:
        data = peer.recv(_RECEIVE_BYTES)
        if data:
            session.receive(data, time.monotonic())
        else:
            session.close(time.monotonic())
        while session.actions:
            action = session.actions.popleft()
            if isinstance(action, SendBytes):
                peer.sendall(action.data)
            elif isinstance(action, StartScan):
                result = asyncio.run(_result(action.request, settings, listener, home, log))
                session.scan_done(action.request, result, time.monotonic())
            elif isinstance(action, CloseConnection):
                return


async def _result(
    request: ScanRequest, settings: Settings, listener: ListenerSettings, home: Path, log: Log
) -> ScanResult:
    check = SenderCheck(settings.auth, log)
    if settings.auth.is_possible:
        with suppress(UserError):  # `config check` reports it
            await check.find()
    done: asyncio.Future[ScanResult] = asyncio.get_running_loop().create_future()
    try:
        _scanner(settings, listener, home, log, check).advise(request, done.set_result)
        return await done
    finally:
        await check.close()


def _listener_of(settings: Settings) -> ListenerSettings:
    """Return the first scanner listener of the settings, else one with default settings."""
    found = (one for one in settings.listener.values() if one.protocol == "scanner")
    return next(found, ListenerSettings(protocol="scanner"))


class _OwnProcess:
    """Implements `types.Offload` without another process."""

    def __init__(self, model_session: ModelSession) -> None:
        self._session = model_session

    def submit(
        self,
        raw: bytes,
        notes: Notes,
        done: Callable[[dict[str, Any]], None],
        recipients: Sequence[str] = (),
    ) -> None:
        done(scan_to_json(self._session, raw, notes, recipients))


def _scanner(
    settings: Settings, listener: ListenerSettings, home: Path, log: Log, check: SenderCheck
) -> Scanner:
    plan = plan_of(settings, home, load_names(settings, log))
    model_session = ModelSession(plan, log=log)
    deps = ScannerDeps(
        rules=AccessLists.load(RuleFiles(settings.rules.allow, settings.rules.block)),
        quarantine=Quarantine(home / "quarantine", settings.quarantine, upstream="", log=log),
        offload=_OwnProcess(model_session),
        traps=None,
        bypassed=partial(is_on, home, "bypass", before=False),
        live=partial(is_on, home, "live", before=False),
        call_soon=lambda work: work(),
        run_in_thread=lambda work, then: then(work()),
        meters=Meters(),
        log=log,
        senders=check,
    )
    return Scanner(model_session, policy_of(settings, listener), deps)
