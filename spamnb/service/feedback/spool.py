"""The spool: what delivery agents leave while the daemon is away, learnt when it is back.

A folder that everybody may write into and only its owner may list (mode 1733). Whoever teaches
writes a file under a name that begins with a dot, syncs it, makes its voucher, and renames it to
`ANYTHING.LABEL`:

    1763712345.M7P3.host.spam            the message, as it is
    .1763712345.M7P3.host.spam.8675309/  the voucher: an empty folder, named by file and inode

or, for a message of another person (by those who may speak for others), with a line before it:

    {"for": "alice@example.org", "channel": "imap"}
    the message

Words on one message contradict each other, so they are taken in the order in which they were
written, by the files' times. A name that begins with `BOOT.TICKS.PID.` says it better: which boot
of the machine it was, and when in it the writer began (field 22 of /proc/PID/stat). No step of the
clock changes that, and writers within one tick of it are told apart by their numbers.

The owner of a file does not prove who left it: the owner of a folder may rename every file in it
into the spool, also mail that another user wrote there. A folder is proof: only a user who may
write a folder can move it to another parent (rename(2)), so an empty folder here that only its
owner may write was made here by its owner. A file counts as its owner's word if that owner has
made its voucher. The inode in the name binds the voucher to the one file.

A word must be a plain file of one name that only its owner may write: a hard link could be another
user's secret, a symbolic one a device that never ends, a pipe never opens. What is none is set
aside under a name that begins with `.aside-`, and counted. A file goes when its answer is durable,
and not before; a store that fails leaves it for the next time. Folders are left alone.

One listing reads each entry's name once and asks the file system about those that may be words;
after `_STEP` entries it pauses until the next look. So 200,000 entries of one user cost the others
the time of their names.

A private spool (mode 0700) holds what the daemon's own processes leave, and needs no vouchers.

Must not know the model or who is who. Failure: StoreError of the callback, passed on.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.errors import StoreAccessError, UserError
from spamnb.service.limits import SpoolLimits
from spamnb.store.files import durable_write
from spamnb.store.lmdb.sharing import make_folder, refused

MODE = 0o1733
_PRIVATE = 0o700
_STEP = 1 << 18
"""entries that one look lists: some 0.2 s"""
_HINT = f"a folder of the daemon's user with mode {MODE:o}; see feedback.spool"
FAILED = ".failed-"
"""begins the name of an empty file: a message that could not be left"""
_ASIDE = ".aside-"
_HEAD_BYTES = 1 << 16
_SETTLED_NS = 1_000_000_000
_STAMP = re.compile(r"([0-9a-f-]{36})\.([0-9]{1,15})\.([0-9]{1,9})\.")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OUR_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The machine is at its limits. All else that opening says (a link, a socket, somebody's closed
file, a bad sector) is of this file, which must not keep the others waiting."""


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One file that somebody left."""

    name: str
    label: str
    uid: int
    head: dict[str, Any]
    raw: bytes
    private: bool = False
    """in a private spool, so by a process of the daemon"""


class _SpoolEntry(NamedTuple):
    """One entry of the folder, as it compares to others: who was written first comes first."""

    born_ns: int
    """on the clock that only goes on; below 0 before the machine was started"""
    writer: int
    name: str
    uid: int
    inode: int


class Spool:
    """One such folder."""

    def __init__(
        self, folder: Path, limits: SpoolLimits | None = None, *, private: bool = False
    ) -> None:
        self.folder = folder
        self.limits = limits or SpoolLimits()
        self.set_aside = 0
        """entries that were no feedback, since we began"""
        self._private = private
        self._aside = 0
        """entries that lie aside, by the last listing"""
        self._listing: Iterator[list[_SpoolEntry] | None] | None = None
        """a listing that goes on in the next look"""
        self._quiet = 0
        """when the folder changed last, if nothing was there to be taken"""

    @property
    def busy(self) -> bool:
        """Whether a listing is under way, so that the next look should follow at once."""
        return self._listing is not None

    def make(self) -> None:
        """Make the folder, with its mode."""
        make_folder(self.folder.parent)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if self.folder.stat().st_uid == os.geteuid():
                self.folder.chmod(_PRIVATE if self._private else MODE)
        except OSError as error:
            raise refused(error, self.folder) from error

    def drain(self, labels: Collection[str], teach: Callable[[SpoolFile], None]) -> int:
        """Hand over what lies there, the oldest first; how many. Nothing to do if it is not there.

        `teach` returns when its answer is durable; what it raises ends the look.
        """
        done = 0
        with self._opened() as folder:
            if folder < 0 or not (self._listing or self._changed(folder)):
                return 0
            for one in self._listed(labels):
                self._quiet = 0
                done += self._taken(folder, one, teach)
            if done:
                os.fsync(folder)
        return done

    def _listed(self, labels: Collection[str]) -> list[_SpoolEntry]:
        """What a listing found; nothing while it is under way."""
        self._listing = self._listing or self._turn(labels)
        found = next(self._listing)
        if found is None:
            return []
        self._listing = None
        return found

    def _taken(self, folder: int, one: _SpoolEntry, teach: Callable[[SpoolFile], None]) -> bool:
        """Hand over one file, and let it go; whether it was feedback."""
        try:
            left = self._read(folder, one.name)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _OUR_FAULT:
                raise refused(error, self.folder / one.name) from error
            left = None
        if left is not None:
            teach(left)
        # The voucher first: one that outlives its file would vouch for the inode's next file.
        with suppress(OSError):
            os.rmdir(_voucher(one.name, one.inode), dir_fd=folder)
        if left is None:
            self._put_aside(folder, one.name)
            return False
        with suppress(FileNotFoundError):
            os.unlink(one.name, dir_fd=folder)
        return True

    def waiting(self) -> int:
        """How many lie there; what is set aside is not counted."""
        try:
            with os.scandir(self.folder) as entries:
                return sum(
                    not (entry.name.startswith(".") or entry.is_dir(follow_symlinks=False))
                    for entry in entries
                )
        except OSError:
            return 0

    def failed(self) -> int:
        """How many moves were lost on their way: the recipe's script left a mark for each."""
        try:
            return sum(name.startswith(FAILED) for name in os.listdir(self.folder))  # noqa: PTH208
        except OSError:
            return 0

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            folder = os.open(self.folder, _FOLDER)
        except FileNotFoundError:
            yield -1
            return
        except OSError as error:
            raise refused(error, self.folder) from error
        try:
            about = os.fstat(folder)
            if os.geteuid() not in (0, about.st_uid):
                # Only its owner may take away what others left: it would be learnt for ever.
                raise StoreAccessError(f"{self.folder} is not ours", hint="chown it to the daemon")
            if self._private and about.st_mode & 0o077:
                raise StoreAccessError(f"{self.folder} is open to others", hint="chmod it to 0700")
            yield folder
        finally:
            os.close(folder)

    def _changed(self, folder: int) -> bool:
        """Whether anything was put in or taken out since a look that found nothing.

        A time that is fresh proves nothing: the clock of files stands still for some milliseconds.
        """
        changed = os.fstat(folder).st_mtime_ns
        if changed == self._quiet:
            return False
        self._quiet = changed if time.time_ns() - changed > _SETTLED_NS else 0
        return True

    def _turn(self, labels: Collection[str]) -> Iterator[list[_SpoolEntry] | None]:
        """Files in the order in which they were written, so many of each owner; None: a pause.

        A listing is no snapshot: of two files that come meanwhile it may show the second alone.
        But what is older than a file of the first listing is all in the second one.
        """
        ahead_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        newest: _SpoolEntry | None = None
        for one in self._lying(labels, ahead_ns):
            if one is None:
                yield None
            elif newest is None or one > newest:
                newest = one
        turns: dict[int, list[_SpoolEntry]] = {}
        for one in self._lying(labels, ahead_ns) if newest is not None else ():
            if one is None:
                yield None
            elif newest is not None and one <= newest:
                turn = turns.setdefault(one.uid, [])
                turn.append(one)
                # A flood fills the folder, not our memory.
                if len(turn) > 2 * self.limits.each_owner:
                    self._shorten(turn)
        for turn in turns.values():
            self._shorten(turn)
        yield sorted(chain.from_iterable(turns.values()))

    def _shorten(self, turn: list[_SpoolEntry]) -> None:
        turn.sort()
        del turn[self.limits.each_owner :]

    def _lying(self, labels: Collection[str], ahead_ns: int) -> Iterator[_SpoolEntry | None]:
        """What has its final name and is no folder; None after so many entries.

        `ahead_ns`: by how much the time of day is ahead of the clock that only goes on.
        """
        aside = 0
        with _listing(self.folder) as entries:
            for count, entry in enumerate(entries, 1):
                name = entry.name
                if name.startswith("."):
                    aside += name.startswith(_ASIDE)
                elif name.rpartition(".")[2] in labels and name not in labels:
                    one = _one(entry, ahead_ns)
                    if one is not None:
                        yield one
                if count % _STEP == 0:
                    yield None
        self._aside = aside

    def _read(self, folder: int, name: str) -> SpoolFile | None:
        """A file's content, if it is one that may be believed."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        handle = os.open(name, flags, dir_fd=folder)
        try:
            about = os.fstat(handle)
            if not (self._plain(about) and (self._private or _vouched(folder, name, about))):
                return None
            with os.fdopen(os.dup(handle), "rb") as file:
                data = file.read(self.limits.file_bytes + 1)
        finally:
            os.close(handle)
        if len(data) != about.st_size:
            return None
        left = _left(name, about.st_uid, data)
        return left and replace(left, private=self._private)

    def _plain(self, about: os.stat_result) -> bool:
        return (
            stat.S_ISREG(about.st_mode)
            and about.st_nlink == 1
            and not about.st_mode & 0o022
            and 0 < about.st_size <= self.limits.file_bytes
        )

    def _put_aside(self, folder: int, name: str) -> None:
        """Rename what is no feedback, or remove it if enough lies aside or its name is taken."""
        self.set_aside += 1
        with suppress(OSError):
            if self._aside < self.limits.aside:
                self._aside += 1
                target = _ASIDE + name[:200]
                with suppress(IsADirectoryError):
                    os.rename(name, target, src_dir_fd=folder, dst_dir_fd=folder)
                    return
            os.unlink(name, dir_fd=folder)


def problem(folder: Path) -> UserError | None:
    """Why other users cannot leave feedback here, or this user cannot take it; None if both can."""
    try:
        about = folder.stat()
    except OSError as error:
        return UserError(f"the spool {folder} cannot be used: {error.strerror}", hint=_HINT)
    if not stat.S_ISDIR(about.st_mode):
        return UserError(f"the spool {folder} is no folder", hint=_HINT)
    if about.st_uid != os.geteuid():
        return UserError(f"the spool {folder} does not belong to the daemon's user", hint=_HINT)
    if stat.S_IMODE(about.st_mode) != MODE:
        mode = stat.S_IMODE(about.st_mode)
        return UserError(f"the spool {folder} has the mode {mode:o}, not {MODE:o}", hint=_HINT)
    return None


def leave(folder: Path, label: str, raw: bytes, head: dict[str, Any]) -> None:
    """Put one message into a private spool, durably: for processes that do not teach themselves."""
    name = f"{time.time_ns()}.{secrets.token_hex(8)}"
    try:
        durable_write(folder / f"{name}.{label}", json.dumps(head).encode(), b"\n", raw)
    except OSError as error:
        raise refused(error, folder) from error


@contextmanager
def _listing(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of a folder, by a descriptor of their own: others have another position."""
    try:
        handle = os.open(folder, _FOLDER)
    except OSError as error:
        raise refused(error, folder) from error
    try:
        with os.scandir(handle) as entries:
            yield entries
    finally:
        os.close(handle)


