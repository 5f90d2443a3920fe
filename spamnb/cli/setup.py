"""`spamnb setup`: connect spamnb to the mail server of this machine, or take that back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spamnb.cli.main import command
from spamnb.cli.printing import safe, say, say_json
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.setup.mailbox import MailboxLogin
    from spamnb.setup.plan import Answers, Plan
    from spamnb.setup.run import Found, Setup

EXAMPLES = """
spamnb setup                                look, ask, show the plan, and do it
spamnb setup --plan                         only show the plan
spamnb setup --yes --answer act=file        no questions: mark junk and file it
spamnb setup --yes --test alice@example.org  send a test message, and move it as its user would
spamnb setup --remove                       restore the files of the mail server
spamnb setup --imap imap.example.org        a mailbox elsewhere, without root
"""
_RECORD = "setup.json"
_TEST = "Address of a mailbox for a test message (Enter: no test)"


@command("Connect spamnb to the mail server of this machine.", EXAMPLES)
@click.option("--plan", "only_plan", is_flag=True, help="Show the changes, and make none.")
@click.option("--yes", is_flag=True, help="Ask nothing, and make the changes.")
@click.option("--answer", "answers", multiple=True, metavar="NAME=VALUE",
              help="Answer of a question: act=observe|file, teach=moves|none, "
              "persons=no|yes, console=no|yes. Can be repeated.")  # fmt: skip
@click.option("--remove", is_flag=True, help="Take out everything that setup has put in.")
@click.option("--postfix", metavar="FOLDER", type=click.Path(path_type=Path),
              help="Folder of the settings of Postfix. Default: that of `postconf`.")  # fmt: skip
@click.option("--exim", metavar="FILE", type=click.Path(path_type=Path),
              help="Settings of Exim. Default: those of `exim -bV`.")  # fmt: skip
@click.option("--opensmtpd", metavar="FILE", type=click.Path(path_type=Path),
              help="Settings of OpenSMTPD. Default: /etc/smtpd.conf.")  # fmt: skip
@click.option("--sendmail", metavar="FOLDER", type=click.Path(path_type=Path),
              help="Folder of sendmail.mc and sendmail.cf. Default: /etc/mail.")  # fmt: skip
@click.option("--dovecot", metavar="FILE", type=click.Path(path_type=Path),
              help="Main settings of Dovecot. Default: /etc/dovecot/dovecot.conf.")  # fmt: skip
@click.option("--way", type=click.Choice(["milter", "lmtp"]), help="How Postfix asks: "
              "by a milter, or spamnb stands in front of its LMTP server, with a verdict for each "
              "recipient. Default: as before; else the milter if it sees all mail.")  # fmt: skip
@click.option("--listen", metavar="ADDRESS", default="", help="Where spamnb listens for the mail "
              "server. Default: 127.0.0.1 and the first free port from 10025 on; for OpenSMTPD the "
              "socket /run/spamnb/scan.sock.")  # fmt: skip
@click.option("--imap", "imap_host", metavar="HOST[:PORT]", help="Instead: read a mailbox on this "
              "IMAP server, as a user without root. Default port: 993.")  # fmt: skip
@click.option("--user", metavar="LOGIN", help="With --imap: the login of the mailbox.")
@click.option("--password-file", metavar="FILE", type=click.Path(path_type=Path, exists=True),
              help="With --imap: file whose first line is the password. Default: ask.")  # fmt: skip
@click.option("--test", "address", metavar="ADDRESS", default="", help="Afterwards send a test "
              "message to this mailbox, and move it as its user would.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: done, answers, files "
              "with their diffs, commands, notes. Needs --plan, --yes or --remove.")  # fmt: skip
@pass_session
@click.pass_context
def setup(
    ctx: click.Context,
    session: CliSession,
    only_plan: bool,
    yes: bool,
    answers: tuple[str, ...],
    remove: bool,
    postfix: Path | None,
    exim: Path | None,
    opensmtpd: Path | None,
    sendmail: Path | None,
    dovecot: Path | None,
    way: str | None,
    listen: str,
    imap_host: str | None,
    user: str | None,
    password_file: Path | None,
    address: str,
    as_json: bool,
) -> None:
    """Connect spamnb to the mail server of this machine, or take that back.

    Setup finds Postfix, Exim, OpenSMTPD or Sendmail, and Dovecot, asks at most five questions, and
    shows every change of a file and every command before it does them. The mail server then asks
    spamnb about each message; Dovecot files junk, and users teach by moving mail into and out of
    Junk. If a command fails, or setup is interrupted, all files are as before.

    The changes stand in marked blocks. --remove takes them out and leaves all other lines as they
    are. A second run changes only what differs. What setup does not understand it does not edit:
    it prints the lines to add.
    """
    from spamnb.settings import DEFAULT_FILE, load
    from spamnb.setup.mailbox import user_config
    from spamnb.setup.run import Places, Setup, faults_of, look, plan_of, usual

    if as_json and not (only_plan or yes or remove):
        raise click.UsageError("--json needs --plan, --yes or --remove")
    if as_json and imap_host:
        raise click.UsageError("--imap prints no JSON")
    usual_file = user_config() if imap_host or (remove and os.geteuid()) else DEFAULT_FILE
    config = Path(session.config_flag or usual_file)
    here = Setup(config.with_name(_RECORD), _quiet if as_json else say)
    if remove:
        _remove(here, as_json)
        return
    if not only_plan:
        here.recover()
    if imap_host:
        given = _Mailbox(imap_host, user, password_file)
        _set_up_mailbox(session, here, config, given, answers, yes=yes, only_plan=only_plan)
        return
    settings = load(config if config.exists() else os.devnull, flags={"home": session.home_flag})
    places = Places(postfix, exim, opensmtpd, sendmail, dovecot, way or "")
    found = look(config, settings, _options(session), places)._replace(listen=listen)
    if not as_json:
        _show_found(found)
    chosen = _chosen(usual(found), answers, ask=not (yes or only_plan))
    if not (address or yes or only_plan):
        address = click.prompt(_TEST, default="", show_default=False, err=True)
    plan = plan_of(found, chosen)
    if not as_json:
        _show_plan(plan, whole=only_plan)
    if not only_plan and not plan.is_empty:
        if faults := faults_of(plan.stages):
            raise UserError(
                f"these files cannot be written: {', '.join(faults)}",
                hint="run this command as root",
            )
        if not yes and not click.confirm("Make these changes?", default=False, err=True):
            say("Nothing was changed.")
            return
        here.apply(plan)
    is_tested = bool(address) and not only_plan
    if as_json:
        test = _tested(found, address) if is_tested else None
        say_json(_as_dict(plan, chosen, done=not only_plan) | ({"test": test} if test else {}))
        ctx.exit(0 if test is None or test["ok"] else 1)
    if not only_plan:
        _show_next(found, plan, chosen)
    if is_tested:
        ctx.exit(_test(found, address))


class _Mailbox(NamedTuple):
    """The mailbox that the command line names."""

    host: str
    user: str | None
    password_file: Path | None


def _set_up_mailbox(
    session: CliSession,
    here: Setup,
    config: Path,
    given: _Mailbox,
    answers: tuple[str, ...],
    *,
    yes: bool,
    only_plan: bool,
) -> None:
    """Connect a mailbox on an IMAP server; nothing is written before the login has worked."""
    from spamnb.settings import home_of, load
    from spamnb.setup.mailbox import IMAPS, MailboxLogin, plan_of_mailbox
    from spamnb.setup.plan import Answers
    from spamnb.setup.run import OWN
    from spamnb.store.files import durable_write

    host, _, port = given.host.rpartition(":") if ":" in given.host else (given.host, "", "")
    if not (given.user or sys.stdin.isatty()):
        raise UserError("--imap needs a --user")
    user = given.user or click.prompt("Login of the mailbox", err=True)
    file = (given.password_file or config.with_name("imap.password")).absolute()
    login = MailboxLogin(host, int(port or IMAPS), user, file)
    password = "" if only_plan else _logged_in(login, given.password_file)
    chosen = _chosen(Answers(), answers, ask=not (yes or only_plan), names=("act",))
    settings = load(config if config.exists() else os.devnull, flags={"home": session.home_flag})
    option = () if session.config_flag else ("--config", str(config))
    has_model = (home_of(settings) / "data.mdb").exists()
    own = (*OWN, *_options(session), *option)
    plan = plan_of_mailbox(config, own, login, chosen, has_model=has_model)
    _show_plan(plan, whole=True)
    is_new_password = plan.is_empty and password and given.password_file is None
    if only_plan or (plan.is_empty and not is_new_password):
        return
    if is_new_password:
        durable_write(file, f"{password}\n".encode())
        say("The password was renewed.")
        return
    if not yes and not click.confirm("Make these changes?", default=False, err=True):
        say("Nothing was changed.")
        return
    config.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if given.password_file is None:
        durable_write(file, f"{password}\n".encode())
    here.apply(plan)
    words = " ".join(("spamnb", *option))
    say()
    say("Done. Next:")
    say(f"  {words} imap --once --existing   judge the mail that is in the inbox")
    say(f"  {words} imap                     judge new mail, until Ctrl-C")
    if chosen.act == "observe":
        again = f"spamnb setup --imap {given.host} --user {safe(user)} --answer act=file"
        say(f"  {again}   move junk to the junk folder")
    say(f"  {words} setup --remove           take everything out again")


def _logged_in(login: MailboxLogin, password_file: Path | None) -> str:
    """The password, after it has opened the mailbox."""
    from spamnb.cli.doctor import read_password
    from spamnb.imap.sync import ImapAccount, ImapMailbox

    password = read_password(str(password_file) if password_file else None, login.user)
    mailbox = ImapMailbox.open(ImapAccount(login.host, login.port, login.user, password))
    say(f"mailbox: {mailbox.about}")
    mailbox.close()
    return password


def _test(found: Found, address: str) -> int:
    """Send the test message, and show each step; return the exit code of `doctor`."""
    from spamnb.setup.run import shown, test_command

    command = test_command(found, address)
    say()
    say(shown(command))
    sys.stdout.flush()
    return subprocess.run(command, check=False).returncode  # noqa: S603 - this program


def _tested(found: Found, address: str) -> dict[str, Any]:
    """Send the test message; return what `doctor` found."""
    from spamnb.setup.run import test_command

    command = [*test_command(found, address), "--json"]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - this program
    if not done.stdout:
        raise UserError(f"the test failed: {done.stderr.decode(errors='replace').strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _quiet(_: str) -> None:
    """For --json, which prints one object."""


def _remove(here: Any, as_json: bool) -> None:
    removed = here.remove()
    if as_json:
        say_json({"removed": removed})
    else:
        say("Everything was taken out." if removed else "There is nothing to take out.")


def _options(session: CliSession) -> tuple[str, ...]:
    given = (("--home", session.home_flag), ("--config", session.config_flag))
    return tuple(word for name, value in given if value for word in (name, value))


def _chosen(
    usual: Answers, answers: Iterable[str], *, ask: bool, names: Sequence[str] = ()
) -> Answers:
    """The answers of the command line, else of the administrator, else the usual ones."""
    from spamnb.setup.plan import CHOICES, QUESTIONS

    given = {}
    for text in answers:
        name, _, value = text.partition("=")
        if value not in CHOICES.get(name, ()):
            known = ", ".join(f"{one}={'|'.join(values)}" for one, values in CHOICES.items())
            raise UserError(f"--answer {text} is no answer", hint=f"the answers are {known}")
        given[name] = value
    if ask and not sys.stdin.isatty():
        raise UserError(
            "there is no terminal to ask questions on",
            hint="use --yes with --answer NAME=VALUE, or --plan to see the changes",
        )
    for name in (names or usual._fields) if ask else ():
        if name not in given:
            given[name] = click.prompt(
                QUESTIONS[name],
                type=click.Choice(CHOICES[name]),
                default=getattr(usual, name),
                err=True,
            )
    return usual._replace(**given)


def _show_found(found: Found) -> None:
    if found.server is not None:
        say(f"{found.server.name}: {found.server.about}")
    if found.dovecot is not None:
        state = "runs" if found.dovecot.is_running else "does not run"
        say(f"Dovecot {found.dovecot.version}: {found.dovecot.file}, {state}; "
            f"junk folder: {found.dovecot.junk}")  # fmt: skip
    say(f"spamnb: {found.config}, {'runs' if found.is_served else 'does not run'}")


def _show_plan(plan: Plan, *, whole: bool) -> None:
    """Show the changes; the scripts of spamnb only by name, unless `whole`."""
    from spamnb.setup.run import shown

    scripts = []
    for edit in (edit for stage in plan.stages for edit in stage.edits):
        if edit.is_script and not whole:
            scripts.append(edit)
            continue
        say()
        say(edit.diff.rstrip("\n"))
    if scripts:
        say()
        say("Scripts of spamnb (--plan shows them):")
        for edit in scripts:
            say(f"  {edit.path}")
    commands = [shown(one) for stage in plan.stages for one in stage.commands]
    if commands:
        say()
        say("Commands:")
        for one in commands:
            say(f"  {one}")
    for note in (*plan.notes, *filter(None, [plan.obstacle])):
        say(f"Note: {note}")
    say()
    if plan.is_empty:
        say("There is nothing to do.")


def _as_dict(plan: Plan, answers: Answers, *, done: bool) -> dict[str, Any]:
    from spamnb.setup.run import shown

    stages = [stage for stage in plan.stages if stage.edits]
    return {
        "done": done,
        "answers": answers._asdict(),
        "files": [
            {"path": str(edit.path), "diff": edit.diff} for stage in stages for edit in stage.edits
        ],
        "commands": [shown(one) for stage in stages for one in stage.commands],
        "notes": list(plan.notes),
    }


def _show_next(found: Found, plan: Plan, answers: Answers) -> None:
    if not plan.stages:
        return
    say()
    say("Done. Next:")
    say("  spamnb train HAM SPAM          teach it with sorted old mail (folders, mboxes)")
    if found.dovecot is not None:
        say("  spamnb train --mailbox USER    teach it with the mail that a user has sorted")
    else:
        say("  spamnb train --labels folders MAILDIR")
        say("                                 teach it with the mail that a user has sorted")
    say("  spamnb setup --yes --test ADDRESS")
    say("                                 send a test message, and move it as its user would")
    if answers.console == "yes":
        say("  systemctl restart spamnb, then spamnb console open")
        say("                                 the pages, in a browser of this machine")
    if answers.act == "observe":
        say("  spamnb status                  what it would have filed, and whether that is right")
        say("  spamnb live on                 mark junk and file it")
    say("  spamnb setup --remove          take everything out again")
