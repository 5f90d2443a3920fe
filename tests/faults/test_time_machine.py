"""The time machine of a daemon with mail: previews, what is refused, kills."""

import os
import signal
import threading
from itertools import count
from pathlib import Path

import pytest
from support.cli import spamnb
from support.console import Api, console, token, trained_home
from support.daemon import is_alive, send
from support.sink import Sink
from support.waiting import until

from spamnb.engine.filter import Filter
from spamnb.engine.values import Source

SPAM = b"Subject: offer\nMessage-ID: <%d@x.test>\n\ncheap pills viagra offer buy now %d\n"


class Rig:
    """A daemon with a console, and the folder of its home."""

    def __init__(self, folder, daemon, address):
        self.folder, self.daemon, self.home = folder, daemon, folder / "home"
        self.config, self.address, self.numbers = folder / "spamnb.toml", address, count()

    @property
    def api(self):
        """A client with a new token, which has sent no request yet: rates are by token."""
        name = f"fresh {next(self.numbers)}"
        return Api(self.address, token(self.home, name, "admin", "read", "teach", "score"))

    def spamnb(self, *words):
        return spamnb(self.home, "--config", str(self.config), *words)

    def events(self):
        return self.api.get("/timemachine").body["last_event"]

    def preview(self, **wanted):
        begun = self.api.post("/timemachine", wanted)
        assert begun.status == 200, begun
        return self.made(begun.body["job"])

    def made(self, job):
        def come():
            found = self.api.get(f"/jobs/{job}")
            assert found.status == 200, found
            return found.body if found.body["state"] != "running" else None

        return until(come, "a preview")

    def apply(self, preview, expect=None):
        expect = expect or preview["facts"]["expect"]
        return self.api.post(f"/timemachine/{preview['job']}/apply", {"expect": expect})


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder, sink = tmp_path_factory.mktemp("machine"), Sink()
    trained_home(folder)
    with Filter.open(folder / "home", history=False) as model:
        for number in range(8):
            model.correct(SPAM % (number, number), "ham", source=Source("mallory", "imap"))
    with console(folder, listener=f'upstream = "{sink.address}"') as (daemon, address):
        rig = Rig(folder, daemon, address)
        for number in range(6):
            send(daemon.port(), f"cheap pills viagra offer buy now {number}", f"about {number}")
        rig.api.found(6)
        yield rig
    sink.close()


def test_a_person_is_left_out_and_brought_back(rig):
    """The preview has what the applied model then says; the old model comes back the same way."""
    before = rig.events()
    rows = rig.api.get("/verdicts").body["verdicts"]
    now = {one["signature"]: decision(rig, one) for one in rows}
    found = rig.preview(without=["mallory"])
    facts = found["facts"]
    assert (facts["dropped"], facts["expect"], facts["messages"]) == (8, before, 6)
    assert facts["changed"] == len(facts["verdicts"]) > 0
    assert {one["signature"]: one["old"] for one in facts["verdicts"]}.items() <= now.items()
    applied = rig.apply(found)
    assert (applied.status, applied.body["state"]) == (200, "applied"), applied
    then = {one["signature"]: decision(rig, one) for one in rows}
    changed = {one["signature"]: one["new"] for one in facts["verdicts"]}
    assert then == now | changed
    assert rig.events() == before - 8
    assert rig.spamnb("check").code == 0
    (kept,) = rig.api.get("/timemachine").body["kept"]
    assert kept["kept"] == applied.body["kept"]
    back = rig.preview(kept=kept["kept"])
    assert back["facts"]["last_event"] == before
    assert rig.apply(back).body["state"] == "applied"
    assert {one["signature"]: decision(rig, one) for one in rows} == now
    assert rig.daemon.wait_for("model replaced", count=2)["closed_ms"] < 10_000


def decision(rig, row):
    return rig.api.get(f"/verdicts/{row['signature']}").body["now"]["decision"]


