"""After a kill at any moment the store opens, is consistent and complete.

The processes that are killed are forks; each works in one of five ways and writes what is done.
Run as a program, this file learns and prints what is done.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.forks import fork_child, killed_after, output_of
from support.stores import NOON_2026, RECIPE, apply, event_for, learn, mail

from spamnb.errors import StoreFullError
from spamnb.records.verdicts import History, HistoryEntry
from spamnb.store import journal
from spamnb.store import rows as logged_rows
from spamnb.store import rows as segments
from spamnb.store.maintenance import backup, check, collect, compact, restore
from spamnb.store.model_store import open_store

HERE = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}
WAYS = ("learn", "bulk", "compact", "backup", "history")


LOG_BITS = 9
"""a log of 512 rows: each training writes a tenth of all ids to their segments"""
ROW_BITS = 6
"""segments of some hundred rows"""


@pytest.fixture(autouse=True)
def short_log(monkeypatch):
    monkeypatch.setattr(logged_rows, "LEAST_BITS", LOG_BITS)
    monkeypatch.setattr(logged_rows, "MOST_BITS", LOG_BITS)
    monkeypatch.setattr(segments, "ROW_BITS", ROW_BITS)
    monkeypatch.setattr(journal, "_TABLE_FROM", 6)  # tables of frequent ids at 6, 96 ... events


# --- the victim -----------------------------------------------------------------------------------


def some_mail(number):
    """A message that shares most of its features with others."""
    rng = random.Random(number)
    return mail(number, *rng.sample(range(600), 40), *range(10 * number, 10 * number + 6))


def victim(way, folder, first, write_line, count=1_000_000):
    """Work until killed; each line names what is on the disk by now."""
    numbers = iter(range(first, first + count))
    if way == "history":
        remember(folder / "history", numbers, write_line)
    store = open_store(folder, create=RECIPE, map_size=1 << 20)
    for number in numbers:
        if way == "bulk":
            store.transact(lambda view: [teach(view, next(numbers)) for _ in range(20)])
        seq = learn(store, some_mail(number), number % 2)
        write_line(seq)
        if way == "backup":
            backup(folder, folder.parent / "copy.mdb")
        if way == "compact":
            store.transact(lambda view: view.fold(NOON_2026 + 1, 1))
            store.close()
            compact(folder)
            store = open_store(folder, map_size=1 << 20)


def teach(view, number):
    apply(view, event_for(view, some_mail(number), number % 2))


def entry(number):
    ids = tuple(some_mail(number).groups)
    signature = number.to_bytes(16, "big")
    return HistoryEntry(
        NOON_2026 + number, signature, signature, f"{number}@x", "spam", 0.75, 1.5, "junk", ids
    )


def remember(folder, numbers, write_line):
    history = History.open(folder)
    for number in numbers:
        history.add([entry(number)])
        write_line(number)


# --- the witness ----------------------------------------------------------------------------------


def witness(folder, way, acknowledged):
    """Check that the store has everything that was reported, and is consistent."""
    if way == "history":
        history = History.open(folder / "history")
        assert history.warning == ""
        for number in acknowledged:
            found = history.find(signature=number.to_bytes(16, "big"))
            assert [e.message_id for e in found] == [f"{number}@x"]
        history.close()
        return
    store = open_store(folder)
    with store.read() as view:
        assert check(view) == []
        assert view.totals().last_seq >= max(acknowledged)
        folded = view.base_totals().last_seq
        kept = [event.seq for event in view.events()]
        assert kept == list(range(folded + 1, view.totals().last_seq + 1))
    store.close()
    copy = folder.parent / "copy.mdb"
    if way == "backup" and copy.exists():
        restore(copy, folder.parent / "again")
        shutil.rmtree(folder.parent / "again")


def kills(folder, count):
    rng = random.Random(7)
    for round_ in range(count):
        way = WAYS[round_ % len(WAYS)]
        work = partial(victim, way, folder, 1 + round_ * 100_000)
        lines = killed_after(work, rng.random() * 0.03, lines_first=rng.randint(1, 8))
        witness(folder, way, [int(number) for (number,) in lines])


def test_ten_kills(tmp_path):
    """After a kill at any time the store is consistent and has every acknowledged event."""
    kills(tmp_path / "model", 2 * len(WAYS))


@pytest.mark.full
def test_two_hundred_kills(tmp_path):
    """The same after 200 kills."""
    kills(tmp_path / "model", 200)


def test_a_commit_is_on_the_disk_before_it_is_acknowledged(tmp_path):
    """Between two acknowledgements the data is synced, and the meta page after it, with O_DSYNC."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    calls = "trace=openat,fdatasync,fsync,pwrite64,pwritev,writev,write"
    command = ["strace", "-f", "-o", trace, "-e", calls, sys.executable, __file__]
    output = subprocess.check_output([*command, tmp_path / "model"], text=True, env=HERE)
    if not trace.exists() or "openat" not in trace.read_text():
        pytest.skip("strace may not trace here")
    assert output.split() == ["1", "2", "3", "4"]
    lines = trace.read_text().split("\n")
    dsync = next(line for line in lines if "data.mdb" in line and "O_DSYNC" in line).split()[-1]
    reports = [i for i, line in enumerate(lines) if re.search(r'write\(1, "\d', line)]
    assert len(reports) == 4
    for before, after in pairwise(reports):
        between = lines[before:after]
        synced = [i for i, line in enumerate(between) if "fdatasync(" in line]
        meta = [i for i, line in enumerate(between) if f"pwrite64({dsync}, " in line]
        assert synced
        assert meta
        assert max(meta) > min(synced)


