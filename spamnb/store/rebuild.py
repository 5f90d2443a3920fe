"""Rebuild a model from its checkpoint and its events, and replace the old one.

`copy_model` writes the checkpoint as a new model in a temporary folder, calls a function that adds
events to it (`replay` applies them unchanged), and verifies it; `put_copy` renames it into place.
Other processes may read the model all the time; a kill at any moment leaves the old file or the new
one. The old file stays in the folder under another name, as a backup that `maintenance.restore`
accepts.

Must not know why a model is rebuilt. Invariant: replaying all events gives the old model, with all
numbers and texts; only a feature that was removed and learnt again may have its newer text.
Failure: RefusedError if the model is no longer the one that was copied, else what reading and
applying raise; the model is unchanged then.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event, Ids, Recipe, person_of_key
from spamnb.core.policy.senders import ListOwner
from spamnb.errors import (
    RefError,
    RefusedError,
    StoreDamagedError,
    StoreFullError,
    StoreMissingError,
)
from spamnb.store.apply_events import Replay
from spamnb.store.contract import MessageState, ReadView, Store, WriteView, packed
from spamnb.store.files import refused, sync_folder
from spamnb.store.lmdb.environment import Environment, sound
from spamnb.store.lmdb.sharing import DATA_FILE, EnvironmentConfig
from spamnb.store.lmdb.store import open_store
from spamnb.store.maintenance import Pairs, fill, prove, put_in_place, shrink, temporary_folder
from spamnb.store.rows.codec import decode_state, encode_recipe, encode_state
from spamnb.store.rows.logged_rows import LOG_KEY, LogState
from spamnb.store.rows.personal_table import BASE, LIVE
from spamnb.store.rows.sender_table import SENDERS, encode_senders
from spamnb.store.rows.vocabulary import BucketLayout
from spamnb.store.size_limit import room_for_copy
from spamnb.store.table_views import (
    BASE_TOTALS_KEY,
    FORMAT,
    FORMAT_KEY,
    LAYOUT_KEY,
    RECIPE_KEY,
    TOTALS_KEY,
    TableReadView,
    Tables,
)

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
    """
    with closing(open_store(folder, readonly=True)) as old, old.environment.read() as tables:
        view = TableReadView(Tables(**tables), old.recipe)
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
        found = _state(folder, TableReadView(Tables(**tables), old.recipe))
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
        state = first.get(digest) or decode_state(value)
        if state.folded:
            yield digest, encode_state(state)


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
