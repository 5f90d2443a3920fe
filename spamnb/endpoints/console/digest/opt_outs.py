"""The addresses that want no digest: a file for each, named by its hash.

    home/console/digest_off/HASH    the address

Failure: StoreError if the folder cannot be read or written.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from spamnb.store.files import durable_write, make_folder, refused, sync_folder


class DigestOptOuts:
    """The choices of one home."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "console" / "digest_off"

    def holds(self, user: str) -> bool:
        """Whether an address wants no digest."""
        return self._path(user).exists()

    def add(self, user: str) -> None:
        """Send no digest to an address."""
        make_folder(self._folder)
        try:
            durable_write(self._path(user), user.encode())
        except OSError as error:
            raise refused(error, self._folder) from error

    def remove(self, user: str) -> None:
        """Send digests to an address again."""
        try:
            self._path(user).unlink()
            sync_folder(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused(error, self._folder) from error

    def _path(self, user: str) -> Path:
        return self._folder / sha256(user.encode()).hexdigest()
