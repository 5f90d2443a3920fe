"""`spamnb tune`: search constants of the model that fit the user's own mail better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spamnb.cli.evaluate_streams import store_loss_bound
from spamnb.cli.main import command
from spamnb.cli.printing import progress_bar, say, say_json, table, warn
from spamnb.cli.session import CliSession, pass_session, refuse_while_served
from spamnb.errors import StoreMissingError

if TYPE_CHECKING:
    from spamnb.lab.evaluate import SearchOptions, Tuning
    from spamnb.model.costs import Costs
    from spamnb.model.events import Recipe

EXAMPLES = """
spamnb tune ham/ spam/                   search, and report the gain
spamnb tune --apply ham/ spam/           ... and relearn the model if the gain is confirmed
spamnb tune --order shuffle ham/ spam/   for mail that was collected at different times
"""


@command("Tune the model's constants to your mail.", EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="HAM SPAM|INDEX")
@click.option(
    "--order",
    type=click.Choice(["time", "shuffle", "given"]),
    default="time",
    show_default=True,
    help="time: order of arrival. shuffle: random by --seed. given: as found.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Seed of the random order.")  # fmt: skip
@click.option("--max-messages", type=click.IntRange(100), default=2000, show_default=True,
              metavar="N", help="Use at most N messages, the newest; each try scores and trains "
              "all of them.")  # fmt: skip
@click.option("--tries", type=click.IntRange(1), default=40, show_default=True, metavar="N",
              help="Maximum number of sets of constants to try.")  # fmt: skip
@click.option("--one-in", type=click.IntRange(2), metavar="N", help="Also report the junk "
              "threshold at which at most one in N good messages is lost.")  # fmt: skip
@click.option(
    "--jobs",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Number of processes; 0 is one per core. The result does not depend on it.",
)
@click.option("--apply", "applied", is_flag=True, help="Relearn the model of the home with the "
              "constants, if the gain is confirmed. The old model is kept.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_session
@click.pass_context
def tune(
    ctx: click.Context,
    session: CliSession,
    sources: tuple[str, ...],
    order: str,
    seed: int,
    max_messages: int,
    tries: int,
    one_in: int | None,
    jobs: int,
    applied: bool,
    as_json: bool,
) -> None:
    """Search the constants of the model (eta, r, alpha, kappa, rates) that fit your mail best.

    The search uses the first two thirds of the mail; the last third, not used before, confirms the
    gain. A gain that is not confirmed is not applied. Nothing is written without --apply; with
    --apply, the exit code is 1 if there is nothing to apply. The groups of features are fixed when
    a model is created, and the costs do not change scores, so neither is searched; `spamnb evaluate
    --apply` finds the costs for ham_loss.one_in.
    """
    from spamnb.lab.evaluate import SearchOptions

    if applied:
        refuse_while_served(session, "tune --apply")
    recipe = _recipe_of_model(session) if applied else None
    with progress_bar("tuning") as bar:
        search = SearchOptions(
            tries=tries,
            progress=(lambda done, total: bar(done, total, "")) if bar else None,
            one_in=one_in or session.settings.ham_loss.one_in,
        )
        found = _searched(session, sources, (order, seed, max_messages, jobs), search, recipe)
    if as_json:
        say_json(found.as_dict())
    else:
        _show(found, session.settings.costs)
    if applied:
        _apply(ctx, session, found)


def _recipe_of_model(session: CliSession) -> Recipe:
    """Return the recipe of the model in the home; StoreMissingError without a model."""
    with session.open(readonly=True) as model:
        return model.recipe


def _searched(
    session: CliSession,
    sources: tuple[str, ...],
    how: tuple[str, int, int, int],
    search: SearchOptions,
    recipe: Recipe | None,
) -> Tuning:
    from spamnb.engine.bulk import cores
    from spamnb.lab import evaluate as service
    from spamnb.lab.runs import Options, ordered, read_each

    order, seed, max_messages, jobs = how
    recipe = recipe or _recipe_or_none(session)
    kind = recipe.kind if recipe else session.settings.model.kind
    constants = (
        {name: float(getattr(recipe, name)) for name in service.OF_KIND[kind]} if recipe else {}
    )
    options = Options(
        order=order,
        seed=seed,
        kind=kind,
        local=session.settings.site,
        costs=session.settings.costs,
        constants=constants,
        jobs=jobs or cores(),
    )
    found, _ = ordered(sources, order, seed)
    return service.tune(read_each(found[-max_messages:], warn), options, search)


def _recipe_or_none(session: CliSession) -> Recipe | None:
    """Return the recipe of the model in the home, the baseline of the search; None without one."""
    try:
        return _recipe_of_model(session)
    except StoreMissingError:
        return None


def _show(found: Tuning, costs: Costs) -> None:
    from spamnb.lab.report import loss_bound_text

    say(f"{found.tries} sets of constants tried on {found.searched} messages, the best one "
        f"confirmed on {found.held_back} others")  # fmt: skip
    rows = [("", "current", "best")]
    rows += [
        (name, f"{value:g}", f"{found.chosen.get(name, value):g}")
        for name, value in found.old.items()
    ]
    table(rows, right=(1, 2))
    say()
    head = ("on the held-back part", "current", "best", "difference", "95 % interval")
    measures = (("log loss", found.log_loss), ("1-AUC %", found.auc_complement_percent))
    table(
        [head, *((name, f"{gain.before:.5f}", f"{gain.after:.5f}", f"{gain.difference:+.5f}",
                  f"{gain.low:+.5f} to {gain.high:+.5f}") for name, gain in measures)],
        right=(1, 2, 3),
    )  # fmt: skip
    say()
    if found.confirmed:
        say(f"confirmed: {-found.log_loss.difference / found.log_loss.before:.0%} less log loss")
    elif found.chosen:
        say("no gain: the best constants of the search are not significantly better on other mail")
    else:
        say("no gain: no constants are better than the current ones")
    say(loss_bound_text(found.loss_bound, costs))


def _apply(ctx: click.Context, session: CliSession, found: Tuning) -> None:
    if not found.confirmed:
        warn("nothing was changed")
        ctx.exit(1)
    from spamnb.engine.event_filter import RelearnFilter
    from spamnb.maintenance import rewind
    from spamnb.maintenance.home_files import FILE

    with session.whole_model():
        done = rewind.relearn(
            session.home,
            RelearnFilter(),
            session.settings.costs,
            found.chosen,
            session.costs_of_label,
        )
    warn(f"{done.result.taught} messages relearnt; the old model is {done.kept}")
    # Costs that were found with the old constants are not valid for the new ones.
    if (session.home / FILE).exists():
        store_loss_bound(session, found.loss_bound)
