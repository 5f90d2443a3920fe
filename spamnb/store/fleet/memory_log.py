"""A log in memory, for tests and for the hosts of one process. Nothing is written to disk."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from spamnb.errors import FleetError
from spamnb.store.fleet.fleet_log import (
    FRESH_S,
    START,
    Asked,
    Beat,
    Draft,
    Head,
    LogEntry,
    Outcome,
    outcome_of,
)
from spamnb.store.fleet.position import next_chain


class MemoryLog:
    """A log that exists as long as its process; threads may share it."""

    def __init__(self, keep_events: int = 200_000) -> None:
        self._keep_events = keep_events
        self._changed = threading.Condition()
        self._head: Head | None = None
        self._entries: list[LogEntry] = []
        self._recorded: dict[str, int] = {}
        self._snapshot: list[bytes] = []
        self._snapshot_seq = 0
        self._snapshot_at = -math.inf
        self._beats: dict[str, tuple[float, Beat]] = {}
        self._reports: dict[str, tuple[float, int]] = {}
        self._unsettled_since = 0.0
        self._permits: dict[int, bytes] = {}
        self._leases: dict[str, float] = {}
        self._writer, self._writer_until = "", 0.0
        self._questions: defaultdict[str, list[Asked]] = defaultdict(list)
        self._answers: dict[str, dict[str, bytes]] = {}

    def head(self) -> Head | None:
        return self._head

    def make(self, head: Head) -> bool:
        with self._changed:
            if self._head is not None:
                return False
            self._head, self._entries, self._writer = head, [], ""
            self._reports, self._unsettled_since = {}, time.monotonic()
            return True

    def append(self, draft: Draft) -> Outcome:
        with self._changed:
            outcome = self._outcome(draft)
            if outcome is Outcome.APPENDED and self._head is not None:
                chain = next_chain(self._head.chain, draft.body)
                entry = LogEntry(
                    draft.host, draft.upto, draft.base + 1, draft.last, chain, draft.body
                )
                self._add(self._head, entry)
                del self._entries[: self._place(draft.last - self._keep_events)]
            return outcome

    def _add(self, head: Head, entry: LogEntry) -> None:
        self._head = head._replace(seq=entry.last, chain=entry.chain)
        self._recorded[entry.host] = max(entry.upto, self._recorded.get(entry.host, 0))
        self._entries.append(entry)
        self._changed.notify_all()

    def restart(self, lost: int = 0) -> None:
        """Act like a server that was restarted and has lost the newest entries."""
        with self._changed:
            head, kept = self._head, len(self._entries) - lost
            gone = self._entries[kept:]
            del self._entries[kept:]
            if head is None:
                return
            self._recorded |= dict.fromkeys((entry.host for entry in gone), 0)
            self._recorded |= {entry.host: entry.upto for entry in self._entries}
            if gone:
                chain = self._entries[-1].chain if self._entries else START
                head = head._replace(seq=gone[0].first - 1, chain=chain)
            self._head, self._reports = head._replace(settled=False), {}
            self._unsettled_since = time.monotonic()

    def settle(self, host: str, seq: int, wait_s: float) -> bool:
        with self._changed:
            head, now = self._head, time.monotonic()
            if head is None or head.settled:
                return head is not None
            self._reports[host] = now, seq
            fresh = {name: at for name, (made, at) in self._reports.items() if now - made < FRESH_S}
            all_of = self._beats.keys() <= fresh.keys()
            is_over = all_of or now - self._unsettled_since >= wait_s
            if max(fresh.values()) <= head.seq and is_over:
                self._head = head._replace(settled=True)
            return self._head is not None and self._head.settled

    def restore(self, epoch: str, before: str, entry: LogEntry) -> bool:
        with self._changed:
            head = self._head
            if head is None or (epoch, before, entry.first) != (
                head.epoch,
                head.chain,
                head.seq + 1,
            ):
                return False
            self._add(head, entry)
            return True

    def renew(self, epoch: str, seq: int, renewed: str) -> bool:
        with self._changed:
            if self._head is None or self._head[:2] != (epoch, seq):
                return False
            self._head = self._head._replace(epoch=renewed)
            return True

    def put_level(self, level: int) -> None:
        with self._changed:
            self._head = self._head and self._head._replace(level=level)

    def clear(self) -> None:
        with self._changed:
            self._head, self._entries, self._recorded, self._writer = None, [], {}, ""

    def beat(self, beat: Beat) -> int:
        with self._changed:
            now = time.monotonic()
            at, old = self._beats.get(beat.host, (now, beat))
            if old.ident != beat.ident and now - at < FRESH_S:
                raise FleetError(f"another host of the fleet has the name {beat.host}")
            self._beats[beat.host] = now, beat
            lowest = min([self._snapshot_seq, *(one.seq for _, one in self._beats.values())])
            del self._entries[: self._place(lowest)]
            return time.time_ns() // 1000

    def beats(self) -> list[Beat]:
        with self._changed:
            now = time.monotonic()
            return [one._replace(age_s=now - at) for at, one in self._beats.values()]

    def skip(self, last: int, permit: bytes) -> None:
        self._permits[last] = permit

    def skipped(self, last: int) -> bytes | None:
        return self._permits.get(last)

    def recorded(self, host: str) -> int:
        return self._recorded.get(host, 0)

    def _outcome(self, draft: Draft) -> Outcome:
        writer = self._writer if time.monotonic() < self._writer_until else ""
        return outcome_of(draft, self._head, writer, self._recorded.get(draft.host, 0))

    def _place(self, after: int) -> int:
        return bisect_right(self._entries, after, key=lambda entry: entry.last)

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        with self._changed:
            self._changed.wait_for(lambda: self._head and self._head.seq > after, wait_s)
            found = self._entries[self._place(after) :]
        yield from found

    def take_write_lease(self, host: str, ms: int) -> bool:
        with self._changed:
            now = time.monotonic()
            if self._writer not in ("", host) and now < self._writer_until:
                return False
            self._writer, self._writer_until = host, now + ms / 1000
            return True

    def give_write_lease(self, host: str) -> None:
        with self._changed:
            if self._writer == host:
                self._writer = ""

    def put_snapshot(self, parts: Iterable[bytes], seq: int = 0) -> None:
        self._snapshot, self._snapshot_seq = list(parts), seq
        self._snapshot_at = time.monotonic()

    def snapshot_age_s(self) -> float:
        return time.monotonic() - self._snapshot_at

    def lease(self, what: str, host: str, hold_s: float) -> bool:  # noqa: ARG002 - no host is asked
        with self._changed:
            now = time.monotonic()
            is_free = self._leases.get(what, 0.0) <= now
            self._leases[what] = now + hold_s if is_free else self._leases[what]
            return is_free

    def snapshot(self) -> Iterator[bytes]:
        yield from self._snapshot

    def ask(self, hosts: Collection[str], question: Asked, wait_s: float) -> dict[str, bytes]:
        with self._changed:
            answers: dict[str, bytes] = {}
            self._answers[question.ident] = answers
            for host in hosts:
                self._questions[host].append(question)
            self._changed.notify_all()
            self._changed.wait_for(lambda: answers.keys() >= set(hosts), wait_s)
            return self._answers.pop(question.ident)

    def next_question(self, host: str, wait_s: float) -> Asked | None:
        with self._changed:
            questions = self._questions[host]
            self._changed.wait_for(lambda: questions, wait_s)
            return questions.pop(0) if questions else None

    def answer(self, host: str, answer: Asked) -> None:
        with self._changed:
            if answer.ident in self._answers:
                self._answers[answer.ident][host] = answer.body
                self._changed.notify_all()

    def close(self) -> None:
        """Do nothing; there are no connections."""
