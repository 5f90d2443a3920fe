"""The control socket: the server answers any bytes with a reply or closes the connection."""

import contextlib
import json
import os
import shutil
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cli import spamnb
from support.waiting import LIMIT_S, until

from spamnb import errors
from spamnb.engine.receipt import Receipt
from spamnb.errors import PeerError, RefError, SpamnbError, StoreBusyError, StoreFullError
from spamnb.feedback.values import Answer
from spamnb.operations import socket as control
from spamnb.operations.protocol import ControlClient
from spamnb.operations.request import AdminResponse, Caller, answer_of, failed, failure
from spamnb.operations.socket import (
    ControlLimits,
    ControlServer,
    Roles,
)
from spamnb.telemetry import silent

LIMITS = ControlLimits(connections=8, body_bytes=10_000, held_bytes=20_000, idle_s=5, read_s=0.5)


def rehearsal(request):
    """Reply with the request; the operations of these tests."""
    op = request.header.get("op")
    if op == "fault":
        raise ZeroDivisionError("the secret path /home/x")
    if op == "busy":
        raise StoreFullError("the disk is full", hint="make room")
    if op == "ignore":
        return AdminResponse({})
    body = request.body(10_000)
    return AdminResponse({"uid": request.caller.uid, "n": len(body)}, body)


class Nobody:
    """Roles under which every client acts for itself."""

    def caller(self, uid):
        return Caller(uid, "self", "carol")


@contextlib.contextmanager
def serving(
    tmp_path, handler=rehearsal, limits=LIMITS, roles=lambda: Roles(os.getuid()), log=silent
):
    path = tmp_path / "c"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    server = ControlServer(listener, handler, roles, limits, log)
    server.start()
    try:
        yield server, path
    finally:
        assert server._stopping or server.stop(10)
        listener.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("control")) as (server, path):
        yield server, path


