"""Follow an IMAP mailbox: learn what the user moves, judge what is new, move junk.

`ImapMailbox` is the mailbox on its server, `MailboxState` what is stored of it, `MailboxSync` a
pass over it, and `read_all` reads several mailboxes, each in a thread. Failure: PeerError with the
server's text, StoreFullError, StoreDamagedError, StoreError; the next pass continues.
"""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import blake2b
from pathlib import Path
from time import sleep
from typing import Any, Final, Literal, NamedTuple, Self
from urllib.parse import quote

from spamnb.engine.filter import Filter
from spamnb.errors import (
    PeerError,
    SpamnbError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
)
from spamnb.feedback.values import Answer, Feedback
from spamnb.imap.away import FOLDER
from spamnb.imap.client import (
    LATER,
    FolderState,
    ImapClient,
    ImapRefusedError,
    ImapTrust,
    ListedFolder,
    LoginRefusedError,
    NoTlsError,
    StopSignal,
    WatchedFolders,
    account_problems,
    decoded_name,
    junk_folder,
    watched,
)
from spamnb.mail.envelope import LocalHosts
from spamnb.maintenance.doctor import SIDES, FoundMessage, Side
from spamnb.policy.senders import evidence_of
from spamnb.scan.judge import Found, ModelSession, ScanFault
from spamnb.scan.values import BATCH_MESSAGES, CheckedMail, Notes, StoredMailCheck
from spamnb.settings.values import ImapParams, ImapTimes, ImapTls, TeachingRules, is_here
from spamnb.store.files import make_folder, refused

_NO_FOLDER: Final = (
    "name the junk folder with --junk, or make one: `doveadm mailbox create -u USER Junk`; for all "
    "users see docs/dovecot.md, The junk folder"
)
_TLS_PORT: Final = 993
_DAYS_S: Final = 2 * 86_400
"""how far the search goes back, because the date of the server may differ"""
_MESSAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ImapAccount:
    """An account and its server."""

    host: str
    port: int
    user: str
    password: str
    junk: str = ""
    """the junk folder; empty: the one that the server marks (RFC 6154), else a usual name"""
    step_s: float = 30.0


