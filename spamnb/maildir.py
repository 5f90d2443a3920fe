"""Watch a Maildir: a message moved by its user becomes feedback.

`Watcher` reads what arrives in the folders and teaches it, `MaildirMailbox` moves and deletes
messages, `label_from_folder`, `label_by_folder` and `label_by_keyword` tell what a place or a
keyword means. Must not know the model or the control socket: the caller passes functions that look
up a label and teach; their StoreError is passed on, and a message that was not taught is checked
again.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import re
import select
import stat
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from spamnb.engine.mailboxes import MessageSpan
from spamnb.errors import CorpusError, PeerError, StoreAccessError
from spamnb.feedback.values import Answer, Feedback
from spamnb.maintenance.doctor import SIDES, FoundMessage, Side
from spamnb.store.files import as_caller, opened


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


Role = Literal["ham", "spam", "silent"]


@dataclass(frozen=True, slots=True)
class Folders:
    """Names of folders, without the leading dot; their sub-folders have the same role."""

    junk: tuple[str, ...] = ("Junk", "Spam", "INBOX.Junk", "INBOX.Spam")
    silent: tuple[str, ...] = (
        "Trash", "Deleted Messages", "Deleted Items", "Sent", "Sent Messages", "Sent Items",
        "Drafts", "Templates", "Outbox",
    )  # fmt: skip
    """deleted mail, or the user's own"""


def role_of(folder: str, folders: Folders) -> Role:
    """The role of a folder; "" is the inbox."""
    name = folder.removeprefix(".").casefold()

    def below(names: tuple[str, ...]) -> bool:
        known = [known.casefold() for known in names]
        return any(name == one or name.startswith((f"{one}.", f"{one}/")) for one in known)

    return "spam" if below(folders.junk) else "silent" if below(folders.silent) else "ham"


_HEADER = re.compile(rb"(.*?)(?:\r?\n\r?\n|\Z)", re.DOTALL)
_FLAG = re.compile(rb"^x-spam-flag[ \t]*:[ \t]*(yes|no)\b", re.IGNORECASE | re.MULTILINE)


def delivered_as(raw: bytes) -> Role:
    """The label that delivery chose, by the header; silent without this header."""
    header = _HEADER.match(raw)
    found = _FLAG.search(header[1]) if header else None
    if found is None:
        return "silent"
    return "spam" if found[1].lower() == b"yes" else "ham"


def label_from_folder(folder: Role, delivered: Role, taught: str | None) -> str | None:
    """The label that a user gave by moving a message here; None if there is none.

    If any user has taught the message, the folder is compared with its label, else with its header.
    Without the header only Junk implies a label.

    A message in Junk was labelled spam by the user that moved it there, elsewhere ham. Folders for
    deleted or own mail imply nothing. The X-Spam-Flag header tells whether delivery or the user
    chose the folder: only a folder that contradicts the header, or an earlier label, is a user's
    correction. So nothing is learnt from spamnb's own verdicts, and no earlier folder needs to be
    remembered.
    """
    if folder == "silent":
        return None
    if taught is not None:
        return folder if taught in ("ham", "spam") and taught != folder else None
    if delivered == "silent":
        return folder if folder == "spam" else None
    return folder if folder != delivered else None


_CLOSE_WRITE = 0x0008
_MOVED_TO = 0x0080
_CREATE = 0x0100
_Q_OVERFLOW = 0x4000
_IGNORED = 0x8000
_ONLYDIR = 0x0100_0000
_ISDIR = 0x4000_0000
_CLOEXEC, _NONBLOCK = os.O_CLOEXEC, os.O_NONBLOCK
_HEAD = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class FileEvent(NamedTuple):
    """One event; `lost` says that other events were dropped."""

    folder: Path
    name: str
    is_folder: bool
    lost: bool = False


