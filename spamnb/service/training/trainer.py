"""Training from corpora: many readers, one learner, one order.

Each source is mixed and the sources are interleaved in proportion to their sizes, the same on every
run: one class after the other made the model judge 60 % of held-out ham as spam. Readers run on all
cores; what they read is learnt here in that order while they read on, in transactions of 6,144
messages. Other writers of the model wait for a transaction's end: some seconds.
Memory does not grow with the corpus, but for its file names.

Failure: a message that can't be read is counted and skipped. Interrupted or killed, everything in
finished transactions stays; a second run finds it learnt and goes on.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.costs import Costs
from spamnb.core.model.events import Recipe
from spamnb.errors import CorpusError, StoreError
from spamnb.service.engine.clock import now_us
from spamnb.service.engine.extraction import BATCH_MESSAGES, MessageReader
from spamnb.service.engine.filter import MINE, Filter
from spamnb.service.engine.group_commit import ReplayableBatches
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Learn, Source
from spamnb.service.training.packing import MergedWords, MessageName, PackedBatch, Packer, examples
from spamnb.service.training.sources import MessageSpan, SourceMessage, Unreadable, read_unit, units
from spamnb.service.training.worker_pool import Pool, cores, settle_garbage
from spamnb.store.lmdb.store import open_store
from spamnb.store.maintenance import trim

BATCH = 6144
"""Messages in a transaction. Each rewrites most pages of a small store: two transactions for 6,046
messages made a file of 49 MB, one makes 37 and takes a tenth less time. While 100,000 messages are
learnt, all processes together take 251 MB of memory."""
CHUNK = 256
"""Messages learnt at a time within a transaction, while the next ones are read: 171 us a message
with 256, 512 and 1,024 of them, 192 with 128."""
_FEW = 2 * BATCH_MESSAGES
"""So few messages are read faster than workers start."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is."""

    done: int
    total: int
    learnt: int = 0
    duplicates: int = 0
    moved: int = 0
    refused: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a training did."""

    messages: int
    learnt: int
    moved: int
    duplicates: int
    refused: int
    unreadable: int
    unreadable_paths: tuple[str, ...]
    labels: dict[str, int]
    """messages given for each label"""
    seconds: float
    cpu_seconds: float

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


@dataclass(slots=True)
class _TrainingCounts:
    """Counts while a training runs."""

    total: int
    done: int = 0
    waiting: int = 0
    learnt: int = 0
    moved: int = 0
    duplicates: int = 0
    refused: int = 0
    unreadable: list[str] = field(default_factory=list)
    report: Callable[[Progress], None] | None = None

    def count(self, receipts: list[Receipt]) -> None:
        """Add a transaction's receipts: what was read until now is learnt."""
        for receipt in receipts:
            self.refused += receipt.error is not None
            self.duplicates += receipt.error is None and not receipt.changed
            self.learnt += receipt.changed and receipt.before is None
            self.moved += receipt.changed and receipt.before is not None
        self.done += self.waiting
        self.waiting = 0
        self.tell()

    def read(self, messages: int) -> None:
        """So many more wait to be learnt."""
        self.waiting += messages
        self.tell()

    def tell(self) -> None:
        """Report how far it is."""
        if self.report:
            self.report(
                Progress(
                    self.done + self.waiting,
                    self.total,
                    self.learnt,
                    self.duplicates,
                    self.moved,
                    self.refused,
                    len(self.unreadable),
                )
            )


