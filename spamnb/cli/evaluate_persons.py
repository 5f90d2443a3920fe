"""`spamnb evaluate --world` and `--persons`: several persons who share a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamnb.cli.options import spelt
from spamnb.cli.printing import progress_bar, say, table, warn, write_text
from spamnb.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spamnb.lab.persons.comparison import WorldResult
    from spamnb.lab.persons.figures import PersonShare
    from spamnb.lab.trial import Options

PEOPLE = 20
_HEAD = ("world", "model", "mail", "deliveries", "wrong %", "95 %", "labels",
         "ham filed %", "not delivered %", "spam delivered %",
         "spam filed %", "1-AUC %", "by person")  # fmt: skip
_UNUSED = "plots", "report", "tested", "scores", "apply", "one_in", "labelled", "plain", "compare"


def evaluate_persons(options: Options, given: dict[str, Any]) -> None:
    """Compare the models for several persons, write the requested file and print the figures."""
    for name in _UNUSED:
        if given[name]:
            raise UserError(
                f"{spelt(name)} does not work with --world and --persons", hint="leave it out"
            )
    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        found = _listed(options, given) if given["persons"] else _made(options, given)
    if given["json_file"] is not None:
        plain = {
            "seed": options.seed,
            "people": given["people"],
            "results": [result.as_dict() for result in found],
        }
        write_text(given["json_file"], json.dumps(plain, indent=2) + "\n")
        if given["json_file"] == "-":
            return
    _print(found)


def _made(options: Options, given: dict[str, Any]) -> list[WorldResult]:
    """Make the world of sorted mail."""
    from spamnb.lab.persons.comparison import compare_models
    from spamnb.lab.persons.mail import read_mail
    from spamnb.lab.persons.worlds import WORLDS
    from spamnb.lab.sources import ordered, read_each

    messages, _ = ordered(given["sources"], given["order"], given["seed"])
    samples, mail = read_mail(read_each(messages, warn), options)
    worlds = WORLDS[given["world"]](mail, given["people"], given["seed"])
    return compare_models(worlds, samples.items, options)


def _listed(options: Options, given: dict[str, Any]) -> list[WorldResult]:
    """Take the deliveries from a file."""
    from spamnb.lab.persons.comparison import compare_models
    from spamnb.lab.persons.mail import listed_deliveries, read_mail
    from spamnb.lab.sources import read_each

    if given["sources"] or given["world"]:
        raise UserError(
            "--persons FILE names all mail", hint="leave out --world, and the folders of mail"
        )
    messages, world = listed_deliveries(Path(given["persons"]))
    samples, _ = read_mail(read_each(messages, _refuse), options)
    return compare_models([world], samples.items, options)


def _refuse(problem: str) -> None:
    """Refuse an unreadable message: later deliveries would get the wrong messages."""
    raise UserError(problem, hint="remove its lines from the file")


def _print(found: list[WorldResult]) -> None:
    table([_HEAD, *(row for result in found for row in _rows(result))], right=tuple(range(3, 13)))
    one_verdict = [(result.world, result.model, result.rules) for result in found if result.rules]
    if one_verdict:
        say()
        say("Wrong verdicts in percent where a message has several recipients, if they get")
        names = tuple(one_verdict[0][2])
        rows = [
            (world, model, *(f"{rules[name]:.2f}" for name in names))
            for world, model, rules in one_verdict
        ]
        table([("world", "model", *names), *rows], right=tuple(range(2, 2 + len(names))))


def _rows(result: WorldResult) -> Iterator[tuple[str, ...]]:
    for kind, found in result.figures.items():
        wrong = found.wrong
        yield (
            result.world,
            result.model,
            kind,
            str(found.deliveries),
            _percent(wrong),
            f"{wrong.low:.2f}-{wrong.high:.2f}" if wrong else "",
            str(found.labels),
            *map(_percent, (found.ham_filed, found.ham_not_delivered)),
            *map(_percent, (found.spam_delivered, found.spam_filed)),
            _number(found.auc_complement_percent),
            _number(found.auc_complement_percent_by_person),
        )


def _percent(share: PersonShare | None) -> str:
    return f"{share.percent:.2f}" if share else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
