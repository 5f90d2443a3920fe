"""Check, compact, back up and rebuild a store.

`check` verifies any store of the contract; `compact`, `trim`, `backup` and `restore` work on a
whole model; `copy_model` and `put_copy` rebuild one from its checkpoint and events. A kill at any
moment leaves the old file or the new one; the next run removes temporary files. Failure:
StoreBusyError if the model is open, RefusedError instead of overwriting a file or if the model has
changed meanwhile, StoreDamagedError for an incomplete or inconsistent copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import (
    RefError,
    RefusedError,
    SpamnbError,
    StoreBusyError,
    StoreDamagedError,
    StoreFullError,
    StoreMissingError,
)
from spamnb.model.events import (
    NO_LABEL,
    Event,
    Ids,
    Recipe,
    Records,
    Totals,
    locate,
    person_of_key,
)
from spamnb.model.features import Words
from spamnb.model.persons import FilledPlaces, PersonalRows, filled_places
from spamnb.model.training_rows import TrainingRows
from spamnb.policy.senders import ListOwner
from spamnb.store.codec import (
    empty_rows,
    encode_recipe,
    no_records,
)
from spamnb.store.files import (
    LOCKED_BY_THEN_S,
    PART,
    as_caller,
    make_folder,
    open_named,
    refused,
    replacing,
    sync_file,
    sync_folder,
)
from spamnb.store.journal import EventTables, Journal, Pages, event_ids, named_ids
from spamnb.store.model_store import (
    DATA_FILE,
    LOCK_FILE,
    Environment,
    EnvironmentConfig,
    environments,
    holds_data,
    open_store,
    read_recipe,
    release,
    room_for_copy,
    share,
    sound,
)
from spamnb.store.person_tables import BASE, LIVE, SENDERS, encode_senders
from spamnb.store.rows import LOG_KEY, LogState
from spamnb.store.table_views import (
    BASE_TOTALS_KEY,
    FORMAT,
    FORMAT_KEY,
    LAYOUT_KEY,
    RECIPE_KEY,
    ROOM_KEY,
    TOTALS_KEY,
    ReadView,
    Replay,
    Store,
    Tables,
    WriteView,
)
from spamnb.store.values import MessageState, packed
from spamnb.store.vocabulary import BucketLayout

_MOST_NAMED = 5
"""faults reported of one kind, because a damaged store may have thousands"""


def refold(view: ReadView) -> tuple[Totals, Ids, Records]:
    """Return the checkpoint with all journal events applied: the live state must be equal to it."""
    totals = view.base_totals()
    base_ids, base = collect(view.base_features(), len(totals.messages))
    sets = [base_ids, *(event_ids(event) for event in view.events())]
    ids = np.unique(np.concatenate(sets))
    records = no_records(len(ids), len(totals.messages))
    at = np.searchsorted(ids, base_ids)
    records.n[at], records.w[at], records.day[at] = base.n, base.w, base.day
    training_rows = TrainingRows(totals, ids, records)
    for event in view.events():
        training_rows.apply(event)
        training_rows.totals.last_seq = event.seq
    records = training_rows.to_records()
    full = ~empty_rows(records)
    return (
        training_rows.totals,
        ids[full],
        Records(records.n[full], records.w[full], records.day[full]),
    )


def collect(blocks: Iterator[tuple[Ids, Records]], labels: int) -> tuple[Ids, Records]:
    """Return all blocks as one."""
    parts = list(blocks)
    if not parts:
        return np.zeros(0, np.uint64), no_records(0, labels)
    n, w, day = ([getattr(r, name) for _, r in parts] for name in ("n", "w", "day"))
    joined = Records(np.concatenate(n), np.concatenate(w), np.concatenate(day))
    return np.concatenate([i for i, _ in parts]), joined


def stale(view: ReadView, before_day: int, max_messages: int) -> Iterator[Ids]:
    """Yield features of few messages, last learnt before a day; `named` ones must not expire."""
    for ids, records in view.features():
        old = records.day < before_day
        few = records.n.sum(axis=1, dtype=np.uint64) <= max_messages
        if (old & few).any():
            yield ids[old & few]


def named(view: ReadView, ids: Ids) -> NDArray[np.bool_]:
    """Return which of these features a journal event names; its undo needs them."""
    found = np.zeros(len(ids), np.bool_)
    if len(ids):
        for event in view.events():
            at, there = locate(ids, named_ids(event))
            found[at[there]] = True
    return found


def check(view: ReadView) -> list[str]:
    """Return the inconsistencies of a store, one sentence each; empty for a consistent store.

    Works on any store of the contract. Memory, with two labels: about 80 bytes for each feature of
    the model and its journal, and 64 KB for one person at a time. Failure: what applying an event
    raises.
    """
    faults: list[str] = []
    labels = len(view.totals().messages)
    try:
        ids, records = collect(view.features(), labels)
        faults += _features(view, ids, records)
        faults += _sums(view.totals(), records)
        faults += _words(view, ids)
        faults += _indexes(view, labels)
        faults += _fold(view, ids, records)
        faults += _persons(view, labels)
        faults += _senders(view)
    except SpamnbError as error:
        faults.append(f"reading stopped: {error}")
    return faults


def check_sums(view: ReadView) -> list[str]:
    """Return where the sums of a fleet's host differ from its rows; see `RowSums`."""
    sums = view.sums()
    if sums is None or sums.same(view.scanned_sums()):
        return []
    return ["the sums by which the hosts of a fleet are compared are not those of the rows"]


