"""The console process: the HTTP API, the pages, and the index of the history that it searches.

It writes nothing of the model: it asks the learner for every change, through the control socket. A
fault of this process costs no mail.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from spamnb.console.digest import AdminMail, Digests, DigestSending
from spamnb.console.page import PageRights, Visitors
from spamnb.console.pages_http import ConsoleUsers
from spamnb.console.server import ConsoleApp, ConsoleServer
from spamnb.console.site import (
    Callers,
    ConsoleAccess,
    ConsoleSite,
    DigestOptOuts,
    EventHub,
    SettingsInForce,
    SignedLinks,
    TrustedProxies,
)
from spamnb.console.webhooks import Webhooks
from spamnb.daemon.learner import learning_of
from spamnb.daemon.shared import FeedReader, ProcessState, SharedState
from spamnb.daemon.supervisor import (
    ChildChannel,
    ChildContext,
    ChildLoop,
    ChildRole,
    StartParams,
    run_role,
)
from spamnb.errors import SpamnbError
from spamnb.net.address import NetworkSet
from spamnb.net.credentials import server_tls
from spamnb.operations.listings import follow, mark_of
from spamnb.operations.logins import TokenFile
from spamnb.operations.protocol import ControlClient
from spamnb.operations.request import AdminResponse
from spamnb.records.console import SeriesStore, SessionStore
from spamnb.records.verdicts import History, LookupIndex
from spamnb.scan.quarantine import Quarantine
from spamnb.settings import Settings
from spamnb.settings.render import listed
from spamnb.telemetry import growing, incident

TURN_S = 1.0
"""interval of heartbeats, and of looks for new verdicts"""
LOOK_S = 0.25
"""interval of looks at the verdict feed; each takes some microseconds"""
MINUTE_S = 60
WATCH_S = 5.0
"""interval of looks for events of webhooks"""
DIGEST_S = 60.0
"""interval of checks whether digests are due"""
ASK_S = 10.0
STATUS_S = 2.0
"""the pages show what is on the disk if the learner does not answer within this time"""
"""how long a request waits for the learner"""
_LAST_REQUESTS_S = 60.0
"""time for the last requests with old settings, before what these had opened is closed"""


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    return run_role(_ConsoleProcess, "console", start, shared, channel)


class _ConsoleProcess(ChildRole):
    def __init__(self, context: ChildContext) -> None:
        super().__init__(context)
        self._home = Path(self._start.home)
        self._events = EventHub()
        self._tokens = TokenFile(self._home)
        self._digests = Digests(self._home, self._log)
        self._admin_mail = AdminMail(self._home, self._log)
        self._webhooks = Webhooks(self._home, self._log)
        self._run_name = f"{self._start.parent} {self._shared.started_us}"
        self._series_due = 0

    async def run(self, settings: Settings) -> None:
        """Serve until told to stop."""
        slot, child_loop = self._start.slot, ChildLoop(self._orders, self._log)
        sessions = SessionStore(self._home)
        self._visitors = visitors = Visitors(sessions)
        visitors.apply_settings(_page_rights(settings, self._home))
        self._site, self._settings = self._open(settings), settings
        version: str = sys.modules["spamnb"].__version__
        app = ConsoleApp(
            self._site, ConsoleUsers(Callers(self._tokens), visitors),
            access=_access(settings), version=version, log=self._log,
        )  # fmt: skip
        proxies = _access(settings).proxies.networks
        server = ConsoleServer(app.asgi, _tls(settings), proxies, app.refusal)
        sockets = [socket.socket(fileno=fd) for fd in self._start.sockets["console"]]
        serving = asyncio.create_task(server.serve_on(sockets))
        serving.add_done_callback(lambda _: child_loop.stop.set())
        child_loop.follow(partial(self._apply_settings, app, server))
        publishing = asyncio.create_task(self._publish())
        digesting = asyncio.create_task(self._send_digests())
        watching = asyncio.create_task(self._watch(child_loop))
        self._shared.set_state(slot, ProcessState.READY)
        async for _ in child_loop.turns(TURN_S):
            self._shared.beat(slot)
            self._shared.set_open(slot, server.open_connections)
            await asyncio.to_thread(self._turn)
        self._shared.set_state(slot, ProcessState.LEAVING)
        publishing.cancel()
        self._digests.stop()
        digesting.cancel()
        await watching
        self._events.close()
        server.should_exit = True
        await serving
        app.close()
        self._close(self._site)
        sessions.close()

    async def _publish(self) -> None:
        """Send the verdicts of the workers to the streams."""
        feed = FeedReader.open(self._start.feed_fd)
        for verdict in feed.earlier() if feed else ():
            self._events.keep("verdict", verdict)
        while feed is not None:
            await asyncio.sleep(LOOK_S)
            verdicts, missed = feed.read()
            for verdict in verdicts:
                self._events.publish("verdict", verdict)
            if missed:
                self._events.publish("missed", {"events": missed})

    async def _watch(self, child_loop: ChildLoop) -> None:
        """Look for events of the webhooks until told to stop; threads send the events."""
        async for _ in child_loop.turns(WATCH_S):
            try:
                await asyncio.to_thread(self._look)
            except SpamnbError as error:
                self._log({"event": "webhooks", "level": "warning", "error": str(error)}
                          | {"hint": error.hint})  # fmt: skip
            except Exception as error:  # noqa: BLE001 - a bug must not end the webhooks
                incident(self._log, "webhooks", error)
        await asyncio.to_thread(self._webhooks.stop)

    def _look(self) -> None:
        self._webhooks.apply_settings(self._settings.webhook)
        self._webhooks.look(self._site)

    async def _send_digests(self) -> None:
        """Send the mails about the quarantine, and those to the administrator, when due."""
        while True:
            plan, url = self._settings.digest, self._settings.console.url
            if plan.at or plan.admin:
                sending = DigestSending(self._site, plan, url, self._visitors.addresses())
                for mails in (self._digests, self._admin_mail):
                    try:
                        await asyncio.to_thread(mails.send_due, sending, time.time())
                    except SpamnbError as error:
                        self._log({"event": "digest", "level": "warning", "error": str(error)}
                                  | {"hint": error.hint})  # fmt: skip
                    except Exception as error:  # noqa: BLE001 - a bug must not end the digests
                        incident(self._log, "digest", error)
            await asyncio.sleep(DIGEST_S)

    def _turn(self) -> None:
        """Index some of the new verdicts; each minute, record the counters."""
        site, now = self._site, int(time.time())
        try:
            if now >= self._series_due:
                self._series_due = now - now % MINUTE_S + MINUTE_S
                site.series.add(now, self._run_name, self._counters())
            for _ in range(20):
                if not follow(site.history, site.index, site.config.teaching):
                    return
                self._shared.beat(self._start.slot)
        except SpamnbError as error:
            incident(self._log, "index", error)

    def _counters(self) -> dict[str, int]:
        # The counters of a run begin at 0, so a run adds one start to the series.
        return growing(self._shared.total()) | {"starts": 1}

    def _open(self, settings: Settings) -> ConsoleSite:
        config = learning_of(settings, self._home, self._log)
        history = History.open(self._home / "history", config.history)
        folder = self._home / "console" / "lookup"
        return ConsoleSite(
            config=config,
            history=history,
            index=LookupIndex.open(folder, mark_of(config.teaching)),
            series=SeriesStore(self._home / "console" / "series"),
            quarantine=Quarantine(self._home / "quarantine", settings.quarantine, log=self._log),
            ask=self._ask,
            events=self._events,
            tokens=self._tokens,
            links=SignedLinks(self._home),
            opt_outs=DigestOptOuts(self._home),
            logins=self._visitors,
            settings=SettingsInForce(self._start.settings_file, listed(settings)),
            users_release=settings.console.users_release,
        )

    def _close(self, site: ConsoleSite) -> None:
        site.index.close()
        site.series.close()
        site.history.close()

    def _ask(self, op: str, body: bytes = b"", /, **fields: Any) -> AdminResponse:
        with ControlClient(self._start.control, STATUS_S if op == "status" else ASK_S) as client:
            return client.ask(op, body, **fields)

    def _apply_settings(
        self,
        app: ConsoleApp,
        server: ConsoleServer,
        settings: Settings,
        _: object,
    ) -> None:
        old = self._site
        try:
            tls = _tls(settings)
            self._site = self._open(settings)
        except SpamnbError as error:
            self._log({"event": "settings not reloaded", "level": "error", "error": str(error)}
                      | {"hint": error.hint})  # fmt: skip
            return
        self._settings = settings
        self._visitors.apply_settings(_page_rights(settings, self._home))
        access = _access(settings)
        app.apply_settings(self._site, access)
        server.apply_settings(tls, access.proxies.networks)
        asyncio.get_running_loop().call_later(_LAST_REQUESTS_S, self._close, old)


def _access(settings: Settings) -> ConsoleAccess:
    wanted = settings.console
    proxies = TrustedProxies(NetworkSet(wanted.proxies), wanted.proxy_header.lower())
    return ConsoleAccess(wanted.url, proxies, bool(wanted.certificate))


def _tls(settings: Settings) -> ssl.SSLContext | None:
    return server_tls(settings.console.certificate, settings.console.key)


def _page_rights(settings: Settings, home: Path) -> PageRights:
    wanted = settings.console
    passwords = wanted.passwords or settings.delivery.passwords or home / "passwords"
    return PageRights(Path(passwords), wanted.admins, wanted.auditors, wanted.users)
