"""The watcher's checkpoint, in a small file. Failure: StoreAccessError."""

from __future__ import annotations

import json
import os
from pathlib import Path

from spamnb.errors import StoreAccessError


class FileCheckpoint:
    """`Checkpoint` of one set of Maildirs; an unreadable file counts as none."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key

    def load(self) -> int:
        found = self._all().get(self._key, 0)
        return found if isinstance(found, int) else 0

    def save(self, seen_ns: int) -> None:
        text = json.dumps(self._all() | {self._key: seen_ns}, indent=1)
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            # Not synced: after a power cut some files are checked twice, which changes nothing.
            fresh.write_text(text)
            fresh.replace(self._path)
        except OSError as error:
            raise StoreAccessError(f"{self._path} cannot be written: {error.strerror}") from error

    def _all(self) -> dict[str, object]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
