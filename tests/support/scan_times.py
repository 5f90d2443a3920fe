"""How long scans take on a busy machine, and whether they take longer than others.

Most of a slow scan is the wait for a core, which says nothing about the daemon. Therefore client
and worker run before all other programs while scans are timed, and the compared cases are measured
in turn.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.waiting import LIMIT_S

CHECK = b"CHECK SPAMC/1.5\r\nContent-length: %d\r\n\r\n"
PART = 100
DRAWS = 1000
SURE = 0.002
"""how often an interval misses the true value, on each side; small, because it is used often"""


class Interval(NamedTuple):
    """The interval of the ratio of two quantiles."""

    low: float
    ratio: float
    high: float


def scan(path, raw):
    """Scan a message on the socket of a scanner listener."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(LIMIT_S)
        client.connect(str(path))
        client.sendall(CHECK % len(raw) + raw)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while data := client.recv(65536):
            answer += data
    assert b"EX_OK" in answer


def scan_times(path, raw, count):
    """Return the seconds of scans one after the other."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        scan(path, raw)
        taken.append(time.perf_counter() - began)
    return taken


@contextmanager
def first_in_line(*processes):
    """Run this thread and these processes before all others of the machine; only root can."""
    threads = [threading.get_native_id()]
    for process in processes:
        threads += (int(one.name) for one in Path(f"/proc/{process}/task").iterdir())
    for thread in threads:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def p99(times):
    """Return the 99th percentile of the scans, in a part of them that nothing has disturbed.

    It is the lower quartile of the p99 of parts: other work of the machine only increases a p99.
    """
    parts = (times[start : start + PART] for start in range(0, len(times), PART))
    found = sorted(sorted(part)[PART * 99 // 100 - 1] for part in parts)
    return found[len(found) // 4]


def ratio_of_p99(before, after):
    """Return the ratio of the p99 of all `after` to that of all `before`, with its interval.

    Both are lists of rounds, in pairs that were measured one after the other. The interval comes
    from resampling pairs, so a disturbance of some rounds makes it wide.
    """
    draw = random.Random(1)
    pairs = list(zip(before, after, strict=True))
    found = sorted(_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    edge = int(DRAWS * SURE)
    return Interval(found[edge], _ratio(pairs), found[-1 - edge])


def _ratio(pairs):
    first, second = ([one for times in side for one in times] for side in zip(*pairs, strict=True))
    return p99(second) / p99(first)
