"""The exception classes of spamnb, all derived from `SpamnbError`, and the ids of incidents.

Every error carries a one-line message (what is wrong), a `hint` (what to do) and the exit code of
the command line. Malformed or hostile mail never raises an error. Exceptions of libraries and of
the operating system are mapped to these classes once, where they are first caught.

Imports nothing from the rest of the package.
"""

from __future__ import annotations

import os


def incident_id() -> str:
    """Return the id that a log record and the reply to a client share."""
    return os.urandom(4).hex()


class SpamnbError(Exception):
    """Base class of all errors of spamnb; never raised itself.

    `hint` says what the reader can do about it; `exit_code` is the status of the command line.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UserError(SpamnbError):
    """Invalid input from the user. Nothing was changed."""

    exit_code = 2


class SettingsError(UserError):
    """A setting is unknown, malformed or out of range."""


class CorpusError(UserError):
    """A path given for training or scoring is missing, empty or contains no mail."""


class LabelError(UserError):
    """The model does not have this label."""


class RefError(UserError):
    """A reference (Message-ID, digest, signature, receipt) matches no message, or several."""


class RefusedError(UserError):
    """A change is not possible: it is superseded, in the checkpoint, or overflows a number."""


class LimitError(RefusedError):
    """A daily quota or a size limit is reached; the same request may succeed later."""


class StoreError(SpamnbError):
    """The store failed. `transient` is true if the same call may succeed later."""

    exit_code = 3
    transient = False


class StoreBusyError(StoreError):
    """No reader slot is free, or another process holds a lock; try again."""

    transient = True


class StoreReplacedError(StoreBusyError):
    """The file at this path was replaced after it was opened: open the store again."""


class StoreFullError(StoreError):
    """The disk is full, or the store has reached its size limit. Nothing was changed."""

    transient = True


class StoreMissingError(StoreError):
    """The folder contains no model."""


class StoreDamagedError(StoreError):
    """The store's contents are inconsistent."""


class StoreVersionError(StoreError):
    """The store was written by another version of spamnb or LMDB, or with another key."""


class StoreAccessError(StoreError):
    """The file system denies access: permissions, or a read-only file system."""


class LogAwayError(StoreBusyError):
    """The log of the fleet does not answer. The log may or may not have the new events."""


class FleetError(StoreError):
    """The log of the fleet and this host do not fit together: an administrator has to act."""


class PeerError(SpamnbError):
    """The peer of a network connection failed or refused; `reply` holds its reply, if any."""

    exit_code = 4

    def __init__(self, message: str, *, hint: str = "", reply: bytes = b"") -> None:
        super().__init__(message, hint=hint)
        self.reply = reply


class BugError(SpamnbError):
    """An internal invariant was violated; the message names it."""
