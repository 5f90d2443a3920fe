"""A log in memory, for tests and for the hosts of one process. Nothing is written to disk."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from spamnb.store.fleet.fleet_log import Draft, Head, LogEntry, Outcome
from spamnb.store.fleet.position import next_chain


class MemoryLog:
    """A log that exists as long as its process; threads may share it."""

    def __init__(self, keep_events: int = 200_000) -> None:
        self._keep_events = keep_events
        self._changed = threading.Condition()
        self._head: Head | None = None
        self._entries: list[LogEntry] = []
        self._said: dict[str, int] = {}
        self._snapshot: list[bytes] = []
        self._pen, self._pen_until = "", 0.0

    def head(self) -> Head | None:
        return self._head

    def make(self, head: Head) -> bool:
        with self._changed:
            if self._head is not None:
                return False
            self._head = head
            return True

    def append(self, draft: Draft) -> Outcome:
        with self._changed:
            outcome = self._outcome(draft)
            if outcome is Outcome.APPENDED and self._head is not None:
                chain = next_chain(self._head.chain, draft.body)
                self._head = Head(draft.epoch, draft.last, chain)
                self._said[draft.host] = draft.upto
                entry = LogEntry(
                    draft.host, draft.upto, draft.base + 1, draft.last, chain, draft.body
                )
                self._entries.append(entry)
                del self._entries[: self._place(draft.last - self._keep_events)]
                self._changed.notify_all()
            return outcome

    def _outcome(self, draft: Draft) -> Outcome:
        """Compare a draft with the log, in the order of the other keepers."""
        head = self._head
        if head is None or head.epoch != draft.epoch:
            return Outcome.EPOCH
        if self._pen not in ("", draft.host) and time.monotonic() < self._pen_until:
            return Outcome.PEN
        if draft.base > head.seq:
            return Outcome.BEHIND
        if draft.start < self._said.get(draft.host, 0):
            return Outcome.SAID
        return Outcome.STALE if draft.base < head.seq else Outcome.APPENDED

    def _place(self, after: int) -> int:
        return bisect_right(self._entries, after, key=lambda entry: entry.last)

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        with self._changed:
            self._changed.wait_for(lambda: self._head and self._head.seq > after, wait_s)
            found = self._entries[self._place(after) :]
        yield from found

    def take_pen(self, host: str, ms: int) -> bool:
        with self._changed:
            now = time.monotonic()
            if self._pen not in ("", host) and now < self._pen_until:
                return False
            self._pen, self._pen_until = host, now + ms / 1000
            return True

    def give_pen(self, host: str) -> None:
        with self._changed:
            if self._pen == host:
                self._pen = ""

    def put_snapshot(self, parts: Iterable[bytes]) -> None:
        self._snapshot = list(parts)

    def snapshot(self) -> Iterator[bytes]:
        yield from self._snapshot

    def close(self) -> None:
        """Do nothing; there are no connections."""
