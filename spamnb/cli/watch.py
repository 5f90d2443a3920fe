"""`spamnb watch`: learns from where people's messages lie."""

from __future__ import annotations

import pwd
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
from spamnb.cli.help import taught
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
spamnb watch --once ~/Maildir                what was moved since the last run: for cron
"""
STATE_FILE = "watch.json"
AGAIN_S = 10.0


@taught("Learn from where messages lie in Maildirs.", WATCH_EXAMPLES)
@click.argument("maildirs", nargs=-1, required=True, metavar="[WHO=]MAILDIR...")
@click.option("--quiet", "quiet_s", type=Number(0), default=30.0, show_default=True,
              metavar="SECONDS", help="How long a message must lie still.")  # fmt: skip
@click.option("--junk", multiple=True, metavar="FOLDER",
              help="A folder of junk (repeatable). Else Junk and Spam.")  # fmt: skip
@click.option("--silent", multiple=True, metavar="FOLDER", help="A folder that says nothing "
              "(repeatable). Else Trash, Sent, Drafts and the like.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look at what was moved since the last run, and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each message.")
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
    """Learn from where messages lie: who moves one into Junk says spam, who takes it out says ham.

    Where the filter put a message teaches nothing, nor does throwing it away. WHO is the person, by
    default the folder's owner. The first run begins now; for mail that lies there already there is
    `spamnb train`. Needs no daemon, and teaches through it if there is one.
    """
    from spamnb.endpoints.maildir.checkpoint import FileCheckpoint
    from spamnb.endpoints.maildir.folder_roles import Folders
    from spamnb.endpoints.maildir.watcher import Watcher, WatchOptions

    usual = Folders()
    folders = Folders(junk or usual.junk, silent or usual.silent)
    people = [_maildir(text) for text in maildirs]
    key = " ".join(sorted(str(one.root) for one in people))
    memory = FileCheckpoint(session.home / STATE_FILE, key)
    patience = WatchOptions(0.0 if once else quiet_s, folders)
    desk = _WatchTarget(session)
    watcher = Watcher(people, desk.label_of, desk.teach, memory, patience)
    try:
        watcher.begin()
        if once:
            _show(watcher.due(), as_json=as_json)
        else:
            _go_on(watcher, as_json=as_json)
    finally:
        watcher.close()


def _go_on(watcher: Watcher, *, as_json: bool) -> None:
    """Until somebody says stop; a store that fails is tried again."""
    with _told_to_stop() as stopped:
        while not stopped.is_set():
            try:
                _show(watcher.watch(stopped.is_set), as_json=as_json)
            except StoreError as error:
                warn(f"{error}; trying again in {AGAIN_S:.0f} s")
                stopped.wait(AGAIN_S)


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Set by SIGTERM; Ctrl-C ends as it does everywhere."""
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(words: Iterator[tuple[Feedback, Answer, Path]], *, as_json: bool) -> None:
    for _, answer, path in words:
        if answer.state == "refused":
            warn(f"{path}: {answer.reason}")
            continue
        show(str(path), answer, as_json=as_json)
        sys.stdout.flush()


def _maildir(text: str) -> Maildir:
    from spamnb.endpoints.maildir.watcher import Maildir

    who, equals, path = text.partition("=")
    root = Path(path if equals else text).expanduser().absolute()
    try:
        owner = root.stat().st_uid
    except OSError as error:
        raise UserError(f"{root} cannot be watched: {error.strerror}") from error
    return Maildir(root, who if equals else _name_of(owner))


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class _WatchTarget:
    """The model, here or behind a daemon, found anew for each word: daemons come and go."""

    def __init__(self, session: CliSession) -> None:
        self._session = session

    def label_of(self, raw: bytes) -> str | None:
        """What was taught of a message."""
        from spamnb.core.model.events import NO_LABEL

        with self._session.open(readonly=True) as model, model.store.read() as view:
            live = view.live(model.example(raw).digest)
        return None if live is None or live.label == NO_LABEL else model.labels[live.label]

    def teach(self, feedback: Feedback) -> Answer:
        """One word of the person whose mail it is."""
        with teacher(self._session) as (desk, me):
            return desk.teach(replace(feedback, trust=me.trust))
