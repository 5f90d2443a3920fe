"""`spamnb rewind`, `relearn` and `bisect`, and `undo` of many events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.main import command
from spamnb.cli.messages import named
from spamnb.cli.options import Count, agreed, chosen, since_us
from spamnb.cli.printing import safe, say, say_json, shown_time, table
from spamnb.cli.session import CliSession, asking, pass_session, refuse_while_served, teacher
from spamnb.errors import SpamnbError, UserError

if TYPE_CHECKING:
    from spamnb.maintenance.attribution import EventShare
    from spamnb.operations.request import AdminClient

Facts = dict[str, Any]

JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")

REWIND_EXAMPLES = """
spamnb rewind 2h                        to the state of two hours ago
spamnb rewind 2026-05-01T18:00          to the state at this time
"""
RELEARN_EXAMPLES = """
spamnb relearn --without mallory        without the training by mallory
spamnb relearn --without-channel imap   without the training of this channel
spamnb relearn --set eta=4              all training, with another constant
"""
BISECT_EXAMPLES = """
spamnb bisect new.eml                   by file
spamnb bisect '<1234@example.org>'      by message id, digest or signature
spamnb bisect --person ann new.eml      for a person, whose own labels count more
"""


@command("Restore an earlier state of the model.", REWIND_EXAMPLES)
@click.argument("moment", metavar="TIME")
@YES
@JSON
@pass_session
def rewind(session: CliSession, moment: str, yes: bool, as_json: bool) -> None:
    """Restore the exact state of the model at a time. Training after this time is removed.

    TIME is a date or an age: 30m, 12h, 7d, 2w; or the name of a model that an earlier rewind has
    kept. The command shows what would change and asks. The daemon keeps running. The current model
    is kept in a file beside the new one; the newest three stay.
    """
    kept = moment.startswith("before-")
    wanted: Facts = {"kept": moment} if kept else {"to_us": since_us(moment, "TIME") or 0}
    with _exchanging(session, "rewind") as client, _previewed(client, "rewind", wanted) as found:
        if found["state"] is None:
            _nothing(as_json=as_json)
            return
        what = f"the model of event {found['last_event']}" if kept else _removed(found)
        agreed(f"{what}. {_changes(found)} Rewind?", yes=yes)
        done, facts = _apply(session, client, "rewind", wanted, found)
    counts: Facts = {"last_event": facts["last_event"]}
    if not kept:
        counts["events_dropped"] = facts["events_dropped"]
    summary = f"the model of event {facts['last_event']}"
    if not kept:
        summary = f"{facts['events_dropped']} events removed"
    _done(session, done, counts, summary, as_json=as_json)


def _removed(facts: Facts) -> str:
    counts = sorted(facts["by"].items())
    by = ", ".join(f"{count} by {user or 'unknown'}" for user, count in counts)
    which = f"after {facts['stays']}" if facts["stays"] else "of the whole journal"
    return f"{facts['events_dropped']} events {which} will be removed ({safe(by)})"


@command("Retrain from the journal, with exclusions.", RELEARN_EXAMPLES)
@click.option("--without", multiple=True, metavar="USER", help="Leave out the events of this user; "
              "repeatable.")  # fmt: skip
@click.option("--without-channel", multiple=True, metavar="CHANNEL", help="Leave out the events of "
              "this channel; repeatable.")  # fmt: skip
@click.option("--set", "constants", multiple=True, metavar="NAME=NUMBER", help="Set a constant: "
              "alpha, kappa, r, eta, rate_bias, rate_temper.")  # fmt: skip
@YES
@JSON
@pass_session
def relearn(
    session: CliSession,
    without: tuple[str, ...],
    without_channel: tuple[str, ...],
    constants: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Rebuild the model from the events of its journal, in order, without some of them.

    Each training step is computed again. Undone events are left out too. Training in the checkpoint
    has no events any more and always stays. A user or channel without an event in the journal is an
    error. The command shows what would change and asks. The daemon keeps running. The current model
    is kept in a file beside the new one; the newest three stay.
    """
    wanted = {
        "without": list(without),
        "without_channel": list(without_channel),
        "set": _constants(constants),
    }
    with _exchanging(session, "relearn") as client, _previewed(client, "relearn", wanted) as found:
        note = f" {found['folded']} events in the checkpoint stay." if found["folded"] else ""
        what = f"{found['dropped']} events will be removed, {found['taught']} retrained."
        agreed(f"{what}{note} {_changes(found)} Relearn?", yes=yes)
        done, facts = _apply(session, client, "relearn", wanted, found)
    names = ("taught", "dropped", "undone", "idle", "folded")
    summary = f"{facts['taught']} events retrained, {facts['dropped']} removed"
    if facts["undone"] or facts["idle"]:
        summary += f", {facts['undone']} left out as undone, {facts['idle']} without effect"
    _done(session, done, {name: facts[name] for name in names}, summary, as_json=as_json)


@contextmanager
def _exchanging(session: CliSession, op: str) -> Iterator[AdminClient]:
    """Yield the client for a change of the whole model; a daemon of a fleet must be stopped."""
    if session.settings.fleet.url:
        from spamnb.fleet.administration import catch_up
        from spamnb.fleet.membership import open_member

        refuse_while_served(session, op)
        with closing((member := open_member(session.settings.fleet, session.home)).log):
            catch_up(session.home, member)
    with asking(session, long=True) as client:
        yield client


