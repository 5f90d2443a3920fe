"""The quarantine: stored messages with their envelopes, and their release.

    ID.eml      the message as it would have been relayed, with the product's headers; on release
                these say "released", or the next hop would file the message as junk
    ID.json     its envelope byte for byte (MAIL, each RCPT with parameters, XFORWARD), the
                verdict's facts, the next hop, and the recipients that have it by now
    ID.deleted  instead of ID.json for the hour in which a deletion can be taken back

Files are 0600 in a 0700 folder, written to a temporary file, synced and renamed: the message, the
folder, the sidecar, the folder. So `keep` returns when both are on disk, and a crash leaves no
sidecar without its message; a message without a sidecar is deleted after an hour.

A release, to all recipients or to some, is recorded in the sidecar, durably, before a byte is sent,
and a recipient is marked as done only after the next hop's 250. A release that was begun and never
ended may have been sent, so releasing to its recipients again has to be requested explicitly.
Releases of one message to different recipients may run together. Must not know sockets: sending
is a callable.

Failure: StoreFullError when the limit or the disk is reached, RefError for an unknown ID,
RefusedError for a release in progress, or to recipients that have the message, PeerError if the
next hop did not accept it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import struct
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Final

from spamnb.errors import PeerError, RefError, RefusedError, StoreDamagedError, StoreFullError
from spamnb.mail.envelope import Envelope
from spamnb.mail.headers import shown_field
from spamnb.maintenance.home_files import expiry_mark
from spamnb.policy.headers import add_to_message, header_end, released_fields
from spamnb.scan.values import QuarantinedMessage, ReleasedMessage, Send, decoded, encoded
from spamnb.settings.values import QuarantineLimits
from spamnb.store.files import durable_write, make_folder, refused, sync_folder
from spamnb.telemetry import Log, now_us, silent

_ID = re.compile(r"[0-9]{8}T[0-9]{12}-[0-9a-f]{8}")
_DAY_US: Final = 86_400_000_000
_HOUR_S: Final = 3_600
"""how long a message may lack its sidecar while both are being written, and how long a deletion can
be taken back"""
_COUNT_AGAIN_S: Final = 60.0
_COUNT: Final = struct.Struct("=dQ")
"""in the lock file: when the files were counted (monotonic clock), and their total size now"""
_HEAD_BYTES: Final = 65_536
_TIDY_S: Final = 3_600.0
_WAITING: Final = "json"
_DELETED: Final = "deleted"
_MOST_FOUND: Final = 200
"""a message is kept right after its verdict: at most this many others come between"""


class Quarantine:
    """One quarantine folder. Cheap to create; many processes may use it."""

    def __init__(
        self,
        folder: Path,
        limits: QuarantineLimits | None = None,
        *,
        upstream: str = "",
        log: Log = silent,
    ) -> None:
        self.folder = folder
        self.limits = limits or QuarantineLimits()
        self.upstream = upstream
        """the next hop of messages that are stored from now on"""
        self._log = log
        self._tidy_at = time.monotonic() + _TIDY_S  # nothing expires at a start

    # -- storing --------------------------------------------------------------------------------

    def keep(self, raw: bytes, envelope: Envelope, facts: dict[str, object]) -> str:
        """Store a message; returns its ID when file and folder are on disk."""
        make_folder(self.folder)
        entry = self._entry(raw, envelope, facts)
        sidecar = encoded(entry)
        self._make_room(len(raw) + len(sidecar))
        self._write(f"{entry.id}.eml", raw)
        try:
            self._write(f"{entry.id}.json", sidecar)
        except BaseException:
            self._path(entry.id, "eml").unlink(missing_ok=True)
            raise
        return entry.id

    def _entry(
        self, raw: bytes, envelope: Envelope, facts: dict[str, object]
    ) -> QuarantinedMessage:
        now = now_us() + expiry_mark(self.folder.parent, log=self._log).behind_us
        return QuarantinedMessage(
            id=f"{_stamp(now)}-{secrets.token_hex(4)}",
            time_us=now,
            size_bytes=len(raw),
            sender=envelope.sender,
            recipients=envelope.recipients,
            mail_line=envelope.mail_line.decode("latin-1"),
            rcpt_lines=tuple(line.decode("latin-1") for line in envelope.rcpt_lines),
            xforward_lines=tuple(line.decode("latin-1") for line in envelope.xforward_lines),
            upstream=self.upstream,
            facts=dict(facts),
        )

    def _make_room(self, size: int) -> None:
        """Check the size limit by the count of all processes, which the lock file holds."""
        now = time.monotonic()
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_S
            self.expire(expiry_mark(self.folder.parent, log=self._log).expires_us)
        try:
            with self._locked() as handle:
                counted_at, used = _count_in(os.pread(handle, _COUNT.size, 0))
                now = time.monotonic()
                if not 0.0 <= now - counted_at < _COUNT_AGAIN_S:
                    counted_at, used = now, self.used_bytes()
                fits = used + size <= self.limits.limit_bytes
                os.pwrite(handle, _COUNT.pack(counted_at, used + size * fits), 0)
        except OSError as error:
            raise refused(error, self.folder) from error
        if not fits:
            deleted = self.ids(_DELETED)
            if deleted and self._delete(deleted, "deleted before, to make room", _DELETED):
                return self._make_room(size)
            raise StoreFullError(
                f"the quarantine has reached its {self.limits.limit_bytes} bytes",
                hint="release or delete messages, or raise its limit",
            )
        return None

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        try:
            durable_write(path, data)
        except OSError as error:
            raise refused(error, path) from error

    # -- reading --------------------------------------------------------------------------------

    def messages(self) -> list[QuarantinedMessage]:
        """All readable messages, the oldest first."""
        found = []
        for identity in self.ids():
            with suppress(RefError, StoreDamagedError):
                found.append(self.get(identity))
        return found

    def get(self, identity: str) -> QuarantinedMessage:
        """The record of a message."""
        missing = RefError(
            f"there is no message {identity} in quarantine", hint="see `spamnb quarantine list`"
        )
        return self._read(identity, _WAITING, missing)

    def _read(self, identity: str, ending: str, missing: RefError) -> QuarantinedMessage:
        path = self._path(identity, ending)
        try:
            text = path.read_bytes()
        except FileNotFoundError as error:
            raise missing from error
        except OSError as error:
            raise refused(error, path) from error
        return decoded(text, identity)

    def raw(self, identity: str) -> bytes:
        """The message itself."""
        self.get(identity)
        try:
            return self._path(identity, "eml").read_bytes()
        except OSError as error:
            raise refused(error, self._path(identity, "eml")) from error

    def head(self, identity: str) -> bytes:
        """The first bytes of a message; empty if it does not exist."""
        try:
            with self._path(identity, "eml").open("rb") as file:
                return file.read(_HEAD_BYTES)
        except OSError:
            return b""

    def shown(self, identity: str) -> dict[str, str]:
        """The subject and From of a message, safe to show; empty if there are none."""
        head = self.head(identity)
        end = header_end(head)
        head = head if end < 0 else head[:end]
        return {
            "subject": shown_field(head, b"subject"),
            "header_from": shown_field(head, b"from"),
        }

    def find(self, signature: str, time_us: int) -> str:
        """The ID of the message with a verdict of this time; empty if it does not wait here."""
        ids = self.ids()
        first = bisect_left(ids, _stamp(time_us - 1_000_000))
        for identity in ids[first : first + _MOST_FOUND]:
            with suppress(RefError, StoreDamagedError):
                if self.get(identity).facts.get("signature") == signature:
                    return identity
        return ""

    def used_bytes(self) -> int:
        """Total size of all files."""
        used = 0
        for entry in self._files():
            with suppress(FileNotFoundError):
                used += entry.stat().st_size
        return used

    def ids(self, ending: str = _WAITING) -> list[str]:
        """The IDs of all messages that wait, the oldest first."""
        names = (entry.name.rpartition(".") for entry in self._files())
        return sorted(name for name, _, end in names if end == ending and _ID.fullmatch(name))

    def _files(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                yield from [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused(error, self.folder) from error

    def _path(self, identity: str, ending: str) -> Path:
        if _ID.fullmatch(identity) is None:
            raise RefError(
                f"{identity!r} is not a quarantine ID", hint="see `spamnb quarantine list`"
            )
        return self.folder / f"{identity}.{ending}"

    # -- deleting -------------------------------------------------------------------------------

    def delete(self, identity: str, reason: str = "requested") -> None:
        """Delete a message at once and for good."""
        if not self._delete([identity], reason):
            raise RefError(f"there is no message {identity} in quarantine")

    def delete_for(self, identity: str, only: Collection[int] | None = None) -> None:
        """Delete a message for some recipients, by their indexes, or for all; see `restore`."""
        with self._locked():
            entry = self.get(identity)
            if only is not None:
                dropped = entry.dropped | {at for at in only if at in entry.open}
                entry = replace(entry, dropped=dropped)
            if only is not None and entry.open:
                self._save(entry)
                return
            self._save(entry, _DELETED)
            self._path(identity, _WAITING).unlink()
            sync_folder(self.folder)
        self._log_deletion(identity, "requested")

    def restore(
        self, identity: str, own: Callable[[QuarantinedMessage], Collection[int]] | None = None
    ) -> None:
        """Take back `delete_for`, which is possible for an hour.

        `own` gives the indexes of the caller's recipients: only what was deleted for these is
        restored. Without it, what was deleted for all. Failure: RefError if there is nothing to
        restore.
        """
        missing = RefError(
            f"there is no deleted message {identity}", hint="a deletion is final after an hour"
        )
        make_folder(self.folder)
        with self._locked():
            ending = _WAITING if self._path(identity, _WAITING).exists() else _DELETED
            entry = self._read(identity, ending, missing)
            by_administrator = ending == _DELETED and bool(entry.open)
            if own is None:
                possible = ending == _DELETED
                dropped = entry.dropped if by_administrator else frozenset[int]()
            else:
                dropped = entry.dropped.difference(own(entry))
                possible = dropped != entry.dropped and not by_administrator
            if not possible:
                raise missing
            self._save(replace(entry, dropped=dropped), ending)
            if ending == _DELETED:
                self._path(identity, _DELETED).rename(self._path(identity, _WAITING))
                sync_folder(self.folder)

    def _delete(self, identities: list[str], reason: str, ending: str = _WAITING) -> int:
        """Delete messages; returns how many there were.

        All sidecars go first, so that no listed message lacks its body. Two syncs serve for all:
        with two for each, 3,000 expired messages delayed the scan that found them by 27 s.
        """
        sidecars = {identity: self._path(identity, ending) for identity in identities}
        try:
            with self._locked() as handle:
                gone = [identity for identity, path in sidecars.items() if _unlinked(path)]
                # A crash of `delete_for` leaves both sidecars: the message waits.
                waiting = {*self.ids()} if ending == _DELETED else set()
                os.ftruncate(handle, 0)  # the next `keep` counts again
            sync_folder(self.folder)
            for identity in gone:
                if identity not in waiting:
                    self._path(identity, "eml").unlink(missing_ok=True)
            sync_folder(self.folder)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise refused(error, self.folder) from error
        for identity in gone:
            self._log_deletion(identity, reason)
        return len(gone)

    def expire(self, now: int) -> int:
        """Delete messages that are too old, and incomplete ones; returns how many messages.

        `now` is the expiry clock's time (`home_files.expiry_mark`), not the system clock's.
        """
        # By name only: reading 200,000 sidecars takes longer than a scan may.
        oldest = _stamp(now - self.limits.keep_days * _DAY_US)
        old = [identity for identity in self.ids() if identity < oldest]
        gone = self._delete(old, f"older than {self.limits.keep_days} days") if old else 0
        ends = f".{_DELETED}"
        deleted = [file for file in self._files() if file.name.endswith(ends)]
        hour = [file.name.removesuffix(ends) for file in deleted if _is_old(file, now)]
        if hour:
            self._delete(hour, "deleted an hour before", _DELETED)
        listed = {*self.ids(), *self.ids(_DELETED)}
        for file in self._files():
            whole = file.name.endswith((".json", ends)) or file.name.removesuffix(".eml") in listed
            with suppress(FileNotFoundError):
                if not (whole and not file.name.startswith(".")) and _is_old(file, now):
                    os.unlink(file.path)  # noqa: PTH108 - a DirEntry
                    self._log_deletion(
                        file.name, "incomplete: a process died while it wrote the message"
                    )
        return gone

    def _log_deletion(self, name: str, reason: str) -> None:
        """Log each deleted message with its age by the clock and the reason."""
        record: dict[str, object] = {
            "event": "deleted from quarantine",
            "id": name,
            "reason": reason,
        }
        with suppress(ValueError):
            kept = datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            record["age_days"] = round(now_us() / 8.64e10 - kept.timestamp() / 86_400, 1)
        self._log(record)

    # -- releasing ------------------------------------------------------------------------------

    def release(
        self, identity: str, send: Send, *, only: Collection[int] | None = None, again: bool = False
    ) -> QuarantinedMessage:
        """Send a message to the recipients that do not have it; returns its new record.

        `only`: to these of them, by their indexes. It is deleted when none waits. Without `again`,
        a release to recipients of an earlier one that never ended is refused: they may have it.
        """
        raw = self.raw(identity)
        entry, to = self._start_release(identity, only, again=again)
        fields = released_fields(str(entry.facts.get("signature") or ""))
        released = ReleasedMessage(
            raw=add_to_message(raw, fields),
            mail_line=entry.mail_line.encode("latin-1"),
            rcpt_lines=tuple(entry.rcpt_lines[at].encode("latin-1") for at in to),
            xforward_lines=tuple(line.encode("latin-1") for line in entry.xforward_lines),
            upstream=entry.upstream or self.upstream,
        )
        try:
            replies = send(released)
        except PeerError:
            self._update(entry, lambda now: now.ended(to, {}))
            raise
        by_number = dict(zip(to, replies, strict=True))
        return self._update(entry, lambda now: now.ended(to, by_number))

    def _start_release(
        self, identity: str, only: Collection[int] | None, *, again: bool
    ) -> tuple[QuarantinedMessage, tuple[int, ...]]:
        """Record that a release begins; returns the record, and the recipients of the release."""
        with self._locked():
            entry = self.get(identity)
            to = tuple(at for at in entry.open if only is None or at in only)
            if not to and only is not None:
                raise RefusedError(
                    f"{identity} is not kept for any of these recipients",
                    hint="see `spamnb quarantine show`",
                )
            if not again and not entry.sending.isdisjoint(to):
                raise RefusedError(
                    f"a release of {identity} began and did not end: it may have been sent",
                    hint="check whether the message arrived; then delete it, or release it with "
                    "--again",
                )
            entry = replace(entry, sending=entry.sending | {*to})
            self._save(entry)
            return entry, to

    def _update(
        self,
        entry: QuarantinedMessage,
        change: Callable[[QuarantinedMessage], QuarantinedMessage],
    ) -> QuarantinedMessage:
        """Change a record as it is now, since other processes change it, too.

        A message for which no recipient waits any more is deleted. If another process has deleted
        it, it stays so.
        """
        with self._locked():
            try:
                changed = change(self.get(entry.id))
            except RefError:
                return change(entry)
            if changed.open:
                self._save(changed)
        if not changed.open:
            self._delete([entry.id], "all recipients have it")
        return changed

    def _save(self, entry: QuarantinedMessage, ending: str = _WAITING) -> None:
        self._write(f"{entry.id}.{ending}", encoded(entry))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the folder's lock, one process at a time; gives its file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.folder / ".lock", flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)


def _stamp(time_us: int) -> str:
    """The time as IDs begin with; sorts by time."""
    second = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time_us // 1_000_000))
    return f"{second}{time_us % 1_000_000:06d}"


def _count_in(data: bytes) -> tuple[float, int]:
    """Return what `_COUNT` packed; without it a time that is too long ago."""
    counted_at, used = _COUNT.unpack(data) if len(data) == _COUNT.size else (-inf, 0)
    return counted_at, used


def _unlinked(path: Path) -> bool:
    """Delete a file; whether it was there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _is_old(file: os.DirEntry[str], now: int) -> bool:
    try:
        return file.name != ".lock" and now / 1e6 - file.stat().st_mtime > _HOUR_S
    except FileNotFoundError:
        return False
