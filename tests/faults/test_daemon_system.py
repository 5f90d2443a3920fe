"""The daemon and the system it runs on: sockets of the service manager, users, lists."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.daemon import PROJECT, Running, delivered, environment, send, serve, settings_in
from support.waiting import LIMIT_S

# --- the service manager --------------------------------------------------------------------------

ACTIVATE = """
import fcntl, os, socket, sys
made = [socket.socket(fileno=int(fd)) for fd in sys.argv[1].split(",")]
copies = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 20) for one in made]
for at, fd in enumerate(copies):
    os.dup2(fd, 3 + at, inheritable=True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(made))}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def test_sockets_of_the_service_manager_are_used(home):
    """LISTEN_FDS by name; all workers share the socket, and it stays open after us."""
    with socket.create_server(("127.0.0.1", 0)) as mx:
        command = [sys.executable, "-c", ACTIVATE, mx.fileno(), "-m", "spamnb"]
        command += ["--home", home / "home", "--config", settings_in(home, workers=2), "serve"]
        env = environment(LISTEN_FDNAMES="mx")
        with Running(command, env=env, pass_fds=[mx.fileno()]).ready() as daemon:
            assert daemon.port() == mx.getsockname()[1]
            for _ in range(4):
                assert len(delivered(home, send(daemon.port()))) == 1
            assert daemon.stop() == 0
        with socket.create_connection(mx.getsockname()), mx.accept()[0]:
            pass


# --- privileges -----------------------------------------------------------------------------------


def python_of_all_users():
    """Find an interpreter that other users can run, with the packages of the tests."""
    site = next(path for path in sys.path if path.endswith("site-packages"))
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("needs root and a Python that everyone can run")
    command = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", python]
    env = environment(PYTHONPATH=os.pathsep.join([str(PROJECT), site]))
    tried = subprocess.run(
        [*command, "-c", "import numpy, lmdb, click, spamnb.engine.filter"],
        env=env, capture_output=True, check=False,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"{python} cannot use our packages: {tried.stderr.decode()[-200:]}")
    return python, env


@pytest.fixture
def open_folder(home):
    """A folder that others may pass through: pytest's own are for their maker alone."""
    folder = Path("/tmp") / f"spamnb-{os.getpid()}-{time.monotonic_ns()}"
    shutil.copytree(home, folder)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_root_becomes_the_homes_owner(open_folder):
    """Started as root, no process stays root; what they write belongs to the home's owner."""
    python, env = python_of_all_users()
    for path in [open_folder / "home", *(open_folder / "home").rglob("*")]:
        os.chown(path, 65534, 65534)
    command = [python, "-m", "spamnb", "--home", open_folder / "home"]
    command += ["--config", settings_in(open_folder, user=""), "serve"]
    with Running(command, env=env).ready() as daemon:
        pids = [pid for role in ("worker", "delivery", "learner") for pid in daemon.children(role)]
        for pid in [daemon.process.pid, *pids]:
            status = Path(f"/proc/{pid}/status").read_text()
            assert "Uid:\t65534\t65534\t65534\t65534" in status
            assert "NoNewPrivs:\t1" in status
        ident = send(daemon.port())
        assert len(delivered(open_folder, ident)) == 1
        assert daemon.stop() == 0
    owners = {path.stat().st_uid for path in (open_folder / "home").rglob("*")}
    assert owners == {65534}


# --- what settings name ---------------------------------------------------------------------------


def test_a_list_with_a_mistake_is_reported_at_the_start_and_at_a_reload(home):
    """The lists that the settings name are read before the settings are used."""
    block = home / "block"
    block.write_text("sender mallory@example.com\n")
    config = settings_in(home, more=f'[rules]\nblock = "{block}"\n')
    with serve(home, config=config).ready() as daemon:
        block.write_text("sender\n")
        daemon.signal(signal.SIGHUP)
        assert "block, line 1" in daemon.wait_for("settings not reloaded")["error"]
        assert len(delivered(home, send(daemon.port()))) == 1
    with serve(home, config=config) as daemon:
        assert daemon.process.wait(LIMIT_S) == 2
    assert "block, line 1" in daemon.plain[0]
