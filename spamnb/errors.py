"""The family of errors: what went wrong, whose fault it is, and what the reader can do about it.

Knows nothing of the rest of the package. Every error carries a one-line message (what is wrong), a
`hint` (what to do) and the exit code that the command line ends with. Hostile mail is never an
error; foreign exceptions are mapped to these once, at the wall where they appear.
"""

from __future__ import annotations


class SpamnbError(Exception):
    """The parent of all; never raised itself."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UserError(SpamnbError):
    """The user's mistake: one line and a hint, nothing was changed."""

    exit_code = 2


class SettingsError(UserError):
    """A setting that is unknown, malformed or out of range."""


class CorpusError(UserError):
    """A path given for training or scoring that is missing, empty or no mail at all."""


class LabelError(UserError):
    """A label that this model was not made with."""


class RefError(UserError):
    """A reference (message id, digest, signature, receipt) that names nothing, or too much."""


class RefusedError(UserError):
    """A change that the rules forbid now: superseded, before the checkpoint, an overflow."""


class LimitError(RefusedError):
    """A limit of the day or of a list is reached: the same may be taken later."""


class StoreError(SpamnbError):
    """The store cannot do what was asked. `transient` says whether waiting can help."""

    exit_code = 3
    transient = False


class StoreBusyError(StoreError):
    """No reader slot, a lock held elsewhere: try again."""

    transient = True


class StoreFullError(StoreError):
    """The disk, or the limit set for the store, is full. Nothing was changed."""

    transient = True


class StoreMissingError(StoreError):
    """There is no model at that place."""


class StoreDamagedError(StoreError):
    """The store's bytes contradict themselves."""


class StoreVersionError(StoreError):
    """The store was written by another version, or with another key."""


class StoreAccessError(StoreError):
    """The file system refuses: permissions, or a read-only place."""


class PeerError(SpamnbError):
    """Somebody else's fault, on the other end of a connection. Their reply is kept."""

    exit_code = 4

    def __init__(self, message: str, *, hint: str = "", reply: bytes = b"") -> None:
        super().__init__(message, hint=hint)
        self.reply = reply


class BugError(SpamnbError):
    """A promise of our own that did not hold; the message names the promise."""
