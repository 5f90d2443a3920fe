"""The stored state of one mailbox: how far each folder is read, and where messages were.

    folders    name, UIDVALIDITY, the first UID that is not handled yet
    messages   identity, side, and the UID there

`side` is the state of a message (docs/decisions/0046):

    judging   it is being judged; in place of the UID is the number of attempts
    ham       it was in the inbox, or in a folder of the user
    moving    the verdict is junk; it is about to be moved, or was just moved
    copied    it was seen in the junk folder; the original may still be in the inbox
    junk      it was in the junk folder

SQLite with `synchronous = FULL`: a transaction is on disk when it ends. If the process is killed,
the state of the last complete transaction remains. Only one process and one thread use the file at
a time.

Failure: StoreFullError, StoreDamagedError, StoreError.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self
from urllib.parse import quote

from spamnb.errors import StoreBusyError, StoreDamagedError, StoreError, StoreFullError
from spamnb.store.files import make_folder, refused

FOLDER: Final = "imap"
"""in the home"""
MOST_MESSAGES: Final = 200_000
"""30 MB; the oldest are forgotten. Their age is not used, because a clock step changes it."""
_VERSION: Final = 1
_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS folders (
    name TEXT PRIMARY KEY, uidvalidity INTEGER NOT NULL, next_uid INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY, identity BLOB NOT NULL UNIQUE,
    side TEXT NOT NULL, uid INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS pending ON messages (side) WHERE side IN ('moving', 'copied');
CREATE TABLE IF NOT EXISTS place (text TEXT NOT NULL);
PRAGMA user_version = {_VERSION};
"""

MessageSide = Literal["judging", "ham", "moving", "copied", "junk"]


class Cursor(NamedTuple):
    """How far a folder is read."""

    uidvalidity: int
    next_uid: int


class KnownMessage(NamedTuple):
    """A message that was judged here, or seen in the junk folder."""

    side: MessageSide
    uid: int = 0
    """UID in the inbox if `moving` or `copied`, in the junk folder if `junk`; 0: unknown"""


class MailboxState:
    """The state of one account. Made by `open`."""

    def __init__(self, database: sqlite3.Connection, path: Path, lock: int) -> None:
        self._database = database
        self._path = path
        self._lock = lock

    @classmethod
    def open(cls, home: Path, name: str, place: str) -> Self:
        """Open the state of an account; a state of another mailbox under its name is deleted."""
        make_folder(home / FOLDER)
        path = home / FOLDER / f"{quote(name, safe='')}.sqlite"
        lock = _locked(path.with_suffix(".lock"), name)
        made = None
        try:
            made = cls(sqlite3.connect(path, isolation_level=None), path, lock)
            made._prepare(place)
        except BaseException as error:
            if made is None:
                os.close(lock)
            else:
                made.close()
            if isinstance(error, sqlite3.Error):
                raise _as_store_error(error, path) from error
            raise
        return made

    def _prepare(self, place: str) -> None:
        self._database.execute("PRAGMA synchronous = FULL")
        if self._database.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
            raise StoreError(f"{self._path} was written by a later version of spamnb")
        self._database.executescript(f"BEGIN; {_TABLES} COMMIT;")
        with self.changing():
            if self._one("SELECT text FROM place") != (place,):
                for table in ("folders", "messages", "place"):
                    self._database.execute(f"DELETE FROM {table}")  # noqa: S608 - a constant
                self._database.execute("INSERT INTO place VALUES (?)", (place,))
            self._database.execute(
                "DELETE FROM messages WHERE number <= (SELECT max(number) FROM messages) - ?",
                (MOST_MESSAGES,),
            )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Store the changes of a block on disk, all or none."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise _as_store_error(error, self._path) from error

    # -- folders --------------------------------------------------------------------------------

    def cursor(self, folder: str) -> Cursor | None:
        """Return how far a folder is read; None if it was never seen."""
        found = self._one("SELECT uidvalidity, next_uid FROM folders WHERE name = ?", folder)
        return Cursor(*found) if found else None

    def set_cursor(self, folder: str, cursor: Cursor) -> None:
        """Note how far a folder is read."""
        self._database.execute("REPLACE INTO folders VALUES (?, ?, ?)", (folder, *cursor))

    # -- messages -------------------------------------------------------------------------------

    def find(self, identity: bytes) -> KnownMessage | None:
        """Return what is known of a message; None for an unknown message."""
        found = self._one("SELECT side, uid FROM messages WHERE identity = ?", identity)
        return KnownMessage(*found) if found else None

    def note(self, identity: bytes, message: KnownMessage) -> None:
        """Note the state of a message."""
        self._database.execute(
            "INSERT INTO messages (identity, side, uid) VALUES (?, ?, ?) ON CONFLICT (identity) "
            "DO UPDATE SET side = excluded.side, uid = excluded.uid",
            (identity, *message),
        )

    def note_all(self, identities: Iterable[bytes], message: KnownMessage) -> None:
        """Note the same state of several messages."""
        for identity in identities:
            self.note(identity, message)

    def has_pending(self) -> bool:
        """Return True if a message is being filed."""
        return self._one("SELECT 1 FROM messages WHERE side IN ('moving', 'copied')") is not None

    def settle(self) -> None:
        """Count messages that were being filed as filed: they are not in the inbox any more."""
        self._database.execute(
            "UPDATE messages SET side = 'junk', uid = 0 WHERE side IN ('moving', 'copied')"
        )

    def counts(self) -> dict[str, int]:
        """Return how many messages are in each state."""
        return dict(self._database.execute("SELECT side, count(*) FROM messages GROUP BY side"))

    def close(self) -> None:
        """Close the file, so that another process can use it."""
        self._database.close()
        os.close(self._lock)

    def _one(self, query: str, *values: Any) -> Sequence[Any] | None:
        try:
            found: Sequence[Any] | None = self._database.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise _as_store_error(error, self._path) from error
        return found


def _locked(path: Path, name: str) -> int:
    """Lock an account, because two processes would move and learn everything twice."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise refused(error, path) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreBusyError(
            f"another process reads the mailbox {name}",
            hint="the daemon reads all mailboxes of the settings itself",
        ) from error
    return handle


def _as_store_error(error: sqlite3.Error, path: Path) -> StoreError:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return StoreFullError(f"{path}: no space", hint="free disk space")
    if isinstance(error, sqlite3.DatabaseError) and name in ("SQLITE_CORRUPT", "SQLITE_NOTADB"):
        return StoreDamagedError(
            f"{path} is damaged", hint="remove it: the mailbox is then read as at the first start"
        )
    return StoreError(f"{path}: {error}")
