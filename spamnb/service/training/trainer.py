"""Train a model from corpora: several worker processes parse messages, this process learns them.

Each source is shuffled and the sources are interleaved in proportion to their sizes, the same on
every run: training one label after the other classified 60 % of held-out ham as spam. Workers parse
on all cores; meanwhile this process learns the parsed messages in order, in transactions of 6,144
messages. Other writers of the model wait some seconds for the end of a transaction.
Memory does not grow with the corpus, except for its file names.

Failure: a message that cannot be read is counted and skipped. Finished transactions survive an
interrupt or a kill; a second run counts their messages as duplicates and continues.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from spamnb.service.engine.filter import OWNER, Filter
from spamnb.service.engine.group_commit import ReplayableBatches
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Learn, Source
from spamnb.service.engine.words import MergedWords
from spamnb.service.training.packing import MessageName, PackedBatch, Packer, examples
from spamnb.service.training.sources import (
    MailSource,
    MessageSpan,
    SourceMessage,
    Unreadable,
    read_unit,
    spans,
)
from spamnb.service.training.worker_pool import Pool, cores, cpu_seconds, tune_memory
from spamnb.store.maintenance import trim

BATCH = 6144
"""Messages in a transaction. Each transaction rewrites most pages of a small store: two for 6,046
messages made a file of 49 MB, one makes 37 MB and takes a tenth less time. While 100,000 messages
are learnt, all processes together use 274 MB of memory."""
CHUNK = 256
"""Messages learnt together within a transaction, while the next ones are parsed: 171 us a message
with 256, 512 and 1,024 of them, 192 with 128."""
_FEW = 2 * BATCH_MESSAGES
"""parsing up to this many messages takes less time than starting workers"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a training."""

    done: int
    total: int
    learnt: int = 0
    duplicates: int = 0
    moved: int = 0
    refused: int = 0
    unreadable: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a training."""

    messages: int
    learnt: int
    moved: int
    duplicates: int
    refused: int
    unreadable: int
    unreadable_paths: tuple[str, ...]
    labels: dict[str, int]
    """messages in the sources of each label"""
    seconds: float
    cpu_seconds: float
    waiting: int = 0
    """messages that are learnt when the log of the fleet is back"""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(slots=True)
class _TrainingCounts:
    """Counts while a training runs."""

    total: int
    done: int = 0
    parsed: int = 0
    learnt: int = 0
    moved: int = 0
    duplicates: int = 0
    refused: int = 0
    unreadable: list[str] = field(default_factory=list)
    report: Callable[[Progress], None] | None = None

    def count(self, receipts: list[Receipt]) -> None:
        """Count a transaction's receipts; all parsed messages are learnt now."""
        for receipt in receipts:
            self.refused += receipt.error is not None
            self.duplicates += receipt.error is None and not receipt.changed
            self.learnt += receipt.changed and receipt.before is None
            self.moved += receipt.changed and receipt.before is not None
        self.done += self.parsed
        self.parsed = 0
        self.report_progress()

    def read(self, messages: int) -> None:
        """Count parsed messages that are not learnt yet."""
        self.parsed += messages
        self.report_progress()

    def report_progress(self) -> None:
        """Call the caller's progress function."""
        if self.report:
            self.report(
                Progress(
                    self.done + self.parsed,
                    self.total,
                    self.learnt,
                    self.duplicates,
                    self.moved,
                    self.refused,
                    len(self.unreadable),
                )
            )


