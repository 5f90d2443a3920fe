"""The webhooks of one home: looks for events, and a sender for each webhook of the settings.

Failure: StoreError.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from spamnb.endpoints.console.site import ConsoleSite
from spamnb.endpoints.console.webhooks.outbox import FOLDER, WebhookOutbox
from spamnb.endpoints.console.webhooks.params import WebhookParams
from spamnb.endpoints.console.webhooks.sender import WebhookSender, WebhookSettings
from spamnb.endpoints.console.webhooks.standing import (
    WebhookStanding,
    remove_standings,
    write_standings,
)
from spamnb.endpoints.console.webhooks.watch import WebhookWatch
from spamnb.service.engine.clock import now_us
from spamnb.service.telemetry.log import Log

_END_S: Final = 1.0
"""for the senders to end"""


class Webhooks:
    """Used by one thread at a time."""

    def __init__(self, home: Path, log: Log) -> None:
        self._home = home
        self._log = log
        self._watcher = WebhookWatch(log)
        self._outbox: WebhookOutbox | None = None
        self._hooks: Mapping[str, WebhookParams] | None = None
        self._senders: list[WebhookSender] = []
        self._standings: Sequence[WebhookStanding] | None = None

    def apply_settings(self, hooks: Mapping[str, WebhookParams]) -> None:
        """Send to these webhooks from now on; events for others are deleted."""
        if hooks == self._hooks:
            return
        self.stop()
        if hooks:
            self._begin(hooks)
        else:
            shutil.rmtree(self._home / "console" / FOLDER, ignore_errors=True)
            remove_standings(self._home)
        self._hooks = dict(hooks)

    def _begin(self, hooks: Mapping[str, WebhookParams]) -> None:
        self._outbox = outbox = WebhookOutbox(self._home)
        outbox.keep(hooks)
        for name, params in hooks.items():
            sender = WebhookSender(WebhookSettings(name, params), outbox, self._log)
            self._senders.append(sender)
            sender.start()

    def look(self, site: ConsoleSite) -> None:
        """Store what has happened since the last look, and wake the senders."""
        if self._outbox is None:
            return
        now = now_us()
        before = self._outbox.state()
        state, events = self._watcher.look(site, before, now)
        if events or state != before:
            wanted = {name: params.events for name, params in (self._hooks or {}).items()}
            self._outbox.put(events, state, wanted, now)
        for sender in self._senders if events else ():
            sender.wake()
        self._stand()

    def _stand(self) -> None:
        """Write the state of the webhooks for the status if it has changed."""
        found = [self._standing(one) for one in self._senders]
        if found != self._standings:
            write_standings(self._home, found)
            self._standings = found

    def _standing(self, sender: WebhookSender) -> WebhookStanding:
        assert self._outbox is not None, "there are senders"
        return WebhookStanding(
            sender.settings.name, *self._outbox.numbers(sender.settings.name), sender.error
        )

    def stop(self) -> None:
        """End the senders."""
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join(_END_S / len(self._senders))
        self._senders = []
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
