"""The delivery agent's replies: one to each command, and only CRLF.CRLF ends a message."""

import contextlib
import itertools
import re
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.delivery_agent import MESSAGE, files, logins, running_agent, sent, start_child
from support.waiting import LIMIT_S, until

from spamnb.smtp import delivery_replies


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (b"MAIL FROM:<a@b.example> RET=HDRS ENVID=QQ314159", b"250"),
        (b"MAIL FROM:<a@b.example> SIZE=1000 BODY=8BITMIME SMTPUTF8 AUTH=<>", b"250"),
        (b"MAIL FROM:<>", b"250"),
        (b"MAIL FROM:<" + b"a" * 64 + b"@" + b"b" * 250 + b"> ENVID=" + b"x" * 3000, b"250"),
        (b"MAIL FROM:<j\xc3\xb6rg@b.example> SMTPUTF8", b"250"),
        (b"MAIL FROM:<j\xc3\xb6rg@b.example>", b"553"),
        (b"MAIL FROM:<j\xf6rg@b.example> SMTPUTF8", b"553"),
        (b"MAIL FROM:<a@b.example> SIZE=999999999999", b"552"),
        (b"MAIL FROM:<a@b.example> SIZE=x", b"501"),
        (b"MAIL FROM:<a@b.example> BODY=BINARYMIME", b"501"),
        (b"MAIL FROM:<a@b.example> MT-PRIORITY=3", b"555"),
        (b"MAIL FROM:<a@b\x00.example>", b"501"),
        (b"MAIL", b"501"),
        (b"MAIL FROM:<" + b"a" * 9000 + b"@b>", b"500"),
        (b"VRFY root", b"252"),
        (b"EXPN root", b"502"),
        (b"BDAT 10", b"500"),
        (b"XCLIENT ADDR=1.2.3.4", b"500"),
        (b"DATA", b"503"),
        (b"RCPT TO:<a@b.example>", b"503"),
        (b"AUTH PLAIN AAAA", b"502"),
        (b"STARTTLS", b"454"),
        (b"\xff\xfe", b"500"),
        (b"", b"500"),
    ],
)
def test_every_command_gets_a_proper_answer(agent, command, code):
    """Replies have the codes of the RFCs, enhanced codes, and no internal text."""
    with agent.raw() as client:
        client.ask(b"EHLO me.example")
        reply = client.ask(command)
        assert reply[:3] == code
        assert re.match(rb"\d{3} \d\.\d\.\d+ [ -~]+\r\n$", reply)
        assert client.ask(b"NOOP")[:3] == b"250"
    assert agent.meters.value("faults") == 0


def test_hello_comes_first(agent):
    """Without a greeting there is no transaction."""
    with agent.raw() as client:
        assert client.ask(b"MAIL FROM:<a@b.example>")[:3] == b"503"
        assert client.ask(b"HELO me.example")[:3] == b"250"
        assert client.ask(b"MAIL FROM:<a@b.example>")[:3] == b"250"
        assert client.ask(b"MAIL FROM:<a@b.example>")[:3] == b"503"


def test_limits_of_one_connection_do_not_depend_on_others(agent):
    """The length of commands is not counted for all connections together, as aiosmtpd does."""
    long = b"MAIL FROM:<a@b.example> ENVID=" + b"x" * 900
    with agent.raw() as one:
        one.ask(b"EHLO me.example")
        for _ in range(3):
            with agent.raw() as other:
                other.ask(b"EHLO me.example")
            assert one.ask(long)[:3] == b"250"
            one.ask(b"RSET")


# -- the message ----------------------------------------------------------------------------------


def body_of(path):
    return path.read_bytes().split(b"\n", 2)[2]


@pytest.mark.parametrize(
    ("wire", "stored"),
    [
        (b"\r\n.\r\n", b"\n"),
        (b".\r\n", b""),
        (b"..\r\n...\r\n.x\r\n.\r\n", b".\n..\nx\n"),
        (b"S: x\r\n\r\n" + b"y" * 200_000 + b"\r\n.\r\n", b"S: x\n\n" + b"y" * 200_000 + b"\n"),
        (b"S: x\r\n\r\na\nb\rc\r\n\0\r\n.\r\n", b"S: x\n\na\nb\nc\n\0\n"),
        (b"From x Mon Jan\r\nS: x\r\n.\r\n", b"S: x\n"),
    ],
    ids=["blank", "empty", "dots", "long", "bare", "mbox"],
)
def test_a_message_is_stored_as_it_was_sent(agent, mail, wire, stored):
    """Dots unstuffed, lines of any length, bare CR and LF as line ends, NUL kept."""
    with start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as client:
        assert sent(client, wire)[:3] == b"250"
        assert body_of(files(mail)[0]) == stored