def raw(path, data, *, end=True, wait_s=10):
    """Send bytes; return all bytes received until the server closes."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(wait_s)
    with connection:
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                found += chunk
        return found


def ask(path, op, body=b""):
    """Send one request on a new connection."""
    with ControlClient(path, LIMIT_S) as caller:
        return caller.ask(op, body)


def replies(found):
    """Split what came into headers."""
    heads = []
    while found:
        line, _, found = found.partition(b"\n")
        head = json.loads(line)
        heads.append(head)
        found = found[head["bytes"] :]
    return heads


# --- requests ---------------------------------------------------------------------------------


def test_many_requests_use_one_connection(server):
    """Requests of one connection, each with a body, are answered in order."""
    with ControlClient(server[1], LIMIT_S) as caller:
        for size in (0, 1, 9_999, 10_000, 3):
            header, body = caller.ask("echo", b"x" * size)
            assert (header["n"], body) == (size, b"x" * size)


def test_requests_may_be_sent_ahead(server):
    """A client may write all requests before it reads the replies."""
    one = b'{"op":"echo","bytes":3}\nabc'
    assert [head["n"] for head in replies(raw(server[1], one * 5))] == [3] * 5


def test_a_caller_that_was_silent_for_long_connects_anew(tmp_path):
    """After a long silence the server has closed; the client connects again by itself."""
    limits = ControlLimits(idle_s=0.2)
    with serving(tmp_path, limits=limits) as (server, path), ControlClient(path) as caller:
        caller.ask("echo", b"x")
        until(lambda: server.connections == 0)
        caller._used -= 60
        assert caller.ask("echo", b"y").body == b"y"


def test_an_error_of_the_family_is_raised_at_the_other_end(server):
    """The client raises the same class with the same text and hint; the connection stays."""
    with ControlClient(server[1], LIMIT_S) as caller:
        with pytest.raises(StoreFullError, match="the disk is full") as raised:
            caller.ask("busy")
        assert raised.value.hint == "make room"
        assert caller.ask("echo", b"x").body == b"x"


def test_an_internal_error_is_reported_by_an_incident_id_alone(tmp_path):
    """The client gets the incident id without the text; the log has both."""
    logged = []
    with (
        serving(tmp_path, log=logged.append) as (_, path),
        ControlClient(path, LIMIT_S) as caller,
        pytest.raises(SpamnbError) as raised,
    ):
        caller.ask("fault")
    assert "secret" not in str(raised.value)
    incident = str(raised.value).rpartition(" ")[2]
    assert [record["incident"] for record in logged] == [incident]
    assert "secret" in logged[0]["error"]


def test_unread_bytes_of_a_body_end_the_connection(server):
    """The server ends a connection with an unread body: the rest would count as a request."""
    data = b'{"op":"ignore","bytes":30}\n{"op":"echo"}\n{"op":"echo"}\n'
    assert len(replies(raw(server[1], data))) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\n", b"x\n", b"[]\n", b"1\n", b'"x"\n', b"null\n", b"{\n", b"\xff\xfe\n",
        b'{"bytes":-1}\n', b'{"bytes":1.5}\n', b'{"bytes":"1"}\n', b'{"bytes":true}\n',
        b'{"bytes":null}\n', b'{"bytes":' + b"9" * 5000 + b"}\n", b"[" * 60_000 + b"\n",
        b'{"a":' * 12_000 + b"\n", b"x" * 70_000 + b"\n", b'{"op":"' + b"x" * 70_000 + b'"}\n',
        b'{"op":"echo","bytes":10001}\n' + b"x" * 10_001, b'{"op":"echo","bytes":99999999999}\n',
        b'{"op":"echo","bytes":100}\nshort', b'{"op":"echo"', b'{"op":["echo"]}\n',
    ],
    ids=range(23),
)  # fmt: skip
def test_what_is_no_request_is_answered_in_one_line(server, data):
    """Invalid input gets an error with a reason, or the end of the connection."""
    for head in replies(raw(server[1], data)):
        assert head["ok"] is True or ("\n" not in head["error"] and head["code"] >= 2)
    assert ask(server[1], "echo", b"x").body == b"x"


_LINES = st.one_of(
    st.binary(max_size=300),
    st.dictionaries(
        st.sampled_from(["op", "bytes", "label", "x"]),
        st.one_of(st.integers(), st.text(max_size=20), st.none(), st.floats(), st.lists(st.text())),
    ).map(lambda value: json.dumps(value).encode() + b"\n"),
)


@settings(
    max_examples=settings.default.max_examples * 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(_LINES, max_size=6))
def test_no_bytes_stop_the_server(server, lines):
    """After arbitrary lines, short bodies and huge numbers the server still replies."""
    replies(raw(server[1], b"".join(lines)))
    with ControlClient(server[1], LIMIT_S) as caller:
        assert caller.ask("echo", b"alive").body == b"alive"
    assert server[0].faults <= 1  # the one that another test asked for


# --- bounds -----------------------------------------------------------------------------------


def test_idle_and_slow_connections_are_closed(tmp_path):
    """An idle connection has a time limit; a slow line and a slow body have a shorter one."""
    limits = ControlLimits(connections=8, idle_s=0.3, read_s=0.2)
    with serving(tmp_path, limits=limits) as (server, path):
        assert raw(path, b"", end=False) == b""
        assert raw(path, b'{"op":', end=False) == b""
        slow = replies(raw(path, b'{"op":"echo","bytes":100}\nx', end=False))
        assert slow[0]["ok"] is False
        until(lambda: server.connections == 0)


def test_a_line_that_drips_is_let_go(tmp_path):
    """One byte now and then does not hold a connection."""
    with serving(tmp_path, limits=ControlLimits(idle_s=0.5, read_s=0.3)) as (_, path):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connection:
            connection.connect(str(path))
            with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012 - until then
                for _ in range(3000):
                    connection.sendall(b"x")
                    time.sleep(0.02)


def test_too_many_connections_are_refused_with_a_reason(tmp_path):
    """The ones above the limit get a line and the end; the others are served."""
    with serving(tmp_path, limits=ControlLimits(connections=3)) as (server, path):
        callers = [ControlClient(path, LIMIT_S) for _ in range(3)]
        for caller in callers:
            caller.ask("echo")
        with pytest.raises(StoreBusyError), ControlClient(path, 10) as one_more:
            one_more.ask("echo")
        for caller in callers:
            caller.ask("echo")
            caller.close()
        until(lambda: server.connections == 0)
        ask(path, "echo")


def test_after_a_fault_at_the_start_of_a_connection_the_next_is_served(tmp_path):
    """The accepting thread survives any fault; without it every command would wait forever."""
    faults = [ValueError("internal"), OSError("unknown user")]

    def roles():
        if faults:
            raise faults.pop()
        return Roles(os.getuid())

    with serving(tmp_path, roles=roles) as (_, path):
        for _ in range(2):
            with pytest.raises(StoreBusyError):
                ask(path, "echo")
        ask(path, "echo")


def test_one_user_does_not_shut_the_others_out(tmp_path):
    """A user without the right admin gets a share of the connections."""
    limits = ControlLimits(connections=64, each_user=2)
    with serving(tmp_path, limits=limits, roles=Nobody) as (_, path):
        callers = [ControlClient(path, LIMIT_S) for _ in range(2)]
        for caller in callers:
            caller.ask("echo")
        with pytest.raises(StoreBusyError):
            ask(path, "echo")
        for caller in callers:
            caller.close()


def test_all_users_together_do_not_shut_the_admins_out(tmp_path):
    """All users together, admins excepted, get half of the connections."""
    limits, admins = ControlLimits(connections=6, each_user=6), []

    class Turn:
        def caller(self, uid):
            return Caller(uid, "admin" if admins else "self", "x")

    with serving(tmp_path, limits=limits, roles=Turn) as (_, path):
        callers = [ControlClient(path, LIMIT_S) for _ in range(3)]
        for caller in callers:
            caller.ask("echo")
        with pytest.raises(StoreBusyError):
            ask(path, "echo")
        admins.append(1)
        ask(path, "echo")
        for caller in callers:
            caller.close()


def test_bodies_share_a_budget(tmp_path):
    """The bodies in memory are bounded: a client beyond the bound gets a temporary error."""
    limits = ControlLimits(body_bytes=10_000, held_bytes=15_000, read_s=0.3)
    inside, go = threading.Event(), threading.Event()

    def slow(request):
        body = request.body(10_000)
        if request.header["op"] == "hold":
            inside.set()
            assert go.wait(LIMIT_S)
        return AdminResponse({"n": len(body)})

    with serving(tmp_path, slow, limits) as (_, path):
        first = threading.Thread(target=lambda: ask(path, "hold", b"x" * 10_000))
        first.start()
        assert inside.wait(LIMIT_S)
        with pytest.raises(StoreBusyError):
            ask(path, "take", b"x" * 10_000)
        assert ask(path, "take", b"x" * 5_000).header["n"] == 5_000
        go.set()
        first.join()
        assert ask(path, "take", b"x" * 10_000).header["n"] == 10_000


def test_users_share_half_of_the_body_budget():
    """A user without further rights has room for one body; all such users together have half."""
    limits = ControlLimits(body_bytes=10, held_bytes=60)
    budget = control._BodyBudget(limits)
    users = [Caller(uid, "self", str(uid)) for uid in range(1000, 1005)]
    budget.take(10, users[0], 0)
    with pytest.raises(StoreBusyError):
        budget.take(1, users[0], 0)
    budget.take(10, users[1], 0)
    budget.take(10, users[2], 0)
    with pytest.raises(StoreBusyError):
        budget.take(1, users[3], 0)
    budget.take(30, Caller(0, "admin", "root"), 0)
    budget.give_back(10, users[0])
    budget.take(10, users[4], 0)


def test_a_stop_finishes_what_is_in_hand(tmp_path):
    """A request under way gets its answer; idle connections are closed immediately."""
    inside, go = threading.Event(), threading.Event()

    def slow(_):
        inside.set()
        assert go.wait(LIMIT_S)
        return AdminResponse({})

    found = []
    with serving(tmp_path, slow) as (server, path):
        idle = ControlClient(path, LIMIT_S)
        asking = threading.Thread(target=lambda: found.append(ask(path, "x").header))
        asking.start()
        assert inside.wait(LIMIT_S)
        ending = threading.Thread(target=lambda: found.append(server.stop(10)))
        ending.start()
        until(lambda: server.connections == 1)
        go.set()
        asking.join()
        ending.join()
        idle.close()
    assert {True, *(x["ok"] for x in found if x is not True)} == {True}
    assert len(found) == 2


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, c in vars(errors).items() if isinstance(c, type)])
def test_every_error_travels(name):
    """Class, line and hint are the same at the other end."""
    error = getattr(errors, name)("one\nline", hint="do this")
    back = failed(json.loads(json.dumps(failure(error))))
    assert (type(back), str(back), back.hint) == (type(error), "one line", "do this")


@pytest.mark.parametrize(
    "header", [{}, {"error_type": "dict"}, {"error_type": 5}, {"error_type": "__builtins__"}]
)
def test_an_unknown_error_class_is_a_peer_error(header):
    """A reply can only name an error class of spamnb."""
    assert isinstance(failed(header), PeerError)


def test_an_answer_travels():
    """A result keeps its state, receipt and all other fields."""
    receipt = Receipt(True, 7, "ab", "1@a", None, "spam", 0.1, 0.9)
    for answer in (Answer("learnt", receipt), Answer("review", None, "why", "name", {"a": 1})):
        assert answer_of(json.loads(json.dumps(answer.as_dict()))) == answer


@pytest.mark.parametrize("header", [{}, {"state": "learnt", "receipt": {"x": 1}}, {"receipt": 5}])
def test_an_answer_that_is_none_is_the_peers_error(header):
    """A reply that cannot be read raises an error."""
    with pytest.raises(PeerError):
        answer_of(header)


def test_a_missing_daemon_is_reported_in_one_line(tmp_path):
    """No file, no listener, no folder: a transient error with a hint."""
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    for path in (tmp_path / "none", tmp_path / "dead", tmp_path / ("x" * 150)):
        with pytest.raises(StoreBusyError) as raised:
            ControlClient(path, 1)
        assert raised.value.hint
        assert raised.value.transient


def crowded(path):
    """A listener with a full backlog, and the connections that fill it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)
    waiting = []
    with contextlib.suppress(BlockingIOError):
        while True:
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting[-1].setblocking(False)
            waiting[-1].connect(str(path))
    return listener, waiting


