"""Read several mailboxes, each in a thread, until told to stop: connect, read, wait, reconnect.

All waits use the monotonic clock. A mailbox that fails does not stop the others. Failure: `once`
raises the error of a mailbox; `run` reports it and tries again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spamnb.endpoints.imap.client import ImapClient, ImapRefusedError
from spamnb.endpoints.imap.connection import StopSignal
from spamnb.endpoints.imap.login import LoginRefusedError, account_problems
from spamnb.endpoints.imap.params import ImapParams, ImapTimes
from spamnb.endpoints.imap.ports import ImapPorts
from spamnb.endpoints.imap.state import MailboxState
from spamnb.endpoints.imap.sync import MailboxSync, SyncedAccount
from spamnb.errors import SpamnbError

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
GOOD_S: Final = 60.0
"""A connection that lasts so long resets the pause. So a server that accepts every login and then
ends the connection is not asked each second."""
_BREATH_S: Final = 0.2
"""pause between two passes: a server that always reports changes must not keep this host busy"""

Trouble = Callable[[str, SpamnbError, float], None]
"""reports that a mailbox cannot be read, why, and after how many seconds it is tried again"""


@dataclass(frozen=True, slots=True)
class ImapPlan:
    """What all mailboxes share."""

    home: Path
    ports: ImapPorts
    trouble: Trouble
    read: Callable[[str], None]
    """reports that a mailbox was read after it was connected"""
    existing: bool = False
    """also judge the mail that lies in the inbox at the start"""
    times: ImapTimes = field(default_factory=ImapTimes)


class AccountReader:
    """Reads one mailbox."""

    def __init__(self, name: str, params: ImapParams, plan: ImapPlan, stop: StopSignal) -> None:
        self._name = name
        self._params = params
        self._plan = plan
        self._stop = stop
        self._existing = plan.existing
        self._pause_s = FIRST_PAUSE_S

    def once(self) -> None:
        """Make passes until there is nothing to do."""
        self._check()
        with closing(self._state()) as state:
            self._read(state, once=True)

    def run(self) -> None:
        """Read until told to stop; after a failure connect again."""
        while not self._stop.is_set():
            try:
                self._check()
                with closing(self._state()) as state:
                    self._read(state, once=False)
            except SpamnbError as error:
                if self._stop.is_set():
                    return
                pause_s = self._next_pause(error)
                self._plan.trouble(self._name, error, pause_s)
                self._stop.wait(pause_s)

    def _check(self) -> None:
        for problem in account_problems(self._params):
            raise problem

    def _state(self) -> MailboxState:
        return MailboxState.open(self._plan.home, self._name, self._params.place)

    def _next_pause(self, error: SpamnbError) -> float:
        """Double the pause after each failure; a refused login could lock the account."""
        if isinstance(error, LoginRefusedError):
            self._pause_s = LONGEST_PAUSE_S
        pause_s = self._pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - so that not all come at once
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def _read(self, state: MailboxState, *, once: bool) -> None:
        with closing(ImapClient.open(self._params, self._plan.times, self._stop)) as client:
            account = SyncedAccount(self._name, self._params, self._plan.ports, self._stop.wait)
            sync = MailboxSync(account, client, state)
            sync.begin(existing=self._existing)
            began = looked = time.monotonic()
            more = sync.run()
            self._plan.read(self._name)
            self._existing = False
            while more or not once:
                if not more:
                    self._wait(client)
                everywhere = more or time.monotonic() - looked >= self._params.poll_s
                looked = time.monotonic() if everywhere else looked
                more = sync.run(everywhere=everywhere)
                if time.monotonic() - began > GOOD_S:
                    self._pause_s = FIRST_PAUSE_S

    def _wait(self, client: ImapClient) -> None:
        """Wait for a change in the inbox, at most `poll_s`."""
        self._stop.wait(_BREATH_S)
        try:
            client.idle(self._params.poll_s)
        except ImapRefusedError:  # the server has no IDLE, or refuses it now
            self._stop.wait(self._params.poll_s)
            client.noop()
        client.changed = False


def read_all(
    accounts: Mapping[str, ImapParams], plan: ImapPlan, stop: StopSignal
) -> list[threading.Thread]:
    """Start a thread for each mailbox. They end soon after they are told to stop."""
    threads = [
        threading.Thread(
            target=AccountReader(name, params, plan, stop).run, name=f"imap {name}", daemon=True
        )
        for name, params in accounts.items()
    ]
    for thread in threads:
        thread.start()
    return threads
