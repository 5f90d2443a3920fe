"""`spamnb evaluate`: how well would this filter do on your own mail."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spamnb.cli.printing import progress_bar, table, warn
from spamnb.cli.session import Session, pass_session
from spamnb.cli.teaching_help import taught
from spamnb.errors import CorpusError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spamnb.service.evaluation import Evaluation, Labelled

EXAMPLES = """
spamnb evaluate ham/ spam/                         each message judged, then learnt
spamnb evaluate --order time ham/ spam/            in the order of arrival
spamnb evaluate --feedback errors ham/ spam/       taught by mistakes and doubtful ones only
spamnb evaluate --noise 0.05 ham/ spam/            one label in twenty wrong
spamnb evaluate --protocol folds --json - ham/ spam/
"""


@taught("Measure the filter on your own mail.", EXAMPLES)
@click.argument("ham")
@click.argument("spam")
@click.option("--protocol", type=click.Choice(["online", "holdout", "folds"]), default="online",
              show_default=True, help="online: judge, then learn, one by one. holdout: learn two "
              "thirds, judge the rest. folds: ten of them.")  # fmt: skip
@click.option("--order", type=click.Choice(["shuffle", "time"]), default="shuffle",
              show_default=True, help="By the seed, or as the messages arrived.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--feedback", type=click.Choice(["full", "errors"]), default="full",
              show_default=True, help="What is taught: everything, or only mistakes and what was "
              "between 10 and 90 % spam.")  # fmt: skip
@click.option("--noise", type=click.FloatRange(0, 0.5), default=0.0, metavar="SHARE",
              help="Share of labels that are taught wrong.")  # fmt: skip
@click.option("--kind", type=click.Choice(["corrected", "multinomial", "bernoulli"]),
              help="The kind of model.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the figures there; - is stdout.")
@pass_session
def evaluate(
    session: Session,
    ham: str,
    spam: str,
    protocol: str,
    order: str,
    seed: int,
    feedback: str,
    noise: float,
    kind: str | None,
    json_file: str | None,
) -> None:
    """Measure how well the filter would have done on mail that you have sorted.

    The model of the home is neither read nor changed. 1-AUC is the chance, in percent, that a ham
    looks more like spam than a spam does; ham lost and spam missed are by the decisions that the
    costs lead to.
    """
    from spamnb.service.evaluation import Options, by_time, shuffled
    from spamnb.service.evaluation import evaluate as measure

    if os.path.realpath(ham) == os.path.realpath(spam):
        raise CorpusError(f"{ham} is given for ham and for spam", hint="one folder for each")
    found = [*_labelled(ham, "ham"), *_labelled(spam, "spam")]
    messages = shuffled(found, seed) if order == "shuffle" else by_time(found)
    settings = session.settings
    with progress_bar("evaluating") as bar:
        options = Options(
            protocol=protocol,
            order=order,
            seed=seed,
            feedback=feedback,
            noise=noise,
            kind=kind or settings.model.kind,
            house=settings.house,
            costs=settings.costs,
            progress=(lambda done, total: bar(done, total, "")) if bar else None,
        )
        outcome = measure(messages, options)
    _report(outcome, json_file)


def _labelled(path: str, label: str) -> Iterator[tuple[str, Labelled]]:
    from spamnb.service.corpora import Item, items

    for item in items(path):
        if isinstance(item, Item):
            yield Path(item.name).name, (item.raw, label)
        else:
            warn(f"skipped {item.name}: {item.reason}")


def _report(outcome: Evaluation, json_file: str | None) -> None:
    plain = outcome.as_dict()
    if json_file is not None:
        text = json.dumps(plain, indent=2) + "\n"
        if json_file == "-":
            sys.stdout.write(text)
            return
        try:
            Path(json_file).write_text(text)
        except OSError as error:
            raise UserError(f"{json_file} cannot be written: {error.strerror}") from error
    found = outcome.report
    low, high = found.auc_complement_interval_percent or (0.0, 0.0)
    rows = [
        ("messages", f"{found.corpus.ham} ham, {found.corpus.spam} spam"),
        ("1-AUC", f"{_percent(found.auc_complement_percent, 4)} ({low:.4f} to {high:.4f})"),
        ("ham lost", _percent(found.ham_lost_percent, 3)),
        ("spam missed", _percent(found.spam_missed_percent, 2)),
        *(
            (f"spam missed at {point} % ham lost", _percent(value, 2))
            for point, value in found.spam_missed_percent_at_ham_lost.items()
        ),
        ("LAM", _percent(found.lam_percent, 3)),
        ("calibration error", f"{found.calibration_error or 0:.4f}"),
        ("speed", f"{plain['messages_per_second']} messages a second"),
    ]
    table(rows)


def _percent(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} %"
