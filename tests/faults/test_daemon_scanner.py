"""Faults of a real daemon while clients ask its scanner about messages."""

import contextlib
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.cli import forked
from support.clients import SPAMC, needs_spamc, run_line
from support.daemon import hanging, serve_slowly, settings_in
from support.daemon_children import HANG
from support.waiting import LIMIT_S, until

from spamnb.operations.logins import TokenFile, new_token
from spamnb.telemetry import now_us

SMALL = b"Subject: plums\n\nfresh plums\n"
LARGE = b"Subject: plums\n\n" + b"words of some length " * 4000
HANGS = LARGE + HANG
PATIENT = "[timeouts]\nscan_s = 250\nscan_wait_s = 300\nfinal_s = 1000\n"
QUESTIONS = {
    "spamd": (b"CHECK SPAMC/1.5\r\nContent-length: %d\r\n\r\n", b"SPAMD/1.1 0 EX_OK"),
    "http": (b"POST /checkv2 HTTP/1.1\r\nContent-Length: %d\r\n\r\n", b"HTTP/1.1 200 "),
}


@pytest.fixture
def slow(home):
    """Start daemons with a scanner."""
    running = []

    def start(more="", serve="", **listener):
        words = {"protocol": "scanner", "on_fault": "defer"} | listener
        text = "".join(f'{name} = "{value}"\n' for name, value in words.items())
        config = settings_in(home, listener=text, delivery="", serve=serve, more=PATIENT + more)
        running.append(serve_slowly(home, config))
        return running[-1].ready()

    yield start
    for daemon in running:
        daemon.__exit__()


def asked(port, message, dialect="spamd"):
    """Send a question and close the own side; all that is answered."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        with contextlib.suppress(OSError):
            client.sendall(QUESTIONS[dialect][0] % len(message) + message)
            client.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65536):
                found += data
        return found


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.mark.parametrize("dialect", QUESTIONS)
def test_a_worker_that_is_killed_says_nothing(slow, home, pool, dialect):
    """The client sees that the connection is lost, and no verdict; the next one gets its own."""
    daemon = slow()
    port = daemon.port()
    answer = pool.submit(asked, port, HANGS, dialect)
    hanging(home)
    os.kill(daemon.children("worker")[0], signal.SIGKILL)
    assert answer.result() == b""
    assert asked(port, SMALL, dialect).startswith(QUESTIONS[dialect][1])


@needs_spamc
def test_spamc_fails_when_its_worker_is_killed(slow, home, pool):
    """With -x the exit code says that the message was not scanned; nothing is marked."""
    daemon = slow()
    message = home / "message"
    message.write_bytes(HANGS)
    line = f"spamc -d 127.0.0.1 -p {daemon.port()} --connect-retries=1 -x < message"
    answer = pool.submit(run_line, line, message, spamc=SPAMC)
    hanging(home)
    os.kill(daemon.children("worker")[0], signal.SIGKILL)
    done = answer.result()
    assert done.returncode > 1
    assert b"X-Spam" not in done.stdout


@pytest.mark.parametrize(
    ("dialect", "error"),
    [("spamd", b"SPAMD/1.1 75 EX_TEMPFAIL"), ("http", b'"action":"soft reject"')],
)
def test_a_message_that_kills_two_scan_processes_gets_an_error(slow, home, pool, dialect, error):
    """The first death only delays the verdict; after the second there is none to give."""
    daemon = slow(known_crasher="defer")
    answer = pool.submit(asked, daemon.port(), HANGS, dialect)
    first = hanging(home)
    os.kill(first, signal.SIGKILL)
    os.kill(hanging(home, [first]), signal.SIGKILL)
    assert error in answer.result().replace(b'": "', b'":"')
    assert daemon.wait_for("message")["action"] == "defer"


def test_a_correction_waits_for_a_learner_that_is_replaced(slow, home):
    """The learner that hangs and is killed has not taken the correction; the next one learns it."""
    daemon = slow()
    place = home / "home"
    password = TokenFile(place).create(new_token("program", ("teach",), "", 1, now_us()))
    [learner] = daemon.children("learner")
    os.kill(learner, signal.SIGSTOP)
    until(lambda: "T (stopped)" in Path(f"/proc/{learner}/status").read_text(), "its stop")
    question = b"POST /learnspam HTTP/1.1\r\nPassword: %b\r\nContent-Length: %%d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", daemon.port()), LIMIT_S) as client:
        client.sendall(question % password.encode() % len(SMALL) + SMALL)
        os.kill(learner, signal.SIGKILL)
        assert read_json(client) == {"success": True}
    assert daemon.wait_for("process died", role="learner")
    events = [json.loads(line) for line in forked(place, "journal", "--json").out.splitlines()]
    assert [one["user"] for one in events].count("token program") == 1


EXPECTING = b"POST /checkv2 HTTP/1.1\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"


@contextlib.contextmanager
def begun(port, message):
    """A connection on which the head of a request has been read."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        client.sendall(EXPECTING % len(message))
        assert client.recv(4096).startswith(b"HTTP/1.1 100 ")
        yield client