def _one(entry: os.DirEntry[str], ahead_ns: int) -> _SpoolEntry | None:
    """A file of the spool; None for a folder, and for what has just gone."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return None
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    stamp = _STAMP.match(entry.name)
    born_ns = about.st_mtime_ns - ahead_ns
    if stamp and stamp[1] == _boot():
        born_ns = int(stamp[2]) * _TICK_NS
    writer = int(stamp[3]) if stamp else 0
    return _SpoolEntry(born_ns, writer, entry.name, about.st_uid, about.st_ino)


def _voucher(name: str, inode: int) -> str:
    return f".{name}.{inode}"


def _vouched(folder: int, name: str, file: os.stat_result) -> bool:
    """Whether the file's owner has made its voucher in this folder."""
    try:
        handle = os.open(_voucher(name, file.st_ino), _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return False
    try:
        about = os.fstat(handle)
        own = about.st_uid == file.st_uid and not about.st_mode & 0o022
        return own and not os.listdir(handle)  # noqa: PTH208 - by its descriptor
    finally:
        os.close(handle)


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _left(name: str, uid: int, data: bytes) -> SpoolFile | None:
    label = name.rpartition(".")[2]
    if not data.startswith(b"{"):
        return SpoolFile(name, label, uid, {}, data)
    line, _, raw = data.partition(b"\n")
    try:
        head = json.loads(line[:_HEAD_BYTES])
    except (ValueError, RecursionError):
        return None
    return SpoolFile(name, label, uid, head, raw) if isinstance(head, dict) else None