def _features(view: ReadView, ids: Ids, records: Records) -> list[str]:
    faults = []
    if (ids[1:] <= ids[:-1]).any():
        faults.append("features are not in order of their ids")
    if (count := int(empty_rows(records).sum())) > 0:
        faults.append(f"{count} features hold neither counts nor corrections")
    again = view.gather(np.unique(ids))
    if not faults and not _same(again, records):
        faults.append("features read by id differ from features read in order")
    return faults


def _sums(totals: Totals, records: Records) -> list[str]:
    n = records.n.astype(np.int64)
    known = n.any(axis=1)
    faults = []
    if totals.known != int(known.sum()):
        faults.append(f"V is {totals.known}, but {int(known.sum())} features are known")
    if not np.array_equal(totals.tokens, n.sum(axis=0)):
        faults.append(f"T is {totals.tokens.tolist()}, but counts sum to {n.sum(axis=0).tolist()}")
    for label, line in enumerate(totals.histogram):
        real = np.bincount(n[known, label], minlength=len(line))
        if not np.array_equal(_trimmed(real), _trimmed(line)):
            faults.append(f"the histogram of label {label} does not agree with the counts")
    return faults


def _words(view: ReadView, ids: Ids) -> list[str]:
    faults = []
    of = np.fromiter((word.id for word in view.all_words()), np.uint64)
    if (of[1:] <= of[:-1]).any():
        faults.append("words are not in order of their ids, each once")
    lost = of[~locate(ids, of)[1]]
    faults += [f"the word of id {i:016x} has no feature" for i in lost[:_MOST_NAMED].tolist()]
    return faults


def _indexes(view: ReadView, labels: int) -> list[str]:
    lines: dict[bytes, MessageState] = {}
    faults = []
    last = view.base_totals().last_seq
    for event in view.events():
        if event.seq != last + 1:
            faults.append(f"event {event.seq} follows event {last}")
        last = event.seq
        if event.digest:
            lines[event.label_key] = MessageState(event.after, event.seq, folded=False)
            faults += _message_id(view, event)
    if last != view.totals().last_seq:
        faults.append(f"the last event is {last}, the totals say {view.totals().last_seq}")
    wrong = [key for key, line in lines.items() if view.live(key) != line]
    faults += [
        f"the state of digest {key.hex()} is not its last event" for key in wrong[:_MOST_NAMED]
    ]
    for label in range(labels):
        want = sorted(line.seq for line in lines.values() if line.label == label != NO_LABEL)
        if list(_kept(view, label)) != want:
            faults.append(f"the live events of label {label} are not those of the journal")
    return faults[: 4 * _MOST_NAMED]


