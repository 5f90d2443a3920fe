"""On a full disk, learnt messages stay and scoring works; with room, learning works again."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from support.waiting import LIMIT_S

from spamnb.engine.bulk import train
from spamnb.engine.filter import Filter, new_recipe
from spamnb.errors import StoreFullError
from spamnb.mail import limits
from spamnb.store import maintenance as audit

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"
LIMIT = 2 << 20


def mail(number):
    words = " ".join(f"w{number}x{k}" for k in range(300))
    head = f"From: ann@a.example\nSubject: s\nMessage-ID: <{number}@a.example>\n"
    return f"{head}\nplum {words}\n".encode()


def fill(model):
    """Learn until there is no room; return the receipts."""
    given = []
    while True:
        number = len(given)
        try:
            given.append(model.learn(mail(number), ("ham", "spam")[number % 2]))
        except StoreFullError as error:
            full = error
            break
    assert full.transient
    assert full.hint
    return given


def test_at_the_limit_learning_is_refused_and_nothing_is_lost(tmp_path):
    """Every receipt stands, the model is sound, scores are given, and the file keeps its limit."""
    with Filter.open(tmp_path / "m", create=True, limit_bytes=LIMIT, history=False) as model:
        given = fill(model)
        assert (tmp_path / "m/data.mdb").stat().st_size <= LIMIT
        with model.store.read() as view:
            assert audit.check(view) == []
            assert [event.seq for event in view.events()] == [one.event for one in given]
        assert model.score(mail(0)).label == "ham"


def hostile(number):
    """A message of 260 KB in which hardly any word occurs twice."""
    dice = Random(number)
    words = (f"{dice.getrandbits(28):x}" for _ in range(32_500))
    head = f"From: ann@a.example\nSubject: s\nMessage-ID: <{number}@a.example>\n\n"
    return head.encode() + " ".join(words).encode()[:260_000]


def test_a_large_message_takes_little_room(tmp_path):
    """A message of 260 KB of random tokens adds what 4,096 features take, not 6 MB."""
    with Filter.open(tmp_path / "m", create=True, history=False) as model:
        for number in range(20):
            assert model.correct(hostile(number), "spam").changed
        assert (tmp_path / "m/data.mdb").stat().st_size < 20 * 1_500_000
        with model.store.read() as view:
            sizes = [sum(map(len, event.ids)) for event in view.events()]
        assert max(sizes) <= sum(limits.FEATURES)
        assert model.score(hostile(0)).label == "spam"


def test_with_a_higher_limit_learning_goes_on(tmp_path):
    """The same folder, opened with a higher limit, learns the refused message."""
    with Filter.open(tmp_path / "m", create=True, limit_bytes=LIMIT, history=False) as model:
        given = fill(model)
    with Filter.open(tmp_path / "m", limit_bytes=2 * LIMIT, history=False) as model:
        receipt = model.learn(mail(len(given)), "ham")
        assert (receipt.changed, receipt.event) == (True, len(given) + 1)


def test_training_that_finds_no_room_keeps_what_it_finished(tmp_path):
    """A full store is an error of the run; what was committed before is whole."""
    made = new_recipe()
    with Filter.open(
        tmp_path / "m", create=True, recipe=made, limit_bytes=LIMIT, history=False
    ) as model:
        given = fill(model)
        with pytest.raises(StoreFullError):
            train(tmp_path / "m", [("ham", str(SAMPLE / "ham"))])
        with model.store.read() as view:
            assert view.totals().last_seq == len(given)
            assert audit.check(view) == []


FULL = """
import resource, sys
from spamnb.errors import StoreError
from spamnb.engine.filter import Filter
def mail(number):
    words = " ".join(f"w{number}x{k}" for k in range(300))
    return f"Message-ID: <{number}@a.example>\\nSubject: s\\n\\nplum {words}\\n".encode()
with Filter.open(sys.argv[1], create=True) as model:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
    number = 0
    try:
        while True:
            model.learn(mail(number), ("ham", "spam")[number % 2])
            number += 1
    except StoreError:
        score = model.score(mail(0), remember=False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        more = model.learn(mail(number), "ham")
        print(number, score.label, more.event)
"""


def fill_the_disk(home):
    """A child that runs into the limit of its file's size, and goes on when that is lifted."""
    child = subprocess.run(
        [sys.executable, "-c", FULL, home],
        cwd=PROJECT, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return child.stdout.split()


def test_a_disk_that_refuses_to_write_is_outlived(tmp_path):
    """If a commit fails on a full file system, the same process can learn again later."""
    number, label, event = fill_the_disk(tmp_path / "m")
    assert label == "ham"
    assert int(event) == int(number) + 1
    with Filter.open(tmp_path / "m") as model, model.store.read() as view:
        assert view.totals().last_seq == int(event)
        assert audit.check(view) == []
