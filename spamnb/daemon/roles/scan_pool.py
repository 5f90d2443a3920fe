"""Scan processes of a worker, and the queue of large messages for them.

All workers together have as many scan processes as the machine has cores, and each worker at least
one (`bootstrap`). One pool for all workers would use the cores better when one worker has all the
large mail, but would need a central process; its crash would stop all scans.

A message waits in the queue until a process is ready, in an order that is fair to the clients. Its
time limit starts when it leaves the queue. If its scan cannot start in time, it is answered
`busy`; it is not recorded as a known crasher.

The queue has no own limit: each message in it belongs to a session that waits for its reply, counts
in the worker's memory budget (above it the relay stops reading), and leaves the queue when its
session ends.

Failure: every job is answered; a fault is {"reason": ...}: `overrun`, `busy`, `known_crasher` (it
ended two processes), or `fault` (no process can be started, or its answer cannot be read).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spamnb.core.mail.envelope import network_of
from spamnb.daemon.roles.scan_process import ENTRY, ScanJob, ScanProcess, ScanProcessDeps
from spamnb.service.scanning.fair_queue import FairQueue
from spamnb.service.scanning.types import Notes
from spamnb.settings import Settings

SHARE = 0.9
"""share of the configured time limits: the answer must come before the relay's own limit"""
S_PER_BYTE = 1e-6
"""estimated cost of a message until its scan time is known, for the fair order of clients"""

Answered = Callable[[dict[str, Any]], None]


class ScanPool:
    """Implements `scanning.Offload`."""

    def __init__(self, settings: Settings, links: ScanProcessDeps, entry: str = ENTRY) -> None:
        self._settings = settings
        self._loop = links.loop
        self._queue: FairQueue[ScanJob] = FairQueue()
        self._waiting: dict[ScanJob, None] = {}
        self._helpers = [ScanProcess(links, slot, entry, self) for slot in links.start.scan_slots]
        self._is_closed = False

    def submit(
        self, raw: bytes, notes: Notes, done: Answered, recipients: Sequence[str] = ()
    ) -> Callable[[], None]:
        """Have a message scanned by `scan_to_json`; the returned callable cancels it."""
        times, now = self._settings.timeouts, self._loop.time()
        job = ScanJob(
            raw=raw,
            notes=notes,
            recipients=recipients,
            done=done,
            client=network_of(notes.get("client", "")),
            begin_by=now + times.scan_start_s * SHARE,
            end_by=now + times.scan_total_s * SHARE,
            limit_s=times.scan_s * SHARE,
        )
        self._wait(job, self._queue.put)
        self.feed()
        return partial(self._take_back, job)

    def apply_settings(self, settings: Settings) -> None:
        """Use other settings from the next message on."""
        self._settings = settings
        for helper in self._helpers:
            helper.apply_settings()

    async def close(self) -> None:
        """Stop the scan processes; answer all waiting jobs."""
        self._is_closed = True
        for job in list(self._waiting):
            self._late(job)
        await asyncio.gather(*(helper.close() for helper in self._helpers))

    # -- the queue --------------------------------------------------------------------------------

    def _wait(self, job: ScanJob, put: Callable[[str, ScanJob], None]) -> None:
        put(job.client, job)
        self._waiting[job] = None
        job.timer = self._loop.call_at(job.begin_by, self._late, job)

    def _leave(self, job: ScanJob) -> None:
        """Remove a job from the waiting ones."""
        del self._waiting[job]
        if job.timer is not None:
            job.timer.cancel()

    def _late(self, job: ScanJob) -> None:
        """Answer a job that did not start in time: all processes were busy, or none can start."""
        self._take_back(job)
        failing = all(helper.is_failing for helper in self._helpers)
        job.done({"reason": "fault" if failing else "busy"})

    def _take_back(self, job: ScanJob) -> None:
        if job in self._waiting:
            self._queue.remove(job.client, job)
            self._leave(job)

    def feed(self) -> None:
        """Assign waiting jobs to ready processes; start more processes for the rest."""
        for helper in self._helpers:
            if self._queue and helper.is_ready:
                job = self._queue.take()
                self._leave(job)
                self._queue.charge(job.client, len(job.raw) * S_PER_BYTE)
                helper.begin(job)
        missing = len(self._queue) - sum(helper.is_starting for helper in self._helpers)
        for helper in self._helpers:
            if missing > 0 and not self._is_closed and helper.start(self._settings):
                missing -= 1

    def answered(self, job: ScanJob, answer: dict[str, Any], seconds: float) -> None:
        """Report the result of a job."""
        self._queue.charge(job.client, max(0.0, seconds - len(job.raw) * S_PER_BYTE))
        job.done(answer)
        self.feed()

    def again(self, job: ScanJob) -> None:
        """Put a job back at the head of its client's queue."""
        if self._is_closed:
            job.done({"reason": "busy"})
        else:
            self._wait(job, self._queue.put_back)
            self.feed()
