"""Replace the history by one with changed entries, so that nothing of the old ones is left.

The new history is written beside the old one and renamed into its place. No process may have the
history open. A kill leaves the old history or the new one; after a kill between the two renames,
the next call completes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.store.files import sync_folder
from spamnb.store.history.entry import HistoryEntry, decode_entry
from spamnb.store.history.limits import HistoryLimits
from spamnb.store.history.verdict_history import NAMES, History
from spamnb.store.journal import ChunkedValues
from spamnb.store.lmdb.environment import release, share
from spamnb.store.lmdb.sharing import EnvironmentConfig

_AT_ONCE = 1000

Change = Callable[[HistoryEntry], HistoryEntry | None]


def rewrite(folder: Path, limits: HistoryLimits, change: Change) -> int:
    """Write each entry as `change` returns it, or not at all for None; return how many changed."""
    fresh, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    if fresh.is_dir() and not folder.is_dir():
        fresh.rename(folder)  # after a kill between the two renames
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    if not folder.is_dir():
        return 0
    History.open(folder, limits).close()  # moves what is pending into the tables
    changed = 0

    def kept() -> Iterator[HistoryEntry]:
        nonlocal changed
        for entry in _oldest_first(folder):
            found = change(entry)
            changed += found is not entry
            if found is not None:
                yield found

    with closing(History.open(fresh, limits)) as history:
        rest = kept()
        while some := list(islice(rest, _AT_ONCE)):
            history.add(some)
    if changed:
        folder.rename(old)
        fresh.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(old)
    else:
        shutil.rmtree(fresh)
    return changed


def _oldest_first(folder: Path) -> Iterator[HistoryEntry]:
    environment = share(EnvironmentConfig(folder, NAMES, readonly=True), create=False)
    try:
        with environment.read() as tables:
            for _, data in ChunkedValues(tables["entries"]).up(0, None):
                with suppress(StoreDamagedError, StoreVersionError):
                    yield decode_entry(data)
    finally:
        release(environment)