def interleaved(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Which source comes next, so that all run evenly and end together."""
    moments = [(np.arange(size) + 0.5) / size for size in sizes if size]
    sources = np.repeat(np.arange(len(sizes)), sizes)
    return sources[np.argsort(np.concatenate(moments), kind="stable")]


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train: whose word it is, who we are, what mistakes cost, how many readers."""

    jobs: int = 0
    source: Source = MINE
    local: LocalHosts | None = None
    costs: Costs | None = None
    limit_bytes: int = 0
    """of the store; 0 is none"""


def train(
    home: Path,
    sources: Sequence[tuple[str, str]],
    *,
    recipe: Recipe | None = None,
    training_options: TrainingOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Learn all messages of (label, path) sources; `recipe` makes a model if there is none.

    The first call of `progress` comes after the workers were forked, so it may start a display.
    """
    began, cpu = time.monotonic(), _cpu_seconds()
    settle_garbage()
    training_options = training_options or TrainingOptions()
    refuse_twins(sources)
    documents = (recipe or _settled_recipe(home, None)).documents
    found = [mixed(units(path, documents=documents)) for _, path in sources]
    order = interleaved([len(part) for part in found])
    tally = _TrainingCounts(len(order), report=progress)
    start = _Reader(_settled_recipe(home, recipe), training_options.local)
    few = len(order) <= _FEW
    jobs = 1 if few else training_options.jobs or cores()
    pool = Pool(start, jobs) if jobs > 1 else _InlinePool(start)
    with (
        pool as readers,
        Filter.open(
            home,
            history=False,
            costs=training_options.costs,
            limit_bytes=training_options.limit_bytes,
        ) as model,
    ):
        labels = [model.label(label) for label, _ in sources]
        feature_batches = zip(_split(order), readers.map(_tasks(found, order)), strict=True)
        _learn_all(model, feature_batches, _TrainingContext(labels, training_options.source, tally))
    # The messages are learnt, whatever becomes of this.
    with suppress(StoreError):
        trim(home)
    given = np.bincount(order, minlength=len(sources)).tolist()
    return Summary(
        messages=tally.done,
        learnt=tally.learnt,
        moved=tally.moved,
        duplicates=tally.duplicates,
        refused=tally.refused,
        unreadable=len(tally.unreadable),
        unreadable_paths=tuple(tally.unreadable),
        labels={label: given[k] for k, (label, _) in enumerate(sources)},
        seconds=time.monotonic() - began,
        cpu_seconds=_cpu_seconds() - cpu,
    )


def mixed(found: list[MessageSpan]) -> list[MessageSpan]:
    """The messages of a source in one random order, the same on every run.

    Folders lie sorted by kind or by year. Learnt in that order, the last kind weighs too much: of
    held-out spam 7 to 13 % was missed, and 0.3 % once the order was mixed (docs/decisions/0003).
    """
    random.Random(0).shuffle(found)  # noqa: S311 - to be the same, not to be unguessable
    return found


def _cpu_seconds() -> float:
    """Ours and that of the workers that have ended."""
    return sum(os.times()[:4])


def refuse_twins(sources: Sequence[tuple[str, str]]) -> None:
    """No path may be given twice: its messages cannot be both."""
    seen: dict[str, str] = {}
    for label, path in sources:
        place = os.path.realpath(path)
        if place in seen:
            raise CorpusError(
                f"{path} is given for {seen[place]} and for {label}", hint="one folder for each"
            )
        seen[place] = label


def _settled_recipe(home: Path, recipe: Recipe | None) -> Recipe:
    """The model's own recipe; made now if need be, and closed again: workers are forked next."""
    store = open_store(home, create=recipe)
    try:
        return store.recipe
    finally:
        store.close()


def _split(order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(order), BATCH_MESSAGES):
        yield order[start : start + BATCH_MESSAGES]


def _tasks(found: list[list[MessageSpan]], order: NDArray[np.int64]) -> Iterator[list[MessageSpan]]:
    """The units of each portion."""
    sources = [iter(part) for part in found]
    for feature_batch in _split(order):
        yield [next(sources[k]) for k in feature_batch.tolist()]


@dataclass(frozen=True, slots=True)
class _Reader:
    """What a worker needs to begin: called in the worker, it gives the worker's function."""

    recipe: Recipe
    local: LocalHosts | None

    def __call__(self) -> Callable[[list[MessageSpan]], PackedBatch]:
        documents = self.recipe.documents
        reader = MessageReader(self.recipe.key, self.local, documents=documents)
        packer = Packer(vocabulary=self.recipe.vocabulary, occurrences=self.recipe.occurrences)

        def run(feature_batch: list[MessageSpan]) -> PackedBatch:
            read = [read_unit(unit, documents=documents) for unit in feature_batch]
            good = reader.feature_batch(
                [item.raw for item in read if isinstance(item, SourceMessage)]
            )
            messages = iter(good.messages)
            names: list[MessageName | Unreadable] = []
            for item in read:
                if isinstance(item, Unreadable):
                    names.append(item)
                else:
                    message = next(messages)
                    names.append(MessageName(message.digest, message.message_id))
            return packer.pack(names, good.features)

        return run


class _InlinePool:
    """A pool of nobody: the work is done here."""

    def __init__(self, start: Callable[[], Callable[[list[MessageSpan]], PackedBatch]]) -> None:
        self._run = start()

    def map(self, tasks: Iterator[list[MessageSpan]]) -> Iterator[PackedBatch]:
        return map(self._run, tasks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""


_Portion = tuple[NDArray[np.int64], PackedBatch]


class _TrainingContext(NamedTuple):
    """What every transaction of a training has in common."""

    labels: list[int]
    """of each source"""
    source: Source
    tally: _TrainingCounts


def _learn_all(
    model: Filter, feature_batches: Iterator[_Portion], context: _TrainingContext
) -> None:
    """Transaction after transaction; interrupted, what was read until then is still learnt."""
    with _FirstInterrupt() as interrupt:
        _learn_until(interrupt, model, feature_batches, context)
    if interrupt.pressed:
        raise KeyboardInterrupt


class _FirstInterrupt:
    """Ctrl-C ends the reading, so that the transaction ends as usual; a second one breaks it off.

    A transaction that is broken off has to be done again from its start, which takes a second.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._set = False

    def __enter__(self) -> Self:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._press)
            self._set = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._set:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _press(self, *_: object) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


def _learn_until(
    interrupt: _FirstInterrupt,
    model: Filter,
    feature_batches: Iterator[_Portion],
    context: _TrainingContext,
) -> None:
    wanted = itertools.takewhile(lambda _: not interrupt.pressed, feature_batches)
    read = _lessons(model, wanted, context)
    for first in read:
        rest = itertools.islice(read, BATCH // CHUNK - 1)
        batch = ReplayableBatches(itertools.chain([first], rest))
        try:
            context.tally.count(model.teach_arriving(batch))
        except KeyboardInterrupt:
            batch.stop()
            context.tally.count(model.teach_arriving(batch))
            raise


def _chunks(feature_batches: Iterator[_Portion]) -> Iterator[list[_Portion]]:
    """Some at a time; who is interrupted while they come still gets what has come."""
    some: list[_Portion] = []
    try:
        for feature_batch in feature_batches:
            some.append(feature_batch)
            if len(some) * BATCH_MESSAGES >= CHUNK:
                yield some
                some = []
    except KeyboardInterrupt:
        if some:
            yield some
        raise
    if some:
        yield some


def _lessons(
    model: Filter, feature_batches: Iterator[_Portion], context: _TrainingContext
) -> Iterator[list[Learn]]:
    """What is to be learnt, as it comes from the readers."""
    labels, source, tally = context
    for some in _chunks(feature_batches):
        now, requests = now_us(), list[Learn]()
        glossary = MergedWords([packed.words for _, packed in some if packed.words])
        for sources, packed in some:
            read = examples(packed, model.recipe.groups, glossary)
            for number, example in zip(sources.tolist(), read, strict=True):
                if isinstance(example, Unreadable):
                    tally.unreadable.append(f"{example.name}: {example.reason}")
                else:
                    requests.append(Learn(example, labels[number], source, now))
            tally.read(len(sources))
        yield requests
