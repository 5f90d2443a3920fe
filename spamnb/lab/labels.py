"""Evaluate any number of labels, on mail or on collections of plain text: precision, recall and F1.

`evaluate_labels` uses one model, for documents with one label each; labels are assigned both by the
highest probability and by a threshold per label. `evaluate_against_rest` uses a `LabelMatrix`, for
documents with several labels or none. Must not know terminals. Failure: CorpusError for a folder
without documents, UserError for collections that cannot be evaluated.
"""

from __future__ import annotations

import html
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.engine.mailboxes import units
from spamnb.errors import CorpusError, UserError
from spamnb.lab.runs import (
    FOLDS,
    Labelled,
    Options,
    Samples,
    ScoredMessages,
    as_given,
    by_time,
    read_each,
    read_samples,
    recipe_of,
    run,
    run_models,
    shuffled,
    with_noise,
)
from spamnb.lab.statistics import (
    Bools,
    LabelMetrics,
    best_threshold,
    break_even,
    confusion,
    macro_f1,
    pooled,
    quality,
)
from spamnb.mail.envelope import LocalHosts
from spamnb.model.events import Ids, Ints, Recipe
from spamnb.model.features import Key, distinct, extract
from spamnb.model.scoring import one_against_rest
from spamnb.model.smoothing import Floats
from spamnb.model.tokens import DOCUMENT_READ, Field, TokenLocation

Split = Literal["train", "test", ""]


class Document(NamedTuple):
    """One document with its labels and its part of the collection."""

    name: str
    raw: bytes
    labels: tuple[str, ...]
    split: Split = ""
    """empty: the collection defines no split"""


class Collection(NamedTuple):
    """Documents with their labels, in order; the last `tested` of them are the test documents."""

    documents: list[tuple[bytes, tuple[str, ...]]]
    tested: int = 0


def labelled(
    sources: Sequence[tuple[str, str]],
    order: str,
    seed: int,
    warn: Callable[[str], None],
    *,
    plain: bool,
) -> Collection:
    """Read the documents of (label, path) sources; `order` is shuffle, time or given."""
    found = [
        (unit.name.rpartition("/")[2], pair)
        for label, path in sources
        for unit in units(path, documents=plain)
        for pair in read_each([(unit, label)], warn, documents=plain)
    ]
    if order == "time":
        ordered = by_time(found)
    else:
        ordered = as_given(found) if order == "given" else shuffled(found, seed)
    return Collection([(raw, (label,)) for raw, label in ordered])


def collection_of(path: str, seed: int) -> Collection:
    """Read a collection by its layout; training and test documents are shuffled separately."""
    found = documents(path)

    def mixed(part: list[Document]) -> list[tuple[bytes, tuple[str, ...]]]:
        rows = [(one.name, (one.raw, "\0".join(one.labels))) for one in part]
        pairs = shuffled(rows, seed)
        return [(raw, tuple(labels.split("\0")) if labels else ()) for raw, labels in pairs]

    test = [one for one in found if one.split == "test"]
    learn = [one for one in found if one.split != "test"]
    return Collection(mixed(learn) + mixed(test), len(test))


