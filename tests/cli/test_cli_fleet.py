"""A fleet from the command line: begin it, join it, learn on each host, leave it."""

import shutil
from contextlib import closing

import pytest
from support.cli import ONE_HAM, ONE_SPAM, SAMPLE, spamnb
from support.fleet import everything
from support.valkey_server import ValkeyServer, needs_valkey

from spamnb.fleet.outbox import Outbox, WaitingQuestion
from spamnb.store.model_store import open_store

pytestmark = [pytest.mark.usefixtures("alone"), needs_valkey]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that the settings of this process name."""
    running = ValkeyServer(tmp_path).start()
    monkeypatch.setenv("SPAMNB_FLEET_URL", f"unix://{running.path}")
    monkeypatch.setenv("SPAMNB_FLEET_APPEND_S", "30")
    yield running
    running.kill()


@pytest.fixture
def homes(trained, tmp_path, server, monkeypatch):
    """The homes of two hosts of a fleet."""
    first, second = shutil.copytree(trained, tmp_path / "a"), tmp_path / "b"
    done = spamnb(first, "fleet", "init")
    assert done.code == 0, done.err
    assert spamnb(first, "backup", tmp_path / "copy").code == 0
    assert spamnb(second, "restore", tmp_path / "copy").code == 0
    shutil.copy(first / "fleet.key", second)
    return first, second


def contents(home):
    store = open_store(home, readonly=True)
    try:
        return everything(store)
    finally:
        store.close()


def on(monkeypatch, home, *arguments):
    """Run a command as the host of this home."""
    monkeypatch.setenv("SPAMNB_FLEET_HOST", home.name)
    return spamnb(home, *arguments)


def test_hosts_that_join_by_a_backup_learn_together(homes, monkeypatch):
    """What is taught on one host is on the other one before that is taught, or asks."""
    first, second = homes
    assert contents(first) == contents(second)
    assert on(monkeypatch, first, "correct", "spam", ONE_HAM).code == 0
    status = on(monkeypatch, second, "fleet", "status", "--json").json[0]
    assert (status["lag_events"], status["fault"]) == (1, "")
    assert on(monkeypatch, second, "correct", "ham", ONE_SPAM).code == 0
    assert on(monkeypatch, first, "forget", SAMPLE / "ham" / "0002.eml").code == 0
    assert on(monkeypatch, second, "correct", "ham", ONE_HAM).code == 0
    status = on(monkeypatch, second, "fleet", "status", "--json").json[0]
    assert (status["lag_events"], status["log_seq"]) == (0, status["seq"])
    assert "lag events" in on(monkeypatch, first, "fleet", "status").out
    assert on(monkeypatch, first, "undo", status["seq"] - 2).code == 0
    assert on(monkeypatch, second, "correct", "spam", ONE_SPAM).code == 0
    assert on(monkeypatch, first, "forget", ONE_SPAM).code == 0
    assert on(monkeypatch, second, "forget", SAMPLE / "ham" / "0003.eml").code == 0
    ahead, behind = contents(second)[0]["events"], contents(first)[0]["events"]
    assert ahead[: len(behind)] == behind
    assert len(ahead) == len(behind) + 1
    assert spamnb(first, "check").code == spamnb(second, "check").code == 0


def test_without_the_server_corrections_wait(homes, server, monkeypatch):
    """A host that is cut off leaves its model unchanged, and learns the corrections afterwards."""
    first, other = homes[0], SAMPLE / "ham" / "0002.eml"
    server.kill()
    before = contents(first)
    done = on(monkeypatch, first, "correct", "spam", ONE_HAM)
    assert (done.code, "waits as w1 (spam)" in done.out) == (0, True)
    assert on(monkeypatch, first, "correct", "spam", other, "--json").json[0]["waiting"] == 2
    assert on(monkeypatch, first, "undo", "w2").code == 0
    assert on(monkeypatch, first, "undo", "w2").code == 2
    assert on(monkeypatch, first, "fleet", "status").code == 1
    assert on(monkeypatch, first, "fleet", "status", "--json").json[0]["waiting"] == 2
    assert on(monkeypatch, first, "score", ONE_HAM, "--json").json[0]["label"] == "spam"
    assert on(monkeypatch, first, "score", other, "--json").json[0]["label"] == "ham"
    assert contents(first) == before
    server.start()
    assert on(monkeypatch, first, "correct", "spam", SAMPLE / "ham" / "0003.eml").code == 0
    assert len(contents(first)[0]["events"]) == len(before[0]["events"]) + 2
    assert on(monkeypatch, first, "fleet", "status", "--json").json[0]["waiting"] == 0
    assert on(monkeypatch, first, "score", other, "--json").json[0]["label"] == "ham"


def test_a_home_of_a_fleet_learns_through_the_log_only(homes, monkeypatch):
    """Without [fleet] in the settings, and in bulk without a daemon, training is refused."""
    monkeypatch.delenv("SPAMNB_FLEET_URL")
    for command in (
        ("correct", "spam", ONE_HAM),
        ("train", SAMPLE / "spam", SAMPLE / "ham"),
    ):
        done = spamnb(homes[0], *command)
        assert (done.code, "fleet" in done.err) == (3, True)
    assert spamnb(homes[0], "fleet", "status").code == 2
    with closing(Outbox(homes[0])) as outbox:
        outbox.put_question(WaitingQuestion(0, 1, ("b",), {}))
    left = spamnb(homes[0], "fleet", "leave")
    assert (left.code, "verdicts of other hosts are dropped" in left.out) == (0, True)
    with closing(Outbox(homes[0])) as outbox:
        assert outbox.questions() == []
    assert spamnb(homes[0], "correct", "spam", ONE_HAM).code == 0


def test_a_fleet_begins_once(homes, trained, tmp_path, server):
    """A second fleet of the same name is refused; `init` on a host of the fleet changes nothing."""
    before = contents(homes[0])
    assert spamnb(homes[0], "fleet", "init").code == 0
    assert contents(homes[0]) == before
    other = shutil.copytree(trained, tmp_path / "other")
    done = spamnb(other, "fleet", "init")
    assert (done.code, "already" in done.err) == (3, True)
    assert spamnb(other, "correct", "spam", ONE_HAM).code == 3
    assert spamnb(other, "fleet", "status").code == 3


def test_fleets_on_one_server_learn_apart(homes, server, tmp_path, monkeypatch):
    """A fleet that begins with the model of another one shares nothing with it afterwards."""
    first, other = homes[0], tmp_path / "other"
    monkeypatch.delenv("SPAMNB_FLEET_URL")
    assert spamnb(other, "restore", tmp_path / "copy").code == 0
    assert spamnb(other, "fleet", "leave").code == 0
    monkeypatch.setenv("SPAMNB_FLEET_URL", f"unix://{server.path}")
    monkeypatch.setenv("SPAMNB_FLEET_NAME", "other")
    assert on(monkeypatch, other, "fleet", "init").code == 0
    assert contents(other)[0] == contents(first)[0]
    assert (first / "fleet.key").read_text() != (other / "fleet.key").read_text()
    assert on(monkeypatch, other, "correct", "spam", ONE_HAM).code == 0
    assert on(monkeypatch, other, "score", ONE_HAM, "--json").json[0]["label"] == "spam"
    monkeypatch.setenv("SPAMNB_FLEET_NAME", "spamnb")
    status = on(monkeypatch, first, "fleet", "status", "--json").json[0]
    assert (status["lag_events"], [one["host"] for one in status["hosts"]]) == (0, [])
    assert on(monkeypatch, first, "correct", "ham", ONE_SPAM).code == 0
    assert on(monkeypatch, first, "score", ONE_HAM, "--json").json[0]["label"] == "ham"
    done = on(monkeypatch, other, "correct", "ham", ONE_SPAM)
    assert (done.code, "waits as w1" in done.out) == (0, True)
    status = on(monkeypatch, other, "fleet", "status", "--json").json[0]
    assert "belongs to another fleet" in status["fault"]


def test_a_log_that_was_lost_is_made_anew(homes, server, monkeypatch):
    """With the log gone corrections wait; `reseed` makes it anew, and all hosts go on."""
    first, second = homes
    assert on(monkeypatch, first, "correct", "spam", ONE_HAM).code == 0
    assert on(monkeypatch, second, "correct", "spam", SAMPLE / "ham" / "0002.eml").code == 0
    assert on(monkeypatch, first, "correct", "spam", SAMPLE / "ham" / "0003.eml").code == 0
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    server.start()
    assert "waits" in on(monkeypatch, second, "correct", "ham", ONE_HAM).out
    done = on(monkeypatch, first, "fleet", "init")
    assert (done.code, "reseed" in done.err) == (3, True)
    done = on(monkeypatch, first, "fleet", "reseed")
    assert (done.code, "no report from b" in done.out) == (0, True), done.err
    assert on(monkeypatch, first, "fleet", "reseed").code == 2
    assert on(monkeypatch, second, "correct", "ham", SAMPLE / "ham" / "0003.eml").code == 0
    assert on(monkeypatch, first, "forget", SAMPLE / "ham" / "0002.eml").code == 0
    assert on(monkeypatch, second, "correct", "ham", SAMPLE / "ham" / "0004.eml").code == 0
    assert on(monkeypatch, first, "forget", SAMPLE / "ham" / "0004.eml").code == 0
    assert contents(first)[0]["events"][:-1] == contents(second)[0]["events"]
    assert on(monkeypatch, second, "fleet", "status", "--json").json[0]["waiting"] == 0


def test_a_host_that_the_log_went_on_without_joins_again(homes, server, monkeypatch):
    """A log in an older state leaves a host behind; `rejoin` loses no correction."""
    first, second = homes
    assert on(monkeypatch, second, "correct", "spam", SAMPLE / "ham" / "0002.eml").code == 0
    files, saved = server.folder / "appendonlydir", server.folder / "saved"
    shutil.copytree(files, saved)
    assert on(monkeypatch, first, "correct", "spam", ONE_HAM).code == 0
    server.kill()
    shutil.rmtree(files)
    saved.rename(files)
    server.start()
    assert on(monkeypatch, second, "correct", "spam", SAMPLE / "ham" / "0003.eml").code == 0
    assert "waits" in on(monkeypatch, first, "correct", "spam", SAMPLE / "ham" / "0004.eml").out
    assert "rejoin" in on(monkeypatch, first, "fleet", "status").out
    assert on(monkeypatch, second, "fleet", "snapshot").code == 0
    done = on(monkeypatch, first, "fleet", "rejoin")
    assert (done.code, "1 corrections" in done.out) == (0, True), done.err
    assert on(monkeypatch, first, "forget", SAMPLE / "ham" / "0005.eml").code == 0
    assert on(monkeypatch, second, "forget", SAMPLE / "ham" / "0006.eml").code == 0
    assert contents(second)[0]["events"][:-1] == contents(first)[0]["events"]
    assert spamnb(first, "check").code == 0


def test_a_relearnt_model_begins_a_new_history(homes, server, monkeypatch):
    """A change of the whole model is made on one host; the others join, and lose no correction."""
    first, second = homes
    assert on(monkeypatch, second, "correct", "spam", ONE_HAM).code == 0
    assert on(monkeypatch, first, "relearn", "--without", "unknown", "--yes").code == 2
    assert on(monkeypatch, second, "correct", "spam", SAMPLE / "ham" / "0002.eml").code == 0
    done = on(monkeypatch, first, "relearn", "--without-channel", "cli", "--yes")
    assert (done.code, "join --force" in done.err) == (0, True), done.err
    assert "waits" in on(monkeypatch, second, "correct", "spam", SAMPLE / "ham" / "0003.eml").out
    assert "another fleet" in on(monkeypatch, second, "fleet", "status").out
    assert on(monkeypatch, first, "correct", "spam", SAMPLE / "ham" / "0004.eml").code == 0
    assert on(monkeypatch, second, "fleet", "join", "--force").code == 0
    assert on(monkeypatch, second, "correct", "ham", SAMPLE / "ham" / "0005.eml").code == 0
    assert on(monkeypatch, first, "correct", "spam", SAMPLE / "ham" / "0006.eml").code == 0
    assert contents(first)[0]["events"][:-1] == contents(second)[0]["events"]
    assert len(contents(first)[0]["events"]) == 4
    (kept,) = (path.name for path in first.iterdir() if path.name.startswith("before-"))
    done = on(monkeypatch, first, "rewind", kept, "--yes")
    assert (done.code, "join --force" in done.err) == (0, True), done.err
    assert len(contents(first)[0]["events"]) > 400
    done = on(monkeypatch, first, "forget", SAMPLE / "ham" / "0002.eml")
    assert (done.code, "waits" in done.out) == (0, False)


def test_other_hosts_teach_while_a_rewind_asks(homes, monkeypatch):
    """The log is open until the administrator agrees; what was taught meanwhile is rewound, too."""
    first, second = homes
    assert on(monkeypatch, second, "correct", "spam", ONE_HAM).code == 0
    asked = []

    def agree(question, *, yes):
        assert not yes
        asked.append(question)
        done = on(monkeypatch, second, "correct", "ham", ONE_SPAM)
        assert (done.code, "waits" in done.out) == (0, False), done.err
        monkeypatch.setenv("SPAMNB_FLEET_HOST", first.name)

    monkeypatch.setattr("spamnb.cli.rewind.agreed", agree)
    done = on(monkeypatch, first, "relearn", "--without-channel", "cli", "--json")
    assert done.code == 0, done.err
    assert f"{done.json[0]['dropped'] - 1} events will be removed" in asked[0]
    assert on(monkeypatch, second, "fleet", "join", "--force").code == 0
    assert contents(first) == contents(second)


def test_a_host_joins_by_a_snapshot(homes, server, tmp_path, monkeypatch):
    """A new host takes the model from the server, if it has the key, and learns with the others."""
    first, new = homes[0], tmp_path / "c"
    new.mkdir()
    shutil.copy(first / "fleet.key", new)
    done = on(monkeypatch, new, "fleet", "join")
    assert (done.code, "no snapshot" in done.err) == (3, True)
    assert on(monkeypatch, first, "correct", "spam", ONE_HAM).code == 0
    assert on(monkeypatch, first, "fleet", "snapshot").code == 0
    assert on(monkeypatch, first, "correct", "spam", SAMPLE / "ham" / "0002.eml").code == 0
    assert on(monkeypatch, new, "fleet", "join").code == 0
    assert on(monkeypatch, new, "fleet", "join").code == 2
    assert on(monkeypatch, new, "correct", "ham", ONE_HAM).code == 0
    assert on(monkeypatch, first, "fleet", "join", "--force").code == 0
    assert on(monkeypatch, first, "forget", ONE_SPAM).code == 0
    assert on(monkeypatch, new, "forget", SAMPLE / "ham" / "0003.eml").code == 0
    assert spamnb(new, "compact").code == spamnb(new, "check").code == 0
    assert on(monkeypatch, new, "fleet", "status", "--json").json[0]["lag_events"] == 0
    (new / "fleet.key").write_text("00" * 32)
    before = contents(new)
    assert on(monkeypatch, new, "fleet", "join", "--force").code == 3
    assert contents(new) == before


def test_a_key_that_others_can_read_is_refused(homes, monkeypatch):
    """The key of the fleet is secret: a file that other users can read is not used."""
    (homes[0] / "fleet.key").chmod(0o644)
    done = on(monkeypatch, homes[0], "correct", "spam", ONE_HAM)
    assert (done.code, "chmod" in done.err) == (3, True)


def test_a_fleet_without_a_server_is_refused_and_leaves_no_key(trained, monkeypatch):
    """Without `fleet.url`, `init` says so before it makes the key."""
    monkeypatch.delenv("SPAMNB_FLEET_URL", raising=False)
    done = spamnb(trained, "fleet", "init")
    assert (done.code, "fleet.url is not set" in done.err) == (2, True)
    assert not (trained / "fleet.key").exists()
