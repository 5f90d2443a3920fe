"""`spamnb rewind`, `relearn` and `bisect`, and undoing many events: the time machine's commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.daemon_client import refuse_while_served, served, teacher
from spamnb.cli.event_options import agreed, chosen, since_us
from spamnb.cli.help import taught
from spamnb.cli.history_journal import iso, shown_time
from spamnb.cli.messages import named
from spamnb.cli.printing import MOST, safe, say, say_json, table
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.service.engine.filter import Filter
    from spamnb.service.maintenance.attribution import Attribution, EventShare
    from spamnb.store.rebuild import Rebuilt

JSON = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
YES = click.option("--yes", is_flag=True, help="Do it without asking.")

REWIND_EXAMPLES = """
spamnb rewind 2h                        as it was two hours ago
spamnb rewind 2026-05-01T18:00          as it was then
"""
RELEARN_EXAMPLES = """
spamnb relearn --without mallory        as if mallory had never taught
spamnb relearn --without-channel imap   ... or nobody had by this way
spamnb relearn --set eta=4              everybody's lessons, with another constant
"""
BISECT_EXAMPLES = """
spamnb bisect new.eml                   which trainings made it what it is?
spamnb bisect '<1234@example.org>'      ... by id, digest or signature
"""


@taught("Bring back the model as it was.", REWIND_EXAMPLES)
@click.argument("moment", metavar="TIME")
@YES
@JSON
@pass_session
def rewind(session: CliSession, moment: str, yes: bool, as_json: bool) -> None:
    """Bring back the model as it was at a time, in every number. What came later is gone from it.

    TIME is a date, or how long ago: 30m, 12h, 7d, 2w. Nobody else may have the model open: stop the
    daemon first. The model of now is kept beside it, and `restore --force` brings it back.
    """
    from spamnb.service.maintenance import rewind as timemachine

    time_us = since_us(moment, "TIME") or 0
    refuse_while_served(session, "rewind")
    with session.open(readonly=True) as model, model.store.read() as view:
        cut = timemachine.cut_at(view, time_us)
    if cut.events == 0:
        _nothing(as_json=as_json)
        return
    by = ", ".join(f"{count} of {who or 'nobody'}" for who, count in sorted(cut.by.items()))
    stays = f"after {shown_time(cut.stays_us)}" if cut.stays_us else "of the whole journal"
    agreed(f"{cut.events} events {stays} go ({safe(by)}). Rewind?", yes=yes)
    done = timemachine.rewind(session.home, time_us)
    _done(
        done,
        {"events_dropped": done.result.events, "last_event": done.result.stop - 1},
        f"{done.result.events} events dropped",
        as_json=as_json,
    )


@taught("Learn again without somebody.", RELEARN_EXAMPLES)
@click.option("--without", multiple=True, metavar="WHO", help="Whose events are dropped; "
              "repeatable.")  # fmt: skip
@click.option("--without-channel", multiple=True, metavar="CHANNEL", help="What came this way is "
              "dropped; repeatable.")  # fmt: skip
@click.option("--set", "constants", multiple=True, metavar="NAME=NUMBER", help="Another constant: "
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
    """Teach the journal's lessons again, in order, without some of them; each step anew.

    Leaves out also what was undone. What went into the checkpoint has no events any more and stays,
    whoever taught it. Nobody else may have the model open: stop the daemon first. The model of now
    is kept beside it, and `restore --force` brings it back.
    """
    from spamnb.service.maintenance import rewind as timemachine
    from spamnb.service.maintenance.event_filter import RelearnFilter

    drops = RelearnFilter(without, without_channel)
    changed = _constants(constants)
    refuse_while_served(session, "relearn")
    with session.open(readonly=True) as model, model.store.read() as view:
        timemachine.changed_recipe(model.recipe, changed)
        dropped = sum(map(drops, view.events()))
        folded = view.base_totals().last_seq
        kept = view.totals().last_seq - folded - dropped
    stays = f" {folded} events in the checkpoint stay, whoever taught them." if folded else ""
    agreed(f"{dropped} events are dropped, {kept} learnt again.{stays} Relearn?", yes=yes)
    done = timemachine.relearn(session.home, drops, session.settings.costs, changed)
    counts = done.result
    said = f"{counts.taught} learnt again, {counts.dropped} dropped"
    if counts.undone or counts.idle:
        said += f", {counts.undone} left out as undone, {counts.idle} came to nothing"
    _done(done, counts.as_dict(), said, as_json=as_json)


def _constants(pairs: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise UserError(f"--set {pair} is no constant", hint="--set eta=4") from error
    return found


def _nothing(*, as_json: bool) -> None:
    if as_json:
        say_json({"events_dropped": 0})
    else:
        say("nothing was taught since then")


def _done(done: Rebuilt[Any], counts: dict[str, int], said: str, *, as_json: bool) -> None:
    if as_json:
        say_json(counts | {"kept": str(done.kept)})
    else:
        say(f"{said}; the model before this is {safe(str(done.kept))}: delete it when all is well")


@taught("Tell which trainings made a message so.", BISECT_EXAMPLES)
@click.argument("message", metavar="MESSAGE")
@click.option("--limit", type=click.IntRange(0, MOST), default=20, metavar="N",
              help="How many at most; 0 shows all.")  # fmt: skip
@JSON
@pass_session
def bisect(session: CliSession, message: str, limit: int, as_json: bool) -> None:
    """Tell which trainings made a message what it is, the strongest first.

    The share of a training is what the log-odds would lose without it: positive ones speak for the
    first label named. Shares need not add up, since two that say the same stand in for each other.
    MESSAGE is a file, -, or the id, digest or signature of one that was scored or taught.
    """
    from spamnb.service.maintenance import attribution

    with session.open(readonly=True) as model:
        ((_, what),) = [*named((message,), documents=model.recipe.documents)][:1]
        example = _example(session, model, what)
        with model.store.read() as view:
            found = attribution.bisect(view, model.recipe, example)
    shares = found.shares[: limit or None]
    if as_json:
        say_json(_as_dict(found, shares))
        return
    say(f"log-odds {found.log_odds:+.4f} of {found.between[0]} against {found.between[1]}")
    table(map(_row, shares), right=(0, 1))
    if found.folded:
        say(f"{found.folded} events are in the checkpoint and cannot be told apart")


def _example(session: CliSession, model: Filter, what: bytes | str) -> Any:
    from spamnb.service.engine.lookup import find_example

    if isinstance(what, bytes):
        return model.example(what)
    kept = session.open_history() if (session.home / "history").is_dir() else None
    try:
        with model.store.read() as view:
            return find_example(view, kept, what)
    finally:
        if kept:
            kept.close()


def _as_dict(found: Attribution, shares: list[EventShare]) -> dict[str, Any]:
    return {
        "log_odds": found.log_odds,
        "between": list(found.between),
        "folded": found.folded,
        "shares": [
            {
                "event": share.event,
                "nats": share.nats,
                "time": iso(share.time_us),
                "who": share.who,
                "channel": share.channel,
                "label": share.label,
                "digest": share.digest.hex(),
                "message_id": share.message_id,
            }
            for share in shares
        ],
    }


def _row(share: EventShare) -> tuple[str, ...]:
    return (
        str(share.event), f"{share.nats:+.4f}", shown_time(share.time_us), share.label or "import",
        f"{share.who}/{share.channel}", share.message_id or share.digest.hex(),
    )  # fmt: skip


def undo_chosen(session: CliSession, filters: dict[str, Any], *, yes: bool, as_json: bool) -> None:
    """Undo all events that the options choose, the newest first."""
    from spamnb.service.maintenance import rewind as timemachine

    with session.open(readonly=True) as model:
        wanted = chosen(session, model, **filters)
        if not wanted:
            raise UserError("no event is named", hint="give numbers, or --who, --since, ...")
        with model.store.read() as view:
            found = timemachine.undoable(view, model.recipe, wanted)
    rest = len(found.superseded)
    later = f" {rest} more were replaced by somebody's later word, and stay so." if rest else ""
    if found.events:
        agreed(f"{len(found.events)} events can be undone.{later} Undo them?", yes=yes)
    undone = _undo(session, found.events)
    if as_json:
        say_json({"undone": undone, "superseded": rest})
    else:
        say(f"{undone} events undone.{later}")


def _undo(session: CliSession, events: list[int]) -> int:
    """Undo events in order; how many changed something. While a daemon serves, it does it."""
    from spamnb.service.maintenance import rewind as timemachine

    if not events:
        return 0
    if served(session):
        with teacher(session) as (desk, me):
            return sum(desk.undo(event, me).state == "learnt" for event in events)
    with session.open() as model:
        receipts = timemachine.take_back(model, events, session.source())
        return sum(receipt.changed for receipt in receipts)