def _message_id(view: ReadView, event: Event) -> list[str]:
    if not event.message_id:
        return []
    digests = view.digests(event.message_id)
    if event.digest in digests or len(digests) >= 64:
        return []
    return [f"event {event.seq} is not found by its message id"]


def _kept(view: ReadView, label: int) -> Iterator[int]:
    seq = view.live_at(label, 0)
    last = 0
    while seq > last:
        yield seq
        last, seq = seq, view.live_at(label, seq + 1)


def _fold(view: ReadView, ids: Ids, records: Records) -> list[str]:
    totals, live = refold(view), view.totals()
    folded, want_ids, want = totals
    if not np.array_equal(ids, want_ids):
        wrong = np.setxor1d(ids, want_ids)
        return [f"{len(wrong)} features are in the model or in its journal only, not in both"]
    faults = []
    if not _same(records, want):
        differ = (records.n != want.n).any(axis=1) | (records.w != want.w).any(axis=1)
        wrong = ids[differ | (records.day != want.day)]
        faults.append(f"{len(wrong)} features do not hold what the journal says")
    for name in ("messages", "tokens", "bias", "temperatures", "known", "last_seq"):
        a, b = getattr(live, name), getattr(folded, name)
        if not np.array_equal(a, b):
            faults.append(f"{name} is {_plain(a)}, the journal says {_plain(b)}")
    lines = zip(live.histogram, folded.histogram, strict=True)
    if not all(np.array_equal(_trimmed(a), _trimmed(b)) for a, b in lines):
        faults.append("the histogram is not what the journal says")
    return faults


def _persons(view: ReadView, labels: int) -> list[str]:
    """Compare the corrections of each person with the checkpoint and the journal."""
    events: dict[int, list[int]] = {}
    for event in view.events():
        if event.person:
            events.setdefault(event.person, []).append(event.seq)
    base, live = dict(view.base_persons()), dict(view.persons())
    wrong = []
    # One person at a time: all places of a person take 64 KB.
    for person in events.keys() | base.keys() | live.keys():
        rows, want = PersonalRows(labels, base.get), base.get(person)
        for seq in events.get(person, ()):
            if (event_again := view.event(seq)) is not None:
                rows.apply(event_again)
        for _, changed in rows.changed():
            want = filled_places(changed) if changed else None
        if not _same_personal(want, live.get(person)):
            wrong.append(person)
    return [
        f"the corrections of person {person:016x} are not what the journal says"
        for person in sorted(wrong)[:_MOST_NAMED]
    ]


def _senders(view: ReadView) -> list[str]:
    """Read each entry of each list of senders."""
    faults = []
    for owner, senders in view.sender_lists():
        try:
            entries = [one.sender for one in senders]
            is_right = entries == sorted(set(entries)) and owner[:1] == senders.kind[:1].encode()
        except StoreDamagedError:
            is_right = False
        if not is_right:
            faults.append(f"the list of senders of {senders.kind} {senders.name} is damaged")
    return faults[:_MOST_NAMED]


def _same_personal(a: FilledPlaces | None, b: FilledPlaces | None) -> bool:
    if a is None or b is None:
        return a is b
    return np.array_equal(a.places, b.places) and np.array_equal(a.values, b.values)


def _same(a: Records, b: Records) -> bool:
    pairs = ((a.n, b.n), (a.w, b.w), (a.day, b.day))
    return all(np.array_equal(x, y) for x, y in pairs)


def _trimmed(line: NDArray[np.int64]) -> list[int]:
    return list(map(int, np.trim_zeros(line, "b")))


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


_PORTION = 1 << 25
"""bytes written in one transaction of a rewrite: limits LMDB's memory"""

LEAST_FREE = 1024
"""minimum number of free pages for `trim`: fewer are not worth two syncs of 5 ms"""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Pairs = Iterator[tuple[bytes, bytes]]


