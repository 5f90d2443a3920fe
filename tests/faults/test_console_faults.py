"""What fails beneath a console that serves: model, index, disk; and a killed console."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from itertools import count
from pathlib import Path

import pytest
from support.console import KEEP_ALL, Api, console, token, trained_home
from support.daemon import is_alive, send
from support.sink import Sink
from support.waiting import until

from spamnb.engine.filter import Filter

NAMES = ["alice@example.org", "bob@example.org"]


class Rig:
    """A daemon that keeps all mail, and a client with all rights."""

    def __init__(self, folder, daemon, address):
        self.folder, self.home, self.daemon, self.address = folder, folder / "home", daemon, address
        self.numbers = count()

    @property
    def api(self):
        """A client with a new token, which has sent no request yet: rates are by token."""
        scopes = ("admin", "read", "teach", "quarantine")
        return Api(self.address, token(self.home, f"fresh {next(self.numbers)}", *scopes))

    def keep(self):
        """Send a message into the quarantine; its path."""
        send(self.daemon.port(), subject=f"number {next(self.numbers)}", to=NAMES)
        return f"/quarantine/{self.api.get('/quarantine', limit=1).body['messages'][0]['id']}"


@pytest.fixture(scope="module")
def gate():
    return threading.Event()


@pytest.fixture(scope="module")
def sink(gate):
    sink = Sink(wait=gate)
    yield sink
    gate.set()
    sink.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory, sink):
    folder = tmp_path_factory.mktemp("faults")
    trained_home(folder)
    with console(folder, listener=f'upstream = "{sink.address}"', more=KEEP_ALL) as found:
        yield Rig(folder, *found)


def test_the_console_leaves_the_processor_to_the_mail(rig):
    """Its nice value is 18 more than that of the workers, as far as there are higher ones."""
    (process,), (worker, *_) = rig.daemon.children("console"), rig.daemon.children("worker")
    nice = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (worker, process)]
    assert nice[1] == min(19, nice[0] + 18)


def test_a_deleted_index_is_made_anew(rig):
    """While the console serves: searches find the old and the new verdicts."""
    rig.keep()
    known = len(rig.api.found(1))
    shutil.rmtree(rig.home / "console" / "lookup")
    rig.keep()
    rig.api.found(known + 1)
    assert (rig.home / "console" / "lookup" / "data.mdb").exists()


def test_a_killed_console_releases_nothing_twice(rig, sink, gate):
    """Killed while the next hop has the message and has not answered: a person has to decide."""
    where, api = rig.keep(), rig.api
    before = len(sink.messages)

    def ask():
        with suppress(OSError, HTTPException):
            api.post(f"{where}/release", {})

    asking = threading.Thread(target=ask)
    asking.start()
    assert sink.at_end.wait(60)
    (process,) = rig.daemon.children("console")
    os.kill(process, signal.SIGKILL)
    asking.join()
    gate.set()
    until(lambda: not is_alive(process), "the end of the console")
    until(lambda: len(sink.messages) == before + 1, "the next hop has it")
    found = until(lambda: _answer(rig, where), "a new console")
    assert (found.body["state"], found.body["waiting"]) == ("releasing", NAMES)
    refused = rig.api.post(f"{where}/release", {})
    assert refused.status == 409
    assert len(sink.messages) == before + 1
    released = rig.api.post(f"{where}/release", {"again": True})
    assert released.body["delivered"] is True
    assert len(sink.messages) == before + 2
    assert rig.api.get(where).status == 404


def _answer(rig, where):
    try:
        found = rig.api.get(where)
    except OSError:
        return None
    return found if found.status == 200 else None


def test_a_damaged_model_is_told_and_taken_back(rig):
    """503 with the sentence for what needs the model; lists of messages are read all the same."""
    where = rig.keep()
    data, good = rig.home / "data.mdb", rig.home / "good.mdb"
    junk = rig.home / "junk.mdb"
    junk.write_bytes(os.urandom(1 << 16))
    os.link(data, good)
    junk.rename(data)
    try:
        health = rig.api.get("/health")
        assert health.status == 503
        assert "data.mdb" in health.title or str(rig.home) in health.title
        taught = rig.api.post("/teach", b"Subject: x\n\nhello\n", label="spam")
        assert taught.status == 503
        assert rig.api.get(where).status == 200
        assert rig.api.get(f"{where}/view").status == 200
        assert rig.api.get("/quarantine").status == 200
    finally:
        good.rename(data)
    until(lambda: rig.api.get("/health").status == 200, "the model")

    def learnt():
        reply = rig.api.post("/teach", b"Subject: x\n\nhello\n", label="spam")
        return reply.status == 200

    until(learnt, "the learner has the model")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_full_disk_is_told(tmp_path):
    """A preview needs room for a second model, a choice of costs for a file; the rest is read."""
    small = Path(tempfile.mkdtemp(prefix="spamnb-"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", small], check=False)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        trained_home(small)
        with console(small) as (daemon, address):
            rig = Rig(small, daemon, address)
            client = rig.api
            free = os.statvfs(small)
            room = free.f_bavail * free.f_frsize
            (small / "ballast").write_bytes(b"x" * (room - (1 << 18)))
            begun = client.post("/timemachine", {"to": "2020-01-01T00:00:00Z"}).body
            found = until(lambda: _made(client, begun["job"]), "the preview")
            assert found["state"] == "failed"
            assert found["error"]["error_type"] == "StoreFullError"
            assert "free disk space" in found["error"]["hint"]
            assert client.get("/journal").status == 200
            _fill(small / "rest")
            lines = client.get("/costs").body["thresholds"]
            refused = client.post("/costs", {"junk_from": 0.6, "expect": lines["junk"]})
            assert (refused.status, refused.body["error_type"]) == (503, "StoreFullError")
            assert client.get("/costs").body["stored"] is None
            assert client.get("/journal").status == 200
            (small / "rest").unlink()
            (small / "ballast").unlink()
            begun = client.post("/timemachine", {"to": "2020-01-01T00:00:00Z"}).body
            found = until(lambda: _made(client, begun["job"]), "the preview")
            assert found["state"] == "ready"
    finally:
        subprocess.run(["umount", "-l", small], check=True)
        small.rmdir()


def _fill(path):
    """Take all room that is left on a disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def _made(client, job):
    found = client.get(f"/jobs/{job}").body
    return found if found.get("state", "running") != "running" else None


