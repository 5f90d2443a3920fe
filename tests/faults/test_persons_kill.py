"""Kills while persons teach, and at each step of erasing one."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.engine.values import Learn, Source
from spamnb.feedback.review import ReviewQueue
from spamnb.maintenance.persons import Erasing
from spamnb.model.events import label_key
from spamnb.policy.actions import PersonNames
from spamnb.policy.senders import ListOwner
from spamnb.records.verdicts import HistoryEntry
from spamnb.settings.values import HistoryLimits
from spamnb.store.maintenance import check

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
import threading
import time
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
        # The kill may have cut the last line.
        lines += [line.split() for line in program.stdout.read().split("\n")[:-1]]
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

home, step, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
owner = {"link": os, "rename": Path, "unlink": Path, "prove": maintenance}[step]
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


LISTING = """
import sys
from test_persons_kill import NAME, NAMES, Filter, ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import ListTarget, SenderChange
with Filter.open(sys.argv[1], history=False) as model:
    service = FeedbackService(model, ReviewQueue(sys.argv[1] + "/review"), persons=NAMES)
    for number in range(10**6):
        word = ("wanted", "unwanted", None)[number % 3]
        answer = service.list_sender(
            SenderChange(ListTarget(NAME, "admin", person=NAME), word, f"a{number // 3}@x.example")
        )
        print(number, answer.state, flush=True)
"""


@pytest.mark.parametrize("after", [1, 8])
def test_listed_senders_survive_a_kill(home, after):
    """Each acknowledged change of a list is there, and the next one is whole or not there."""
    environment = HERE | {"PYTHONPATH": f"{HERE['PYTHONPATH']}:{Path(__file__).parent}"}
    command = [sys.executable, "-c", LISTING, str(home)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        lines = [program.stdout.readline().split() for _ in range(after)]
        program.kill()
        # The kill may have cut the last line.
        lines += [line.split() for line in program.stdout.read().split("\n")[:-1]]
    assert {state for _, state in lines} == {"listed"}
    last = int(lines[-1][0])
    want = [
        {f"a{n // 3}@x.example": word} if (word := ("wanted", "unwanted", None)[n % 3]) else {}
        for n in (last, last + 1)
    ]
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        assert check(view) == []
        senders = view.senders(ListOwner("person", id=model.person(NAME)).key) or ()
        assert {one.sender: one.word for one in senders} in want


STORM = """
import sys
from itertools import count
from pathlib import Path
from test_persons_kill import NAME, Filter, erasing, label_of
from spamnb.telemetry import now_us
from spamnb.engine.values import Source, Undo
home, first = Path(sys.argv[1]), int(sys.argv[2])
for number in count(first):
    with Filter.open(home, history=False) as model:
        (given,) = model.teach([label_of(model, number, (NAME, "bob")[number % 2])])
        moved = label_of(model, number, (NAME, "bob")[number % 2])
        (moved,) = model.teach([moved._replace(label=1 - moved.label)])
        (undone,) = model.teach([Undo(moved.event, Source("root"), now_us())])
        print(number, given.event, undone.event, flush=True)
    if number % 5 == 1:
        print("erasing", number, flush=True)
        erasing(home).run()
        print("erased", number, flush=True)
"""


@pytest.mark.parametrize("seconds", [5, pytest.param(120, marks=pytest.mark.full)])
def test_three_kills_a_second_leave_each_person_whole(home, seconds):
    """Persons teach, move, undo and are erased; after each kill the model is sound.

    Each acknowledged label of a person that was not erased is in force, in both parts. At least one
    kill comes while a person is erased, and one at another time.
    """
    environment = HERE | {"PYTHONPATH": f"{HERE['PYTHONPATH']}:{Path(__file__).parent}"}
    end, first, kept = time.monotonic() + seconds, 1000, dict[int, int]()
    killed_at = set()
    while time.monotonic() < end or not killed_at >= {"erasing", "teaching"}:
        command = [sys.executable, "-c", STORM, str(home), str(first)]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as program:
            lines = [program.stdout.readline()]
            timer = threading.Timer(1 / 3, program.kill)
            timer.start()
            # The kill may have cut the last line.
            lines += program.stdout.read().split("\n")[:-1]
            timer.join()
        at = ""
        for words in map(str.split, filter(None, lines)):
            at = words[0] if words[0] == "erasing" else "teaching"
            if words[0] == "erased":
                kept = {number: event for number, event in kept.items() if number % 2}
            elif words[0] != "erasing":
                kept[int(words[0])] = int(words[1])
        killed_at.add(at)
        first = 1000 * (first // 1000 + 1)
        with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
            assert check(view) == []
            for number, event in kept.items():
                found = view.event(event)
                if number % 2:  # those of the other person may be erased without an answer
                    assert found.person == model.person("bob")
                    live = view.live(label_key(found.digest, found.person))
                    assert live.label == number % 2
    assert kept
