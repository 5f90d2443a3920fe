"""`spamnb fleet`: several hosts with one model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from spamnb.cli.daemon_client import refuse_while_served
from spamnb.cli.help import CommandGroup, command
from spamnb.cli.printing import say, say_json, table
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.endpoints.fleet.params import FleetParams
    from spamnb.service.engine.filter import Filter
    from spamnb.service.fleet.fleet_store import Member

EXAMPLES = """
spamnb fleet init                 on the first host
spamnb fleet snapshot             then, to let others join
spamnb fleet join                 on each other host
spamnb fleet status               how far this host has followed the log
spamnb fleet leave                go on alone, with the model as it is
"""
_PLACES = {
    "init": "spamnb.cli.fleet:init",
    "status": "spamnb.cli.fleet:status",
    "snapshot": "spamnb.cli.fleet:snapshot",
    "join": "spamnb.cli.fleet:join",
    "leave": "spamnb.cli.fleet:leave",
}


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="Share one model between several hosts.",
)
def fleet() -> None:
    """Share one model between several hosts, by a log on a server (see [fleet] in the settings)."""


def _fleet_of(session: CliSession) -> FleetParams:
    params = session.settings.fleet
    if not params.url:
        raise UserError("fleet.url is not set", hint="set [fleet] in the settings")
    return params


@contextmanager
def _log(session: CliSession) -> Iterator[Member]:
    """Open the log."""
    from spamnb.endpoints.fleet.membership import open_member

    member = open_member(_fleet_of(session), session.home)
    with closing(member.log):
        yield member


@contextmanager
def _opened(session: CliSession, *, readonly: bool) -> Iterator[tuple[Filter, Member]]:
    """Open the model and the log."""
    with _log(session) as member, session.open(readonly=readonly) as model:
        yield model, member


@command("Begin a fleet.", EXAMPLES)
@pass_session
def init(session: CliSession) -> None:
    """Make the log of the fleet, which goes on from the model of this host, and the fleet's key."""
    from spamnb.endpoints.fleet.membership import key_path, make_key
    from spamnb.service.fleet.administration import begin

    refuse_while_served(session, "begin the fleet")
    path = key_path(_fleet_of(session), session.home)
    make_key(path)
    with _opened(session, readonly=False) as (model, member):
        position = begin(model.store, member)
    say(f"the fleet begins with event {position.seq}; its key is in {path}")


@command("Copy the model to the server.", EXAMPLES)
@pass_session
def snapshot(session: CliSession) -> None:
    """Copy the model to the server of the log for two days, so that other hosts can join."""
    from spamnb.service.fleet.fleet_store import position_of
    from spamnb.service.fleet.snapshot import put_snapshot

    with _opened(session, readonly=True) as (model, member):
        with model.store.read() as view:
            position_of(view)
        size = put_snapshot(session.home, member)
    say(f"{size} bytes copied")


@command("Join a fleet.", EXAMPLES)
@click.option("--force", is_flag=True, help="Replace an existing model.")
@pass_session
def join(session: CliSession, force: bool) -> None:
    """Make the model of this host from the copy on the server; the key must be here already."""
    from spamnb.service.fleet.snapshot import take_snapshot

    refuse_while_served(session, "join the fleet")
    with _log(session) as member:
        take_snapshot(session.home, member, overwrite=force)
    say("this host has joined the fleet")


@command("Compare this host with the log.", EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_session
@click.pass_context
def status(ctx: click.Context, session: CliSession, as_json: bool) -> None:
    """Show how far this host has followed the log. The exit code is 1 if it cannot."""
    from spamnb.service.fleet.administration import standing

    with _opened(session, readonly=True) as (model, member):
        found = standing(model.store, member.log)
    facts = found._asdict() | {"host": member.host, "lag_events": found.lag_events}
    if as_json:
        say_json(facts)
    else:
        table((name.replace("_", " "), str(value)) for name, value in facts.items() if value != "")
    if found.fault:
        ctx.exit(1)


@command("Leave the fleet.", EXAMPLES)
@pass_session
def leave(session: CliSession) -> None:
    """Make this host independent of the log. Its model stays as it is, and learns alone then.

    Remove fleet.url from the settings, too.
    """
    from spamnb.service.fleet import administration

    refuse_while_served(session, "leave the fleet")
    with session.open() as model:
        administration.leave(model.store)
    say("this host has left the fleet")
