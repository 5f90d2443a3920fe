"""`spamnb doctor`: end-to-end check of delivery and training with a test message."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spamnb.cli.import_ahead import import_ahead
from spamnb.cli.main import command
from spamnb.cli.options import Number, command_words
from spamnb.cli.printing import safe, say, say_json, wants_colour
from spamnb.cli.session import CliSession, as_root, checked, pass_session, served, teacher
from spamnb.errors import PeerError, UserError

if TYPE_CHECKING:
    from spamnb.feedback.values import Answer, Feedback
    from spamnb.maintenance.doctor import CheckResult, DoctorPorts, Mailbox, ModelRecords
    from spamnb.net.address import Address

EXAMPLES = """
spamnb doctor                                       only the daemon and the model
spamnb doctor --smtp localhost:25 --rcpt alice@example.org --imap localhost:143 --user alice
spamnb doctor --smtp localhost:25 --rcpt alice@example.org --user alice \\
    --imap-program "/usr/lib/dovecot/imap -u alice"   no password, as root beside Dovecot
spamnb doctor --rcpt alice@example.org --maildir ~/Maildir      with a running `spamnb watch`
"""
_IMAP_PORT = 993
_MARKS = {"ok": "green", "broken": "red", "skipped": "yellow"}


@command("Check delivery and training with a test message.", EXAMPLES)
@click.option("--rcpt", metavar="ADDRESS", help="Recipient of the test message.")
@click.option("--smtp", metavar="ADDR", help="Server that the message is sent to: your mail "
              "server, or spamnb. Default: the first listener of the settings.")  # fmt: skip
@click.option("--imap", metavar="HOST[:PORT]", help="IMAP server where the message arrives. "
              "Default port: 993.")  # fmt: skip
@click.option("--imap-program", metavar="COMMAND", type=command_words,
              help="Instead of --imap: a program that opens the mailbox without a password, "
              "such as Dovecot's `imap -u USER`.")  # fmt: skip
@click.option("--maildir", metavar="DIR", help="Maildir where the message arrives, if `spamnb "
              "watch` watches it.")  # fmt: skip
@click.option("--user", metavar="NAME", help="User of the mailbox, as named in the journal. "
              "Default: --rcpt; for a Maildir its owner.")  # fmt: skip
@click.option("--password-file", metavar="FILE", help="File with the IMAP password in its first "
              "line. Default: ask for the password.")  # fmt: skip
@click.option("--junk", metavar="FOLDER", default="", help="The junk folder. Default: the one that "
              "the server marks as such, or Junk.")  # fmt: skip
@click.option("--wait", "wait_s", type=Number(0.1, 3600), default=60.0, show_default=True,
              metavar="SECONDS", help="Time limit of each check; must be longer than --quiet of "
              "`spamnb watch`.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: ok, message_id, "
              "checks.")  # fmt: skip
@pass_session
@click.pass_context
def doctor(ctx: click.Context, session: CliSession, /, as_json: bool, **options: Any) -> None:
    """Check delivery and training end to end with a test message; report the failing step.

    The doctor sends the message, finds it in the mailbox, moves it to Junk and back as a user
    would, and looks for the resulting events in the journal. Then it deletes the message and
    removes its training, also after a failure or Ctrl-C. Steps without the necessary options are
    skipped. The exit code is 1 if a step fails.
    """
    from spamnb.maintenance.doctor import Doctor

    runner = Doctor(_ports(session, _DoctorOptions(**options)))
    results: list[CheckResult] = []

    def report(result: CheckResult) -> None:
        results.append(result)
        if not as_json:
            _show(result)

    with _signals_interrupt():
        try:
            for result in runner.walk():
                report(result)
        finally:
            with _signals_ignored():
                report(runner.clean())
                if as_json:
                    say_json(_as_dict(runner.message_id, results))
    if any(result.state == "broken" for result in results):
        ctx.exit(1)


class _DoctorOptions(NamedTuple):
    rcpt: str | None
    smtp: str | None
    imap: str | None
    imap_program: list[str] | None
    maildir: str | None
    user: str | None
    password_file: str | None
    junk: str
    wait_s: float


def _ports(session: CliSession, options: _DoctorOptions) -> DoctorPorts:
    """Build the ports from the options; invalid options raise before anything is sent."""
    from spamnb.daemon.config_checks import next_hop_faults
    from spamnb.maintenance.doctor import DoctorPorts, checked_recipient

    import_ahead()
    if len([one for one in (options.imap, options.imap_program, options.maildir) if one]) > 1:
        raise UserError("--imap, --imap-program and --maildir exclude each other")
    rcpt = checked_recipient(options.rcpt) if options.rcpt else ""
    submission = _address(options.smtp or _first_listener(session), "--smtp") if rcpt else None
    opened = None
    if options.imap:
        opened = _imap(options, options.user or rcpt)
    elif options.imap_program:
        opened = _imap_program(options, options.user or rcpt)
    elif options.maildir:
        opened = _maildir(options.maildir, options)
    return DoctorPorts(
        status=partial(_status, session),
        open_records=partial(_ledger, session),
        open_mailbox=opened,
        submit=partial(_submit, submission) if submission else None,
        rcpt=rcpt,
        wait_s=options.wait_s,
        next_hops=lambda: list(next_hop_faults(session.settings)),
        names=session.persons,
        logins=_logins(session),
    )


def _logins(session: CliSession) -> dict[str, tuple[str, ...]]:
    """Return the logins that the settings name, with their addresses."""
    from spamnb.operations.logins import read_logins

    settings = session.settings
    found: dict[str, tuple[str, ...]] = {one.user: () for one in settings.imap.values() if one.user}
    if settings.delivery.passwords:
        logins = read_logins(Path(settings.delivery.passwords)).values()
        found |= {login.name: login.addresses for login in logins}
    return found


def _first_listener(session: CliSession) -> str:
    from spamnb.settings.schema import ListenerSettings

    listeners = session.settings.listener.values()
    return next(iter(listeners), ListenerSettings()).address


def _address(text: str, option: str) -> Address:
    from spamnb.net.address import Address

    try:
        return Address.parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error


# --- the daemon and the model --------------------------------------------------------------------


def _status(session: CliSession) -> dict[str, Any] | None:
    """Return the status of the daemon; None without one."""
    from spamnb.operations.protocol import ControlClient

    daemon = served(session)
    if daemon is None:
        return None
    if daemon.role != "admin":
        raise UserError(
            "only administrators may use `doctor`", hint="run it as root, or as the home's owner"
        )
    with ControlClient(daemon.control) as caller:
        found: dict[str, Any] = caller.ask("status").header["status"]
    return found


def _ledger(session: CliSession) -> ModelRecords:
    from spamnb.maintenance.doctor import ModelRecords

    opened = partial(session.open, readonly=True, history=True)
    return ModelRecords(opened, session.home, partial(_forget, session), session.persons)


def _forget(session: CliSession, feedback: Feedback) -> Answer:
    from dataclasses import replace

    with teacher(session) as (target, me):
        return checked(
            target.teach(replace(me, refs=feedback.refs, label="", person=feedback.person))
        )


# --- the mail ------------------------------------------------------------------------------------


def _submit(address: Address, raw: bytes, rcpt: str) -> str:
    """Send a message with the empty sender, so that no bounce is ever sent."""
    from spamnb.net.clients import SendPlan, deliver
    from spamnb.scan.values import ReleasedMessage

    rcpt_line = f"RCPT TO:<{rcpt}>".encode("ascii")
    released = ReleasedMessage(raw, b"MAIL FROM:<>", (rcpt_line,))
    try:
        (reply,) = deliver(address, released, SendPlan(final_s=120.0))
    except PeerError as error:
        raise PeerError(
            str(error), reply=error.reply
        ) from error  # without its hint, which names the next hop
    if reply.code // 100 not in (0, 2):
        raise PeerError(f"{address} replied {reply}", reply=str(reply).encode())
    return f"{address} replied {reply}"


def _imap(options: _DoctorOptions, user: str) -> Any:
    """Return a function that opens the mailbox."""
    from spamnb.imap.sync import ImapAccount, ImapMailbox

    if not user:
        raise UserError("--imap needs a --user")
    text = str(options.imap)
    has_port = text.rpartition(":")[2].isdigit()
    address = _address(text if has_port else f"{text}:{_IMAP_PORT}", "--imap")
    password = read_password(options.password_file, user)
    account = ImapAccount(
        address.host, address.port, user, password, options.junk, max(10.0, options.wait_s)
    )
    return partial(ImapMailbox.open, account)


def _imap_program(options: _DoctorOptions, user: str) -> Any:
    """Return a function that opens the mailbox by a program."""
    from spamnb.imap.sync import ImapAccount, ImapMailbox

    if not user:
        raise UserError("--imap-program needs a --user")
    command = options.imap_program or []
    account = ImapAccount(command[0], 0, user, "", options.junk, max(10.0, options.wait_s))

    def opened() -> Mailbox:
        with as_root():
            return ImapMailbox.open(account, command)

    return opened


def read_password(file: str | None, user: str) -> str:
    """The password in the first line of a file; asked for on a terminal if there is none."""
    if file is None:
        if not sys.stdin.isatty():
            raise UserError("no password is given", hint="--password-file FILE")
        found: str = click.prompt(f"IMAP password of {safe(user)}", hide_input=True, err=True)
        return found
    try:
        return Path(file).read_text("utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error


def _maildir(text: str, options: _DoctorOptions) -> Any:
    from spamnb.maildir import MaildirLocation, MaildirMailbox

    root = Path(text).expanduser().absolute()

    def opened() -> Mailbox:
        user = options.user or _owner(root)
        acting = partial(_as_owner_of, root)
        return MaildirMailbox.open(MaildirLocation(root, user, options.junk or "Junk", acting))

    return opened


def _owner(root: Path) -> str:
    from spamnb.operations.request import login_of

    try:
        uid = _owner_stat(root).st_uid
    except OSError as error:
        raise PeerError(f"{root} cannot be opened: {error.strerror}") from error
    return login_of(uid)


def _owner_stat(root: Path) -> os.stat_result:
    """Return the owner of a Maildir: the first user on its path that could replace it by a link."""
    from spamnb.store.files import owner_of

    uid = os.geteuid()
    os.seteuid(os.getuid())
    try:
        return owner_of(root)
    finally:
        os.seteuid(uid)


@contextmanager
def _as_owner_of(root: Path) -> Iterator[None]:
    """Take the user id of the Maildir's owner if root runs this; the model's owner cannot read it.

    Root must not access it, because the owner of a folder controls the links in it.
    """
    if os.getuid() != 0:
        yield
        return
    uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
    os.seteuid(0)
    try:
        owner = _owner_stat(root)
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setgroups(groups)
        os.setegid(gid)
        os.seteuid(uid)


# --- signals and output ---------------------------------------------------------------------------

_STOPS = (signal.SIGTERM, signal.SIGHUP)


def _signals_interrupt() -> AbstractContextManager[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that the test message is cleaned up."""
    return _signals(_STOPS, signal.default_int_handler)


def _signals_ignored() -> AbstractContextManager[None]:
    """Ignore signals while cleaning up, which is limited in time."""
    return _signals((signal.SIGINT, *_STOPS), signal.SIG_IGN)


@contextmanager
def _signals(
    numbers: Iterable[int], handler: Callable[..., Any] | signal.Handlers
) -> Iterator[None]:
    """Install a handler for these signals, and restore the old ones at the end."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _show(result: CheckResult) -> None:
    mark = f"{result.state:<8}"
    if wants_colour():
        mark = click.style(mark, fg=_MARKS[result.state])
    say(f"{mark} {result.check:<15} {safe(result.what)}")
    if result.todo:
        say(f"{'':<8} {'':<15} -> {safe(result.todo)}")
    sys.stdout.flush()


def _as_dict(message_id: str, results: list[CheckResult]) -> dict[str, Any]:
    return {
        "ok": all(result.state != "broken" for result in results),
        "message_id": message_id,
        "checks": [result._asdict() for result in results],
    }