def test_an_undo_of_many_that_fails_says_how_far_it_came(tmp_path):
    """The learner is killed meanwhile: the error has the number, and the rest is undone later."""
    trained_home(tmp_path)
    with Filter.open(tmp_path / "home", history=False) as model:
        for number in range(200):
            model.learn(f"Subject: {number}\n\nnumber{number}\n".encode(), "ham")
    everything = {"since": "2000-01-01T00:00:00Z"}
    with console(tmp_path) as found, ThreadPoolExecutor(1) as pool:
        rig = Rig(tmp_path, *found)
        plan = rig.api.get("/journal/undo", **everything).body
        asked = everything | {"last_event": plan["last_event"]}
        reply = pool.submit(rig.api.post, "/journal/undo", asked)
        watcher = rig.api
        until(lambda: _undone(watcher) or reply.done(), "the first of them")
        while not reply.done():
            # One that dies between two requests is missed by neither: the next one takes over.
            for learner in rig.daemon.children("learner"):
                with suppress(ProcessLookupError):
                    os.kill(learner, signal.SIGKILL)
        failed = reply.result()
        assert failed.status in (502, 503), failed
        said = re.match(r"(\d+) of (\d+) trainings are undone, then: ", failed.title)
        assert int(said[2]) == plan["undoable"]
        until(lambda: rig.api.get("/status").status == 200, "the learner")
        left = rig.api.get("/journal/undo", **everything).body["undoable"]
        # The one that was asked for last may be undone without an answer.
        assert plan["undoable"] - left - int(said[1]) in (0, 1)
        assert int(said[1]) > 0 < left
        rest = rig.api.post("/journal/undo", asked).body
        assert rest == {"undone": left, "left": 0}


def _undone(api):
    found = api.get("/journal", limit=1)
    return found.status == 200 and found.body["events"][0]["kind"] == "undo"
