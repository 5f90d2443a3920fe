"""The spool: what delivery agents leave while the daemon is away, learnt when it is back.

A folder that everybody may write into and only its owner may list (mode 1733). Whoever teaches
writes a file under a name that begins with a dot, syncs it, and renames it to `ANYTHING.LABEL`:

    1763712345.M7P3.host.spam       the message, as it is

or, for a message of another person (by those who may speak for others), with a line before it:

    {"for": "alice@example.org", "channel": "imap"}
    the message

The file's owner is who teaches, so it must be a plain file of one name that nobody else may write:
a hard link could be somebody's secret, a symbolic one a device that never ends, a pipe never opens.
What is none is set aside under a name that begins with `.aside-`, and counted. A file goes when its
answer is durable, and not before; a store that fails leaves it for the next time.

Must not know the model or who is who. Failure: StoreError of the callback, passed on.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spamnb.errors import StoreAccessError
from spamnb.store.environment import make_folder, refused

MODE = 0o1733
_ASIDE = ".aside-"
_HEAD_BYTES = 1 << 16
_SETTLED_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """How much is taken."""

    file_bytes: int = 32 << 20
    looked_at: int = 5000
    """entries in one look: a flood makes no look endless"""
    each_owner: int = 200
    """files of one owner in one look, so that others get their turn"""
    aside: int = 100
    """entries kept for somebody to look at; more are removed"""


@dataclass(frozen=True, slots=True)
class Left:
    """One file that somebody left."""

    name: str
    label: str
    uid: int
    head: dict[str, Any]
    raw: bytes


class Spool:
    """One such folder."""

    def __init__(self, folder: Path, limits: SpoolLimits | None = None) -> None:
        self.folder = folder
        self.limits = limits or SpoolLimits()
        self.set_aside = 0
        """entries that were no feedback, since we began"""
        self._quiet = 0
        """when the folder changed last, if nothing was there to be taken"""

    def make(self) -> None:
        """Make the folder, with its mode."""
        make_folder(self.folder.parent)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if self.folder.stat().st_uid == os.geteuid():
                self.folder.chmod(MODE)
        except OSError as error:
            raise refused(error, self.folder) from error

    def drain(self, labels: Collection[str], teach: Callable[[Left], None]) -> int:
        """Hand over what lies there, the oldest first; how many. Nothing to do if it is not there.

        `teach` returns when its answer is durable; what it raises ends the look.
        """
        done = 0
        with self._opened() as folder:
            if folder < 0 or not self._changed(folder):
                return 0
            for name in self._turn(folder, labels):
                self._quiet = 0
                left = self._read(folder, name)
                if left is None:
                    self._put_aside(folder, name)
                    continue
                teach(left)
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                done += 1
            if done:
                os.fsync(folder)
        return done

    def waiting(self) -> int:
        """How many lie there; what is set aside is not counted."""
        try:
            return sum(not name.startswith(".") for name in os.listdir(self.folder))  # noqa: PTH208
        except OSError:
            return 0

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield -1
            return
        except OSError as error:
            raise refused(error, self.folder) from error
        try:
            if os.geteuid() not in (0, os.fstat(folder).st_uid):
                # Only its owner may take away what others left: it would be learnt for ever.
                raise StoreAccessError(f"{self.folder} is not ours", hint="chown it to the daemon")
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

    def _turn(self, folder: int, labels: Collection[str]) -> list[str]:
        """Names in the order in which they were written, so many of each owner."""
        found: list[tuple[int, str, int]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) == self.limits.looked_at:
                    break
                start, _, label = entry.name.rpartition(".")
                if not start or start.startswith(".") or label not in labels:
                    continue
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    found.append((about.st_mtime_ns, entry.name, about.st_uid))
        taken: dict[int, int] = {}
        names = []
        for _, name, uid in sorted(found):
            taken[uid] = taken.get(uid, 0) + 1
            if taken[uid] <= self.limits.each_owner:
                names.append(name)
        return names

    def _read(self, folder: int, name: str) -> Left | None:
        """A file's content, if it is one that may be believed."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            handle = os.open(name, flags, dir_fd=folder)
        except OSError:
            return None
        try:
            about = os.fstat(handle)
            if not self._plain(about):
                return None
            with os.fdopen(os.dup(handle), "rb") as file:
                data = file.read(self.limits.file_bytes + 1)
        except OSError:
            return None
        finally:
            os.close(handle)
        if len(data) != about.st_size:
            return None
        return _left(name, about.st_uid, data)

    def _plain(self, about: os.stat_result) -> bool:
        return (
            stat.S_ISREG(about.st_mode)
            and about.st_nlink == 1
            and not about.st_mode & 0o022
            and 0 < about.st_size <= self.limits.file_bytes
        )

    def _put_aside(self, folder: int, name: str) -> None:
        self.set_aside += 1
        with suppress(OSError):
            kept = sum(other.startswith(_ASIDE) for other in os.listdir(folder))
            if kept >= self.limits.aside:
                with suppress(IsADirectoryError, PermissionError):
                    os.unlink(name, dir_fd=folder)
                    return
            target = _ASIDE + name[:200]
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=folder)


def leave(folder: Path, label: str, raw: bytes, head: dict[str, Any]) -> None:
    """Put one message there, durably: for those of our processes that do not teach themselves."""
    name = f"{time.time_ns()}.{secrets.token_hex(8)}"
    hidden, final = folder / f".{name}", folder / f"{name}.{label}"
    try:
        with os.fdopen(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(json.dumps(head).encode() + b"\n" + raw)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(final)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise refused(error, folder) from error


def _left(name: str, uid: int, data: bytes) -> Left | None:
    label = name.rpartition(".")[2]
    if not data.startswith(b"{"):
        return Left(name, label, uid, {}, data)
    line, _, raw = data.partition(b"\n")
    try:
        head = json.loads(line[:_HEAD_BYTES])
    except (ValueError, RecursionError):
        return None
    return Left(name, label, uid, head, raw) if isinstance(head, dict) else None