def test_a_client_waits_for_a_place_in_a_full_backlog(tmp_path):
    """A flood of connections delays a client, within the client's time limit, but is no error."""
    listener, waiting = crowded(tmp_path / "c")
    with pytest.raises(StoreBusyError, match="it took too long"):
        ControlClient(tmp_path / "c", 0.01)
    made = []
    client = threading.Thread(target=lambda: made.append(ControlClient(tmp_path / "c", LIMIT_S)))
    client.start()
    listener.settimeout(LIMIT_S)
    accepted = [listener.accept() for _ in waiting]
    client.join()
    assert made
    for one in (listener, *waiting, *(one for one, _ in accepted)):
        one.close()
    made[0].close()


def test_a_daemon_with_a_full_backlog_is_no_missing_daemon(tmp_path, monkeypatch, trained):
    """Without an answer, no command may write a model that a daemon may serve."""
    shutil.copytree(trained, tmp_path / "home")
    monkeypatch.setattr("spamnb.cli.session.PING_S", 0.01)
    listener, waiting = crowded(tmp_path / "home" / "control.sock")
    for arguments in (["undo", "1"], ["expire"], ["compact"], ["relearn"]):
        done = spamnb(tmp_path / "home", *arguments)
        assert (done.code, "does not answer" in done.err) == (3, True), (arguments, done)
    for one in (listener, *waiting):
        one.close()


def test_a_long_path_is_reached(tmp_path):
    """A path above 107 bytes, the limit of a socket address, can be used."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with serving(tmp_path) as (_, path):
        (deep / "c").symlink_to(path)
        assert ask(deep / "c", "echo", b"x").body == b"x"


def test_a_reference_error_keeps_its_code(tmp_path):
    """An error of the daemon gives the same exit code as without a daemon."""
    assert failed(failure(RefError("x"))).exit_code == 2
