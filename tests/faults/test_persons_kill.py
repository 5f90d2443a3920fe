"""Kills while persons teach, and at each step of erasing one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.core.persons.names import PersonNames
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.requests import Learn, Source
from spamnb.service.feedback.review_queue import ReviewQueue
from spamnb.service.maintenance.persons import Erasing
from spamnb.store.check import check
from spamnb.store.history.entry import HistoryEntry
from spamnb.store.history.limits import HistoryLimits

HERE = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}
DOMAINS = frozenset({"example.org"})
NAMES = PersonNames("+", DOMAINS, DOMAINS)
NAME = "ann.secret"


def mail(number):
    return f"Subject: {number}\nMessage-ID: <{number}@x.test>\n\nword{number} apple\n".encode()


def label_of(model, number, name):
    source = Source(name, "imap", immediate=True, person=model.person(name))
    return Learn(model.example(mail(number)), number % 2, source, 10**15 + number, again=True)


def erasing(home):
    return Erasing(home, NAMES, NAME, HistoryLimits(), ReviewQueue(home / "review"))


@pytest.fixture
def home(tmp_path):
    with Filter.open(tmp_path / "model", create=True) as model:
        model.teach([label_of(model, n, (NAME, "bob")[n % 3 == 0]) for n in range(12)])
        verdicts = [model.score(mail(n), remember=False) for n in range(12)]
        model.history.add(
            HistoryEntry(
                10**15, os.urandom(16), one.digest, one.message_id, one.label, 0.5, 0.0, "unsure",
                (), notes={"to": f"{NAME}@example.org bob@example.org"},
            )
            for one in verdicts
        )  # fmt: skip
    return tmp_path / "model"


TEACHING = """
import sys
from test_persons_kill import NAME, label_of, Filter
with Filter.open(sys.argv[1], history=False) as model:
    for number in range(100, 10**6):
        (receipt,) = model.teach([label_of(model, number, (NAME, "bob")[number % 2])])
        print(number, receipt.event, flush=True)
"""


@pytest.mark.parametrize("after", [1, 7])
def test_labels_of_persons_survive_a_kill(home, after):
    """Each acknowledged label is there, in both of its parts."""
    environment = HERE | {"PYTHONPATH": f"{HERE['PYTHONPATH']}:{Path(__file__).parent}"}
    command = [sys.executable, "-c", TEACHING, str(home)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        lines = [program.stdout.readline().split() for _ in range(after)]
        program.kill()
        lines += [line.split() for line in program.stdout.read().splitlines()]
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        assert check(view) == []
        for number, event in lines:
            found = view.event(int(event))
            assert found.message_id == f"{number}@x.test"
            assert found.person == model.person((NAME, "bob")[int(number) % 2])


KILLED = """
import os, sys
from pathlib import Path
from test_persons_kill import erasing
from spamnb.store import maintenance
from spamnb.store import rebuild as rebuilding

home, step, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
owner = {"link": os, "rename": Path, "unlink": Path, "prove": rebuilding}[step]
real = getattr(owner, step)

def dying(*words, **options):
    global count
    count -= 1
    if not count:
        os.kill(os.getpid(), 9)
    return real(*words, **options)

setattr(owner, step, dying)
erasing(home).run()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("step", "count"),
    [("rename", 1), ("rename", 2), ("rename", 3), ("prove", 1), ("link", 1), ("unlink", 1)],
)
def test_erasing_is_completed_after_a_kill(home, step, count):
    """The model is sound after a kill at each step; a second call leaves no trace of the person.

    Only a copy of the old model may be left, and it is named.
    """
    environment = HERE | {"PYTHONPATH": f"{HERE['PYTHONPATH']}:{Path(__file__).parent}"}
    command = [sys.executable, "-c", KILLED, str(home), step, str(count)]
    done = subprocess.run(command, env=environment, check=False, timeout=LIMIT_S)
    assert done.returncode == -9
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        assert check(view) == []
        bob = view.personal(model.person("bob")).values.copy()
    erasing(home).run()
    left = [path for path in home.rglob("*") if path.is_file() and NAME.encode() in _read(path)]
    assert [path.name[:7] for path in left] in ([], ["before-"])
    with Filter.open(home) as model, model.store.read() as view:
        assert check(view) == []
        assert view.personal(model.person(NAME)) is None
        assert (view.personal(model.person("bob")).values == bob).all()
        assert {entry.notes["to"] for entry in model.history.newest()} == {"bob@example.org"}


def _read(path):
    return path.read_bytes()
