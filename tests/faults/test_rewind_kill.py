"""Replacing a model, killed at each step or failing on the way: the old one or the new one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.errors import StoreMissingError
from spamnb.maintenance.rewind import rewind
from spamnb.store.maintenance import Change, check, rebuild
from spamnb.store.model_store import open_store

HERE = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}
MESSAGES = [f"Subject: {n}\nMessage-ID: <{n}@x.test>\n\nword{n} apple\n".encode() for n in range(9)]

KILLED = """
import os, sys
from pathlib import Path
from spamnb.maintenance.rewind import rewind
from spamnb.store import maintenance

home, step, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
owner = {"link": os, "rename": Path, "sync_file": maintenance, "prove": maintenance}[step]
real = getattr(owner, step)

def dying(*words, **options):
    if when == "before":
        os.kill(os.getpid(), 9)
    real(*words, **options)
    os.kill(os.getpid(), 9)

setattr(owner, step, dying)
rewind(home, 0)
"""


@pytest.fixture
def home(tmp_path):
    with Filter.open(tmp_path / "model", create=True, history=False) as model:
        for number, raw in enumerate(MESSAGES):
            model.learn(raw, model.labels[number % 2])
    return tmp_path / "model"


def events(home):
    store = open_store(home, readonly=True)
    try:
        with store.read() as view:
            assert check(view) == []
            return view.totals().last_seq
    finally:
        store.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["prove", "link", "sync_file", "rename"])
def test_a_kill_leaves_the_old_model_or_the_new_one(home, step, when):
    """At every step of putting it in place; the other tries succeed, and the old one is kept."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(home), step, when],
        env=HERE,
        check=False,
        timeout=LIMIT_S,
    )
    assert killed.returncode == -9
    renamed = (step, when) == ("rename", "after")
    assert events(home) == (0 if renamed else len(MESSAGES))
    if not renamed:
        kept = rewind(home, 0).kept
        assert events(home) == 0
        assert kept.stat().st_mode & 0o777 == 0o600


def test_a_failure_leaves_the_model_as_it_was(home):
    """No temporary folder is left."""
    with pytest.raises(ZeroDivisionError):
        rebuild(home, Change(lambda _, new: new.transact(lambda _: 1 // 0)))
    assert events(home) == len(MESSAGES)
    assert sorted(path.name for path in home.iterdir()) == ["data.mdb", "lock.mdb"]


def test_there_must_be_a_model(tmp_path):
    """A rewind in an empty folder raises an error and creates no model."""
    with pytest.raises(StoreMissingError):
        rewind(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
