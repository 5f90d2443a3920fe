"""Logins at the delivery agent: over TLS, with the right password, delayed after wrong ones."""

import contextlib
import smtplib
import ssl
import threading
from base64 import b64encode

import pytest
from support.delivery_agent import MESSAGE, certificate, logins, running_agent
from support.waiting import LIMIT_S

from spamnb.operations.logins import FailedLogins, Passwords


@pytest.fixture
def people(tmp_path):
    return logins(tmp_path / "passwords", alice_at_x_example=("secret", "alice@x.example"))


def test_no_password_goes_in_the_clear(people, tmp_path):
    """Without TLS, AUTH is neither announced nor taken."""
    cert, key = certificate(tmp_path)
    with running_agent(passwords=people, certificate=cert, key=key) as agent:
        with agent.raw() as client:
            assert b"AUTH" not in client.ask(b"EHLO me.example")
            assert client.ask(b"AUTH PLAIN AGEAYg==")[:3] == b"538"
        with agent.smtp() as client:
            client.starttls(context=ssl.create_default_context(cafile=cert))
            client.ehlo()
            assert client.esmtp_features["auth"].split() == ["PLAIN", "LOGIN"]
            assert client.login("Alice@X.example", "secret")[0] == 235
            assert client.docmd("AUTH", "PLAIN AGEAYg==")[0] == 503


def test_a_login_before_tls_is_none_after_it(people, tmp_path):
    """RFC 3207 4.2: commands and login from before STARTTLS are forgotten."""
    cert, key = certificate(tmp_path)
    settings = {"certificate": cert, "key": key, "plain_login": True, "root": str(tmp_path)}
    with running_agent(passwords=people, **settings) as agent, agent.smtp() as client:
        client.login("alice@x.example", "secret")
        client.starttls(context=ssl.create_default_context(cafile=cert))
        client.sendmail("alice@x.example", ["bob@x.example"], MESSAGE)
    assert [line["login"] for line in agent.logs] == [""]


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\x05hello"])
def test_a_handshake_that_fails_leaves_no_connection(people, tmp_path, data, is_silent):
    """The connection is released when the client leaves, or when its time is over."""
    cert, key = certificate(tmp_path)
    settings = {"certificate": cert, "key": key, "connections": 2, "command_timeout_s": 0.2}
    with running_agent(passwords=people, **settings) as agent, contextlib.ExitStack() as stack:
        begun = 0
        while begun < 4:
            client = stack.enter_context(agent.raw())
            with contextlib.suppress(OSError):  # it was refused, or took too long
                begun += client.ask(b"EHLO me.example", b"STARTTLS")[:3] == b"220"
                client.send(data)
            if not is_silent or client.greeting[:3] != b"220":
                client.close()


@pytest.fixture
def agent(people):
    with running_agent(passwords=people, plain_login=True) as rig:
        yield rig


def plain(name, password):
    return b64encode(b"\0" + name + b"\0" + password)


def test_a_login_line_without_end_is_the_clients_fault(agent):
    """The client gets an error and is disconnected: no incident, and the rest is no command."""
    with agent.raw() as client:
        client.ask(b"EHLO me.example")
        assert client.ask(b"AUTH LOGIN")[:3] == b"334"
        # Closed with bytes unread, the connection may be reset before the words are read.
        with contextlib.suppress(ConnectionError):
            client.send(b"x" * 300_000 + b"\r\nNOOP\r\n")
            assert client.reply()[:3] == b"501"
            assert client.reply() == b""
    assert agent.meters.value("faults") == 0


