"""After a kill at any moment the store opens, is sound, and holds every acknowledged receipt.

The children are forked and killed at random instants; the seed is fixed, the instants never are.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.forks import fork_child, killed_after, output_of

from spamnb.engine import bulk
from spamnb.engine.bulk import TrainingOptions, train
from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.maintenance.expiry import ExpiryRules, expire
from spamnb.store import maintenance as audit
from spamnb.store.maintenance import backup, restore
from spamnb.store.model_store import Environment, EnvironmentConfig

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"
MESSAGES = 120
MADE = replace(new_recipe(), key=bytes(range(32)))
DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Folders of the sample's first messages: enough for four small transactions."""
    folders = []
    for side in ("ham", "spam"):
        folder = tmp_path_factory.mktemp(side)
        for path in sorted((SAMPLE / side).iterdir())[: MESSAGES // 2]:
            shutil.copy(path, folder)
        folders.append((side, str(folder)))
    return folders


full = pytest.param(200, marks=pytest.mark.full)
times = pytest.mark.parametrize("kills", [12, full])


def mail(number):
    words = " ".join(f"word{number % 50}x{k}" for k in range(30))
    head = f"From: ann@a.example\nSubject: s{number}\nMessage-ID: <{number}@a.example>\n"
    return f"{head}\nplum {number} {words}\n".encode()


def check(home):
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        assert audit.check(view) == []
        return [(event.seq, event.digest.hex()) for event in view.events()]


def counts(home):
    """Counts and totals, which do not depend on the order of the transactions."""
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        ids, records = audit.collect(view.features(), 2)
        totals = view.totals()
    full = records.n.any(axis=1)
    found = (ids[full], records.n[full], totals.messages, totals.tokens, totals.known)
    return [np.asarray(x).tolist() for x in found]


@times
def test_killed_while_it_learns_every_receipt_is_there(tmp_path, kills):
    """Every acknowledged event is in the journal after a kill amid events of all kinds."""
    dice, home, known = random.Random(1), tmp_path / "m", {}
    Filter.open(home, create=True, recipe=MADE).close()

    def teach(write_line):
        number = len(known) * 7
        with Filter.open(home) as model:
            write_line("ready")
            while True:
                number += 1
                receipts = [model.learn(mail(number), ("ham", "spam")[number % 2])]
                if number % 3 == 0:
                    receipts.append(model.correct(f"{number}@a.example", "spam"))
                if number % 5 == 0:
                    receipts.append(model.forget(receipts[0].digest))
                    receipts.append(model.undo(receipts[-1]))
                for receipt in receipts:
                    write_line(f"{receipt.event or receipt.already} {receipt.digest}")
                model.score(mail(number))

    for done in range(1, kills + 1):
        # Receipts are waited for and not a time, which on a busy machine brings none.
        seen = 1 + dice.randint(3, 6)
        for line in killed_after(teach, dice.uniform(0, 0.05), lines_first=seen)[1:]:
            known[int(line[0])] = line[1]
        held = dict(check(home))
        assert known.items() <= held.items()
        assert len(held) <= len(known) + 4 * done
    assert len(known) > kills


def trains(home, sources, *, jobs, stop=None):
    """Train in small transactions; after the first one the child sends itself the signal `stop`."""

    def run(write_line):
        # so that a kill finds some transactions done, one begun and some not
        bulk.BATCH, bulk.CHUNK, bulk.BATCH_MESSAGES = 32, 16, 16
        write_line("ready")

        def show(now):
            write_line(now.done)
            if stop and 0 < now.learnt < MESSAGES // 2:
                os.kill(os.getpid(), stop)

        options = TrainingOptions(jobs=jobs)
        train(home, sources, training_options=options, progress=show)

    return run


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("kills", [20, full])
def test_killed_while_it_trains_a_second_run_finishes_the_work(tmp_path, sources, kills, how):
    """A stopped training keeps what it did; after a second run the counts are exact."""
    train(tmp_path / "whole", sources, recipe=MADE)
    want = counts(tmp_path / "whole")
    dice = random.Random(2)
    for number in range(kills // 4):
        home = tmp_path / str(number)
        Filter.open(home, create=True, recipe=MADE).close()
        jobs = 1 + number % 2
        if number % 5 == 4:  # in the middle, on a machine of any speed
            output_of(*fork_child(trains(home, sources, jobs=jobs, stop=how)))
            assert 0 < len(check(home)) < MESSAGES
        else:  # from before the first transaction to after the last but one
            killed_after(
                trains(home, sources, jobs=jobs), dice.uniform(0, 0.02), how, 1 + number % 5
            )
        train(home, sources, recipe=MADE)
        assert counts(home) == want
        check(home)
        shutil.rmtree(home)


def test_killed_while_a_model_is_made_it_is_made_by_the_next_one(tmp_path, sources):
    """The file is there and its tables are not yet: creating goes on where it ended."""
    (tmp_path / "m").mkdir()
    Environment(EnvironmentConfig(tmp_path / "m", ())).close()
    assert train(tmp_path / "m", sources, recipe=MADE).learnt == MESSAGES


@times
def test_killed_while_it_expires_nothing_is_half_gone(tmp_path, sources, kills):
    """Expiry folds and drops in transactions, each whole or not at all; the next run ends it."""
    train(tmp_path / "whole", sources, recipe=MADE)
    dice, rules = random.Random(3), ExpiryRules(keep_days=0, after_days=0, max_messages=1)

    def run_out(home):
        def run(write_line):
            with Filter.open(home, history=False) as model:
                write_line("ready")
                later = int(time.time() * 1e6) + 3 * DAY_US
                expire(model.store, None, rules, now_us=later, source=OWNER)

        return run

    home = tmp_path / "m"
    for number in range(kills // 2):
        if number % 5 == 0:
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(tmp_path / "whole", home)
        killed_after(run_out(home), dice.uniform(0, 0.1))
        check(home)
    pid, pipe = fork_child(run_out(home))
    assert os.waitpid(pid, 0)[1] == 0
    os.close(pipe)
    check(home)
    with Filter.open(home, history=False) as model, model.store.read() as view:
        assert not any((r.n.sum(axis=1) == 1).any() for _, r in view.features())


@times
def test_killed_while_it_makes_a_backup_there_is_a_whole_one_or_none(tmp_path, sources, kills):
    """The file under the target's name is always a whole copy, and the model is unharmed."""
    train(tmp_path / "m", sources, recipe=MADE)
    events, dice = check(tmp_path / "m"), random.Random(4)

    def copies(write_line):
        write_line("ready")
        for number in range(1000):
            backup(tmp_path / "m", tmp_path / "copy" / f"{number % 3}.backup")
            write_line("made")

    (tmp_path / "copy").mkdir()
    for number in range(kills):
        killed_after(copies, dice.uniform(0, 0.02), lines_first=2 + number % 3)
        made = sorted((tmp_path / "copy").glob("*.backup"))
        assert made
        home = tmp_path / f"restored-{number}"
        restore(dice.choice(made), home)
        shutil.rmtree(home)
    assert check(tmp_path / "m") == events


TRACED = """
import sys
from spamnb.engine.filter import Filter
with Filter.open(sys.argv[1], create=True) as model:
    for number in range(6):
        raw = f"Message-ID: <{number}@a.example>\\nSubject: s\\n\\nplum {number}\\n".encode()
        receipt = model.learn(raw, "ham") if number % 2 else model.correct(raw, "spam")
        print("receipt", receipt.event, flush=True)
"""


def test_the_disk_has_it_before_the_receipt_is_given(tmp_path):
    """Law 3, from outside: data synced, then the meta page through a synchronous handle."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode:
        pytest.skip("this machine does not allow to trace processes")
    trace, home = tmp_path / "trace", tmp_path / "m"
    calls = "trace=openat,write,pwrite64,pwritev,writev,fdatasync,fsync,msync"
    subprocess.run(
        ["strace", "-f", "-s", "16", "-e", calls, "-o", trace, sys.executable, "-c", TRACED, home],
        cwd=PROJECT, check=True, capture_output=True,
    )  # fmt: skip
    handles, synced, committed, receipts = {}, False, False, 0
    for line in trace.read_text().splitlines():
        call = line.split(maxsplit=1)[1]
        name = call.partition("(")[0]
        if name == "openat" and f"{home}/data.mdb" in call:
            handles[call.rpartition("= ")[2].split()[0]] = "DSYNC" in call or "O_SYNC" in call
        handle = call.partition("(")[2].replace(")", ",").partition(",")[0]
        if name in ("fdatasync", "fsync") and handle in handles:
            synced = True
        elif name.startswith(("pwrite", "write")) and handles.get(handle):
            committed = synced  # the meta page, and what it points at is on the disk already
        elif name.startswith(("pwrite", "write")) and handle in handles:
            synced = committed = False
        elif name == "write" and '"receipt' in call:
            assert committed, f"receipt {receipts + 1} came before the disk had it"
            synced = committed = False
            receipts += 1
    assert receipts == 6
