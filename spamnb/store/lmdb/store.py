"""The contract in LMDB: a model in a folder, as `views` over the tables of an environment.

Knows neither pages nor shelves (`views`) nor how the engine is kept healthy (`lmdb_environment`).
A model is durable when a write block ends: the environment is opened with sync on, writemap off.
Invariants: those of `contract`. Failure: errors of the StoreError family; BugError for misuse.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from spamnb.core.model.events import Recipe
from spamnb.errors import (
    BugError,
    StoreAccessError,
    StoreDamagedError,
    StoreMissingError,
    StoreVersionError,
)
from spamnb.store.contract import ReadView, WriteView
from spamnb.store.lmdb.environment import Environment, release, share
from spamnb.store.lmdb.sharing import (
    MAP_SIZE,
    EnvironmentConfig,
    holds_data,
    make_folder,
    sync_folder,
)
from spamnb.store.lmdb.table import LmdbTable
from spamnb.store.rows.codec import decode_recipe, row_type
from spamnb.store.rows.row_cache import RowCache
from spamnb.store.table_views import (
    FORMAT,
    FORMAT_KEY,
    RECIPE_KEY,
    TableReadView,
    Tables,
    TableWriteView,
    found,
)

Result = TypeVar("Result")


class LmdbStore:
    """One model in a folder. Made by `open_store`."""

    def __init__(self, environment: Environment, recipe: Recipe, *, readonly: bool) -> None:
        self._environment: Environment | None = environment
        self._recipe = recipe
        self._readonly = readonly
        self._page_bytes = environment.page_bytes
        self._recall = RowCache(row_type(len(recipe.labels)))

    @property
    def recipe(self) -> Recipe:
        """What the model is made of."""
        return self._recipe

    @property
    def environment(self) -> Environment:
        """The environment, for backups and measurements."""
        if self._environment is None:
            raise BugError("a store is used before it is closed, not after")
        return self._environment

    @contextlib.contextmanager
    def read(self) -> Iterator[ReadView]:
        """A snapshot."""
        with self.environment.read() as tables:
            yield TableReadView(Tables(**tables), self._recipe, self._recall)

    @contextlib.contextmanager
    def write(self) -> Iterator[WriteView]:
        """The writer's transaction."""
        self._writable()
        with self.environment.write() as tables:
            view = TableWriteView(Tables(**tables), self._recipe, self._page_bytes)
            yield view
            view.finish()

    def transact(self, run: Callable[[WriteView], Result]) -> Result:
        """Run a function in a write transaction, again if the map had to grow on the way."""
        self._writable()

        def body(tables: dict[str, LmdbTable]) -> Result:
            view = TableWriteView(Tables(**tables), self._recipe, self._page_bytes)
            result = run(view)
            view.finish()
            return result

        return self.environment.transact(body)

    def _writable(self) -> None:
        if self._readonly:
            raise StoreAccessError("the store was opened read-only")

    @property
    def limit_bytes(self) -> int:
        """What the file may grow to."""
        return self.environment.limit_bytes

    def close(self) -> None:
        """Let go."""
        environment, self._environment = self._environment, None
        if environment is not None:
            release(environment)


def open_store(
    path: str | Path,
    *,
    create: Recipe | None = None,
    readonly: bool = False,
    map_size: int = MAP_SIZE,
    limit_bytes: int = 0,
) -> LmdbStore:
    """Open the model in a folder; make one with the recipe `create` if there is none.

    A model that is there keeps its own recipe, whatever `create` says. Without a limit the disk
    gives one (`room`).
    """
    folder = Path(path)
    there = holds_data(folder)
    if not there and create is None:
        raise StoreMissingError(f"there is no model in {folder}", hint="train one first")
    if not there:
        make_folder(folder)
    plan = EnvironmentConfig(
        folder, Tables._fields, readonly, map_size, limit_bytes, disk_share=True
    )
    environment, fresh = _shared(plan, there=there, create=create is not None)
    try:
        if fresh and create is not None:
            environment.transact(lambda tables: _found(tables, create))
            sync_folder(folder)
        recipe = read_recipe(environment)
        return LmdbStore(environment, recipe, readonly=readonly)
    except BaseException:
        release(environment)
        raise


def _shared(plan: EnvironmentConfig, *, there: bool, create: bool) -> tuple[Environment, bool]:
    """The environment, and whether its model may have to be made.

    Who was killed while making a model leaves a file without tables, or tables without a recipe:
    whoever may make one goes on where it ended.
    """
    if there:
        try:
            environment = share(plan, create=False)
        except StoreMissingError:
            if not create:
                raise
        else:
            return environment, create and not has_recipe(environment)
    return share(plan, create=True), True


def has_recipe(environment: Environment) -> bool:
    """Whether the model was made to its end."""
    with environment.read() as tables:
        return tables["meta"].get(RECIPE_KEY) is not None


def _found(tables: dict[str, LmdbTable], recipe: Recipe) -> None:
    """Make a new model, unless another process was faster."""
    if tables["meta"].get(RECIPE_KEY) is None:
        found(Tables(**tables), recipe)


def read_recipe(environment: Environment) -> Recipe:
    """The recipe of a model of this version."""
    with environment.read() as tables:
        written = tables["meta"].get(FORMAT_KEY)
        if written is None:
            raise StoreMissingError(f"{environment.plan.path} holds a database that is no model")
        version = int.from_bytes(written, "little")
        if version != FORMAT:
            raise StoreVersionError(
                f"the model has format {version}, this program reads {FORMAT}",
                hint="use the program that wrote it, or export and import",
            )
        recipe = tables["meta"].get(RECIPE_KEY)
        if recipe is None:
            raise StoreDamagedError(f"{environment.plan.path} has lost its recipe")
        return decode_recipe(recipe)