def read_json(client):
    """Read one reply; its body."""
    with client.makefile("rb") as stream:
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        lines = iter(stream.readline, b"\r\n")
        headers = dict(line.decode().strip().split(": ") for line in lines)
        return json.loads(stream.read(int(headers["Content-Length"])))


def test_a_daemon_that_stops_answers_what_it_was_asked(slow):
    """A question that has begun gets its verdict; idle connections end, new ones fail."""
    daemon = slow()
    port = daemon.port()
    with (
        socket.create_connection(("127.0.0.1", port), LIMIT_S) as idle,
        begun(port, LARGE) as busy,
    ):
        idle.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200 ")
        daemon.signal(signal.SIGTERM)
        while idle.recv(4096):
            pass
        busy.sendall(LARGE)
        assert read_json(busy)["action"] == "no action"
        assert busy.recv(4096) == b""
    assert daemon.process.wait(LIMIT_S) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), LIMIT_S)


def test_a_reload_ends_no_connection(slow, home):
    """A request that began before is answered; the next one on its connection has new settings."""
    daemon = slow()
    with begun(daemon.port(), LARGE) as client:
        config = home / "spamnb.toml"
        config.write_text(
            config.read_text().replace("[listener.mx]", "[listener.mx]\nobserve = true")
        )
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("settings reloaded")
        client.sendall(LARGE)
        assert read_json(client)["action"] == "no action"
        question = QUESTIONS["http"][0] % len(SMALL) + SMALL

        def observed():
            client.sendall(question)
            read_json(client)
            return daemon.logged("message", observed=True)

        until(observed)


def test_connections_beyond_the_limit_are_closed(slow):
    """They get no reply; one that ends makes room."""
    daemon = slow(more="[limits]\nconnections = 2\n")
    port = daemon.port()
    with begun(port, SMALL) as one, begun(port, SMALL):
        assert asked(port, SMALL) == b""
        one.sendall(SMALL)
        read_json(one)
    until(lambda: asked(port, SMALL).startswith(b"SPAMD/1.1 0 EX_OK"))
    daemon.wait_for("turned-away", error="too many connections")


def stalled(port, size):
    """Send a message but for its last byte, and wait until the daemon ends the connection."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), LIMIT_S) as client,
    ):
        client.sendall(QUESTIONS["http"][0] % size + b"x" * (size - 1))
        assert client.recv(4096) == b""


def test_clients_that_stall_do_not_keep_the_memory(slow, pool):
    """Beyond the budget small messages are read, and what stalls is ended for others."""
    daemon = slow("[limits]\nmemory_bytes = 1048576\n", "drain_s = 1")
    port = daemon.port()
    stalling = [pool.submit(stalled, port, 400_000) for _ in range(4)]
    assert asked(port, SMALL).startswith(b"SPAMD/1.1 0 EX_OK")
    assert asked(port, LARGE).startswith(b"SPAMD/1.1 0 EX_OK")
    until(lambda: any(one.done() for one in stalling))
    assert daemon.stop() == 0
    for one in stalling:
        one.result()
