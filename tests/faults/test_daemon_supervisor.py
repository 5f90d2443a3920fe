"""The supervisor with stand-in processes, which crash, hang and get new settings."""

import os
import resource
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.daemon import TESTS, Running, environment, is_alive, settings_in
from support.waiting import LIMIT_S, until

DIGEST = "00112233445566778899aabbccddeeff"
"""a message that makes a stand-in hang"""


@pytest.fixture
def started(tmp_path):
    """Start supervisors with stand-ins; all are gone at the end."""
    running = []

    def start(*roles, wait=True, env=None, **values):
        config = settings_in(tmp_path, **values)
        program = [
            sys.executable,
            TESTS / "support" / "daemon_children.py",
            tmp_path / "home",
            config,
            *roles,
        ]
        daemon = Running(program, env=env or environment())
        running.append(daemon)
        return daemon.ready() if wait else daemon

    yield start
    for daemon in running:
        daemon.__exit__()


def ask(daemon, word="hello", listener="mx"):
    """Ask a stand-in for its role, slot, pid and answer."""
    with socket.create_connection(("127.0.0.1", daemon.port(listener)), LIMIT_S) as connection:
        connection.sendall(f"{word}\n".encode())
        data = connection.makefile().readline()
    role, slot, pid, value = data.split()
    return role, int(slot), int(pid), value


def test_every_process_is_there_and_ends_in_order(started, tmp_path):
    """On SIGTERM workers end first: their next hop and the learner must outlive them."""
    daemon = started(workers=2)
    pids = [pid for role in ("worker", "delivery", "learner") for pid in daemon.children(role)]
    assert len(pids) == 4
    assert ask(daemon)[0] == "worker"
    assert ask(daemon, listener="delivery")[0] == "delivery"
    assert daemon.stop() == 0
    ended = (tmp_path / "home" / "ended").read_text().split()
    assert ended == ["worker", "worker", "delivery", "learner"]
    assert not any(map(is_alive, pids))


def test_a_dead_process_is_replaced_and_its_queue_goes_on(started):
    """The next worker serves a connection that waited while the last one crashed."""
    daemon = started()
    (pid,) = daemon.children("worker")
    os.kill(pid, signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", daemon.port()), LIMIT_S) as waiting:
        waiting.sendall(b"hello\n")
        os.kill(pid, signal.SIGKILL)
        role, _, answered, _ = waiting.makefile().readline().split()
    assert role == "worker"
    assert int(answered) != pid
    daemon.wait_for("process died", role="worker", signal="SIGKILL", pid=pid)
    assert ask(daemon, "restarts")[3] == "1"


@pytest.mark.parametrize("role", ["learner", "delivery"])
def test_others_are_replaced_while_workers_go_on(started, role):
    """Mail does not stop because the learner or the delivery agent died."""
    daemon = started()
    (worker,), (pid,) = daemon.children("worker"), daemon.children(role)
    os.kill(pid, signal.SIGKILL)
    daemon.wait_for("process died", role=role)
    until(lambda: daemon.children(role), "a new one")
    assert ask(daemon)[2] == worker


def test_a_process_without_a_sign_of_life_is_killed(started):
    """A process that hangs is killed and replaced; its messages become known crashers."""
    daemon = started(serve="watchdog_s = 2", workers=2)
    before = set(daemon.children("worker"))
    assert ask(daemon, f"crasher {DIGEST}")[3] == "False"
    hung = ask(daemon, f"mark {DIGEST}")[2]
    daemon.wait_for("process is stuck", pid=hung)
    died = daemon.wait_for("process died", pid=hung)
    assert died["known_crashers"] == [DIGEST]
    until(lambda: len(daemon.children("worker")) == 2, "a new worker")
    assert before - set(daemon.children("worker")) == {hung}
    assert ask(daemon, f"crasher {DIGEST}")[3] == "True"


def test_one_that_dies_again_and_again_waits_longer_each_time(started, tmp_path):
    """The delay grows between restarts of a broken process; it runs again once it works."""
    daemon = started("learner=once")
    tries = [float(line) for line in (tmp_path / "home" / "tries").read_text().split()]
    pauses = [record["again_in_s"] for record in daemon.logged("process died")]
    assert pauses == [0.0, 0.1, 0.2]
    assert len(tries) == 4
    assert all(b - a >= p for (a, b), p in zip(pairwise(tries), pauses, strict=True))


def test_a_process_that_cannot_be_started_now_is_tried_again(started):
    """A temporary lack of descriptors or memory only delays the start of a process."""
    daemon = started()
    (pid,) = daemon.children("worker")
    whole = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (3, whole[1]))
    os.kill(pid, signal.SIGKILL)
    daemon.wait_for("process cannot be started", 2, role="worker")
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, whole)
    assert ask(daemon)[2] != pid


