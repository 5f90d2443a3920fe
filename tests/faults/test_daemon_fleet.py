"""Two daemons with `[fleet]` in their settings: one model, two homes, one server."""

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from itertools import cycle

import pytest
from support.cli import ONE_HAM, ONE_SPAM, PROJECT
from support.cli import forked as spamnb
from support.daemon import NO_DELIVERY, serve, settings_in
from support.fleet import everything
from support.learner import score
from support.postfix import free_ports
from support.valkey_server import ValkeyServer, needs_valkey
from support.waiting import LIMIT_S, until

from spamnb.fleet.outbox import OutboxReader
from spamnb.scan.judge import ModelSession, SessionConfig
from spamnb.store.model_store import open_store

pytestmark = needs_valkey
TEACH = PROJECT / "scripts" / "dovecot" / "spamnb-teach"


@pytest.fixture
def server(place):
    (port,) = free_ports(1)
    running = ValkeyServer(place).start(port=port)
    running.port = port
    yield running
    running.kill()


@contextmanager
def replica_of(server, folder):
    """Run a replica of a server."""
    folder.mkdir()
    running = ValkeyServer(folder).start(replicaof=f"127.0.0.1 {server.port}")
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
def hosts(home, server):
    """The folders of two hosts, with settings and with the model that both begin with."""
    folders = [home, home.parent / f"{home.name}-b"]
    folders[1].mkdir()
    for folder in folders:
        fleet = f'[fleet]\nurl = "unix://{server.path}"\nhost = "{folder.name}"\nfold_s = 0.0\n'
        settings_in(
            folder,
            serve=f'delegates = ["{os.geteuid()}"]',
            **NO_DELIVERY,
            more=f"{fleet}append_s = 30\n",
        )
    assert command(folders[0], "fleet", "init").code == 0
    assert command(folders[0], "backup", home / "copy").code == 0
    assert command(folders[1], "restore", home / "copy").code == 0
    shutil.copy(folders[0] / "home" / "fleet.key", folders[1] / "home")
    return folders


def command(folder, *arguments):
    return spamnb(folder / "home", "--config", folder / "spamnb.toml", *arguments)


def position(folder):
    store = open_store(folder / "home", readonly=True)
    try:
        with store.read() as view:
            return view.position()
    finally:
        store.close()


def status_of(folder):
    return command(folder, "status", "--json").json[0]


def contents(folder):
    store = open_store(folder / "home", readonly=True)
    try:
        return everything(store)
    finally:
        store.close()


def test_daemons_of_a_fleet_share_what_they_are_taught(hosts, server):
    """A correction on one host is on the other one soon; the models are equal then."""
    first, second = hosts
    with (
        serve(first, config=first / "spamnb.toml").ready(),
        serve(second, config=second / "spamnb.toml").ready(),
    ):
        assert command(first, "correct", "spam", ONE_HAM).code == 0
        seq = position(first).seq
        until(lambda: position(second).seq == seq, "the second host")
        done = command(second, "correct", "ham", ONE_HAM)
        assert done.code == 0, done.err
        assert "spam -> ham" in done.out
        until(lambda: position(first).seq == seq + 1, "the first host")
        # The first host tells the second one what the signature means; if that takes long, the
        # correction waits for it.
        signature = score(first / "home", ONE_SPAM.read_bytes(), to="bob")
        assert command(second, "correct", "ham", signature).code == 0
        until(lambda: position(first).seq == seq + 2, "the correction by signature")
        status = command(first, "status", "--json").json[0]
        assert status["fleet"]["fault"] == ""
        assert status["fleet"]["folded_entries"] >= 1
        assert "spamnb_fleet_following 1" in command(first, "status", "--prometheus").out
    assert contents(first) == contents(second)


