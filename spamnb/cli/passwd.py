"""`spamnb passwd`: who may log in at the post office, and by which password."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spamnb.cli.help import taught
from spamnb.cli.printing import say, say_json, table, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.endpoints.smtp.delivery.logins import Login

EXAMPLES = """
spamnb passwd alice@example.org                    asks for the password
spamnb passwd alice alice@example.org a@other.org  a login whose mail has two addresses
spamnb passwd --remove alice
spamnb passwd --list
pwgen 20 1 | spamnb passwd alice@example.org       from a program
"""


@taught("Set a password for reports by mail.", EXAMPLES)
@click.argument("login", required=False)
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@click.option("--remove", is_flag=True, help="Take the login away.")
@click.option("--list", "listed", is_flag=True, help="Show who may log in.")
@click.option("--json", "as_json", is_flag=True, help="With --list: one JSON object a line.")
@click.option("--file", metavar="FILE", help="Else delivery.passwords, or `passwords` in the home.")
@pass_session
def passwd(
    session: CliSession,
    login: str | None,
    addresses: tuple[str, ...],
    remove: bool,
    listed: bool,
    as_json: bool,
    file: str | None,
) -> None:
    """Set who may log in at the post office, to report spam@ and ham@ in their own name.

    A login is an address, or a name with the ADDRESSes that are delivered to this person. The
    password is asked for, or read from the first line of the input. A new password keeps the
    addresses. Only hashes are kept (scrypt); a running daemon sees the change at once.
    """
    from spamnb.endpoints.smtp.delivery.logins import read_logins, write_logins

    path = _path(session, file)
    logins = read_logins(path) if path.exists() else {}
    if listed:
        _show([(one.name, one.addresses) for one in logins.values()], as_json=as_json)
        return
    if not login:
        raise UserError("no login is given", hint="spamnb passwd alice@example.org")
    if remove:
        if logins.pop(login.lower(), None) is None:
            raise UserError(f"there is no login {login!r}", hint="`spamnb passwd --list`")
    else:
        kept = logins.get(login.lower())
        made = _login(login, addresses or (kept.addresses if kept else ()))
        logins[login.lower()] = made
    write_logins(path, logins)
    say(f"{login}: {'removed from' if remove else 'written to'} {path}")
    if not file and not session.settings.delivery.passwords:
        warn(
            f'the delivery agent looks there once the settings say: [delivery] passwords = "{path}"'
        )


def _path(session: CliSession, file: str | None) -> Path:
    home = session.home  # from here on we are who the daemon's files belong to
    return Path(file or session.settings.delivery.passwords or home / "passwords")


def _login(login: str, addresses: tuple[str, ...]) -> Login:
    from spamnb.endpoints.smtp.delivery.logins import LOGIN, Login, hashed

    for one in (login, *addresses):
        if not LOGIN.fullmatch(one):
            raise UserError(f"{one!r} is no login or address", hint="no blanks, colons or commas")
    return Login(login, hashed(_password()), addresses or (login,))


def _password() -> str:
    from spamnb.endpoints.smtp.delivery.logins import MAX_PASSWORD_BYTES

    try:
        if sys.stdin.isatty():
            said = click.prompt(
                "Password", hide_input=True, confirmation_prompt="Once more", err=True
            )
        else:
            # Not as text: what is no UTF-8 is an error in one locale and escaped in another.
            said = sys.stdin.buffer.readline().rstrip(b"\r\n").decode()
        size = len(said.encode())
    except UnicodeError as error:
        raise UserError("a password is text in UTF-8") from error
    if not said:
        raise UserError("no password was given", hint="type one, or give it on the first line")
    if size > MAX_PASSWORD_BYTES or "\0" in said:
        raise UserError(f"a password has at most {MAX_PASSWORD_BYTES} bytes, and no NUL")
    return str(said)


def _show(logins: list[tuple[str, tuple[str, ...]]], *, as_json: bool) -> None:
    if as_json:
        for name, addresses in logins:
            say_json({"login": name, "addresses": list(addresses)})
        return
    table((name, ", ".join(addresses)) for name, addresses in logins)
