"""`spamnb status` and `spamnb watch`: the daemon's state; training by moves between folders."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.correct import show
from spamnb.cli.main import command
from spamnb.cli.options import Number
from spamnb.cli.printing import safe, say, shown_time, table, warn
from spamnb.cli.session import CliSession, asking, pass_session, teacher
from spamnb.errors import StoreError, UserError
from spamnb.telemetry import duration

if TYPE_CHECKING:
    from spamnb.feedback.values import Answer, Feedback
    from spamnb.maildir import Maildir, Watcher

EXAMPLES = """
spamnb status                     as text
spamnb status --json              for programs
spamnb status --prometheus        for Prometheus' textfile collector
"""
_SYSTEM_SPOOL = Path("/var/spool/spamnb")
_CLOSED = (
    "this user cannot enter the home, in which the socket of the daemon may be: a daemon may run; "
    "ask an administrator, or set serve.control to a path that users can reach"
)


@command("Show the state of the daemon.", EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--prometheus", is_flag=True, help="Print metrics in Prometheus' text format.")
@pass_session
@click.pass_context
def status(ctx: click.Context, session: CliSession, as_json: bool, prometheus: bool) -> None:
    """Show the daemon's processes and counters, the state of the model, and warnings.

    Without a running daemon the exit code is 1, and only the state of the home is shown. Works
    while the settings have a mistake, too.
    """
    if as_json and prometheus:
        raise UserError("--json and --prometheus exclude each other")
    session.tolerate_mistakes()
    with asking(session) as client:
        if prometheus:
            click.echo(client.ask("metrics").body.decode(), nl=False)
            return
        facts = client.ask("status").header["status"]
    facts["serving"] = "processes" in facts
    if as_json:
        click.echo(json.dumps(facts))
    elif not facts["serving"] and _is_closed(session.home):
        say(_CLOSED)
    else:
        _show(facts)
        if not facts["serving"] and (waiting := _waiting_moves(session)):
            say(f"! moves of messages wait in the spool ({waiting}): a started daemon learns them")
    if not facts["serving"]:
        ctx.exit(1)


def _waiting_moves(session: CliSession) -> int:
    """Return the number of files in the spools, which only a daemon empties."""
    named = session.settings.feedback.spool
    folders = [Path(named)] if named else [session.home / "spool", _SYSTEM_SPOOL]
    return sum(
        not path.name.startswith(".")
        for folder in folders
        if os.access(folder, os.R_OK)
        for path in folder.iterdir()
    )


def _is_closed(home: Path) -> bool:
    """Return whether this user cannot enter the home, so that a socket in it cannot be seen."""
    return os.path.lexists(home) and not os.access(home, os.X_OK)


def _show(facts: dict[str, Any]) -> None:
    if not facts["serving"]:
        say("no daemon serves this home; these facts are read from its files")
    table(_rows(facts))
    if facts.get("processes"):
        say()
        table(map(_process, facts["processes"]), right=(2, 3, 5, 6))
    if facts.get("counters"):
        say()
        table(_counted(facts["counters"]), right=(1,))
    for warning in facts.get("warnings", ()):
        say(f"! {safe(warning)}")


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    if "home" in facts:
        rows.append(("home", str(facts["home"])))
    if "up_s" in facts:
        rows.append(("up", duration(facts["up_s"])))
    rows.append(("scanning", "off (bypass)" if facts["bypass"] else "on"))
    rows += _of_model(facts["model"]) if facts["model"] else [("model", _unusable(facts))]
    if observed := facts.get("observing"):
        from spamnb.operations.status import observation_text

        since = shown_time(observed["since_us"])
        rows.append(("observing", f"since {since}, {observation_text(observed)}"))
    if facts["live"]:
        rows.append(("live", "listeners with observe = true mark mail (to end: spamnb live off)"))
    rows.append(("review", f"{facts.get('review', 0)} queued"))
    kept = facts.get("quarantine") or {"messages": 0, "bytes": 0}
    rows.append(("quarantine", f"{kept['messages']} messages, {kept['bytes']} bytes"))
    for one in facts.get("mailboxes_away", ()):
        since = shown_time(one["since_us"])
        what = f"cannot be read since {since}: {one['reason']}"
        rows.append((f"mailbox {one['account']}", what))
    spool = facts.get("spool")
    if spool:
        rows.append(("spool", f"{spool['waiting']} waiting, {spool['set_aside']} set aside"))
    fleet = facts.get("fleet")
    if fleet:
        folded = f"{fleet['folded_entries']} entries folded"
        rows.append(("fleet", f"{folded}, last at the log's end {duration(fleet['lag_s'])} ago"))
        if fleet["waiting"]:
            oldest = duration(fleet["waiting_s"])
            rows.append(("waiting", f"{fleet['waiting']} corrections, the oldest for {oldest}"))
    return rows


def _unusable(facts: dict[str, Any]) -> str:
    return str(facts.get("fault") or "cannot be used")


def _of_model(model: dict[str, Any]) -> list[tuple[str, str]]:
    from spamnb.engine.site_scores import threshold_text

    rows = []
    for label, count in model["messages"].items():
        last = model["learnt"][label]
        when = f"last trained {shown_time(last)}" if last else "none trained lately"
        rows.append((label, f"{count} messages, {when}"))
    size = f"{model['features']} features, {model['events']} events, {model['store_bytes']} bytes"
    size += f" of at most {model['store_limit_bytes']}" if model["store_limit_bytes"] else ""
    rows.append(("model", size))
    rows.append(("threshold", threshold_text(model["threshold"])))
    past = ", ".join(
        f"{one['log_odds']:.2f} on {shown_time(one['time_us'])}"
        for one in model["threshold"]["past"][:3]
    )
    if past:
        rows.append(("lately", past))
    persons = model["persons"]
    if persons["count"]:
        largest = f"{persons['bytes']} bytes, the largest {persons['largest']}"
        rows.append(("persons", f"{persons['count']} with corrections, {largest}"))
    return rows


def _process(process: dict[str, Any]) -> tuple[str, ...]:
    return (
        process["role"], process["state"], f"pid {process['pid']}",
        f"started {process['starts']} times", f"up {duration(process['up_s'])}",
        f"seen {process['beat_age_s']:.0f} s ago", f"{process['open']} open",
    )  # fmt: skip


def _counted(counters: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return rows for the counters above 0 and the durations."""
    from spamnb.operations.status import quantile

    rows: list[tuple[str, ...]] = []
    for name, found in counters.items():
        if isinstance(found, dict) and found["count"]:
            half, most = quantile(found, 0.5), quantile(found, 0.99)
            rows.append((name, "", f"{found['count']}: 50 % within {half} s, 99 % within {most} s"))
        elif isinstance(found, int) and found:
            rows.append((name.replace("_", " "), str(found), ""))
    return rows


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
    from spamnb.maildir import FileCheckpoint, Folders, Watcher, WatchOptions

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
            _show_answers(watcher.all_due(), as_json=as_json)
        else:
            _watch(watcher, as_json=as_json)
    finally:
        watcher.close()


def _watch(watcher: Watcher, *, as_json: bool) -> None:
    """Watch until SIGTERM; a store that fails is tried again."""
    with _told_to_stop() as stopped:
        while not stopped.is_set():
            try:
                _show_answers(watcher.watch(stopped.is_set), as_json=as_json)
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


def _show_answers(answers: Iterator[tuple[Feedback, Answer, Path]], *, as_json: bool) -> None:
    for _, answer, path in answers:
        if answer.state == "refused":
            warn(f"{path}: {answer.reason}")
            continue
        show(str(path), answer, as_json=as_json)
        sys.stdout.flush()


def _maildir(text: str) -> Maildir:
    from spamnb.maildir import Maildir
    from spamnb.operations.request import login_of

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
        from spamnb.feedback.values import Answer

        with teacher(self._session) as (target, me):
            is_own = feedback.user == me.user and self._session.persons is None
            trust = me.trust if is_own else "user"
            try:
                return target.teach(replace(feedback, trust=trust))
            except UserError as error:
                return Answer("refused", reason=str(error))
