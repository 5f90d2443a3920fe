"""The state of the webhooks of a home: a file that the console writes and the status reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.store.files import durable_write, make_folder, refused

_FILE = Path("console") / "webhooks.json"


class WebhookStanding(NamedTuple):
    """One webhook."""

    webhook: str
    waiting: int
    """events that the receiver has not taken yet"""
    dropped: int
    """events that were given up: too many waited, or the receiver was away for a day"""
    error: str
    """why the last attempt failed; empty if it did not"""


def write_standings(home: Path, standings: Sequence[WebhookStanding]) -> None:
    """Replace the file. Failure: StoreError."""
    path = home / _FILE
    make_folder(path.parent)
    try:
        durable_write(path, json.dumps([one._asdict() for one in standings]).encode())
    except OSError as error:
        raise refused(error, path) from error


def remove_standings(home: Path) -> None:
    """Remove the file: there are no webhooks. Failure: StoreError."""
    try:
        (home / _FILE).unlink(missing_ok=True)
    except OSError as error:
        raise refused(error, home / _FILE) from error


def read_standings(home: Path) -> list[dict[str, Any]]:
    """Return the webhooks; none if there is no file."""
    try:
        found = [WebhookStanding(**one) for one in json.loads((home / _FILE).read_bytes())]
    except (OSError, ValueError, TypeError):
        return []
    return [one._asdict() for one in found]
