"""The spool: a folder into which programs write feedback, also while no daemon runs.

A folder into which every user may write and which only its owner may list (mode 1733). The writer
creates a file under a name that begins with a dot, syncs it, makes its voucher, and renames it to
`ANYTHING.LABEL`:

    1763712345.M7P3.host.spam            the message, as it is
    .1763712345.M7P3.host.spam.8675309/  the voucher: an empty folder, named by file and inode

or, for another user's message (by users with that right), with a line before it:

    {"for": "alice@example.org", "channel": "imap"}
    the message

Labels of one message may contradict each other, so files are processed in the order in which they
were written, by their times. A name that begins with `BOOT.TICKS.PID.` is more exact: it names the
boot of the machine, and the time from there to the writer's start (field 22 of /proc/PID/stat).
Steps of the clock do not change that, and writers within one tick are ordered by their numbers.

A file's owner is not necessarily its author: a user with write access to a folder may rename every
file in it into the spool, also mail that another user wrote there. A folder is proof: only a user
with write access to a folder can move it to another parent (rename(2)), so an empty folder here
that only its owner may write was made here by its owner. A file counts as its owner's feedback if
that owner has made its voucher. The inode in the name binds the voucher to the one file.

Feedback must be a plain file with one name that only its owner may write: a hard link could be
another user's secret, a symbolic one an endless device, and a pipe blocks on open. Other entries
are set aside under a name that begins with `.aside-`, and counted. A file is deleted when its
answer is durable; if the store fails, it stays for the next time. Folders are left alone.

One listing reads each entry's name once and asks the file system only about candidates; after
`_STEP` entries it pauses until the next call. So 200,000 entries of one user delay the others by
the time to read their names.

A private spool (mode 0700) holds what the daemon's own processes leave, and needs no vouchers.

Must not know the model or user permissions. Failure: StoreError of the callback, passed on.
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
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.errors import StoreAccessError, UserError
from spamnb.settings.values import SpoolLimits
from spamnb.store.files import durable_write, make_folder, refused

MODE = 0o1733
_PRIVATE = 0o700
_STEP = 1 << 18
"""entries that one call lists: some 0.2 s"""
_HINT = f"a folder of the daemon's user with mode {MODE:o}; see feedback.spool"
FAILED = ".failed-"
"""begins the name of an empty file: a message that could not be written to the spool"""
_ASIDE = ".aside-"
_DONE = ".done-"
_DONE_AT_ONCE = 1000
"""Most `.done-` files that one listing deletes: deleting one takes 20 us. A killed process leaves a
few of them, but a user can create any number."""
_HEAD_BYTES = 1 << 16
_SETTLED_NS = 1_000_000_000
_STAMP = re.compile(r"([0-9a-f-]{36})\.([0-9]{1,15})\.([0-9]{1,9})\.")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OUR_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The machine is at its limits. Any other error of open (a link, a socket, no permission, a bad
sector) concerns this file alone, which must not delay the others."""


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One feedback file."""

    name: str
    label: str
    uid: int
    head: dict[str, Any]
    raw: bytes
    private: bool = False
    """from a private spool, so written by a process of the daemon"""


class _SpoolEntry(NamedTuple):
    """One entry of the folder; entries sort by the time they were written."""

    born_ns: int
    """on the monotonic clock; below 0 before the machine was started"""
    writer: int
    name: str
    uid: int
    inode: int
    size: int


class Spool:
    """One spool folder."""

    def __init__(
        self, folder: Path, limits: SpoolLimits | None = None, *, private: bool = False
    ) -> None:
        self.folder = folder
        self.limits = limits or SpoolLimits()
        self.set_aside = 0
        """entries that were not feedback, since the start"""
        self._private = private
        self._aside_count = 0
        """entries set aside, by the last listing"""
        self._listing: Iterator[list[_SpoolEntry] | None] | None = None
        """a listing that the next call continues"""
        self._unchanged_since = 0
        """the folder's modification time when it was last found empty"""

    @property
    def busy(self) -> bool:
        """Whether a listing is in progress, so that the next call should follow immediately."""
        return self._listing is not None

    def make(self) -> None:
        """Create the folder, with its mode."""
        make_folder(self.folder.parent)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if self.folder.stat().st_uid == os.geteuid():
                self.folder.chmod(_PRIVATE if self._private else MODE)
        except OSError as error:
            raise refused(error, self.folder) from error

    def drain(self, labels: Collection[str], teach: Callable[[SpoolFile], None]) -> int:
        """Pass the files to `teach`, the oldest first; returns how many. A missing folder is empty.

        `teach` returns when its answer is durable; an exception in it ends the call.
        """
        done = 0
        with self._opened() as folder:
            if folder < 0 or not (self._listing or self._changed(folder)):
                return 0
            for one in self._next_listing(labels):
                self._unchanged_since = 0
                done += self._process(folder, one, teach)
            if done:
                os.fsync(folder)
        return done

    def _next_listing(self, labels: Collection[str]) -> list[_SpoolEntry]:
        """The entries of a finished listing; empty while it is in progress."""
        self._listing = self._listing or self._list_in_order(labels)
        found = next(self._listing)
        if found is None:
            return []
        self._listing = None
        return found

    def _process(self, folder: int, one: _SpoolEntry, teach: Callable[[SpoolFile], None]) -> bool:
        """Pass one file to `teach` and delete it; whether it was feedback."""
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
        if left is None:
            _remove_voucher(folder, one.name, one.inode)
            self._put_aside(folder, one.name)
            return False
        _delete(folder, one.name, one.inode)
        return True

    def waiting(self) -> int:
        """The number of files; those set aside are not counted."""
        try:
            with os.scandir(self.folder) as entries:
                return sum(
                    not (entry.name.startswith(".") or entry.is_dir(follow_symlinks=False))
                    for entry in entries
                )
        except OSError:
            return 0

    def failed(self) -> int:
        """The number of lost messages: the Dovecot script creates an empty file for each."""
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
                # Only its owner may delete others' files: they would be learnt again and again.
                raise StoreAccessError(
                    f"{self.folder} does not belong to the daemon's user",
                    hint="chown it to the daemon's user",
                )
            if self._private and about.st_mode & 0o077:
                raise StoreAccessError(
                    f"{self.folder} is accessible to other users", hint="chmod it to 0700"
                )
            yield folder
        finally:
            os.close(folder)

    def _changed(self, folder: int) -> bool:
        """Whether the folder has changed since a call that found nothing.

        A recent modification time proves nothing: the file system's clock advances in steps of some
        milliseconds.
        """
        changed = os.fstat(folder).st_mtime_ns
        if changed == self._unchanged_since:
            return False
        self._unchanged_since = changed if time.time_ns() - changed > _SETTLED_NS else 0
        return True

    def _list_in_order(self, labels: Collection[str]) -> Iterator[list[_SpoolEntry] | None]:
        """Files in the order they were written, a limited number of each owner; None: a pause.

        A listing is no snapshot: of two files that appear meanwhile it may show the second alone.
        But all that is older than a file of the first listing is in the second one.
        """
        ahead_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        newest: _SpoolEntry | None = None
        for one in self._candidates(labels, ahead_ns):
            if one is None:
                yield None
            elif newest is None or one > newest:
                newest = one
        by_owner: dict[int, list[_SpoolEntry]] = {}
        for one in self._candidates(labels, ahead_ns) if newest is not None else ():
            if one is None:
                yield None
            elif newest is not None and one <= newest:
                batch = by_owner.setdefault(one.uid, [])
                batch.append(one)
                # A flood fills the folder, not the memory.
                if len(batch) > 2 * self.limits.each_owner:
                    self._shorten(batch)
        for batch in by_owner.values():
            self._shorten(batch)
        yield sorted(chain.from_iterable(by_owner.values()))

    def _shorten(self, batch: list[_SpoolEntry]) -> None:
        """Leave the oldest files of one owner, up to the limits of a pass; at least one."""
        batch.sort()
        ends = accumulate(one.size for one in batch[: self.limits.each_owner])
        count = sum(end <= self.limits.owner_bytes for end in ends)
        del batch[max(count, 1) :]

    def _candidates(self, labels: Collection[str], ahead_ns: int) -> Iterator[_SpoolEntry | None]:
        """Entries with a final name that are no folders; None after each `_STEP` entries.

        `ahead_ns`: by how much the time of day is ahead of the monotonic clock.
        """
        aside = done = 0
        with _listing(self.folder) as (folder, entries):
            for count, entry in enumerate(entries, 1):
                name = entry.name
                if name.startswith("."):
                    aside += name.startswith(_ASIDE)
                    if done < _DONE_AT_ONCE and _is_done(entry):
                        done += 1
                        _delete_done(folder, name)
                elif name.rpartition(".")[2] in labels and name not in labels:
                    one = _spool_entry(entry, ahead_ns)
                    if one is not None:
                        yield one
                if count % _STEP == 0:
                    yield None
        self._aside_count = aside

    def _read(self, folder: int, name: str) -> SpoolFile | None:
        """A file's content; None if it is no valid feedback."""
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
        left = _parse_file(name, about.st_uid, data)
        return left and replace(left, private=self._private)

    def _plain(self, about: os.stat_result) -> bool:
        return (
            stat.S_ISREG(about.st_mode)
            and about.st_nlink == 1
            and not about.st_mode & 0o022
            and 0 < about.st_size <= self.limits.file_bytes
        )

    def _put_aside(self, folder: int, name: str) -> None:
        """Rename what is no feedback, or delete it if enough is set aside or the name is taken."""
        self.set_aside += 1
        with suppress(OSError):
            if self._aside_count < self.limits.max_invalid:
                self._aside_count += 1
                target = _ASIDE + os.fsdecode(os.fsencode(name)[:200])
                with suppress(IsADirectoryError):
                    os.rename(name, target, src_dir_fd=folder, dst_dir_fd=folder)
                    return
            os.unlink(name, dir_fd=folder)


