"""The SMTP client sends the original envelope and reports whether delivery is possible."""

import socket
import threading
from contextlib import suppress

import pytest
from support.waiting import LIMIT_S

from spamnb.errors import PeerError
from spamnb.net.address import Address
from spamnb.net.clients import SendPlan, deliver
from spamnb.scan.values import ReleasedMessage, ReleaseReply

PARCEL = ReleasedMessage(
    raw=b".dot\r\nSubject: x\n\r\nbare\rcr\r\nlast",
    mail_line=b"MAIL FROM:<a@a.example> SIZE=1 RET=HDRS \xe9",
    rcpt_lines=(b"rcpt TO:<b@b.example> NOTIFY=NEVER", b"RCPT TO:<c@c.example>"),
    xforward_lines=(b"XFORWARD ADDR=192.0.2.1", b"XFORWARD NAME=x"),
)
QUICK = SendPlan(hostname="mx.example", connect_s=2, command_s=2, final_s=2)


class Hop:
    """A next hop with scripted replies that records what it receives."""

    def __init__(self, script, path=""):
        self.script = dict(script)
        self.heard = []
        self.listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.listener.bind(path or ("127.0.0.1", 0))
        self.listener.listen()
        self.listener.settimeout(LIMIT_S)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    @property
    def port(self):
        return self.listener.getsockname()[1]

    def _serve(self):
        with suppress(OSError):  # the sender may hang up at any time
            self._speak()

    def _speak(self):
        wire, _ = self.listener.accept()
        wire.settimeout(LIMIT_S)
        with wire, wire.makefile("rb") as lines:
            wire.sendall(self.script.get("hello", b"220 hop\r\n"))
            for line in lines:
                self.heard.append(line)
                verb = line.split()[0].upper().decode()
                reply = self.script.get(len(self.heard), self.script.get(verb, b"250 2.0.0 Ok\r\n"))
                if reply is None:
                    return
                wire.sendall(reply)
                if reply.startswith(b"354") and not self._data(wire, lines):
                    return

    def _data(self, wire, lines):
        body = []
        for line in lines:
            if line == b".\r\n":
                break
            body.append(line)
        self.heard.append(b"".join(body))
        final = self.script.get("final", b"250 2.0.0 queued\r\n")
        if final is not None:
            wire.sendall(final)
        return final is not None

    def close(self):
        with suppress(OSError):  # the thread still waits if no sender has come
            self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(LIMIT_S)
        self.listener.close()
        assert not self.thread.is_alive()


@pytest.fixture
def hop():
    made = []

    def make(path="", **script):
        numbered = {int(k[1:]) if k[0] == "_" else k: v for k, v in script.items()}
        made.append(Hop({"DATA": b"354 go\r\n"} | numbered, path))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sent(one, protocol="smtp"):
    return deliver(Address("127.0.0.1", one.port, protocol=protocol), PARCEL, QUICK)


def test_the_envelope_goes_out_as_it_came_in(hop):
    """MAIL and RCPT byte for byte, lines ended and dots stuffed as SMTP wants it."""
    one = hop()
    assert sent(one) == [ReleaseReply(250, "2.0.0 queued")] * 2
    one.close()
    assert one.heard == [
        b"EHLO mx.example\r\n",
        PARCEL.mail_line + b"\r\n",
        *(line + b"\r\n" for line in PARCEL.rcpt_lines),
        b"DATA\r\n",
        b"..dot\r\nSubject: x\r\n\r\nbare\r\ncr\r\nlast\r\n",
        b"QUIT\r\n",
    ]


def test_xforward_is_sent_only_to_hops_that_announce_it(hop):
    """XFORWARD is sent only if the next hop announces it."""
    one = hop(EHLO=b"250-hop\r\n250-XFORWARD NAME ADDR\r\n250 SIZE\r\n")
    sent(one)
    one.close()
    assert one.heard[1:3] == [line + b"\r\n" for line in PARCEL.xforward_lines]


def test_lmtp_answers_for_each_recipient(hop, tmp_path):
    """LHLO, and after the dot one reply each, in order; over a unix socket."""
    path = str(tmp_path / "lmtp")
    one = hop(path, final=b"250 2.0.0 kept\r\n452 4.2.2 full\r\n")
    replies = deliver(Address(path=path, protocol="lmtp"), PARCEL, QUICK)
    assert replies == [ReleaseReply(250, "2.0.0 kept"), ReleaseReply(452, "4.2.2 full")]
    one.close()
    assert one.heard[0] == b"LHLO mx.example\r\n"


def test_a_refused_recipient_is_reported_and_the_others_get_the_message(hop):
    """One recipient gets the reply to RCPT, the other one the final reply."""
    refusal = b"550-5.1.1 no\r\n550 5.1.1 such user\r\n"
    no = ReleaseReply(550, "5.1.1 no 5.1.1 such user")
    assert sent(hop(_3=refusal)) == [no, ReleaseReply(250, "2.0.0 queued")]
    one = hop(RCPT=refusal)
    assert sent(one) == [no, no]
    one.close()
    assert not any(line.startswith(b"DATA") for line in one.heard)


@pytest.mark.parametrize(
    "script",
    [
        {"hello": b"554 no\r\n"},
        {"hello": b"HTTP/1.1 400 Bad Request\r\n"},
        {"hello": b"220-" + b"x" * 200_000},
        {"EHLO": b"502 no\r\n"},
        {"MAIL": b"451 later\r\n"},
        {"MAIL": None},
        {"DATA": b"554 no\r\n"},
        {"DATA": None},
        {"MAIL": b"250 ok\r\n250 surplus\r\n"},
        {"DATA": b"354 go\r\n250 surplus\r\n"},
        {"RCPT": b"250-ok\r\n550 5.1.1 mixed\r\n"},
    ],
)
def test_whatever_fails_before_the_message_is_an_error(hop, script):
    """The message is certainly not delivered, so nothing has to be recorded."""
    one = hop(**script)
    with pytest.raises(PeerError):
        sent(one)


def test_a_next_hop_that_says_nothing_after_the_dot_leaves_doubt(hop):
    """The next hop may have the message, so the result has code 0 and is no rejection."""
    assert sent(hop(final=None)) == [ReleaseReply(0), ReleaseReply(0)]


def test_a_refusal_after_the_dot_is_each_recipients(hop):
    """The next hop replied to the whole message."""
    assert sent(hop(final=b"554 5.7.1 no\r\n")) == [ReleaseReply(554, "5.7.1 no")] * 2


def test_an_address_without_a_listener_is_an_error():
    """One line that names the address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", unused.getsockname()[1])
        with pytest.raises(PeerError, match=f"127.0.0.1:{address.port} cannot be reached"):
            deliver(address, PARCEL, QUICK)
