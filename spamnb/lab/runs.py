"""Find the messages of a collection, put them in order, and train and score a model by a protocol.

*online*, as in mail: each message is scored with the model so far, then trained as the feedback
option allows. *holdout*: train the first two thirds, score the rest. *folds*: train nine tenths,
score the other tenth, ten times, on as many processes as given. *cross*: train one collection,
score another. Every protocol returns z of the messages that it scored.

Must not know metrics or terminals. Failure: CorpusError; UserError for a wrong number of paths.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from spamnb.engine.bulk import Pool
from spamnb.engine.learner import Learner
from spamnb.engine.mailboxes import MessageSpan, SourceMessage, read_unit, units
from spamnb.engine.prior import Prior, prior_load
from spamnb.engine.scoring import MessageReader, example_of, novelties
from spamnb.engine.values import Example, Learn, Source
from spamnb.errors import CorpusError, UserError
from spamnb.mail.envelope import LocalHosts
from spamnb.model.costs import Costs
from spamnb.model.events import Ids, Ints, Recipe
from spamnb.model.features import Features
from spamnb.model.scoring import RowView, probabilities, scores
from spamnb.model.smoothing import Floats
from spamnb.store.model_store import temporary_store
from spamnb.store.table_views import ReadView, WriteView

Thing = TypeVar("Thing")
Named = tuple[str, tuple[Thing, str]]
"""(name to sort by, (message or reference to it, label))"""

_LINE = re.compile(r"(spam|ham)\s+(\S.*)", re.IGNORECASE)
_HEAD_BYTES = 65_536


def index_of(path: str) -> Path | None:
    """Return the index file of a collection in TREC's layout, or None."""
    location = Path(path)
    candidates = (
        (location,) if location.is_file() else (location / "full" / "index", location / "index")
    )
    for candidate in candidates:
        if candidate.is_file():
            with candidate.open(encoding="utf-8", errors="replace") as lines:
                if _LINE.match(lines.readline()):
                    return candidate
    return None