def documents(path: str | Path) -> list[Document]:
    """Return all documents under a path in a fixed order; the layout is detected.

    Three layouts are supported: one folder per label (20 newsgroups; also a pair of such folders
    with names that end in `train` and `test`); a file `cats.txt` beside the folders `training` and
    `test` (Reuters as NLTK ships it); SGML files with TOPICS and LEWISSPLIT (Reuters as published,
    ModApte split). A document may have several labels or none.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CorpusError(f"no such folder: {path}", hint="name the folder of the collection")
    for matches, read in _LAYOUTS:
        if matches(folder):
            found = list(read(folder))
            break
    else:
        found = []
    if not found:
        raise CorpusError(
            f"no documents in {path}",
            hint="a folder for each label, or cats.txt with training/ and test/, or *.sgm files",
        )
    return found


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _train_test_folders(folder: Path) -> dict[Split, Path]:
    """The two folders of a split collection; empty unless there are exactly these two."""
    found: dict[Split, Path] = {}
    for path in _folders(folder):
        for split in ("train", "test"):
            if path.name.endswith(split):
                found[split] = path
    return found if len(found) == 2 == len(_folders(folder)) else {}


def _by_train_test(folder: Path) -> Iterator[Document]:
    for split, part in _train_test_folders(folder).items():
        yield from _by_folder(part, split)


def _by_folder(folder: Path, split: Split = "") -> Iterator[Document]:
    for group in _folders(folder):
        for path in sorted(group.rglob("*")):
            if path.is_file():
                name = str(path.relative_to(folder))
                yield Document(name, path.read_bytes(), (group.name,), split)


def _by_list(folder: Path) -> Iterator[Document]:
    """Each line of cats.txt is a file's path, then its labels."""
    for line in (folder / "cats.txt").read_text("latin-1").splitlines():
        name, *labels = line.split()
        split: Split = "train" if name.startswith("train") else "test"
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise CorpusError(f"cats.txt names {name}, which does not exist below {folder}")
        yield Document(name, path.read_bytes(), tuple(labels), split)


_STORY = re.compile(rb"<REUTERS([^>]*)>(.*?)</REUTERS>", re.DOTALL)
_TOPICS = re.compile(rb"<TOPICS>(.*?)</TOPICS>", re.DOTALL)
_TOPIC = re.compile(rb"<D>(.*?)</D>")
_ALL_TEXT = re.compile(rb"<TEXT[^>]*>(.*?)</TEXT>", re.DOTALL)
_TEXT = re.compile(rb"<(TITLE|BODY)>(.*?)</\1>", re.DOTALL)
_MODAPTE: dict[str, Split] = {"TRAIN": "train", "TEST": "test"}


def _by_markup(folder: Path) -> Iterator[Document]:
    """ModApte split: only stories with TOPICS="YES"; train and test by LEWISSPLIT."""
    for path in sorted(folder.glob("*.sgm")):
        for head, body in _STORY.findall(path.read_bytes()):
            attributes = dict(re.findall(r'(\w+)="([^"]*)"', head.decode("latin-1")))
            split = _MODAPTE.get(attributes.get("LEWISSPLIT", ""))
            if split is None or attributes.get("TOPICS") != "YES":
                continue
            topics = _TOPICS.search(body)
            named = _TOPIC.findall(topics[1]) if topics else []
            labels = tuple(topic.decode("latin-1") for topic in named)
            name = f"{path.name}#{attributes.get('NEWID', '')}"
            yield Document(name, _story_text(body).encode(), labels, split)


def _story_text(body: bytes) -> str:
    """Title and body; for a story with neither (TYPE="UNPROC"), all of its text."""
    parts = [text for _, text in _TEXT.findall(body)] or _ALL_TEXT.findall(body)
    return "\n".join(html.unescape(text.decode("latin-1")) for text in parts)


_LAYOUTS: tuple[tuple[Callable[[Path], object], Callable[[Path], Iterator[Document]]], ...] = (
    (lambda folder: (folder / "cats.txt").is_file(), _by_list),
    (lambda folder: next(folder.glob("*.sgm"), None), _by_markup),
    (_train_test_folders, _by_train_test),
    (_folders, _by_folder),
)


PRIOR = 0.5
"""Documents with the feature that the prior of each rate counts for."""
RATE = 12.0
COMMON = 5.0
"""A step is RATE sqrt(COMMON / (COMMON + n_f)): with one step for all features, the mean
break-even of generated documents is 0.599 instead of 0.627 (decision 0036)."""
TEMPERATURE = 2.0
TEMPERATURE_RATE = 0.1
_READ_AT_ONCE = 256
_FEWEST_DOCUMENTS = 2
"""A feature of one document says nothing about another one."""
_WORDS = re.compile(rb"[0-9A-Za-z\x80-\xff]+")


