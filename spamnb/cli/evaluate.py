"""`spamnb evaluate`: how well would this filter do on your own mail."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from spamnb.cli.evaluate_labels import evaluate_by_label
from spamnb.cli.help import taught
from spamnb.cli.loss_bound import keep_promise
from spamnb.cli.options import Number, spelt
from spamnb.cli.printing import progress_bar, say, table, warn, write_text
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import CorpusError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spamnb.lab.evaluation import Evaluation, Options
    from spamnb.lab.sources import Named
    from spamnb.service.training.sources import MessageSpan

EXAMPLES = """
spamnb evaluate ham/ spam/                         each message judged, then learnt
spamnb evaluate trec07p/                           a collection with full/index, in its order
spamnb evaluate --order time ham/ spam/            in the order of arrival
spamnb evaluate --feedback errors ham/ spam/       taught by mistakes and doubtful ones only
spamnb evaluate --noise 0.05 ham/ spam/            one label in twenty wrong
spamnb evaluate --test ham2/ --test spam2/ ham/ spam/    learn from one, judge the other
spamnb evaluate --report report.html --plots plots/ ham/ spam/
spamnb evaluate --json a.json --scores ham/ spam/  with what was said of each message ...
spamnb evaluate --compare a.json b.json            ... to compare two runs
spamnb evaluate --apply ham/ spam/                 ... and keep the promise of `ham_loss.one_in`
spamnb evaluate --plain collection/                documents with labels of their own
"""


@taught("Measure the filter on your own mail.", EXAMPLES)
@click.argument("sources", nargs=-1, metavar="[HAM SPAM|INDEX]")
@click.option("--protocol", type=click.Choice(["online", "holdout", "folds", "cross"]),
              help="online (the default): judge, then learn, one by one. holdout: learn two "
              "thirds, judge the rest. folds: ten of them. cross: judge what --test "
              "names.")  # fmt: skip
@click.option("--test", "tested", multiple=True, metavar="PATH", help="Judge these, HAM then SPAM "
              "or an INDEX, by what the others taught.")  # fmt: skip
@click.option("--order", type=click.Choice(["shuffle", "time", "given"]), help="By the seed (the "
              "default), as the messages arrived, or as they are found (the default of an "
              "index).")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--feedback", type=click.Choice(["full", "errors", "delayed", "partial"]),
              default="full", show_default=True, help="What is taught: everything; only mistakes "
              "and what was between 10 and 90 % spam; everything, but --delay messages late; or "
              "only a --share of the messages.")  # fmt: skip
@click.option("--delay", type=click.IntRange(1), default=100, show_default=True, metavar="N")
@click.option("--share", type=Number(0, 1), default=0.1, show_default=True)
@click.option("--noise", type=Number(0, 0.5), default=0.0, metavar="SHARE",
              help="Share of labels that are taught wrong.")  # fmt: skip
@click.option("--kind", type=click.Choice(["corrected", "multinomial", "bernoulli"]),
              help="The kind of model.")  # fmt: skip
@click.option("--one-in", type=click.IntRange(2), metavar="N",
              help="Tell where junk must begin so that at most one in N good messages is lost; "
              "else as `ham_loss.one_in` is set.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(0), default=0, metavar="N",
              help="Processes for folds; 0 takes all processors.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the figures there; - is stdout.")
@click.option("--scores", is_flag=True, help="Add what was said of each message to --json.")
@click.option("--plots", metavar="DIR", help="Draw pictures there (needs spamnb[plots]).")
@click.option("--report", metavar="FILE", help="Write a page with everything (the same).")
@click.option("--apply", is_flag=True, help="Keep the costs of the promise in the home, "
              "if the evidence suffices: they are in force from then on.")  # fmt: skip
@click.option("--compare", nargs=2, metavar="A.json B.json", help="Compare two files of "
              "`--json FILE --scores`, message by message.")  # fmt: skip
@click.option("--label", "labelled", multiple=True, metavar="NAME=PATH",
              help="Labels of your own, instead of ham and spam.")  # fmt: skip
@click.option("--plain", is_flag=True, help="Plain text documents that are no mail: with --label, "
              "or one collection (a folder for each label, cats.txt, or *.sgm).")  # fmt: skip
@click.option("--against-rest", is_flag=True, help="A model for each label against all others: "
              "for documents with several labels.")  # fmt: skip
@pass_session
@click.pass_context
def evaluate(ctx: click.Context, session: CliSession, /, **given: Any) -> None:
    """Measure how well the filter would have done on mail that you have sorted.

    The model of the home is neither read nor changed. With --apply, exit 1 if there is not enough
    evidence for the promise. 1-AUC is the chance, in percent, that a ham
    looks more like spam than a spam does; ham lost and spam missed are by the decisions that the
    costs lead to.
    """
    _refuse_idle(ctx, given)
    if given["compare"]:
        _compare(*given["compare"], json_file=given["json_file"])
        return
    if given["tested"]:
        given["protocol"] = given["protocol"] or "cross"
    given["protocol"] = given["protocol"] or "online"
    if (given["protocol"] == "cross") != bool(given["tested"]) and not given["plain"]:
        raise UserError(
            "--protocol cross and --test go together", hint="name what is judged with --test PATH"
        )
    if given["labelled"] or given["plain"]:
        evaluate_by_label(_options(session, given), given)
        return
    asked = session.settings.ham_loss.one_in
    one_in = given["one_in"] or asked
    if given["apply"] and one_in != asked:
        raise UserError(
            f"the settings promise one in {asked}", hint=f"set ham_loss.one_in = {one_in}"
        )
    outcome = _measured(session, given)
    _written(outcome, given, one_in=one_in)
    if given["apply"] and not keep_promise(session, outcome.assurance(one_in)):
        ctx.exit(1)


_ADD: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "delay": ("--feedback delayed", lambda given: given["feedback"] == "delayed"),
    "share": ("--feedback partial", lambda given: given["feedback"] == "partial"),
    "scores": ("--json FILE", lambda given: given["json_file"]),
    "against_rest": ("--label or --plain", lambda given: given["labelled"] or given["plain"]),
}
"""options that say nothing alone: what each goes with, and whether that is given"""


def _refuse_idle(ctx: click.Context, given: dict[str, Any]) -> None:
    """Before anything is read: an evaluation takes minutes, and who gave an option wants it."""
    for name, (other, holds) in _ADD.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and not holds(given):
            raise UserError(f"{spelt(name)} needs {other}", hint="add that, or leave it out")
    if given["compare"] and given["sources"]:
        raise UserError("--compare reads two files alone", hint="leave the mail out")


def _options(session: CliSession, given: dict[str, Any]) -> Options:
    from spamnb.lab.evaluation import Options
    from spamnb.service.training.worker_pool import cores

    settings = session.settings
    names = ("protocol", "seed", "feedback", "delay", "share", "noise")
    return Options(
        **{name: given[name] for name in names},
        order=given["order"] or "shuffle",
        kind=given["kind"] or settings.model.kind,
        local=settings.local,
        costs=settings.costs,
        jobs=given["jobs"] or cores(),
    )


def _measured(session: CliSession, given: dict[str, Any]) -> Evaluation:
    from spamnb.lab.evaluation import evaluate as measure
    from spamnb.lab.sources import read_each

    options = _options(session, given)
    found, order = ordered(given["sources"], given["order"], given["seed"])
    judged, _ = ordered(given["tested"], given["order"], given["seed"])
    options = replace(options, order=order, tested=len(judged))
    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        return measure(read_each([*found, *judged], warn), options)


def ordered(
    sources: Sequence[str], order: str | None, seed: int
) -> tuple[list[tuple[MessageSpan, str]], str]:
    """Find the messages and bring them in order; say which."""
    from spamnb.lab.sources import as_given, index_of, indexed, shuffled
    from spamnb.lab.sources import units_by_time as by_time

    if not sources:
        return [], order or "shuffle"
    index = index_of(sources[0]) if len(sources) == 1 else None
    if index is not None:
        named, order = indexed(index), order or "given"
    else:
        named, order = list(_sorted(sources)), order or "shuffle"
    if order == "shuffle":
        return shuffled(named, seed), order
    return (by_time if order == "time" else as_given)(named), order


def _sorted(sources: Sequence[str]) -> Iterator[Named[MessageSpan]]:
    from spamnb.lab.sources import sorted_mail

    if len(sources) != 2:
        raise UserError(
            f"{len(sources)} places are given",
            hint="give two, first the ham, then the spam; or one collection with full/index",
        )
    ham, spam = sources
    if os.path.realpath(ham) == os.path.realpath(spam):
        raise CorpusError(f"{ham} is given for ham and for spam", hint="one folder for each")
    yield from sorted_mail(ham, "ham")
    yield from sorted_mail(spam, "spam")


def _written(outcome: Evaluation, given: dict[str, Any], *, one_in: int) -> None:
    """Write what was asked for: figures, pictures, the page; else tell the figures."""
    from spamnb.core.model.costs import Costs
    from spamnb.lab.html_report import decision_rows, figures, how_far, promise, report_page

    found = outcome.assurance(one_in)
    if given["plots"]:
        _draw(outcome, Path(given["plots"]))
    if given["report"]:
        write_text(given["report"], report_page(outcome, found, " ".join(given["sources"])))
    if given["json_file"] is not None:
        plain = outcome.as_dict() | {"assurance": found.as_dict()}
        if given["scores"]:
            plain["messages"] = outcome.scores()
        write_text(given["json_file"], json.dumps(plain, indent=2) + "\n")
        if given["json_file"] == "-":
            return
    table(figures(outcome))
    say()
    table([("decision", "from", "ham", "spam"), *decision_rows(outcome)], right=(1, 2, 3))
    say()
    say(how_far(outcome.possible))
    say(promise(found, outcome.options.costs or Costs()))


def _draw(outcome: Evaluation, folder: Path) -> None:
    from spamnb.lab.plots import as_png, draw

    figures = draw(outcome)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            (folder / f"{name}.png").write_bytes(as_png(figure))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def _compare(a: str, b: str, *, json_file: str | None) -> None:
    from spamnb.lab.compare import compare

    found = compare(Path(a), Path(b))
    if json_file is not None:
        write_text(json_file, json.dumps(found.as_dict(), indent=2) + "\n")
        if json_file == "-":
            return
    head = ("", "A", "B", "A less B", "95 % interval", "better")
    rows = [
        (one.measure, f"{one.a:.5f}", f"{one.b:.5f}", f"{one.difference:+.5f}",
         f"{one.low:+.5f} to {one.high:+.5f}", one.better)
        for one in found.differences
    ]  # fmt: skip
    say(f"{found.messages} messages scored by both")
    if found.only_a or found.only_b:
        say(f"left out: {found.only_a} that only A judged, {found.only_b} that only B judged")
    table([head, *rows], right=(1, 2, 3))
