"""`spamnb tune`: constants of the model that suit one's own mail better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spamnb.cli.daemon_client import refuse_while_served
from spamnb.cli.help import taught
from spamnb.cli.loss_bound import keep_promise
from spamnb.cli.printing import progress_bar, say, say_json, table, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import StoreMissingError

if TYPE_CHECKING:
    from spamnb.core.model.costs import Costs
    from spamnb.core.model.events import Recipe
    from spamnb.lab.tune import SearchOptions, Tuning

EXAMPLES = """
spamnb tune ham/ spam/                   look, and tell what would be gained
spamnb tune --apply ham/ spam/           ... and relearn the model with it, if it is sure
spamnb tune --order shuffle ham/ spam/   for mail that was collected at different times
"""


@taught("Search better constants for your mail.", EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="HAM SPAM|INDEX")
@click.option(
    "--order",
    type=click.Choice(["time", "shuffle", "given"]),
    default="time",
    show_default=True,
    help="As the messages arrived, by the seed, or as found.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--most", type=click.IntRange(100), default=2000, show_default=True, metavar="N",
              help="Take the newest N messages: each try judges and learns them all.")  # fmt: skip
@click.option("--tries", type=click.IntRange(1), default=40, show_default=True, metavar="N",
              help="Sets of constants to try at most.")  # fmt: skip
@click.option("--one-in", type=click.IntRange(2), metavar="N", help="Tell also where junk must "
              "begin so that at most one in N good messages is lost.")  # fmt: skip
@click.option(
    "--jobs",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Processes; 0 takes all processors. The result does not depend on it.",
)
@click.option("--apply", "applied", is_flag=True, help="Relearn the model of the home with the "
              "constants, if the gain is confirmed. The old model is kept.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@pass_session
@click.pass_context
def tune(
    ctx: click.Context,
    session: CliSession,
    sources: tuple[str, ...],
    order: str,
    seed: int,
    most: int,
    tries: int,
    one_in: int | None,
    jobs: int,
    applied: bool,
    as_json: bool,
) -> None:
    """Search the constants of the model (eta, r, alpha, kappa, rates) that suit your mail best.

    The first two thirds of the mail, by time, choose; the last third, not looked at until then,
    confirms. What it does not confirm is no gain, and is not applied. Nothing is written without
    --apply. With --apply, exit 1 if there is nothing to apply. Not searched are the groups of
    features, which a model is made with, and the costs, which move no score: `spamnb evaluate
    --apply` finds those that keep ham_loss.one_in.
    """
    from spamnb.lab.tune import SearchOptions

    if applied:
        refuse_while_served(session, "tune --apply")
    there = _recipe_there(session) if applied else None
    with progress_bar("tuning") as bar:
        search = SearchOptions(
            tries=tries,
            progress=(lambda done, total: bar(done, total, "")) if bar else None,
            one_in=one_in or session.settings.ham_loss.one_in,
        )
        found = _searched(session, sources, (order, seed, most, jobs), search, there)
    if as_json:
        say_json(found.as_dict())
    else:
        _show(found, session.settings.costs)
    if applied:
        _apply(ctx, session, found)


def _recipe_there(session: CliSession) -> Recipe:
    """The recipe of the model that is to be changed; there must be one."""
    with session.open(readonly=True) as model:
        return model.recipe


def _searched(
    session: CliSession,
    sources: tuple[str, ...],
    how: tuple[str, int, int, int],
    search: SearchOptions,
    there: Recipe | None,
) -> Tuning:
    from spamnb.cli.evaluate import ordered
    from spamnb.lab import tune as service
    from spamnb.lab.sources import read_each
    from spamnb.lab.trial import Options
    from spamnb.service.training.worker_pool import cores

    order, seed, most, jobs = how
    there = there or _recipe_or_none(session)
    kind = there.kind if there else session.settings.model.kind
    constants = (
        {name: float(getattr(there, name)) for name in service.OF_KIND[kind]} if there else {}
    )
    options = Options(
        order=order,
        seed=seed,
        kind=kind,
        local=session.settings.local,
        costs=session.settings.costs,
        constants=constants,
        jobs=jobs or cores(),
    )
    found, _ = ordered(sources, order, seed)
    return service.tune(read_each(found[-most:], warn), options, search)


def _recipe_or_none(session: CliSession) -> Recipe | None:
    """The recipe of the model in the home, whose constants are the ones to beat."""
    try:
        return _recipe_there(session)
    except StoreMissingError:
        return None


def _show(found: Tuning, costs: Costs) -> None:
    from spamnb.lab.html_report import promise

    say(f"{found.tries} sets of constants tried on {found.searched} messages, the best one "
        f"confirmed on {found.held_back} others")  # fmt: skip
    rows = [("", "now", "best")]
    rows += [
        (name, f"{value:g}", f"{found.chosen.get(name, value):g}")
        for name, value in found.old.items()
    ]
    table(rows, right=(1, 2))
    say()
    head = ("on the held-back part", "now", "best", "difference", "95 % interval")
    measures = (("log loss", found.log_loss), ("1-AUC %", found.auc_complement_percent))
    table(
        [head, *((name, f"{gain.before:.5f}", f"{gain.after:.5f}", f"{gain.difference:+.5f}",
                  f"{gain.low:+.5f} to {gain.high:+.5f}") for name, gain in measures)],
        right=(1, 2, 3),
    )  # fmt: skip
    say()
    if found.confirmed:
        say(f"confirmed: {-found.log_loss.difference / found.log_loss.before:.0%} less surprise")
    elif found.chosen:
        say("no gain: what looked better where it was chosen is not better for sure elsewhere")
    else:
        say("no gain: nothing is better than the constants of now")
    say(promise(found.assurance, costs))


def _apply(ctx: click.Context, session: CliSession, found: Tuning) -> None:
    if not found.confirmed:
        warn("nothing is changed")
        ctx.exit(1)
    from spamnb.service.maintenance import rewind
    from spamnb.service.maintenance.event_filter import RelearnFilter
    from spamnb.settings.cost_override import FILE

    done = rewind.relearn(session.home, RelearnFilter(), session.settings.costs, found.chosen)
    warn(f"{done.result.taught} messages learnt again; the old model is {done.kept}")
    # A promise that was found with the old constants says nothing of the new ones.
    if (session.home / FILE).exists():
        keep_promise(session, found.assurance)
