"""`spamnb evaluate`: measure the filter on sorted mail, or on any collection with labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from spamnb.cli.evaluate_streams import (
    PEOPLE,
    evaluate_decisions,
    evaluate_persons,
    store_loss_bound,
)
from spamnb.cli.main import command
from spamnb.cli.options import Number, spelt
from spamnb.cli.printing import progress_bar, say, table, warn, write_text
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spamnb.engine.prior import Prior
    from spamnb.lab.evaluate import Evaluation, Options
    from spamnb.lab.labels import Collection, LabelEvaluation


def evaluate_by_label(options: Options, given: dict[str, Any]) -> None:
    """Evaluate, write the requested file and print the results."""
    from spamnb.lab.labels import collection_of

    for name in ("plots", "report", "tested", "scores", "apply", "one_in"):
        if given[name]:
            raise UserError(
                f"{spelt(name)} works only with the labels ham and spam", hint="leave it out"
            )
    options = replace(options, documents=given["plain"])
    if given["labelled"]:
        collection = _labelled(given)
    elif len(given["sources"]) == 1:
        collection = collection_of(given["sources"][0], options.seed)
    else:
        raise UserError(
            f"{len(given['sources'])} paths are given",
            hint="with --plain name one collection, or --label NAME=PATH for each label",
        )
    if collection.tested and given["protocol"] == "online":
        # A collection that defines a test set is evaluated with it.
        options = replace(options, protocol="cross", tested=collection.tested)
    found = _evaluated(collection, options, against_rest=given["against_rest"])
    _report(found, given["json_file"])


def _labelled(given: dict[str, Any]) -> Collection:
    """Read the documents of --label NAME=PATH."""
    from spamnb.cli.train import named_sources
    from spamnb.lab.labels import labelled

    if given["sources"]:
        raise UserError("--label and HAM SPAM exclude each other", hint="leave out HAM SPAM")
    sources, plain = named_sources(given["labelled"]), given["plain"]
    order = "shuffle" if plain and given["order"] == "time" else given["order"] or "shuffle"
    return labelled(sources, order, given["seed"], warn, plain=plain)


def _evaluated(collection: Collection, options: Options, *, against_rest: bool) -> LabelEvaluation:
    from spamnb.lab.labels import evaluate_collection

    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        return evaluate_collection(collection.documents, options, against_rest=against_rest)


def _report(found: LabelEvaluation, json_file: str | None) -> None:
    from spamnb.lab.statistics import macro_f1, pooled

    if json_file is not None:
        write_text(json_file, json.dumps(found.as_dict(), indent=2) + "\n")
        if json_file == "-":
            return
    head = ("label", "documents", "precision", "recall", "F1", "F1 by threshold", "break-even")
    rows = [
        (
            one.label,
            str(one.most_probable.documents),
            *(f"{x:.3f}" for x in (one.most_probable.precision, one.most_probable.recall,
                                   one.most_probable.f1, one.by_threshold.f1)),
            "-" if one.break_even is None else f"{one.break_even:.3f}",
        )
        for one in found.results
    ]  # fmt: skip
    ways = list(found.ways().values())
    for name, mean in (("macro F1", macro_f1), ("micro F1", lambda parts: pooled(parts).f1)):
        rows.append((name, "", "", "", *(f"{mean(parts):.3f}" for parts in ways), ""))
    say(f"{found.documents} documents scored, protocol {found.options.protocol}")
    table([head, *rows], right=(1, 2, 3, 4, 5, 6))


EXAMPLES = """
spamnb evaluate ham/ spam/                         score each message, then train with it
spamnb evaluate trec07p/                           a collection with full/index, in its order
spamnb evaluate --order time ham/ spam/            in order of arrival
spamnb evaluate --feedback errors ham/ spam/       train only with errors and unsure messages
spamnb evaluate --noise 0.05 ham/ spam/            one label in twenty wrong
spamnb evaluate --test ham2/ --test spam2/ ham/ spam/    separate training and test mail
spamnb evaluate --report report.html --plots plots/ ham/ spam/
spamnb evaluate --json a.json --scores ham/ spam/  write the verdicts ...
spamnb evaluate --compare a.json b.json            ... and compare two runs
spamnb evaluate --apply ham/ spam/                 store costs that meet `ham_loss.one_in`
spamnb evaluate --plain collection/                plain text documents with other labels
spamnb evaluate --world conflict ham/ spam/        persons who want different mail
spamnb evaluate --decisions --feedback errors --answered 0.3 ham/ spam/   what users see
"""


@command("Measure the filter on your own mail.", EXAMPLES)
@click.argument("sources", nargs=-1, metavar="[HAM SPAM|INDEX]")
@click.option("--protocol", type=click.Choice(["online", "holdout", "folds", "cross"]),
              help="online (default): score each message, then train with it. holdout: train with "
              "two thirds, score the rest. folds: 10-fold cross-validation. cross: score the mail "
              "of --test.")  # fmt: skip
@click.option("--test", "tested", multiple=True, metavar="PATH", help="Test mail, HAM then SPAM or "
              "an INDEX; all other mail is for training.")  # fmt: skip
@click.option("--order", type=click.Choice(["shuffle", "time", "given"]), help="shuffle (default): "
              "random by --seed. time: order of arrival. given: as found (default for an "
              "index).")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Seed of the random order.")  # fmt: skip
@click.option("--feedback", type=click.Choice(["full", "errors", "delayed", "partial"]),
              default="full", show_default=True, help="Messages used for training. full: all. "
              "errors: errors, and messages with 10 to 90 % probability of spam. delayed: all, "
              "--delay messages later. partial: a random --share.")  # fmt: skip
@click.option("--delay", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="Delay of --feedback delayed, in messages.")  # fmt: skip
@click.option("--share", type=Number(0, 1), default=0.1, show_default=True,
              help="Share of messages for --feedback partial.")  # fmt: skip
@click.option("--noise", type=Number(0, 0.5), default=0.0, metavar="SHARE",
              help="Share of training labels that are wrong.")  # fmt: skip
@click.option("--prior", "prior_file", metavar="FILE|shipped", help="Begin with a prior, "
              "or with the one that ships with spamnb.")  # fmt: skip
@click.option("--kind", type=click.Choice(["corrected", "multinomial", "bernoulli"]),
              help="Kind of the model.")  # fmt: skip
@click.option("--one-in", type=click.IntRange(2), metavar="N",
              help="Report the junk threshold at which at most one in N good messages is lost. "
              "Default: `ham_loss.one_in`.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(0), default=0, metavar="N",
              help="Number of processes for folds; 0 is one per core.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the results to FILE; - is stdout.")
@click.option("--scores", is_flag=True, help="Add the verdict on each message to --json.")
@click.option("--plots", metavar="DIR", help="Write plots to DIR (needs spamnb[plots]).")
@click.option("--report", metavar="FILE", help="Write an HTML report (needs spamnb[plots]).")
@click.option("--apply", is_flag=True, help="Store costs that meet ham_loss.one_in in the home, if "
              "there is enough evidence. They apply from then on.")  # fmt: skip
@click.option("--compare", nargs=2, metavar="A.json B.json", help="Compare two files of "
              "`--json FILE --scores`, message by message.")  # fmt: skip
@click.option("--label", "labelled", multiple=True, metavar="NAME=PATH",
              help="Messages of a label, instead of HAM and SPAM; repeatable.")  # fmt: skip
@click.option("--plain", is_flag=True, help="The input is plain text, not mail: given with "
              "--label, or as one collection (a folder per label, cats.txt, *.sgm).")  # fmt: skip
@click.option("--against-rest", is_flag=True, help="Evaluate each label against all others: for "
              "documents with several labels. `train` cannot make such a model.")  # fmt: skip
@click.option("--world", type=click.Choice(["conflict", "peace", "newsletters", "attack"]),
              help="Deliver the mail to invented persons, and compare how models serve them. "
              "conflict: some readers of a sender want its mail, others do not. peace: all readers "
              "want it. newsletters: one person wants a sender's mail, another does not. attack: "
              "some persons give false labels.")  # fmt: skip
@click.option("--people", type=click.IntRange(1), default=PEOPLE, show_default=True, metavar="N",
              help="Number of persons of --world.")  # fmt: skip
@click.option("--persons", metavar="FILE", help="Like --world, with the persons and deliveries of "
              "FILE, one delivery per line: PATH PERSON LABEL.")  # fmt: skip
@click.option("--decisions", is_flag=True, help="Judge each message as the daemon would, with the "
              "threshold that the mail sets, and count what is filed; with --feedback errors users "
              "correct wrong and unsure verdicts. bogofilter is judged alike if it is "
              "installed.")  # fmt: skip
@click.option("--answered", type=Number(0, 1), default=1.0, show_default=True, metavar="SHARE",
              help="Share of the mistakes that users correct, or of all messages with --feedback "
              "full.")  # fmt: skip
@click.option("--late", type=Number(0, 1e9), default=0.0, show_default=True, metavar="SECONDS",
              help="Time from a message to its label.")  # fmt: skip
@click.option("--apart", type=Number(0, 1e9), default=900.0, show_default=True, metavar="SECONDS",
              help="Time between two messages: one that is not moved for a day is presumed to "
              "be in its place.")  # fmt: skip
@click.option("--then", nargs=2, metavar="HAM SPAM", help="With --decisions: mail of another kind "
              "that comes after all other mail.")  # fmt: skip
@pass_session
@click.pass_context
def evaluate(ctx: click.Context, session: CliSession, /, **given: Any) -> None:
    """Measure the accuracy of the filter on sorted mail.

    The model of the home is neither read nor changed. 1-AUC is the probability, in percent, that
    a ham gets a higher score than a spam. Ham lost and spam missed follow from the decisions under
    the configured costs. With --apply, the exit code is 1 if there is not enough evidence that
    ham_loss.one_in can be met.
    """
    _refuse_idle(ctx, given)
    if given["compare"]:
        _compare(*given["compare"], json_file=given["json_file"])
        return
    if given["decisions"]:
        settings = session.settings.ham_loss
        one_in = given["one_in"] or settings.one_in if settings.site_threshold else 0
        evaluate_decisions(_options(session, given | {"protocol": "online"}), given, one_in)
        return
    if given["world"] or given["persons"]:
        evaluate_persons(_options(session, given | {"protocol": "online"}), given)
        return
    if given["tested"]:
        given["protocol"] = given["protocol"] or "cross"
    given["protocol"] = given["protocol"] or "online"
    if (given["protocol"] == "cross") != bool(given["tested"]) and not given["plain"]:
        raise UserError(
            "--protocol cross and --test need each other", hint="name the test mail with --test"
        )
    if given["labelled"] or given["plain"]:
        evaluate_by_label(_options(session, given), given)
        return
    asked = session.settings.ham_loss.one_in
    one_in = given["one_in"] or asked
    if given["apply"] and one_in != asked:
        raise UserError(
            f"--one-in {one_in} differs from ham_loss.one_in = {asked}, which --apply uses",
            hint=f"set ham_loss.one_in = {one_in}",
        )
    outcome = _measured(session, given)
    _written(outcome, given, one_in=one_in)
    if given["apply"] and not store_loss_bound(session, outcome.loss_bound(one_in)):
        ctx.exit(1)


def _is_of_others(given: dict[str, Any]) -> bool:
    return any(given[name] for name in ("compare", "world", "persons", "labelled", "plain"))


_ADD: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "delay": ("--feedback delayed", lambda given: given["feedback"] == "delayed"),
    "share": ("--feedback partial", lambda given: given["feedback"] == "partial"),
    "scores": ("--json FILE", lambda given: given["json_file"]),
    "answered": ("--decisions", lambda given: given["decisions"]),
    "late": ("--decisions", lambda given: given["decisions"]),
    "apart": ("--decisions", lambda given: given["decisions"]),
    "then": ("--decisions", lambda given: given["decisions"]),
    "people": ("--world", lambda given: given["world"]),
    "prior_file": ("HAM and SPAM", lambda given: not _is_of_others(given)),
    "against_rest": ("--label or --plain", lambda given: given["labelled"] or given["plain"]),
}
"""options that depend on another option: the name of that option, and whether it is given"""


def _refuse_idle(ctx: click.Context, given: dict[str, Any]) -> None:
    """Refuse options without effect, before an evaluation that takes minutes."""
    for name, (other, holds) in _ADD.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and not holds(given):
            raise UserError(
                f"{spelt(name)} needs {other}", hint=f"add {other}, or leave out {spelt(name)}"
            )
    if given["compare"] and given["sources"]:
        raise UserError("--compare takes no mail, only two files", hint="leave out the mail")


def _options(session: CliSession, given: dict[str, Any]) -> Options:
    from spamnb.engine.bulk import cores
    from spamnb.lab.evaluate import Options

    settings = session.settings
    names = ("protocol", "seed", "feedback", "delay", "share", "noise")
    return Options(
        **{name: given[name] for name in names},
        order=given["order"] or "shuffle",
        kind=given["kind"] or settings.model.kind,
        local=settings.site,
        costs=settings.costs,
        prior=_prior(given["prior_file"]),
        jobs=given["jobs"] or cores(),
    )


def _prior(name: str | None) -> Prior | None:
    """Read the prior that models begin with."""
    from spamnb.engine.prior import read_prior, shipped_prior

    if name is None:
        return None
    if name == "shipped":
        return shipped_prior()[0]
    try:
        with Path(name).open(encoding="utf-8") as lines:
            return read_prior(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name} cannot be read: {error}") from error


def _measured(session: CliSession, given: dict[str, Any]) -> Evaluation:
    from spamnb.lab.evaluate import evaluate as measure
    from spamnb.lab.runs import ordered, read_each

    options = _options(session, given)
    found, order = ordered(given["sources"], given["order"], given["seed"])
    tested, _ = ordered(given["tested"], given["order"], given["seed"])
    options = replace(options, order=order, tested=len(tested))
    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        return measure(read_each([*found, *tested], warn), options)


def _written(outcome: Evaluation, given: dict[str, Any], *, one_in: int) -> None:
    """Write the requested files, and print the results unless the JSON goes to stdout."""
    from spamnb.lab.report import (
        bayes_error_text,
        decision_rows,
        figures,
        loss_bound_text,
        report_page,
    )
    from spamnb.model.costs import Costs

    found = outcome.loss_bound(one_in)
    if given["plots"]:
        _draw(outcome, Path(given["plots"]))
    if given["report"]:
        write_text(given["report"], report_page(outcome, found, " ".join(given["sources"])))
    if given["json_file"] is not None:
        plain = outcome.as_dict() | {"loss_bound": found.as_dict()}
        if given["scores"]:
            plain["messages"] = outcome.scores()
        write_text(given["json_file"], json.dumps(plain, indent=2) + "\n")
        if given["json_file"] == "-":
            return
    table(figures(outcome))
    say()
    table([("decision", "from", "ham", "spam"), *decision_rows(outcome)], right=(1, 2, 3))
    say()
    say(bayes_error_text(outcome.bayes_error))
    say(loss_bound_text(found, outcome.options.costs or Costs()))


def _draw(outcome: Evaluation, folder: Path) -> None:
    from spamnb.lab.report import as_png, draw

    figures = draw(outcome)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            (folder / f"{name}.png").write_bytes(as_png(figure))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def _compare(a: str, b: str, *, json_file: str | None) -> None:
    from spamnb.lab.evaluate import compare

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
    say(f"{found.messages} messages scored in both runs")
    if found.only_a or found.only_b:
        say(f"left out: {found.only_a} messages only in A, {found.only_b} only in B")
    table([head, *rows], right=(1, 2, 3))
