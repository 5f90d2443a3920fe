"""Sends the waiting events of one webhook, in a thread: a receiver that is away delays no other.

An event is deleted after a reply with 2xx; any other reply, or none, is a failure. After each
failure the webhook pauses, and the event waits twice as long as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from spamnb.endpoints.console.webhooks.outbox import FIRST_US, WaitingEvent, WebhookOutbox
from spamnb.endpoints.console.webhooks.params import WebhookParams
from spamnb.endpoints.console.webhooks.post import post, signed
from spamnb.errors import SpamnbError
from spamnb.service.engine.clock import now_us
from spamnb.service.telemetry.log import Log, incident

_PAUSE_S: Final = FIRST_US / 1_000_000
_FAULT_S: Final = 60.0
_SECOND_US: Final = 1_000_000
_TAKEN: Final = 2
"""the first digit of the status"""


class WebhookSettings(NamedTuple):
    """One section of the settings."""

    name: str
    params: WebhookParams


class WebhookSender:
    """The thread of one webhook."""

    def __init__(
        self,
        settings: WebhookSettings,
        outbox: WebhookOutbox,
        log: Log,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self.settings = settings
        self.error = ""
        """why the last attempt failed; empty if it did not"""
        self._outbox = outbox
        self._log = log
        self._clock = clock
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def wake(self) -> None:
        """Look for events now, but not during a pause after a failure."""
        self._wake.set()

    def stop(self) -> None:
        """Send no more events; the attempt in progress is repeated after the next start."""
        self._stop.set()
        self._wake.set()

    def join(self, wait_s: float) -> None:
        """Wait for the end of an attempt."""
        self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                wait_s = self.send_due()
            except Exception as error:  # noqa: BLE001 - a bug or a full disk must not end the thread
                incident(self._log, "webhook", error)
                self._stop.wait(_FAULT_S)
                continue
            if self.error:
                self._stop.wait(_PAUSE_S)
            else:
                self._wake.wait(wait_s)

    def send_due(self) -> float | None:
        """Send events until one fails; return the seconds until the next, None if none waits."""
        while not self._stop.is_set():
            now = self._clock()
            event, next_us = self._outbox.due(self.settings.name, now)
            if event is None:
                return (next_us - now) / _SECOND_US if next_us else None
            error = self._attempt(event)
            if self._stop.is_set():
                break
            self._report(error)
            if error:
                self._put_off(event)
                break
            self._outbox.taken(self.settings.name, event, self._clock())
        return 0.0

    def _attempt(self, event: WaitingEvent) -> str:
        """Send an event; return why that failed, empty if it did not."""
        params = self.settings.params
        try:
            fields = signed(params.key(), event.id, self._clock() // _SECOND_US, event.body)
            status = post(params, fields, event.body)
        except SpamnbError as error:
            return str(error)
        return "" if status // 100 == _TAKEN else f"the receiver replies {status}"

    def _report(self, error: str) -> None:
        """Log the first failure, a failure with another reason, and the end of failures."""
        if error != self.error:
            facts = {"level": "warning", "error": error} if error else {}
            self._log({"event": "webhook", "webhook": self.settings.name, **facts})
        self.error = error

    def _put_off(self, event: WaitingEvent) -> None:
        if not self._outbox.failed(self.settings.name, event, self._clock()):
            self._log({"event": "webhook dropped", "level": "warning", "id": event.id,
                       "webhook": self.settings.name})  # fmt: skip
