"""Feedback queued for an admin's decision, as files in a folder.

Feedback is queued when its sender cannot be verified, or when it contradicts a high-confidence
verdict on an untrusted channel. Each entry is one file: a line of JSON (sender, label, message,
reason), then the message, if it was given. It is written to a temporary file, synced, renamed, and
the folder synced, so that a confirmed entry survives a power cut. Number, bytes and age are
bounded: strangers may fill half of the queue, and one network of them an eighth of that half. A
full queue accepts no new entry: otherwise a flood would push out legitimate ones.

Must not know the model. Failure: LimitError when it is full, RefError for an unknown name,
StoreError if the disk fails. An unreadable file is skipped.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from spamnb.errors import LimitError, RefError
from spamnb.service.limits import ReviewLimits
from spamnb.service.maintenance.expiry_clock import DAY_US, expiry_mark
from spamnb.service.telemetry.log import Log, silent
from spamnb.store.files import durable_write, make_folder, refused, sync_folder

VERSION = 1
_NAME = re.compile(r"[0-9a-f]{13}-[0-9a-fs][0-9a-f]{23}")
"""time, sender, label and message; "s" marks a stranger, identified by network"""
_PERSON_DIGITS = 8
_PERSON = slice(14, 14 + _PERSON_DIGITS)
_LABEL_AND_MESSAGE = slice(14 + _PERSON_DIGITS, None)
_STRANGER = "s"
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One entry."""

    label: str
    user: str
    channel: str
    trust: str
    reason: str
    time_us: int
    refs: tuple[str, ...] = ()
    client: str = ""
    """the network that it came from, if known"""
    digest: str = ""
    message_id: str = ""
    verdict: dict[str, object] = field(default_factory=dict)
    """the model's verdict: label, probability"""
    raw_bytes: int = 0
    name: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class ReviewQueue:
    """The queue; its folder is created when first needed."""

    def __init__(self, folder: Path, limits: ReviewLimits | None = None, log: Log = silent) -> None:
        self.folder = folder
        self.limits = limits or ReviewLimits()
        self._lock = threading.Lock()
        self._log = log

    def add(self, entry: ReviewItem, raw: bytes) -> str:
        """Queue a feedback; returns its name, or that of an equal entry already in the queue."""
        key = _key(entry, raw)
        mark = expiry_mark(self.folder.parent, log=self._log)
        entry = replace(entry, time_us=entry.time_us + mark.behind_us)
        with self._lock:
            self._expire(min(entry.time_us, mark.expires_us))
            names = self.names()
            name = f"{entry.time_us:013x}-{key}"
            for other in names:
                if other[_LABEL_AND_MESSAGE] == name[_LABEL_AND_MESSAGE]:
                    return other
            self._check_room(names, name, len(raw))
            self._write(name, entry, raw)
            return name

    def _check_room(self, names: list[str], name: str, size: int) -> None:
        """Refuse an entry beyond the limit of the queue, of all strangers, or of one sender."""
        share, strangers = self.limits.share, self.limits.strangers
        self._check_share(names, size, 1, "the review queue is full")
        if name[_PERSON].startswith(_STRANGER):
            share *= strangers
            theirs = [other for other in names if other[_PERSON].startswith(_STRANGER)]
            self._check_share(
                theirs, size, strangers, "the review queue has too many entries of strangers"
            )
        own = [other for other in names if other[_PERSON] == name[_PERSON]]
        self._check_share(own, size, share, "the review queue has too many entries of one person")

    def _check_share(self, names: list[str], size: int, share: int, problem: str) -> None:
        size_bytes = sum(self._size(name) for name in names)
        most, limit = max(self.limits.max_messages // share, 1), self.limits.limit_bytes // share
        if len(names) >= most or size_bytes + size > limit:
            raise LimitError(
                f"{problem} ({len(names)} entries, {size_bytes} bytes)",
                hint="see `spamnb review list`",
            )

    def _write(self, name: str, entry: ReviewItem, raw: bytes) -> None:
        head = entry.as_dict() | {"version": VERSION, "raw_bytes": len(raw)}
        del head["name"]
        try:
            make_folder(self.folder)
            durable_write(self.folder / name, json.dumps(head).encode(), b"\n", raw)
        except OSError as error:
            raise refused(error, self.folder) from error

    def entries(self) -> Iterator[ReviewItem]:
        """All entries, oldest first."""
        for name in self.names():
            with suppress(RefError):
                yield self.get(name)[0]

    def count(self) -> int:
        """The number of entries."""
        return len(self.names())

    def get(self, name: str) -> tuple[ReviewItem, bytes]:
        """One entry and its message."""
        if not _NAME.fullmatch(name):
            raise _unknown(name)
        try:
            with (self.folder / name).open("rb") as file:
                head, raw = file.readline(_HEAD_BYTES), file.read()
            return _decoded(name, json.loads(head)), raw
        except FileNotFoundError as error:
            raise _unknown(name) from error
        except (ValueError, KeyError, TypeError) as error:
            raise RefError(f"the entry {name} cannot be read: {error}") from error
        except OSError as error:
            raise refused(error, self.folder / name) from error

    def drop(self, name: str) -> None:
        """Remove a decided entry."""
        if not _NAME.fullmatch(name):
            raise _unknown(name)
        try:
            (self.folder / name).unlink()
            sync_folder(self.folder)
        except FileNotFoundError as error:
            raise _unknown(name) from error
        except OSError as error:
            raise refused(error, self.folder / name) from error

    def names(self) -> list[str]:
        """The names of all entries, oldest first."""
        try:
            return sorted(filter(_NAME.fullmatch, os.listdir(self.folder)))  # noqa: PTH208 - names
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(error, self.folder) from error

    def _size(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_size
        except OSError:
            return 0

    def _expire(self, now: int) -> None:
        days = self.limits.keep_days
        for name in self.names():
            age_us = now - int(name[:13], 16)
            if age_us <= days * DAY_US:
                return
            (self.folder / name).unlink(missing_ok=True)
            age = round(age_us / DAY_US, 1)
            self._log({"event": "deleted from review", "name": name, "age_days": age})


def _key(entry: ReviewItem, raw: bytes) -> str:
    """Return the key of an entry: equal for the same sender, label and message; sender first.

    A stranger that uses a user's name counts as another sender.
    """
    user = entry.user.casefold().encode("utf-8", "replace")
    what = raw or entry.digest.encode() or " ".join(entry.refs).encode("utf-8", "replace")
    prefix = f"{entry.label}\0{entry.trust}\0".encode("utf-8", "replace") + user + b"\0"
    source = entry.client.encode() or user
    person = blake2b(source, digest_size=_PERSON_DIGITS // 2).hexdigest()
    if entry.trust == "stranger":
        person = _STRANGER + person[1:]
    return person + blake2b(prefix + what, digest_size=8).hexdigest()


def _decoded(name: str, head: dict[str, Any]) -> ReviewItem:
    if head.pop("version") != VERSION:
        raise ValueError("it was written by another version")
    head["refs"] = tuple(head["refs"])
    return ReviewItem(**head, name=name)


def _unknown(name: str) -> RefError:
    return RefError(
        f"there is no entry {name!r} in the review queue", hint="see `spamnb review list`"
    )
