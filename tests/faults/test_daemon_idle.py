"""Connections and memory that silent clients and large messages take in a real worker."""

import hashlib
import resource
import select
import smtplib
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.daemon import send, serve, settings_in
from support.waiting import LIMIT_S, until

SILENT = 2000
IDLE_BYTES = 16384
"""a silent connection may cost"""
SCAN_LIMIT = 1 << 20
STREAM_BYTES = 2 << 20
"""a message that streams may cost, beside the scan limit"""
LINE = b"x" * 70 + b"\r\n"
LARGE = b"Subject: large\r\n\r\n" + LINE * ((20 << 20) // len(LINE))


class Upstream:
    """A next hop that counts connections, and reads the body of a message on request."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.calls = 0
        self.bodies = []
        """of each message: its size, and the digest of what stands behind its header"""
        self.takes = threading.Event()
        self.takes.set()
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.calls += 1
                threading.Thread(target=self._session, args=(connection,), daemon=True).start()

    def _session(self, connection):
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            connection.sendall(b"220 upstream\r\n")
            for line in lines:
                if line.upper().startswith(b"QUIT"):
                    connection.sendall(b"221 bye\r\n")
                    return
                if line.upper().startswith(b"DATA"):
                    connection.sendall(b"354 go\r\n")
                    assert self.takes.wait(LIMIT_S)
                    self.bodies.append(_body(lines))
                connection.sendall(b"250 ok\r\n")

    def close(self):
        """End the thread before the number of its descriptor is used again."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()


def _body(lines):
    size, digest, in_body = 0, hashlib.sha256(), False
    for line in lines:
        if line == b".\r\n":
            break
        size += len(line)
        if in_body:
            digest.update(line)
        in_body = in_body or line == b"\r\n"
    return size, digest.hexdigest()


@pytest.fixture
def upstream():
    made = Upstream()
    yield made
    made.close()


@pytest.fixture
def _descriptors():
    """Let this process, and the daemon that inherits it, have two for each silent client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * SILENT
    if hard not in (-1, resource.RLIM_INFINITY) and hard < wanted:
        pytest.skip(f"only {hard} file descriptors are allowed here")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory(pid, field):
    """A figure of a process's status, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def forget_peak(pid):
    """Let the peak of its memory begin here (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def silent_client(port):
    """Connect a client that reads the greeting and sends nothing."""
    client = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    assert client.recv(100).startswith(b"220")
    return client


@pytest.mark.usefixtures("_descriptors")
def test_silent_clients_stop_no_mail_and_cost_little(home, upstream):
    """2,000 idle clients: mail flows, the next hop gets no connection, each costs 16 KB at most."""
    # Their time must not be over before the last of them has come, on a busy machine.
    config = settings_in(
        home,
        delivery="",
        listener=f'upstream = "{upstream.address}"',
        more="[timeouts]\nfirst_mail_s = 600\n",
    )
    with serve(home, config=config).ready() as daemon, ExitStack() as held:
        port = daemon.port()
        for _ in range(3):
            send(port)
        for _ in range(20):
            held.enter_context(silent_client(port))
        (worker,) = daemon.children("worker")
        calls, before = upstream.calls, memory(worker, "RssAnon")
        for _ in range(SILENT):
            held.enter_context(silent_client(port))
        cost = (memory(worker, "RssAnon") - before) / SILENT
        assert upstream.calls == calls
        assert cost <= IDLE_BYTES
        for _ in range(3):
            send(port)
        assert upstream.calls == calls + 3
        assert len(upstream.bodies) == 6
        assert daemon.children("worker") == [worker]


def update(client, data):
    """Send as much as the other end takes; how much that was."""
    sent, poll = 0, select.poll()
    poll.register(client, select.POLLOUT)
    client.setblocking(False)
    # Two seconds without room: a relay that would read more has read it by then.
    while sent < len(data) and poll.poll(2000):
        with suppress(BlockingIOError):
            sent += client.send(data[sent : sent + 65536])
    client.setblocking(True)
    return sent


def send_large(port, upstream):
    """Send the large message to a next hop that stands still and then goes on."""
    count = len(upstream.bodies)
    upstream.takes.clear()
    with smtplib.SMTP("127.0.0.1", port, timeout=LIMIT_S) as client:
        client.helo("x")
        client.mail("alice@example.com")
        client.rcpt("bob@example.org")
        client.putcmd("data")
        assert client.getreply()[0] == 354
        sent = update(client.sock, LARGE)
        assert sent < len(LARGE)
        upstream.takes.set()
        client.sock.sendall(LARGE[sent:] + b".\r\n")
        assert client.getreply()[0] == 250
    until(lambda: len(upstream.bodies) > count, "the large message")
    size, digest = upstream.bodies[-1]
    assert size > len(LARGE)
    assert digest == hashlib.sha256(LARGE.partition(b"\r\n\r\n")[2]).hexdigest()


def test_a_large_message_costs_no_more_than_the_scan_limit(home, upstream):
    """20 MB to a next hop that stands still and then goes on: 2 MB at most beside what is held."""
    config = settings_in(home, listener=f'upstream = "{upstream.address}"', delivery="")
    with serve(home, config=config).ready() as daemon:
        port = daemon.port()
        for _ in range(3):
            send(port)
        (worker,) = daemon.children("worker")
        costs = []
        for _ in range(3):  # the first one may also read pages of the program for the first time
            forget_peak(worker)
            before = memory(worker, "VmHWM")
            send_large(port, upstream)
            costs.append(memory(worker, "VmHWM") - before)
            if costs[-1] <= SCAN_LIMIT + STREAM_BYTES:
                break
        assert min(costs) <= SCAN_LIMIT + STREAM_BYTES, costs
        assert daemon.children("worker") == [worker]
