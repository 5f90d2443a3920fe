"""`spamnb token`: create, list and revoke tokens of the HTTP API."""

from __future__ import annotations

import click

from spamnb.cli.help import CommandGroup, command
from spamnb.cli.printing import say, say_json, shown_time, table
from spamnb.cli.session import CliSession, pass_session

EXAMPLES = """
spamnb token create --name monitoring --scope metrics --days 365
spamnb token create --name mutt --for alice@example.org --scope score,teach,read
spamnb token list
spamnb token revoke mutt
"""
_PLACES = {
    "create": "spamnb.cli.token:create",
    "list": "spamnb.cli.token:list_",
    "revoke": "spamnb.cli.token:revoke",
}
DAYS = 90


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="Manage tokens of the HTTP API.",
)
def token() -> None:
    """Create, list and revoke tokens of the HTTP API (see `console.address` in the settings)."""


@command("Create a token.", EXAMPLES)
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
    from spamnb.service.admin.tokens import TokenFile, new_token
    from spamnb.service.engine.clock import now_us

    scopes = tuple(one.strip() for one in scope.split(",") if one.strip())
    made = new_token(name, scopes, user, days, now_us())
    say(TokenFile(session.home).create(made))


@command("List the tokens.", EXAMPLES, name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List the tokens: name, end, scopes, user."""
    from spamnb.service.admin.tokens import TokenFile

    tokens = TokenFile(session.home).tokens().values()
    if as_json:
        for one in tokens:
            say_json(one.as_dict())
        return
    table(
        (one.name, shown_time(one.ends_us), ",".join(one.scopes), one.user or "-") for one in tokens
    )


@command("Revoke a token.", EXAMPLES)
@click.argument("name")
@pass_session
def revoke(session: CliSession, name: str) -> None:
    """Revoke a token by its name; a running daemon refuses it from its next request on."""
    from spamnb.service.admin.tokens import TokenFile

    TokenFile(session.home).revoke(name)
    say(f"{name}: revoked")
