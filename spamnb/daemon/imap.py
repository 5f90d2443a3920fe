"""The process that reads mailboxes on IMAP servers; it trains through the control socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spamnb.daemon.configure import load_names, plan_of
from spamnb.daemon.sender_check import MailboxCheck
from spamnb.daemon.shared import ProcessState, SharedState
from spamnb.daemon.supervisor import (
    ChildChannel,
    ChildContext,
    ChildLoop,
    ChildRole,
    StartParams,
    run_role,
)
from spamnb.errors import SpamnbError, StoreError
from spamnb.feedback.values import Answer, Feedback
from spamnb.imap.away import AwayMailboxes
from spamnb.imap.client import StopSignal
from spamnb.imap.sync import ImapPlan, ImapPorts, ImapReport, MailboxModel, read_all
from spamnb.operations.home import ModelConfig, model_options, open_model
from spamnb.operations.protocol import teach_through
from spamnb.scan.judge import ModelSession
from spamnb.settings import Settings

TICK_S = 1.0
_END_S = 5.0
"""time for the threads to end; unfinished work is continued at the next start"""


def main(start: StartParams, shared: SharedState, channel: ChildChannel) -> int:
    """Run until told to stop."""
    return run_role(_ImapProcess, "imap", start, shared, channel)


class _ImapProcess(ChildRole):
    def __init__(self, context: ChildContext) -> None:
        super().__init__(context)
        self._home = Path(self._start.home)
        self._away = AwayMailboxes(self._home)

    async def run(self, settings: Settings) -> None:
        """Read the mailboxes in threads until told to stop."""
        slot, child_loop = self._start.slot, ChildLoop(self._orders, self._log)
        config = ModelConfig(**model_options(settings, self._home), log=self._log)
        opened = partial(open_model, config, readonly=True)
        check = MailboxCheck(settings.auth, self._log)
        session = self._session(settings)
        model = MailboxModel(session, opened, config.teaching, check.checked)
        ports = ImapPorts(model.judge, model.label_of, self._teach, self._report)
        stop = StopSignal()
        with self._noted():
            self._away.keep(settings.imap)
        plan = ImapPlan(self._home, ports, self._trouble, self._read)
        threads = read_all(settings.imap, plan, stop)
        child_loop.follow(lambda new, _sockets: model.replace_session(self._session(new)))
        self._shared.set_state(slot, ProcessState.READY)
        async for _ in child_loop.turns(TICK_S):
            self._shared.beat(slot)
        self._shared.set_state(slot, ProcessState.LEAVING)
        stop.set()
        self._end(threads)
        model.close()
        check.close()

    def _end(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(_END_S / len(threads))
            self._shared.beat(self._start.slot)

    def _session(self, settings: Settings) -> ModelSession:
        return ModelSession(
            plan_of(settings, self._home, load_names(settings, self._log)), log=self._log
        )

    def _teach(self, feedback: Feedback) -> Answer:
        return teach_through(self._start.control, feedback)

    def _report(self, report: ImapReport) -> None:
        self._log({"event": "imap", **report.facts()})

    def _trouble(self, name: str, error: SpamnbError, pause_s: float) -> None:
        with self._noted():
            self._away.note(name, str(error))
        facts = {"account": name, "error": str(error), "hint": error.hint}
        self._log({"event": "mailbox cannot be read", "level": "error", **facts,
                   "again_in_s": round(pause_s, 1)})  # fmt: skip

    def _read(self, name: str) -> None:
        with self._noted():
            self._away.remove(name)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Run a block that writes the status of mailboxes; a failure of the disk is only logged."""
        try:
            yield
        except StoreError as error:
            self._log({"event": "status of mailboxes not written", "level": "error",
                       "error": str(error)})  # fmt: skip
