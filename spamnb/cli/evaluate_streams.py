"""`spamnb evaluate` on streams of mail: `--decisions`, `--world` and `--persons`, and `--apply`.

`--decisions` measures what users see, with labels for some of the mistakes only; `--world` and
`--persons`, several persons who share a model. `--apply`, also of `tune`, stores costs that meet
the ham loss target.
"""

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

    from spamnb.cli.session import CliSession
    from spamnb.lab.decisions import DecisionFigures
    from spamnb.lab.persons import PersonShare, WorldResult
    from spamnb.lab.runs import Options
    from spamnb.lab.statistics import HamLossBound
    from spamnb.model.costs import Costs

_UNUSED = "plots", "report", "tested", "scores", "apply", "labelled", "plain", "compare", "world"
_FEEDBACK = "errors", "full"


def evaluate_decisions(options: Options, given: dict[str, Any], one_in: int) -> None:
    """Judge the mail as the daemon would, write the requested file and print the figures."""
    from spamnb.lab import decisions
    from spamnb.lab.decisions import Site, decisions_of
    from spamnb.lab.runs import ordered, read_each

    for name in _UNUSED:
        if given[name]:
            raise UserError(f"{spelt(name)} does not work with --decisions", hint="leave it out")
    if given["feedback"] not in _FEEDBACK:
        raise UserError(
            f"--decisions does not work with --feedback {given['feedback']}",
            hint="--feedback errors, with --answered and --late; or --feedback full",
        )
    messages, order = ordered(given["sources"], given["order"], given["seed"])
    change = len(messages) if given["then"] else 0
    messages += ordered(given["then"] or (), given["order"], given["seed"])[0]
    site = Site(
        given["feedback"], given["answered"], given["late"], given["apart"], one_in,
        seed=given["seed"], change=change,
    )  # fmt: skip
    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        beside = decisions.is_installed()
        found = decisions_of(read_each(messages, warn), options, site, beside=beside)
    if given["json_file"] is not None:
        plain = {
            "order": order,
            "seed": given["seed"],
            "feedback": site.teaching,
            "answered": site.answered,
            "late_s": site.late_s,
            "apart_s": site.apart_s,
            "one_in": site.one_in,
            "change": site.change,
            "filters": [one.as_dict() for one in found],
        }
        write_text(given["json_file"], json.dumps(plain, indent=2) + "\n")
        if given["json_file"] == "-":
            return
    _print(found)
    if not beside:
        say("bogofilter is not installed: only spamnb is measured")


def _print(found: list[DecisionFigures]) -> None:
    rows = [("", *(one.filter for one in found))]
    rows += [
        ("spam filed", *(f"{one.spam_filed} of {one.spam}: {one.filed_percent:.1f} %"
                         for one in found)),
        ("spam delivered", *(str(one.spam_delivered) for one in found)),
        ("ham filed", *(f"{one.ham_filed} of {one.ham}" for one in found)),
        ("ham unsure", *(str(one.ham_unsure) for one in found)),
        ("corrections", *(str(one.corrections) for one in found)),
    ]  # fmt: skip
    rows += [
        (f"filed of the first {first}",
         *("{} of {}".format(*one.filed_of_first[first]) for one in found))
        for first in found[0].filed_of_first
    ]  # fmt: skip
    rows += [
        (f"ham filed of the first {first}",
         *(str(one.ham_filed_of_first[first]) for one in found))
        for first in found[0].ham_filed_of_first
    ]  # fmt: skip
    if found[0].ham_filed_after_change is not None:
        rows.append(
            ("ham filed of the first 50 then", *(str(one.ham_filed_after_change) for one in found))
        )
    rows += [
        ("1-AUC", *(_number(one.auc_complement_percent, " %") for one in found)),
        ("calibration error", *(_number(one.calibration_error) for one in found)),
        ("junk from, at the end", *(f"{one.threshold:.2f} nats" for one in found)),
    ]
    table(rows, right=tuple(range(1, len(found) + 1)))


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.4f}{unit}"


PEOPLE = 20
_HEAD = ("world", "model", "mail", "deliveries", "wrong %", "95 %", "labels",
         "ham filed %", "not delivered %", "spam delivered %",
         "spam filed %", "1-AUC %", "by person")  # fmt: skip
_UNUSED_PERSONS = (
    "plots",
    "report",
    "tested",
    "scores",
    "apply",
    "one_in",
    "labelled",
    "plain",
    "compare",
)


def evaluate_persons(options: Options, given: dict[str, Any]) -> None:
    """Compare the models for several persons, write the requested file and print the figures."""
    for name in _UNUSED_PERSONS:
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
    _print_persons(found)


def _made(options: Options, given: dict[str, Any]) -> list[WorldResult]:
    """Make the world of sorted mail."""
    from spamnb.lab.persons import WORLDS, compare_models, read_mail
    from spamnb.lab.runs import ordered, read_each

    messages, _ = ordered(given["sources"], given["order"], given["seed"])
    samples, mail = read_mail(read_each(messages, warn), options)
    worlds = WORLDS[given["world"]](mail, given["people"], given["seed"])
    return compare_models(worlds, samples.items, options)


def _listed(options: Options, given: dict[str, Any]) -> list[WorldResult]:
    """Take the deliveries from a file."""
    from spamnb.lab.persons import compare_models, listed_deliveries, read_mail
    from spamnb.lab.runs import read_each

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


def _print_persons(found: list[WorldResult]) -> None:
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
            _number_of_persons(found.auc_complement_percent),
            _number_of_persons(found.auc_complement_percent_by_person),
        )


def _percent(share: PersonShare | None) -> str:
    return f"{share.percent:.2f}" if share else "-"


def _number_of_persons(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def store_loss_bound(session: CliSession, found: HamLossBound) -> bool:
    """Store the costs that meet the target in the home; False if there is not enough evidence.

    In that case earlier costs are removed too: they were found for another model or other mail.
    """
    from spamnb.lab.statistics import costs_for
    from spamnb.maintenance.home_files import read_costs, remove_costs
    from spamnb.model.costs import Costs

    home, costs = session.home, session.settings.costs
    if found.log_odds is None:
        remove_costs(home)
        warn("not enough evidence for ham_loss.one_in: the costs of the settings apply")
        return False
    if costs == read_costs(home, found.one_in):
        costs = Costs()  # start from the defaults, not from the earlier result
    path = write_found(home, found, costs_for(costs, found))
    warn(f"{path} applies unless [costs] is set; a daemon reads it at its next reload")
    return True


def write_found(home: Path, found: HamLossBound, costs: Costs) -> Path:
    """Store costs with the evidence for them; return the file."""
    from spamnb.maintenance.home_files import StoredCosts, write_stored

    comments = (
        "Written by `spamnb evaluate --apply`. Delete it to use the costs of the settings.",
        f"{found.ham_above} of {found.ham} good messages scored above the junk threshold:",
        f"at most {found.at_worst_percent:.3f} % are lost (95 % confidence).",
    )
    return write_stored(home, StoredCosts(costs, found.one_in), comments)
