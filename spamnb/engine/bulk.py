"""Train and score many messages in several processes.

`train` learns the messages that worker processes parse, `score_paths` scores files in their order;
`Pool` runs both on all cores, and a `Packer` packs batches for the transfer. Failure: a message
that cannot be read is counted and skipped. Finished transactions survive an interrupt or a kill; a
second run counts their messages as duplicates and continues.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from spamnb.engine.filter import BATCHES_PER_SNAPSHOT, ONE_IN, OWNER, Filter, Pins
from spamnb.engine.learner import ReplayableBatches
from spamnb.engine.mailboxes import (
    MailSource,
    MessageSpan,
    SourceMessage,
    Unreadable,
    items,
    read_unit,
    spans,
    units,
)
from spamnb.engine.receipt import Receipt
from spamnb.engine.scoring import BATCH_MESSAGES, MessageReader
from spamnb.engine.values import Example, Learn, MergedWords, SharedIds, Source, WordSource
from spamnb.errors import BugError, CorpusError, StoreError
from spamnb.mail.envelope import LocalHosts
from spamnb.model.costs import Costs
from spamnb.model.events import Blocks, Ids, Recipe
from spamnb.model.features import Features, Words, several
from spamnb.model.verdict import Clue, Verdict
from spamnb.policy.rulings import Ruling
from spamnb.policy.senders import ListOwner, SenderList, evidence_of, ruling_of
from spamnb.store.maintenance import trim
from spamnb.telemetry import lower_priority, now_us

_SENT_SLOTS = 1 << 20


class MessageName(NamedTuple):
    """A message's identity."""

    digest: bytes
    message_id: str


class PackedBatch(NamedTuple):
    """A parsed batch of messages."""

    names: list[MessageName | Unreadable]
    """one for each requested message, in order"""
    ids: Ids
    rows: NDArray[np.int32]
    sizes: NDArray[np.int32]
    """[messages * groups] number of rows of each group of each message"""
    times: NDArray[np.uint32] | None
    blocks: Blocks | None
    words: Words | None


