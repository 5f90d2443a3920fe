"""`spamnb watch`: train with messages that users move between Maildir folders."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spamnb.cli.correct import show
from spamnb.cli.daemon_client import teacher
from spamnb.cli.help import command
from spamnb.cli.options import Number
from spamnb.cli.printing import warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import StoreError, UserError

if TYPE_CHECKING:
    from spamnb.endpoints.maildir.watcher import Maildir, Watcher
    from spamnb.service.feedback.types import Answer, Feedback

WATCH_EXAMPLES = """
spamnb watch ~/Maildir                       until Ctrl-C
spamnb watch alice=/var/mail/alice bob=/var/mail/bob
spamnb watch --once ~/Maildir                moves since the last run: for cron
"""
STATE_FILE = "watch.json"
AGAIN_S = 10.0


@command("Train with messages moved in Maildirs.", WATCH_EXAMPLES)
@click.argument("maildirs", nargs=-1, required=True, metavar="[USER=]MAILDIR...")
@click.option("--quiet", "quiet_s", type=Number(0), default=30.0, show_default=True,
              metavar="SECONDS", help="Time that a moved message must stay in its folder before it "
              "is trained.")  # fmt: skip
@click.option("--junk", multiple=True, metavar="FOLDER",
              help="A junk folder; repeatable. Default: Junk and Spam.")  # fmt: skip
@click.option("--silent", multiple=True, metavar="FOLDER", help="A folder to ignore; repeatable. "
              "Default: Trash, Sent, Drafts and similar ones.")  # fmt: skip
@click.option("--once", is_flag=True, help="Handle the moves since the last run, then exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@pass_session
def watch(
    session: CliSession,
    maildirs: tuple[str, ...],
    quiet_s: float,
    junk: tuple[str, ...],
    silent: tuple[str, ...],
    once: bool,
    as_json: bool,
) -> None:
    """Train with moved messages: into Junk is spam, out of Junk is ham.

    Deleted messages, and messages that the filter itself put into a folder, are not trained. The
    events name USER, by default the folder's owner. The first run only records the current state;
    use `spamnb train` for mail that is already there. Works with and without a running daemon.
    """
    from spamnb.endpoints.maildir.checkpoint import FileCheckpoint
    from spamnb.endpoints.maildir.folder_roles import Folders
    from spamnb.endpoints.maildir.watcher import Watcher, WatchOptions

    usual = Folders()
    folders = Folders(junk or usual.junk, silent or usual.silent)
    watched = [_maildir(text) for text in maildirs]
    key = " ".join(sorted(str(one.root) for one in watched))
    checkpoint = FileCheckpoint(session.home / STATE_FILE, key)
    options = WatchOptions(0.0 if once else quiet_s, folders)
    target = _WatchTarget(session)
    watcher = Watcher(watched, target.label_of, target.teach, checkpoint, options)
    try:
        watcher.begin()
        if once:
            _show(watcher.all_due(), as_json=as_json)
        else:
            _watch(watcher, as_json=as_json)
    finally:
        watcher.close()


def _watch(watcher: Watcher, *, as_json: bool) -> None:
    """Watch until SIGTERM; a store that fails is tried again."""
    with _told_to_stop() as stopped:
        while not stopped.is_set():
            try:
                _show(watcher.watch(stopped.is_set), as_json=as_json)
            except StoreError as error:
                warn(f"{error}; trying again in {AGAIN_S:.0f} s")
                stopped.wait(AGAIN_S)


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets; Ctrl-C raises KeyboardInterrupt as usual."""
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(answers: Iterator[tuple[Feedback, Answer, Path]], *, as_json: bool) -> None:
    for _, answer, path in answers:
        if answer.state == "refused":
            warn(f"{path}: {answer.reason}")
            continue
        show(str(path), answer, as_json=as_json)
        sys.stdout.flush()


def _maildir(text: str) -> Maildir:
    from spamnb.endpoints.maildir.watcher import Maildir
    from spamnb.service.admin.request import login_of

    user, equals, path = text.partition("=")
    root = Path(path if equals else text).expanduser().absolute()
    try:
        owner = root.stat().st_uid
    except OSError as error:
        raise UserError(f"{root} cannot be watched: {error.strerror}") from error
    return Maildir(root, user if equals else login_of(owner))


class _WatchTarget:
    """The model, or the daemon that serves it; looked up for each message: both may change."""

    def __init__(self, session: CliSession) -> None:
        self._session = session

    def label_of(self, raw: bytes, user: str) -> str | None:
        """Return the label that a message is trained with for a user; None if it is not."""
        config = self._session.model_config()
        with self._session.open(readonly=True) as model:
            return model.trained_label(raw, model.source_of(user, config.teaching, config.persons))

    def teach(self, feedback: Feedback) -> Answer:
        """Apply feedback of the user of the Maildir; a refused one does not end the watch.

        If an administrator watches the Maildirs of other users, these users get no further rights:
        their mail counts within their own quota.
        """
        from spamnb.service.feedback.types import Answer

        with teacher(self._session) as (target, me):
            is_own = feedback.user == me.user and self._session.persons is None
            trust = me.trust if is_own else "user"
            try:
                return target.teach(replace(feedback, trust=trust))
            except UserError as error:
                return Answer("refused", reason=str(error))
