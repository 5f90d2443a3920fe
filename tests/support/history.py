"""Entries of a history for tests, and processes that add, read and die.

This file is also the program of these processes. Arguments: way, folder, number of the first entry.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import numpy as np

from spamnb.errors import StoreDamagedError
from spamnb.records import verdicts
from spamnb.records.verdicts import History, HistoryEntry
from support.waiting import LIMIT_S

HERE = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}
NOON_2026 = 1_767_268_800_000_000
WRITERS, EACH, APART = 2, 300, 1000


def entry(number, *, size=200, **other):
    """Make a verdict on a new message."""
    rng = np.random.default_rng(number)
    groups = tuple(np.unique(rng.integers(0, 1 << 64, size, dtype=np.uint64)) for _ in range(2))
    plain = HistoryEntry(
        time_us=NOON_2026 + number * 1_000_000,
        signature=number.to_bytes(16, "big"),
        digest=b"d" + number.to_bytes(15, "big"),
        message_id=f"{number}@example.org",
        label="spam",
        probability=0.75,
        log_odds=-3.5,
        decision="junk",
        ids=groups,
    )
    return replace(plain, **other)


def recent(history, most):
    """The newest entries, newest first."""
    return list(islice(history.newest(), most))


def number_of(one):
    return int.from_bytes(one.signature, "big")


def run(way, folder, first=1):
    """Start one of the processes below."""
    command = [sys.executable, __file__, way, str(folder), str(first)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=HERE)


def add_till_killed(folder, first):
    """Add one entry or a few at a time, and settle often, until killed; print the last number."""
    verdicts._FLUSH_S = 0.002
    history = History.open(folder)
    numbers = count(first)
    while True:
        some = [next(numbers) for _ in range(1 + 3 * (first % 2))]
        history.add(entry(number, size=50) for number in some)
        print(some[-1], flush=True)


def add_and_end(folder, first):
    verdicts._FLUSH_S = 0.01
    history = History.open(folder)
    for number in range(first, first + EACH):
        history.add([entry(number, size=50)])
    history.close()


def damaged_once():
    """Return a function that finds damage at its first call."""
    left = [StoreDamagedError("page 7")]

    def look():
        if left:
            raise left.pop()

    return look


def set_aside(folder, first):
    """Find damage, continue with new files, and wait for a line on standard input."""
    history = History.open(folder)
    history._with_recovery(damaged_once())
    history.add([entry(first)])
    print("done", flush=True)
    sys.stdin.readline()
    print(sorted(number_of(one) for one in history.newest()), flush=True)
    history.close()


def read_till_all(folder, _):
    """Check at each look that each entry is there once, and the newest of each writer first."""
    history = History.open(folder)
    found: list[int] = []
    end = time.monotonic() + LIMIT_S
    while len(found) < WRITERS * EACH and time.monotonic() < end:
        found = [number_of(one) for one in history.newest()]
        assert len(set(found)) == len(found) <= history.count()
        for writer in range(WRITERS):
            mine = [number for number in found if number // APART == writer]
            assert mine == sorted(mine, reverse=True)
    history.close()
    print(len(found))


def leave_fresh(folder, first):
    """End without settling the entries."""
    verdicts._FLUSH_S = 1000.0
    history = History.open(folder)
    history.add([entry(first), entry(first + 1)])
    history.add([entry(first + 2)])
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(place, name):
    """Make the process die when it calls this function."""

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, name, die)


def die_before_the_commit(folder, first):
    from spamnb.store.model_store import LmdbTable

    history = History.open(folder)
    history.add([entry(first), entry(first + 1), entry(first + 2)])
    die_at(LmdbTable, "put")
    history.flush()


def die_after_the_commit(folder, first):
    history = History.open(folder)
    history.add([entry(first), entry(first + 1), entry(first + 2)])
    die_at(os, "ftruncate")
    history.flush()


def die_with_the_rest(folder, first):
    """Add an entry while others are settled, and die before the new one is settled."""
    history = History.open(folder)
    history.add([entry(first), entry(first + 1)])
    keep = History._store_records

    def once(self, raw):
        keep(self, raw)
        history.add([entry(first + 2)])
        die_at(History, "_store_records")

    History._store_records = once
    history.flush()


WAYS = {
    way.__name__: way
    for way in (
        add_till_killed, add_and_end, read_till_all, leave_fresh, set_aside,
        die_before_the_commit, die_after_the_commit, die_with_the_rest,
    )
}  # fmt: skip


if __name__ == "__main__":
    WAYS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
