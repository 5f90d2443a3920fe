"""`spamnb rewind`, `relearn` and `bisect`, and `undo` of many events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.daemon_client import refuse_while_served, teacher
from spamnb.cli.event_options import agreed, chosen, since_us
from spamnb.cli.help import command
from spamnb.cli.messages import named
from spamnb.cli.options import Count
from spamnb.cli.printing import safe, say, say_json, shown_time, table
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.service.maintenance.attribution import EventShare
    from spamnb.store.rebuild import Rebuilt

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
"""


@command("Restore an earlier state of the model.", REWIND_EXAMPLES)
@click.argument("moment", metavar="TIME")
@YES
@JSON
@pass_session
def rewind(session: CliSession, moment: str, yes: bool, as_json: bool) -> None:
    """Restore the exact state of the model at a time. Later training is removed from it.

    TIME is a date or an age: 30m, 12h, 7d, 2w. Stop the daemon first. The current model is kept in
    a file beside the new one; `restore --force` restores it.
    """
    from spamnb.service.maintenance import rewind as maintenance

    time_us = since_us(moment, "TIME") or 0
    refuse_while_served(session, "rewind")
    with session.open(readonly=True) as model, model.store.read() as view:
        cut = maintenance.cut_at(view, time_us)
    if cut.events == 0:
        _nothing(as_json=as_json)
        return
    by = ", ".join(f"{count} by {user or 'unknown'}" for user, count in sorted(cut.by.items()))
    which = f"after {shown_time(cut.stays_us)}" if cut.stays_us else "of the whole journal"
    agreed(f"{cut.events} events {which} will be removed ({safe(by)}). Rewind?", yes=yes)
    done = maintenance.rewind(session.home, time_us)
    _done(
        done,
        {"events_dropped": done.result.events, "last_event": done.result.stop - 1},
        f"{done.result.events} events removed",
        as_json=as_json,
    )


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
    error. Stop the daemon first. The current model is kept in a file beside the new one; `restore
    --force` restores it.
    """
    from spamnb.service.maintenance import rewind as maintenance
    from spamnb.service.maintenance.event_filter import RelearnFilter

    drops = RelearnFilter(without, without_channel)
    changed = _constants(constants)
    refuse_while_served(session, "relearn")
    with session.open(readonly=True) as model:
        plan = maintenance.relearn_plan(model, drops, changed)
    note = f" {plan.folded} events in the checkpoint stay." if plan.folded else ""
    agreed(f"{plan.dropped} events will be removed, {plan.kept} retrained.{note} Relearn?", yes=yes)
    done = maintenance.relearn(session.home, drops, session.settings.costs, changed)
    counts = done.result
    summary = f"{counts.taught} events retrained, {counts.dropped} removed"
    if counts.undone or counts.idle:
        summary += f", {counts.undone} left out as undone, {counts.idle} without effect"
    _done(done, counts.as_dict(), summary, as_json=as_json)


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


def _done(done: Rebuilt[Any], counts: dict[str, int], summary: str, *, as_json: bool) -> None:
    if as_json:
        say_json(counts | {"kept": str(done.kept)})
    else:
        say(f"{summary}; the previous model is {safe(str(done.kept))}: delete it if all is well")


@command("Show which training led to a verdict.", BISECT_EXAMPLES)
@click.argument("message", metavar="MESSAGE")
@click.option("--limit", type=Count(), default=20, metavar="N",
              help="Maximum number; 0 shows all.")  # fmt: skip
@JSON
@pass_session
def bisect(session: CliSession, message: str, limit: int, as_json: bool) -> None:
    """Show which training events led to the verdict on a message, strongest first.

    The share of an event is what the log-odds would lose without it; positive shares are evidence
    for the first label of the first line. Shares need not add up, since similar events can replace
    each other. MESSAGE is a file, -, or the message id, digest or signature of a scored or trained
    message.
    """
    from spamnb.service.maintenance import attribution

    with session.open(readonly=True, history=True) as model:
        ((_, what),) = [*named((message,), documents=model.recipe.documents)][:1]
        example = model.lookup(what)
        with model.store.read() as view:
            found = attribution.bisect(view, model.recipe, example, limit)
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
    from spamnb.service.maintenance import rewind as maintenance

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