def test_a_process_that_never_starts_ends_the_daemon(started):
    """At the first start the administrator reads the log: it names the process; exit code 70."""
    daemon = started("learner=broken", wait=False)
    assert daemon.process.wait(LIMIT_S) == 70
    daemon.__exit__()
    assert "the learner process ends as soon as it starts" in daemon.plain


def test_no_process_outlives_the_supervisor(started):
    """SIGKILL of the supervisor leaves no orphans, and the ports are free immediately."""
    daemon = started("delivery=deaf", workers=2)
    pids = [pid for role in ("worker", "delivery", "learner") for pid in daemon.children(role)]
    port = daemon.port()
    daemon.process.kill()
    until(lambda: not any(map(is_alive, pids)), "the end of all")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


IN_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def children_of(pid):
    """Return the child processes of a process, also ended ones: pid -> name."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(one): Path(f"/proc/{one}/comm").read_text().strip() for one in pids}


@pytest.mark.skipif(
    subprocess.run([*IN_CONTAINER, "true"], check=False, capture_output=True).returncode != 0,
    reason="this user cannot create a pid namespace",
)
def test_the_first_process_of_a_container_buries_orphans(tmp_path):
    """As process 1 the supervisor reaps ended processes that it did not start, and only these."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = [sys.executable, TESTS / "support" / "daemon_children.py"]
    program += [tmp_path / "home", settings_in(tmp_path)]
    orphan_first = ["sh", "-c", f'(cat {pipe} &); exec "$@"', "sh"]
    with Running([*IN_CONTAINER, *orphan_first, *program]) as daemon:
        daemon.ready()
        (first,) = children_of(daemon.process.pid)
        (orphan,) = [pid for pid, name in children_of(first).items() if name == "cat"]
        pipe.write_bytes(b"")
        until(lambda: orphan not in children_of(first), "the end of the orphan")
        assert daemon.logged("process died") == []
        os.kill(first, signal.SIGTERM)
        assert daemon.process.wait(LIMIT_S) == 0


def test_a_process_that_does_not_end_is_killed(started):
    """A process that ignores SIGTERM delays the end, but does not prevent it."""
    daemon = started("worker=deaf", serve="drain_s = 0.1")
    (pid,) = daemon.children("worker")
    assert daemon.stop() == 0
    assert not is_alive(pid)


def test_new_settings_reach_all_processes(started, tmp_path):
    """SIGHUP with a valid file changes the settings of running processes."""
    daemon = started()
    _, _, pid, level = ask(daemon)
    assert level == "info"
    settings_in(tmp_path, more='[log]\nlevel = "debug"')
    daemon.signal(signal.SIGHUP)
    daemon.wait_for("settings reloaded")
    until(lambda: ask(daemon)[3] == "debug", "the new level")
    assert ask(daemon)[2] == pid
    assert ask(daemon, listener="delivery")[3] == "debug"


def test_wrong_settings_change_nothing_and_are_reported(started, tmp_path):
    """SIGHUP with a bad file keeps the old settings everywhere, and names the mistake."""
    daemon = started()
    settings_in(tmp_path, more='[log]\nlevel = "debug"\nfromat = "json"')
    daemon.signal(signal.SIGHUP)
    record = daemon.wait_for("settings not reloaded")
    assert "there is no setting log.fromat" in record["error"]
    assert "did you mean log.format?" in record["error"]
    assert ask(daemon)[3] == "info"


def test_what_needs_a_restart_is_named_at_a_reload(started, tmp_path):
    """Changed settings that need a restart are logged by name."""
    daemon = started()
    settings_in(tmp_path, workers=3)
    daemon.signal(signal.SIGHUP)
    record = daemon.wait_for("settings need a restart")
    assert record["settings"] == ["serve.workers"]
    assert ask(daemon)[0] == "worker"


