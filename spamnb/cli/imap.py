"""`spamnb imap`: judge new mail in mailboxes on IMAP servers, and learn from moves."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from spamnb.cli.correct import show
from spamnb.cli.main import command
from spamnb.cli.printing import coloured, safe, say, say_json, warn
from spamnb.cli.session import CliSession, pass_session, teacher
from spamnb.errors import SpamnbError, UserError

if TYPE_CHECKING:
    from spamnb.daemon.sender_check import MailboxCheck
    from spamnb.feedback.values import Answer, Feedback
    from spamnb.imap.client import StopSignal
    from spamnb.imap.sync import AccountReader, ImapPlan, ImapReport, MailboxModel
    from spamnb.settings.values import ImapParams

IMAP_EXAMPLES = """
spamnb imap                                  all mailboxes of the settings, until Ctrl-C
spamnb imap alice                            one mailbox: the section [imap.alice]
spamnb imap --once                           what is new since the last run: for cron
spamnb imap --once --existing                also judge the mail that is already in the inbox
"""
_END_S = 5.0
"""time limit for the threads to end; the next run continues unfinished work"""


@command("Filter mailboxes on IMAP servers.", IMAP_EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--once", is_flag=True, help="Handle what is new, then exit.")
@click.option("--existing", is_flag=True, help="Also judge the mail that is already in the inbox. "
              "Without this option, only mail that arrives after the first run is "
              "judged.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@pass_session
def imap(
    session: CliSession, names: tuple[str, ...], once: bool, existing: bool, as_json: bool
) -> None:
    """Judge new mail in mailboxes on IMAP servers, move junk, and learn from moves.

    NAME is a section [imap.NAME] of the settings; without NAME, all mailboxes are read. Junk goes
    to the junk folder of the mailbox. A message that the user moves to the junk folder is trained
    as spam, one that the user takes out of it as ham. No message is ever changed or deleted. While
    a daemon runs with these settings, it reads the mailboxes itself.
    """
    from spamnb.daemon.sender_check import MailboxCheck

    accounts = _accounts(session, names)
    with closing(MailboxCheck(session.settings.auth, session.log)) as check:
        model = _model(session, check)
        _follow(session, accounts, model, once=once, existing=existing, as_json=as_json)


def _follow(
    session: CliSession,
    accounts: dict[str, ImapParams],
    model: MailboxModel,
    *,
    once: bool,
    existing: bool,
    as_json: bool,
) -> None:
    from spamnb.imap.client import StopSignal
    from spamnb.imap.sync import AccountReader, ImapPlan, ImapPorts

    target = _TeachTarget(session, model, as_json=as_json)
    ports = ImapPorts(model.judge, model.label_of, target.teach, target.report)
    plan = ImapPlan(session.home, ports, target.trouble, lambda _: None, existing)
    stop = StopSignal()
    try:
        if once:
            readers = [AccountReader(name, params, plan, stop) for name, params in accounts.items()]
            _read_once(readers)
        else:
            _read_until_stopped(accounts, plan, stop)
    finally:
        model.close()
        stop.close()


def _read_once(readers: list[AccountReader]) -> None:
    """Read each mailbox, also if another fails; then raise the first error."""
    failed: list[SpamnbError] = []
    for reader in readers:
        try:
            reader.once()
        except SpamnbError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _read_until_stopped(accounts: dict[str, ImapParams], plan: ImapPlan, stop: StopSignal) -> None:
    from spamnb.imap.sync import read_all

    with _stopped_by_signals(stop):
        threads = read_all(accounts, plan, stop)
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(1.0)
        finally:
            stop.set()
            for thread in threads:
                thread.join(_END_S)


@contextmanager
def _stopped_by_signals(stop: StopSignal) -> Iterator[None]:
    """Let SIGTERM stop the readers; Ctrl-C raises KeyboardInterrupt as usual."""
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _accounts(session: CliSession, names: tuple[str, ...]) -> dict[str, ImapParams]:
    found = dict(session.settings.imap)
    if not found:
        raise UserError(
            "the settings have no mailbox", hint="add a section [imap.NAME]; see docs/imap.md"
        )
    for name in names:
        if name not in found:
            raise UserError(
                f"the settings have no mailbox {name!r}", hint=f"there is {', '.join(found)}"
            )
    return {name: found[name] for name in names or found}


def _model(session: CliSession, check: MailboxCheck) -> MailboxModel:
    from spamnb.daemon.configure import plan_of
    from spamnb.imap.sync import MailboxModel
    from spamnb.scan.judge import ModelSession

    session.open(readonly=True).close()  # a missing or damaged model is an error of the command
    judge = ModelSession(plan_of(session.settings, session.home, session.persons), log=session.log)
    rules = session.model_config().teaching
    return MailboxModel(judge, lambda: session.open(readonly=True), rules, check.checked)


class _TeachTarget:
    """The model, or the daemon that serves it, and the output; used by several threads."""

    def __init__(self, session: CliSession, model: MailboxModel, *, as_json: bool) -> None:
        self._session = session
        self._model = model
        self._as_json = as_json
        self._lock = threading.Lock()

    def teach(self, feedback: Feedback) -> Answer:
        """Apply a label by the user of a mailbox, within that user's quota."""
        from spamnb.feedback.values import Answer

        with self._model.closed(), teacher(self._session) as (target, _):
            try:
                return target.teach(feedback)
            except UserError as error:
                return Answer("refused", reason=str(error))

    def report(self, report: ImapReport) -> None:
        """Print what was done with a message."""
        place = f"{report.account} {report.folder} {report.uid}"
        with self._lock:
            if report.done == "refused":
                warn(f"{place}: {report.text}")
            elif report.answer is not None:
                show(place, report.answer, as_json=self._as_json)
            elif self._as_json:
                say_json({"path": place} | report.facts())
            else:
                _say_judged(place, report)
            sys.stdout.flush()

    def trouble(self, name: str, error: SpamnbError, pause_s: float) -> None:
        """Print why a mailbox cannot be read."""
        hint = f" - {error.hint}" if error.hint else ""
        with self._lock:
            warn(f"{name}: {error}{hint}; trying again in {pause_s:.0f} s")


def _say_judged(place: str, report: ImapReport) -> None:
    shown = "" if report.probability is None else f" {report.probability:.4f}"
    decision = coloured(f"{report.decision:<7}", report.decision)
    reason = f": {report.text}" if report.text else ""
    say(f"{decision}{shown} {safe(place)}: {report.done}{safe(reason)}")
