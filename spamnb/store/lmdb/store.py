"""A store in LMDB: a model in a folder.

Connects the views of `table_views` to the tables of an `Environment`. Changes are durable when a
write block ends: the environment is opened with sync on, writemap off. Invariants: those of
`contract`. Failure: StoreErrors; BugError for misuse.
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
from spamnb.store.files import make_folder, sync_folder
from spamnb.store.lmdb.environment import Environment, release, share
from spamnb.store.lmdb.sharing import MAP_SIZE, EnvironmentConfig, holds_data
from spamnb.store.lmdb.table import LmdbTable
from spamnb.store.rows.codec import decode_recipe
from spamnb.store.rows.logged_rows import RowCache
from spamnb.store.table_views import (
    FORMAT,
    FORMAT_KEY,
    RECIPE_KEY,
    TableReadView,
    Tables,
    TableWriteView,
    create_model,
)

Result = TypeVar("Result")


class LmdbStore:
    """The store of one model folder. Opened by `open_store`."""

    def __init__(self, environment: Environment, recipe: Recipe, *, readonly: bool) -> None:
        self._environment: Environment | None = environment
        self._recipe = recipe
        self._readonly = readonly
        self._page_bytes = environment.page_bytes

    @property
    def recipe(self) -> Recipe:
        """Return the model's recipe."""
        return self._recipe

    @property
    def environment(self) -> Environment:
        """Return the environment, for backups and measurements."""
        if self._environment is None:
            raise BugError("the store is closed")
        return self._environment

    def last_change(self) -> int:
        """Return a number that differs after each change."""
        return self.environment.last_change()

    @contextlib.contextmanager
    def read(self) -> Iterator[ReadView]:
        """Open a snapshot."""
        with self.environment.read() as tables:
            yield TableReadView(Tables(**tables), self._recipe, self._cache())

    @contextlib.contextmanager
    def write(self) -> Iterator[WriteView]:
        """Open the write transaction."""
        self._writable()
        with self.environment.write() as tables:
            view = self._write_view(tables)
            yield view
            view.finish()

    def transact(self, run: Callable[[WriteView], Result]) -> Result:
        """Run a function in a write transaction, again if the map had to grow."""
        self._writable()

        def body(tables: dict[str, LmdbTable]) -> Result:
            view = self._write_view(tables)
            result = run(view)
            view.finish()
            return result

        return self.environment.transact(body)

    def _write_view(self, tables: dict[str, LmdbTable]) -> TableWriteView:
        return TableWriteView(Tables(**tables), self._recipe, self._cache(), self._page_bytes)

    def _cache(self) -> RowCache:
        """Return the rows that this process keeps; they are valid until the map is moved."""
        mapped = self.environment.mapped
        cache: RowCache = mapped.get("rows") or mapped.setdefault("rows", RowCache())
        return cache

    def _writable(self) -> None:
        if self._readonly:
            raise StoreAccessError(
                f"the model in {self.environment.config.path} is open read-only",
                hint="open it without readonly to change it",
            )

    @property
    def limit_bytes(self) -> int:
        """Return the maximum size of the file."""
        return self.environment.limit_bytes

    def close(self) -> None:
        """Close the store; a second call does nothing."""
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
    """Open the model in a folder; create one with the recipe `create` if there is none.

    An existing model keeps its own recipe. `limit_bytes` 0 derives a limit from the disk
    (`size_limit`).
    """
    folder = Path(path)
    exists = holds_data(folder)
    if not exists and create is None:
        raise StoreMissingError(f"there is no model in {folder}", hint="train one first")
    if not exists:
        make_folder(folder)
    config = EnvironmentConfig(
        folder, Tables._fields, readonly, map_size, limit_bytes, disk_share=True
    )
    environment, incomplete = _shared(config, exists=exists, create=create is not None)
    try:
        if incomplete and create is not None:
            environment.transact(lambda tables: _create_once(tables, create))
            sync_folder(folder)
        recipe = read_recipe(environment)
        return LmdbStore(environment, recipe, readonly=readonly)
    except BaseException:
        release(environment)
        raise


def _shared(config: EnvironmentConfig, *, exists: bool, create: bool) -> tuple[Environment, bool]:
    """Return the environment, and whether its model may be missing or incomplete.

    A process killed while it creates a model leaves a file without tables, or tables without a
    recipe; the next process that may create one completes it.
    """
    if exists:
        try:
            environment = share(config, create=False)
        except StoreMissingError:
            if not create:
                raise
        else:
            return environment, create and not has_recipe(environment)
    return share(config, create=True), True


def has_recipe(environment: Environment) -> bool:
    """Return whether the model was created completely."""
    with environment.read() as tables:
        return tables["meta"].get(RECIPE_KEY) is not None


def _create_once(tables: dict[str, LmdbTable], recipe: Recipe) -> None:
    """Create a model, unless another process has created it meanwhile."""
    if tables["meta"].get(RECIPE_KEY) is None:
        create_model(Tables(**tables), recipe)


def read_recipe(environment: Environment) -> Recipe:
    """Return the model's recipe; StoreVersionError if another version wrote the model."""
    path = environment.config.path
    with environment.read() as tables:
        written = tables["meta"].get(FORMAT_KEY)
        if written is None:
            raise StoreMissingError(
                f"the LMDB database in {path} is not a spamnb model", hint="check --home"
            )
        version = int.from_bytes(written, "little")
        if version != FORMAT:
            raise StoreVersionError(
                f"the model in {path} has format {version}, this program reads {FORMAT}",
                hint="train a new model in another folder; the journal of this one is lost, and "
                "all training with mail that no longer exists",
            )
        recipe = tables["meta"].get(RECIPE_KEY)
        if recipe is None:
            raise StoreDamagedError(f"the model in {path} has no recipe", hint="restore a backup")
        return decode_recipe(recipe)
