"""Attacks on the console: rights from one table, stolen and planted sessions, floods."""

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from support.browser import PASSWORD, pages
from support.console import API, Api, read, token, trained_home
from support.daemon import send
from support.page_client import Rig
from support.waiting import LIMIT_S, until

from spamnb.console.pages_http import PAGES
from spamnb.console.server import MOST_OF_ONE
from spamnb.console.site import BURST, MOST_STREAMS, OF_USER, Callers
from spamnb.console.table import OPERATIONS
from spamnb.operations.logins import (
    FailedLogins,
    Login,
    TokenFile,
    hashed,
    read_logins,
    write_logins,
)

OPEN = {"health", "me"}
"""operations that need no scope"""
SCOPES = {
    "score": {"score"},
    "teach": {"teach", "forget", "undo", "list_sender"},
    "read": {"explain", "verdicts", "stream", "verdict", "journal", "senders"},
    "quarantine": {"quarantine", "quarantined", "view", "raw", "release", "delete", "restore"},
    "metrics": {"metrics", "series"},
}
"""scope -> all that it allows; every other operation needs `admin`"""
OF_USERS = {
    *("mail", "message", "trainings", "quarantine", "kept", "kept_view", "kept_raw"),
    *("senders", "senders_file"),
}
"""pages that are not for administrators and auditors alone"""


def test_a_scope_allows_what_this_table_says():
    """An operation that is not named here is for administrators, and none is without a scope."""
    allowed = {"": OPEN, **SCOPES}
    expected = {name: scope for scope, names in allowed.items() for name in names}
    assert {one.name: one.scope for one in OPERATIONS} == {
        one.name: expected.get(one.name, "admin") for one in OPERATIONS
    }
    assert set(expected) <= {one.name for one in OPERATIONS}
    assert {"score", "teach", "read", "quarantine"} == OF_USER


def test_a_page_is_for_the_roles_of_this_table():
    """A page that is not named here is for administrators and auditors alone."""
    assert {one.name for one in PAGES if "user" in one.roles} == OF_USERS
    assert all({"admin", "auditor"} <= set(one.roles) for one in PAGES if one.name != "mail")


# --- sessions and floods of a daemon -------------------------------------------------------------


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    trained_home(folder)
    with pages(folder) as (daemon, url):
        path = folder / "passwords"
        slow = Login("slow", hashed("a real hash"), ("slow@example.org",))
        write_logins(path, read_logins(path) | {"slow": slow})
        yield Rig(folder, daemon, url)


def test_a_planted_session_is_not_taken(rig):
    """A login makes a session of its own; what the attacker planted stays what it was."""
    planted = f"spamnb={'A' * 43}"
    mine = rig.log_in("bob").cookie
    for before in (planted, mine):
        reply = rig.ask("POST", "/login", {"login": "alice", "password": PASSWORD},
                        Cookie=before, Sec_Fetch_Site="same-origin")  # fmt: skip
        assert reply.status == 303
        cookie = reply.cookie
        assert cookie not in ("", before)
        assert rig.get("/mail", cookie).status == 200
    assert rig.get("/mail", planted).status == 303
    assert "alice@example.org" not in rig.get("/mail", mine).text


def test_a_session_that_is_not_one_is_none(rig):
    """Cut, longer, in other letters, under another name, or of a token."""
    cookie = rig.log_in("root").cookie
    name, _, text = cookie.partition("=")
    read = token(rig.home, "session", "admin")
    for wrong in (f"{name}={text[:-1]}", f"{cookie}A", f"{name}={text.swapcase()}", f"{name}=",
                  f"__Host-{cookie}", f"x{cookie}", f"{name}={read}", f"{name}=\xff"):  # fmt: skip
        assert rig.get("/live", wrong).status == 303, wrong
    assert rig.get("/live", cookie).status == 200
    assert Api(rig.host, text).get("/me").status == 401
    assert Api(rig.host, Cookie=cookie).get("/status").status == 401