def compact(path: str | Path) -> tuple[int, int]:
    """Rewrite a model without gaps; return the file's size before and after.

    Raises StoreBusyError if any process has the model open.

    `compact` writes a new file in key order and replaces the old one. Random growth leaves pages
    two thirds full, and copy-on-write leaves a file of two to three times its live pages, which
    LMDB never shrinks. Rewriting in place, in one transaction, does not help: the freed pages stay
    in the file (measured after training from empty: 2.6 times the live pages; the new file has
    1.0). No process may have the model open meanwhile; a lock ensures it. `trim` copies the used
    pages unchanged if that saves enough; each training ends with `trim`.
    """
    folder = Path(path)
    data = folder / DATA_FILE
    if not holds_data(folder):
        raise StoreMissingError(f"there is no model in {folder}", hint="train one first")
    with exclusive(folder), temporary_folder(folder) as work_folder:
        before = data.stat().st_size
        old = Environment(EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False))
        new = Environment(EnvironmentConfig(work_folder, Tables._fields, sync=False, lock=False))
        try:
            old.open_tables(create=False)
            new.open_tables(create=True)
            _rewrite(old, new, read_recipe(old))
            new.sync()
        finally:
            old.close()
            new.close()
        put_in_place(work_folder / DATA_FILE, data)
        return before, data.stat().st_size


def trim(path: str | Path) -> bool:
    """Remove free pages if there are more than half as many as used ones; return whether it did.

    Training a model again leaves as many free pages as it had pages. LMDB rewrites the list of free
    pages with every message that is learnt later: in a file with three fifths of free pages, 60
    pages in addition to the 200 that change. Raises StoreBusyError if the model is open.
    """
    folder = Path(path)
    with exclusive(folder):
        old = Environment(EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False))
        with closing(old):
            old.open_tables(create=False)
            live = old.live_pages()
            if old.pages() <= live + max(live // 2, LEAST_FREE):
                return False
            _replace_by_used(old)
        return True


def shrink(folder: Path) -> None:
    """Copy the used pages of a model that no process has open, unchanged."""
    plan = EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False)
    with closing(Environment(plan)) as old:
        _replace_by_used(old)


def _replace_by_used(old: Environment) -> None:
    folder = old.config.path
    with temporary_folder(folder) as work_folder:
        _write_private(work_folder / DATA_FILE, old.copy_to)
        put_in_place(work_folder / DATA_FILE, folder / DATA_FILE)


def _rewrite(old: Environment, new: Environment, recipe: Recipe) -> None:
    with old.read() as tables:
        from_ = Tables(**tables)
        fill(new, "features", ReadView(from_, recipe).segments())
        for name in ("words", "base", "digests", "mids", "kept", "meta"):
            fill(new, name, ((key, bytes(value)) for key, value in tables[name].scan()))
        pages = Pages(new.page_bytes, 0)
        journal = Journal(from_.journal, EventTables(from_.meta, {}))
        with new.write() as to:
            table = journal.table_in(EventTables(to["meta"], {}))
        events = journal.encoded(table)
        fill(new, "journal", (pair for seq, data in events for pair in pages.chunks(seq, data)))
        log = LogState.decode(from_.meta.get(LOG_KEY))
    with new.write() as tables:
        tables["meta"].put(ROOM_KEY, pages.room.to_bytes(4, "little"))
        tables["meta"].put(LOG_KEY, log._replace(first=log.last).encode())


def fill(new: Environment, name: str, pairs: Pairs) -> None:
    """Write pairs in key order, some megabytes in a transaction."""
    first = next(pairs, None)
    while first is not None:
        with new.write() as tables:
            size = 0
            for key, value in itertools.chain([first], pairs):
                tables[name].put(key, value, append=True)
                size += len(value)
                if size > _PORTION:
                    break
        first = next(pairs, None)


def backup(path: str | Path, target: str | Path) -> int:
    """Copy a model, which may be in use, to one file; return its size. Replaces an existing file.

    The file is written with the rights of the caller (`store.files`).

    `backup` writes one consistent file. `restore` verifies the structure of a file's pages before
    LMDB opens it, and then its contents.
    """
    target = Path(target)
    with as_caller():
        if target.exists() and not target.is_file():
            raise RefusedError(
                f"{target} is not a regular file", hint="name a file that may be replaced"
            )
    if not holds_data(Path(path)):
        raise StoreMissingError(f"there is no model in {path}", hint="check --home")
    environment = share(EnvironmentConfig(Path(path), Tables._fields, readonly=True), create=False)
    try:
        with replacing(target) as handle:
            environment.copy_to(handle)
            return os.fstat(handle).st_size
    except OSError as error:
        raise refused(error, target) from error
    finally:
        release(environment)