class LabelledRows(NamedTuple):
    """The features of documents, as rows of a matrix."""

    rows: list[NDArray[np.int32]]
    features: int


class _Score(NamedTuple):
    """The scores of one document for all labels, and the parts that they consist of."""

    z: Floats
    evidence: Floats


def read_rows(documents: Iterable[bytes], options: Options) -> LabelledRows:
    """Extract the features of all documents; those of plain text include title and word pairs."""
    if options.documents:
        parts = _document_ids(list(documents), Key(recipe_of(options).key))
    else:
        one = options.labels[0]
        parts = [
            item.ids for item in read_samples(((raw, one) for raw in documents), options).items
        ]
    ids, rows = distinct(parts)
    holders = np.bincount(np.concatenate(rows), minlength=len(ids)) if rows else np.zeros(0, int)
    common = holders >= _FEWEST_DOCUMENTS
    number = (common.cumsum() - 1).astype(np.int32)
    return LabelledRows([number[part[common[part]]] for part in rows], int(common.sum()))


def _document_ids(documents: Sequence[bytes], key: Key) -> list[Ids]:
    found: list[Ids] = []
    for start in range(0, len(documents), _READ_AT_ONCE):
        features = extract(key, [_fields(raw) for raw in documents[start : start + _READ_AT_ONCE]])
        found += [np.unique(features.ids[features.of(m)]) for m in range(len(features))]
    return found


def _fields(raw: bytes) -> list[Field]:
    """Words, the words of the first line, and pairs of adjacent words."""
    text = raw[:DOCUMENT_READ]
    words = _WORDS.findall(text.lower())
    pairs = b"\n".join(map(b" ".join, itertools.pairwise(words)))
    title = text.lstrip().partition(b"\n")[0]
    return [
        (TokenLocation.WORD, b"", text),
        (TokenLocation.SUBJECT, b"", title),
        (TokenLocation.GREETING, b"pair", pairs),
    ]


class LabelMatrix:
    """The models of all labels: a row for each feature, a column for each label.

    Each label is separated from the rest, in one pass over the documents. All labels share the
    features and their counts, so documents are read once for any number of labels. N_k of the N
    documents have the label k, and so do n_fk of the n_f documents with the feature f. With E = n_f
    N_k / N:

        z_k = log (N_k + 1/2) / (N - N_k + 1/2) + tau_k mean_f e_fk + sum_f w_fk / sqrt(m)
        e_fk = log (n_fk + PRIOR) / (E + PRIOR) - log (n_f - n_fk + PRIOR) / (n_f - E + PRIOR)

    The prior of each rate is the rate that the feature has if it does not depend on the label: the
    smoothing is in proportion to the label. Corrections w move by the error, less where many
    documents have the feature (docs/decisions/0036).
    """

    def __init__(self, documents: LabelledRows, labels: Ints) -> None:
        self._rows, self._labels = documents.rows, labels.astype(np.float32)
        shape = documents.features, labels.shape[1]
        self._n, self._w = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._holders = np.zeros(documents.features, np.float32)
        self._N, self._learnt = np.zeros(shape[1]), 0
        self._tau = np.full(shape[1], TEMPERATURE)

    def train(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._step(index, self._score(index))
            self._count(index)

    def score(self, indices: Sequence[int]) -> Floats:
        """Return the log-odds of each label [M, L]."""
        return np.array([self._score(i).z for i in indices]).reshape(-1, len(self._N))

    def score_then_train(self, index: int, choose: Callable[[Floats], Sequence[int]]) -> Floats:
        """Score a document, then learn those that `choose` returns."""
        z = self._score(index).z
        self.train(choose(_probabilities(z)))
        return z

    def _count(self, index: int) -> None:
        rows = self._rows[index]
        self._n[rows] += self._labels[index]
        self._holders[rows] += 1
        self._N += self._labels[index]
        self._learnt += 1

    def _score(self, index: int) -> _Score:
        rows, have, count = self._rows[index], self._N, self._learnt
        z = np.log((have + 0.5) / (count - have + 0.5))
        if not len(rows):
            return _Score(z, np.zeros(len(z)))
        n, holders = self._n.take(rows, 0), self._holders.take(rows)[:, None]
        expected = holders * (have / max(count, 1)).astype(np.float32)
        lift = (n + PRIOR) * (holders - expected + PRIOR)
        lift /= (expected + PRIOR) * (holders - n + PRIOR)
        evidence = np.log(lift).mean(axis=0, dtype=np.float64)
        z += self._tau * evidence
        z += self._w.take(rows, 0).sum(axis=0, dtype=np.float64) / len(rows) ** 0.5
        return _Score(z, evidence)

    def _step(self, index: int, score: _Score) -> None:
        """Move temperatures and corrections by the error of each label."""
        rows = self._rows[index]
        error = self._labels[index] - _probabilities(score.z)
        self._tau = np.maximum(self._tau + TEMPERATURE_RATE * error * score.evidence, 0)
        rate = RATE * np.sqrt(COMMON / (COMMON + self._holders.take(rows)))
        step = (error / max(len(rows), 1) ** 0.5).astype(np.float32)
        self._w[rows] += rate[:, None] * step


def _probabilities(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -700, 700))))