ENDS = [
    b"\n.\n", b"\r.\r", b"\n.\r\n", b"\r\n.\n", b"\r\n.\r", b"\r.\r\n", b"\r\n.\0\r\n",
    b"\r\n\0.\r\n", b"\n.\r", b"\r.\n", b"\0.\r\n",
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_only_one_ending_ends_a_message(agent, mail, end):
    """Smuggling: text after another ending belongs to the message, and is no second message."""
    smuggled = b"MAIL FROM:<evil@b.example>\r\nRCPT TO:<victim@x.example>\r\nDATA\r\nX: y\r\n"
    with start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as client:
        reply = sent(client, b"S: x\r\n\r\ntext" + end + smuggled + b"\r\n.\r\n")
        assert reply[:3] == b"250"
        assert client.ask(b"NOOP")[:3] == b"250"
    assert len(files(mail)) == 1
    assert b"victim" in files(mail)[0].read_bytes()


@pytest.mark.parametrize("cut", range(1, 12))
def test_an_end_in_pieces_is_an_end(agent, mail, cut):
    """The final dot is found across any split of packets, and later commands are executed."""
    wire = b"S: x\r\n\r\n..a\r\n.\r\nNOOP\r\n"
    with start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.send(wire[:-cut])
        time.sleep(0.01)
        client.send(wire[-cut:])
        assert client.reply()[:3] == b"250"
        assert client.reply()[:3] == b"250"
    assert body_of(files(mail)[0]) == b"S: x\n\n.a\n"


WORDS = st.sampled_from([b".", b"\r\n", b"\r\n.", b"..", b"x", b"\n", b"\r", b"\0", b"y" * 70_000])


@settings(
    max_examples=settings.default.max_examples * 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(WORDS, max_size=30), st.lists(st.integers(0, 300_000), max_size=4))
def test_any_body_in_any_pieces_is_stored_as_it_is(agent, mail, pieces, cuts):
    """Dotted bodies, stuffed as clients do, in random pieces: what is stored is what was meant."""
    body = b"".join(pieces) + b"\r\n"
    wire = (b"\r\n" + body).replace(b"\r\n.", b"\r\n..")[2:] + b".\r\n"
    places = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
    with start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, stop in itertools.pairwise(places):
            client.send(wire[start:stop])
        assert client.reply()[:3] == b"250"
    (path,) = files(mail)
    meant = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert path.read_bytes().endswith(b"\n" + meant)
    path.unlink()


def test_commands_may_come_together(agent, mail):
    """PIPELINING: replies come in order, one for each command."""
    with agent.raw() as client:
        assert b"PIPELINING" in client.ask(b"EHLO me.example")
        client.send(
            b"MAIL FROM:<a@b.example>\r\nRCPT TO:<bob@x.example>\r\nRCPT TO:<no domain>\r\n"
            b"RCPT TO:<carol@x.example>\r\nDATA\r\n"
        )
        assert [client.reply()[:3] for _ in range(5)] == [b"250", b"250", b"501", b"250", b"354"]
        client.send(MESSAGE + b".\r\nQUIT\r\n")
        assert [client.reply()[:3] for _ in range(2)] == [b"250", b"221"]
    assert len(files(mail)) == 2


def test_too_big_a_message_is_refused_and_the_session_goes_on(mail):
    """The end of a message that is too big is waited for, without keeping it."""
    with (
        running_agent(root=str(mail), size_limit_bytes=10_000) as agent,
        start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as client,
    ):
        assert sent(client, b"x" * 300_000 + b"\r\n.\r\n")[:9] == b"552 5.3.4"
        client.ask(b"MAIL FROM:<a@b.example>", b"RCPT TO:<bob@x.example>", b"DATA")
        assert sent(client, b"x" * 9_998 + b"\r\n.\r\n")[:3] == b"250"
    assert len(files(mail)) == 1


def test_memory_for_messages_is_bounded_over_all_connections(mail):
    """Above the budget a message gets 452; memory of finished messages is free again."""
    with running_agent(root=str(mail), memory_limit_bytes=150_000) as agent:
        with (
            start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as one,
            start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as two,
        ):
            one.send(b"x" * 140_000)
            time.sleep(0.2)
            assert sent(two, b"x" * 140_000 + b"\r\n.\r\n")[:9] == b"452 4.3.1"
            assert sent(one, b"\r\n.\r\n")[:3] == b"250"
            two.ask(b"MAIL FROM:<a@b.example>", b"RCPT TO:<bob@x.example>", b"DATA")
            two.send(b"x" * 140_000)
        with start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as three:
            assert sent(three, b"x" * 140_000 + b"\r\n.\r\n")[:3] == b"250"


def test_too_many_recipients_are_put_off(mail):
    """452 4.5.3 for those above the limit; the others get their mail."""
    with running_agent(root=str(mail), recipients=3) as agent, start_child(agent) as client:
        codes = [client.ask(b"RCPT TO:<u%d@x.example>" % n)[:9] for n in range(5)]
        assert codes == [b"250 2.1.5"] * 3 + [b"452 4.5.3"] * 2
        client.ask(b"DATA")
        assert sent(client, MESSAGE + b".\r\n")[:3] == b"250"
    assert len(files(mail)) == 3


# -- connections ----------------------------------------------------------------------------------


def test_connections_are_limited(mail):
    """A connection above the limit gets 421; after another one has closed, a new one is served."""
    with running_agent(root=str(mail), connections=3) as agent:
        clients = [agent.raw() for _ in range(3)]
        with agent.raw() as late:
            assert late.greeting[:9] == b"421 4.3.2"
            assert late.file.read() == b""
        assert agent.meters.value("connections_refused") == 1
        for client in clients:
            client.close()
        until(lambda: is_greeted(agent), "a place")


def test_connections_of_one_address_are_limited(mail):
    """A client that is not in `peers` gets a limited number of connections."""
    with running_agent(root=str(mail), connections_per_address=2, peers=()) as agent:
        clients = [agent.raw() for _ in range(3)]
        assert [client.greeting[:3] for client in clients] == [b"220", b"220", b"421"]
        for client in clients:
            client.close()


def test_strangers_leave_connections_to_the_peers(mail):
    """Clients that are not in `peers` share half of the connections, whatever their addresses."""
    settings = {"connections": 8, "connections_per_address": 2, "peers": ("127.0.0.1/32",)}
    with running_agent(root=str(mail), **settings) as agent, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(agent.raw(f"127.0.0.{n}")) for n in range(2, 8)]
        known = [stack.enter_context(agent.raw()) for _ in range(4)]
        assert [client.greeting[:3] for client in strangers] == [b"220"] * 4 + [b"421"] * 2
        assert [client.greeting[:3] for client in known] == [b"220"] * 4