def problem(folder: Path) -> UserError | None:
    """Why other users cannot write feedback here, or this user cannot read it; None if both can."""
    try:
        about = folder.stat()
    except OSError as error:
        return UserError(f"the spool {folder} cannot be used: {error.strerror}", hint=_HINT)
    if not stat.S_ISDIR(about.st_mode):
        return UserError(f"the spool {folder} is not a folder", hint=_HINT)
    if about.st_uid != os.geteuid():
        return UserError(f"the spool {folder} does not belong to the daemon's user", hint=_HINT)
    if stat.S_IMODE(about.st_mode) != MODE:
        mode = stat.S_IMODE(about.st_mode)
        return UserError(f"the spool {folder} has the mode {mode:o}, not {MODE:o}", hint=_HINT)
    return None


def leave(folder: Path, label: str, raw: bytes, head: dict[str, Any]) -> None:
    """Write one message into a private spool, durably: for processes that do not teach."""
    name = f"{time.time_ns()}.{secrets.token_hex(8)}"
    try:
        durable_write(folder / f"{name}.{label}", json.dumps(head).encode(), b"\n", raw)
    except OSError as error:
        raise refused(error, folder) from error


@contextmanager
def _listing(folder: Path) -> Iterator[tuple[int, Iterator[os.DirEntry[str]]]]:
    """The entries of a folder, and a separate descriptor with its own position."""
    try:
        handle = os.open(folder, _FOLDER)
    except OSError as error:
        raise refused(error, folder) from error
    try:
        with os.scandir(handle) as entries:
            yield handle, entries
    finally:
        os.close(handle)