class Inotify:
    """Watches folders.

    The standard library lacks inotify(7). A file arrived in a folder, a folder was created, events
    were lost. Failure: OSError.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(_CLOEXEC | _NONBLOCK), "inotify")
        self._folders: dict[int, Path] = {}

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return result

    def fileno(self) -> int:
        """The descriptor, for select."""
        return self._fd

    def watch(self, handle: int, folder: Path) -> None:
        """Report files that arrive in this open folder; a second call for it changes nothing."""
        mask = _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLYDIR
        name = f"/proc/self/fd/{handle}".encode()
        number = self._checked(self._libc.inotify_add_watch(self._fd, name, mask), str(folder))
        self._folders[number] = folder

    def read_events(self) -> Iterator[FileEvent]:
        """The events since the last call, which may be none."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, mask, _, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = os.fsdecode(data[at : at + size].rstrip(b"\0"))
            at += size
            if mask & _Q_OVERFLOW:
                yield FileEvent(Path(), "", is_folder=False, lost=True)
            elif mask & _IGNORED:
                self._folders.pop(number, None)
            elif number in self._folders and (mask & _ISDIR or not mask & _CREATE):
                # A created file is reported again when it is complete: closed, or moved here.
                yield FileEvent(self._folders[number], name, is_folder=bool(mask & _ISDIR))

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)


INBOXES = ("", "inbox", "maildir", "mail", "mbox")
"""names of the folder in which new mail arrives, in lower case"""
KEYWORDS = {
    **dict.fromkeys(("$junk", "junk"), "spam"),
    **dict.fromkeys(("$notjunk", "notjunk", "nonjunk"), "ham"),
}
_FLAGS = re.compile(r":2,([A-Za-z]*)$")
_KEYWORDS_BYTES = 65_536
_FOLDERS = Folders()


def label_by_folder(span: MessageSpan, root: str) -> str | None:
    """Return the label that the folder of a message implies; None if it implies none.

    Junk is spam. Archives and folders that the user created are ham, and so is an answered message
    in any folder except Junk. The rest of the inbox, deleted and own mail give no label.
    """
    flags = _flags(span)
    if "T" in flags:
        return None
    folder = _folder(span, root)
    role = role_of(folder, _FOLDERS)
    if role != "ham":
        return "spam" if role == "spam" else None
    is_inbox = folder.lower() in INBOXES
    return "ham" if not is_inbox or "R" in flags else None


def label_by_keyword(span: MessageSpan, _root: str) -> str | None:
    """Return the label of a message's keywords; None if it has none or both.

    `$Junk` and `Junk` are spam, `$NotJunk`, `NotJunk` and `NonJunk` ham; the file
    `dovecot-keywords` of a Maildir tells which letter of a file name is which keyword.
    """
    path = Path(span.path)
    names = _keywords(path.parent.parent)
    letters = [names.get(flag) for flag in _flags(span)]
    found = {KEYWORDS[name] for name in letters if name in KEYWORDS}
    return found.pop() if len(found) == 1 else None


def _flags(span: MessageSpan) -> str:
    found = _FLAGS.search(span.path)
    return found[1] if found else ""


def _folder(span: MessageSpan, root: str) -> str:
    """Return the name of a message's folder below the root, as Maildir writes it."""
    path = Path(span.path)
    if path.parent.name in ("cur", "new"):
        folder = path.parent.parent
    else:
        folder = path if span.number else path.parent  # an mbox is a folder
    if folder == Path(root):
        return ""
    return folder.name.removeprefix(".")


