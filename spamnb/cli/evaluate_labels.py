"""`spamnb evaluate` with other labels than ham and spam, on mail or plain text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from spamnb.cli.options import spelt
from spamnb.cli.printing import progress_bar, say, table, warn, write_text
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.lab.collections import Document
    from spamnb.lab.evaluation import Options
    from spamnb.lab.multiclass import LabelEvaluation

FEWEST = 20
"""minimum number of documents of a label for --against-rest"""


class _Collection(NamedTuple):
    """Documents in order; the last `tested` of them are the test documents."""

    documents: list[tuple[bytes, tuple[str, ...]]]
    tested: int


def evaluate_by_label(options: Options, given: dict[str, Any]) -> None:
    """Evaluate, write the requested file and print the results."""
    for name in ("plots", "report", "tested", "scores", "apply", "one_in"):
        if given[name]:
            raise UserError(
                f"{spelt(name)} works only with the labels ham and spam", hint="leave it out"
            )
    options = replace(options, documents=given["plain"])
    if given["labelled"]:
        collection = _labelled(given)
    elif len(given["sources"]) == 1:
        collection = _whole(given["sources"][0], options)
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


def _labelled(given: dict[str, Any]) -> _Collection:
    """Read the documents of --label NAME=PATH, in the order of the options."""
    from spamnb.cli.train import named_sources
    from spamnb.lab.sources import by_time, read_each, shuffled
    from spamnb.service.training.sources import units

    if given["sources"]:
        raise UserError("--label and HAM SPAM exclude each other", hint="leave out HAM SPAM")
    sources = named_sources(given["labelled"])
    plain = given["plain"]
    found = [
        (unit.name.rpartition("/")[2], pair)
        for label, path in sources
        for unit in units(path, documents=plain)
        for pair in read_each([(unit, label)], warn, documents=plain)
    ]
    if given["order"] == "time" and not plain:
        ordered = by_time(found)
    elif given["order"] == "given":
        ordered = [pair for _, pair in found]
    else:
        ordered = shuffled(found, given["seed"])
    return _Collection([(raw, (label,)) for raw, label in ordered], 0)


def _whole(path: str, options: Options) -> _Collection:
    """Read a collection by its layout; training and test documents are shuffled separately."""
    from spamnb.lab.collections import documents
    from spamnb.lab.sources import shuffled

    found = documents(path)

    def mixed(part: list[Document]) -> list[tuple[bytes, tuple[str, ...]]]:
        rows = [(one.name, (one.raw, "\0".join(one.labels))) for one in part]
        pairs = shuffled(rows, options.seed)
        return [(raw, tuple(labels.split("\0")) if labels else ()) for raw, labels in pairs]

    test = [one for one in found if one.split == "test"]
    learn = [one for one in found if one.split != "test"]
    return _Collection(mixed(learn) + mixed(test), len(test))


def _evaluated(collection: _Collection, options: Options, *, against_rest: bool) -> LabelEvaluation:
    from spamnb.lab.multiclass import evaluate_against_rest, evaluate_labels

    given = [label for _, labels in collection.documents for label in labels]
    single = all(len(labels) == 1 for _, labels in collection.documents)
    names = tuple(sorted(set(given)))
    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        if single and not against_rest:
            options = replace(options, labels=names)
            return evaluate_labels(
                ((raw, labels[0]) for raw, labels in collection.documents), options
            )
        common = tuple(name for name in names if given.count(name) >= FEWEST)
        if not common:
            raise UserError(f"no label has {FEWEST} documents", hint="give more documents")
        return evaluate_against_rest(collection.documents, replace(options, labels=common))


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
