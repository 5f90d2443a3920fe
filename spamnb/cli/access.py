"""`spamnb token` and `spamnb passwd`: tokens of the HTTP API, and logins of pages and delivery."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spamnb.cli.main import CommandGroup, command
from spamnb.cli.printing import say, say_json, shown_time, table, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.operations.logins import Login

KEY_EXAMPLES = """
spamnb token create --name monitoring --scope metrics --days 365
spamnb token create --name mutt --for alice@example.org --scope score,teach,read
spamnb token list
spamnb token revoke mutt
"""
_PLACES = {
    "create": "spamnb.cli.access:create",
    "list": "spamnb.cli.access:list_",
    "revoke": "spamnb.cli.access:revoke",
}
DAYS = 90


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=KEY_EXAMPLES,
    short_help="Manage tokens of the HTTP API.",
)
def token() -> None:
    """Create, list and revoke tokens of the HTTP API (see `console.address` in the settings)."""


@command("Create a token.", KEY_EXAMPLES)
@click.option("--name", required=True, help="Name of the token, for the list and the journal.")
@click.option("--scope", required=True, metavar="SCOPE,...",
              help="What it may do: score, teach, read, quarantine, admin, metrics.")  # fmt: skip
@click.option("--for", "user", default="", metavar="USER",
              help="Only messages that were delivered to this user: an address or a login. "
              "Default: all messages.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3650), default=DAYS, show_default=True,
              help="How long it is valid.")  # fmt: skip
@pass_session
def create(session: CliSession, name: str, scope: str, user: str, days: int) -> None:
    """Print a new token. It is shown only once; a running daemon accepts it immediately."""
    from spamnb.operations.logins import TokenFile, new_token
    from spamnb.telemetry import now_us

    scopes = tuple(one.strip() for one in scope.split(",") if one.strip())
    made = new_token(name, scopes, user, days, now_us())
    say(TokenFile(session.home).create(made))


@command("List the tokens.", KEY_EXAMPLES, name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List the tokens: name, end, scopes, user."""
    from spamnb.operations.logins import TokenFile

    tokens = TokenFile(session.home).tokens().values()
    if as_json:
        for one in tokens:
            say_json(one.as_dict())
        return
    table(
        (one.name, shown_time(one.ends_us), ",".join(one.scopes), one.user or "-") for one in tokens
    )


@command("Revoke a token.", KEY_EXAMPLES)
@click.argument("name")
@pass_session
def revoke(session: CliSession, name: str) -> None:
    """Revoke a token by its name; a running daemon refuses it from its next request on."""
    from spamnb.operations.logins import TokenFile

    TokenFile(session.home).revoke(name)
    say(f"{name}: revoked")


LOGIN_EXAMPLES = """
spamnb passwd alice@example.org                    ask for the password
spamnb passwd alice alice@example.org a@other.org  a login with two mail addresses
spamnb passwd --totp alice                         ask for a code of an app, too
spamnb passwd --remove alice
spamnb passwd --list
pwgen 20 1 | spamnb passwd alice@example.org       read the password from a program
"""


@command("Manage logins for reports by mail and for the pages.", LOGIN_EXAMPLES)
@click.argument("login", required=False)
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@click.option("--remove", is_flag=True, help="Delete the login.")
@click.option(
    "--totp/--no-totp",
    default=None,
    help="Make the secret of an authenticator app, and print it; or delete it. With it the pages "
    "ask for a code after the password.",
)
@click.option("--list", "listed", is_flag=True, help="List the logins.")
@click.option(
    "--json", "as_json", is_flag=True, help="With --list: print one JSON object per line."
)
@click.option("--file", metavar="FILE", help="File of the logins. Default: delivery.passwords, "
              "console.passwords, or `passwords` in the home.")  # fmt: skip
@pass_session
def passwd(
    session: CliSession,
    login: str | None,
    addresses: tuple[str, ...],
    remove: bool,
    totp: bool | None,
    listed: bool,
    as_json: bool,
    file: str | None,
) -> None:
    """Create or change a login for the delivery agent and for the pages of the console.

    Logged-in users can report messages to the spam@ and ham@ addresses, and see their mail on the
    pages. A login is a mail address, or a name with the user's ADDRESSes. The password is asked
    for, or read from the first line of standard input. A new password keeps the addresses and the
    secret of --totp. Only hashes of passwords are stored (scrypt). A running daemon uses the change
    immediately.
    """
    from spamnb.operations.logins import read_logins, write_logins

    path = _path(session, file)
    logins = read_logins(path) if path.exists() else {}
    if listed:
        _show([(one.name, one.addresses) for one in logins.values()], as_json=as_json)
        return
    if not login:
        raise UserError("no login is given", hint="spamnb passwd alice@example.org")
    kept = logins.get(login.lower())
    if kept is None and (remove or totp is not None):
        raise UserError(f"there is no login {login!r}", hint="`spamnb passwd --list`")
    if remove:
        del logins[login.lower()]
    elif kept is not None and totp is not None:
        logins[login.lower()] = _with_totp(kept, on=totp)
    else:
        made = _login(login, addresses or (kept.addresses if kept else ()))
        logins[login.lower()] = replace(made, totp=kept.totp) if kept else made
    write_logins(path, logins)
    say(f"{login}: {'removed from' if remove else 'written to'} {path}")
    settings = session.settings
    if not (file or settings.delivery.passwords or settings.console.address):
        warn(
            "the delivery agent reads this file only if the settings contain: "
            f'[delivery] passwords = "{path}"'
        )


def _path(session: CliSession, file: str | None) -> Path:
    home = session.home  # first, since it takes the user id of the home's owner
    settings = session.settings
    found = file or settings.delivery.passwords or settings.console.passwords
    return Path(found or home / "passwords")


def _login(login: str, addresses: tuple[str, ...]) -> Login:
    from spamnb.operations.logins import LOGIN, Login, hashed

    for one in (login, *addresses):
        if not LOGIN.fullmatch(one):
            raise UserError(
                f"{one!r} is not a valid login or address",
                hint="it must not contain blanks, colons or commas",
            )
    return Login(login, hashed(_password()), addresses or (login,))


def _with_totp(login: Login, *, on: bool) -> Login:
    """Return a login with a new second factor, which is printed, or without one."""
    from spamnb.operations.logins import new_secret, uri_of

    secret = new_secret() if on else ""
    if on:
        say(f"secret: {secret}\n{uri_of(login.name, secret)}")
    return replace(login, totp=secret)


def _password() -> str:
    from spamnb.operations.logins import MAX_PASSWORD_BYTES

    try:
        if sys.stdin.isatty():
            password = click.prompt(
                "Password", hide_input=True, confirmation_prompt="Repeat password", err=True
            )
        else:
            # As bytes: invalid UTF-8 is an error in one locale and escaped in another.
            password = sys.stdin.buffer.readline().rstrip(b"\r\n").decode()
        size = len(password.encode())
    except UnicodeError as error:
        raise UserError("the password is not valid UTF-8") from error
    if not password:
        raise UserError(
            "no password is given", hint="type one, or write it to the first line of the input"
        )
    if size > MAX_PASSWORD_BYTES or "\0" in password:
        raise UserError(f"the password is longer than {MAX_PASSWORD_BYTES} bytes, or contains NUL")
    return str(password)


def _show(logins: list[tuple[str, tuple[str, ...]]], *, as_json: bool) -> None:
    if as_json:
        for name, addresses in logins:
            say_json({"login": name, "addresses": list(addresses)})
        return
    table((name, ", ".join(addresses)) for name, addresses in logins)
