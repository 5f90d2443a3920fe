"""A model made anew from its checkpoint and its events, and put in the old one's place.

`rebuild` lays the checkpoint out as a model beside the old one, lets the caller bring events into
it (`replay` applies them as they are), proves that it is whole, and renames it. So nobody may have
the model open, and a kill at any moment leaves the old file or the new one. The old file stays
beside the new one under a name of its own, a backup as `maintenance.restore` takes it.

Must not know why a model is rebuilt. Invariant: all events replayed give the model that was there,
every number and text of it; but a text whose feature had left and came back is the newer one.
Failure: StoreBusyError if the model is open somewhere, else what reading and applying raise; the
model is as it was then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from spamnb.core.features.extract import Words
from spamnb.core.model.events import Event, Ids, Recipe
from spamnb.core.model.training_rows import TrainingRows
from spamnb.errors import StoreMissingError
from spamnb.store.apply_events import event_ids
from spamnb.store.contract import MessageState, ReadView, Store, WriteView, packed
from spamnb.store.lmdb.environment import Environment
from spamnb.store.lmdb.sharing import DATA_FILE, MAP_SIZE, EnvironmentConfig, sync_folder
from spamnb.store.lmdb.store import LmdbStore, open_store, read_recipe
from spamnb.store.maintenance import Pairs, alone, beside, fill, prove, put_in_place
from spamnb.store.rows.codec import decode_live, encode_live, encode_recipe
from spamnb.store.rows.hash_buckets import BucketLayout
from spamnb.store.table_views import (
    BASE_TOTALS_KEY,
    FORMAT,
    FORMAT_KEY,
    LAYOUT_KEYS,
    RECIPE_KEY,
    TOTALS_KEY,
    TableReadView,
    Tables,
)

REPLAYED_AT_ONCE = 2048
"""Events in one transaction: some 100 MB of rows; a single one costs ten times as much."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Rebuilt(Generic[Result]):
    """What came of it, and where the old model is."""

    result: Result
    kept: Path


def rebuild(
    path: str | Path,
    run: Callable[[ReadView, Store], Result],
    remake: Callable[[Recipe], Recipe] = lambda recipe: recipe,
) -> Rebuilt[Result]:
    """Make the model anew from its checkpoint; `run` brings events of the old one into it."""
    folder = Path(path)
    data = folder / DATA_FILE
    if not data.exists():
        raise StoreMissingError(f"there is no model in {folder}")
    with alone(folder), beside(folder) as work_folder:
        environment = Environment(
            EnvironmentConfig(folder, Tables._fields, readonly=True, lock=False)
        )
        with closing(environment):
            environment.open_tables(create=False)
            old = LmdbStore(environment, read_recipe(environment), readonly=True)
            _lay(environment, work_folder, remake(old.recipe))
            with old.read() as view, closing(open_store(work_folder, limit_bytes=MAP_SIZE)) as new:
                _add_words(view, new)
                result = run(view, new)
        prove(work_folder, folder)
        kept = _keep(data)
        put_in_place(work_folder / DATA_FILE, data)
        return Rebuilt(result, kept)


def _lay(old: Environment, work_folder: Path, recipe: Recipe) -> None:
    """A model that holds what the checkpoint holds, and no texts yet."""
    new = Environment(EnvironmentConfig(work_folder, Tables._fields, sync=False, lock=False))
    with closing(new), old.read() as tables:
        new.open_tables(create=True)
        from_ = Tables(**tables)
        for name in ("features", "base"):
            fill(new, name, ((key, bytes(value)) for key, value in from_.base.scan()))
        view = TableReadView(from_, recipe)
        last_seq = view.base_totals().last_seq
        fill(new, "digests", _lines(from_, _first_lines(view) if last_seq else {}))
        older = (pair for pair in from_.mids.scan() if int.from_bytes(pair[0][8:]) <= last_seq)
        fill(new, "mids", ((key, bytes(digest)) for key, digest in older))
        fill(new, "meta", iter(sorted(_meta(from_, recipe).items())))
        new.sync()


def _meta(tables: Tables, recipe: Recipe) -> dict[bytes, bytes]:
    layout, totals = (bytes(tables.meta.get(key) or b"") for key in (_BASE_LAYOUT, BASE_TOTALS_KEY))
    return {
        FORMAT_KEY: FORMAT.to_bytes(2, "little"),
        RECIPE_KEY: encode_recipe(recipe),
        TOTALS_KEY: totals,
        BASE_TOTALS_KEY: totals,
        LAYOUT_KEYS["features"]: layout,
        _BASE_LAYOUT: layout,
        LAYOUT_KEYS["words"]: BucketLayout().encode(),
    }


_BASE_LAYOUT = LAYOUT_KEYS["base"]


def _lines(tables: Tables, first: dict[bytes, MessageState]) -> Pairs:
    """The lines of digests as they were at the checkpoint."""
    for digest, value in tables.digests.scan():
        line = first.get(digest) or decode_live(value)
        if line.folded:
            yield digest, encode_live(line)


def _first_lines(view: ReadView) -> dict[bytes, MessageState]:
    """What the checkpoint holds of messages that kept events go on with."""
    last = view.base_totals().last_seq
    lines: dict[bytes, MessageState] = {}
    for event in view.events():
        if event.digest not in lines:
            folded = 0 < event.previous <= last
            lines[event.digest] = MessageState(event.before, event.previous, folded=folded)
    return lines


def _add_words(old: ReadView, new: Store) -> None:
    """The texts of the checkpoint's features, as far as they are still known."""
    for ids, _ in old.base_features():
        new.transact(partial(_put_words, texts=texts_of(old, ids)))


def _put_words(view: WriteView, texts: Words) -> None:
    view.put_words(texts)


def texts_of(view: ReadView, ids: Ids) -> Words:
    """The texts of those of these features that have one."""
    return packed(word for word in view.words(ids) if word is not None)


def replay(events: Iterable[Event], texts: ReadView, new: Store) -> int:
    """Apply events as they are, some thousand in a transaction; how many."""
    rest: Iterator[Event] = iter(events)
    done = 0
    while batch := list(islice(rest, REPLAYED_AT_ONCE)):
        new.transact(partial(_apply, batch=batch, texts=texts))
        done += len(batch)
    return done


def _apply(view: WriteView, batch: list[Event], texts: ReadView) -> None:
    ids = np.unique(np.concatenate([event_ids(event) for event in batch]))
    training_rows = TrainingRows(view.totals(), ids, view.gather(ids))
    for event in batch:
        training_rows.apply(event)
        training_rows.totals.last_seq = event.seq
    view.append(*batch)
    view.scatter(ids, training_rows.to_records())
    view.put_totals(training_rows.totals)
    view.put_words(texts_of(texts, training_rows.new_ids()))


def _keep(data: Path) -> Path:
    """A second name for the file that will be replaced."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    kept = data.with_name(f"before-{stamp}.mdb")
    os.link(data, kept)
    sync_folder(data.parent)
    return kept


__all__ = ["Rebuilt", "rebuild", "replay", "texts_of"]