def test_a_process_that_takes_no_orders_is_replaced(started, tmp_path):
    """A process that reads no orders would keep old settings: it is killed, the others go on."""
    daemon = started("learner=deaf")
    (pid,) = daemon.children("learner")
    for _ in range(4000):
        if daemon.logged("process does not take settings", role="learner"):
            break
        count = len(daemon.logged("settings reloaded"))
        daemon.signal(signal.SIGHUP)
        until(lambda: len(daemon.logged("settings reloaded")) > count, "the reload")  # noqa: B023
    assert daemon.wait_for("process died", pid=pid)
    assert ask(daemon)[0] == "worker"


def test_the_bypass_file_is_seen_by_all(started, tmp_path):
    """The file in the home is the switch: processes notice it without an order."""
    daemon = started()
    assert ask(daemon, "bypass")[3] == "False"
    (tmp_path / "home" / "bypass").touch()
    until(lambda: ask(daemon, "bypass")[3] == "True", "the bypass")
    (tmp_path / "home" / "bypass").unlink()
    until(lambda: ask(daemon, "bypass")[3] == "False", "the end of the bypass")


def test_the_service_manager_gets_each_state(started, tmp_path):
    """READY with the last process, WATCHDOG while all respond, RELOADING and READY, STOPPING."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        manager.settimeout(LIMIT_S)
        env = environment(NOTIFY_SOCKET=str(tmp_path / "n"), WATCHDOG_USEC="2000000")
        daemon = started(env=env)
        assert manager.recv(1000).startswith(b"READY=1\nSTATUS=")
        assert manager.recv(1000) == b"WATCHDOG=1"
        (pid,) = daemon.children("worker")
        daemon.signal(signal.SIGHUP)
        messages = []
        while not messages or not messages[-1].startswith(b"READY=1"):
            messages.append(manager.recv(1000))
        assert any(message.startswith(b"RELOADING=1\nMONOTONIC_USEC=") for message in messages)
        os.kill(pid, signal.SIGSTOP)
        assert _falls_silent(manager)
        os.kill(pid, signal.SIGCONT)
        while manager.recv(1000) != b"WATCHDOG=1":
            pass
        daemon.stop()
        rest = _rest(manager)
    assert any(message.startswith(b"STOPPING=1") for message in rest)


def _falls_silent(manager):
    """Whether there is a gap of three seconds between heartbeats that are due each second."""
    manager.settimeout(3)
    try:
        for _ in range(60):
            manager.recv(1000)
    except TimeoutError:
        return True
    finally:
        manager.settimeout(LIMIT_S)
    return False


def _rest(manager):
    manager.setblocking(False)
    messages = []
    while True:
        try:
            messages.append(manager.recv(1000))
        except BlockingIOError:
            return messages


def test_the_children_have_no_variable_of_the_service_manager(started, tmp_path):
    """The children do not inherit NOTIFY_SOCKET, WATCHDOG and LISTEN_FDS."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        daemon = started(env=environment(NOTIFY_SOCKET=str(tmp_path / "n"), LISTEN_FDS="0"))
    variables = ask(daemon, "variables")[3].split(",")
    assert "PATH" in variables
    assert not [name for name in variables if name.startswith(("NOTIFY_", "LISTEN_", "WATCHDOG_"))]


def test_a_child_has_no_descriptor_of_the_supervisor_or_of_another_child(started, tmp_path):
    """Not the lock of the home, the event loop, the socket of systemd, or another's channel."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        daemon = started(env=environment(NOTIFY_SOCKET=str(tmp_path / "n")))
    os.kill(ask(daemon)[2], signal.SIGKILL)
    daemon.wait_for("process died")
    for listener in ("mx", "delivery"):
        held = ask(daemon, "descriptors", listener)[3].split(",")
        # The channel, the listener, and the connection that asks.
        assert len([one for one in held if one.startswith("socket")]) == 3, held
        assert not [one for one in held if "serve.lock" in one or "event" in one], held


def test_a_signal_to_a_process_that_starts_does_not_reach_the_supervisor(started):
    """A fork begins with the handlers of the supervisor's event loop."""
    daemon = started()
    known = set()
    for _ in range(5):
        until(lambda: {*daemon.children("worker")} - known, "a new worker")
        (pid,) = {*daemon.children("worker")} - known
        known.add(pid)
        os.kill(pid, signal.SIGTERM)
    until(lambda: {*daemon.children("worker")} - known, "a new worker")
    assert ask(daemon)[2] not in known
    assert daemon.logged("stopping") == []
