"""`spamnb evaluate` with other labels than ham and spam, on mail or plain text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spamnb.cli.options import spelt
from spamnb.cli.printing import progress_bar, say, table, warn, write_text
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.lab.collections import Collection
    from spamnb.lab.evaluation import Options
    from spamnb.lab.multiclass import LabelEvaluation


def evaluate_by_label(options: Options, given: dict[str, Any]) -> None:
    """Evaluate, write the requested file and print the results."""
    from spamnb.lab.collections import collection_of

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
    from spamnb.lab.collections import labelled

    if given["sources"]:
        raise UserError("--label and HAM SPAM exclude each other", hint="leave out HAM SPAM")
    sources, plain = named_sources(given["labelled"]), given["plain"]
    order = "shuffle" if plain and given["order"] == "time" else given["order"] or "shuffle"
    return labelled(sources, order, given["seed"], warn, plain=plain)


def _evaluated(collection: Collection, options: Options, *, against_rest: bool) -> LabelEvaluation:
    from spamnb.lab.multiclass import evaluate_collection

    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        return evaluate_collection(collection.documents, options, against_rest=against_rest)


def _report(found: LabelEvaluation, json_file: str | None) -> None:
    from spamnb.lab.statistics.classification import macro_f1, pooled

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
