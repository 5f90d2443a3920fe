"""`spamnb doctor`: sends a message the whole way of learning, and says which hop is broken."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spamnb.cli.daemon_client import checked, served, teacher
from spamnb.cli.help import taught
from spamnb.cli.options import Number
from spamnb.cli.printing import safe, say, say_json, wants_colour
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import PeerError, UserError

if TYPE_CHECKING:
    from spamnb.endpoints.net.address import Address
    from spamnb.service.diagnostics.doctor import CheckResult
    from spamnb.service.diagnostics.ports import DoctorPorts, Mailbox
    from spamnb.service.diagnostics.records import ModelRecords
    from spamnb.service.feedback.types import Answer, Feedback

EXAMPLES = """
spamnb doctor                                       the daemon and the model alone
spamnb doctor --smtp localhost:25 --rcpt alice@example.org --imap localhost:143 --user alice
spamnb doctor --rcpt alice@example.org --maildir ~/Maildir      `spamnb watch` is running
"""
_IMAP_PORT = 993
_LATER = (
    "spamnb.endpoints.net.smtp_client",
    "spamnb.endpoints.control.protocol",
    "spamnb.service.feedback.service",
    "spamnb.store.folders",
    "spamnb.service.diagnostics.records",
)
_MARKS = {"ok": "green", "broken": "red", "skipped": "yellow"}


@taught("Walk the whole way of learning with a test message.", EXAMPLES)
@click.option("--rcpt", metavar="ADDRESS", help="Whom the test message is sent to.")
@click.option("--smtp", metavar="ADDR", help="Where it is handed in: your mail server, or spamnb; "
              "else the first listener of the settings.")  # fmt: skip
@click.option("--imap", metavar="HOST[:PORT]", help="Where it arrives. Port 993 if none is given.")
@click.option("--maildir", metavar="DIR", help="Where it arrives, if `spamnb watch` teaches.")
@click.option("--user", metavar="NAME", help="Whose mailbox it is, as the journal names them. Else "
              "--rcpt; for a Maildir its owner.")  # fmt: skip
@click.option("--password-file", metavar="FILE", help="The IMAP password in its first line; else "
              "it is asked for.")  # fmt: skip
@click.option("--junk", metavar="FOLDER", default="", help="The folder of junk. Else the one that "
              "the server calls so, or Junk.")  # fmt: skip
@click.option("--wait", "wait_s", type=Number(0.1, 3600), default=60.0, show_default=True,
              metavar="SECONDS", help="How long to wait for each hop; longer than --quiet of "
              "`spamnb watch`.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object: ok, message_id, hops.")
@pass_session
@click.pass_context
def doctor(ctx: click.Context, session: CliSession, /, as_json: bool, **options: Any) -> None:
    """Walk the whole way of learning with a test message, and say which hop is broken.

    It is sent, found, moved to Junk and back, as a person would; what that taught must be seen in
    the journal. Then it is deleted and forgotten, also after a failure or Ctrl-C. What is not
    given is skipped. The exit code is 1 if a hop is broken.
    """
    from spamnb.service.diagnostics.doctor import Doctor

    walker = Doctor(_means(session, _DoctorOptions(**options)))
    findings: list[CheckResult] = []

    def tell(finding: CheckResult) -> None:
        findings.append(finding)
        if not as_json:
            _show(finding)

    with _told_to_stop():
        try:
            for finding in walker.walk():
                tell(finding)
        finally:
            with _undisturbed():
                tell(walker.clean())
                if as_json:
                    say_json(_told(walker.message_id, findings))
    if any(finding.state == "broken" for finding in findings):
        ctx.exit(1)


class _DoctorOptions(NamedTuple):
    rcpt: str | None
    smtp: str | None
    imap: str | None
    maildir: str | None
    user: str | None
    password_file: str | None
    junk: str
    wait_s: float


def _means(session: CliSession, options: _DoctorOptions) -> DoctorPorts:
    """What the options give; what makes no sense is told before anything is sent."""
    from spamnb.service.diagnostics.ports import DoctorPorts, checked_recipient

    _import_ahead()
    if options.imap and options.maildir:
        raise UserError("--imap and --maildir exclude each other")
    rcpt = checked_recipient(options.rcpt) if options.rcpt else ""
    hand_in = _address(options.smtp or _first_listener(session), "--smtp") if rcpt else None
    opened = None
    if options.imap:
        opened = _imap(options, options.user or rcpt)
    elif options.maildir:
        opened = _maildir(options.maildir, options)
    return DoctorPorts(
        status=partial(_status, session),
        open_ledger=partial(_ledger, session),
        open_mailbox=opened,
        carry=partial(_carry, hand_in) if hand_in else None,
        rcpt=rcpt,
        wait_s=options.wait_s,
    )


def _import_ahead() -> None:
    """Import what comes later: root becomes the model's owner, who may not read our Python."""
    for module in _LATER:
        import_module(module)


def _first_listener(session: CliSession) -> str:
    from spamnb.settings.schema import ListenerSettings

    listeners = session.settings.listener.values()
    return next(iter(listeners), ListenerSettings()).address


def _address(text: str, option: str) -> Address:
    from spamnb.endpoints.net.address import Address

    try:
        return Address.parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error