@lru_cache(maxsize=256)
def _keywords(folder: Path) -> dict[str, str]:
    """Return the keyword of each letter, in lower case, by the file that Dovecot writes."""
    try:
        with (folder / "dovecot-keywords").open("rb") as file:
            text = file.read(_KEYWORDS_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    rows = (line.split(" ", 1) for line in text.splitlines())
    return {
        chr(ord("a") + int(row[0])): row[1].lower()
        for row in rows
        if len(row) == 2 and row[0].isdecimal() and int(row[0]) < 26
    }


_PARTS: Final = ("new", "cur")
_NO_FOLDER: Final = (
    "it needs new/ and cur/; make the junk folder with the mail program, or with `doveadm mailbox "
    "create`"
)
_HEAD_BYTES: Final = 1 << 17
_SLACK_NS: Final = 5 * 10**9
"""difference between the local clock and that of a file server"""


@dataclass(frozen=True, slots=True)
class MaildirLocation:
    """A Maildir and its user."""

    root: Path
    user: str
    junk: str = "Junk"
    acting: Callable[[], AbstractContextManager[object]] = nullcontext
    """enters the identity to use: the Maildir's owner, so that a link in it leads nowhere else"""


class MaildirMailbox:
    """`Mailbox` in one user's Maildir. Created by `open`.

    Files are renamed from folder to folder, as mail programs do; none is written. Only files that
    arrived since `open` are read, so a mailbox of a hundred thousand messages costs only their
    names.

    Must not know what a move means, or which program watches. Failure: PeerError.
    """

    channels = frozenset(("maildir",))
    advice = "check that `spamnb watch` runs for this Maildir, with a --quiet below --wait"

    def __init__(self, location: MaildirLocation) -> None:
        self.user = location.user
        self._location = location
        self._since_ns = time.time_ns() - _SLACK_NS
        self._old: set[tuple[bytes, Path]] = set()
        """files that are other messages than one: by its pattern, folder and name without flags"""
        folders: dict[Side, str] = {"inbox": "", "junk": f".{location.junk.removeprefix('.')}"}
        self._folders = {side: location.root / name for side, name in folders.items()}
        self.about = f"{location.root} of {location.user}, junk is {self._folders['junk'].name}"

    @classmethod
    def open(cls, location: MaildirLocation) -> MaildirMailbox:
        """Check that both folders exist."""
        made = cls(location)
        with made._acting():
            for side in SIDES:
                folder = made._folders[side]
                if not any((folder / part).is_dir() for part in _PARTS):
                    raise PeerError(f"{folder} is not a Maildir", hint=_NO_FOLDER)
        return made

    def find(self, ident: str) -> FoundMessage | None:
        with self._acting():
            for side in SIDES:
                for path in self._files_of(self._folders[side], ident):
                    return FoundMessage(side, path.read_bytes())
        return None

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move the message by renaming its file, and mark it as seen."""
        with self._acting():
            for path in self._files_of(self._folders[source], ident):
                name = path.name if ":2," in path.name else f"{path.name}:2,S"
                path.rename(self._folders[target] / "cur" / name)
                return "renaming"
        raise PeerError(f"the message is not in {self._folders[source]} any more")

    def purge(self, ident: str) -> int:
        count = 0
        with self._acting():
            inner = [path for path in self._location.root.glob(".*") if path.is_dir()]
            for folder in (self._location.root, *inner):
                for path in self._files_of(folder, ident):
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _files_of(self, folder: Path, ident: str) -> list[Path]:
        """The files of a folder that contain this message.

        A list: Python drops an interrupt that arrives while it closes a generator early.
        """
        line = re.compile(rb"(?im)^message-id:\s{0,3}" + re.escape(ident.encode()) + rb"\s*$")
        paths = (path for part in _PARTS for path in _files(folder / part))
        return [path for path in paths if self._is_message(path, line)]

    def _is_message(self, path: Path, line: re.Pattern[bytes]) -> bool:
        key = line.pattern, path.with_name(path.name.partition(":")[0])
        if key in self._old:
            return False
        try:
            found = _is_new(path, self._since_ns) and bool(line.search(_head(path)))
        except FileNotFoundError:  # a mail program has just moved it
            return False
        if not found:
            self._old.add(key)
        return found

    @contextmanager
    def _acting(self) -> Iterator[None]:
        try:
            with self._location.acting():
                yield
        except OSError as error:
            raise PeerError(f"{self._location.root}: {error.strerror or error}") from error


def _files(part: Path) -> list[Path]:
    try:
        with os.scandir(part) as entries:
            return [Path(entry.path) for entry in entries]
    except FileNotFoundError:
        return []


def _is_new(path: Path, since_ns: int) -> bool:
    # ctime: a rename sets it, and no program can set it back.
    about = path.stat(follow_symlinks=False)
    return stat.S_ISREG(about.st_mode) and about.st_ctime_ns >= since_ns


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES).replace(b"\r\n", b"\n").partition(b"\n\n")[0]


LOG = logging.getLogger("spamnb.watch")

PARTS = ("new", "cur")
_FOLDER_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EPERM, errno.EACCES)
MOST_FOLDERS = 5000
"""watched folders of one Maildir: the kernel allows some 200,000 watches in total"""
EACH = 100
"""messages of one Maildir in one pass, so that the other Maildirs are read too"""
MOST_WAITING = 10_000
"""messages of one Maildir that wait in memory (3 MB). A user that renames a file all the time adds
thousands a second; the watcher looks for later arrivals when these messages are done"""
LIMIT_BYTES = 32 << 20
_TICK_NS = 20_000_000
"""File times come from the kernel's last tick, up to 10 ms behind the clock that is read here: a
file that arrives just after the checkpoint could seem older than the checkpoint."""


@dataclass(frozen=True, slots=True)
class Maildir:
    """One user's mail."""

    root: Path
    user: str


class Checkpoint(Protocol):
    """Where a run stopped."""

    def load(self) -> int:
        """Nanoseconds since 1970; 0 if there was no run."""

    def save(self, seen_ns: int) -> None:
        """Record that all files that arrived before this time are done."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The quiet time before a message is read, and the folders' roles."""

    quiet_s: float = 30.0
    folders: Folders = field(default_factory=Folders)


@dataclass(frozen=True, slots=True)
class _Arrival:
    maildir: Maildir
    part: Path
    """the folder's `new` or `cur`"""
    name: str
    role: Role
    since_ns: int
    """wall time of its arrival"""


_Change = tuple[int, Path, str]
"""the earliest time at which a file can have changed, its folder and name"""


class _Entry(NamedTuple):
    name: str
    changed_ns: int
    is_folder: bool


class Watcher:
    """Watches Maildirs.

    The watcher records when and where a file arrives, and reads it only after it has not moved for
    a while. So a temporary place (a client's rule, a mistaken move) teaches nothing. A restart
    continues at the checkpoint: files that moved since then are checked (by their ctime). A second
    check changes nothing, since the model knows the taught label.

    The watcher may run as root, and a Maildir's owner controls its links: all access is by
    descriptors of folders, without following that user's links (`store.files`).
    """

    def __init__(
        self,
        maildirs: list[Maildir],
        taught: Callable[[bytes, str], str | None],
        teach: Callable[[Feedback], Answer],
        checkpoint: Checkpoint,
        options: WatchOptions | None = None,
    ) -> None:
        self._maildirs = maildirs
        self._taught = taught
        self._teach = teach
        self._checkpoint = checkpoint
        self._options = options or WatchOptions()
        self._inotify = Inotify()
        self._owners: dict[Path, tuple[Maildir, str]] = {}
        self._folders: Counter[Path] = Counter()
        """watched folders by Maildir"""
        self._waiting: dict[tuple[Path, str], _Arrival] = {}
        """by Maildir and name: a message that moves again starts its quiet time again"""
        self._count: Counter[Path] = Counter()
        """messages in `_waiting` by Maildir"""
        self._left_out: dict[Maildir, _Change] = {}
        """of Maildirs with `MOST_WAITING` messages: the first omitted change, or an earlier one"""
        self._read_until_ns = time.time_ns()
        """all events up to this time have been read"""

    # -- start ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Watch, then check what arrived since the checkpoint, so that nothing is missed."""
        since = self._checkpoint.load()
        for maildir in self._maildirs:
            self._watch_maildir(maildir)
            if not any(maildir.root / part in self._owners for part in PARTS):
                raise CorpusError(f"{maildir.root} is not a Maildir", hint="it needs new/ and cur/")
        if since:
            # A checkpoint in the future was saved while the clock was ahead.
            self._look_back(since if since <= time.time_ns() else 0)
        else:
            self._checkpoint.save(time.time_ns())

    @as_caller()
    def _watch_maildir(self, maildir: Maildir) -> None:
        self._watch_folder(maildir, "")
        for entry in _entries(maildir.root):
            if entry.name.startswith(".") and entry.is_folder:
                self._watch_folder(maildir, entry.name)

    def _watch_folder(self, maildir: Maildir, folder: str) -> list[Path]:
        """Watch a folder and its parts; return the watched parts."""
        folder_path = maildir.root / folder
        if not self._watch_path(folder_path, maildir, folder):
            return []
        parts = [folder_path / part for part in PARTS]
        return [part for part in parts if self._watch_path(part, maildir, folder)]

    def _watch_path(self, folder_path: Path, maildir: Maildir, folder: str) -> bool:
        """Watch one folder; False if it is missing, a link of its owner, or owned by another user.

        Changes of one user's folders must not end the watch for the other users.
        """
        if folder_path not in self._owners and self._folders[maildir.root] >= MOST_FOLDERS:
            return False
        try:
            with opened(folder_path) as handle:
                self._inotify.watch(handle, folder_path)
        except OSError as error:
            if error.errno not in _FOLDER_GONE:
                LOG.warning("%r is not watched: %s", str(folder_path), error.strerror)
            return False
        self._folders[maildir.root] += folder_path not in self._owners
        self._owners[folder_path] = (maildir, folder)
        return True

    def _look_back(self, since_ns: int) -> None:
        """Check what arrived since this time; a second check changes nothing."""
        self._look_after((since_ns - _TICK_NS, Path(), ""), self._maildirs)

    @as_caller()
    def _look_after(self, least: _Change, maildirs: list[Maildir]) -> None:
        """Check the changes from this time on, the oldest first."""
        found = [
            (entry.changed_ns, part, entry.name)
            for part, (maildir, _) in self._owners.items()
            if part.name in PARTS and maildir in maildirs
            for entry in _entries(part)
        ]
        for change in sorted(one for one in found if one >= least):
            self._arrived(change, change[0])

    # -- watching -------------------------------------------------------------------------------

    def watch(self, stopped: Callable[[], bool]) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Run until stopped; yield each feedback that was taught."""
        while not stopped():
            select.select([self._inotify], [], [], 0.5)
            self.listen()
            yield from self.due()

    def listen(self) -> None:
        """Read new file events."""
        now, events = time.time_ns(), list(self._inotify.read_events())
        if not events:
            self._read_until_ns = now
        for event in events:
            if event.lost:
                self._look_back(self._checkpoint.load())
            elif event.is_folder:
                self._folder_made(event.folder, event.name)
            else:
                change = self._read_until_ns - _TICK_NS, event.folder, event.name
                self._arrived(change, time.time_ns())

    @as_caller()
    def _folder_made(self, folder_path: Path, name: str) -> None:
        maildir, folder = self._owners[folder_path]
        parts: list[Path] = []
        if folder_path == maildir.root and name.startswith("."):
            parts = self._watch_folder(maildir, name)
        elif name in PARTS and self._watch_path(folder_path / name, maildir, folder):
            parts = [folder_path / name]
        # Files that arrived before the watch began caused no event.
        for part in parts:
            for entry in _entries(part):
                self._arrived((entry.changed_ns, part, entry.name), time.time_ns())

    def _arrived(self, change: _Change, since_ns: int) -> None:
        """Let a file wait for its quiet time, which began at `since_ns`."""
        _, part, name = change
        maildir, folder = self._owners[part]
        if part.name not in PARTS or name.startswith("."):
            return
        key = (maildir.root, name.partition(":")[0])
        if key not in self._waiting:
            if self._count[maildir.root] >= MOST_WAITING:
                self._left_out[maildir] = min(change, self._left_out.get(maildir, change))
                return
            self._count[maildir.root] += 1
        role = role_of(folder, self._options.folders)
        self._waiting[key] = _Arrival(maildir, part, name, role, since_ns)

    # -- teaching -------------------------------------------------------------------------------

    def all_due(self) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Teach until nothing is due."""
        while self._ready(time.time_ns()):
            yield from self.due()

    def due(self) -> Iterator[tuple[Feedback, Answer, Path]]:
        """Teach messages after their quiet time, at most `EACH` of each Maildir."""
        quiet_ns = int(self._options.quiet_s * 1e9)
        now = time.time_ns()
        ready = self._ready(now)
        listed: dict[Path, dict[str, str]] = {}
        for key in ready:
            arrival = self._waiting[key]
            for feedback, path in self._feedback_for(arrival, listed):
                yield feedback, self._teach(feedback), path
            del self._waiting[key]
            self._count[key[0]] -= 1
        if ready:
            self._take_left_out()
            waiting = [one.since_ns for one in self._waiting.values()]
            waiting += [changed_ns for changed_ns, _, _ in self._left_out.values()]
            self._checkpoint.save(min([now - quiet_ns, *waiting]))

    def _take_left_out(self) -> None:
        """Look for arrivals that were left out, in Maildirs without waiting messages."""
        for maildir in [one for one in self._left_out if not self._count[one.root]]:
            self._look_after(self._left_out.pop(maildir), [maildir])

    def _ready(self, now: int) -> list[tuple[Path, str]]:
        """Messages after their quiet time; an arrival in the future was before a clock step."""
        quiet_ns = int(self._options.quiet_s * 1e9)
        taken: Counter[Path] = Counter()
        found = []
        for key, one in self._waiting.items():
            is_due = one.since_ns + quiet_ns <= now or one.since_ns > now
            if is_due and taken[key[0]] < EACH:
                taken[key[0]] += 1
                found.append(key)
        return found

    def _feedback_for(
        self, arrival: _Arrival, listed: dict[Path, dict[str, str]]
    ) -> Iterator[tuple[Feedback, Path]]:
        if arrival.role == "silent":
            return
        path = _find(arrival, listed)
        raw = _read(path) if path else b""
        if path is None or not raw:
            return
        label = label_from_folder(
            arrival.role, delivered_as(raw), self._taught(raw, arrival.maildir.user)
        )
        if label is not None:
            yield Feedback(label, raw, user=arrival.maildir.user, channel="maildir"), path

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()


@as_caller()
def _find(arrival: _Arrival, listed: dict[Path, dict[str, str]]) -> Path | None:
    """The file's path now: mail programs add flags and move it from new to cur.

    `listed` keeps the names in each `cur` for one pass: 2,000 deleted messages beside 100,000 would
    take twelve minutes with one listing for each message. A file that moves after the listing
    causes a new event.
    """
    with suppress(OSError), opened(arrival.part) as folder:
        os.stat(arrival.name, dir_fd=folder, follow_symlinks=False)
        return arrival.part / arrival.name
    current = arrival.part.parent / "cur"
    if current not in listed:
        listed[current] = {name.partition(":")[0]: name for name in _names(current)}
    name = listed[current].get(arrival.name.partition(":")[0])
    return current / name if name else None


def _names(folder_path: Path) -> list[str]:
    with suppress(OSError), opened(folder_path) as folder:
        return os.listdir(folder)  # noqa: PTH208 - by its descriptor
    return []


def _entries(folder_path: Path) -> list[_Entry]:
    """The entries of a folder; none if it is gone or may not be opened."""
    found = []
    with suppress(OSError), opened(folder_path) as folder, os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
                found.append(_Entry(entry.name, about.st_ctime_ns, is_folder))
    return found


def _read(path: Path) -> bytes:
    """The content of a plain file that is not too large; otherwise empty."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with as_caller(), opened(path.parent) as folder:
            handle = os.open(path.name, flags, dir_fd=folder)
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > LIMIT_BYTES:
            return b""
        return file.read(LIMIT_BYTES)