def restore(source: str | Path, path: str | Path, *, overwrite: bool = False) -> None:
    """Create a model from a backup, or from another model's folder, after verifying it."""
    source, folder = Path(source), Path(path)
    with as_caller():
        file = source / DATA_FILE if source.is_dir() else source
        if not file.exists():
            raise StoreMissingError(f"there is no backup at {source}", hint="check the path")
    data = folder / DATA_FILE
    if data.exists() and not overwrite:
        raise RefusedError(
            f"there is a model in {folder} already", hint="choose another folder, or overwrite it"
        )
    make_folder(folder)
    with exclusive(folder), temporary_folder(folder) as work_folder:
        copy = work_folder / DATA_FILE
        _write_private(copy, lambda handle: _copy(file, handle))
        if copy.stat().st_size == 0 or not sound(copy):
            raise StoreDamagedError(
                f"{source} is not a complete backup", hint="use another backup file"
            )
        prove(work_folder, source)
        if data.exists() and not overwrite:
            raise RefusedError(
                f"another process made a model in {folder}", hint="choose another folder"
            )
        put_in_place(copy, data)


def prove(work_folder: Path, source: Path) -> None:
    """Open a copy and check its contents; StoreDamagedError if they are inconsistent."""
    store = open_store(work_folder, readonly=True)
    try:
        with store.read() as view:
            faults = check(view)
    finally:
        store.close()
    if faults:
        raise StoreDamagedError(
            f"{source} is inconsistent: {faults[0]}", hint="restore an older backup"
        )


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Run a block while no process has the environment at this path open, this one included.

    Each process that has it open holds a shared lock on the first byte of LMDB's lock file, so an
    exclusive lock shows that no process has it open; a process that opens it now waits. The block
    may replace the data file. At its end the lock file is created again, because its transaction
    counter would be wrong for another file, before the waiting processes continue. Until then the
    lock file is empty: if this process is killed, the waiting processes must not use the old
    counter, by which they would read an older state and overwrite the newest.
    """
    with environments.exclusive(path), ExitStack() as stack:
        try:
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            os.ftruncate(lock, 0)
        except BlockingIOError as error:
            raise StoreBusyError(
                f"the model in {path} is open in another process", hint="stop that process first"
            ) from error
        except OSError as error:
            raise refused(error, path) from error
        yield
        Environment(EnvironmentConfig(path, ())).close()


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Create a private temporary folder in `parent`, so that its files can be renamed into place.

    It is removed at the end, and locked while it is in use: the next call removes the unlocked
    folders of killed processes.
    """
    with ExitStack() as stack:
        try:
            _sweep(parent)
            made = Path(tempfile.mkdtemp(prefix=PART, dir=parent))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            handle = os.open(made, _FOLDER)
            stack.callback(os.close, handle)
            # Some network file systems cannot lock folders; then nothing is removed there either.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield made
        except OSError as error:
            raise refused(error, parent) from error


def _sweep(parent: Path) -> None:
    """Remove the temporary folders of killed processes."""
    for left in parent.glob(PART + "*"):
        with suppress(OSError), ExitStack() as stack:
            handle = os.open(left, _FOLDER)
            stack.callback(os.close, handle)
            about = os.fstat(handle)
            if about.st_uid == os.geteuid() and time.time() - about.st_mtime > LOCKED_BY_THEN_S:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)


