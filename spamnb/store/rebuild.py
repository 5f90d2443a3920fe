"""Rebuild a model from its checkpoint and its events, and replace the old one.

`rebuild` writes the checkpoint as a new model in a temporary folder, calls a function that adds
events to it (`replay` applies them unchanged), verifies it, and renames it into place. No process
may have the model open; a kill at any moment leaves the old file or the new one. The old file stays
in the folder under another name, as a backup that `maintenance.restore` accepts.

Must not know why a model is rebuilt. Invariant: replaying all events gives the old model, with all
numbers and texts; only a feature that was removed and learnt again may have its newer text.
Failure: StoreBusyError if the model is open, else what reading and applying raise; the model is
unchanged then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Generic, TypeVar

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event, Ids, Recipe, person_of_key
from spamnb.errors import StoreMissingError
from spamnb.store.apply_events import Replay
from spamnb.store.contract import MessageState, ReadView, Store, WriteView, packed
from spamnb.store.files import sync_folder
from spamnb.store.lmdb.environment import Environment
from spamnb.store.lmdb.sharing import DATA_FILE, MAP_SIZE, EnvironmentConfig
from spamnb.store.lmdb.store import LmdbStore, open_store, read_recipe
from spamnb.store.maintenance import Pairs, exclusive, fill, prove, put_in_place, temporary_folder
from spamnb.store.rows.codec import decode_state, encode_recipe, encode_state
from spamnb.store.rows.logged_rows import LOG_KEY, LogState
from spamnb.store.rows.personal_table import BASE, LIVE
from spamnb.store.rows.vocabulary import BucketLayout
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

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Rebuilt(Generic[Result]):
    """The result of the caller's function, and the path of the old model's file."""

    result: Result
    kept: Path


def rebuild(
    path: str | Path,
    run: Callable[[ReadView, Store], Result],
    remake: Callable[[Recipe], Recipe] = lambda recipe: recipe,
    without: int = 0,
) -> Rebuilt[Result]:
    """Rebuild a model from its checkpoint; `run` adds events of the old model to the new one.

    `without`: a person who is left out of the checkpoint.
    """
    folder = Path(path)
    data = folder / DATA_FILE
    if not data.exists():
        raise StoreMissingError(f"there is no model in {folder}", hint="check --home")
    with exclusive(folder), temporary_folder(folder) as work_folder:
        environment = Environment(
            EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False)
        )
        with closing(environment):
            environment.open_tables(create=False)
            old = LmdbStore(environment, read_recipe(environment), readonly=True)
            _write_checkpoint(environment, work_folder, remake(old.recipe), without)
            with old.read() as view, closing(open_store(work_folder, limit_bytes=MAP_SIZE)) as new:
                _add_words(view, new)
                result = run(view, new)
        prove(work_folder, folder)
        kept = _keep(data)
        put_in_place(work_folder / DATA_FILE, data)
        return Rebuilt(result, kept)


def _write_checkpoint(old: Environment, work_folder: Path, recipe: Recipe, without: int) -> None:
    """Write the checkpoint as a new model, still without texts."""
    new = Environment(EnvironmentConfig(work_folder, Tables._fields, sync=False, lock=False))
    with closing(new), old.read() as tables:
        new.open_tables(create=True)
        from_ = Tables(**tables)
        for name in ("features", "base"):
            fill(new, name, ((key, bytes(value)) for key, value in from_.base.scan()))
        view = TableReadView(from_, recipe)
        last_seq = view.base_totals().last_seq
        states = _states(from_, _first_states(view) if last_seq else {})
        others = (pair for pair in states if not without or person_of_key(pair[0]) != without)
        fill(new, "digests", others)
        older = (pair for pair in from_.mids.scan() if int.from_bytes(pair[0][8:]) <= last_seq)
        fill(new, "mids", ((key, bytes(digest)) for key, digest in older))
        meta = _meta(from_, recipe)
        for state in (LIVE, BASE):
            meta.pop(state + without.to_bytes(8), None)
        fill(new, "meta", iter(sorted(meta.items())))
        new.sync()


def _meta(tables: Tables, recipe: Recipe) -> dict[bytes, bytes]:
    totals = bytes(tables.meta.get(BASE_TOTALS_KEY) or b"")
    return _base_persons(tables) | {
        FORMAT_KEY: FORMAT.to_bytes(2, "little"),
        RECIPE_KEY: encode_recipe(recipe),
        TOTALS_KEY: totals,
        BASE_TOTALS_KEY: totals,
        LAYOUT_KEY: BucketLayout().encode(),
        LOG_KEY: LogState.of_new_model().encode(),
    }


def _base_persons(tables: Tables) -> dict[bytes, bytes]:
    """Return the entries of the persons at the checkpoint, as live ones and as the checkpoint's."""
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
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    kept = data.with_name(f"before-{stamp}.mdb")
    os.link(data, kept)
    sync_folder(data.parent)
    return kept