# --- the daemon and the model --------------------------------------------------------------------


def _status(session: CliSession) -> dict[str, Any] | None:
    """The daemon's facts."""
    from spamnb.endpoints.control.protocol import ControlClient

    daemon = served(session)
    if daemon is None:
        return None
    if daemon.role != "admin":
        raise UserError("the doctor is for admins", hint="run it as root, or as the home's owner")
    with ControlClient(daemon.control) as caller:
        found: dict[str, Any] = caller.ask("status").header["status"]
    return found


def _ledger(session: CliSession) -> ModelRecords:
    from spamnb.service.diagnostics.records import ModelRecords

    opened = partial(session.open, readonly=True, history=True)
    return ModelRecords(opened, session.home, partial(_forget, session))


def _forget(session: CliSession, feedback: Feedback) -> Answer:
    from dataclasses import replace

    with teacher(session) as (desk, me):
        return checked(desk.teach(replace(me, refs=feedback.refs, label="")))


# --- the mail ------------------------------------------------------------------------------------


def _carry(address: Address, raw: bytes, rcpt: str) -> str:
    """Hand a message in, from nobody: whatever becomes of it, no answer is sent to anybody."""
    from spamnb.endpoints.net.smtp_client import SendPlan, deliver
    from spamnb.service.scanning.quarantine import ReleasedMessage

    rcpt_line = f"RCPT TO:<{rcpt}>".encode("ascii")
    released = ReleasedMessage(raw, b"MAIL FROM:<>", (rcpt_line,))
    try:
        (reply,) = deliver(address, released, SendPlan(final_s=120.0))
    except PeerError as error:
        raise PeerError(str(error), reply=error.reply) from error  # its hint is for another hop
    if reply.code // 100 not in (0, 2):
        raise PeerError(f"{address} said {reply}", reply=str(reply).encode())
    return f"{address} said {reply}"


def _imap(options: _DoctorOptions, user: str) -> Any:
    """How the mailbox is opened."""
    from spamnb.endpoints.mailbox.imap import ImapAccount, ImapMailbox

    if not user:
        raise UserError("--imap needs a --user")
    text = str(options.imap)
    has_port = text.rpartition(":")[2].isdigit()
    place = _address(text if has_port else f"{text}:{_IMAP_PORT}", "--imap")
    password = _password(options.password_file, user)
    account = ImapAccount(
        place.host, place.port, user, password, options.junk, max(10.0, options.wait_s)
    )
    return partial(ImapMailbox.open, account)


def _password(file: str | None, user: str) -> str:
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
    from spamnb.endpoints.mailbox.maildir import MaildirLocation, MaildirMailbox

    root = Path(text).expanduser().absolute()

    def opened() -> Mailbox:
        who = options.user or _owner(root)
        acting = partial(_as_owner_of, root)
        return MaildirMailbox.open(MaildirLocation(root, who, options.junk or "Junk", acting))

    return opened


def _owner(root: Path) -> str:
    try:
        uid = _held_by(root).st_uid
    except OSError as error:
        raise PeerError(f"{root} cannot be opened: {error.strerror}") from error
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _held_by(root: Path) -> os.stat_result:
    """Tell whose a Maildir is: of the first user on the way who could put a link there."""
    from spamnb.store.folders import owner_of

    uid = os.geteuid()
    os.seteuid(os.getuid())
    try:
        return owner_of(root)
    finally:
        os.seteuid(uid)


@contextmanager
def _as_owner_of(root: Path) -> Iterator[None]:
    """Be whose mail it is, if we may be anybody: the model's owner cannot read it.

    Not root, for whoever owns a folder chooses what its links mean.
    """
    if os.getuid() != 0:
        yield
        return
    uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
    os.seteuid(0)
    try:
        held = _held_by(root)
        os.setgroups([])
        os.setegid(held.st_gid)
        os.seteuid(held.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setgroups(groups)
        os.setegid(gid)
        os.seteuid(uid)


# --- signals and words ---------------------------------------------------------------------------

_STOPS = (signal.SIGTERM, signal.SIGHUP)


def _told_to_stop() -> AbstractContextManager[None]:
    """Whatever ends us ends us as Ctrl-C does, so that nothing is left behind."""
    return _signals(_STOPS, signal.default_int_handler)


def _undisturbed() -> AbstractContextManager[None]:
    """Cleaning up is bounded in time, and goes on whoever loses patience."""
    return _signals((signal.SIGINT, *_STOPS), signal.SIG_IGN)


@contextmanager
def _signals(numbers: Iterable[int], way: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Handle these signals in one way meanwhile."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            signal.signal(number, way)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(finding: CheckResult) -> None:
    mark = f"{finding.state:<8}"
    if wants_colour():
        mark = click.style(mark, fg=_MARKS[finding.state])
    say(f"{mark} {finding.hop:<15} {safe(finding.what)}")
    if finding.todo:
        say(f"{'':<8} {'':<15} -> {safe(finding.todo)}")
    sys.stdout.flush()


def _told(message_id: str, findings: list[CheckResult]) -> dict[str, Any]:
    return {
        "ok": all(finding.state != "broken" for finding in findings),
        "message_id": message_id,
        "hops": [finding._asdict() for finding in findings],
    }
