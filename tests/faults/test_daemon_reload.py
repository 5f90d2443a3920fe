"""A running daemon takes settings with other listeners, and drops no connection."""

import contextlib
import os
import signal
import socket
import struct

import pytest
from support.daemon import NO_DELIVERY, serve, settings_in
from support.postfix import free_ports
from support.waiting import LIMIT_S, until

from spamnb.milter.packets import packet_of

NEGOTIATION = packet_of(b"O", struct.pack("!III", 6, 0x1FF, 0x1FFFFF))


def section(name, address, protocol="scanner", more=""):
    return f'[listener.{name}]\nprotocol = "{protocol}"\naddress = "{address}"\n{more}\n'


class Site:
    """A daemon, and its settings file."""

    def __init__(self, folder, listeners, workers=1, drain_s=250):
        times = f"watchdog_s = 250\ndrain_s = {drain_s}"
        self.config = settings_in(folder, serve=times, **NO_DELIVERY)
        text = self.config.read_text().replace("workers = 1", f"workers = {workers}")
        self.head = text[: text.index("[listener.mx]")]
        self.config.write_text(self.head + listeners)
        self.daemon = serve(folder, config=self.config)

    def reload(self, listeners, event="settings reloaded"):
        """Give it other listeners; the record of what follows."""
        count = len(self.daemon.logged(event))
        self.config.write_text(self.head + listeners)
        self.daemon.signal(signal.SIGHUP)
        return self.daemon.wait_for(event, count + 1)


@pytest.fixture
def site(home):
    """Start a daemon with these listeners."""
    with contextlib.ExitStack() as stack:

        def start(listeners, workers=1, **more):
            made = Site(home, listeners, workers, **more)
            stack.enter_context(made.daemon)
            made.daemon.ready()
            return made

        yield start


def connect(address):
    if isinstance(address, int):
        return socket.create_connection(("127.0.0.1", address), LIMIT_S)
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(LIMIT_S)
    one.connect(str(address))
    return one


def ping(client):
    """Ask on a connection that stays open; whether there is an answer."""
    with contextlib.suppress(ConnectionError):
        client.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
        return b"pong" in client.recv(4096)
    return False


def answers(address):
    """Whether a new connection is served; one that waits when a listener is closed is reset."""
    try:
        with connect(address) as client:
            return ping(client)
    except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
        return False


@pytest.mark.parametrize("workers", [1, 2])
def test_listeners_come_and_go(site, place, workers):
    """A new one serves at once; a removed one listens no more, and its connections go on."""
    one, two = free_ports(2)
    path = place / "scan.sock"
    first = section("one", f"127.0.0.1:{one}")
    here = site(first, workers)
    with connect(one) as old:
        assert ping(old)
        here.reload(first + section("two", f"127.0.0.1:{two}") + section("local", f"unix:{path}"))
        for address in (two, path):
            assert answers(address)
        assert here.daemon.address("local") == f"unix:{path}"
        with connect(path) as local:
            assert ping(local)
            here.reload(section("two", f"127.0.0.1:{two}"))
            until(lambda: not answers(one))
            assert not path.exists()
            here.daemon.wait_for("listener removed", listener="one")
            for client in (old, local):
                assert ping(client)
        here.reload(section("two", f"127.0.0.1:{two}", more="observe = true"))
        assert ping(old)
        assert answers(two)
    assert here.daemon.stop() == 0
    assert here.daemon.logged("process died") == []


def test_an_address_moves_and_the_protocol_changes(site):
    """Clients of the old address go on, clients of the new one are served at once."""
    one, two = free_ports(2)
    here = site(section("a", f"127.0.0.1:{one}"))
    with connect(one) as old:
        assert ping(old)
        here.reload(section("a", f"127.0.0.1:{two}"))
        assert answers(two)
        until(lambda: not answers(one))
        here.reload(section("a", f"127.0.0.1:{two}", "milter"))

        def is_milter():
            with connect(two) as mta:
                mta.sendall(NEGOTIATION)
                return b"O" in mta.recv(100)[4:5]

        until(is_milter)
        assert ping(old)


