"""`spamnb evaluate` with labels of one's own, on mail or on plain documents."""

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
"""Documents of a label that is judged against the rest; fewer tell nothing."""


class _Collection(NamedTuple):
    """Documents in their order, and how many of them, the last ones, are judged."""

    documents: list[tuple[bytes, tuple[str, ...]]]
    tested: int


def evaluate_by_label(options: Options, given: dict[str, Any]) -> None:
    """Measure, and write what was asked for."""
    for name in ("plots", "report", "tested", "scores", "apply", "one_in"):
        if given[name]:
            raise UserError(f"{spelt(name)} is for ham and spam", hint="leave it out")
    options = replace(options, documents=given["plain"])
    if given["labelled"]:
        collection = _labelled(given)
    elif len(given["sources"]) == 1:
        collection = _whole(given["sources"][0], options)
    else:
        raise UserError(
            f"{len(given['sources'])} places are given",
            hint="with --plain name one collection, or --label NAME=PATH for each label",
        )
    if collection.tested and given["protocol"] == "online":
        # A collection that comes divided is judged as it was meant to be.
        options = replace(options, protocol="cross", tested=collection.tested)
    _tell(_judged(collection, options, against_rest=given["against_rest"]), given["json_file"])


def _labelled(given: dict[str, Any]) -> _Collection:
    """Documents of --label NAME=PATH, in the order that was asked for."""
    from spamnb.cli.train import named_sources
    from spamnb.lab.sources import by_time, read_each, shuffled
    from spamnb.service.training.sources import units

    if given["sources"]:
        raise UserError("--label names all folders", hint="leave the others out")
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
    """A collection by its layout; mixed by the seed, but for the part that is to be judged."""
    from spamnb.lab.collections import documents
    from spamnb.lab.sources import shuffled

    found = documents(path)

    def mixed(part: list[Document]) -> list[tuple[bytes, tuple[str, ...]]]:
        rows = [(one.name, (one.raw, "\0".join(one.labels))) for one in part]
        pairs = shuffled(rows, options.seed)
        return [(raw, tuple(told.split("\0")) if told else ()) for raw, told in pairs]

    test = [one for one in found if one.split == "test"]
    learn = [one for one in found if one.split != "test"]
    return _Collection(mixed(learn) + mixed(test), len(test))


def _judged(collection: _Collection, options: Options, *, against_rest: bool) -> LabelEvaluation:
    from spamnb.lab.multiclass import evaluate_against_rest, evaluate_labels

    held = [label for _, labels in collection.documents for label in labels]
    single = all(len(labels) == 1 for _, labels in collection.documents)
    names = tuple(dict.fromkeys(sorted(held)))
    with progress_bar("evaluating") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        if single and not against_rest:
            options = replace(options, labels=names)
            return evaluate_labels(
                ((raw, labels[0]) for raw, labels in collection.documents), options
            )
        common = tuple(name for name in names if held.count(name) >= FEWEST)
        if not common:
            raise UserError(f"no label has {FEWEST} documents", hint="give more documents")
        return evaluate_against_rest(collection.documents, replace(options, labels=common))


def _tell(found: LabelEvaluation, json_file: str | None) -> None:
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
    say(f"{found.documents} documents judged, protocol {found.options.protocol}")
    table([head, *rows], right=(1, 2, 3, 4, 5, 6))
