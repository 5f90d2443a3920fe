"""The daemon's small parts: listening sockets, the log, words to systemd, privileges, orders."""

import json
import logging
import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.daemon import logs
from spamnb.daemon import start as privileges
from spamnb.daemon.logs import DaemonLog, take_over
from spamnb.daemon.start import BindAddress, Sockets, inherited
from spamnb.daemon.supervisor import (
    ChildChannel,
    Notifier,
    Order,
    StartParams,
    SupervisorChannel,
)
from spamnb.errors import StoreError, UserError
from spamnb.operations.request import is_on
from spamnb.settings.schema import LogSettings

LOOPBACK = BindAddress("127.0.0.1", 0)


@pytest.fixture
def sockets():
    made = Sockets()
    yield made
    made.close()


# --- sockets --------------------------------------------------------------------------------------


def port_of(group):
    return group.sockets[0].getsockname()[1]


def test_each_slot_has_its_own_socket_on_one_port(sockets):
    """The kernel shares connections out between the workers: same port, one queue for each."""
    sockets.add("mx", LOOPBACK, 3)
    (group,) = sockets.groups["mx"]
    assert len({one.fileno() for one in group.sockets}) == 3
    assert len({one.getsockname() for one in group.sockets}) == 1
    assert sockets.of("mx", 4) == [group.sockets[1]]
    with socket.create_connection(("127.0.0.1", port_of(group)), LIMIT_S):
        pass


@pytest.mark.parametrize("shared", [True, False])
def test_a_port_in_use_is_reported_in_one_line(sockets, shared):
    """A second daemon of the same user cannot share a port."""
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port} is in use"):
            sockets.add("mx", BindAddress("127.0.0.1", port), 2)


def test_a_port_with_connections_in_time_wait_is_free(sockets):
    """A restart binds immediately, also while closed connections are in TIME_WAIT."""
    sockets.add("mx", LOOPBACK, 1)
    port = port_of(sockets.groups["mx"][0])
    client = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    server, _ = sockets.of("mx", 0)[0].accept()
    server.close()
    client.close()
    sockets.close()
    again = Sockets()
    again.add("mx", BindAddress("127.0.0.1", port), 2)
    again.close()


def test_ipv6_is_bound_by_itself(sockets):
    """An IPv6 address takes no IPv4 port along, and is shown in brackets."""
    try:
        sockets.add("mx", BindAddress("::1", 0), 2)
    except UserError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert sockets.groups["mx"][0].bound.startswith("[::1]:")


def test_a_name_may_have_several_addresses(sockets):
    """Listening on localhost means all of its addresses."""
    sockets.add("mx", BindAddress("localhost", 0), 1)
    assert sockets.groups["mx"]
    with pytest.raises(UserError, match=r"cannot listen on nowhere\.invalid:25"):
        sockets.add("mx", BindAddress("nowhere.invalid", 25), 1)