def test_strangers_leave_memory_to_the_peers(mail):
    """Unfinished messages of clients that are not in `peers` take at most half of the memory."""
    settings = {"memory_limit_bytes": 1_000_000, "peers": ("127.0.0.1/32",)}
    commands = (b"EHLO me.example", b"MAIL FROM:<a@b.example>", b"RCPT TO:<bob@x.example>", b"DATA")
    with running_agent(root=str(mail), **settings) as agent, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(agent.raw(f"127.0.0.{n}")) for n in (2, 3)]
        for client in strangers:
            client.ask(*commands)
            client.send(b"x" * 450_000)
        known = stack.enter_context(agent.raw())
        known.ask(*commands)
        assert sent(known, b"x" * 150_000 + b"\r\n.\r\n")[:3] == b"250"
        codes = sorted(sent(client, b"\r\n.\r\n")[:3] for client in strangers)
        assert codes == [b"250", b"452"]


def test_silent_clients_get_421(mail):
    """Silence ends with 421: before a command, and in the middle of a message."""
    with running_agent(root=str(mail), command_timeout_s=0.3, data_timeout_s=0.3) as agent:
        with agent.raw() as client:
            assert client.reply()[:9] == b"421 4.4.2"
        with start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as client:
            client.send(b"Subject: x\r\n")
            assert client.reply()[:9] == b"421 4.4.2"
    assert files(mail) == []


