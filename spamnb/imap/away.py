"""Which mailboxes cannot be read, since when and why: one file for each, beside its state.

The process that reads the mailboxes writes the files; the status reads them. A mailbox has a file
from its first failure until it is read again. Failure: StoreError if the folder cannot be written.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from spamnb.store.files import durable_write, make_folder, refused
from spamnb.telemetry import now_us

FOLDER: Final = "imap"
"""in the home"""
_SUFFIX: Final = ".away"


class AwayMailbox(NamedTuple):
    """A mailbox that cannot be read."""

    account: str
    since_us: int
    """the first failure, in microseconds since 1970"""
    reason: str


class AwayMailboxes:
    """The files of one home."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER

    def keep(self, accounts: Collection[str]) -> None:
        """Remove the files of accounts that are not in the settings any more."""
        for one in self.found():
            if one.account not in accounts:
                self.remove(one.account)

    def note(self, account: str, reason: str) -> None:
        """Note a failure; the time of the first one stays."""
        before = self._read(self._path(account))
        if before is None or before.reason != reason:
            since_us = now_us() if before is None else before.since_us
            make_folder(self._folder)
            text = json.dumps({"since_us": since_us, "reason": reason})
            durable_write(self._path(account), text.encode())

    def remove(self, account: str) -> None:
        """Note that a mailbox is read again."""
        try:
            self._path(account).unlink(missing_ok=True)
        except OSError as error:
            raise refused(error, self._path(account)) from error

    def found(self) -> list[AwayMailbox]:
        """Return the mailboxes that cannot be read, by name; none if the home is unreadable."""
        try:
            paths = sorted(self._folder.glob(f"*{_SUFFIX}"))
        except OSError:
            return []
        return [one for one in map(self._read, paths) if one is not None]

    def _path(self, account: str) -> Path:
        return self._folder / f"{quote(account, safe='')}{_SUFFIX}"

    @staticmethod
    def _read(path: Path) -> AwayMailbox | None:
        try:
            values = json.loads(path.read_bytes())
            name = unquote(path.name.removesuffix(_SUFFIX))
            return AwayMailbox(name, int(values["since_us"]), str(values["reason"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