# --- the disk is full -----------------------------------------------------------------------------


def fill(folder):
    """Learn until the disk is full; returns how many were acknowledged."""
    store = open_store(folder, create=RECIPE)
    done = 0
    try:
        for number in range(1, 100_000):
            done = learn(store, some_mail(number), number % 2)
    except StoreFullError as error:
        print(done, error.hint)
    # The same store goes on reading, and writes again as soon as it may.
    with store.read() as view:
        assert view.totals().last_seq == done
        assert check(view) == []


def learn_for_ever(store):
    for number in range(1, 100_000):
        learn(store, some_mail(number), number % 2)


def test_a_full_disk_is_reported_and_harms_nothing(tmp_path):
    """If the file cannot grow, StoreFullError is raised and the last state stays."""
    script = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); \
import sys; sys.argv = ['x']; import runpy; m = runpy.run_path({__file__!r}, run_name='child'); \
from pathlib import Path; m['fill'](Path({str(tmp_path / 'model')!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=HERE
    )
    assert done.stderr == ""
    assert "free disk space" in done.stdout
    witness(tmp_path / "model", "learn", [int(done.stdout.split()[0])])
    store = open_store(tmp_path / "model")
    learn(store, some_mail(100_001), 1)
    store.close()


def test_a_full_file_system_is_reported_and_harms_nothing(tmp_path, monkeypatch):
    """The same on a file system of two megabytes, and it goes on when there is room again."""
    monkeypatch.setattr(journal, "_TABLE_FROM", 1_024)  # a table takes half of the room
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(small)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        (small / "ballast").write_bytes(bytes(500_000))
        store = open_store(small / "model", create=RECIPE)
        with pytest.raises(StoreFullError):
            learn_for_ever(store)
        with store.read() as view:
            done = view.totals().last_seq
        (small / "ballast").unlink()
        assert learn(store, some_mail(100_001), 1) == done + 1
        store.close()
        witness(small / "model", "learn", [done + 1])
    finally:
        subprocess.run(["umount", str(small)], check=True)


# --- many processes -------------------------------------------------------------------------------


SMALL_MAP = 1 << 18
GROWN_BYTES = 2 * SMALL_MAP


def file_bytes(folder):
    return (folder / "data.mdb").stat().st_size


def writer(folder, first, until, write_line):
    """Learn and forget until a time and until the map has grown; write the learnt number."""
    store = open_store(folder, map_size=SMALL_MAP)
    number = first
    while time.time() < until or number < first + 50 or file_bytes(folder) <= GROWN_BYTES:
        number += 1
        learn(store, some_mail(number), number % 2)
        if number % 5 == 0:
            learn(store, some_mail(number), -1)
    write_line(number - first - (number - first) // 5)


def reader(folder, ended, write_line):
    """Read whole snapshots until the writers have ended: sums and records of each agree."""
    store = open_store(folder, map_size=SMALL_MAP)
    snapshots = 0
    while not ended.exists():
        with store.read() as view:
            totals = view.totals()
            ids, records = collect(view.features(), 2)
            for rows in (records, view.gather(ids)):
                assert np.array_equal(rows.n.sum(axis=0, dtype=np.int64), totals.tokens)
            assert len(view.last_events(3)) == min(3, len(view.last_events(20)))
        snapshots += 1
    write_line(snapshots)


def crowd(folder, seconds):
    open_store(folder, create=RECIPE, map_size=SMALL_MAP).close()
    until, ended = time.time() + seconds, folder.with_name("ended")
    writers = [fork_child(partial(writer, folder, n * 1_000_000, until)) for n in range(1, 5)]
    readers = [fork_child(partial(reader, folder, ended)) for _ in range(4)]
    learnt = [output_of(*child) for child in writers]
    ended.touch()
    outputs = [*learnt, *(output_of(*child) for child in readers)]
    assert [len(lines) for lines in outputs] == [1] * 8, outputs
    store = open_store(folder)
    with store.read() as view:
        assert view.totals().messages.sum() == sum(int(line[0]) for (line,) in learnt)
        assert check(view) == []
        assert view.totals().last_seq > 100
    assert file_bytes(folder) > GROWN_BYTES
    store.close()


def test_writers_and_readers_in_many_processes(tmp_path):
    """Four writers and four readers on a map of 256 KiB that must grow: no error, exact sums."""
    crowd(tmp_path / "model", 0)


@pytest.mark.full
def test_writers_and_readers_for_a_minute(tmp_path):
    """The same for a minute."""
    crowd(tmp_path / "model", 60)


if __name__ == "__main__":
    logged_rows.LEAST_BITS = logged_rows.MOST_BITS = LOG_BITS
    segments.ROW_BITS = ROW_BITS
    victim("learn", Path(sys.argv[1]), 1, partial(print, flush=True), count=4)