@contextmanager
def _previewed(client: AdminClient, op: str, wanted: Facts) -> Iterator[Facts]:
    """Yield the facts of a preview; it ends with the block, or when the command is interrupted."""
    from spamnb.operations.request import failed

    found = _asked(client, op, do="preview", **wanted)
    job = found["job"]
    try:
        while found["state"] == "running":
            found = _asked(client, op, do="show", job=job)
        if found["error"]:
            raise failed(found["error"])
        yield found["facts"] | {"job": job}
    finally:
        with suppress(SpamnbError):
            client.ask(op, do="cancel", job=job)


def _asked(client: AdminClient, op: str, **fields: Any) -> Facts:
    found: Facts = json.loads(client.ask(op, **fields).body)
    return found


def _apply(
    session: CliSession, client: AdminClient, op: str, wanted: Facts, facts: Facts
) -> tuple[str, Facts]:
    """Apply a preview; return the name of the file that has the old model, and what was applied.

    In a fleet the log is closed only now, because the administrator may take long to answer. If
    other hosts have taught meanwhile, the preview is made again, with their events.
    """
    with session.whole_model() as moved, ExitStack() as stack:
        if moved:
            facts = stack.enter_context(_previewed(client, op, wanted))
        done = _asked(client, op, do="apply", job=facts["job"], expect=facts["expect"])
    return str(done["kept"]), facts


def _changes(facts: Facts) -> str:
    """Say what becomes of the newest messages."""
    known = f"{facts['ham_lost']} known ham more and {facts['ham_won']} fewer"
    return (
        f"Of the last {facts['messages']} messages {facts['changed']} get another decision,"
        f" with {known} in the junk folder."
    )


def _constants(pairs: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise UserError(
                f"--set {pair} is not NAME=NUMBER", hint="write for example --set eta=4"
            ) from error
    return found


def _nothing(*, as_json: bool) -> None:
    if as_json:
        say_json({"events_dropped": 0})
    else:
        say("no training since then")


def _done(session: CliSession, kept: str, counts: Facts, summary: str, *, as_json: bool) -> None:
    path = str(session.home / kept)
    if as_json:
        say_json(counts | {"kept": path})
    else:
        say(f"{summary}; the previous model is {safe(path)}: delete it if all is well")


@command("Show which training led to a verdict.", BISECT_EXAMPLES)
@click.argument("message", metavar="MESSAGE")
@click.option("--limit", type=Count(), default=20, metavar="N",
              help="Maximum number; 0 shows all.")  # fmt: skip
@click.option("--person", default="", metavar="NAME",
              help="For this person: an address or a login.")  # fmt: skip
@JSON
@pass_session
def bisect(session: CliSession, message: str, limit: int, person: str, as_json: bool) -> None:
    """Show which training events led to the verdict on a message, strongest first.

    The share of an event is what the log-odds would lose without it; positive shares are evidence
    for the first label of the first line. Shares need not add up, since similar events can replace
    each other. MESSAGE is a file, -, or the message id, digest or signature of a scored or trained
    message.
    """
    from spamnb.maintenance import attribution

    with session.open(readonly=True, history=True) as model:
        ((_, what),) = [*named((message,), documents=model.recipe.documents)][:1]
        example, whose = model.lookup(what), session.person(model, person)
        with model.store.read() as view:
            found = attribution.bisect(view, model.recipe, example, limit, person=whose)
    if as_json:
        say_json(found.as_dict())
        return
    say(f"log-odds {found.log_odds:+.4f} of {found.between[0]} against {found.between[1]}")
    table(map(_row, found.shares), right=(0, 1))
    if found.folded:
        say(f"{found.folded} events in the checkpoint are not listed separately")


def _row(share: EventShare) -> tuple[str, ...]:
    return (
        str(share.event), f"{share.nats:+.4f}", shown_time(share.time_us), share.label or "import",
        f"{share.user}/{share.channel}", share.message_id or share.digest.hex(),
    )  # fmt: skip


def undo_chosen(session: CliSession, filters: dict[str, Any], *, yes: bool, as_json: bool) -> None:
    """Undo all events that the options select, newest first."""
    from spamnb.maintenance import rewind as maintenance

    with session.open(readonly=True) as model:
        wanted = chosen(model, **filters)
        if not wanted:
            raise UserError("no event is given", hint="give event numbers, or --user, --since, ...")
        with model.store.read() as view:
            found = maintenance.undoable(view, model.recipe, wanted)
    rest = len(found.superseded)
    later = (
        f" {rest} more were replaced by a later correction and stay as they are." if rest else ""
    )
    undone = 0
    if found.events:
        agreed(f"{len(found.events)} events can be undone.{later} Undo them?", yes=yes)
        with teacher(session) as (client, me):
            undone = sum(client.undo(event, me).state == "learnt" for event in found.events)
    if as_json:
        say_json({"undone": undone, "superseded": rest})
    else:
        say(f"{undone} events undone.{later}")