def test_a_unix_socket_is_for_owner_and_group(sockets, tmp_path):
    """Other users cannot connect; the socket file is removed with the daemon."""
    path = tmp_path / "s"
    sockets.add("local", BindAddress(path=str(path)), 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    (group,) = sockets.groups["local"]
    assert len(group.sockets) == 1
    assert group.bound == f"unix:{path}"
    sockets.close()
    assert not path.exists()


def test_a_stale_socket_file_is_replaced_and_a_live_one_is_not(tmp_path):
    """Only a socket file without a listening process is removed."""
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    first, second = Sockets(), Sockets()
    first.add("a", BindAddress(path=str(path)), 1)
    with pytest.raises(UserError, match=r"/s is in use"):
        second.add("a", BindAddress(path=str(path)), 1)
    assert path.exists()
    first.close()


def test_a_path_that_no_socket_can_have_is_reported_with_what_to_set(sockets, tmp_path):
    path = tmp_path / ("x" * 108)
    with pytest.raises(UserError, match="longer than 107 bytes") as refused:
        sockets.add("control", BindAddress(path=str(path)), 1)
    assert "serve.control" in refused.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_may_not_be_written_is_not_called_a_port(tmp_path):
    """Run in a child, because the test stays root; return its exit code."""
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            Sockets().add("control", BindAddress(path=str(tmp_path / "s")), 1)
        except UserError as refused:
            os._exit(7 if "its folder" in refused.hint else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_put_in_a_sockets_place_gives_nothing_away(sockets, tmp_path):
    """The owner of the folder cannot make root give away another user's file."""
    secret, path = tmp_path / "secret", tmp_path / "mail.sock"
    secret.write_text("")
    sockets.add("mx", BindAddress(path=str(path)), 1)
    path.unlink()
    path.symlink_to(secret)
    sockets.give(65534, 65534)
    assert secret.stat().st_uid == 0
    assert path.lstat().st_uid == 65534


def test_a_file_that_is_no_socket_is_left_alone(sockets, tmp_path):
    """A file at the socket's path that is no socket is never removed."""
    path = tmp_path / "letter"
    path.write_text("dear")
    with pytest.raises(UserError, match="is not a socket"):
        sockets.add("a", BindAddress(path=str(path)), 1)
    assert path.read_text() == "dear"


def test_a_path_that_cannot_be_bound_says_so(sockets, tmp_path):
    """A path in a missing folder gives an error of one line."""
    with pytest.raises(UserError, match="cannot be bound"):
        sockets.add("a", BindAddress(path=str(tmp_path / "none" / "s")), 1)


ACTIVATED = """
import os, socket, sys
from spamnb.daemon.start import inherited, text_of
os.environ["LISTEN_PID"] = str(os.getpid())
found = inherited(os.environ)
print({name: [text_of(s) for s in many] for name, many in found.items()})
"""


def test_sockets_of_the_service_manager_are_found_by_name(sockets, tmp_path):
    """LISTEN_FDS and LISTEN_FDNAMES name sockets from descriptor 3 on."""
    sockets.add("a", LOOPBACK, 1)
    sockets.add("b", BindAddress(path=str(tmp_path / "s")), 1)
    a, b = sockets.of("a", 0)[0], sockets.of("b", 0)[0]

    def at_three():
        low = [os.dup(a.fileno()), os.dup(b.fileno())]
        os.dup2(low[0], 3)
        os.dup2(low[1], 4)

    environment = os.environ | {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "mx:control"}
    done = subprocess.run(
        [sys.executable, "-c", ACTIVATED],
        capture_output=True,
        text=True,
        preexec_fn=at_three,
        close_fds=False,
        env=environment,
        check=True,
    )
    port = a.getsockname()[1]
    assert done.stdout == f"{{'mx': ['127.0.0.1:{port}'], 'control': ['unix:{tmp_path}/s']}}\n"


def test_sockets_for_another_process_are_left_alone():
    """LISTEN_PID names the process that the sockets are for."""
    assert inherited({"LISTEN_PID": "1", "LISTEN_FDS": "2"}) == {}
    assert inherited({}) == {}


# --- the log --------------------------------------------------------------------------------------


def written(tmp_path, form, *records):
    path = tmp_path / "log"
    log = DaemonLog(LogSettings(file=str(path), **form), "worker 1")
    for record in records:
        log(record)
    return path.read_bytes()


HOSTILE = {
    "event": "message",
    "from": "a\r\nfake=1\x1b[2J\u2028\x00b",
    "to": ["x y", "z\n"],
    "raw": b"\xff\n",
    "deep": {"a\n": "\r"},
}


@pytest.mark.parametrize("form", [{"format": "text"}, {"format": "json"}])
def test_a_line_holds_no_control_character(tmp_path, form):
    """Whatever strangers put into a field, a record is one line and moves no cursor."""
    data = written(tmp_path, form, HOSTILE)
    assert data.count(b"\n") == 1
    assert not any(byte < 32 or byte == 127 for byte in data[:-1])
    assert "\u2028" not in data.decode()
    assert b"worker 1" in data


def test_json_gives_the_fields_back(tmp_path):
    """Each record is one JSON object with the same fields."""
    found = json.loads(
        written(tmp_path, {"format": "json"}, {"event": "x", "ms": 1.5, "to": ["a"]})
    )
    assert found["time"].endswith("Z")
    del found["time"]
    expected = {"level": "info", "event": "x", "ms": 1.5, "to": ["a"], "process": "worker 1"}
    assert found == expected


def test_text_cannot_be_taken_for_other_fields(tmp_path):
    """A value with a space or an equals sign is quoted."""
    line = written(tmp_path, {}, {"event": "x", "helo": "a b=c", "n": 2, "ok": True}).decode()
    assert line.endswith('info x helo="a b=c" n=2 ok=yes process="worker 1"\n')


def test_secrets_are_masked(tmp_path):
    """Fields with names of secrets are never written, at any depth."""
    record = {"event": "x", "password": "hunter2", "more": {"api_key": "hunter2", "token": 1}}
    for form in ({"format": "text"}, {"format": "json"}):
        assert b"hunter2" not in written(tmp_path, form, record)


def test_levels_below_the_one_set_are_not_written(tmp_path):
    """`log.level` holds for every record; info is what a record is by itself."""
    records = [{"event": level, "level": level} for level in ("debug", "warning", "error")]
    data = written(tmp_path, {"level": "warning"}, *records, {"event": "plain"})
    assert [line.split()[2] for line in data.decode().splitlines()] == ["warning", "error"]


def test_a_file_that_was_turned_over_is_opened_anew(tmp_path):
    """After a reload the log goes on in the new file of that name."""
    path = tmp_path / "log"
    log = DaemonLog(LogSettings(file=str(path)))
    log({"event": "first"})
    path.rename(tmp_path / "log.1")
    log.apply_settings(LogSettings(file=str(path)))
    log({"event": "second"})
    assert "second" in path.read_text()
    assert "second" not in (tmp_path / "log.1").read_text()


def test_a_log_that_cannot_be_written_stops_nothing():
    """On a full disk log lines are lost, and no exception is raised."""
    log = DaemonLog(LogSettings(file="/dev/full"))
    log({"event": "lost"})


def test_a_long_line_does_not_wait_for_the_logs_reader():
    """A pipe with a page to spare takes a page; the rest is lost, and the next line begins anew."""
    reader, writer = os.pipe()
    log = DaemonLog(LogSettings())
    log._fd, log._poll = writer, logs._poll_of(writer)
    while log._poll.poll(0):
        log({"event": "long", "to": ["x" * 1_900] * 5})
    read = b""
    while len(piece := os.read(reader, 1 << 16)) == 1 << 16:
        read += piece
    read += piece
    log({"event": "short"})
    rest = os.read(reader, 1 << 16).decode()
    os.close(reader)
    os.close(writer)
    assert b"event" not in read
    assert not read.endswith(b"\n")
    assert rest.startswith("\n")
    assert "log lines lost" in rest
    assert rest.splitlines()[-1].endswith(" info short")


def test_threads_log_at_the_same_time():
    """All lines arrive whole; Python refuses a poll that another thread uses at the moment."""
    reader, writer = os.pipe()
    into_pipe = DaemonLog(LogSettings(file=f"/proc/self/fd/{writer}", format="json"))
    into_device = DaemonLog(LogSettings(file="/dev/null"))
    threads, lines = 8, 40

    def write(thread):
        for number in range(lines):
            into_pipe({"event": "line", "number": thread * lines + number})
            for _ in range(50):
                into_device({"event": "line"})

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    heard = [json.loads(line)["number"] for line in os.read(reader, 1 << 20).splitlines()]
    os.close(reader)
    os.close(writer)
    assert sorted(heard) == list(range(threads * lines))


def test_a_log_without_a_reader_stops_nothing():
    """A full pipe loses lines instead of blocking, and a later line reports how many."""
    reader, writer = os.pipe()
    log = DaemonLog(LogSettings(file=f"/proc/self/fd/{writer}", format="json"))
    for number in range(2000):
        log({"event": "message", "number": number, "to": "x" * 100})
    heard = os.read(reader, 1 << 20)
    log({"event": "message", "number": "last"})
    lost, last = map(json.loads, os.read(reader, 1 << 20).splitlines())
    os.close(reader)
    os.close(writer)
    assert (lost["event"], last["number"]) == ("log lines lost", "last")
    assert lost["lines"] == 2000 - heard.count(b"\n")


def test_a_repeated_message_of_a_library_is_logged_once_a_second(tmp_path):
    """A repeated message of a library is one line a second, with the number of repetitions."""
    path, root = tmp_path / "log", logging.getLogger()
    before = root.handlers[:], root.level, sys.excepthook
    try:
        take_over(DaemonLog(LogSettings(file=str(path), format="json")))
        for _ in range(1000):
            logging.getLogger("asyncio").error("no descriptor is left")
        logging.getLogger("asyncio").error("another thing")
    finally:
        root.handlers[:], root.level, sys.excepthook = before
        logging.captureWarnings(capture=False)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) < 20
    assert sum(1 + record.get("untold", 0) for record in records) == 1001


def test_an_unreadable_bypass_file_changes_no_bypass():
    """An unreadable file counts as before; the supervisor, which reads it each second, goes on."""
    nowhere = Path("/" + "x" * 300)
    assert is_on(nowhere, "bypass", before=True)
    assert not is_on(nowhere, "bypass", before=False)
    with pytest.raises(StoreError, match="too long"):
        is_on(nowhere, "bypass")


# --- states for systemd ---------------------------------------------------------------------------


def test_states_reach_the_service_manager(tmp_path):
    """READY, RELOADING with its time, STATUS, WATCHDOG and STOPPING, as sd_notify(3) has them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        manager.settimeout(LIMIT_S)
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "2000000"})
        notifier.ready("serving")
        notifier.reloading()
        notifier.alive()
        notifier.status("two")
        notifier.stopping("bye")
        states = [manager.recv(1000).decode() for _ in range(5)]
        notifier.close()
    assert states[0] == "READY=1\nSTATUS=serving"
    assert states[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert states[2:] == ["WATCHDOG=1", "STATUS=two", "STOPPING=1\nSTATUS=bye"]
    assert notifier.watchdog_s == 2


def test_without_a_service_manager_nothing_is_sent():
    """No socket, one that is gone, and a watchdog for another process are no errors."""
    for environment in ({}, {"NOTIFY_SOCKET": "/nowhere/n"}, {"WATCHDOG_PID": "1"}):
        notifier = Notifier(environment | {"WATCHDOG_USEC": "x"})
        notifier.ready("serving")
        assert notifier.watchdog_s == 0


# --- privileges -----------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@as_root
def test_root_becomes_the_user_of_the_settings(tmp_path):
    """As set; else the owner of the home; root itself only if it is named."""
    assert privileges.identity_of("nobody", "", tmp_path).name == "nobody"
    assert privileges.identity_of("nobody", "mail", tmp_path).gid != 65534
    assert privileges.identity_of("root", "", tmp_path) is None
    os.chown(tmp_path, 65534, 65534)
    assert privileges.identity_of("", "", tmp_path).name == "nobody"


@as_root
@pytest.mark.parametrize(("user", "group"), [("nobody_such", ""), ("nobody", "no_such_group")])
def test_an_unknown_user_or_group_is_an_error(user, group, tmp_path):
    """The hint is the command that adds the user."""
    with pytest.raises(UserError) as caught:
        privileges.identity_of(user, group, tmp_path)
    assert "add" in caught.value.hint


@as_root
def test_the_daemon_does_not_run_as_root_by_default(monkeypatch, tmp_path):
    """Without a user `spamnb` root must name one."""
    monkeypatch.setattr(privileges, "USER", "no_such_user")
    with pytest.raises(UserError, match="refuses to run as root"):
        privileges.identity_of("", "", tmp_path)


DROPPED = """
import os, resource
from pathlib import Path
from spamnb.daemon.start import Identity, drop, harden
import sys
sys.executable = "/bin/sh"
harden()
if os.geteuid() == 0:
    drop(Identity("nobody", 65534, 65534))
    assert os.getresuid() == (65534,) * 3 and os.getresgid() == (65534,) * 3
    assert 0 not in os.getgroups(), os.getgroups()
    for wanted in (os.setuid, os.seteuid, os.setgid):
        try:
            wanted(0)
        except PermissionError:
            continue
        raise SystemExit("came back")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert status["NoNewPrivs"].strip() == "1"
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert soft == hard
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
assert os.umask(0) == 0o077
"""


def test_what_was_given_up_does_not_come_back():
    """User, groups, new privileges, cores and a loose umask are gone for good; files are many."""
    subprocess.run([sys.executable, "-c", DROPPED], check=True)


# --- orders ---------------------------------------------------------------------------------------


def test_a_child_gets_orders_and_sees_the_end():
    """A child gets its start, then orders; the end of the channel is its end."""
    line = SupervisorChannel()
    channel = ChildChannel(os.dup(line.child_fd))
    line.child_has_it()
    start = StartParams("worker", "m:f", 3, 9, "/h", os.getpid(), {"a": 1}, {"mx": [5, 6]})
    assert line.tell(start)
    assert line.tell(Order("reload", {"a": 2}))
    assert channel.start() == start
    assert channel.next() == Order("reload", {"a": 2})
    line.close()
    assert channel.next() is None
    channel.close()


def test_a_child_that_reads_nothing_does_not_block_the_supervisor():
    """Orders to a stuck child fail immediately."""
    line = SupervisorChannel()
    sent = 0
    while line.tell(Order("reload", {"much": "x" * 50_000})):
        sent += 1
        assert sent < 1000
    assert sent >= 1
    line.child_has_it()
    line.close()
