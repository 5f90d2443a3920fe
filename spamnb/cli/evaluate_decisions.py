"""`spamnb evaluate --decisions`: what users see, with labels for some of the mistakes only."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spamnb.cli.options import spelt
from spamnb.cli.printing import progress_bar, say, table, warn, write_text
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.lab.decisions import DecisionFigures
    from spamnb.lab.trial import Options

_UNUSED = "plots", "report", "tested", "scores", "apply", "labelled", "plain", "compare", "world"
_FEEDBACK = "errors", "full"


def evaluate_decisions(options: Options, given: dict[str, Any], one_in: int) -> None:
    """Judge the mail as the daemon would, write the requested file and print the figures."""
    from spamnb.lab import bogofilter
    from spamnb.lab.decisions import Site, decisions_of
    from spamnb.lab.sources import ordered, read_each

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
        beside = bogofilter.is_installed()
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