class Packer:
    """Packs the batches of one worker.

    A worker parses messages, the parent learns them. A batch contains its distinct ids, which of
    them each message has, and the texts of ids that this worker has not sent recently. A worker
    sends each text at least once before the parent needs it; a table of sent ids, 8 MB for any
    corpus, avoids sending most of them again.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._sent = np.zeros(_SENT_SLOTS if recipe.vocabulary else 0, np.uint64)
        self._recipe = recipe

    def pack(self, names: list[MessageName | Unreadable], features: Features) -> PackedBatch:
        """Return what the parent needs of this batch."""
        return PackedBatch(
            names,
            features.ids,
            features.rows.astype(np.int32),
            features.sizes.astype(np.int32),
            features.times if self._recipe.occurrences else None,
            features.blocks if self._recipe.kind == "corrected" else None,
            self._new_words(features) if len(self._sent) else None,
        )

    def _new_words(self, features: Features) -> Words:
        slots = (features.ids & np.uint64(_SENT_SLOTS - 1)).astype(np.int64)
        new = np.flatnonzero(self._sent[slots] != features.ids)
        self._sent[slots[new]] = features.ids[new]
        return features.words(features.ids[new])


def examples(
    packed: PackedBatch, groups: int, words: WordSource | None = None
) -> list[Example | Unreadable]:
    """Return the messages of a batch as the model sees them; `words` has all their texts."""
    ends = np.cumsum(packed.sizes).tolist()
    ids = packed.ids[packed.rows]
    found: list[Example | Unreadable] = []
    start, part = 0, 0
    for name in packed.names:
        if isinstance(name, Unreadable):
            found.append(name)
            continue
        bounds = [start, *ends[part : part + groups]]
        blocks = None if packed.blocks is None else packed.blocks[start : bounds[-1]]
        found.append(
            Example(
                name.digest,
                name.message_id,
                tuple(ids[a:b] for a, b in itertools.pairwise(bounds)),
                None if packed.times is None else packed.times[start : bounds[-1]],
                words,
                SharedIds(packed.ids, packed.rows[start : bounds[-1]]),
                several(blocks),
            )
        )
        start, part = bounds[-1], part + groups
    return found


Task = TypeVar("Task")
Result = TypeVar("Result")

_BEHIND = 5
"""The workers' nice value: the parent does the last step alone, so it has priority."""
_MOST = 8
"""maximum number of workers for each core, because each uses its own memory"""
WINDOW = 20
"""pending tasks of each worker: it continues while the parent is busy with a transaction"""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended workers."""
    return sum(os.times()[:4])


class Pool(Generic[Task, Result]):
    """Workers that all run one function; `start` returns it, in each worker after the fork.

    Tasks are given to the workers in turn and results are read in the same turn, so the order is
    fixed and no worker starves. A forked worker starts in a millisecond with all modules imported;
    therefore the caller must not have a store open or a thread running yet.

    Failure: an exception in a worker is raised in the parent; a worker that dies raises BugError.
    Only the parent receives an interrupt. If the `with` block raises, the workers are killed;
    otherwise their pipes are closed, and they end.
    """

    def __init__(self, start: Callable[[], Callable[[Task], Result]], jobs: int) -> None:
        context = get_context("fork")
        jobs = min(jobs, _MOST * cores())
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(jobs):
            parent_end, worker_end = context.Pipe()
            process = context.Process(
                target=_work, args=(start, worker_end, [*self._pipes, parent_end]), daemon=True
            )
            process.start()
            worker_end.close()
            self._pipes.append(parent_end)
            self._processes.append(process)

    def map(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks."""
        pending: deque[Connection] = deque()
        for number, task in enumerate(tasks):
            if len(pending) == WINDOW * len(self._pipes):
                yield self._result(pending.popleft())
            pipe = self._pipes[number % len(self._pipes)]
            self._send(pipe, task)
            pending.append(pipe)
        while pending:
            yield self._result(pending.popleft())

    def _send(self, pipe: Connection, task: Task) -> None:
        try:
            pipe.send_bytes(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BugError("a worker process ended before its work did") from error

    def _result(self, pipe: Connection) -> Result:
        try:
            good, value = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from a child process
        except (EOFError, ConnectionResetError) as error:
            raise BugError("a worker process ended before its work did") from error
        if not good:
            raise value
        result: Result = value
        return result

    def close(self) -> None:
        """Close the pipes, and wait until the workers end."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def __enter__(self) -> Pool[Task, Result]:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            # Finishing the pending tasks would take seconds.
            for process in self._processes:
                process.kill()
        self.close()


def tune_memory() -> None:
    """Tune garbage collector and allocator for parsing.

    The collector runs less often and skips imported objects, which saves a twentieth of the time:
    parsing makes many short-lived lists and tuples, but no cycles. Freeing one large block raises
    the allocator's mmap threshold, which avoids a third of the page faults.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    np.empty(_KEPT_BYTES, np.uint8)


_KEPT_BYTES = 24 << 20


def _work(
    start: Callable[[], Callable[[Any], Any]], pipe: Connection, others: list[Connection]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lower_priority(_BEHIND)
    tune_memory()
    for other in others:
        # The parent's ends: while they are open here, siblings do not notice the parent's death.
        other.close()
    answers: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_send, args=(pipe, answers), daemon=True).start()
    run = None
    try:
        while True:
            task = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the parent process
            try:
                run = run or start()
                answer = (True, run(task))
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                answer = (False, error)
            answers.put(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    except (EOFError, ConnectionResetError):
        return


def _send(pipe: Connection, answers: SimpleQueue[bytes]) -> None:
    """Send results from a thread, because a pipe takes only 64 KB and would block the worker."""
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send_bytes(answers.get())


_FEW_TO_SCORE = 4 * BATCH_MESSAGES
_TASK = BATCHES_PER_SNAPSHOT * BATCH_MESSAGES


class Scored(NamedTuple):
    """The verdict on one message, or the error that prevented it."""

    path: str
    verdict: Verdict | None
    clues: list[Clue]
    error: str = ""
    ruling: Ruling | None = None
    """what a list of senders decides instead, if it was asked"""


def verdict_as_dict(path: str, verdict: Verdict, clues: Sequence[Clue]) -> dict[str, Any]:
    """Return a verdict as values that JSON can represent."""
    facts = {
        "path": path,
        "id": verdict.digest.hex(),
        "label": verdict.label,
        "probability": verdict.probability,
        "log_odds": verdict.log_odds,
        "decision": verdict.decision,
        "evidence": verdict.evidence,
        "clues": [clue._asdict() for clue in clues],
    }
    own = verdict.own_costs
    costs = {"of": own.of, **asdict(own.costs)} if own else None
    optional = {"reason": verdict.reason, "signature": verdict.signature, "costs": costs}
    if verdict.novelty.nats:
        optional["novelty"] = verdict.novelty._asdict() | {"threshold": verdict.threshold}
    return facts | {name: value for name, value in optional.items() if value}


class Scoring(NamedTuple):
    """Options of bulk scoring: worker processes, clues per message, local hosts, costs, target."""

    jobs: int = 0
    clues: int = 0
    local: LocalHosts | None = None
    costs: Costs | None = None
    one_in: int = ONE_IN
    pins: Callable[[Path], Pins] | None = None
    """opens the corrections of a home that wait; their messages are judged as those say"""
    senders: SenderList | None = None
    """the list of senders for all recipients; `score_paths` reads it"""


@dataclass(frozen=True, slots=True)
class _Scorer:
    """Called in a worker, it opens the model there and returns the worker's function."""

    home: Path
    options: Scoring

    def __call__(self) -> Callable[[list[MessageSpan]], list[Scored]]:
        model = _open(self.home, self.options)
        return lambda spans: _score(model, self.options, spans)


def _open(home: Path, options: Scoring) -> Filter:
    model = Filter.open(
        home,
        readonly=True,
        history=False,
        local=options.local,
        costs=options.costs,
        one_in=options.one_in,
    )
    model.pins = options.pins(home) if options.pins else None
    return model


def _site_list(model: Filter) -> SenderList | None:
    with model.store.read() as view:
        return view.senders(ListOwner("site").key)


def score_paths(
    home: Path, paths: Sequence[str], options: Scoring | None = None
) -> Iterator[Scored]:
    """Yield a verdict for every message under these paths, in their order.

    Each worker process opens the model, so only verdicts are sent back. A small number of files is
    scored in this process. Must not know terminals.
    """
    options = options or Scoring()
    with _open(home, options) as model:  # raises its errors before any worker starts
        options = options._replace(senders=_site_list(model))
        documents = model.recipe.documents
    found = [unit for path in paths for unit in units(path, documents=documents)]
    tasks = (found[start : start + _TASK] for start in range(0, len(found), _TASK))
    if len(found) <= _FEW_TO_SCORE or options.jobs == 1:
        with _open(home, options) as model:
            for spans in tasks:
                yield from _score(model, options, spans)
        return
    with Pool(_Scorer(home, options), options.jobs or cores()) as pool:
        for scored in pool.map(tasks):
            yield from scored


def score_each(
    model: Filter,
    paths: Sequence[str],
    clues: int,
    score: Callable[[bytes], Verdict],
    rule: Callable[[bytes], Ruling | None],
) -> Iterator[Scored]:
    """Yield a verdict for every message under these paths, as `score` and `rule` give it."""
    documents = model.recipe.documents
    for item in (item for path in paths for item in items(path, documents=documents)):
        if isinstance(item, Unreadable):
            yield Scored(item.name, None, [], item.reason)
        else:
            verdict = score(item.raw)
            shown = verdict.clues(clues) if clues else []
            yield Scored(item.name, verdict, shown, ruling=rule(item.raw))


def _score(model: Filter, options: Scoring, spans: list[MessageSpan]) -> list[Scored]:
    documents = model.recipe.documents
    read = [read_unit(unit, documents=documents) for unit in spans]
    raws = [item.raw for item in read if isinstance(item, SourceMessage)]
    verdicts = model.score_many(raws)
    found = []
    for item in read:
        if isinstance(item, Unreadable):
            found.append(Scored(item.name, None, [], item.reason))
            continue
        verdict = next(verdicts)
        shown = verdict.clues(options.clues) if options.clues else []
        # Without its explanation a verdict is small and can be pickled.
        small = replace(verdict, _explain=None)
        ruling = _ruling(options, item.raw, model.reader.local)
        found.append(Scored(item.name, small, shown, ruling=ruling))
    return found


def _ruling(options: Scoring, raw: bytes, local: LocalHosts) -> Ruling | None:
    if options.senders is None:
        return None
    return ruling_of([options.senders], evidence_of(raw, local))


BATCH = 2048
"""Messages in a transaction. While 15,000 messages are learnt, all processes together have 226 MB
of private pages, with 6,144 messages 308 MB; the time is the same, and the file too, once it is
trimmed. The transaction's pages and its requests, which may have to run again, are what grows."""
CHUNK = 256
"""Messages learnt together within a transaction, while the next ones are parsed: 171 us a message
with 256, 512 and 1,024 of them, 192 with 128."""
_FEW_TO_TRAIN = 2 * BATCH_MESSAGES
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

    Each source is shuffled and the sources are interleaved in proportion to their sizes, the same
    on every run: training one label after the other classified 60 % of held-out ham as spam.
    Workers parse on all cores; meanwhile this process learns the parsed messages in order, in
    transactions of 2,048 messages. Other writers of the model wait a second or two for the end of a
    transaction. Memory does not grow with the corpus, except for its file names.
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
    few = len(order) <= _FEW_TO_TRAIN
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
        packer = Packer(self.recipe)

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