def is_greeted(agent):
    with agent.raw() as client:
        return client.greeting.startswith(b"220")


def test_a_client_that_reads_nothing_is_disconnected(mail, monkeypatch):
    """A client that reads no replies does not keep its connection."""
    monkeypatch.setattr("spamnb.smtp.delivery_session._GOODBYE_S", 0.2)
    with (
        running_agent(root=str(mail), command_timeout_s=0.3, connections=1) as agent,
        agent.raw() as deaf,
    ):
        deaf.sock.settimeout(0.5)
        with contextlib.suppress(OSError):
            while True:
                deaf.send(b"VRFY x\r\n" * 1000)
        until(lambda: is_greeted(agent), "its place")


def test_a_client_that_sends_slowly_is_disconnected(mail):
    """A byte now and then does not extend the time of a message."""
    with (
        running_agent(root=str(mail), data_timeout_s=5.0, message_timeout_s=0.5) as agent,
        start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA") as client,
    ):
        ended = threading.Event()

        def drip():
            while not ended.wait(0.05):
                try:
                    client.send(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        # A time that each byte renews would never be over.
        assert client.reply()[:9] == b"421 4.4.2"
        ended.set()
        thread.join()


def test_closing_down_lets_a_message_end(mail):
    """At a stop a running transaction is finished and answered; idle clients get 421."""
    with running_agent(root=str(mail)) as agent:
        idle = agent.raw()
        client = start_child(agent, b"RCPT TO:<bob@x.example>", b"DATA")
        client.send(b"Subject: x\r\n")
        thread = threading.Thread(target=lambda: _finish(idle, client))
        thread.start()
    thread.join()
    assert len(files(mail)) == 1


def _finish(idle, client):
    assert idle.reply()[:9] == b"421 4.3.2"
    client.send(b"\r\nlast\r\n.\r\n")
    assert client.reply()[:3] == b"250"
    assert client.reply()[:3] == b"421"
    idle.close()
    client.close()


def test_an_internal_error_is_451_and_tells_nothing(agent, monkeypatch):
    """No class name, path or text of an exception is in a reply; the log has an incident."""
    from spamnb.smtp.delivery import DeliveryAgent

    def broken(*_):
        raise RuntimeError("secret /path")

    monkeypatch.setattr(DeliveryAgent, "find", broken)
    with start_child(agent) as client:
        assert client.ask(b"RCPT TO:<bob@x.example>") == delivery_replies.FAULT.encode() + b"\r\n"
    assert agent.meters.value("faults") == 1
    assert [line["error"] for line in agent.logs] == ["RuntimeError: secret /path"]
    assert agent.logs[0]["incident"]


NOISE = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [b"EHLO x\r\n", b"MAIL FROM:<a@b>\r\n", b"RCPT TO:<c@x>\r\n", b"DATA\r\n", b".\r\n",
         b"RSET\r\n", b"XFORWARD ADDR=1 SOURCE=\r\n", b"AUTH LOGIN\r\n", b"=\r\n", b"*\r\n",
         b"HELP\r\n", b"HELP MAIL\r\n", b"VRFY\r\n", b"x" * 70_000, b"\r\n"]
    ),
)  # fmt: skip


@settings(max_examples=settings.default.max_examples * 3)
@given(st.lists(NOISE, max_size=20))
def test_no_noise_is_an_internal_error(noisy_agent, noise):
    """Every line of the answer to any bytes is a proper reply, and no exception is raised."""
    before = noisy_agent.meters.value("faults")
    # The agent may close the connection before all is sent.
    with noisy_agent.raw() as client, contextlib.suppress(ConnectionError):
        client.sock.settimeout(LIMIT_S)
        client.send(b"".join(noise) + b"\r\n.\r\n" + b"QUIT\r\n" * 4)
        for line in client.file:
            assert re.fullmatch(rb"[2345]\d\d[ -][ -~]*\r\n", line)
    assert noisy_agent.meters.value("faults") == before


@pytest.fixture(scope="module")
def noisy_agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    people = logins(folder / "passwords", alice=("secret",))
    with running_agent(root=str(folder / "mail"), passwords=people, plain_login=True) as rig:
        yield rig
        assert rig.logs == [] or all(line["event"] != "fault" for line in rig.logs)
