"""`spamnb fleet`: several hosts with one model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from spamnb.cli.main import CommandGroup, command
from spamnb.cli.printing import say, say_json, table
from spamnb.cli.session import CliSession, pass_session, refuse_while_served
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.engine.filter import Filter
    from spamnb.fleet.store import Member
    from spamnb.settings.values import FleetParams

EXAMPLES = """
spamnb fleet init                 on the first host
spamnb fleet snapshot             then, to let others join
spamnb fleet join                 on each other host
spamnb fleet status               how far this host has followed the log, and the other hosts
spamnb fleet reseed               create a lost log again, on the host that has the most events
spamnb fleet rejoin               on a host whose events the log has lost
spamnb fleet skip 1042            pass over an entry that no host can apply
spamnb fleet level                after all hosts are upgraded
spamnb fleet leave                continue alone, with the model as it is
"""
_PLACES = {
    "init": "spamnb.cli.fleet:init",
    "status": "spamnb.cli.fleet:status",
    "snapshot": "spamnb.cli.fleet:snapshot",
    "join": "spamnb.cli.fleet:join",
    "reseed": "spamnb.cli.fleet:reseed",
    "rejoin": "spamnb.cli.fleet:rejoin",
    "skip": "spamnb.cli.fleet:skip",
    "level": "spamnb.cli.fleet:level",
    "leave": "spamnb.cli.fleet:leave",
}


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="Share one model between several hosts.",
)
def fleet() -> None:
    """Share one model between several hosts through a log on a server ([fleet] in the settings)."""


def _fleet_of(session: CliSession) -> FleetParams:
    params = session.settings.fleet
    if not params.url:
        raise UserError("fleet.url is not set", hint="set [fleet] in the settings")
    return params


@contextmanager
def _log(session: CliSession) -> Iterator[Member]:
    """Open the log."""
    from spamnb.fleet.membership import open_member

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
    """Create the key and the log of the fleet; the log continues from the model of this host."""
    from spamnb.fleet.administration import begin
    from spamnb.fleet.membership import key_path, make_key

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
    from spamnb.fleet.pulse import put_snapshot
    from spamnb.fleet.store import position_of

    with _opened(session, readonly=True) as (model, member):
        with model.store.read() as view:
            position = position_of(view)
        size = put_snapshot(session.home, member, position.seq)
    say(f"{size} bytes copied")


@command("Join a fleet.", EXAMPLES)
@click.option("--force", is_flag=True, help="Replace an existing model.")
@pass_session
def join(session: CliSession, force: bool) -> None:
    """Copy the model from the server to this host, which must already have the fleet's key."""
    from spamnb.fleet.pulse import take_snapshot

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
    from spamnb.fleet.administration import standing
    from spamnb.fleet.outbox import OutboxReader
    from spamnb.fleet.pulse import hosts_of

    with _opened(session, readonly=True) as (model, member):
        found, hosts = standing(model.store, member.log), hosts_of(member)
    with closing(OutboxReader(session.home)) as outbox:
        waiting = outbox.waiting()
    facts = found._asdict() | {"host": member.host, "lag_events": found.lag_events}
    facts |= {"waiting": waiting}
    if as_json:
        say_json(facts | {"hosts": [one._asdict() | {"lives": one.lives} for one in hosts]})
    else:
        table((name.replace("_", " "), str(value)) for name, value in facts.items() if value != "")
        for one in hosts:
            lives = "alive" if one.lives else f"silent for {one.age_s:.0f} s"
            lag = f"{one.lag_events} events behind, " if one.lag_events else ""
            lag = "of another history, " if one.lag_events is None else lag
            more = f", {one.waiting} corrections wait" if one.waiting else ""
            about = f"event {one.seq} ({one.fingerprint[:8]}), {lag}{lives}"
            say(f"host {one.host}: {about}, spamnb {one.version}{more}")
    if found.fault:
        ctx.exit(1)


@command("Create a lost log again.", EXAMPLES)
@click.option("--force", is_flag=True, help="Replace a log, or ignore a host with more events.")
@pass_session
def reseed(session: CliSession, force: bool) -> None:
    """Create the log again on its server, from the entries that this host has kept.

    Run this command on the host that has the most events; it is refused if another host reports
    more. The daemons may run: they continue as soon as the log exists.
    """
    from spamnb.fleet.administration import reseed as make

    is_interrupted = force and _has_no_position(session)
    if is_interrupted:
        refuse_while_served(session, "begin a new history")
    with _opened(session, readonly=not is_interrupted) as (model, member):
        found = make(model.store, member, force=force)
    say(f"the log has the events {found.first} to {found.seq}")
    if found.silent:
        say(f"no report from {', '.join(found.silent)}; run `spamnb fleet status` there")


def _has_no_position(session: CliSession) -> bool:
    """Return whether a change of the whole model was interrupted; only then it writes the model."""
    with session.open(readonly=True) as model, model.store.read() as view:
        return view.position() is None


@command("Join again, with this host's corrections.", EXAMPLES)
@pass_session
def rejoin(session: CliSession) -> None:
    """Copy the model of another host, and learn again the corrections that the log has lost."""
    from spamnb.fleet.administration import rejoin as join_again

    refuse_while_served(session, "join the fleet again")
    with _opened(session, readonly=True) as (model, member):
        found = join_again(session.home, model.store, member)
    say(f"joined again; {found.again} corrections of this host wait to be learnt again")
    if found.lost:
        say(f"{found.lost} imports or expiries of this host are lost")


@command("Pass over an entry.", EXAMPLES)
@click.argument("event", type=click.IntRange(1))
@pass_session
def skip(session: CliSession, event: int) -> None:
    """Empty the entry at which this host has stopped, for all hosts that have not applied it.

    The training of this entry is lost. A host that has already applied the entry must join again.
    """
    from spamnb.fleet import administration as recovery

    with _opened(session, readonly=True) as (model, member):
        entry = recovery.skip(model.store, member, event)
    say(f"the events {entry.first} to {entry.last}, of host {entry.host}, are empty now")


@command("Let all hosts write newer entries.", EXAMPLES)
@pass_session
def level(session: CliSession) -> None:
    """Let all hosts write the newest entries that this host knows, after all hosts are upgraded.

    The command is refused if a host that was active within a day cannot read such entries.
    """
    from spamnb.fleet.administration import raise_level

    with _log(session) as member:
        found = raise_level(member)
    say(f"the hosts write entries of level {found}")


@command("Leave the fleet.", EXAMPLES)
@pass_session
def leave(session: CliSession) -> None:
    """Make this host independent of the log. Its model stays, and learns alone from now on.

    The model learns the corrections that wait for the log. Also remove fleet.url from the settings.
    """
    from spamnb.fleet import administration
    from spamnb.fleet.outbox import Outbox
    from spamnb.fleet.waiting import learn_alone

    refuse_while_served(session, "leave the fleet")
    with session.open() as model, closing(Outbox(session.home)) as outbox:
        administration.leave(model.store)
        learnt = learn_alone(model, outbox)
        questions = outbox.questions()
        for question in questions:
            outbox.remove_question(question.number)
    say("this host has left the fleet")
    if learnt:
        say(f"{learnt} waiting corrections are learnt now")
    if questions:
        say(f"{len(questions)} corrections of verdicts of other hosts are dropped")