class ImapMailbox:
    """`Mailbox` of one account, logged in. Created by `open`.

    Other messages are never touched: an expunge names the UID. If the server cannot do that (no
    UIDPLUS, RFC 4315), nothing is expunged while other messages are marked as deleted. A password
    is sent only encrypted or on this machine.

    Must not know what a move means.
    """

    channels = frozenset(("imap", "maildir"))
    """The IMAP server may report the move, or a watcher of its Maildir."""
    advice = (
        "see docs/dovecot.md, Learn from moves; feedback.spool and serve.delegates; the logs of "
        "the IMAP server and of the daemon"
    )

    def __init__(self, account: ImapAccount, client: ImapClient, resources: ExitStack) -> None:
        self.user = account.user
        self._client = client
        self._resources = resources
        self._move_methods = [_copy_and_delete]
        if client.has("MOVE"):
            self._move_methods = [_move, _copy_and_delete]
        self._all = [one.wire for one in client.folders() if one.is_selectable]
        junk = _junk_of(client.folders(), account.junk)
        self._names: dict[Side, str] = {"inbox": "INBOX", "junk": junk.wire}
        port = f":{account.port}" if account.port else ""
        self.about = f"{account.user} at {account.host}{port}, junk is {junk.name}"

    @classmethod
    def open(cls, account: ImapAccount, program: Sequence[str] = ()) -> ImapMailbox:
        """Log in, or start a program that needs no login; check that both folders exist."""
        with ExitStack() as resources:
            stop = resources.enter_context(closing(StopSignal()))
            client = resources.enter_context(
                closing(
                    ImapClient.of_program(program, ImapTimes(account.step_s), stop)
                    if program
                    else _connected(account, stop)
                )
            )
            made = cls(account, client, resources)
            for side in SIDES:
                made._select(made._names[side])
            made._resources = resources.pop_all()
        return made

    def find(self, ident: str) -> FoundMessage | None:
        for side in SIDES:
            self._select(self._names[side])
            uids = self._search(ident)
            raw = self._client.fetch(uids[-1:], "", _MESSAGE_BYTES) if uids else {}
            for found in raw.values():
                return FoundMessage(side, found)
        return None

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move the message as mail programs do, each time by the next method; return the method."""
        method = self._move_methods[0]
        self._move_methods = [*self._move_methods[1:], method]
        self._select(self._names[source])
        uids = self._search(ident)
        if not uids:
            raise PeerError(f"the message is not in {self._names[source]} any more")
        return method(self._client, uids[-1], self._names[target])

    def purge(self, ident: str) -> int:
        gone: list[bool] = []
        for name in self._all:
            with suppress(ImapRefusedError):
                self._client.select(name)
                gone += [_delete(self._client, uid) for uid in self._search(ident, deleted=True)]
        if not all(gone):
            raise PeerError(
                "the message is only marked as deleted: an expunge would also delete other messages"
            )
        return len(gone)

    def close(self) -> None:
        self._resources.close()

    def _select(self, name: str) -> None:
        try:
            self._client.select(name)
        except ImapRefusedError as error:
            raise PeerError(
                f"the folder {name} cannot be opened: {error}", hint=_NO_FOLDER
            ) from error

    def _search(self, ident: str, *, deleted: bool = False) -> list[int]:
        # Without a date the server would read the header of every message.
        since = "-".join(formatdate(time.time() - _DAYS_S).split()[1:4])
        return self._client.uids_with(ident, since, deleted=deleted)


def _move(client: ImapClient, uid: int, target: str) -> str:
    client.move([uid], target)
    return "MOVE"


def _copy_and_delete(client: ImapClient, uid: int, target: str) -> str:
    client.copy([uid], target)
    _delete(client, uid)
    return "COPY and delete"


def _delete(client: ImapClient, uid: int) -> bool:
    """Mark a message as deleted; expunge it if that affects no other. Whether it is gone."""
    client.add_flag([uid], rb"\Deleted")
    if client.has("UIDPLUS"):
        client.expunge([uid])
        return True
    return client.expunge_only(uid)


def _junk_of(listed: list[ListedFolder], name: str) -> ListedFolder:
    found = junk_folder([one for one in listed if one.is_selectable], name)
    if found is None:
        raise PeerError(
            f"the folder {name or 'Junk'} cannot be opened: it is not in the list", hint=_NO_FOLDER
        )
    return found


def _connected(account: ImapAccount, stop: StopSignal) -> ImapClient:
    """Connect, encrypted except on this machine."""
    if account.port == _TLS_PORT:
        return _logged_in(account, "implicit", stop)
    try:
        return _logged_in(account, "starttls", stop)
    except NoTlsError as error:
        if not is_here(account.host):
            hint = "give the port of IMAP with TLS: --imap HOST:993"
            raise PeerError(str(error), hint=hint) from error
    return _logged_in(account, "none", stop)


def _logged_in(account: ImapAccount, tls: ImapTls, stop: StopSignal) -> ImapClient:
    # The connection is local, and the certificate of a server here is for another name.
    trust = ImapTrust(lambda _: account.password, verify=not is_here(account.host))
    params = ImapParams(account.host, account.port, tls, user=account.user)
    try:
        return ImapClient.open(params, ImapTimes(account.step_s), stop, trust)
    except NoTlsError:
        raise
    except PeerError as error:
        # The hint is left out, because it names a setting.
        raise PeerError(f"the IMAP server: {error}") from error


def _unchecked(raws: Sequence[bytes], _: LocalHosts) -> list[CheckedMail]:
    return [CheckedMail(raw, "") for raw in raws]


class MailboxModel:
    """Judges messages and looks up their labels."""

    def __init__(
        self,
        session: ModelSession,
        opened: Callable[[], Filter],
        rules: TeachingRules,
        check: StoredMailCheck = _unchecked,
    ) -> None:
        self._session = session
        self._rules = rules
        self._check = check
        self._opened = opened
        """opens the model for reading"""
        self._lock = threading.Lock()

    def judge(self, raws: list[bytes], user: str) -> list[Found]:
        """Return the verdicts on messages of a user, who may label them later.

        Lists of wanted and unwanted senders apply as in the mail path.
        """
        with self._lock:
            local = self._session.local
        checked = self._check(raws, local)
        raws = [one.raw for one in checked]
        with self._lock:
            lists = self._session.sender_lists((user,))
            rulings = [lists.rulings(evidence_of(raw, local)) for raw in raws]
            notes = [
                _notes(user, ruling.reason((user,)), one.results)
                for ruling, one in zip(rulings, checked, strict=True)
            ]
            found = self._session.scan(raws, notes, [(user,)] * len(raws))
        return [
            one if isinstance(one, ScanFault) else ruling.applied(one).of(user)
            for one, ruling in zip(found, rulings, strict=True)
        ]

    def label_of(self, raw: bytes, user: str) -> str | None:
        """Return the label that a message is trained with for a user; None if it is not."""
        names = self._session.plan.persons
        with self._lock, self._opened() as model:
            return model.trained_label(raw, model.source_of(user, self._rules, names))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the model closed for a block that opens it for writing in this process."""
        with self._lock:
            self._session.close()
            yield

    def replace_session(self, session: ModelSession) -> None:
        """Judge with other settings from now on."""
        with self._lock:
            self._session.close()
            self._session = session

    def close(self) -> None:
        """Close the model."""
        with self._lock:
            self._session.close()


