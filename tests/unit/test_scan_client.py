"""The client of a scanner listener: what it sends, and which replies it believes."""

import json
import socket
import threading
import time
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import LIMIT_S

from spamnb.errors import PeerError
from spamnb.net.address import Address
from spamnb.net.clients import ask, connected
from spamnb.scanner.dialects import HttpRequestReader

MESSAGE = b"Subject: plums\r\n\r\nfresh\r\n"
OUTCOME = {"decision": "junk", "action": "add header"}
GOOD = json.dumps(OUTCOME)
HEADER = b"X-Spam-Flag: YES\r\nSubject: plums\r\n\r\n"


def reply(header=HEADER, outcome=GOOD, status=200, length=None):
    length = len(header) if length is None else length
    head = f"HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nSpamnb-Outcome: {outcome}\r\n\r\n"
    return head.encode() + header


def exchange(sent, headers=None, message=MESSAGE, deadline_s=LIMIT_S):
    """Ask a peer that reads the request and sends these bytes; the answer and the request."""
    here, there = socket.socketpair()
    reader, got = HttpRequestReader(1 << 26), []

    def serve():
        with there, suppress(BrokenPipeError):  # a reply that is too long is not read
            there.settimeout(LIMIT_S)
            while not got and (data := there.recv(65_536)):
                if found := reader.feed(data):
                    got.append(found)
            there.sendall(sent)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with here:
            return ask(here, message, headers or {}, time.monotonic() + deadline_s), got[0]
    finally:
        thread.join()


def test_a_whole_reply_is_an_answer():
    """The header section and the verdict come back; the request has the message and its path."""
    answer, request = exchange(reply(), {"From": ["a@b.example"], "Rcpt": ["c@d.example"] * 2})
    assert answer == (HEADER, OUTCOME)
    assert not answer.deferred
    assert (request.method, request.verb, request.body) == ("POST", "/v1/message", MESSAGE)
    assert request.headers["rcpt"] == ["c@d.example"] * 2
    assert not request.keep_alive


def test_a_large_message_and_its_answer():
    """Neither side waits for the other."""
    message = b"X: " + b"x" * (8 << 20)
    answer, request = exchange(reply(message + b"Y: y\r\n"), message=message)
    assert request.body == message
    assert answer.header.startswith(message)


def test_a_temporary_refusal_defers():
    """503 is the answer that the message is to be tried again."""
    answer, _ = exchange(reply(status=503))
    assert answer.deferred


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"nonsense",
        reply(status=500),
        reply(length=5),
        reply(length=5000),
        reply()[:-1],
        reply(outcome="{"),
        reply(outcome="[]"),
        reply(outcome="{}"),
        b"HTTP/1.1 200 OK\r\n\r\n" + HEADER,
        reply(b"x" * (3 << 20)),
    ],
)
def test_another_reply_is_an_error(sent):
    """Only a complete reply with a verdict is believed."""
    with pytest.raises(PeerError):
        exchange(sent)


@given(st.text(), st.text())
def test_values_cannot_add_header_lines(sender, recipient):
    """Whatever an address contains, the request stays one request with one message."""
    values = {"From": [sender], "Rcpt": [recipient, "a@b.example"]}
    _, request = exchange(reply(), values)
    assert request.body == MESSAGE
    assert set(request.headers) <= {"from", "rcpt", "connection", "content-length"}
    assert request.headers["rcpt"][-1] == "a@b.example"
    assert not any("," in one for one in request.headers["rcpt"])


def test_a_peer_that_never_answers(tmp_path):
    """The deadline holds for connecting, sending and waiting together."""
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        address = Address.parse(str(tmp_path / "s"))
        with connected(address, time.monotonic() + LIMIT_S) as peer:
            with pytest.raises(PeerError, match="timed out"):
                ask(peer, b"x" * (1 << 22), {}, time.monotonic() + 0.05)
            with pytest.raises(PeerError, match="timed out"):  # its queue is full
                connected(address, time.monotonic() + 0.05).close()


def test_no_peer(tmp_path):
    """Without a listener, or with a host that has none, the error names the address."""
    with pytest.raises(PeerError, match=r"no scanner at unix:.*No such file"):
        connected(Address.parse(str(tmp_path / "none")), time.monotonic() + LIMIT_S)
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        address = Address.parse(f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(PeerError, match="refused"):
            connected(address, time.monotonic() + LIMIT_S)
