"""A model that is replaced while other processes read it."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.errors import RefusedError, StoreFullError, StoreReplacedError
from spamnb.maintenance.rewind import rewind
from spamnb.policy.senders import ListOwner, SenderList
from spamnb.store import maintenance as rebuilding
from spamnb.store.maintenance import Change, check, copy_folder, copy_model, put_copy, replay, trim
from spamnb.store.model_store import open_store

MESSAGES = [f"Subject: {n}\n\nword{n} apple\n".encode() for n in range(60)]

READER = """
import sys
from contextlib import closing
from pathlib import Path
from spamnb.store.maintenance import check
from spamnb.store.model_store import open_store

home = Path(sys.argv[1])
store = open_store(home, readonly=True)
for order in sys.stdin:
    if order == "open\\n":
        store.close()
        store = open_store(home, readonly=True)
    with store.read() as view:
        print(len(check(view)), view.totals().last_seq, flush=True)
"""


REWOUND = """
import sys
from pathlib import Path
from spamnb.maintenance.rewind import rewind

rewind(Path(sys.argv[1]), 0)
"""


@pytest.fixture
def home(tmp_path):
    learn(tmp_path, MESSAGES[:20])
    return tmp_path


def learn(home, messages):
    with Filter.open(home, create=True, history=False) as model:
        for raw in messages:
            model.learn(raw, model.labels[len(raw) % 2])


def last_seq(home):
    with closing(open_store(home, readonly=True)) as store, store.read() as view:
        assert check(view) == []
        return view.totals().last_seq


class Reader:
    """Another process that has the model open."""

    def __init__(self, home):
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )

    def ask(self, order):
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        faults, events = self.process.stdout.readline().split()
        assert faults == "0"
        return int(events)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(LIMIT_S) == 0
        self.process.stdout.close()


@pytest.mark.parametrize("trimmed", [False, True])
def test_readers_use_the_old_model_until_they_open_it_again(home, trimmed):
    """What is learnt after the exchange is seen by new readers, and disturbs no old one.

    A trimmed file counts few transactions, the copy more; else it is the other way round.
    """
    if trimmed:
        learn(home, MESSAGES[20:22] * 600)
        trim(home)
    before = last_seq(home)
    old, other = Reader(home), Reader(home)
    assert (old.ask("read"), other.ask("read")) == (before, before)
    kept = rewind(home, 0).kept
    for number in range(1, 11):
        learn(home, [MESSAGES[30 + number]])
        assert old.ask("read") in (before, before - 1)
        assert other.ask("open") == number
    assert old.ask("open") == 10
    old.close()
    other.close()
    assert last_seq(home) == 10
    (home / "old").mkdir()
    kept.rename(home / "old" / "data.mdb")
    assert last_seq(home / "old") == before


def test_a_copy_of_an_older_state_is_refused(home):
    """Events or lists of senders that came after the copy would be lost, or a new model."""

    def all_events(view, new):
        replay(view.events(), view, new)

    with copy_folder(home) as folder:
        copied = copy_model(home, folder, Change(all_events))
        learn(home, [MESSAGES[40]])
        with pytest.raises(RefusedError, match="1 events were learnt since"):
            put_copy(folder, home, copied.state)
    with copy_folder(home) as folder:
        copied = copy_model(home, folder, Change(all_events))
        site = ListOwner("site")
        listed = SenderList(site.kind, site.name).put("a@a.example", "wanted", 5)
        with closing(open_store(home)) as store:
            store.transact(lambda view: view.put_senders(site.key, listed))
        with pytest.raises(RefusedError, match="the model was changed since"):
            put_copy(folder, home, copied.state)
    with copy_folder(home) as folder, copy_folder(home) as second:
        copied = copy_model(home, folder, Change(all_events))
        other = copy_model(home, second, Change(all_events))
        put_copy(folder, home, copied.state)
        with pytest.raises(RefusedError, match="the model was changed since"):
            put_copy(second, home, other.state)
    assert last_seq(home) == 21


def test_a_copy_does_not_fill_the_disk(home, monkeypatch):
    """It is refused before it begins if the disk has no room for it."""
    monkeypatch.setattr(rebuilding, "room_for_copy", lambda _: 20_000)
    with pytest.raises(StoreFullError, match="has room for 20000"):
        rewind(home, 0)
    assert sorted(path.name for path in home.iterdir()) == ["data.mdb", "lock.mdb"]
    assert last_seq(home) == 20


def test_a_writer_of_the_old_file_is_stopped(home):
    """It would count its transactions in the lock file, which is that of the new file now."""
    with Filter.open(home, history=False) as model:
        done = subprocess.run(
            [sys.executable, "-c", REWOUND, home], cwd=Path(__file__).parents[2], check=True
        )
        assert done.returncode == 0
        with pytest.raises(StoreReplacedError):
            model.learn(MESSAGES[40], "ham")
    learn(home, MESSAGES[50:53])
    assert last_seq(home) == 3
