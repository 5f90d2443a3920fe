"""Many processes and threads on one model while its map grows many times: nothing is lost."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.forks import fork_child, output_of

from spamnb.engine.filter import Filter, new_recipe
from spamnb.store import maintenance as audit

WRITERS = READERS = 4
SMALL_MAP = 1 << 18

spans = pytest.mark.parametrize("seconds", [0, pytest.param(60, marks=pytest.mark.full)])


def mail(user, number):
    words = " ".join(f"{user}w{number}x{k}" for k in range(60))
    head = f"From: {user}@a.example\nSubject: s\nMessage-ID: <{user}.{number}@a.example>\n"
    return f"{head}\nplum fig {words}\n".encode()


def over(home, seconds):
    """Return a function that is true when the map has grown and the time is over."""
    end = time.monotonic() + seconds
    file = home / "data.mdb"
    return lambda: time.monotonic() >= end and file.stat().st_size > 3 * SMALL_MAP


def teach(model, user, enough):
    """Learn, correct and forget until `enough()`; return the messages of each label that stay."""
    stay, number = [0, 0], 0
    while not enough() or number < 3:
        number += 1
        label = number % 2
        receipt = model.learn(mail(user, number), model.labels[label])
        assert receipt.changed
        if number % 5 == 0:
            label = 1 - label
            assert model.correct(receipt.digest, model.labels[label]).before == receipt.after
        if number % 7 == 0:
            assert model.forget(receipt.digest).changed
        else:
            stay[label] += 1
    return stay


def ask(model, user, enough):
    """Score single messages and batches until `enough()`; check every verdict."""
    number = 0
    while not enough() or number < 3:
        number += 1
        verdict = model.score(mail(f"p{number % WRITERS}", number))
        assert np.isfinite(verdict.log_odds)
        clues = sum(clue.nats for clue in verdict.clues())
        assert abs(clues + verdict.bias - verdict.log_odds) < 1e-9
        if number % 10 == 0:
            raws = [mail(user, k) for k in range(5)]
            assert len(list(model.score_many(raws))) == len(raws)
    return [0, 0]


def process(home, run, user, enough):
    """Fork a process that opens the model and writes the result of a function."""

    def work(write_line):
        with Filter.open(home, map_size=SMALL_MAP) as model:
            write_line(" ".join(map(str, run(model, user, enough))))

    return fork_child(work)


@spans
def test_processes_that_write_and_read_lose_nothing(tmp_path, seconds):
    """Four writing and four reading processes: no error, and the totals are exact."""
    home = tmp_path / "m"
    Filter.open(home, create=True, recipe=new_recipe(), map_size=SMALL_MAP).close()
    enough = over(home, seconds)
    children = [process(home, teach, f"p{n}", enough) for n in range(WRITERS)]
    children += [process(home, ask, f"r{n}", enough) for n in range(READERS)]
    outputs = [output_of(*child) for child in children]
    assert [len(lines) for lines in outputs] == [1] * len(outputs), outputs
    total = np.array([line for (line,) in outputs], int).sum(axis=0)
    with Filter.open(home) as model, model.store.read() as view:
        assert view.totals().messages.tolist() == total.tolist()
        assert audit.check(view) == []
        assert (home / "data.mdb").stat().st_size > 3 * SMALL_MAP
    assert total.sum() > WRITERS


@pytest.mark.parametrize("seconds", [0])
def test_threads_that_write_and_read_lose_nothing(tmp_path, seconds):
    """Four writing and four reading threads share one Filter: the totals are exact."""
    before = threading.active_count()
    enough = over(tmp_path / "m", seconds)
    with Filter.open(tmp_path / "m", create=True, map_size=SMALL_MAP) as model:
        with ThreadPoolExecutor(WRITERS + READERS) as pool:
            teaching = [pool.submit(teach, model, f"p{n}", enough) for n in range(WRITERS)]
            asking = [pool.submit(ask, model, f"r{n}", enough) for n in range(READERS)]
            total = np.array([one.result() for one in teaching]).sum(axis=0)
            assert all(one.result() == [0, 0] for one in asking)
        with model.store.read() as view:
            assert view.totals().messages.tolist() == total.tolist()
            assert audit.check(view) == []
    assert threading.active_count() == before


def test_a_snapshot_sees_no_part_of_a_transaction(tmp_path):
    """While a message is learnt, a reader sees all of the change or nothing."""
    with Filter.open(tmp_path / "m", create=True, history=False) as model:
        seen = []
        with model.store.read() as view:
            before = view.totals().messages.tolist()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(model.learn, mail("a", 1), "ham").result()
            seen.append(view.totals().messages.tolist() == before)
            seen.append(list(view.events()) == [])
            seen.append(list(view.features()) == [])
        with model.store.read() as view:
            seen.append(view.totals().messages.tolist() == [1, 0])
        assert seen == [True] * 4