@pytest.mark.parametrize("protocol", ["scanner", "milter", "smtp"])
def test_the_clients_of_a_removed_listener_have_a_limit(site, protocol):
    """After `serve.drain_s` their connections are closed, as at the end of the daemon."""
    one, two = free_ports(2)
    upstream = 'upstream = "127.0.0.1:9"' if protocol == "smtp" else ""
    kept = section("b", f"127.0.0.1:{two}")
    here = site(kept + section("a", f"127.0.0.1:{one}", protocol, upstream), drain_s=1)
    with connect(one) as old, connect(two) as other:
        if protocol == "smtp":
            old.recv(1000)
        assert ping(other)
        here.reload(kept)
        assert b"".join(iter(lambda: old.recv(1000), b""))[:4] in (b"", b"421 ")
        assert ping(other)
    until(lambda: here.daemon.logged("listener removed", listener="a"))


def test_two_listeners_exchange_their_addresses(site):
    """Both addresses are served before, during and after."""
    one, two = (f"127.0.0.1:{port}" for port in free_ports(2))
    here = site(section("a", one) + section("b", two, more="observe = true"))
    here.reload(section("b", one, more="observe = true") + section("a", two))
    for address in (one, two):
        assert answers(int(address.rpartition(":")[2]))


def test_an_address_that_cannot_be_bound_is_told(site, place):
    """Nothing of the new settings is taken: the listeners stay, also those that were removed."""
    one, two = free_ports(2)
    here = site(section("a", f"127.0.0.1:{one}"))
    new = place / "new.sock"
    with socket.create_server(("127.0.0.1", two)), connect(one) as old:
        text = section("b", f"unix:{new}") + section("c", f"127.0.0.1:{two}")
        record = here.reload(text, "settings not reloaded")
        assert f"127.0.0.1:{two} is in use" in record["error"]
        assert ping(old)
        assert answers(one)
        assert not new.exists()
        record = here.reload(section("b", f"unix:{place}/none/sock"), "settings not reloaded")
        assert "create the folder" in record["error"]
        assert answers(one)
    here.reload(text)
    assert answers(two)
    assert answers(new)


def test_a_worker_that_is_replaced_has_the_new_listeners(site):
    """It inherits the sockets of the last reload."""
    one, two = free_ports(2)
    here = site(section("a", f"127.0.0.1:{one}"))
    here.reload(section("b", f"127.0.0.1:{two}"))
    assert answers(two)
    os.kill(here.daemon.children("worker")[0], signal.SIGKILL)
    here.daemon.wait_for("process died", role="worker")
    assert answers(two)
    assert not answers(one)


def test_clients_that_wait_at_a_removed_address_are_served(site):
    """A connection in the queue of the kernel is accepted before the socket is closed."""
    one, two = free_ports(2)
    here = site(section("a", f"127.0.0.1:{one}"))
    (worker,) = here.daemon.children("worker")
    os.kill(worker, signal.SIGSTOP)
    waiting = [connect(one) for _ in range(20)]
    try:
        here.reload(section("a", f"127.0.0.1:{two}"))
        os.kill(worker, signal.SIGCONT)
        assert all(map(ping, waiting))
    finally:
        os.kill(worker, signal.SIGCONT)
        for client in waiting:
            client.close()
    assert answers(two)


def test_a_listener_without_a_next_hop_waits_for_a_restart(site):
    """The delivery agent is a process of the start; the other listeners change."""
    one, two = free_ports(2)
    here = site(section("a", f"127.0.0.1:{one}"))
    relay = section("relay", "127.0.0.1:0", "smtp")
    here.reload(section("b", f"127.0.0.1:{two}") + relay)
    (record,) = here.daemon.logged("settings need a restart")
    assert record["settings"] == ["listener.relay.upstream"]
    assert answers(two)
    assert here.daemon.logged("listening", listener="relay") == []