def indexed(index: Path) -> list[Named[MessageSpan]]:
    """Return the messages listed in an index, in its order."""
    found: list[Named[MessageSpan]] = []
    text = index.read_text("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        named = _LINE.fullmatch(line.strip())
        if named is None:
            raise CorpusError(
                f"line {number} of {index} is {line.strip()[:60]!r}",
                hint="each line must be `spam PATH` or `ham PATH`",
            )
        path = index.parent / named[2]
        found.append((f"{number:09}", (MessageSpan(str(path), shown=named[2]), named[1].lower())))
    return found


def sorted_mail(path: str, label: str) -> list[Named[MessageSpan]]:
    """Return the messages under a path, all with one label."""
    return [(Path(unit.name).name, (unit, label)) for unit in units(path)]


def ordered(
    sources: Sequence[str], order: str | None, seed: int
) -> tuple[list[tuple[MessageSpan, str]], str]:
    """Find the messages of HAM and SPAM, or of an index; return them with the name of their order.

    Input is sorted mail in two paths, or a collection in the layout of TREC's spam track (a file
    `index` with lines like `spam ../data/inmail.1`). Messages are read one at a time, so a large
    collection is never held in memory. `order` is shuffle, time or given; without one an index is
    taken as given, other mail shuffled.
    """
    if not sources:
        return [], order or "shuffle"
    index = index_of(sources[0]) if len(sources) == 1 else None
    if index is not None:
        named, order = indexed(index), order or "given"
    else:
        named, order = _ham_and_spam(sources), order or "shuffle"
    if order == "shuffle":
        return shuffled(named, seed), order
    return (units_by_time if order == "time" else as_given)(named), order


def _ham_and_spam(sources: Sequence[str]) -> list[Named[MessageSpan]]:
    if len(sources) != 2:
        raise UserError(
            f"{len(sources)} paths are given instead of two",
            hint="give first the ham, then the spam; or one collection with full/index",
        )
    ham, spam = sources
    if os.path.realpath(ham) == os.path.realpath(spam):
        raise CorpusError(f"{ham} is given for ham and for spam", hint="give a folder for each")
    return sorted_mail(ham, "ham") + sorted_mail(spam, "spam")


def shuffled(named: Iterable[Named[Thing]], seed: int) -> list[tuple[Thing, str]]:
    """Sort by file name (ties by label), then shuffle: independent of folders and disk order."""
    rows = sorted(named, key=lambda row: (row[0], row[1][1]))
    random.Random(seed).shuffle(rows)  # noqa: S311 - a reproducible order, no secret
    return [thing for _, thing in rows]


def as_given(named: Iterable[Named[Thing]], _seed: int = 0) -> list[tuple[Thing, str]]:
    """Keep the order given: for an index, the order of arrival."""
    return [thing for _, thing in named]


def by_time(named: Iterable[Named[bytes]]) -> list[tuple[bytes, str]]:
    """Sort by time of arrival, else by Date; messages without either come first, by name."""
    return _by_time(named, lambda raw: raw)


def units_by_time(named: Iterable[Named[MessageSpan]]) -> list[tuple[MessageSpan, str]]:
    """As `by_time`, for messages in files; reads only the head of each."""

    def head(unit: MessageSpan) -> bytes:
        head = unit.start + _HEAD_BYTES
        read = read_unit(unit._replace(stop=min(unit.stop or head, head)))
        return read.raw if isinstance(read, SourceMessage) else b""

    return _by_time(named, head)


def _by_time(
    named: Iterable[Named[Thing]], head: Callable[[Thing], bytes]
) -> list[tuple[Thing, str]]:
    keyed = [(arrival(head(thing[0])), name, thing[1], thing) for name, thing in named]
    return [row[3] for row in sorted(keyed, key=lambda row: row[:3])]


def read_each(
    found: Iterable[tuple[MessageSpan, str]],
    warn: Callable[[str], None],
    *,
    documents: bool = False,
) -> Iterator[tuple[bytes, str]]:
    """Read messages one at a time; an unreadable message is skipped with a warning."""
    for unit, label in found:
        read = read_unit(unit, documents=documents)
        if isinstance(read, SourceMessage):
            yield read.raw, label
        else:
            warn(f"skipped {read.name}: {read.reason}")


def arrival(raw: bytes) -> float:
    """Return seconds since 1970 from the newest Received, else from Date; 0 if unreadable."""
    head = raw[:_HEAD_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    fields = head.replace(b"\n ", b" ").replace(b"\n\t", b" ").split(b"\n")
    for name in (b"received:", b"date:"):
        for line in fields:
            if line[: len(name)].lower() == name:
                date = line[len(name) :].rpartition(b";")[2].decode("ascii", "replace")
                parsed = parsedate_tz(date)
                if parsed and 1970 <= parsed[0] < 10_000:
                    try:
                        return float(mktime_tz(parsed))
                    except (ValueError, OverflowError):
                        continue
    return 0.0


LABELS = ("ham", "spam")
UNSURE = (0.1, 0.9)
"""A user that corrects only mistakes is assumed to label also messages between these
probabilities."""
_BATCH = 256
"""messages per transaction where no message is scored in between"""

_ORIGIN = Source(user="evaluation", channel="evaluation")

Labelled = tuple[bytes, str]
TrainingChoice = Callable[[Floats], Sequence[int]]
"""(probabilities of the message just scored) -> indices of the messages to train now"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an evaluation."""

    protocol: str = "online"
    order: str = "given"
    """for the report only: the caller has put the messages in order"""
    seed: int = 1
    """seed of the feature key, and of the noise unless `noise_seed` is set"""
    feedback: str = "full"
    """full | errors | delayed | partial: which labels are trained by protocol online"""
    delay: int = 100
    """delayed: a label is trained so many messages later"""
    share: float = 0.1
    """partial: the share of messages that are ever trained"""
    noise: float = 0.0
    """share of labels that are trained wrong; metrics use the right ones"""
    noise_seed: int | None = None
    kind: str = "corrected"
    labels: tuple[str, ...] = LABELS
    documents: bool = False
    """the input is plain text, not mail"""
    tested: int = 0
    """cross: number of messages at the end that are scored by a model trained on the others"""
    local: LocalHosts | None = None
    costs: Costs | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    """model constants that replace those of the recipe"""
    prior: Prior | None = None
    """what the model knows before its first message"""
    resamples: int = 1000
    jobs: int = 1
    """processes for folds; the scores do not depend on it"""
    progress: Callable[[int, int], None] | None = None


class Sample(NamedTuple):
    """One message as features, ready to be scored and trained."""

    example: Example
    ids: Ids
    """feature ids of both groups, sorted"""
    view: RowView
    """indices into the rows of `ids`"""


class Samples(NamedTuple):
    """Messages in order, and the label index of each."""

    items: list[Sample]
    truth: Ints


def recipe_of(options: Options) -> Recipe:
    """Return the recipe of the model: the constants of its kind, with those of the options."""
    key = hashlib.blake2b(b"evaluation %d" % options.seed, digest_size=32).digest()
    made = Recipe(
        kind=options.kind,
        labels=options.labels,
        key=key,
        vocabulary=False,
        alpha=0.01 if options.kind == "corrected" else 1.0,
        documents=options.documents,
    )
    return replace(made, **dict(options.constants))  # type: ignore[arg-type]


def read_samples(messages: Iterable[Labelled], options: Options) -> Samples:
    """Extract the features of labelled messages in batches; the texts are not kept."""
    known = {label: k for k, label in enumerate(options.labels)}
    names: list[str] = []

    def raws() -> Iterator[bytes]:
        for raw, label in messages:
            names.append(label)
            yield raw

    items = list(_samples(raws(), options))
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise UserError(
            f"messages labelled {', '.join(unknown)} cannot be evaluated",
            hint=f"label them {' or '.join(options.labels)}",
        )
    return Samples(items, np.array([known[name] for name in names], np.int64))


def _samples(raws: Iterable[bytes], options: Options) -> Iterator[Sample]:
    recipe = recipe_of(options)
    reader = MessageReader(recipe.key, options.local, documents=recipe.documents)
    for feature_batch in reader.feature_batches(raws):
        for index, message in enumerate(feature_batch.messages):
            made = example_of(message, feature_batch.features, index, recipe)
            example = made._replace(words=None, shared_ids=None)
            yield _sample(example, feature_batch.features, index)


def _sample(example: Example, features: Features, index: int) -> Sample:
    by_group = features.of(index)
    rows = np.sort(by_group)
    sizes = np.array([len(part) for part in example.ids])
    offsets = np.array([0, len(rows)])
    view = RowView(rows.searchsorted(by_group), offsets, sizes, blocks=example.blocks)
    return Sample(example, features.ids[rows], view)


class Trial:
    """One model that is trained and scored on samples, with the learner of the product.

    The feature key is derived from the seed, so the same messages in the same order give the same
    scores, bit for bit. Any number of labels; mail or plain documents.
    """

    def __init__(self, samples: Samples, train_labels: Ints, options: Options) -> None:
        self.recipe = recipe_of(options)
        self._samples = samples.items
        self._train_labels = train_labels.tolist()
        self._store = temporary_store(self.recipe)
        self._learner = Learner(self.recipe, options.costs or Costs())
        if options.prior is not None:
            added = prior_load(self.recipe, options.prior, _ORIGIN)
            self._store.transact(lambda view: self._learner.run(view, [added], scored=False))

    def score_then_train(self, index: int, choose: TrainingChoice) -> Floats:
        return self._store.transact(lambda view: self._score_then_train(view, index, choose))

    def _score_then_train(self, view: WriteView, index: int, choose: TrainingChoice) -> Floats:
        z = self._score(view, self._samples[index])
        requests = [self._request(i, index + 1) for i in choose(probabilities(z))]
        if requests:
            self._learner.run(view, requests, scored=False)
        return z

    def train(self, indices: Sequence[int]) -> None:
        """Train the messages in order, in batches of one transaction each."""
        for start in range(0, len(indices), _BATCH):
            batch = indices[start : start + _BATCH]
            requests = [self._request(i, start + k + 1) for k, i in enumerate(batch)]
            with self._store.write() as view:
                self._learner.run(view, requests, scored=False)

    def score(self, indices: Sequence[int]) -> Floats:
        with self._store.read() as view:
            z = [self._score(view, self._samples[i]) for i in indices]
        return np.array(z).reshape(len(z), len(self.recipe.labels))

    def novelty(self, index: int) -> float:
        """Return by how much a message's junk threshold is higher than the site's, in nats."""
        sample = self._samples[index]
        with self._store.read() as view:
            records = view.gather(sample.ids)
            return novelties(self.recipe, view.totals(), records, sample.view)[0].nats

    def _score(self, view: ReadView, sample: Sample) -> Floats:
        records = view.gather(sample.ids)
        return np.asarray(scores(self.recipe, view.totals(), records, sample.view)[0])

    def _request(self, index: int, time_us: int) -> Learn:
        return Learn(self._samples[index].example, self._train_labels[index], _ORIGIN, time_us)


Task = TypeVar("Task")
Result = TypeVar("Result")

FOLDS = 10
_PROGRESS_EVERY = 64


class ScoredMessages(NamedTuple):
    """Scores of the messages that were scored."""

    which: Ints
    """[M] indices of the messages, ascending"""
    z: Floats
    """[M, K] scores by label"""


class Model(Protocol):
    """A model that is trained and scored on messages by their indices."""

    def train(self, indices: Sequence[int]) -> None:
        """Train the messages in order."""

    def score(self, indices: Sequence[int]) -> Floats:
        """Return z [M, K] of the messages."""

    def score_then_train(self, index: int, choose: TrainingChoice) -> Floats:
        """Score a message, then train what `choose` returns; return its z."""


Maker = Callable[[], Model]
"""returns a new model without training"""


def run(samples: Samples, options: Options) -> ScoredMessages:
    """Train and score the samples by the protocol of the options."""
    train_labels = with_noise(samples.truth, options)
    return run_models(lambda: Trial(samples, train_labels, options), train_labels, options)


def run_models(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    """Train and score new models by the protocol; labels are [M], or [M, K] of 0 and 1."""
    return PROTOCOLS[options.protocol](make, train_labels, options)


def with_noise(truth: Ints, options: Options) -> Ints:
    """Return the labels to train; a share of `options.noise` is replaced by another label.

    Of a message with a row of labels [K], all are inverted.
    """
    seed = options.seed if options.noise_seed is None else options.noise_seed
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(truth)) < options.noise
    if truth.ndim > 1:
        return np.where(wrong[:, None], 1 - truth, truth)
    K = len(options.labels)
    other = rng.integers(1, K, len(truth)) if K > 2 else 1
    return np.where(wrong, (truth + other) % K, truth)


def _online(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    count = len(train_labels)
    model, choice_at = make(), _FEEDBACK[options.feedback](train_labels, options)
    z = np.zeros((count, len(options.labels)))
    for index in range(count):
        z[index] = model.score_then_train(index, choice_at(index))
        _report_progress(options, index + 1, count)
    return ScoredMessages(np.arange(count), z)


def _full(_train_labels: Ints, _options: Options) -> Callable[[int], TrainingChoice]:
    return lambda index: lambda _: (index,)


def _errors(train_labels: Ints, _options: Options) -> Callable[[int], TrainingChoice]:
    """Train only messages with a wrong label or a probability below 90 %."""
    sure = UNSURE[1]

    def choice_at(index: int) -> TrainingChoice:
        label = train_labels[index]
        if label.ndim:
            return lambda P: (index,) if np.where(label, P, 1 - P).min() < sure else ()
        return lambda P: (index,) if P[label] < sure else ()

    return choice_at


def _delayed(_train_labels: Ints, options: Options) -> Callable[[int], TrainingChoice]:
    """Train every message, `options.delay` messages later."""
    delay = options.delay
    return lambda index: lambda _: (index - delay,) if index >= delay else ()


def _partial(train_labels: Ints, options: Options) -> Callable[[int], TrainingChoice]:
    """Train a random share of the messages, whatever their score."""
    labelled = np.random.default_rng((options.seed, 1)).random(len(train_labels)) < options.share
    return lambda index: lambda _: (index,) if labelled[index] else ()


_FEEDBACK: dict[str, Callable[[Ints, Options], Callable[[int], TrainingChoice]]] = {
    "full": _full,
    "errors": _errors,
    "delayed": _delayed,
    "partial": _partial,
}


def _holdout(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    return _split(make, train_labels, options, 2 * len(train_labels) // 3)


def _cross(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    return _split(make, train_labels, options, len(train_labels) - options.tested)


def _split(make: Maker, train_labels: Ints, options: Options, first: int) -> ScoredMessages:
    model = make()
    tested = range(first, len(train_labels))
    model.train(range(first))
    z = model.score(tested)
    _report_progress(options, len(train_labels), len(train_labels))
    return ScoredMessages(np.array(tested, np.int64), z)


def _folds(make: Maker, train_labels: Ints, options: Options) -> ScoredMessages:
    """Each fold has its own model, so the scores do not depend on the number of processes."""
    count = len(train_labels)

    def score_fold(fold: int) -> Floats:
        model = make()
        model.train([index for index in range(count) if index % FOLDS != fold])
        return model.score(range(fold, count, FOLDS))

    z = np.zeros((count, len(options.labels)))
    for fold, part in enumerate(parallel_map(score_fold, range(FOLDS), options.jobs)):
        z[fold::FOLDS] = part
        _report_progress(options, (fold + 1) * count // FOLDS, count)
    return ScoredMessages(np.arange(count), z)


def parallel_map(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Iterator[Result]:
    """Map over forked processes, results in the order of the tasks; `work` is not pickled."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with Pool(lambda: work, min(jobs, len(tasks))) as pool:
        yield from pool.map(tasks)


PROTOCOLS: dict[str, Callable[[Maker, Ints, Options], ScoredMessages]] = {
    "online": _online,
    "holdout": _holdout,
    "folds": _folds,
    "cross": _cross,
}


def _report_progress(options: Options, done: int, total: int) -> None:
    if options.progress and (done % _PROGRESS_EVERY == 0 or done == total):
        options.progress(done, total)