def _notes(user: str, reason: str, results: str) -> Notes:
    notes = {"to": user, "list": reason, "auth": results}
    return {name: text for name, text in notes.items() if text}


Done = Literal["judged", "moved", "flagged", "not moved", "unscanned", "learnt", "refused"]


class ImapReport(NamedTuple):
    """What was done with one message."""

    account: str
    done: Done
    folder: str
    """where it was found, for people"""
    uid: int
    decision: str = ""
    probability: float | None = None
    answer: Answer | None = None
    """to the label, of a message that the user moved"""
    text: str = ""
    """the server's reason, or the reason of a refusal"""

    def facts(self) -> dict[str, object]:
        """Return it as values for a log or JSON, without what is empty."""
        found: dict[str, object] = {
            "account": self.account,
            "done": self.done,
            "folder": self.folder,
            "uid": self.uid,
            "decision": self.decision,
            "probability": None if self.probability is None else round(self.probability, 6),
            "event_number": self.answer.receipt.event if self.answer and self.answer.receipt else 0,
            "reason": self.text,
        }
        return {name: value for name, value in found.items() if value not in (None, "", 0)}


class ImapPorts(NamedTuple):
    """The model, and where reports go; called by one thread for each account."""

    judge: Callable[[list[bytes], str], list[Found]]
    """the verdicts on messages of a user; never raises"""
    label_of: Callable[[bytes, str], str | None]
    """the label that a message is trained with for a user"""
    teach: Callable[[Feedback], Answer]
    report: Callable[[ImapReport], None]


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
    """The state of one account. Made by `open`.

        folders    name, UIDVALIDITY, the first UID that is not handled yet
        messages   identity, side, and the UID there

    `side` is the state of a message (docs/decisions/0046):

        judging   it is being judged; in place of the UID is the number of attempts
        ham       it was in the inbox, or in a folder of the user
        moving    the verdict is junk; it is about to be moved, or was just moved
        copied    it was seen in the junk folder; the original may still be in the inbox
        junk      it was in the junk folder

    SQLite with `synchronous = FULL`: a transaction is on disk when it ends. If the process is
    killed, the state of the last complete transaction remains. Only one process and one thread use
    the file at a time.
    """

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


HEADERS_AT_ONCE: Final = 100
MESSAGE_BYTES: Final = 1 << 20
"""Of a longer message only its first part is judged and learnt, as in the mail path."""
HEADER_BYTES: Final = 1 << 16
JUNK_AT_START: Final = 5000
"""newest messages in the junk folder that are noted at the first start: a message that the user
takes out of it must not be judged as new mail"""
MOVES_AT_ONCE: Final = 100
"""messages in other folders that are handled before the inbox is read again"""
IDENTITY: Final = "HEADER.FIELDS (MESSAGE-ID DATE FROM TO CC SUBJECT RECEIVED)"
JUNK_FLAG: Final = b"$Junk"
_COPY_S: Final = 3.0
"""between the two steps of a mail program that moves by copying"""
_FILED: Final = ("junk", "reject")
_FILING: Final = ("moving", "copied", "junk")
_MOST_TRIES: Final = 2
"""attempts to judge a message; in the second attempt it is judged alone"""