def test_every_way_to_log_in_works(agent):
    """PLAIN and LOGIN work with and without an initial response."""
    name, word = b64encode(b"alice@x.example"), b64encode(b"secret")
    both = plain(b"alice@x.example", b"secret")
    for commands in (
        [b"AUTH PLAIN " + both],
        [b"auth plain " + both],
        [b"AUTH PLAIN", both],
        [b"AUTH LOGIN", name, word],
        [b"AUTH LOGIN " + name, word],
    ):
        with agent.raw() as client:
            client.ask(b"EHLO me.example")
            assert client.ask(*commands)[:9] == b"235 2.7.0"


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        ([b"AUTH PLAIN " + plain(b"alice@x.example", b"Secret")], b"535"),
        ([b"AUTH PLAIN " + plain(b"alice@x.example", b"")], b"535"),
        ([b"AUTH PLAIN " + plain(b"nobody", b"secret")], b"535"),
        ([b"AUTH PLAIN " + plain(b"alice@x.example", b"\xff\xfe")], b"535"),
        ([b"AUTH PLAIN " + plain(b"\xff\xfe", b"secret")], b"535"),
        ([b"AUTH PLAIN " + plain(b"", b"secret")], b"501"),
        ([b"AUTH PLAIN " + b64encode(b"no fields")], b"501"),
        ([b"AUTH PLAIN " + b64encode(b"\0a\0b\0c")], b"501"),
        ([b"AUTH PLAIN ???"], b"501"),
        ([b"AUTH PLAIN ="], b"501"),
        ([b"AUTH PLAIN", b"*"], b"501"),
        ([b"AUTH PLAIN", b"???"], b"501"),
        ([b"AUTH LOGIN", b"*"], b"501"),
        ([b"AUTH CRAM-MD5"], b"504"),
        ([b"AUTH"], b"504"),
        ([b"AUTH PLAIN a b"], b"504"),
        ([b"MAIL FROM:<a@b.example>", b"AUTH PLAIN AGEAYg=="], b"503"),
    ],
)
def test_every_other_way_does_not(agent, commands, code):
    """Each kind of invalid login gets its own reply, and the session stays without a login."""
    with agent.raw() as client:
        client.ask(b"EHLO me.example")
        assert client.ask(*commands)[:3] == code
        assert client.ask(b"NOOP")[:3] == b"250"
    assert agent.meters.value("faults") == 0


def test_guessing_is_slowed_down(agent, monkeypatch):
    """Three wrong passwords end a connection; then tries wait, by address."""
    wrong = b"AUTH PLAIN " + plain(b"alice@x.example", b"guess")
    right = b"AUTH PLAIN " + plain(b"alice@x.example", b"secret")
    codes = []
    for _ in range(2):
        with agent.raw() as client:
            client.ask(b"EHLO me.example")
            codes += [client.ask(wrong)[:9] for _ in range(3)]
            assert client.file.read() == b""
    assert codes[:3] == [b"535 5.7.8", b"535 5.7.8", b"421 4.7.0"]
    assert b"454 4.7.0" in codes[3:] or codes[3:] == [b"535 5.7.8", b"535 5.7.8", b"421 4.7.0"]
    with agent.raw() as client:
        client.ask(b"EHLO me.example")
        assert client.ask(right)[:9] == b"454 4.7.0"
    monkeypatch.setattr(FailedLogins, "wait_s", lambda *_: 0.0)
    with agent.raw() as client:
        client.ask(b"EHLO me.example")
        assert client.ask(right)[:3] == b"235"
    refused = [line for line in agent.logs if line["event"] == "login refused"]
    assert len(refused) == agent.meters.value("logins_refused") >= 3
    assert "guess" not in str(agent.logs)


def test_guessing_in_parallel_wins_nothing(agent):
    """A try counts before it is checked, so parallel connections have no further tries."""
    codes = []

    def guess():
        with agent.raw() as client:
            client.ask(b"EHLO me.example")
            codes.append(client.ask(b"AUTH PLAIN " + plain(b"alice@x.example", b"guess"))[:3])

    threads = [threading.Thread(target=guess) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes.count(b"535") <= FailedLogins.FREE + 1
    assert codes.count(b"454") >= 20 - FailedLogins.FREE - 1


def test_mail_flows_while_passwords_are_checked(agent, monkeypatch):
    """A hash takes a fifth of a second; the event loop does not wait for it."""
    release, check = threading.Event(), Passwords.check

    def slow(*arguments):
        assert release.wait(LIMIT_S)
        return check(*arguments)

    monkeypatch.setattr(Passwords, "check", slow)
    with agent.raw() as client, agent.raw() as other:
        client.ask(b"EHLO me.example")
        other.ask(b"EHLO me.example")
        client.send(b"AUTH PLAIN " + plain(b"alice@x.example", b"secret") + b"\r\n")
        for _ in range(10):
            assert other.ask(b"NOOP")[:3] == b"250"
        release.set()
        assert client.reply()[:3] == b"235"


def test_smtplib_says_that_a_login_is_wrong(agent):
    """A login with a wrong password raises the authentication error of smtplib."""
    with agent.smtp() as client, pytest.raises(smtplib.SMTPAuthenticationError):
        client.login("alice@x.example", "wrong")