def memory_of(pid):
    """The most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_a_flood_of_logins_takes_little_memory(rig):
    """Two passwords are checked at a time, 32 MB each; the pages are served meanwhile."""
    root = rig.log_in("root").cookie
    (pid,) = rig.daemon.children("console")
    before = memory_of(pid)
    with ThreadPoolExecutor(40) as pool:
        guesses = [pool.submit(rig.log_in, "slow", f"guess {number}") for number in range(40)]
        assert rig.get("/live", root).status == 200
        assert {one.result().status for one in guesses} <= {401, 429, 503}
    assert memory_of(pid) - before < 200 << 20


def test_memory_for_strangers_is_bounded(tmp_path):
    """However many addresses ask and guess."""
    callers, failed = Callers(TokenFile(tmp_path), clock=lambda: 0.0), FailedLogins()
    for number in range(50_000):
        callers.spend(f"from {number}")
        failed.wrong(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(callers._buckets) <= 4_096
    assert len(failed._known) <= FailedLogins.KNOWN
    assert BURST < 4_096


def connected(rig, source):
    host, _, port = rig.host.rpartition(":")
    return socket.create_connection((host, int(port)), LIMIT_S, (source, 0))


def is_closed(connection):
    """Whether the server has closed a connection on which it says nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_one_address_cannot_take_all_connections(rig):
    """Beyond its share its connections end at once; others are served."""
    held = [connected(rig, "127.5.5.5") for _ in range(MOST_OF_ONE + 30)]
    until(lambda: sum(map(is_closed, held)) >= 30, "the end of connections")
    assert rig.get("/login").status == 200
    for one in held:
        one.close()


# --- streams -------------------------------------------------------------------------------------

SOURCES = count(1)


class Reader:
    """A reader of the stream of verdicts, from an address of its own."""

    def __init__(self, rig, text):
        number = next(SOURCES)
        self.socket = connected(rig, f"127.6.{number // 250}.{number % 250 + 1}")
        head = f"GET {API}/verdicts/stream HTTP/1.1\r\nHost: localhost\r\n"
        self.socket.sendall(f"{head}Authorization: Bearer {text}\r\n\r\n".encode())
        self.status = int(self.socket.recv(4096).split()[1])

    def close(self):
        self.socket.close()


def flood(rig, refused):
    """Open all streams, and some that are refused."""
    texts = [token(rig.home, f"reader {refused} {number}", "read") for number in range(8)]
    held = []

    def opened():
        while len(held) < MOST_STREAMS:
            reader = Reader(rig, texts[len(held) % len(texts)])
            if reader.status != 200:
                return False
            held.append(reader)
        return True

    until(opened, "all streams")
    statuses = set()
    for number in range(refused):
        reader = Reader(rig, texts[number % len(texts)])
        statuses.add(reader.status)
        reader.close()
    assert statuses <= {503, 429}
    assert 503 in statuses
    root = rig.log_in("root").cookie
    assert rig.get("/search", root).status == 200
    known = len(rig.daemon.logged("message"))
    send(rig.daemon.port())
    rig.daemon.wait_for("message", known + 1)
    assert b"event: verdict" in _more(held[-1])
    held.pop().close()
    until(lambda: _joins(rig, texts[0], held), "a free place")
    for one in held:
        one.close()


def _more(reader):
    read = b""
    while b"event: verdict" not in read:
        more = reader.socket.recv(4096)
        assert more
        read += more
    return read


def _joins(rig, text, held):
    reader = Reader(rig, text)
    held.append(reader)
    return reader.status == 200


def test_more_readers_than_streams_are_refused(rig):
    """With 503; pages, mail and the open streams go on, and a reader that leaves makes room."""
    flood(rig, 20)


@pytest.mark.full
def test_ten_thousand_readers_are_refused(rig):
    """The same with so many."""
    flood(rig, 10_000)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/me", None),
        ("GET", "/login", None),
        ("POST", "/api/v1/score", b"Subject: x\n\n" + b"hello " * 10_000),
    ],
)
def test_a_request_too_many_is_refused_before_it_is_read(rig, method, path, body):
    """The reply has the form and the headers of all errors, also while a body is being sent."""
    host, _, port = rig.host.rpartition(":")
    source = (f"127.8.{len(path)}.8", 0)

    def refused():
        with socket.create_connection((host, int(port)), LIMIT_S, source) as burst:
            burst.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\n\r\n" * int(BURST))
            burst.shutdown(socket.SHUT_WR)
            while burst.recv(65536):
                pass
        client = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S, source_address=source)
        client.request(method, path, body, {"Content-Type": "message/rfc822"})
        reply = read(client.getresponse())
        client.close()
        return reply if reply.status == 429 else None

    reply = until(refused, "a request too many")
    assert reply.headers["connection"] == "close"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert int(reply.headers["retry-after"]) > 0
    if path.startswith("/api"):
        assert reply.title == "too many requests"
    else:
        assert b"<h1>" in reply.body