class Judged(NamedTuple):
    """A message of the inbox, and its verdict; None if it was judged before a crash."""

    uid: int
    identity: bytes
    found: Found | None = None


class SyncedAccount(NamedTuple):
    """An account, and what its reader needs."""

    name: str
    params: ImapParams
    ports: ImapPorts
    wait: Callable[[float], object] = sleep


class MailboxSync:
    """Reads one mailbox by one connection.

    A pass first reads what arrived in the junk folder and in the user's other folders, then the
    inbox. So it sees unfinished work of a killed process before it repeats any step. The states of
    a message, and what a crash at each step leaves, are in docs/decisions/0046.

    A message is recognised by the fields of its header that a move does not change; its body is
    read only to judge or to learn it. No message is appended or created. A message is expunged only
    after its copy was seen in the junk folder, and only by its UID.

    Must not know how a connection is made or repeated.
    """

    def __init__(self, account: SyncedAccount, client: ImapClient, state: MailboxState) -> None:
        self._name, self._params, self._ports, self._wait = account
        self._client = client
        self._state = state
        self._folders = self._find_folders()

    def _find_folders(self) -> WatchedFolders:
        params = self._params
        found = watched(self._client.folders(), params.inbox, params.junk)
        if found is None:
            name = f" {params.junk!r}" if params.junk else ""
            raise PeerError(
                f"{params.place}: there is no junk folder{name}",
                hint="create it, or set the name of the folder: junk",
            )
        return found

    # -- folders that are new here --------------------------------------------------------------

    def begin(self, *, existing: bool) -> None:
        """Note where each folder ends now; with `existing` the inbox is read from its start."""
        inbox, junk, others = self._folders
        for folder in (junk, inbox, *others):
            known, now = self._state.cursor(folder), self._client.status(folder)
            if known is None or known.uidvalidity != now.uidvalidity:
                self._begin_folder(folder, known, now)
        if existing:
            now = self._client.status(inbox)
            with self._state.changing():
                self._state.set_cursor(inbox, Cursor(now.uidvalidity, 1))

    def _begin_folder(self, folder: str, known: Cursor | None, now: FolderState) -> None:
        """Begin at the end of a folder, or at the newest messages of a junk folder that is new.

        Nothing is learnt from new UIDs (another UIDVALIDITY).
        """
        next_uid = now.uidnext
        is_first_junk = folder == self._folders.junk and known is None
        if is_first_junk or not next_uid:
            self._client.select(folder, readonly=True)
            uids = self._client.uids_from(1)
            next_uid = uids[-1] + 1 if uids else max(next_uid, 1)
            if is_first_junk and uids:
                next_uid = uids[-JUNK_AT_START:][0]
        with self._state.changing():
            if known is not None and folder == self._folders.inbox:
                self._state.settle()
            self._state.set_cursor(folder, Cursor(now.uidvalidity, next_uid))

    # -- a pass ---------------------------------------------------------------------------------

    def run(self, *, everywhere: bool = True) -> bool:
        """Handle what is new; return whether there is more to do at once.

        Without `everywhere`, only the junk folder and the inbox are read, so that new mail does not
        wait for a command for each other folder.
        """
        if everywhere:
            self._folders = self._find_folders()
        more = self._look_at(self._folders.junk)
        for folder in self._folders.others if everywhere else ():
            with suppress(ImapRefusedError):  # the user may have removed the folder
                more |= self._look_at(folder)
        self._open_inbox()
        self._read_inbox()
        return more

    def _look_at(self, folder: str) -> bool:
        """Learn what arrived in a folder; return whether a part of it is left for later."""
        now, cursor = self._client.status(folder), self._state.cursor(folder)
        if cursor is None or cursor.uidvalidity != now.uidvalidity:
            self._begin_folder(folder, cursor, now)
            return False
        if now.uidnext and now.uidnext <= cursor.next_uid:
            return False
        self._client.select(folder, readonly=True)
        uids = self._client.uids_from(cursor.next_uid)
        # After a crash all new messages are read: a message that was being filed may be among them.
        chunk = uids if self._state.has_pending() else uids[:MOVES_AT_ONCE]
        for part in _chunks(chunk, HEADERS_AT_ONCE):
            self._look_at_part(folder, part, now.uidvalidity)
        if now.uidnext and not uids:
            with self._state.changing():
                self._state.set_cursor(folder, Cursor(*now))
        return len(chunk) < len(uids)

    def _look_at_part(self, folder: str, uids: Sequence[int], uidvalidity: int) -> None:
        notes: dict[bytes, KnownMessage] = {}
        for uid, identity in self._identities(folder, uids):
            if note := self._arrived(folder, uid, identity):
                notes[identity] = note
        with self._state.changing():
            for identity, note in notes.items():
                self._state.note(identity, note)
            self._state.set_cursor(folder, Cursor(uidvalidity, uids[-1] + 1))

    def _open_inbox(self) -> None:
        inbox = self._folders.inbox
        if self._client.selected == inbox:
            return
        now, cursor = self._client.select(inbox), self._state.cursor(inbox)
        if cursor is None or cursor.uidvalidity != now.uidvalidity:
            self._begin_folder(inbox, cursor, now)
            self._client.select(inbox)

    def _identities(self, folder: str, uids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield UID and identity of the messages that are still there, in order."""
        fetched = self._bodies(folder, uids, IDENTITY)
        for uid in sorted(fetched):
            yield uid, blake2b(fetched[uid], digest_size=16).digest()

    # -- moves by the user ----------------------------------------------------------------------

    def _arrived(self, folder: str, uid: int, identity: bytes) -> KnownMessage | None:
        """Learn a message that the user moved; return another state to note, if any."""
        known = self._state.find(identity)
        if folder == self._folders.junk:
            if known is None or known.side in ("judging", "junk"):
                return KnownMessage("junk", uid)
            if known.side == "moving":
                return KnownMessage("copied", known.uid)
            if known.side == "ham":
                self._learn(folder, uid, identity, "spam")
        elif known is not None and known.side in ("copied", "junk"):
            self._learn(folder, uid, identity, "ham")
        elif known is not None and known.side == "moving":
            return KnownMessage("ham")
        return None

    def _learn(self, folder: str, uid: int, identity: bytes, label: str) -> None:
        """Learn a label that the user gave by a move, if the message is still there."""
        raw = self._bodies(folder, [uid]).get(uid)
        if not raw:
            return
        if self._ports.label_of(raw, self._params.user) != label:
            feedback = Feedback(label, raw, user=self._params.user, channel="imap")
            answer = self._ports.teach(feedback)
            done: Done = "refused" if answer.state == "refused" else "learnt"
            self._report(done, folder, uid, answer, answer.reason)
        self._note(
            [identity], KnownMessage("junk", uid) if label == "spam" else KnownMessage("ham")
        )

    def _bodies(self, folder: str, uids: Sequence[int], section: str = "") -> dict[int, bytes]:
        """Return messages, or a section of them; report a message that the server cannot read."""
        most = HEADER_BYTES if section else MESSAGE_BYTES
        try:
            return self._client.fetch(uids, section, most) if uids else {}
        except ImapRefusedError as error:
            if error.code in LATER:
                raise
            if len(uids) == 1:
                self._report("unscanned", folder, uids[0], text=str(error))
                return {}
        found: dict[int, bytes] = {}
        for uid in uids:
            found |= self._bodies(folder, [uid], section)
        return found

    # -- the inbox ------------------------------------------------------------------------------

    def _read_inbox(self) -> None:
        """Judge what is new in the inbox, and move junk."""
        cursor = self._state.cursor(self._folders.inbox)
        assert cursor is not None, "the inbox is open"
        uids = self._client.uids_from(cursor.next_uid)
        for part in _chunks(uids, HEADERS_AT_ONCE):
            identities = dict(self._identities(self._folders.inbox, part))
            for few in _chunks(part, BATCH_MESSAGES):
                self._handle({uid: identities[uid] for uid in few if uid in identities})
                with self._state.changing():
                    next_uid = Cursor(cursor.uidvalidity, few[-1] + 1)
                    self._state.set_cursor(self._folders.inbox, next_uid)
        if self._state.has_pending():
            with self._state.changing():
                self._state.settle()

    def _handle(self, identities: dict[int, bytes]) -> None:
        """Handle a few messages: learn, judge and move."""
        known = {uid: self._state.find(identity) for uid, identity in identities.items()}
        fresh = {uid: identities[uid] for uid, message in known.items() if message is None}
        filed = {uid: one for uid, one in known.items() if one is not None and one.side in _FILING}
        begun = {uid: one for uid, one in known.items() if one and one.side == "judging"}
        # A message that the user moved back has a higher UID than before.
        again = [uid for uid, one in filed.items() if one.side != "junk" and uid <= one.uid]
        back = {uid: one for uid, one in filed.items() if uid not in again}
        for uid in self._taken_out(back):
            self._learn(self._folders.inbox, uid, identities[uid], "ham")
        moving = [Judged(uid, identities[uid]) for uid in again]
        for uid, one in begun.items():
            moving += self._judge({uid: identities[uid]}, tries=one.uid + 1)
        self._act(moving + self._judge(fresh))

    def _taken_out(self, back: dict[int, KnownMessage]) -> list[int]:
        """Return the messages that the user moved out of the junk folder.

        If a message is still in the junk folder, the one in the inbox was delivered again. A mail
        program that moves by copying deletes the message in the junk folder a moment later.
        """
        places = {one.uid for one in back.values() if one.side == "junk" and one.uid}
        left = self._left_in_junk(places)
        if left:
            self._wait(_COPY_S)
            left = self._left_in_junk(left)
        return [uid for uid, one in back.items() if one.side != "junk" or one.uid not in left]

    def _left_in_junk(self, uids: set[int]) -> set[int]:
        if not uids:
            return set()
        self._client.select(self._folders.junk, readonly=True)
        left = self._client.uids_among(sorted(uids))
        self._client.select(self._folders.inbox)
        return left

    def _judge(self, identities: dict[int, bytes], tries: int = 1) -> list[Judged]:
        """Judge messages; return those to be moved, which are noted on disk as `moving`."""
        raws = self._bodies(self._folders.inbox, sorted(identities))
        if not raws:
            return []
        self._note([identities[uid] for uid in raws], KnownMessage("judging", tries))
        verdicts = self._verdicts(raws, tries)
        if any(isinstance(one, ScanFault) and one.reason == "model" for one in verdicts.values()):
            self._note([identities[uid] for uid in raws], KnownMessage("judging", tries - 1))
            raise StoreMissingError(
                "no model can be used", hint="see the log, or create a model with `spamnb train`"
            )
        judged = [Judged(uid, identities[uid], found) for uid, found in verdicts.items()]
        filed = [one for one in judged if _is_filed(one.found) and self._params.act == "move"]
        with self._state.changing():
            for one in judged:
                moving = KnownMessage("moving", one.uid)
                self._state.note(one.identity, moving if one in filed else KnownMessage("ham"))
        for one in judged:
            if one not in filed:
                self._act_mildly(one)
        return filed

    def _verdicts(self, raws: dict[int, bytes], tries: int) -> dict[int, Found]:
        """Return the verdicts; a message that killed this process twice gets none."""
        if tries > _MOST_TRIES:
            return dict.fromkeys(raws, ScanFault("known_crasher"))
        found = self._ports.judge(list(raws.values()), self._params.user)
        pairs = zip(raws.items(), found, strict=True)
        return {uid: self._second(one, raw) for (uid, raw), one in pairs}

    def _second(self, found: Found, raw: bytes) -> Found:
        """Judge a message again if it failed."""
        if isinstance(found, ScanFault) and found.reason == "fault":
            (found,) = self._ports.judge([raw], self._params.user)
        return found

    def _act_mildly(self, one: Judged) -> None:
        """Report a message that stays in the inbox; flag it if the settings say so."""
        done: Done = "judged"
        if isinstance(one.found, ScanFault):
            done = "unscanned"
        elif _is_filed(one.found) and self._params.act == "flag":
            done = "flagged" if self._flagged([one.uid]) else "judged"
        self._report_judged(done, one)

    def _flagged(self, uids: Sequence[int]) -> bool:
        try:
            self._client.add_flag(uids, JUNK_FLAG)
        except ImapRefusedError:
            return False
        return True

    # -- moving ---------------------------------------------------------------------------------

    def _act(self, filed: list[Judged]) -> None:
        """Move messages to the junk folder, by the best method of the server."""
        if not filed:
            return
        if self._client.has("MOVE"):
            self._move(filed)
        elif self._client.has("UIDPLUS"):
            self._copy_and_expunge(filed)
        else:
            # EXPUNGE without UIDs would also remove what the user has marked as deleted.
            flagged = self._flagged([one.uid for one in filed])
            self._settle(filed, "flagged" if flagged else "not moved", KnownMessage("ham"))

    def _move(self, filed: list[Judged]) -> None:
        uids = [one.uid for one in filed]
        try:
            self._client.move(uids, self._folders.junk)
        except ImapRefusedError as error:
            left = self._client.uids_among(uids)
            stayed = [one for one in filed if one.uid in left]
            self._settle(stayed, "not moved", KnownMessage("ham"), str(error))
            filed = [one for one in filed if one.uid not in left]
        self._settle(filed, "moved", KnownMessage("junk"))

    def _copy_and_expunge(self, filed: list[Judged]) -> None:
        """Copy, look for the copies, then remove the originals of those that were found."""
        inbox = self._folders.inbox
        copies = [one for one in filed if self._side(one) == "moving"]
        if copies:
            try:
                self._client.copy([one.uid for one in copies], self._folders.junk)
            except ImapRefusedError as error:
                self._settle(copies, "not moved", KnownMessage("ham"), str(error))
                filed = [one for one in filed if one not in copies]
            self._look_at(self._folders.junk)
            self._client.select(inbox)
        found = [one for one in filed if self._side(one) == "copied"]
        if found:
            uids = [one.uid for one in found]
            self._client.add_flag(uids, rb"\Deleted")
            self._client.expunge(uids)
            self._settle(found, "moved", KnownMessage("junk"))
        lost = [one for one in filed if one not in found]
        # The copy may appear later, and must then not count as a move by the user.
        self._settle(lost, "not moved", KnownMessage("junk"), "the copy was not found")

    def _side(self, one: Judged) -> str:
        known = self._state.find(one.identity)
        return known.side if known else ""

    def _settle(
        self, filed: Sequence[Judged], done: Done, message: KnownMessage, text: str = ""
    ) -> None:
        """Note on disk what became of messages, and report it."""
        if not filed:
            return
        self._note([one.identity for one in filed], message)
        for one in filed:
            self._report_judged(done, one, text)

    def _note(self, identities: Sequence[bytes], message: KnownMessage) -> None:
        with self._state.changing():
            self._state.note_all(identities, message)

    # -- reports --------------------------------------------------------------------------------

    def _report_judged(self, done: Done, one: Judged, text: str = "") -> None:
        verdict = one.found
        if verdict is None or isinstance(verdict, ScanFault):
            reason = text or (verdict.reason if verdict else "")
            self._report(done, self._folders.inbox, one.uid, text=reason)
            return
        report = ImapReport(
            self._name,
            done,
            decoded_name(self._folders.inbox),
            one.uid,
            verdict.decision,
            verdict.probability,
            text=text,
        )
        self._ports.report(report)

    def _report(
        self, done: Done, folder: str, uid: int, answer: Answer | None = None, text: str = ""
    ) -> None:
        name = decoded_name(folder)
        self._ports.report(ImapReport(self._name, done, name, uid, answer=answer, text=text))


def _is_filed(found: Found | None) -> bool:
    return found is not None and not isinstance(found, ScanFault) and found.decision in _FILED


def _chunks(uids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(uids), size):
        yield uids[start : start + size]


FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
GOOD_S: Final = 60.0
"""A connection that lasts so long resets the pause. So a server that accepts every login and then
ends the connection is not asked each second."""
_BREATH_S: Final = 0.2
"""pause between two passes: a server that always reports changes must not keep this host busy"""

Trouble = Callable[[str, SpamnbError, float], None]
"""reports that a mailbox cannot be read, why, and after how many seconds it is tried again"""


@dataclass(frozen=True, slots=True)
class ImapPlan:
    """What all mailboxes share."""

    home: Path
    ports: ImapPorts
    trouble: Trouble
    read: Callable[[str], None]
    """reports that a mailbox was read after it was connected"""
    existing: bool = False
    """also judge the mail that lies in the inbox at the start"""
    times: ImapTimes = field(default_factory=ImapTimes)


class AccountReader:
    """Reads one mailbox."""

    def __init__(self, name: str, params: ImapParams, plan: ImapPlan, stop: StopSignal) -> None:
        self._name = name
        self._params = params
        self._plan = plan
        self._stop = stop
        self._existing = plan.existing
        self._pause_s = FIRST_PAUSE_S

    def once(self) -> None:
        """Make passes until there is nothing to do."""
        self._check()
        with closing(self._state()) as state:
            self._read(state, once=True)

    def run(self) -> None:
        """Read until told to stop; after a failure connect again."""
        while not self._stop.is_set():
            try:
                self._check()
                with closing(self._state()) as state:
                    self._read(state, once=False)
            except SpamnbError as error:
                if self._stop.is_set():
                    return
                pause_s = self._next_pause(error)
                self._plan.trouble(self._name, error, pause_s)
                self._stop.wait(pause_s)

    def _check(self) -> None:
        for problem in account_problems(self._params):
            raise problem

    def _state(self) -> MailboxState:
        return MailboxState.open(self._plan.home, self._name, self._params.place)

    def _next_pause(self, error: SpamnbError) -> float:
        """Double the pause after each failure; a refused login could lock the account."""
        if isinstance(error, LoginRefusedError):
            self._pause_s = LONGEST_PAUSE_S
        pause_s = self._pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - so that not all come at once
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def _read(self, state: MailboxState, *, once: bool) -> None:
        with closing(ImapClient.open(self._params, self._plan.times, self._stop)) as client:
            account = SyncedAccount(self._name, self._params, self._plan.ports, self._stop.wait)
            sync = MailboxSync(account, client, state)
            sync.begin(existing=self._existing)
            began = looked = time.monotonic()
            more = sync.run()
            self._plan.read(self._name)
            self._existing = False
            while more or not once:
                if not more:
                    self._wait(client)
                everywhere = more or time.monotonic() - looked >= self._params.poll_s
                looked = time.monotonic() if everywhere else looked
                more = sync.run(everywhere=everywhere)
                if time.monotonic() - began > GOOD_S:
                    self._pause_s = FIRST_PAUSE_S

    def _wait(self, client: ImapClient) -> None:
        """Wait for a change in the inbox, at most `poll_s`."""
        self._stop.wait(_BREATH_S)
        try:
            client.idle(self._params.poll_s)
        except ImapRefusedError:  # the server has no IDLE, or refuses it now
            self._stop.wait(self._params.poll_s)
            client.noop()
        client.changed = False


def read_all(
    accounts: Mapping[str, ImapParams], plan: ImapPlan, stop: StopSignal
) -> list[threading.Thread]:
    """Start a thread for each mailbox. They end soon after they are told to stop.

    All waits use the monotonic clock. A mailbox that fails does not stop the others. Failure:
    `once` raises the error of a mailbox; `run` reports it and tries again.
    """
    threads = [
        threading.Thread(
            target=AccountReader(name, params, plan, stop).run, name=f"imap {name}", daemon=True
        )
        for name, params in accounts.items()
    ]
    for thread in threads:
        thread.start()
    return threads
