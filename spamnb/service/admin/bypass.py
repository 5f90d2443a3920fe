"""The bypass: while a file exists in the home, all mail is delivered unscanned.

A file persists over restarts and works without a running daemon. The supervisor copies it to the
shared state each second. Failure: StoreAccessError if the file cannot be written.
"""

from __future__ import annotations

from pathlib import Path

from spamnb.errors import StoreAccessError
from spamnb.store.files import refused

FILE = "bypass"


def bypass_is_on(home: Path, *, before: bool | None = None) -> bool:
    """Return True if the file exists; on a disk error return `before`, or raise if it is None."""
    try:
        return (home / FILE).exists()
    except OSError as error:
        if before is None:
            raise refused(error, home / FILE) from error
        return before


def turn_bypass(home: Path, *, on: bool) -> None:
    """Create or remove the file."""
    try:
        if on:
            (home / FILE).touch(0o600)
        else:
            (home / FILE).unlink(missing_ok=True)
    except OSError as error:
        raise StoreAccessError(
            f"the bypass of {home} cannot be changed: {error.strerror}",
            hint="only the home's owner and root can change it",
        ) from error