def label_table(sets: Sequence[Iterable[str]], labels: Sequence[str]) -> Ints:
    """Return which documents [M] have which labels [L], as 0 and 1."""
    return np.array([[label in names for label in labels] for names in sets], np.int64)


REST = "(rest)"
_ONLINE_PARTS = 10
"""online: the thresholds are chosen again before each of so many parts"""


FEWEST = 20
"""minimum number of documents of a label for evaluation against the rest"""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """Metrics of one label."""

    label: str
    most_probable: LabelMetrics
    by_threshold: LabelMetrics
    threshold: float
    """least log-odds against the other labels to assign this one; online, the last one chosen"""
    break_even: float | None

    def as_dict(self) -> dict[str, object]:
        """Return one entry of `labels` in `evaluate --json`."""
        return {
            "label": self.label,
            "most_probable": self.most_probable.as_dict(),
            "by_threshold": self.by_threshold.as_dict(),
            "threshold": self.threshold,
            "break_even": self.break_even,
        }


@dataclass(frozen=True, slots=True)
class LabelEvaluation:
    """Result of a multiclass evaluation: the metrics of all labels."""

    results: tuple[LabelResult, ...]
    documents: int
    """number of documents scored"""
    options: Options
    seconds: float
    cpu_seconds: float
    confusion: tuple[tuple[int, ...], ...] | None = None
    """[true][most probable] counts; None where documents may have several labels"""

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object of `evaluate --json` for labels other than ham and spam."""
        means = {
            way: {"macro_f1": macro_f1(parts), "micro_f1": pooled(parts).f1}
            for way, parts in self.ways().items()
        }
        table = self.confusion
        return {
            "documents": self.documents,
            "protocol": self.options.protocol,
            "order": self.options.order,
            "seed": self.options.seed,
            "kind": self.options.kind,
            "accuracy": sum(table[k][k] for k in range(len(table))) / self.documents
            if table and self.documents
            else None,
            **means,
            "labels": [result.as_dict() for result in self.results],
            "confusion": table,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
        }

    def ways(self) -> dict[str, list[LabelMetrics]]:
        """Return the metrics of all labels for each method of assigning them."""
        return {
            "most_probable": [result.most_probable for result in self.results],
            "by_threshold": [result.by_threshold for result in self.results],
        }


class _LabelOutcomes(NamedTuple):
    """Truth, scores and assignments of one label."""

    truth: Bools
    odds: Floats
    assigned: Bools
    threshold: float


def evaluate_collection(
    documents: Sequence[tuple[bytes, tuple[str, ...]]], options: Options, *, against_rest: bool
) -> LabelEvaluation:
    """Evaluate one model of all labels; on request or for several labels, each against the rest."""
    given = [label for _, labels in documents for label in labels]
    single = all(len(labels) == 1 for _, labels in documents)
    names = tuple(sorted(set(given)))
    if single and not against_rest:
        one_each = ((raw, labels[0]) for raw, labels in documents)
        return evaluate_labels(one_each, replace(options, labels=names))
    common = tuple(name for name in names if given.count(name) >= FEWEST)
    if not common:
        raise UserError(f"no label has {FEWEST} documents", hint="give more documents")
    return evaluate_against_rest(documents, replace(options, labels=common))


def evaluate_labels(messages: Iterable[Labelled], options: Options) -> LabelEvaluation:
    """Evaluate one model on messages with one label each, in the order given."""
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    samples = read_samples(messages, options)
    _refuse_few(samples.truth, options.labels)
    # First, because it forks processes; `run` reports progress, and the display is a thread.
    training_scores = _score_training_part(samples, options)
    scored = run(samples, options)
    truth, odds = samples.truth[scored.which], one_against_rest(scored.z)
    chosen = scored.z.argmax(axis=1)
    results = []
    for k, label in enumerate(options.labels):
        training = training_scores and (
            training_scores.z[:, k],
            samples.truth[training_scores.which] == k,
        )
        outcomes = _apply_threshold(truth == k, odds[:, k], options, training)
        results.append(_result(label, outcomes, quality(truth == k, chosen == k)))
    table = confusion(truth, chosen, len(options.labels))
    return LabelEvaluation(
        tuple(results),
        len(truth),
        options,
        time.perf_counter() - started,
        sum(os.times()[:4]) - cpu,
        tuple(tuple(row) for row in table.tolist()),
    )


def evaluate_against_rest(
    documents: Sequence[tuple[bytes, tuple[str, ...]]], options: Options
) -> LabelEvaluation:
    """Evaluate all labels of the options, each against the rest, on documents with any number."""
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    if options.kind != "corrected":
        raise UserError(
            f"--against-rest does not work with the kind {options.kind}", hint="leave out --kind"
        )
    truth = label_table([names for _, names in documents], options.labels)
    for label, present in zip(options.labels, truth.T, strict=True):
        _refuse_few(present, ("other documents", label))
    read = read_rows((raw for raw, _ in documents), options)
    training_scores = _training_part_against_rest(read, truth, options)
    scored = _run_against_rest(read, truth, options)
    truth = truth[scored.which] == 1
    results = []
    for k, label in enumerate(options.labels):
        odds, training = scored.z[:, k], None
        if training_scores is not None:
            training = training_scores.z[:, k], training_scores.truth[:, k]
        outcomes = _apply_threshold(truth[:, k], odds, options, training)
        results.append(_result(label, outcomes, quality(truth[:, k], odds > 0)))
    seconds, cpu_seconds = time.perf_counter() - started, sum(os.times()[:4]) - cpu
    return LabelEvaluation(tuple(results), len(truth), options, seconds, cpu_seconds)


class _TrainingScores(NamedTuple):
    """Scores [M, K] of training documents by folds, and their labels."""

    z: Floats
    truth: NDArray[np.bool_]


def _run_against_rest(read: LabelledRows, truth: Ints, options: Options) -> ScoredMessages:
    train_labels = with_noise(truth, options)
    return run_models(lambda: LabelMatrix(read, train_labels), train_labels, options)


def _training_part_against_rest(
    read: LabelledRows, truth: Ints, options: Options
) -> _TrainingScores | None:
    """Score the training part by folds within it; None for protocols without such a part."""
    first = _training_part(len(truth), options)
    if first is None:
        return None
    folds = replace(options, protocol="folds", noise=0.0, progress=None)
    scored = _run_against_rest(read, truth[:first], folds)
    return _TrainingScores(scored.z, truth[:first] == 1)


def _result(label: str, outcomes: _LabelOutcomes, most_probable: LabelMetrics) -> LabelResult:
    return LabelResult(
        label,
        most_probable,
        quality(outcomes.truth, outcomes.assigned),
        outcomes.threshold,
        break_even(outcomes.truth, outcomes.odds),
    )


def thresholds_of(messages: Iterable[Labelled], options: Options) -> dict[str, float]:
    """Return the threshold of each label, in log-odds against the rest, by cross-validation.

    Thresholds maximise F1 on training documents and never on the documents that they are applied
    to: by folds within the training part (holdout, cross), on the other folds (folds), or on the
    documents before (online).
    """
    samples = read_samples(messages, options)
    _refuse_few(samples.truth, options.labels)
    odds = one_against_rest(run(samples, replace(options, protocol="folds")).z)
    return {
        label: best_threshold(samples.truth == k, odds[:, k], 0.0)
        for k, label in enumerate(options.labels)
    }


def choose_thresholds(
    sources: Sequence[tuple[str, str]],
    recipe: Recipe,
    local: LocalHosts,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> dict[str, float]:
    """Choose the thresholds of a model with this recipe on (label, path) sources."""
    options = Options(
        kind=recipe.kind,
        labels=tuple(dict.fromkeys(label for label, _ in sources)),
        documents=recipe.documents,
        local=local,
        constants={name: getattr(recipe, name) for name in ("alpha", "kappa", "r", "eta")},
        jobs=jobs,
        progress=progress,
    )
    named = [
        (unit.name.rpartition("/")[2], (unit, label))
        for label, path in sources
        for unit in units(path, documents=recipe.documents)
    ]
    read = read_each(shuffled(named, 1), lambda _: None, documents=recipe.documents)
    return thresholds_of(read, options)


def _score_training_part(samples: Samples, options: Options) -> ScoredMessages | None:
    """Scores of the training part by folds within it, as log-odds against the rest.

    None for protocols without a separate training part.
    """
    first = _training_part(len(samples.items), options)
    if first is None:
        return None
    part = Samples(samples.items[:first], samples.truth[:first])
    scored = run(part, replace(options, protocol="folds", noise=0.0, progress=None))
    return ScoredMessages(scored.which, one_against_rest(scored.z))


def _training_part(count: int, options: Options) -> int | None:
    """How many documents, the first ones, are for training; None if there is no such part."""
    return {"holdout": 2 * count // 3, "cross": count - options.tested}.get(options.protocol)


def _apply_threshold(
    truth: Bools, odds: Floats, options: Options, training: tuple[Floats, Bools] | None
) -> _LabelOutcomes:
    """Assign a label by thresholds chosen without the documents that they are applied to."""
    if training is not None:
        threshold = best_threshold(training[1], training[0], 0.0)
        return _LabelOutcomes(truth, odds, odds >= threshold, threshold)
    assigned, threshold = np.zeros(len(truth), bool), 0.0
    for rows, others in _parts(len(truth), options.protocol):
        threshold = best_threshold(truth[others], odds[others], 0.0)
        assigned[rows] = odds[rows] >= threshold
    return _LabelOutcomes(truth, odds, assigned, threshold)


def _parts(count: int, protocol: str) -> list[tuple[Ints, Ints]]:
    """Pairs (documents to assign, documents to choose their threshold on)."""
    every = np.arange(count)
    if protocol == "folds":
        return [(every[f::FOLDS], every[every % FOLDS != f]) for f in range(FOLDS)]
    return [(part, every[: part[0]]) for part in np.array_split(every, min(_ONLINE_PARTS, count))]


def _refuse_few(truth: Ints, labels: Sequence[str]) -> None:
    counts = np.bincount(truth, minlength=len(labels))
    if len(truth) < FOLDS or (counts == 0).any():
        text = ", ".join(f"{n} {label}" for n, label in zip(counts, labels, strict=True))
        raise UserError(
            f"{text}: too few to evaluate",
            hint=f"give at least {FOLDS} documents, some of each label",
        )