def _spool_entry(entry: os.DirEntry[str], ahead_ns: int) -> _SpoolEntry | None:
    """An entry of the spool; None for a folder, and for one that has just been deleted."""
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
    return _SpoolEntry(born_ns, writer, entry.name, about.st_uid, about.st_ino, about.st_size)


def _voucher(name: str, inode: int) -> str:
    return f".{name}.{inode}"


def _remove_voucher(folder: int, name: str, inode: int) -> None:
    with suppress(OSError):
        os.rmdir(_voucher(name, inode), dir_fd=folder)


def _delete(folder: int, name: str, inode: int) -> None:
    """Delete a learnt file; if the process is killed meanwhile, the next listing completes that.

    The file gets another name first: under its own name and without a voucher it would be set
    aside. The voucher is removed before the file: otherwise it would be valid for the next file
    with this inode and name.
    """
    done = _DONE + name
    try:
        os.rename(name, done, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        done = name
    _remove_voucher(folder, name, inode)
    with suppress(FileNotFoundError):
        os.unlink(done, dir_fd=folder)


def _is_done(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(_DONE) and not entry.is_dir(follow_symlinks=False)


def _delete_done(folder: int, done: str) -> None:
    """Delete a file that a killed process has left, and its voucher.

    A file with two names may be a user's link to the waiting file of another user.
    """
    with suppress(OSError):
        about = os.stat(done, dir_fd=folder, follow_symlinks=False)
        if about.st_nlink == 1:
            _remove_voucher(folder, done.removeprefix(_DONE), about.st_ino)
        os.unlink(done, dir_fd=folder)


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


def _parse_file(name: str, uid: int, data: bytes) -> SpoolFile | None:
    label = name.rpartition(".")[2]
    if not data.startswith(b"{"):
        return SpoolFile(name, label, uid, {}, data)
    line, _, raw = data.partition(b"\n")
    try:
        head = json.loads(line[:_HEAD_BYTES])
    except (ValueError, RecursionError):
        return None
    return SpoolFile(name, label, uid, head, raw) if isinstance(head, dict) else None
