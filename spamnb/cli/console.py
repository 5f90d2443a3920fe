"""`spamnb console`: log in to the pages without a password, and end sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from spamnb.cli.main import CommandGroup, command
from spamnb.cli.printing import say, say_json, shown_time, table
from spamnb.cli.session import CliSession, pass_session, speaker
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.records.console import SessionStore

EXAMPLES = """
spamnb console open                    print a link that logs an administrator in, once
spamnb console sessions                list who is logged in
spamnb console sessions --end alice    end all sessions of a login
"""
_PLACES = {
    "open": "spamnb.cli.console:open_",
    "sessions": "spamnb.cli.console:sessions",
}


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="Open the pages, and end their sessions.",
)
def console() -> None:
    """Log in to the pages of the console, and end sessions (see docs/console.md)."""


@command("Print a link to log in.", EXAMPLES, name="open")
@pass_session
def open_(session: CliSession) -> None:
    """Print a link to the pages that logs in as an administrator.

    The link is valid for one login, within a minute. The owner of the home and root can use this
    command.
    """
    from spamnb.console.page import new_link
    from spamnb.telemetry import now_us

    url, name = _url(session), speaker()
    with _store(session) as store:
        link = store.add("links", new_link(name, now_us()))
    say(f"{url}/open/{link}")


def _url(session: CliSession) -> str:
    wanted = session.settings.console
    if wanted.url:
        return wanted.url.rstrip("/")
    if not wanted.address:
        raise UserError("there are no pages to open", hint="set console.address in the settings")
    if wanted.address.startswith("unix:"):
        raise UserError(
            f"a browser cannot open {wanted.address}",
            hint="set console.url in the settings: the address of the web server in front of it",
        )
    return f"{'https' if wanted.certificate else 'http'}://{wanted.address}"


@command("List or end sessions.", EXAMPLES)
@click.option("--end", metavar="LOGIN", help="End all sessions of this login.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@pass_session
def sessions(session: CliSession, end: str | None, as_json: bool) -> None:
    """List the sessions of the pages: login, begin, last use. With --end, end those of a login."""
    from spamnb.telemetry import iso

    with _store(session) as store:
        if end is not None:
            say(f"{end}: {store.end_all(end)} sessions ended")
            return
        found = store.sessions()
    if as_json:
        for one in found:
            began, used, ends = map(iso, (one.began_us, one.used_us, one.ends_us))
            say_json({"login": one.login, "began": began, "used": used, "ends": ends})
        return
    table((one.login, shown_time(one.began_us), shown_time(one.used_us)) for one in found)


@contextmanager
def _store(session: CliSession) -> Iterator[SessionStore]:
    from spamnb.records.console import SessionStore

    store = SessionStore(session.home)
    try:
        yield store
    finally:
        store.close()