def test_a_correction_tells_that_no_replica_has_it(hosts, server, place):
    """With `durable = replica`, the reply, the log and the status say that no replica has it."""
    first, _ = hosts
    settings = first / "spamnb.toml"
    wanted = 'append_s = 8\ndurable = "replica"'
    settings.write_text(settings.read_text().replace("append_s = 30", wanted))
    lacking = "no replica of the server of the fleet's log has"
    with serve(first, config=settings).ready() as daemon:
        done = command(first, "correct", "spam", ONE_HAM)
        assert (done.code, done.out.count(lacking)) == (0, 1)
        daemon.wait_for("the fleet needs attention")
        assert "unchanged" in command(first, "correct", "spam", ONE_HAM).out  # appends nothing
        until(lambda: any(lacking in one for one in status_of(first)["warnings"]), "the warning")
        assert "spamnb_fleet_copied 0" in command(first, "status", "--prometheus").out
        with replica_of(server, place / "replica") as replica:
            labels = cycle(["ham", "spam"])
            while lacking in command(first, "correct", next(labels), ONE_HAM).out:
                pass
            until(lambda: status_of(first)["fleet"]["copied"], "the status")
            kept, seq = replica.log(durable="trust"), position(first).seq
            until(lambda: kept.head().seq == seq, "the replica")
            kept.close()


def test_a_daemon_goes_on_while_the_log_is_away(hosts, server):
    """Corrections wait, workers judge by them, and they are learnt when the server is back."""
    first, second = hosts
    with serve(first, config=first / "spamnb.toml").ready() as daemon:
        before, raw = position(first).seq, ONE_SPAM.read_bytes()
        signature = score(first / "home", raw, to="bob")
        server.kill()
        daemon.wait_for("the fleet's log is not followed")
        workers = ModelSession(SessionConfig(first / "home", pins=OutboxReader))
        assert workers.scan([ONE_HAM.read_bytes()], [{}])[0].label == "ham"
        done = command(first, "correct", "spam", ONE_HAM)
        assert (done.code, "waits as w1" in done.out) == (0, True)
        assert workers.scan([ONE_HAM.read_bytes()], [{}])[0].label == "spam"
        workers.close()
        daemon.wait_for("corrections wait for the fleet's log")
        spool = os.environ | {"SPAMNB_SPOOL": str(first / "home" / "spool")}
        subprocess.run(
            [TEACH, "ham", "bob"],
            input=f"X-Spamnb-Signature: {signature}\n".encode() + raw,
            env=spool,
            check=True,
            timeout=LIMIT_S,
        )
        until(lambda: status_of(first)["fleet"]["waiting"] == 2, "the spool")
        status = status_of(first)
        assert status["spool"]["waiting"] == 0
        assert "spamnb_fleet_waiting_corrections 2" in command(first, "status", "--prometheus").out
        assert any("fleet" in warning for warning in status["warnings"])
        assert position(first).seq == before
        assert command(first, "score", ONE_HAM).code in {0, 1}
        server.start()
        daemon.wait_for("the fleet's log answers again")
        daemon.wait_for("waiting corrections learnt")
        assert position(first).seq == before + 2
        assert status_of(first)["fleet"]["waiting"] == 0
        assert daemon.stop() == 0
    with serve(second, config=second / "spamnb.toml").ready():
        until(lambda: position(second).seq == before + 2, "the second host")
    assert contents(first) == contents(second)


def test_only_the_learner_talks_to_the_log(hosts, server):
    """No other process of the daemon opens the server's socket."""
    (first, _), path = hosts, server.path
    server.kill()
    seen = set()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(LIMIT_S)
        with serve(first, config=first / "spamnb.toml").ready() as daemon:
            learner = daemon.children("learner")
            for _ in range(3):
                client, _ = listener.accept()
                credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                seen.add(int.from_bytes(credentials[:4], "little"))
                client.close()
            assert seen == set(learner)


def test_reseed_does_not_write_the_model_of_a_daemon(hosts, server):
    """With --force it makes the log anew beside the daemon; a change that was killed has to wait.

    Only the learner of a daemon writes its model. A model without a position, which such a change
    leaves, is written by the command, so the daemon has to be stopped.
    """
    first, _ = hosts
    reseed = "fleet", "reseed", "--force"
    with serve(first, config=first / "spamnb.toml").ready():
        assert command(first, "correct", "spam", ONE_HAM).code == 0
        before = (first / "home" / "data.mdb").read_bytes()
        assert command(first, *reseed).code == 0
        assert (first / "home" / "data.mdb").read_bytes() == before
        assert command(first, "correct", "spam", ONE_SPAM).code == 0
    store = open_store(first / "home")
    with store.write() as view:
        view.put_position(None)
    store.close()
    with serve(first, config=first / "spamnb.toml").ready():
        done = command(first, *reseed)
        assert (done.code, "a daemon serves" in done.err) == (2, True), done.err
        assert position(first) is None
    assert command(first, *reseed).code == 0
    assert position(first) is not None