def test_what_was_learnt_since_is_not_lost(rig):
    """Apply is refused with 409, and so is an event that is not the preview's."""
    found = rig.preview(without_channel=["imap"])
    wrong = rig.apply(found, expect=found["facts"]["expect"] + 1)
    assert (wrong.status, "not" in wrong.title) == (409, True)
    before = rig.events()
    assert rig.api.post("/teach", SPAM % (99, 99), label="spam").status == 200
    late = rig.apply(found)
    assert late.status == 409
    assert "1 events were learnt since" in late.title
    assert rig.events() == before + 1
    assert rig.api.ask("DELETE", f"/jobs/{found['job']}").body["state"] == "ended"
    assert rig.apply(found).status == 409
    assert not list(rig.home.glob(".spamnb-new-*"))


def test_the_command_asks_the_daemon(rig):
    """`spamnb rewind` with a running daemon; without training since then nothing is made."""
    moment = rig.spamnb("journal", "--json", "--limit", 1).json[0]["time"]
    before = rig.events()
    assert rig.api.post("/teach", SPAM % (77, 77), label="spam").status == 200
    done = rig.spamnb("rewind", moment, "--yes", "--json").json[0]
    assert done["events_dropped"] == 1
    assert rig.events() == before
    assert rig.spamnb("rewind", moment, "--yes").lines == ["no training since then"]
    assert rig.preview(to=moment)["facts"]["state"] is None


@pytest.mark.parametrize(
    ("wanted", "status", "why"),
    [
        ({}, 400, "give exactly one of"),
        ({"to": "2020-01-01T00:00:00Z", "without": ["mallory"]}, 400, "give exactly one of"),
        ({"kept": "../data.mdb"}, 200, "is kept"),
        ({"without": ["nobody"]}, 200, "no event of the user 'nobody'"),
    ],
)
def test_a_wrong_wish_is_refused(rig, wanted, status, why):
    """At once, or by the preview; the model stays."""
    begun = rig.api.post("/timemachine", wanted)
    assert begun.status == status
    if status == 400:
        assert why in begun.title
        return
    failed = rig.made(begun.body["job"])
    assert failed["state"] == "failed"
    assert why in failed["error"]["error"]
    assert rig.apply(failed, expect=1).status == 409
    assert rig.api.get("/jobs/0123").status == 404


def test_mail_flows_while_the_model_is_replaced(rig):
    """All mail is scanned and delivered, and training that waits is not lost."""
    stop, sent = threading.Event(), []

    def flood():
        while not stop.is_set():
            send(rig.daemon.port(), f"meeting agenda {len(sent)}", f"flow {len(sent)}")
            sent.append(len(sent))

    sender = threading.Thread(target=flood)
    lines = len(rig.daemon.logged("message"))
    sender.start()
    try:
        for _ in range(3):
            number = len(sent)
            taught = rig.api.post("/teach", SPAM % (1000 + number, number), label="spam")
            assert taught.body["state"] == "learnt", taught
            before = rig.events()
            assert rig.apply(rig.preview(without=["mallory"])).status == 200
            (kept, *_) = rig.api.get("/timemachine").body["kept"]
            assert rig.apply(rig.preview(kept=kept["kept"])).status == 200
            assert rig.events() == before
            until(lambda number=number: len(sent) > number + 5, "mail flows")
    finally:
        stop.set()
        sender.join()
    until(lambda: len(rig.daemon.logged("message")) >= lines + len(sent), "all lines of the log")
    for line in rig.daemon.logged("message")[lines:]:
        assert line["decision"] != "unscanned", line
    assert len(rig.api.get("/timemachine").body["kept"]) == 3


def test_a_killed_learner_leaves_a_whole_model(rig):
    """Killed while a preview is made: its process ends, and the next preview removes its folder."""
    before = rig.events()
    begun = rig.api.post("/timemachine", {"without": ["mallory"]}).body
    (learner,) = rig.daemon.children("learner")
    (child,) = until(lambda: children(learner), "the process of the preview")
    os.kill(learner, signal.SIGKILL)
    until(lambda: not is_alive(learner), "the end of the learner")
    until(lambda: learner not in rig.daemon.children("learner") and answers(rig), "a new learner")
    assert rig.api.get(f"/jobs/{begun['job']}").status == 404
    assert rig.events() == before
    assert rig.spamnb("check").code == 0
    until(lambda: not is_alive(child), "the end of the preview's process")


def answers(rig):
    return rig.api.get("/status").status == 200


def children(pid):
    """List the children of a process, also those of its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
