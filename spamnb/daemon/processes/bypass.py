"""The bypass: a file in the home says that all mail passes unscanned.

A file, so that it holds over restarts and can be turned with every process of ours dead; the
supervisor mirrors it on the board each second, and whoever turns it may do that at once. Failure:
StoreAccessError where the file cannot be written.
"""

from __future__ import annotations

from pathlib import Path

from spamnb.daemon.processes.shared_state import SharedState
from spamnb.errors import StoreAccessError
from spamnb.store.lmdb.sharing import refused

FILE = "bypass"


def bypass_is_on(home: Path, *, before: bool | None = None) -> bool:
    """Whether the file is there; where the disk does not say, as before, or an error."""
    try:
        return (home / FILE).exists()
    except OSError as error:
        if before is None:
            raise refused(error, home / FILE) from error
        return before


def turn_bypass(home: Path, shared: SharedState | None = None, *, on: bool) -> None:
    """Make or remove the file, and tell the board, if we have it."""
    try:
        if on:
            (home / FILE).touch(0o600)
        else:
            (home / FILE).unlink(missing_ok=True)
    except OSError as error:
        raise StoreAccessError(
            f"the bypass of {home} cannot be turned: {error.strerror}",
            hint="it is for the home's owner and root",
        ) from error
    if shared is not None:
        shared.bypass = on