def interleaved(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return which source comes next at each step, so that all sources end together."""
    moments = [(np.arange(size) + 0.5) / size for size in sizes if size]
    sources = np.repeat(np.arange(len(sizes)), sizes)
    return sources[np.argsort(np.concatenate(moments), kind="stable")]


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of a training: worker processes, source, local hosts, costs, size limit, prior."""

    jobs: int = 0
    source: Source = OWNER
    local: LocalHosts | None = None
    costs: Costs | None = None
    limit_bytes: int = 0
    """of the store; 0 is the default limit"""
    prior: bool = False
    """a new model begins with the prior that ships with the program"""


def train(
    home: Path,
    sources: Sequence[tuple[str, MailSource]],
    *,
    recipe: Recipe | None = None,
    training_options: TrainingOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Learn all messages of (label, path) sources; with `recipe`, create the model if necessary.

    `progress` is first called after the workers were forked, so it may start a display thread.
    """
    began, cpu = time.monotonic(), cpu_seconds()
    tune_memory()
    training_options = training_options or TrainingOptions()
    refuse_twins(sources)
    documents = (recipe or _model_recipe(home)).documents
    order, tasks = _packed_tasks([path for _, path in sources], documents=documents)
    tally = _TrainingCounts(len(order), report=progress)
    known = _model_recipe(home, recipe, prior=training_options.prior)
    start = _WorkerStart(known, training_options.local)
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
        feature_batches = zip(_split(order), readers.map(tasks), strict=True)
        _learn_all(model, feature_batches, _TrainingContext(labels, training_options.source, tally))
    # The messages are learnt even if this fails.
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
        cpu_seconds=cpu_seconds() - cpu,
    )


def mixed(found: list[MessageSpan]) -> list[MessageSpan]:
    """Shuffle the messages of a source, in the same order on every run.

    Folders are often sorted by kind or by year. Learnt in that order, the last kind has too much
    weight: 7 to 13 % of held-out spam was missed, and 0.4 to 0.5 % in shuffled order (decision
    0003).
    """
    random.Random(0).shuffle(found)  # noqa: S311 - reproducible, not secret
    return found


def refuse_twins(sources: Sequence[tuple[str, MailSource]]) -> None:
    """Raise CorpusError if a path is given twice."""
    seen: dict[str, str] = {}
    for label, path in sources:
        if not isinstance(path, str):
            continue  # messages with a label each
        real = os.path.realpath(path)
        if real in seen:
            raise CorpusError(
                f"{path} is given for {seen[real]} and for {label}",
                hint="give a different folder for each label",
            )
        seen[real] = label


def _model_recipe(home: Path, recipe: Recipe | None = None, *, prior: bool = False) -> Recipe:
    """Return the model's recipe; create the model if necessary. Closes it before the fork."""
    create = recipe is not None
    with Filter.open(home, create=create, recipe=recipe, history=False, prior=prior) as model:
        return model.recipe


def _split(order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(order), BATCH_MESSAGES):
        yield order[start : start + BATCH_MESSAGES]


def _packed_tasks(
    sources: Sequence[MailSource], *, documents: bool
) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return the source of each message, and the messages of each batch, pickled.

    Workers inherit all tasks when they are forked. As objects, a message took 250 bytes in each
    process: of 100,000 messages 16 MB, in three processes 50 MB.
    """
    found = [mixed(spans(source, documents=documents)) for source in sources]
    order = interleaved([len(part) for part in found])
    parts = [iter(part) for part in found]
    batches = ([next(parts[k]) for k in batch.tolist()] for batch in _split(order))
    return order, [pickle.dumps(batch, pickle.HIGHEST_PROTOCOL) for batch in batches]


@dataclass(frozen=True, slots=True)
class _WorkerStart:
    """Called in a worker, it returns the worker's function."""

    recipe: Recipe
    local: LocalHosts | None

    def __call__(self) -> Callable[[bytes], PackedBatch]:
        documents = self.recipe.documents
        reader = MessageReader(self.recipe.key, self.local, documents=documents)
        packer = Packer(vocabulary=self.recipe.vocabulary, occurrences=self.recipe.occurrences)

        def run(task: bytes) -> PackedBatch:
            spans: list[MessageSpan] = pickle.loads(task)  # noqa: S301 - from the parent process
            read = [read_unit(span, documents=documents) for span in spans]
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
    """A pool without workers: tasks run in this process."""

    def __init__(self, start: Callable[[], Callable[[bytes], PackedBatch]]) -> None:
        self._run = start()

    def map(self, tasks: Iterable[bytes]) -> Iterator[PackedBatch]:
        return map(self._run, tasks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_Batch = tuple[NDArray[np.int64], PackedBatch]
"""the source of each message, and the messages"""


class _TrainingContext(NamedTuple):
    """The data that all transactions of a training share."""

    labels: list[int]
    """of each source"""
    source: Source
    tally: _TrainingCounts


def _learn_all(model: Filter, feature_batches: Iterator[_Batch], context: _TrainingContext) -> None:
    """Learn all batches, one transaction after the other.

    After an interrupt, the messages parsed until then are still learnt.
    """
    with _FirstInterrupt() as interrupt:
        _learn_until(interrupt, model, feature_batches, context)
    if interrupt.pressed:
        raise KeyboardInterrupt


class _FirstInterrupt:
    """The first Ctrl-C ends the parsing, and the transaction is finished; a second one aborts it.

    An aborted transaction has to be run again from its start, which takes a second.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._set = False

    def __enter__(self) -> Self:
        is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_default and threading.current_thread() is threading.main_thread():
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
    feature_batches: Iterator[_Batch],
    context: _TrainingContext,
) -> None:
    wanted = itertools.takewhile(lambda _: not interrupt.pressed, feature_batches)
    read = _requests(model, wanted, context)
    for first in read:
        rest = itertools.islice(read, BATCH // CHUNK - 1)
        batch = ReplayableBatches(itertools.chain([first], rest))
        try:
            context.tally.count(model.teach_stream(batch))
        except KeyboardInterrupt:
            batch.stop()
            context.tally.count(model.teach_stream(batch))
            raise


def _chunks(feature_batches: Iterator[_Batch]) -> Iterator[list[_Batch]]:
    """Yield batches in groups of CHUNK messages; after an interrupt, the ones received so far."""
    some: list[_Batch] = []
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


def _requests(
    model: Filter, feature_batches: Iterator[_Batch], context: _TrainingContext
) -> Iterator[list[Learn]]:
    """Yield training requests as the workers parse the messages."""
    labels, source, tally = context
    for some in _chunks(feature_batches):
        now, requests = now_us(), list[Learn]()
        words = MergedWords([packed.words for _, packed in some if packed.words])
        for sources, packed in some:
            read = examples(packed, model.recipe.groups, words)
            for number, example in zip(sources.tolist(), read, strict=True):
                if isinstance(example, Unreadable):
                    tally.unreadable.append(f"{example.name}: {example.reason}")
                else:
                    requests.append(Learn(example, labels[number], source, now))
            tally.read(len(sources))
        yield requests
