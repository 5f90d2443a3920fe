"""What strangers can hold of a daemon with several workers: counted together, also after a kill."""

import json
import os
import signal
import smtplib
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress

import pytest
from support.daemon import PROJECT, serve, settings_in
from support.waiting import LIMIT_S, until

STRANGERS = 'peers = ["127.0.0.9/32"]\nrecipient_domains = ["example.org"]\n'


def configured(folder, sink, **limits):
    """Settings of a daemon with two workers, open to strangers."""
    lines = "\n".join(f"{name} = {value}" for name, value in limits.items())
    listener = f'upstream = "{sink.address}"\n{STRANGERS}'
    return settings_in(
        folder, workers=2, delivery="", listener=listener, more=f"[limits]\n{lines}\n"
    )


def connected(port, source, *lines):
    """Send these commands on a new connection; return its socket and the last reply."""
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S, (source, 0))
    stream = sock.makefile("rwb")
    reply = stream.readline()
    for line in lines:
        if not reply.startswith(b"2"):
            break
        stream.write(line)
        stream.flush()
        reply = stream.readline()
    stream.close()
    return sock, reply


def taken(port, source, count, *lines):
    """So many clients one after the other: the sockets of those that were taken."""
    found = []
    for _ in range(count):
        sock, reply = connected(port, source, *lines)
        if reply.startswith(b"2"):
            found.append(sock)
        else:
            assert reply.startswith(b"421"), reply
            sock.close()
    return found


def test_an_address_is_counted_over_all_workers(tmp_path, sink):
    """The limit of an address holds over all workers, also after a worker has died."""
    config = configured(tmp_path, sink, connections_an_address=5)
    with serve(tmp_path, "--create", config=config).ready() as daemon, ExitStack() as held:
        port = daemon.port()
        first = [held.enter_context(closing(one)) for one in taken(port, "127.0.1.1", 20)]
        assert len(first) == 5
        other = taken(port, "127.0.1.2", 10)
        assert len([held.enter_context(closing(one)) for one in other]) == 5
        for number, pid in enumerate(daemon.children("worker"), 1):
            os.kill(pid, signal.SIGKILL)
            daemon.wait_for("process died", number, role="worker")
            until(lambda: len(daemon.children("worker")) == 2, "the worker to be replaced")
        assert not any(one.recv(1) for one in first)
        again = until(
            lambda: [*taken(port, "127.0.1.1", 20)] or None, "connections to be taken again"
        )
        assert len([held.enter_context(closing(one)) for one in again]) == 5


def test_the_next_hop_is_shared_over_all_workers(tmp_path, sink):
    """Strangers of many networks get their part of the next hop; trusted clients are not bound."""
    config = configured(tmp_path, sink, upstream_connections=10, reserved=0.2)
    with serve(tmp_path, "--create", config=config).ready() as daemon, ExitStack() as held:
        port, hello = daemon.port(), b"HELO x\r\n"
        one = [held.enter_context(closing(s)) for s in taken(port, "127.0.1.1", 10, hello)]
        assert len(one) == 4  # half of what strangers get
        many = [s for n in range(2, 12) for s in taken(port, f"127.0.{n}.1", 1, hello)]
        assert len([held.enter_context(closing(s)) for s in many]) == 4
        trusted = [held.enter_context(closing(s)) for s in taken(port, "127.0.0.9", 20, hello)]
        assert len(trusted) == 20


@pytest.mark.parametrize("line", [b"NOOP\r\n", b"RSET\r\n"])
def test_one_address_that_sends_no_message_holds_a_bounded_part(tmp_path, sink, line):
    """Its sessions over all workers are few and end after some commands; a trusted client sends."""
    config = configured(tmp_path, sink, upstream_connections=8, reserved=0.25, commands=12)
    with serve(tmp_path, "--create", config=config).ready() as daemon, ExitStack() as session_io:
        port, lines = daemon.port(), (b"HELO x\r\n", b"MAIL FROM:<a@example.net>\r\n")
        held = [session_io.enter_context(closing(s)) for s in taken(port, "127.0.1.1", 12, *lines)]
        assert len(held) == 3  # half of what strangers get of the next hop
        for number in range(5):
            for one in held:
                one.sendall(line)
                assert one.recv(100).startswith(b"250")
            client = smtplib.SMTP("127.0.0.1", port, source_address=("127.0.0.9", 0), timeout=60)
            with client:
                client.sendmail("a@example.net", ["b@example.org"], f"Subject: {number}\r\n\r\nx")
        for one in held:
            one.sendall(line * 12)
            assert b"421 4.7.0 Too many commands" in until_closed(one)
    assert len(sink.messages) == 5


def until_closed(sock):
    """What a connection says until its end."""
    said = b""
    with suppress(ConnectionResetError):
        while more := sock.recv(4096):
            said += more
    return said


def test_a_trusted_client_is_served_while_others_hold(tmp_path):
    """The measuring script in its short form: every message of the trusted client is taken."""
    rows_file = tmp_path / "rows.json"
    arguments = ["--sessions", 30, "--messages", 30, "--warm", 1, "--seconds", 2, "--hop", 30]
    arguments += ["--set", "limits.upstream_connections=30", "--pause", 0.2, "--json", rows_file]
    script = PROJECT / "scripts" / "bench" / "hold"
    subprocess.run([sys.executable, script, *map(str, arguments)], check=True, timeout=LIMIT_S)
    rows = json.loads(rows_file.read_text())
    assert set(rows) == {"hold", "store"}
    for row in rows.values():
        assert row["trusted"]["taken"]
        assert row["trusted"]["failed"] == []