def _write_private(path: Path, write: Callable[[int], None]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write(handle)
    finally:
        os.close(handle)


def _copy(file: Path, handle: int) -> None:
    with os.fdopen(open_named(file), "rb") as origin, open(handle, "wb", closefd=False) as copy:
        shutil.copyfileobj(origin, copy, 1 << 20)


def put_in_place(copy: Path, target: Path) -> None:
    """Rename a file to its final name, durably.

    The new file gets the old one's owner, because root may work on a model that a daemon serves as
    another user.
    """
    if os.geteuid() == 0:
        with suppress(FileNotFoundError):
            old = target.stat()
            os.chown(copy, old.st_uid, old.st_gid)
    sync_file(copy)
    copy.rename(target)
    sync_folder(target.parent)


REPLAYED_AT_ONCE = 2048
"""Events in one transaction, about 100 MB of rows; one event per transaction takes ten times as
long."""

KEPT_FILES = "before-*.mdb"
_KEPT_NAME = re.compile(r"before-\d{8}T\d{6}\.\d{6}\.mdb")
_STAMP = "%Y%m%dT%H%M%S.%f"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Rebuilt(Generic[Result]):
    """The result of the caller's function, and the path of the old model's file."""

    result: Result
    kept: Path


class CopiedState(NamedTuple):
    """The state of a model of which a copy was made."""

    device: int
    inode: int
    last_seq: int
    senders: str
    """digest of the lists of senders, which are changed without an event"""


class Change(NamedTuple, Generic[Result]):
    """How a copy differs from the model."""

    run: Callable[[ReadView, Store], Result]
    """adds events of the old model to the new one"""
    remake: Callable[[Recipe], Recipe] = lambda recipe: recipe
    without: int = 0
    """a person who is left out of the checkpoint, and has no list of senders any more"""


class Copied(NamedTuple, Generic[Result]):
    """The result of the caller's function, and the state of which the copy was made."""

    result: Result
    state: CopiedState


def rebuild(folder: Path, change: Change[Result]) -> Rebuilt[Result]:
    """Replace a model by `copy_model` of it."""
    with copy_folder(folder) as work_folder:
        copied = copy_model(folder, work_folder, change)
        return Rebuilt(copied.result, put_copy(work_folder, folder, copied.state))


@contextmanager
def copy_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder for a copy of the model in a folder."""
    if not (folder / DATA_FILE).exists():
        raise StoreMissingError(f"there is no model in {folder}", hint="check --home")
    with temporary_folder(folder) as work_folder:
        yield work_folder


def copy_model(folder: Path, work_folder: Path, change: Change[Result]) -> Copied[Result]:
    """Rebuild a model from its checkpoint, with events that the change adds.

    Other processes may use the model meanwhile; what they learn is not in the copy.

    `copy_model` writes the checkpoint as a new model in a temporary folder, calls a function that
    adds events to it (`replay` applies them unchanged), and verifies it; `put_copy` renames it into
    place. Other processes may read the model all the time; a kill at any moment leaves the old file
    or the new one. The old file stays in the folder under another name, as a backup that
    `maintenance.restore` accepts.

    Must not know why a model is rebuilt. Invariant: replaying all events gives the old model, with
    all numbers and texts; only a feature that was removed and learnt again may have its newer text.
    Failure: RefusedError if the model is no longer the one that was copied, else what reading and
    applying raise; the model is unchanged then.
    """
    with closing(open_store(folder, readonly=True)) as old, old.environment.read() as tables:
        view = ReadView(Tables(**tables), old.recipe)
        state, most = _state(folder, view), _most_bytes(old.environment)
        recipe = change.remake(old.recipe)
        _write_checkpoint(view, Tables(**tables), (work_folder, most), recipe, change.without)
        with closing(open_store(work_folder, limit_bytes=most)) as new:
            _add_words(view, new)
            result = change.run(view, new)
        count = old.environment.last_change()
    finish_copy(work_folder, folder, count)
    return Copied(result, state)


def copy_kept(folder: Path, work_folder: Path, name: str) -> CopiedState:
    """Copy an old model that was kept when a new one replaced it."""
    kept = folder / name
    if not _KEPT_NAME.fullmatch(name) or not kept.is_file():
        raise RefError(f"no model {name!r} is kept", hint=f"see {KEPT_FILES} in the home")
    with closing(open_store(folder, readonly=True)) as old, old.read() as view:
        state, room = _state(folder, view), room_for_copy(folder)
        count = old.environment.last_change()
    _require_room(kept.stat().st_size, room)
    shutil.copyfile(kept, work_folder / DATA_FILE)
    if not sound(work_folder):
        raise StoreDamagedError(f"{kept} is not a complete model", hint="use a backup")
    finish_copy(work_folder, folder, count)
    return state


def kept_files(folder: Path) -> list[Path]:
    """Return the models that were kept, newest first."""
    found = (path for path in folder.glob(KEPT_FILES) if _KEPT_NAME.fullmatch(path.name))
    return sorted(found, reverse=True)


def kept_since(kept: Path) -> datetime:
    """Return when a model was replaced."""
    return datetime.strptime(kept.stem, f"before-{_STAMP}").replace(tzinfo=UTC)


def _most_bytes(old: Environment) -> int:
    """Return how many bytes a copy may take; StoreFullError if it needs more than the disk has."""
    room = room_for_copy(old.config.path)
    _require_room(old.live_pages() * old.page_bytes, room)
    return room


def _require_room(needed: int, room: int) -> None:
    if room < needed:
        raise StoreFullError(
            f"a copy of the model takes {needed} bytes, the disk has room for {max(room, 0)}",
            hint="free disk space; a twentieth of the disk stays free for mail",
        )


def finish_copy(work_folder: Path, folder: Path, count: int) -> None:
    """Verify a copy, and give it the number of transactions of the model in a folder."""
    prove(work_folder, folder)
    if _copy_of(work_folder, Environment.last_change) > count:
        shrink(work_folder)
    _copy_of(work_folder, partial(_advance, count=count))


def put_copy(work_folder: Path, folder: Path, state: CopiedState) -> Path:
    """Replace a model by a finished copy of its present state; return the old file's new name.

    Other processes may have the model open for reading: they use the old file until they open the
    model again. LMDB's lock file has the number of the newest transaction of the data file, by
    which each process finds that transaction's page. So the copy gets the same number, while this
    process holds the write transaction; then one rename is the whole change, and the lock file fits
    both files.
    """
    data = folder / DATA_FILE
    with closing(open_store(folder)) as old, old.environment.held() as tables:
        found = _state(folder, ReadView(Tables(**tables), old.recipe))
        if found != state:
            learnt = found.last_seq - state.last_seq
            what = f"{learnt} events were learnt" if learnt > 0 else "the model was changed"
            raise RefusedError(f"{what} since the copy was made", hint="make a new one")
        count = old.environment.last_change()
        _copy_of(work_folder, partial(_advance, count=count))
        try:
            kept = _keep(data)
            put_in_place(work_folder / DATA_FILE, data)
        except OSError as error:
            raise refused(error, folder) from error
    return kept


def _state(folder: Path, view: ReadView) -> CopiedState:
    found = (folder / DATA_FILE).stat()
    lists = hashlib.blake2b(digest_size=16)
    for owner, senders in view.sender_lists():
        lists.update(owner + encode_senders(senders))
    return CopiedState(found.st_dev, found.st_ino, view.totals().last_seq, lists.hexdigest())


def _copy_of(work_folder: Path, run: Callable[[Environment], Result]) -> Result:
    """Run a function with the environment of a copy, which no other process has open."""
    copy = Environment(EnvironmentConfig(work_folder, Tables._fields, sync=False, lock=False))
    with closing(copy):
        copy.open_tables(create=False)
        result = run(copy)
        copy.sync()
        return result


def _advance(copy: Environment, count: int) -> None:
    """Write transactions without effect, 20 us each, until the newest has this number."""
    value = FORMAT.to_bytes(2, "little")
    while copy.last_change() < count:
        with copy.write() as tables:
            tables["meta"].put(FORMAT_KEY, value)


def _write_checkpoint(
    view: ReadView, from_: Tables, target: tuple[Path, int], recipe: Recipe, without: int
) -> None:
    """Write the checkpoint as a new model, still without texts; `target`: where, most bytes."""
    folder, most = target
    plan = EnvironmentConfig(folder, Tables._fields, limit_bytes=most, sync=False, lock=False)
    new = Environment(plan)
    with closing(new):
        new.open_tables(create=True)
        for name in ("features", "base"):
            fill(new, name, ((key, bytes(value)) for key, value in from_.base.scan()))
        last_seq = view.base_totals().last_seq
        states = _states(from_, _first_states(view) if last_seq else {})
        others = (pair for pair in states if not without or person_of_key(pair[0]) != without)
        fill(new, "digests", others)
        older = (pair for pair in from_.mids.scan() if int.from_bytes(pair[0][8:]) <= last_seq)
        fill(new, "mids", ((key, bytes(digest)) for key, digest in older))
        meta = _meta(from_, recipe)
        for state in (LIVE, BASE):
            meta.pop(state + without.to_bytes(8), None)
        meta.pop(SENDERS + ListOwner("person", id=without).key, None)
        fill(new, "meta", iter(sorted(meta.items())))
        new.sync()


def _meta(tables: Tables, recipe: Recipe) -> dict[bytes, bytes]:
    totals = bytes(tables.meta.get(BASE_TOTALS_KEY) or b"")
    senders = takewhile(lambda pair: pair[0].startswith(SENDERS), tables.meta.scan(SENDERS))
    lists = {key: bytes(value) for key, value in senders}
    return (
        _base_persons(tables)
        | lists
        | {
            FORMAT_KEY: FORMAT.to_bytes(2, "little"),
            RECIPE_KEY: encode_recipe(recipe),
            TOTALS_KEY: totals,
            BASE_TOTALS_KEY: totals,
            LAYOUT_KEY: BucketLayout().encode(),
            LOG_KEY: LogState.of_new_model().encode(),
        }
    )


def _base_persons(tables: Tables) -> dict[bytes, bytes]:
    """Return the entries of the checkpoint's persons, each as live one and as the checkpoint's."""
    found: dict[bytes, bytes] = {}
    for key, value in takewhile(lambda pair: pair[0].startswith(BASE), tables.meta.scan(BASE)):
        found[key] = found[LIVE + key[len(BASE) :]] = bytes(value)
    return found


def _states(tables: Tables, first: dict[bytes, MessageState]) -> Pairs:
    """Yield the message states at the checkpoint."""
    for digest, value in tables.digests.scan():
        state = first.get(digest) or MessageState.decode(value)
        if state.folded:
            yield digest, state.encode()


def _first_states(view: ReadView) -> dict[bytes, MessageState]:
    """Return the states at the checkpoint of the messages that have later events."""
    last = view.base_totals().last_seq
    states: dict[bytes, MessageState] = {}
    for event in view.events():
        if event.label_key not in states:
            folded = 0 < event.previous <= last
            states[event.label_key] = MessageState(event.before, event.previous, folded=folded)
    return states


def _add_words(old: ReadView, new: Store) -> None:
    """Copy the texts of the checkpoint's features that the old model still has."""
    for ids, _ in old.base_features():
        new.transact(partial(_put_words, texts=texts_of(old, ids)))


def _put_words(view: WriteView, texts: Words) -> None:
    view.put_words(texts)


def texts_of(view: ReadView, ids: Ids) -> Words:
    """Return the texts of these features, without those that have none."""
    return packed(word for word in view.words(ids) if word is not None)


def replay(events: Iterable[Event], texts: ReadView, new: Store) -> int:
    """Apply events unchanged, some thousand in a transaction; return how many."""
    rest: Iterator[Event] = iter(events)
    done = 0
    while batch := list(islice(rest, REPLAYED_AT_ONCE)):
        new.transact(partial(_apply, batch=batch, texts=texts))
        done += len(batch)
    return done


def _apply(view: WriteView, batch: list[Event], texts: ReadView) -> None:
    replaying = Replay(view, batch)
    for event in batch:
        replaying.apply(event)
    replaying.write(partial(texts_of, texts))


def _keep(data: Path) -> Path:
    """Give the old file a second name before it is replaced."""
    stamp = datetime.now(UTC).strftime(_STAMP)
    kept = data.with_name(f"before-{stamp}.mdb")
    os.link(data, kept)
    sync_folder(data.parent)
    return kept
